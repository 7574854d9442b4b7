"""Looks at a lock, and the comparison of two: reading changes nothing, so a look may be repeated."""

import pytest

from relock import Holder, LockInfo
from relock._core.effects import Failure, Reply
from relock._core.flows.inspect import agree, is_worth_another_look

FREE: Reply = [b"free", 10, 0, []]
BROKEN = Failure("a", "the server closed the connection", broken=True)
SILENT = Failure("a", "it has not answered", awaited=True)
DOWN = Failure("a", "refused", sent=False)


@pytest.mark.parametrize(
    ("replies", "is_worth"),
    [
        ([FREE], False),
        ([BROKEN], True),
        ([SILENT], False),
        ([DOWN], False),
        ([FREE, FREE, BROKEN], False),
        ([FREE, BROKEN, DOWN], True),
        ([FREE, SILENT, DOWN], False),
        ([BROKEN, DOWN, DOWN], False),
        ([BROKEN, BROKEN, SILENT], True),
    ],
)
def test_another_look_is_worth_it_where_ended_connections_make_up_for_a_quorum(
    replies: list[Reply | Failure], is_worth: bool
) -> None:
    assert is_worth_another_look(replies) is is_worth


def shared(*readers: tuple[bytes, int | bytes, int], token: int = 7) -> Reply:
    return [b"shared", 10, token, [part for reader in readers for part in reader], [b"me:9", b"2"]]


def held(owner: bytes, count: int = 1) -> Reply:
    return [b"held", 10, 5_000, owner, count, 7, []]


def test_the_readers_of_a_lone_master_are_its_holders_and_the_latest_lease_comes_first() -> None:
    info = agree("a", [shared((b"me:1&", 2, 3_000), (b"you:1&", 1, 9_000), (b"me:2&", 1, 5_000))])
    assert info is not None
    assert info.readers == (Holder("you:1&", 1, 9.0), Holder("me:2&", 1, 5.0), Holder("me:1&", 2, 3.0))
    assert info.holders == info.readers
    assert (info.owner, info.hold_count, info.ttl, info.held, info.token) == ("you:1&", 1, 9.0, True, 7)
    assert info.queue == ("me:9",)


def test_a_reader_is_one_that_a_quorum_names_with_the_lease_that_a_quorum_has() -> None:
    one, other = (b"me:1&", 1), (b"you:1&", 1)
    info = agree("a", [shared((*one, 9_000), (*other, 1_000)), shared((*one, 5_000)), shared((*one, 7_000), token=8)])
    assert info is not None
    assert info.readers == (Holder("me:1&", 1, 7.0),), "the other one is known to a minority"
    assert info.token == 8
    counts = agree("a", [shared((b"me:1&", 1, 9_000)), shared((b"me:1&", 2, 9_000)), FREE])
    assert counts is not None
    assert counts.readers[0].hold_count == 2


def test_readers_that_no_quorum_names_are_those_that_most_masters_name() -> None:
    info = agree("a", [shared((b"me:1&", 1, 9_000)), shared((b"you:1&", 1, 5_000)), FREE])
    assert info is not None
    assert {reader.owner for reader in info.readers} == {"me:1&", "you:1&"}


def test_where_some_masters_name_readers_and_some_a_writer_the_majority_of_these_decides() -> None:
    reader, writer = shared((b"me:1&7", 1, 9_000)), held(b"me:7@3000")
    for replies, owner in (
        ([reader, reader, writer], "me:1&7"),
        ([reader, writer, writer], "me:7@3000"),
        ([reader, writer, FREE], "me:7@3000"),
    ):
        info = agree("a", replies)
        assert info is not None
        assert (info.owner, bool(info.readers)) == (owner, owner == "me:1&7")
        assert len(info.holders) == 1
    free = agree("a", [reader, FREE, FREE])
    assert free is not None
    assert (free.held, free.holders) == (False, ())


def test_the_holders_of_a_lock_are_its_only_holder_or_none() -> None:
    info = agree("a", [held(b"me:1", 2)])
    assert info is not None
    assert (info.kind, info.holders) == ("lock", (Holder("me:1", 2, 5.0),))
    assert LockInfo("a", None, 0, 0.0, None, ()).holders == ()
    assert LockInfo("a", None, 0, 5.0, None, ()).holders == (), "another library's lock has no owner"


def noted(owner: bytes, note: bytes, count: int = 1) -> Reply:
    return [b"noted", 10, 5_000, owner, count, 7, note, [b"me:9", b"2"]]


def test_the_note_is_that_of_the_holder_also_where_only_some_masters_have_it() -> None:
    info = agree("a", [held(b"me:1", 2), noted(b"me:1", b"why \xff"), noted(b"you:1", b"another", 3)])
    assert info is not None
    assert (info.owner, info.hold_count, info.token, info.note) == ("me:1", 2, 7, "why \ufffd")
    assert info.holders == (Holder("me:1", 2, 5.0, "why \ufffd"),)
    assert info.queue == ("me:9",)
    free = agree("a", [FREE, FREE, noted(b"me:1", b"why")])
    assert (free and free.owner, free and free.note) == (None, None)


def test_each_reader_has_its_own_note_and_the_lock_that_of_the_first() -> None:
    readers = shared((b"me:1&", b"2 why", 3_000), (b"you:1&", 1, 9_000), (b"me:2&", b"1 two words", 5_000))
    info = agree("a", [readers])
    assert info is not None
    assert [(one.owner, one.hold_count, one.note) for one in info.readers] == [
        ("you:1&", 1, None),
        ("me:2&", 1, "two words"),
        ("me:1&", 2, "why"),
    ]
    assert info.note is None
    some = agree("a", [shared((b"me:1&", b"2 why", 3_000)), shared((b"me:1&", 2, 3_000))])
    assert some is not None
    assert (some.note, some.hold_count) == ("why", 2)


def test_a_lock_that_rests_is_held_without_an_owner_where_most_masters_say_so() -> None:
    rests = held(b"~me:1~1.5", 0)
    info = agree("a", [rests, rests, held(b"me:1~1.5", 1)])
    assert info is not None
    assert (info.held, info.resting, info.owner, info.holders, info.held_for) == (True, True, None, (), None)
    going = agree("a", [rests, held(b"me:1~1.5", 1), held(b"me:1~1.5", 1)])
    assert going is not None
    assert (going.resting, going.owner) == (False, "me:1~1.5")


def test_the_token_says_since_when_the_lock_is_held_and_the_tickets_since_when_others_wait() -> None:
    now_us, token = 1_700_000_000_000_000, 1_699_999_940_000_000
    queue = [b"me:1", b"1699999958500000", b"me:2", b"1700000000500000", b"me:3", b"inf", b"me:4", b"-inf"]
    lone = agree("a", [[b"held", now_us, 5_000, b"you:1", 1, token, queue]])
    assert lone is not None
    assert (lone.held_for, lone.queue, lone.waits) == (
        60.0,
        ("me:1", "me:2", "me:3", "me:4"),
        (41.5, 0.0, 0.0, now_us / 1e6),
    )
    several = agree("a", [[b"held", now_us, 5_000, b"you:1", 1, token, queue]] * 2 + [FREE])
    assert several is not None
    assert several.waits[:3] == (42.5, 0.5, 0.0), (
        "several masters write tickets that lie a second ahead of their clocks"
    )


def test_nobody_knows_since_when_another_library_has_the_lock_or_readers_have_it() -> None:
    for reply in ([b"held", 10, 5_000, b"", 0, 7, []], shared((b"me:1&", 1, 9_000)), FREE):
        info = agree("a", [reply])
        assert info is not None
        assert info.held_for is None


@pytest.mark.parametrize(
    "reply",
    [
        [b"held", 10, 5_000, b"me:1@3000~2.1", 1, 7, [b"me:1@3000", b"1", b"you:1", b"2"]],
        [*shared((b"me:1&@3000~2.1", 1, 9_000))[:4], [b"me:1&@3000", b"1", b"you:1", b"2"]],
    ],
)
def test_a_holder_whose_place_a_late_request_has_restored_does_not_wait(reply: Reply) -> None:
    info = agree("a", [reply])
    assert info is not None
    assert (info.queue, len(info.waits)) == (("you:1",), 1)


def test_a_waiter_that_too_few_masters_have_granted_the_lock_still_waits() -> None:
    granted = [b"held", 10, 5_000, b"me:1~1.5", 1, 7, []]
    info = agree("a", [granted, *[[b"held", 10, 5_000, b"you:1", 1, 7, [b"me:1", b"1"]]] * 2])
    assert info is not None
    assert info.queue == ("me:1",)
