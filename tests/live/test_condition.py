"""A `threading.Condition` over a lock that may be lost, or never come back: no notify goes to a waiter that is gone."""

import linecache
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.alarms import AlarmError
from support.masters import Deployment
from support.until import until

from relock import Client, ConfigurationError, LockLostError, LossCode, NotOwnedError
from relock._core.hold import Hold

pytestmark = pytest.mark.every_quorum

Connect = Callable[..., Client]
LONG = 60.0  # seconds that nothing here may take


def over(lock: Any) -> threading.Condition:
    return threading.Condition(lock)


def waiters(condition: threading.Condition) -> int:
    """Return the number of waiters on the condition's list, dead or alive."""
    return len(condition._waiters)  # type: ignore[attr-defined]


def until_waiting(condition: threading.Condition, count: int = 1) -> None:
    until(lambda: waiters(condition) == count, within=LONG, what=f"{count} wait")


def line_of(thread: int) -> str:
    """Return the line of source that a thread executes, without the functions in C that it calls."""
    frame = sys._current_frames()[thread]
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


class Waiter:
    """A thread that waits."""

    def __init__(self, condition: threading.Condition) -> None:
        self.told: list[bool] = []
        self._condition = condition
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        with self._condition:
            self.told.append(self._condition.wait(timeout=LONG))

    def join(self) -> list[bool]:
        self._thread.join()
        return self.told


def check_that_one_notify_reaches_one_waiter(condition: threading.Condition) -> None:
    """Check that no other waiter is on the list, which would get the notify."""
    alive = Waiter(condition)
    until_waiting(condition)
    with condition:
        condition.notify()
    assert alive.join() == [True]


@pytest.mark.parametrize("use", [threading.Condition.wait, threading.Condition.notify])
def test_a_condition_says_that_the_hold_was_lost(
    client: Client, name: str, use: Callable[[threading.Condition], object]
) -> None:
    """Losses are reported even if they are known already, and the caller could pass for one without a hold."""
    lock = client.lock(name)
    condition = over(lock)
    lock.acquire()
    lock.force_release()
    with pytest.raises(LockLostError):
        lock.extend()
    with pytest.raises(LockLostError):
        use(condition)
    with pytest.raises(LockLostError):
        lock.release()
    with pytest.raises(RuntimeError, match="un-acquired"):
        use(condition)
    assert waiters(condition) == 0


# A hold that was lost before the wait gave it up ----------------------------------------------------------------------


def notify_it(condition: threading.Condition) -> threading.Thread:
    def notify() -> None:
        until_waiting(condition)
        with condition:
            condition.notify()

    thread = threading.Thread(target=notify)
    thread.start()
    return thread


@pytest.mark.parametrize("notified", [True, False], ids=["notified", "timed out"])
def test_a_loss_that_a_wait_finds_is_raised_by_what_comes_after_it(
    client: Client, connect: Connect, server: Deployment, name: str, *, notified: bool
) -> None:
    lock, condition = client.lock(name), over(client.lock(name))
    other = connect(server.url).lock(name)
    uses: list[Callable[[], object]] = [lock.acquire, lock.ensure, lock.extend, condition.notify, condition.wait]
    notifiers: list[threading.Thread] = []
    came_to_its_end = threading.Event()

    def be_inside() -> None:
        with condition, lock:
            other.force_release()
            notifiers.extend([notify_it(condition)] if notified else [])
            assert condition.wait(LONG if notified else 0.05) is notified
            assert waiters(condition) == 0
            assert str(client.info(name).owner).startswith(client._session.client_id), (
                "the code after the wait has the lock"
            )
            assert not other.acquire(blocking=False)
            assert lock.lost
            assert not lock.owned()
            for use in uses:
                with pytest.raises(LockLostError):
                    use()
            came_to_its_end.set()

    with pytest.raises(LockLostError):
        be_inside()
    assert came_to_its_end.is_set()
    for notifier in notifiers:
        notifier.join()
    until(lambda: not client.info(name).held, within=LONG, what="nothing is left")
    assert client.statistics().losses == 1
    with lock:
        assert not lock.lost
    with pytest.raises(NotOwnedError):
        lock.release()


def test_each_level_of_a_hold_that_a_wait_found_lost_says_so(
    client: Client, connect: Connect, server: Deployment, name: str
) -> None:
    lock, condition = client.lock(name), over(client.lock(name))
    lock.acquire()
    lock.acquire()
    connect(server.url).force_release(name)
    assert not condition.wait(0.01)
    with pytest.raises(LockLostError):
        lock.release()
    assert not connect(server.url).lock(name).acquire(blocking=False), "one level is left"
    with pytest.raises(LockLostError):
        lock.release()
    with connect(server.url).lock(name, timeout=LONG), pytest.raises(NotOwnedError):
        lock.release()
    assert client.statistics().held == 0


def test_a_wait_takes_the_lock_again_as_it_was(client: Client, name: str) -> None:
    """The condition's lock is a nested one, whose short lease is not renewed: the outer level's lease goes on."""
    told: list[str] = []
    outer = client.lock(name, ttl=30.0, on_lost=lambda _: told.append("outer"))
    inner = client.lock(name, ttl=1.0, renew=False, on_lost=lambda _: told.append("inner"))
    condition = over(inner)
    outer.acquire()
    with condition:
        condition.wait(0.01)
    assert outer.hold_count == 1
    assert outer.remaining() > 20.0
    assert client._session.holds.of_name(name)[0].renew
    client.force_release(name)
    with pytest.raises(LockLostError):
        outer.extend()
    until(lambda: sorted(told) == ["inner", "outer"], within=LONG, what="both are told")


def test_a_hold_that_a_wait_took_again_rests_after_its_last_release(client: Client, name: str) -> None:
    outer = client.lock(name)

    def end_rest() -> None:
        until(lambda: client.info(name).resting, within=LONG, what="the wait has released the lock")
        client.force_release(name)

    ending = threading.Thread(target=end_rest)
    with outer:
        with client.lock(name, at_least=20.0):
            pass
        ending.start()
        over(outer).wait(0.01)
        ending.join()
    assert client.info(name).resting


def test_a_wait_takes_the_lock_again_for_as_long_as_was_asked(client: Client, name: str) -> None:
    lock = client.lock(name, ttl=20.0)
    condition = over(lock)
    with condition:
        lock.extend(60.0)
        condition.wait(0.01)
        assert lock.remaining() > 40.0


def test_a_wait_that_lost_its_hold_leaves_no_waiter_that_takes_a_notify(
    client: Client, connect: Connect, server: Deployment, name: str
) -> None:
    lock, condition = client.lock(name), over(client.lock(name))
    lock.acquire()
    connect(server.url).force_release(name)
    condition.wait(0.01)
    with pytest.raises(LockLostError):
        lock.release()
    check_that_one_notify_reaches_one_waiter(condition)


class Interrupt(BaseException):
    """Exception that the tests raise; relock does not know the class."""


def strike(*_: object) -> None:
    raise Interrupt


def test_an_interrupted_release_of_a_hold_that_a_wait_found_lost_leaves_nothing(
    client: Client, connect: Connect, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, condition = client.lock(name), over(client.lock(name))
    lock.acquire()
    connect(server.url).force_release(name)
    assert not condition.wait(0.01)
    end = client._session.interrupted.leave_lost

    def strike_once(hold: Hold) -> None:
        monkeypatch.setattr(client._session.interrupted, "leave_lost", end)
        raise Interrupt

    monkeypatch.setattr(client._session.interrupted, "leave_lost", strike_once)
    with pytest.raises(Interrupt):
        lock.release()
    until(lambda: not client.info(name).held, within=LONG, what="nothing is left")
    assert client.statistics().held == 0


# A hold that can't be had again ---------------------------------------------------------------------------------------


def test_a_wait_comes_back_with_the_lock_when_the_masters_are_back(
    connect: Connect, own_server: Deployment, name: str
) -> None:
    """Waits come back with any patience. Nothing is reported to the owner, because the owner has lost nothing."""
    client = connect(own_server.url, patience=0.0, ttl=9.0, node_timeout=3.0)
    lock, condition = client.lock(name), over(client.lock(name))
    owned: list[object] = []

    def wait() -> None:
        with condition, lock:
            owned.append(condition.wait(LONG))
            owned.append(lock.hold_count)
            lock.ensure()

    thread = threading.Thread(target=wait)
    thread.start()
    until_waiting(condition)
    with condition:
        own_server.stop()
        condition.notify()
        waits = client.statistics().waits
    try:
        until(lambda: client.statistics().waits > waits, within=LONG, what="the wait looks again, without an answer")
    finally:
        own_server.cont()
    thread.join()
    assert owned == [True, 2]
    assert client.statistics().losses == 0


def test_a_wait_that_can_not_take_its_levels_again_comes_back_and_the_next_use_says_so(
    connect: Connect, server: Deployment, name: str
) -> None:
    client = connect(server.url)
    lock, condition = client.lock(name), over(client.lock(name))
    other = connect(server.url).lock(name, owner="other")

    def close() -> None:
        until(other.owned, within=LONG, what="the other one has the lock")
        until(lambda: client.statistics().waiting == 1, within=LONG, what="the wait has timed out")
        client.close()

    lock.acquire()
    lock.acquire()
    taker = threading.Thread(target=other.acquire)
    taker.start()
    until(lambda: lock.info().queue, within=LONG, what="the other one waits")
    closer = threading.Thread(target=close)
    closer.start()
    assert condition.wait(0.05) is False
    assert waiters(condition) == 0
    for use in (lock.ensure, lock.acquire, condition.notify, condition.wait, lock.release, lock.release):
        with pytest.raises(LockLostError, match="closed"):
            use()
    with pytest.raises(NotOwnedError):
        lock.release()
    taker.join()
    closer.join()
    assert other.owned()


# Interrupts -----------------------------------------------------------------------------------------------------------


@contextmanager
def an_alarm(when: Callable[[], object]) -> Iterator[None]:
    """Interrupt the main thread once `when()` is true."""

    def ring() -> None:
        until(when, within=LONG, what="the moment to interrupt")
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=ring)
    thread.start()
    yield
    thread.join()


@pytest.mark.usefixtures("alarms")
@pytest.mark.parametrize("kind", ["threading.RLock", "relock.Lock"])
def test_an_interrupt_out_of_a_wait_comes_with_the_lock_and_leaves_no_waiter(
    client: Client, name: str, kind: str
) -> None:
    lock: Any = threading.RLock() if kind == "threading.RLock" else client.lock(name)
    condition = over(lock)
    thread = threading.get_ident()

    def is_waiting() -> bool:
        """Return whether the thread waits: another one may get the lock before the release of the wait returns."""
        return waiters(condition) == 1 and "waiter.acquire(True, timeout)" in line_of(thread)

    with condition:
        with an_alarm(is_waiting), pytest.raises(AlarmError):
            condition.wait(LONG)
        assert lock._is_owned()
        assert waiters(condition) == 0
    check_that_one_notify_reaches_one_waiter(condition)


@pytest.mark.usefixtures("alarms")
def test_an_interrupt_while_a_wait_takes_its_levels_again_is_raised_at_once_and_they_are_lost(
    client: Client, connect: Connect, server: Deployment, name: str
) -> None:
    """`threading.RLock` raises after it has taken the lock, which may take forever if another process has it."""
    lock, condition = client.lock(name), over(client.lock(name))
    other = connect(server.url).lock(name, owner="other")
    redis = server.client()
    lock.acquire()
    taker = threading.Thread(target=other.acquire)
    taker.start()
    until(lambda: lock.info().queue, within=LONG, what="the other one waits")
    with an_alarm(lambda: other.owned() and client.statistics().waiting == 1), pytest.raises(AlarmError):
        condition.wait(0.05)
    taker.join()
    assert other.owned()
    for use in (lock.acquire, lock.ensure, lock.release):
        with pytest.raises(LockLostError, match="AlarmError"):
            use()
    assert [hold.loss.code for hold in client._session.holds.all() if hold.loss] == [LossCode.NOT_RETAKEN]
    until(lambda: redis.zcard(f"lock:{{{name}}}:queue") == 0, within=LONG, what="an empty queue")
    other.release()
    with lock:
        assert not lock.lost


def test_an_interrupt_while_a_wait_gives_its_levels_up_leaves_none(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, condition = client.lock(name), over(client.lock(name))
    lock.acquire()
    lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(client._session.calls, "_end", strike)
        with pytest.raises(Interrupt):
            condition.wait()
    for use in (lock.acquire, lock.release, lock.release):
        with pytest.raises(LockLostError, match="Interrupt"):
            use()
    until(lambda: not client.info(name).held, within=LONG, what="nothing is left")


# Threads that share an owner ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [threading.Condition.wait, threading.Condition.notify])
def test_a_condition_over_an_owner_is_refused(
    client: Client, name: str, use: Callable[[threading.Condition], object]
) -> None:
    """Threads of an owner are inside together, so a wait of one would give up the levels of the others."""
    condition = over(client.lock(name, owner="job"))
    with condition:
        with pytest.raises(ConfigurationError, match=r"owner='job'.*Condition") as caught:
            use(condition)
        assert (caught.value.option, caught.value.lock) == ("owner", name)
        assert client.lock(name, owner="job").hold_count == 1
    assert waiters(condition) == 0


# Readers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [threading.Condition.wait, threading.Condition.notify])
def test_a_condition_over_a_write_lock_is_refused_while_its_owner_reads_as_well(
    client: Client, name: str, use: Callable[[threading.Condition], object]
) -> None:
    """A wait would end without the lock: beside the caller's own read lock, nobody gets the write lock."""
    both = client.rwlock(name)
    condition = over(both.write)
    with condition:
        with both.read:
            with pytest.raises(ConfigurationError, match=r"reader as well.*Condition") as caught:
                use(condition)
            assert (caught.value.option, caught.value.lock) == (None, name)
            assert both.write.owned()
        assert not condition.wait(timeout=0.01)
        condition.notify()
    assert waiters(condition) == 0
