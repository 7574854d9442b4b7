"""State of a semaphore, as its masters agree on it, and an operator's limit."""

from typing import Any

import pytest

from relock._core.effects import Ask, Failure
from relock._core.flows import permits
from relock._core.lock_spec import LockSpec, Wish
from relock._core.quorum import VOID as TOO_LATE
from relock._keys import permit_keys
from relock._options import ClientOptions

OWNERS = [b"me:1#1/4", b"me:2#2/4@3000~1", b"you:3#1/8@3000~me.7.2"]


def look(override: int, *owners: bytes, queue: tuple[bytes, ...] = ()) -> permits.SemaphoreInfo:
    """Return what one master says of a semaphore whose limit is 5 in the code that looks."""
    holders = [part for slot, owner in enumerate(owners) for part in (owner, b"%d" % slot, 1_000)]
    info = permits.agree(
        "a", 5, [[b"info", 1, override, 7, holders, [word for waiter in queue for word in (waiter, b"1")]]]
    )
    assert info is not None
    return info


def test_a_semaphore_says_which_limits_its_holders_and_waiters_name() -> None:
    assert look(-1, *OWNERS[:2]).limits == (4,)
    assert look(-1, *OWNERS[:2], queue=tuple(OWNERS[2:])).limits == (4, 8)
    assert look(-1).limits == ()
    assert look(-1, b"job#1/3:4").limits == (), "an owner that relock did not name has no limit"
    assert look(-1, b"me:1#1/%b" % (b"9" * 5000)).limits == (), "nor has one that no limit can follow"
    assert look(-1).kind == "semaphore"


@pytest.mark.parametrize(("said", "override", "limit"), [(-1, None, 5), (0, 0, 0), (2, 2, 2)])
def test_a_semaphore_says_if_an_operator_has_set_its_limit(said: int, override: int | None, limit: int) -> None:
    info = look(said)
    assert (info.override, info.limit) == (override, limit)


def test_a_holder_whose_place_a_late_request_has_restored_does_not_wait() -> None:
    info = look(-1, b"me:1#1/4@3000~you.7.2", queue=(b"me:1#1/4@3000", b"you:3#1/4"))
    assert (info.queue, len(info.waits)) == (("you:3#1/4",), 1)


SET, VOID = [b"set", 1], [b"void", 1]


def override(*rounds: list[Any]) -> tuple[int, Any]:
    """Return how often an override by an operator was sent to three masters, and its result."""
    options = ClientOptions(restart_guard=30.0)
    spec = LockSpec.of(permit_keys("lock", "a"), ("a", "b", "c"), options.for_lock(), options, Wish(1, 4))
    flow = permits.override(spec, 2, 60.0, lambda: 0.0)
    sent, effect = 0, next(flow)
    while isinstance(effect, Ask):
        answers, sent = rounds[sent], sent + 1
        try:
            effect = flow.send([[answer] for answer in answers])
        except StopIteration as end:
            return sent, end.value
    raise AssertionError("it asks for nothing else")


def test_an_override_that_came_too_late_is_sent_once_more() -> None:
    assert override([SET] * 3) == (1, [SET] * 3)
    assert override([SET, VOID, SET], [SET] * 3) == (2, [SET] * 3)


def test_an_override_that_came_too_late_again_is_not_set() -> None:
    sent, answers = override([VOID] * 3, [SET, VOID, VOID])
    assert sent == 2
    assert answers[0] == SET
    assert answers[1:] == [Failure(master, TOO_LATE) for master in "bc"]
