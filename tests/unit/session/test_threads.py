"""What a session does after an interrupted call. No test here needs a server."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.instructions import Interrupt, Strike

from relock import Client
from relock._core.book import Book
from relock._core.call_record import CallRecord
from relock._core.effects import Answer, Failure, Undo
from relock._core.hold import FOREVER, Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Grant
from relock._core.tasks import PendingCheck, Settle, Task
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import current_thread
from relock._runtime.machine import THREADS
from relock._runtime.session.gates import Gates

OPTIONS = ClientOptions()


@pytest.fixture
def client() -> Client:
    return Client("redis://localhost:1")


def hold() -> Hold:
    """A hold of two levels."""
    spec = LockSpec.of(lock_keys("lock", "a"), ("a",), OPTIONS.for_lock(), OPTIONS)
    return Hold(spec, b"me:1", current_thread(), Grant(1, 1e9, [1e9], True, [([b"granted", 1, 1],)]), 2)


def test_a_count_is_settled_though_the_janitor_was_kept_from_hearing_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt strikes when the hold is marked, and the janitor does not have the task yet."""
    session, made, handed = client._session, hold(), list[Task]()
    record = CallRecord()
    record.hold, record.count = made, 2
    with monkeypatch.context() as patch:
        patch.setattr(session.janitor, "hand", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.settle(made)
    monkeypatch.setattr(session.janitor, "hand", handed.append)
    session.interrupted.abandon(record)
    assert handed == [Settle(made)]


class LateBook(Book):
    """A book of holds. Right after the first look at all of them, a thread takes a lock afresh."""

    afresh: dict[Any, Any]

    def copy(self) -> "LateBook":
        seen = LateBook(self)
        self.update(self.afresh)
        self.afresh = {}
        return seen


def test_a_hold_that_is_new_is_not_taken_for_the_lost_one_before_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book keeps only the latest lost holds; their owners may take the lock afresh at any moment."""
    monkeypatch.setattr("relock._core.book.TOLD_MAX", 1)
    fresh, book = hold(), LateBook()
    for owner in ("me", "you"):
        lost = book["a", owner] = hold()
        lost.lose("gone", 1.0)
        lost.count = 0
    book.afresh = {("a", "me"): fresh}
    client._session.holds = book
    assert client._session.all_holds() == [fresh, lost]


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
def test_a_served_waiter_is_taken_out_of_a_queue_that_it_came_into_after_that(
    says: Any, *, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that it got before its hold goes with its release."""
    session = Client([f"redis://localhost:{port}" for port in (1, 2, 3)])._session
    checks: list[PendingCheck] = []
    monkeypatch.setattr(session.janitor, "look_later", checks.append)
    monkeypatch.setattr(session, "clock", lambda: 1.0)
    for master in session.masters:
        master.offset.see(0.1, 0.1, 1.0)  # their clocks are this much ahead of ours
    queued = [b"queued", 1_050_000, 5_000, 0, b"you:1", 7]
    answers: list[Answer] = [(queued,), (queued,), (Failure("c", "not yet", awaited=True),)]
    session.undo_attempt(Undo(hold().keys, b"me:1", 1.0, 1.3, answers))
    (check,) = checks
    assert check.is_left()
    answers[2] = (says,)
    assert check.is_left() == is_left


def test_a_waiter_keeps_a_place_that_it_gets_late_until_its_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that gives up its place may have overtaken the one for the place, on another connection."""
    session = Client([f"redis://localhost:{port}" for port in (1, 2, 3)])._session
    checks: list[PendingCheck] = []
    monkeypatch.setattr(session.janitor, "look_later", checks.append)
    queued = [b"queued", 9_000_000_000_000_000, 5_000, 0, b"you:1", 7]
    session.undo_attempt(Undo(hold().keys, b"me:1~1.7", 1.0, 1.3, [(queued,)] * 3, stays=True, ticket=7))
    (check,) = checks
    assert not check.is_left()
    session.closed = True
    assert check.is_left()


def _interrupt(_task: Any) -> None:
    raise KeyboardInterrupt


def test_a_gate_is_open_after_an_interrupt_at_any_instruction_of_leaving_it() -> None:
    gates, key = Gates(THREADS), ("a", "me")
    for raise_at in itertools.count(1):
        record, other = CallRecord(), CallRecord()
        assert gates.enter(record, key, FOREVER)
        try:
            with Strike(raise_at, lambda code: code is Gates.leave.__code__):
                gates.leave(record)
        except Interrupt:
            gates.leave(record)
        else:
            break
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(gates.enter, other, key, 0.0).result(), f"after instruction {raise_at}"
            pool.submit(gates.leave, other).result()
    assert raise_at > 10, "the instructions are seen"
