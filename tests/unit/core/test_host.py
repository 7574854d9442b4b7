"""Host of a client's holds, and of the leftovers of its waits; played without masters."""

from typing import Any

import pytest
from support.pure_host import OPTIONS, PureHost

from relock._core.book import Book
from relock._core.effects import Answer, Failure, Undo
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Grant
from relock._events import LossCode
from relock._keys import lock_keys
from relock._owner import current_thread


def hold() -> Hold:
    """Return a hold of two levels."""
    spec = LockSpec.of(lock_keys("lock", "a"), ("a",), OPTIONS.for_lock(), OPTIONS)
    return Hold(spec, b"me:1", current_thread(), Grant(1, 1e9, [1e9], True, [([b"granted", 1, 1],)]), 2)


class LateBook(Book):
    """A book of holds, in which a thread takes a lock afresh right after the first look at all holds."""

    afresh: dict[Any, Any]

    def copy(self) -> "LateBook":
        seen = LateBook(self)
        self.update(self.afresh)
        self.afresh = {}
        return seen


def test_a_hold_that_is_new_is_not_taken_for_the_lost_one_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The book keeps only the latest lost holds; their owners may take the lock afresh at any moment."""
    monkeypatch.setattr("relock._core.book.TOLD_MAX", 1)
    fresh, book = hold(), LateBook()
    for owner in ("me", "you"):
        lost = book["a", owner] = hold()
        lost.lose(LossCode.EXPIRED, 1.0)
        lost.count = 0
    book.afresh = {("a", "me"): fresh}
    assert book.all() == [fresh, lost]


@pytest.mark.parametrize(
    ("says", "is_left"),
    [
        ([b"queued", 1_099_000, 5_000, 0, b"you:1", 7], False),
        ([b"queued", 1_101_000, 5_000, 0, b"you:1", 7], True),
        ([b"no_vote", 1_101_000, 9_000_000], True),
        ([b"released", 1_101_000], True),
        ([b"granted", 1_099_000, 100], True),
        ([b"proposed", 1_101_000, 5_000, 0, b"you:1", 7], False),
        ([b"absent", 1_101_000], False),
        (Failure("c", "broken"), True),
        (Failure("c", "down", sent=False), False),
    ],
    ids=str,
)
def test_a_served_waiter_is_taken_out_of_a_queue_that_it_came_into_after_that(says: Any, *, is_left: bool) -> None:
    """A place that a waiter got before its hold goes with the hold's release."""
    host = PureHost(3)
    for offset in host.known:
        offset.see(-98.9, -98.9, 100.0)  # the masters' clocks are this much ahead of ours
    queued = [b"queued", 1_050_000, 5_000, 0, b"you:1", 7]
    answers: list[Answer] = [(queued,), (queued,), (Failure("c", "not yet", awaited=True),)]
    host.undo_attempt(Undo(hold().keys, b"me:1", 1.0, 1.3, answers))
    (check,) = host.checks
    assert check.is_left()
    answers[2] = (says,)
    assert check.is_left() == is_left


def test_a_waiter_keeps_a_place_that_it_gets_late_until_its_client_is_closed() -> None:
    """The request that gives up a place may have overtaken the request for it, on another connection."""
    host = PureHost(3)
    queued = [b"queued", 9_000_000_000_000_000, 5_000, 0, b"you:1", 7]
    host.undo_attempt(Undo(hold().keys, b"me:1~1.7", 1.0, 1.3, [(queued,)] * 3, keeps_place=True, ticket=7))
    (check,) = host.checks
    assert not check.is_left()
    host.closed = True
    assert check.is_left()
