"""First come, first served; and a waiter that is dead, stopped or gone delays no other."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.dead import count_as_alive
from support.masters import Deployment
from support.processes import Worker
from support.until import until

from relock import AcquireTimeoutError, Client
from relock._core.lock_spec import HANDED_LEASE_SECONDS

pytestmark = pytest.mark.every_quorum

PROCESSES = 8
WAITERS = 64
ROUNDS = 5
SLACK = 10.0  # seconds, for a busy machine; a waiter without its message waits for a minute


@pytest.fixture
def lockers(start_worker: Callable[..., Worker], server: Deployment) -> Callable[[int], list[Worker]]:
    """Start processes that acquire as they are told."""

    def start(count: int) -> list[Worker]:
        workers = [start_worker("workers.locker", server.url) for _ in range(count)]
        for worker in workers:
            assert worker.receive()["event"] == "ready"
        return workers

    return start


def acquire(worker: Worker, name: str, number: int, **more: Any) -> None:
    worker.send({"do": "acquire", "id": number, "name": name, **more})


def queued(server: Deployment, name: str) -> int:
    found: int = server.client().zcard(f"lock:{{{name}}}:queue")
    return found


def await_queue(server: Deployment, name: str, wanted: int) -> None:
    """Wait until so many wait for the lock."""
    with server.client() as redis:
        until(lambda: redis.zcard(f"lock:{{{name}}}:queue") == wanted, within=30, what=f"{wanted} wait")


def granted(worker: Worker, within: float = 30.0) -> dict[str, Any]:
    while True:
        said: dict[str, Any] = worker.receive(within)
        if said["event"] == "granted":
            return said


@pytest.mark.timeout(600)
def test_waiters_of_many_processes_are_served_in_the_order_in_which_they_queued(
    client: Client, server: Deployment, lockers: Callable[[int], list[Worker]], name: str
) -> None:
    workers = lockers(PROCESSES)
    for turn in range(ROUNDS):
        lock_name = f"{name}-{turn}"
        lock = client.lock(lock_name)
        lock.acquire()
        for number in range(WAITERS):
            acquire(workers[number % PROCESSES], lock_name, turn * WAITERS + number, hold=0)
            await_queue(server, lock_name, number + 1)
        released_us = now_us(server)
        lock.release()
        said = [granted(workers[number % PROCESSES]) for number in range(WAITERS)]
        served = [(one["id"] - turn * WAITERS, one["token"]) for one in sorted(said, key=lambda one: one["token"])]
        assert passed_over(served, released_us) == [], f"round {turn}: {served}"


def now_us(server: Deployment) -> int:
    seconds, micros = server.members[0].cli("TIME")
    return int(seconds) * 1_000_000 + int(micros)


def passed_over(served: list[tuple[int, int]], released_us: int) -> list[int]:
    """Return the waiters that were passed over by others, though they had not stood still.

    A waiter that is given the lock, and does not take it for as long as that lease lasts, misses its turn. So between
    the tokens of two holders, which are times, is such a lease for each waiter that was passed over.
    """
    waiting, last_us, found = sorted(number for number, _ in served), released_us, list[int]()
    for number, token in served:
        before = waiting.index(number)
        if token - last_us < before * 0.9 * HANDED_LEASE_SECONDS * 1_000_000:
            found += waiting[:before]
        waiting.remove(number)
        last_us = token
    return found


def test_a_waiter_that_was_passed_over_is_found_but_for_one_that_stood_still() -> None:
    second = 1_000_000
    assert passed_over([(0, 5), (1, 9), (2, 11)], 0) == []
    assert passed_over([(0, 5), (2, 9), (1, 11)], 0) == [1]
    assert passed_over([(1, 3 * second), (0, 3 * second + 1), (2, 3 * second + 2)], 0) == []
    assert passed_over([(2, 3 * second), (0, 3 * second + 1), (1, 3 * second + 2)], 0) == [0, 1]


def test_a_newcomer_does_not_pass_the_queue(
    client: Client, server: Deployment, lockers: Callable[[int], list[Worker]], name: str
) -> None:
    (worker,) = lockers(1)
    lock = client.lock(name)
    lock.acquire()
    acquire(worker, name, 1, hold=0)
    until(lambda: queued(server, name) == 1, within=30, what="a caller waits")
    worker.stop()
    lock.release()
    assert not lock.acquire(blocking=False), "a free lock is kept for the waiter whose turn it is"
    worker.cont()
    granted(worker)


def test_with_fair_false_a_newcomer_may_pass_and_waiters_are_woken_one_by_one(
    client: Client, server: Deployment, lockers: Callable[[int], list[Worker]], name: str
) -> None:
    (worker,) = lockers(1)
    lock = client.lock(name, fair=False)
    lock.acquire()
    for number in range(3):
        acquire(worker, name, number, options={"fair": False})
        await_queue(server, name, number + 1)
    worker.stop()
    lock.release()
    assert lock.acquire(blocking=False)
    worker.cont()
    lock.release()
    for left in (2, 1, 0):
        said = granted(worker)
        assert queued(server, name) == left
        worker.send({"do": "release", "id": said["id"]})


def test_a_waiter_that_times_out_leaves_nothing_behind(client: Client, server: Deployment, name: str) -> None:
    holder = client.lock(name, owner="holder")
    holder.acquire()
    begin = time.monotonic()
    assert client.lock(name).acquire(timeout=0.2) is False
    assert time.monotonic() - begin >= 0.2
    assert queued(server, name) == 0
    with pytest.raises(AcquireTimeoutError) as caught, client.lock(name, timeout=0.1):
        pytest.fail("the body ran without the lock")
    assert caught.value.lock == name
    assert caught.value.timeout == 0.1
    assert caught.value.holder == client.info(name).owner
    assert caught.value.ahead == 0
    assert queued(server, name) == 0


def dead_waiters(
    server: Deployment, lockers: Callable[[int], list[Worker]], name: str, count: int, *, fork: bool = False
) -> list[int]:
    """Let the processes of `count` waiters be killed; return their children, which live on."""
    workers = lockers(count)
    children = []
    for number, worker in enumerate(workers):
        acquire(worker, name, number)
        await_queue(server, name, number + 1)
        if fork:
            worker.send({"do": "fork"})
            children.append(worker.receive()["child"])
    for worker in workers:
        worker.kill()
    return children


@pytest.mark.every_server
@pytest.mark.parametrize(
    "fork", [pytest.param(False, marks=pytest.mark.long), True], ids=["all gone", "a forked child of each lives on"]
)
def test_five_dead_waiters_at_the_head_delay_nobody(
    client: Client, server: Deployment, lockers: Callable[[int], list[Worker]], name: str, fork: bool
) -> None:
    lock = client.lock(name)
    lock.acquire()
    children = dead_waiters(server, lockers, name, 5, fork=fork)
    count_as_alive(server, name)
    (live,) = lockers(1)
    acquire(live, name, 9, hold=0)
    until(lambda: queued(server, name) == 6, within=30, what="the live waiter is behind the dead")
    lock.release()
    granted(live)  # long before the dead count as dead
    for child in children:
        os.kill(child, signal.SIGKILL)


def test_a_stopped_waiter_delays_the_others_by_at_most_ten_seconds(
    client: Client, server: Deployment, lockers: Callable[[int], list[Worker]], name: str
) -> None:
    stopped, live = lockers(2)
    lock = client.lock(name)
    lock.acquire()
    acquire(stopped, name, 1, hold=0)
    until(lambda: queued(server, name) == 1, within=30, what="a caller waits")
    acquire(live, name, 2, hold=0)
    until(lambda: queued(server, name) == 2, within=30, what="the other waits")
    stopped.stop()
    begin = time.monotonic()
    lock.release()
    assert granted(live)["at"] - begin <= 10.0 + SLACK
    stopped.cont()
    granted(stopped)


def test_what_the_dead_leave_in_the_queue_goes_by_itself(
    client: Client, server: Deployment, lockers: Callable[[int], list[Worker]], name: str
) -> None:
    lock = client.lock(name)
    lock.acquire()
    dead_waiters(server, lockers, name, 2)
    (live,) = lockers(1)
    acquire(live, name, 9)
    until(lambda: queued(server, name) == 1, within=30, what="the live waiter has removed the dead")
    assert 0 < server.client().pttl(f"lock:{{{name}}}:queue") <= 30_000


def test_threads_of_one_process_are_served_in_order(client: Client, server: Deployment, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    order: list[int] = []

    def take(number: int) -> None:
        with client.lock(name):
            order.append(number)

    threads = []
    for number in range(20):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        await_queue(server, name, number + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == list(range(20))


def test_a_dead_head_delays_nobody_when_the_holder_dies_too(
    client: Client, server: Deployment, start_worker: Callable[..., Worker], name: str
) -> None:
    holder, head, live = (start_worker("workers.locker", server.url, '{"ttl": 4.5}') for _ in range(3))
    for place, worker in enumerate((holder, head, live)):
        assert worker.receive()["event"] == "ready"
        acquire(worker, name, place)
        if worker is holder:
            granted(holder)
        else:
            await_queue(server, name, place)
    head.kill()
    holder.kill()
    count_as_alive(server, name)
    # `tests/sim` shows in virtual time that the turn comes when the lease ends, and not with the next heartbeat.
    granted(live)
