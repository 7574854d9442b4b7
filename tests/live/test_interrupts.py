"""An exception at any instruction of relock's code leaves the hold with the caller, or undone.

Opcode tracing raises at each instruction in turn: first a run counts the instructions of relock's own frames, then one
run for each of them raises there. Afterwards either the caller has the hold, with the same count here and on the
master, and can release it; or nothing is left, here or there, and nothing is renewed.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.alarms import AlarmError, interrupt_request
from support.instructions import Interrupt, Strike, strike_clean_up
from support.leftovers import are_free
from support.masters import Deployment
from support.until import until

from relock import Client, Lock, LockLostError, NotOwnedError, QuorumError
from relock._core.call_record import CallRecord
from relock._core.hold import Hold
from relock._runtime.machine import Machine
from relock._runtime.session import closing

pytestmark = pytest.mark.every_quorum

TICKS_MAX = 150  # fifteen seconds


@pytest.fixture
def ttl() -> float:
    """The lease (s): leftovers must still be there when the test looks for them."""
    return 30.0


@pytest.fixture
def client(connect: Callable[..., Client], server: Deployment, ttl: float) -> Client:
    client = connect(server.url, ttl=ttl)
    warm_up(client)
    return client


def warm_up(client: Client) -> None:
    """Open connections and load scripts, so that every run takes the same way."""
    with client.lock("warm"), client.lock("warm"):
        pass


def acquire(lock: Lock) -> None:
    lock.acquire()


def acquire_nested(lock: Lock) -> None:
    lock.acquire()


def release(lock: Lock) -> None:
    lock.release()


def use(lock: Lock) -> None:
    with lock:
        pass


def prepare(action: Callable[[Lock], None], lock: Lock) -> None:
    levels = {"acquire": 0, "acquire_nested": 1, "release": 1, "release_nested": 2, "use": 0}[action.__name__]
    for _ in range(levels):
        lock.acquire()


def release_nested(lock: Lock) -> None:
    lock.release()


def leave(lock: Lock) -> None:
    while lock.owned():
        lock.release()


def count_instructions(action: Callable[[Lock], None], client: Client, name: str) -> int:
    for attempt in range(2):  # the first run fills caches
        lock = client.lock(f"{name}-count-{attempt}")
        prepare(action, lock)
        with Strike() as strike:
            action(lock)
        leave(lock)
    return strike.count


def points(total: int, server: Deployment, seed: int, *, step: int = 1) -> range:
    """Return the numbers of the instructions to raise at: each second, and fewer with several masters.

    The seed chooses them, so that all have their turn in some run. Several masters take more and slower instructions.
    """
    masters = len(server.members)
    step *= 2 if masters == 1 else 4 * masters
    return range(1 + seed % step, total + 1, step)


def same_count(masters: list[Redis], lock: Lock) -> bool:
    """Return whether a nested call's count, which the background settles after an interrupt, is right everywhere."""
    return all(redis.hvals(f"lock:{{{lock.name}}}") == [b"%d" % lock.hold_count] for redis in masters)


def is_free(masters: list[Redis], name: str) -> bool:
    return are_free(masters, f"lock:{{{name}}}")


NESTED_TTL = 18.0  # if a master lost the outer acquire, the test waits for a third of this


@pytest.mark.parametrize(
    ("action", "ttl"),
    [
        pytest.param(acquire, 30.0, id="acquire"),
        pytest.param(acquire_nested, NESTED_TTL, id="acquire_nested"),
        pytest.param(release, 30.0, id="release"),
        pytest.param(release_nested, NESTED_TTL, id="release_nested"),
        pytest.param(use, 30.0, id="use"),
    ],
)
def test_an_exception_at_any_instruction_leaves_the_hold_with_the_caller_or_undone(
    action: Callable[[Lock], None], client: Client, server: Deployment, name: str, seed: int, *, ttl: float
) -> None:
    masters = [one.client() for one in server.members]
    total = count_instructions(action, client, name)
    assert total > 100, "relock's instructions are seen"
    with_caller: list[str] = []
    left: list[tuple[str, str]] = []
    for point in points(total, server, seed):
        lock = client.lock(f"{name}-{point}")
        prepare(action, lock)
        with Strike(raise_at=point) as strike:
            try:
                action(lock)
            except Interrupt:
                pass
        if lock.owned():
            if strike.where:  # with several masters the call may have ended before
                with_caller.append(strike.where)
            until(
                partial(same_count, masters, lock),
                # A master that lost the acquire with its connection has the hold from the first renewal on.
                within=25.0,
                what=f"the same count here and there after an interrupt in {strike.where}",
            )
            leave(lock)
        left.append((lock.name, strike.where))
    for lock_name, where in left:
        until(
            partial(is_free, masters, lock_name),
            within=min(10.0, ttl / 2),
            what=f"nothing left after an interrupt in {where}",
        )
    assert client.statistics().held == 0, "no hold without an owner is renewed"
    print(f"{action.__name__}: {total} instructions, the caller kept the hold after {len(with_caller)}")
    if action in (acquire, use):
        assert len(with_caller) < 20, (
            "only the last few instructions, after the work is done, may leave it with the caller"
        )


def test_an_exception_in_a_wait_leaves_nothing_in_the_queue(
    client: Client, server: Deployment, name: str, seed: int
) -> None:
    """Points of a contended acquire, from the request to the queue: only each seventh, because a wait has many."""
    redis = server.client()
    holder = client.lock(name, owner="holder")
    holder.acquire()
    lock = client.lock(name)
    with Strike() as strike:
        assert not lock.acquire(timeout=0.05)
    for point in points(strike.count, server, seed, step=7):
        with Strike(raise_at=point) as one:
            try:
                assert not lock.acquire(timeout=0.05)
            except Interrupt:
                pass
        assert not lock.owned()
        until(
            lambda: redis.zcard(f"lock:{{{name}}}:queue") == 0,
            within=10.0,
            what=f"an empty queue after an interrupt in {one.where}",
        )
    assert client.statistics().waiting == 0
    holder.release()
    until(lambda: not redis.exists(f"lock:{{{name}}}"), within=10.0, what="a free lock")


@pytest.mark.parametrize("which", ["acquire", "release", "leave"])
def test_an_exception_while_a_call_fails_lets_other_threads_of_its_owner_in(
    which: str, client: Client, server: Deployment, name: str, seed: int
) -> None:
    """The hold of an ``owner=`` was lost, and an exception strikes while a call is about to raise that."""

    def play(number: int, strike: Strike) -> None:
        lock = client.lock(f"{name}-{number}", owner="job")
        lock.acquire()
        client.force_release(lock.name)
        with contextlib.suppress(LockLostError):
            lock.extend()
        with strike, contextlib.suppress(Interrupt, LockLostError):
            if which == "acquire":
                lock.acquire(timeout=0.1)
            elif which == "release":
                lock.release()
            else:
                lock.__exit__(None, None, None)

    play(0, counted := Strike())
    for point in points(counted.count, server, seed):
        play(point, strike := Strike(raise_at=point))
        gate = client._session.gates._gates.get((f"{name}-{point}", ("owner", "job")))
        assert gate is None or is_open(gate), f"the gate is open after an interrupt in {strike.where}"


def is_open(gate: Any) -> bool:
    """Return whether another thread can enter a gate."""
    found: list[bool] = []

    def enter() -> None:
        found.append(gate.first() is None and gate.try_enter(CallRecord(), threading.current_thread()))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("owner", [None, "job"])
@pytest.mark.parametrize("part", [0.1, 0.5])
@pytest.mark.parametrize("ttl", [NESTED_TTL])
@pytest.mark.parametrize("action", [acquire, acquire_nested, release, release_nested])
def test_an_exception_while_another_one_is_cleaned_up_after_changes_nothing_about_what_is_done(
    action: Callable[[Lock], None],
    client: Client,
    server: Deployment,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seed: int,
    part: float,
    owner: str | None,
) -> None:
    """The first exception strikes before or after the call's record is written, the second in the clean-up."""
    masters = [one.client() for one in server.members]

    def strike_first(lock: Lock) -> None:
        with Strike(raise_at=first), contextlib.suppress(Interrupt):
            action(lock)

    def play(number: int, second: Strike) -> Lock:
        lock = client.lock(f"{name}-{number}", owner=owner)
        prepare(action, lock)
        strike_clean_up(monkeypatch, method, second, lambda: strike_first(lock))
        return lock

    method = "undo_acquire" if action in (acquire, acquire_nested) else "undo_release"
    first = int(part * count_instructions(action, client, name))
    leave(play(0, counted := Strike()))
    assert counted.count > 40, "the clean-up is seen"
    for point in points(counted.count, server, seed):
        second = Strike(raise_at=point)
        lock = play(point, second)
        levels = 1 if action.__name__.endswith("_nested") else 0
        assert lock.hold_count == levels, f"undone, or carried out, after a second interrupt in {second.where}"
        if levels:
            until(partial(same_count, masters, lock), within=25.0, what="one count")
            leave(lock)
        until(
            partial(is_free, masters, lock.name),
            within=10.0,
            what=f"nothing left after a second interrupt in {second.where}",
        )
    assert not client._session.hub.waiters
    assert not client._session.holds.all()


def wait(lock: Lock) -> None:
    """Wait on a condition, inside one more level; the wait times out at once."""
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    with condition:
        condition.wait(0)


def wait_with_a_lost_hold(lock: Lock) -> None:
    """Wait on a condition after another client has ended the hold, so that a lost hold stands in for it."""
    condition = threading.Condition(lock)  # type: ignore[arg-type]
    with contextlib.suppress(LockLostError), condition:
        condition.wait(0)


def leave_each(lock: Lock) -> None:
    """Leave all levels, also those of a lost hold."""
    with contextlib.suppress(NotOwnedError):
        while True:
            with contextlib.suppress(LockLostError):
                lock.release()


@pytest.mark.parametrize("action", [wait, wait_with_a_lost_hold])
def test_an_exception_in_a_condition_s_wait_leaves_the_hold_with_the_caller_or_undone(
    action: Callable[[Lock], None], connect: Callable[..., Client], server: Deployment, name: str, seed: int
) -> None:
    """Test each seventh point, because a wait has many: a wait releases, and acquires again."""
    client, operator = connect(server.url, ttl=30.0), connect(server.url)
    warm_up(client)
    masters = [one.client() for one in server.members]
    left: list[tuple[str, str]] = []

    def play(lock: Lock, strike: Strike) -> None:
        lock.acquire()
        if action is wait_with_a_lost_hold:
            operator.force_release(lock.name)
        with strike, contextlib.suppress(Interrupt):
            action(lock)

    counting = Strike()
    play(client.lock(f"{name}-warm"), Strike())
    play(client.lock(f"{name}-count"), counting)
    leave_each(client.lock(f"{name}-warm"))
    leave_each(client.lock(f"{name}-count"))
    assert counting.count > 100, "relock's instructions are seen"
    for point in points(counting.count, server, seed, step=7):
        lock, strike = client.lock(f"{name}-{point}"), Strike(raise_at=point)
        play(lock, strike)
        leave_each(lock)
        left.append((lock.name, strike.where))
    assert client.statistics().held == 0, "no hold without an owner is renewed"
    for lock_name, where in left:
        until(partial(is_free, masters, lock_name), within=15.0, what=f"nothing left after an interrupt in {where}")


def test_a_signal_between_request_and_reply_undoes_the_grant(own_server: Deployment, name: str, alarms: None) -> None:
    """The server is stopped, so the request is under way when the signal comes; it runs once the server goes on."""
    with Client(own_server.url, ttl=30.0, node_timeout=2.0) as client:
        warm_up(client)
        lock = client.lock(name)
        interrupt_request(own_server, lock.acquire)
        assert not lock.owned()
        redis = own_server.client()
        until(lambda: not redis.exists(f"lock:{{{name}}}"), within=20.0, what="the grant is undone")
        with client.lock(name, timeout=20):
            assert redis.hlen(f"lock:{{{name}}}") == 1


def test_signals_that_keep_coming_do_not_make_a_silent_master_be_waited_for_longer(
    own_server: Deployment, name: str
) -> None:
    """Handlers return, and Python repeats the system call that each signal has ended."""
    ticks: list[int] = []
    is_over = threading.Event()

    def tick() -> None:
        while len(ticks) < TICKS_MAX and not is_over.wait(0.1):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, _: ticks.append(number))
    ticker = threading.Thread(target=tick)
    try:
        with Client(own_server.url, ttl=30.0, node_timeout=0.5) as client:
            warm_up(client)
            own_server.stop()
            ticker.start()
            with pytest.raises(QuorumError):
                client.lock(name).acquire(timeout=0)
            assert len(ticks) < TICKS_MAX, "the call returned while signals still came"
    finally:
        own_server.cont()
        is_over.set()
        ticker.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_a_wait_at_once_and_leaves_the_queue(
    client: Client, server: Deployment, name: str, alarms: None
) -> None:
    holder = client.lock(name, owner="holder")
    holder.acquire()
    redis = server.client()

    def interrupt_when_queued() -> None:
        until(lambda: redis.zcard(f"lock:{{{name}}}:queue") == 1, within=10.0, what="a caller waits")
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt_when_queued)
    thread.start()
    with pytest.raises(AlarmError):
        client.lock(name).acquire()
    thread.join()
    until(lambda: redis.zcard(f"lock:{{{name}}}:queue") == 0, within=5.0, what="an empty queue")
    holder.release()


def test_close_right_after_an_interrupt_leaves_nothing(
    connect: Callable[..., Client], server: Deployment, name: str, alarms: None
) -> None:
    holder = connect(server.url).lock(name)
    holder.acquire()
    redis = server.client()
    for _ in range(5):
        client = connect(server.url, node_timeout=1.0)  # so long does its close last

        def interrupt_when_queued() -> None:
            until(lambda: redis.zcard(f"lock:{{{name}}}:queue") == 1, within=10.0, what="a caller waits")
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=interrupt_when_queued)
        thread.start()
        with pytest.raises(AlarmError):
            client.lock(name).acquire()
        client.close()
        assert redis.zcard(f"lock:{{{name}}}:queue") == 0
        thread.join()


@pytest.mark.parametrize("is_connected", [True, False])
def test_close_does_what_an_interrupt_has_left_where_no_thread_has_come_to_do_it(
    connect: Callable[..., Client],
    server: Deployment,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_connected: bool,
) -> None:
    """Interrupts may also have cost the connections on which the work could be done."""
    started: list[Callable[[], object]] = []

    class Late(Machine):
        def start(self, target: Callable[[], object], name: str) -> None:  # noqa: ARG002
            started.append(target)

    def strike(_: Hold) -> None:
        raise Interrupt

    client = connect(server.url, node_timeout=1.0)  # so long does its close last
    monkeypatch.setattr(client._session.janitor, "_platform", Late())
    monkeypatch.setattr(client._session.watchdog, "watch", strike)
    with pytest.raises(Interrupt):
        client.lock(name).acquire()
    assert started
    if not is_connected:
        for master in client._session.masters:
            master.pool.drop_idle()
    client.close()
    masters = [one.client() for one in server.members]
    until(lambda: is_free(masters, name), within=10.0, what="the grant is undone")
    for target in started:
        target()  # finds no task, and ends


def test_a_close_that_was_interrupted_is_brought_to_its_end_by_the_next(
    connect: Callable[..., Client], server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: object) -> None:
        raise Interrupt

    client = connect(server.url)
    client.lock(name).acquire()
    watchdog = client._session.watchdog
    until(lambda: watchdog.running, within=10, what="the watchdog runs")
    with monkeypatch.context() as patch:
        patch.setattr(closing, "_leave_queues", strike)
        with pytest.raises(Interrupt):
            client.close()
    client.close()
    until(lambda: not watchdog.running, within=10, what="the thread has ended")
    assert not any(master.pool._idle for master in client._session.masters)


def test_a_signal_handler_that_does_not_wait_leaves_the_wait_that_it_interrupts_alone(
    client: Client, connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    """Handlers may use the same lock. A handler that waited for the lock would take the turn of the wait below it."""
    holder = connect(server.url).lock(name, owner="holder")
    holder.acquire()
    seen: list[tuple[bool, str | None]] = []

    def look(*_: object) -> None:
        seen.append((client.lock(name).acquire(blocking=False), client.info(name).owner))

    def interrupt() -> None:
        until(lambda: client.statistics().waiting == 1, within=20, what="the main thread waits")
        for count in range(1, 4):
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda count=count: len(seen) == count, within=20, what="the handler has run")  # type: ignore[misc]
        holder.release()

    before = signal.signal(signal.SIGUSR1, look)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        assert client.lock(name).acquire(timeout=60)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert [got for got, _ in seen] == [False] * 3
    assert all(owner is not None and ":holder." in owner for _, owner in seen)
    client.lock(name).release()
