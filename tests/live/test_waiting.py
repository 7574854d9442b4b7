"""Waits cost nothing while nothing happens, and lose no message."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest
from support.alarms import AlarmError
from support.dead import count_as_alive
from support.masters import Deployment, ProxyBefore
from support.processes import Worker
from support.until import until

from relock import Client, ClientClosedError, QuorumError
from relock._core.patience import LOOK_AGAIN_SECONDS_MAX

pytestmark = pytest.mark.every_quorum

THREADS = 500
SPARE = 10  # messages and pairs of scripts, for heartbeats that cross twenty turns on a slow machine


def wait_in_threads(
    client: Client, name: str, count: int, timeout: float = 60.0
) -> tuple[list[threading.Thread], list[bool]]:
    taken: list[bool] = []

    def take() -> None:
        lock = client.lock(name)
        if lock.acquire(timeout=timeout):
            taken.append(True)
            lock.release()

    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: len(client.info(name).queue) == count, within=60, what="all wait")
    return threads, taken


def subscriptions(server: Deployment) -> set[int]:
    """Return the numbers of connections that listen, on each master."""
    return {len(one.client().client_list(_type="pubsub")) for one in server.members}


def test_five_hundred_waiters_cost_few_commands_a_second(
    client: Client, server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    holder = connect(server.url).lock(name)
    holder.acquire()
    threads, taken = wait_in_threads(client, name, THREADS, timeout=600.0)
    until(lambda: subscriptions(server) == {1}, within=30, what="one subscription to each master, for all")
    before, all_before, begin = sum(server.calls().values()), server.commands(), time.monotonic()
    time.sleep(10)  # measures a time in which nothing happens
    seconds = time.monotonic() - begin
    calls, commands = sum(server.calls().values()) - before, server.commands() - all_before
    print(f"{THREADS} waiters: {calls / seconds:.1f} commands a second, with those of scripts {commands / seconds:.1f}")
    assert calls / seconds < 20
    assert commands / seconds < 100, "a heartbeat takes a dozen commands, however many wait"
    holder.release()
    for thread in threads:
        thread.join()
    assert taken == [True] * THREADS


def test_one_pubsub_connection_serves_all_who_wait(client: Client, server: Deployment, name: str) -> None:
    holder = client.lock(name, owner="holder")
    holder.acquire()
    threads, _ = wait_in_threads(client, name, 20)
    until(lambda: subscriptions(server) == {1}, within=30, what="one to each master; a slow one may come last")
    holder.release()
    for thread in threads:
        thread.join()


def test_a_release_wakes_one_waiter(client: Client, server: Deployment, name: str) -> None:
    """Twenty waiters, each granted once: one message for each turn, and hardly a script but its own two."""
    holder = client.lock(name, owner="holder")
    holder.acquire()
    threads, taken = wait_in_threads(client, name, 20)
    before = server.calls()["evalsha"]
    published_before = published(server)
    holder.release()
    for thread in threads:
        thread.join()
    assert taken == [True] * 20
    messages = max(now - before for now, before in zip(published(server), published_before, strict=True))
    assert messages <= 20 + SPARE, "one more message for each turn would be twenty more"
    scripts = server.calls()["evalsha"] - before
    # Over several masters a slow one may have given the lock to another owner by then, which is undone.
    spare = 2 * SPARE if len(server.members) == 1 else 4 * SPARE
    assert scripts <= 1 + 2 * 20 + spare, "a release for each hold, and an extension of long ones"


def is_held_with_queue(client: Client, name: str, waiters: int) -> bool:
    info = client.info(name)
    return info.held and len(info.queue) == waiters


def published(server: Deployment) -> list[int]:
    """Return how often each master was told to publish."""
    statistics = [one.client().info("commandstats") for one in server.members]
    return [one.get("cmdstat_publish", {"calls": 0})["calls"] for one in statistics]


@pytest.mark.every_server
def test_nothing_is_lost_when_the_pubsub_connection_is_killed(client: Client, server: Deployment, name: str) -> None:
    holder = client.lock(name, owner="holder")
    holder.acquire()
    threads, taken = wait_in_threads(client, name, 5)
    for _ in range(3):
        server.cli("CLIENT", "KILL", "TYPE", "pubsub")
        until(lambda: 0 not in subscriptions(server), within=30, what="the client subscribes again")
    server.cli("CLIENT", "KILL", "TYPE", "pubsub")
    begin = time.monotonic()
    holder.release()
    for thread in threads:
        thread.join()
    assert taken == [True] * 5
    assert time.monotonic() - begin < 5 * 3.0


@pytest.mark.reach("majority", "all")
def test_a_swallowed_message_costs_seconds_at_any_ttl(
    server: Deployment, proxy: ProxyBefore, faulty: ProxyBefore, connect: Callable[..., Client], name: str
) -> None:
    """Swallowed messages cost neither a lease nor the longest sleep; `tests/sim` shows that it is less than 3 s."""
    waiting = connect(proxy.url, ttl=600.0)
    holder = connect(server.url, ttl=600.0).lock(name)
    holder.acquire()
    threads, taken = wait_in_threads(waiting, name, 1)
    fault = faulty.swallow_message(lambda words: words[0] == b"message")
    begin = time.monotonic()
    holder.release()
    threads[0].join()
    assert fault.has_begun, "at least one master published a message"
    assert taken == [True]
    assert time.monotonic() - begin < LOOK_AGAIN_SECONDS_MAX / 2


def test_waiters_survive_a_restart_of_the_server(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    server = start_server()
    client = connect(server.url, ttl=6.0)  # also the guard, if there is one
    lock = client.lock(name, owner="holder")
    lock.acquire()
    threads, taken = wait_in_threads(client, name, 3)
    server.restart()
    for thread in threads:
        thread.join(timeout=60)
    assert taken == [True] * 3, "the server forgot the holder, and the waiters go on in turn"


def test_queue_places_that_a_master_lost_are_restored_in_order(client: Client, server: Deployment, name: str) -> None:
    holder = client.lock(name, owner="holder")
    holder.acquire()
    threads, _ = wait_in_threads(client, name, 4)
    queue = f"lock:{{{name}}}:queue"

    def is_agreed() -> bool:
        """Return whether all masters have the same places: a place that one has not yet got may get a later ticket."""
        first, *others = [one.client().zrange(queue, 0, -1, withscores=True) for one in server.members]
        return len(first) == 4 and all(other == first for other in others)

    until(is_agreed, within=60, what="all masters have all places")
    before = client.info(name).queue
    server.cli("DEL", queue, f"lock:{{{name}}}:waiters")
    until(lambda: client.info(name).queue == before, within=60, what="the queue is as it was")
    holder.release()
    for thread in threads:
        thread.join()


def test_the_head_takes_over_when_holder_and_head_are_killed_together(
    client: Client, server: Deployment, start_worker: Callable[..., Worker], name: str
) -> None:
    holder, head = (start_worker("workers.locker", server.url, '{"ttl": 4.5}') for _ in range(2))
    for number, worker in enumerate((holder, head)):
        assert worker.receive()["event"] == "ready"
        worker.send({"do": "acquire", "id": number, "name": name})
        until(partial(is_held_with_queue, client, name, number), within=30, what="the worker holds, or waits")
    threads, taken = [], []
    lock = client.lock(name)

    def take() -> None:
        taken.append(lock.acquire(timeout=30))
        lock.release()

    threads.append(threading.Thread(target=take))
    threads[0].start()
    until(lambda: len(client.info(name).queue) == 2, within=30, what="the waiter is behind the head")
    holder.kill()
    head.kill()
    count_as_alive(server, name)
    threads[0].join()
    assert taken == [True], "the turn comes when the lease ends, before the head counts as dead"


def test_a_foreign_lock_without_a_ttl_that_goes_is_noticed_within_three_seconds(
    client: Client, server: Deployment, name: str
) -> None:
    key = f"lock:{{{name}}}"
    server.client().set(key, "somebody else's")
    assert client.lock(name).acquire(blocking=False) is False
    assert client.lock(name).locked()
    threads, taken = wait_in_threads(client, name, 1)
    server.cli("DEL", key)
    begin = time.monotonic()
    threads[0].join()
    assert taken == [True]
    assert time.monotonic() - begin < LOOK_AGAIN_SECONDS_MAX / 2


def test_no_patience_is_left_when_the_server_stays_away(
    own_server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    client = connect(own_server.url, patience=0.5)
    holder = client.lock(name, owner="holder")
    holder.acquire()
    errors: list[QuorumError] = []

    def take() -> None:
        try:
            client.lock(name).acquire()
        except QuorumError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    until(lambda: len(client.info(name).queue) == 1, within=30, what="a caller waits")
    own_server.kill()
    thread.join(timeout=30)
    (error,) = errors
    urls = [one.url for one in own_server.members]
    assert (error.needed, error.answered, list(error.failures)) == (own_server.quorum, 0, urls)
    assert error.lock == name


def test_an_acquire_that_is_under_way_when_the_client_is_closed_keeps_nobody_out(
    own_server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    """The masters are stopped: the acquire is carried out only while or after the client is closed.

    One slow master of several may get it after its undo, and a closed client repeats nothing; that master is not
    needed.
    """
    client = connect(own_server.url, node_timeout=5.0)
    with client.lock(name):
        pass
    own_server.stop()
    with ThreadPoolExecutor(2) as pool:
        acquiring = pool.submit(client.lock(name).acquire)
        masters = client._session.masters
        until(lambda: any(master.pool.is_in_use for master in masters), within=20, what="the request is under way")
        closing = pool.submit(client.close)
        wait([closing], timeout=0.5)  # by then it has cut the connections, or waits for the answers
        own_server.cont()
        with pytest.raises(ClientClosedError):
            acquiring.result(30)
        closing.result(30)
    assert connect(own_server.url).lock(name).acquire(timeout=20), "the lock is free long before a lease is over"


def test_a_signal_handler_that_closes_the_client_and_raises_amid_an_acquire_keeps_nobody_out(
    server: Deployment, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masters have granted the lock by then; the grant is undone only when the handler has ended."""
    client = connect(server.url, node_timeout=5.0)

    def close(_number: int, _frame: object) -> None:
        client.close()
        raise AlarmError

    monkeypatch.setattr(client._session.watchdog, "watch", lambda _hold: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, close)
    try:
        with pytest.raises(AlarmError):
            client.lock(name).acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert connect(server.url).lock(name).acquire(timeout=20), "the lock is free long before a lease is over"


def test_close_ends_every_wait_and_leaves_the_queue(
    server: Deployment, client: Client, connect: Callable[..., Client], name: str
) -> None:
    holder = client.lock(name)
    holder.acquire()
    other = connect(server.url)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            other.lock(name).acquire()
        except ClientClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(client.info(name).queue) == 3, within=30, what="all three wait")
    other.close()
    for thread in threads:
        thread.join(timeout=10)
    assert len(errors) == 3
    # At once, except for a place that a slow master writes only after it was given up: it goes like those of the dead.
    until(lambda: client.info(name).queue == (), within=30, what="all three have left the queue")
    other.close()
    with pytest.raises(ClientClosedError):
        other.lock(name).acquire(blocking=False)


def test_a_closed_client_says_so_at_once_also_where_it_would_stand_in_line(
    server: Deployment, client: Client, connect: Callable[..., Client], name: str
) -> None:
    """Clients that have waited a moment ago subscribe first, and a closed client never does."""
    other = connect(server.url, ttl=30.0, node_timeout=8.0)
    with client.lock(name):
        assert not other.lock(name).acquire(timeout=0.2)
    other.close()
    began = time.monotonic()
    with pytest.raises(ClientClosedError):
        other.lock(name).acquire()
    assert time.monotonic() - began < 8.0, "it does not try to subscribe"
