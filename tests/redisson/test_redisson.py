"""Locks that relock and Redisson share: holders, wake-ups, and what neither side does to the other."""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.processes import Worker
from support.servers import Server
from support.until import until

from redisson.conftest import ANSWER_SECONDS, TTL, Java
from relock import AcquireTimeoutError, AsyncClient, Client, LockLostError
from relock._keys import lock_keys

HANDOVERS = 50
SOON = 1.0  # seconds; without a message a waiter of relock looks after 2.5, and one of Redisson after the lease
KINDS = ("lock", "fair")


@pytest.fixture
def key(name: str) -> str:
    """The name that Redisson gives the lock."""
    return lock_keys("lock", name).lock.decode()


def report(way: str, seconds: list[float], capsys: pytest.CaptureFixture[str]) -> float:
    """Print the median and the maximum of some hand-overs; return the median."""
    median = statistics.median(seconds)
    with capsys.disabled():
        print(f"\n{way}: {len(seconds)} hand-overs, median {median * 1e3:.1f} ms, max {max(seconds) * 1e3:.1f} ms")
    return median


def is_awaited(server: Server, key: str) -> bool:
    """Return whether a thread waits, of Java, or of relock for a hold of Java's: it listens then, until it has it."""
    return bool(server.cli("PUBSUB", "CHANNELS", f"redisson_lock__channel:{key}*"))


@contextmanager
def waiting_thread(do: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(ANSWER_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_each_respects_the_others_hold(java: Java, client: Client, name: str, key: str, kind: str) -> None:
    lock = client.lock(name, note="why", timeout=0.1)
    with lock:
        assert client.info(name).note == "why"
        assert [java.do(command, key, kind=kind) for command in ("try", "count")] == ["false", "0"]
    assert java.do("try", key, kind=kind) == "true"
    with pytest.raises(AcquireTimeoutError) as error, lock:
        pytest.fail("the block was entered")
    assert error.value.note is None
    info = client.info(name)
    assert info.owner is not None
    assert info.owner.count(":") == 1, "a client's UUID and a thread's number"
    assert (info.hold_count, info.ttl > 0) == (1, True)
    assert java.do("unlock", key, kind=kind) == "done"
    assert lock.acquire(blocking=False)
    lock.release()


@pytest.mark.parametrize("kind", KINDS)
def test_redisson_is_woken_by_a_release(
    java: Java, server: Server, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, passed = lock_keys("lock", name).lock.decode(), list[float]()
    with Client(server.url, redisson=True, ttl=TTL) as client:
        for _ in range(HANDOVERS):
            lock = client.lock(name)
            lock.acquire()
            java.begin("waiter", "lock", key, kind=kind)
            until(lambda: is_awaited(server, key), within=ANSWER_SECONDS, what="Redisson waits")
            released_at = time.monotonic()
            lock.release()
            answer = java.receive("waiter")
            assert answer.result == "true"
            passed.append(answer.ended - released_at)
            assert java.do("unlock", key, kind=kind, thread="waiter") == "done"
            until(lambda: not is_awaited(server, key), within=ANSWER_SECONDS, what="Redisson waits no more")
    assert report(f"relock -> Redisson {kind}", passed, capsys) < SOON


def test_a_thread_is_woken_by_redisson(
    java: Java, client: Client, name: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, passed = client.lock(name), []
    for _ in range(HANDOVERS):
        acquired: list[float] = []

        def take(acquired: list[float] = acquired) -> None:
            with lock:
                acquired.append(time.monotonic())

        assert java.do("try", key) == "true"
        with waiting_thread(take):
            until(lambda: client.info(name).queue, within=ANSWER_SECONDS, what="relock waits")
            java.begin("main", "unlock", key)
        answer = java.receive("main")
        passed.append(acquired[0] - answer.begun)
    assert report("Redisson -> relock, threads", passed, capsys) < SOON


def test_a_task_is_woken_by_redisson(
    java: Java, client: Client, name: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = []

    async def play() -> None:
        async with AsyncClient(client) as tasks:
            for _ in range(HANDOVERS):
                assert java.do("try", key) == "true"
                waiter = asyncio.create_task(take(tasks))
                while not (await tasks.info(name)).queue:
                    await asyncio.sleep(0.003)
                java.begin("main", "unlock", key)
                acquired = await waiter
                passed.append(acquired - java.receive("main").begun)

    async def take(tasks: AsyncClient) -> float:
        async with tasks.lock(name):
            return time.monotonic()

    asyncio.run(play())
    assert report("Redisson -> relock, tasks", passed, capsys) < SOON


def test_a_fair_locks_unlock_is_noticed_by_a_heartbeat(java: Java, client: Client, name: str, key: str) -> None:
    """RFairLock tells only the first in Redisson's own queue: a limit that the documentation names."""
    assert java.do("try", key, kind="fair") == "true"
    with waiting_thread(lambda: client.lock(name).acquire()):
        until(lambda: client.info(name).queue, within=ANSWER_SECONDS, what="relock waits")
        assert java.do("unlock", key, kind="fair") == "done"


def test_there_is_no_order_between_the_two_sides(
    java: Java, client: Client, server: Server, name: str, key: str
) -> None:
    """Waiters of relock are served among themselves; one of Redisson's fair lock, which came before, is next."""
    lock, order = client.lock(name), list[str]()
    lock.acquire()
    java.begin("waiter", "lock", key, kind="fair")
    until(lambda: is_awaited(server, key), within=ANSWER_SECONDS, what="Redisson waits")

    def take() -> None:
        with client.lock(name):
            order.append("relock")
            assert java.is_silent("waiter")

    with waiting_thread(take):
        until(lambda: client.info(name).queue, within=ANSWER_SECONDS, what="relock waits")
        lock.release()
    assert java.receive("waiter").result == "true"
    assert order == ["relock"]
    assert java.do("unlock", key, kind="fair", thread="waiter") == "done"


def test_a_counter_is_exact(java: Java, client: Client, server: Server, name: str, key: str) -> None:
    rounds, threads = 1250, 4

    def add() -> None:
        for _ in range(rounds):
            with client.lock(name), server.client() as redis:
                redis.set(f"{key}:counter", int(redis.get(f"{key}:counter") or 0) + 1)

    ours = [threading.Thread(target=add) for _ in range(threads)]
    for number in range(threads):
        java.begin(f"adder{number}", "add", key, rounds)
    for thread in ours:
        thread.start()
    for number in range(threads):
        assert java.receive(f"adder{number}").result == "done"
    for thread in ours:
        thread.join()
    with server.client() as redis:
        assert int(redis.get(f"{key}:counter")) == 2 * threads * rounds


def test_redisson_gets_its_share_beside_waiters_of_relock(java: Java, client: Client, name: str, key: str) -> None:
    """Waiters of relock give the lock to each other; one release in eight leaves it free."""
    stop, turns = threading.Event(), list[None]()

    def take_turns() -> None:
        while not stop.is_set():
            with client.lock(name):
                turns.append(None)

    ours = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in ours:
        thread.start()
    try:
        until(lambda: len(turns) > 100, within=ANSWER_SECONDS, what="relock's threads take turns")
        for _ in range(10):
            assert java.do("lock", key) == "true"
            assert java.do("unlock", key) == "done"
    finally:
        stop.set()
        for thread in ours:
            thread.join()


def test_a_killed_java_holder_keeps_only_its_lease(
    start_java: Callable[[Server], Java], server: Server, client: Client, name: str, key: str
) -> None:
    java = start_java(server)
    assert java.do("try", key) == "true"
    java.kill()
    assert client.lock(name).acquire(timeout=ANSWER_SECONDS)


def test_a_killed_holder_of_relock_keeps_only_its_lease(
    start_worker: Callable[..., Worker], java: Java, server: Server, name: str, key: str
) -> None:
    worker = start_worker("workers.locker", server.url, '{"ttl": 1.0}')
    assert worker.receive()["event"] == "ready"
    worker.send({"do": "acquire", "id": 1, "name": name, "timeout": ANSWER_SECONDS})
    assert worker.receive()["event"] == "granted"
    worker.kill()
    assert java.do("wait", key, int(ANSWER_SECONDS * 1000)) == "true"
    assert java.do("unlock", key) == "done"


def test_a_hold_of_relock_that_runs_out_is_redissons(java: Java, client: Client, name: str, key: str) -> None:
    lost: list[object] = []
    lock = client.lock(name, ttl=1.0, renew=False, on_lost=lost.append)
    lock.acquire()
    assert java.do("wait", key, int(ANSWER_SECONDS * 1000)) == "true"
    with pytest.raises(LockLostError):
        lock.release()
    assert java.do("count", key) == "1", "a late release harms nobody"
    assert java.do("unlock", key) == "done"
    until(lambda: lost, within=ANSWER_SECONDS, what="the loss is told")


def test_both_sides_nest(java: Java, client: Client, name: str, key: str) -> None:
    lock = client.lock(name)
    with lock, client.lock(name):
        assert java.do("try", key) == "false"
        assert lock.hold_count == 2
    assert [java.do("try", key), java.do("try", key), java.do("count", key)] == ["true", "true", "2"]
    assert not lock.acquire(blocking=False)
    assert client.info(name).hold_count == 2
    assert java.do("unlock", key) == "done"
    assert not lock.acquire(blocking=False)
    assert java.do("unlock", key) == "done"
    assert lock.acquire(blocking=False)
    lock.release()


def test_each_may_end_the_others_hold_by_force(java: Java, client: Client, server: Server, name: str, key: str) -> None:
    lost: list[object] = []
    lock = client.lock(name, on_lost=lost.append)
    lock.acquire()
    assert java.do("force", key) == "true"
    until(lambda: lost, within=ANSWER_SECONDS, what="the next renewal finds that the hold is lost")
    with pytest.raises(LockLostError):
        lock.release()
    assert java.do("try", key) == "true"
    assert lock.force_release()
    assert java.do("unlock", key) == "IllegalMonitorStateException"
    assert lock.acquire(blocking=False)
    java.begin("waiter", "lock", key)
    until(lambda: is_awaited(server, key), within=ANSWER_SECONDS, what="Redisson waits")
    client.force_release(name)
    assert java.receive("waiter").result == "true"


def test_neither_side_shortens_the_others_lease(
    java: Java, client: Client, server: Server, name: str, key: str
) -> None:
    with server.client() as redis:
        with client.lock(name, ttl=60.0):
            assert java.do("try", key) == "false"
            assert java.do("wait", key, 10) == "false"
            assert redis.pttl(key) > 1000 * TTL
        assert java.do("lease", key, 60_000) == "true"
        assert not client.lock(name).acquire(timeout=0.05)
        assert not client.lock(name).acquire(blocking=False)
        assert redis.pttl(key) > 1000 * TTL


class Program:
    """A program of the page about migration, that takes the locks of one of its steps, of Java or of relock."""

    def __init__(self, java: Java, client: Client, name: str, step: str) -> None:
        old, new = name, lock_keys("lock", name).lock.decode()
        self._java, self._ours = java, client.lock(name) if step == "relock" else None
        self._names = {"1": [old], "2": [old, new], "4": [new], "relock": []}[step]
        self._thread = f"step-{step}"

    def try_to_take(self) -> bool:
        """Try to take all locks, and give back what was taken if that fails."""
        if self._ours is not None:
            return self._ours.acquire(blocking=False)
        for place, one in enumerate(self._names):
            if self._java.do("try", one, thread=self._thread) != "true":
                self._give_back(self._names[:place])
                return False
        return True

    def release(self) -> None:
        """Give all locks back."""
        if self._ours is not None:
            self._ours.release()
        self._give_back(self._names)

    def _give_back(self, names: list[str]) -> None:
        for one in reversed(names):
            assert self._java.do("unlock", one, thread=self._thread) == "done"


@pytest.mark.parametrize("pair", [("1", "2"), ("2", "relock"), ("2", "4"), ("4", "relock")], ids="-".join)
def test_programs_of_neighbouring_steps_exclude_each_other(
    java: Java, client: Client, name: str, pair: tuple[str, str]
) -> None:
    """Each pair of the page's table that may run at the same time, in both orders."""
    programs = [Program(java, client, name, step) for step in pair]
    for holder, other in (programs, programs[::-1]):
        assert holder.try_to_take()
        assert not other.try_to_take()
        holder.release()
