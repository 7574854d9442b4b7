"""Threads that share an ``owner=``: one of them queues, the others join its hold, and nothing piles up."""

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest
from support.masters import Deployment
from support.until import until

from relock import Client, Event, Lock, LockLostError, NotGranted, QuorumError
from relock._core.call_record import CallRecord, Step
from relock._core.hold import Hold
from relock._owner import named

pytestmark = pytest.mark.every_quorum

Connect = Callable[..., Client]


def test_a_thread_that_does_not_wait_joins_the_hold_that_its_owner_has(client: Client, name: str) -> None:
    """Also while other threads of that owner are at the gate."""
    client.lock(name, owner="job").acquire()
    refused: list[bool] = []

    def nest() -> None:
        lock = client.lock(name, owner="job")
        for _ in range(50):
            if lock.acquire(blocking=False):
                lock.release()
            else:
                refused.append(True)

    threads = [threading.Thread(target=nest) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    assert client.lock(name, owner="job").hold_count == 1


def test_a_thread_behind_another_of_its_owner_hears_that_the_masters_are_away(
    connect: Connect, own_server: Deployment, name: str
) -> None:
    client = connect(own_server.url, patience=5.0, ttl=3.0)
    with client.lock("warm-up"):
        pass
    own_server.kill()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock(name, owner="job").acquire)
        until(lambda: client._session.gates._gates, within=5, what="the first is at the gate")
        with pytest.raises(QuorumError):
            client.lock(name, owner="job").acquire(timeout=0.2)
        with pytest.raises(QuorumError):
            waiting.result()


def test_a_thread_behind_another_of_its_owner_hears_that_somebody_has_the_lock(
    client: Client, connect: Connect, server: Deployment, name: str
) -> None:
    with connect(server.url).lock(name), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock(name, owner="job").acquire, timeout=4.0)
        until(lambda: client.statistics().waiting == 1, within=10, what="the first waits")
        assert client.lock(name, owner="job").acquire(blocking=False) is False
        assert waiting.result() is False


def test_a_refusal_behind_another_of_its_owner_is_counted_and_told_like_any_other(
    connect: Connect, server: Deployment, name: str
) -> None:
    told: list[Event] = []
    client = connect(server.url, on_event=told.append)
    with connect(server.url).lock(name), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock(name, owner="job").acquire, timeout=4.0)
        until(lambda: client.statistics().waiting == 1, within=10, what="the first waits")
        assert client.lock(name, owner="job").acquire(timeout=0.05) is False
        assert waiting.result() is False
    assert client.statistics().refusals == 2
    until(lambda: len([event for event in told if isinstance(event, NotGranted)]) == 2, within=10, what="both are told")


def test_gates_and_lost_holds_of_many_owners_do_not_pile_up(
    client: Client, connect: Connect, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relock._core.book.TOLD_MAX", 3)
    with connect(server.url).lock(name):
        for i in range(20):
            assert not client.lock(name, owner=f"job-{i}").acquire(blocking=False)
    assert client._session.gates._gates == {}
    for i in range(20):
        lock = client.lock(f"{name}-{i}", owner=f"job-{i}")
        lock.acquire()
        lock.force_release()
        with pytest.raises(LockLostError):
            lock.release()
        assert lock.lost
    client._session.all_holds()
    assert len(client._session.holds) == 3


def test_a_thread_that_comes_in_while_the_owners_hold_is_found_lost_keeps_its_own(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release has taken the old hold out of the book, and puts it back to report that it was lost."""
    lock = client.lock(name, owner="job")
    lock.acquire()
    lock.force_release()
    end_elsewhere = client._session.calls._end_elsewhere
    coming: list[Future[bool]] = []

    def end_when_the_next_has_come(*args: Any) -> None:
        monkeypatch.undo()
        coming.append(pool.submit(client.lock(name, owner="job").acquire))
        wait(coming, timeout=1.0)  # it waits behind this release, or it would have the lock by then
        end_elsewhere(*args)

    monkeypatch.setattr(client._session.calls, "_end_elsewhere", end_when_the_next_has_come)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(LockLostError):
            lock.release()
        assert coming[0].result(30)
    assert lock.owned()
    lock.release()


class Interrupt(BaseException):
    """What the tests raise; relock does not know it."""


CALLS: dict[str, tuple[int, Callable[[Lock], object], int]] = {
    "acquire": (0, Lock.acquire, 0),
    "nested acquire": (1, Lock.acquire, 1),
    "release": (1, Lock.release, 0),
    "nested release": (2, Lock.release, 1),
}  # the levels before it, the call, and the levels that it must leave when it is interrupted


def strike(*_: object) -> None:
    raise Interrupt


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("is_over", [False, True], ids=["in its work", "at its end"])
def test_an_interrupt_takes_nothing_from_the_next_thread_of_its_owner(
    client: Client, name: str, kind: str, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    """The other one comes in as soon as it can, and has a level before the interrupted call goes on."""
    levels, call, left = CALLS[kind]
    lock = client.lock(name, owner="job")
    for _ in range(levels):
        lock.acquire()
    session = client._session
    leave = session.gates.leave

    def leave_and_let_in(record: CallRecord) -> None:
        monkeypatch.undo()
        leave(record)
        assert pool.submit(client.lock(name, owner="job").acquire).result(30)
        if is_over:
            raise Interrupt

    monkeypatch.setattr(session.gates, "leave", leave_and_let_in)
    if not is_over:
        monkeypatch.setattr(session.watchdog, "watch", strike)
        monkeypatch.setattr(session.calls, "_write_count", strike)
        monkeypatch.setattr(session.calls, "_end", strike)
    with ThreadPoolExecutor(1) as pool, pytest.raises(Interrupt):
        call(lock)
    check_levels(client, lock, left + 1)


@contextmanager
def nesting_slowly(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """Another thread of the owner is inside and takes a level; it comes to its end when what is yielded is called."""
    write_count = client._session.calls._write_count
    is_writing, goes_on = threading.Event(), threading.Event()

    def write_slowly(hold: Hold, count: int) -> Generator[Step, Any, bool]:
        is_writing.set()
        assert goes_on.wait(30)
        return (yield from write_count(hold, count))

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(client._session.calls, "_write_count", write_slowly)
        nesting = pool.submit(client.lock(name, owner="job").acquire)
        assert is_writing.wait(30)
        yield goes_on.set
        goes_on.set()
        assert nesting.result(30)


def test_a_release_that_is_interrupted_on_its_way_in_takes_its_level_of_those_there_are(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of its owner takes a level at that moment, and has not put it into the book."""
    lock, gates = client.lock(name, owner="job"), client._session.gates
    lock.acquire()
    enter = gates.enter
    with nesting_slowly(client, name, monkeypatch) as go_on:

        def enter_again(*args: Any) -> bool:
            go_on()
            return enter(*args)

        def strike_first(*_: object) -> None:
            monkeypatch.setattr(gates, "enter", enter_again)
            raise Interrupt

        monkeypatch.setattr(gates, "enter", strike_first)
        with pytest.raises(Interrupt):
            lock.release()
    monkeypatch.undo()
    check_levels(client, lock, 1)


def test_a_release_that_is_interrupted_and_can_not_come_in_gives_its_level_back_later(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of its owner is inside for longer than the interrupted one waits, and takes a level meanwhile."""
    lock, gates = client.lock(name, owner="job"), client._session.gates
    lock.acquire()
    enter = gates.enter

    def strike_first(*_: object) -> None:
        monkeypatch.setattr(gates, "enter", enter)
        raise Interrupt

    with nesting_slowly(client, name, monkeypatch):
        monkeypatch.setattr(gates, "enter", strike_first)
        monkeypatch.setattr(client._session, "node_timeout", 0.0)
        with pytest.raises(Interrupt):
            lock.release()
        monkeypatch.undo()
    until(lambda: lock.hold_count == 1, within=30, what="a level is given back")
    check_levels(client, lock, 1)


@pytest.mark.parametrize("strikes", [1, 2])
def test_an_errand_gives_back_once_though_the_clean_up_that_began_it_is_struck(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch, *, strikes: int
) -> None:
    """And the errand is done before the clean-up is begun again."""
    lock, session = client.lock(name, owner="job"), client._session
    for _ in range(3):
        lock.acquire()
    inside, record = CallRecord(), CallRecord()
    key = (name, ("owner", "job"))
    assert session.gates.try_enter(inside, key, "another")
    monkeypatch.setattr(session, "node_timeout", 0.0)
    take_back, interrupted = session.interrupted._take_back, session.interrupted
    if strikes == 2:
        monkeypatch.setattr(interrupted, "_take_back", strike)
        with pytest.raises(Interrupt):
            interrupted.give_up(record, name, named("job"), 1)
        monkeypatch.setattr(interrupted, "_take_back", take_back)
        session.gates.leave(inside)
        until(lambda: lock.hold_count == 2, within=30, what="the errand is done")
    interrupted.give_up_again(record, name, named("job"), 1)
    session.gates.leave(inside)
    monkeypatch.undo()
    until(lambda: lock.hold_count == 2, within=30, what="the errand is done")
    until(lambda: not interrupted._errands, within=30, what="no errand is left")
    check_levels(client, lock, 2)


def check_levels(client: Client, lock: Lock, count: int) -> None:
    """The owner has so many levels, here and on the masters, and can give back each."""
    assert lock.hold_count == count
    until(lambda: client.info(lock.name).hold_count == count, within=30, what="the masters have the same count")
    for _ in range(count):
        lock.release()
    until(lambda: not client.info(lock.name).held, within=30, what="nothing is left")
