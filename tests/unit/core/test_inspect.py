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


def test_the_holders_of_a_lock_are_its_only_holder_or_none() -> None:
    held = agree("a", [[b"held", 1, 5_000, b"me:1", 2, 7, []]])
    assert held is not None
    assert (held.kind, held.holders) == ("lock", (Holder("me:1", 2, 5.0),))
    assert LockInfo("a", None, 0, 0.0, None, ()).holders == ()
    assert LockInfo("a", None, 0, 5.0, None, ()).holders == (), "another library's lock has no owner"
