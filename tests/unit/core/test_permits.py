"""State of a semaphore by the words of a quorum, and an operator's ways to change it."""

from typing import Any

import pytest

from relock._core.effects import Ask, Failure
from relock._core.flows.inspect import MasterReplies
from relock._core.flows.notify import message
from relock._core.flows.permits import agree, force_release, override
from relock._core.lock_spec import LockSpec, Wish
from relock._keys import permit_keys
from relock._options import ClientOptions

SILENT = Failure("c", "silent")
OWNER = "me:1#1/2"


def info(
    *holders: tuple[str, int, int], cap: int = -1, queue: tuple[str, ...] = (), now: int = 0, token: int = 0
) -> Any:
    """Return a master's reply: of each holder its name, its slot, and the ms left."""
    flat = [item for name, kept, left_ms in holders for item in (name.encode(), b"%d" % kept, left_ms)]
    return [b"info", now, cap, token, flat, [word for waiter in queue for word in (waiter.encode(), b"1")]]


def state(*answers: Any, limit: int = 2) -> Any:
    replies: MasterReplies = answers
    return agree("a", limit, replies)


def test_nothing_is_known_without_a_quorum() -> None:
    assert state(info(), SILENT, SILENT) is None
    assert state(SILENT) is None
    assert state(info(), info(), SILENT).used == 0


def test_holders_are_those_that_a_quorum_names_in_the_order_of_their_ends() -> None:
    found = state(
        info(("b:1", 1, 5000), ("a:1", 0, 900)),
        info(("a:1", 0, 800), ("c:1", 1, 9000)),
        info(("b:1", 1, 4000)),
    )
    assert [(one.owner, one.slot, one.permits, one.ttl) for one in found.holders] == [
        ("a:1", 0, 1, 0.8),
        ("b:1", 1, 1, 4.0),
    ]
    assert (found.name, found.limit, found.used) == ("a", 2, 2)


def test_an_owner_with_another_slot_on_each_master_has_no_permit() -> None:
    """The masters have two attempts of one wait, which has not ended."""
    assert state(info(("a:1", 0, 900)), info(("a:1", 1, 900)), info()).holders == ()


def test_several_permits_count_as_many_and_have_no_slot() -> None:
    found = state(info(("a:1", -3, 900), ("b:1", 0, 0)), limit=5)
    large, small = sorted(found.holders, key=lambda one: -one.permits)
    assert (large.permits, large.slot, small.permits, small.slot) == (3, None, 1, 0)
    assert found.used == 4
    assert small.ttl == 0.001, "a holder has some time left"


def test_an_operator_s_limit_holds_where_a_quorum_has_it() -> None:
    assert state(info(cap=5), info(), info()).limit == 2
    assert state(info(cap=5), info(cap=5), info()).limit == 5
    assert state(info(cap=0), info(cap=0), SILENT).limit == 0
    assert state(info(cap=5), info(cap=7), info(cap=9)).limit == 7
    assert state(info(cap=0)).limit == 0


def test_more_may_be_used_than_an_operator_s_limit() -> None:
    found = state(info(("a:1", 0, 900), ("b:1", 1, 900), cap=1))
    assert (found.limit, found.used) == (1, 2)


def test_the_queue_is_that_of_the_master_that_knows_most() -> None:
    assert state(info(queue=("x",)), info(queue=("x", "y")), SILENT).queue == ("x", "y")


def spec(masters: int) -> LockSpec:
    client = ClientOptions(restart_guard=30.0)
    return LockSpec.of(permit_keys("lock", "a"), tuple("abcde"[:masters]), client.for_lock(), client, Wish(1, 2))


def ended(*answers: Any, replies: list[Any]) -> bool:
    """Return what `force_release` returns, after a look with `answers` and `replies` to the release."""
    flow = force_release(spec(len(answers)), OWNER, lambda: 0.0)
    next(flow)
    flow.send([[answer] for answer in answers])
    try:
        tell = flow.send([[reply] for reply in replies])
    except StopIteration as over:
        return bool(over.value[0])
    assert isinstance(tell, Ask)
    assert [call.own for call in tell.calls] == [message("lock", "a", b"me", b"ended", b"1#1/2", b"a").own]
    with pytest.raises(StopIteration) as end:
        flow.send([[SILENT] for _ in replies])
    return bool(end.value.value[0])


RELEASED, ABSENT = [b"released", 0], [b"absent", 0]


def test_one_master_that_ended_the_permits_is_enough_to_say_so() -> None:
    """The permit is lost where a minority had the rest: the holder will find out."""
    look = info((OWNER, 0, 900))
    assert ended(look, look, look, replies=[RELEASED, ABSENT, SILENT])
    assert not ended(look, look, look, replies=[ABSENT, ABSENT, SILENT])


def test_nothing_is_ended_where_too_few_masters_answer_the_look() -> None:
    flow = force_release(spec(3), OWNER, lambda: 0.0)
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([[info()], [SILENT], [SILENT]])
    released, answers = end.value.value
    assert released is False
    assert len(answers) == 3


def release_call(*answers: Any) -> bytes:
    flow = force_release(spec(len(answers)), OWNER, lambda: 0.0)
    next(flow)
    ask = flow.send([[answer] for answer in answers])
    assert isinstance(ask, Ask)
    return ask.calls[0].own


def fences(*answers: Any) -> list[int]:
    """Return the numbers among the words of the release that `force_release` sends."""
    words = release_call(*answers).split(b"\r\n")[1::2]
    return [int(word) for word in words if word.isdigit()]


def test_a_lone_master_has_given_every_token() -> None:
    assert fences(info((OWNER, 0, 30_000), now=1_000_000, token=1_000_000))[0] == 0


def test_the_largest_token_that_is_known_is_written_back() -> None:
    look = info((OWNER, 0, 29_000), now=1_000_000, token=40_000_000)
    assert fences(look, info(now=1_500_000, token=900_000), SILENT)[0] == 40_000_000


def test_a_token_that_no_master_knows_lies_below_the_end_of_the_owner_s_lease() -> None:
    look = info((OWNER, 0, 29_000), ("you:1", 1, 90_000), now=1_000_000, token=1_000_000)
    assert fences(look, info(now=1_500_000, token=900_000), SILENT)[0] == 1_000_000 + 29_001_000


def test_an_override_is_one_call_with_its_time() -> None:
    flow = override(spec(3), 5, 1.5, lambda: 100.0)
    ask = next(flow)
    assert isinstance(ask, Ask)
    assert ask.calls[0].script.name == "permit_override"
    words = [word for word in ask.calls[0].own.split(b"\r\n")[1::2] if word.isdigit()]
    assert words == [b"5", b"1500"]
    with pytest.raises(StopIteration) as end:
        flow.send([[[b"set", 0]], [SILENT], [[b"set", 0]]])
    assert end.value.value == [[b"set", 0], SILENT, [b"set", 0]]
