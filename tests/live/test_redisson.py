"""Locks that are shared with Redisson, whose part redis-py plays; ``tox -e redisson`` plays the same with Redisson."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
import redis
from support.heartbeats import without_any_heartbeat
from support.servers import Server
from support.until import until

from relock import AsyncClient, Client, ConfigurationError, Lock, RelockWarning, Semaphore
from relock._keys import redisson_keys
from relock._runtime.background import janitor
from relock._runtime.wakeups import channels

Connect = Callable[..., Client]
WITHIN = 60.0  # seconds
HOLDER = "8743c9c0-0795-4907-87fd-6c719a6b4586:57"
LEASE_MS = 600_000  # no wait of these tests ends because a lease does
TOLD = b"00"


class Redisson:
    """Client of Redisson that holds a lock, or listens as a waiter of its `RLock` does."""

    def __init__(self, redis: redis.Redis, name: str) -> None:
        self.redis = redis
        self.key = redisson_keys("lock", name).lock.decode()
        self.channel = f"redisson_lock__channel:{self.key}"
        self._messages = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]

    def hold(self) -> None:
        assert not self.redis.exists(self.key)
        self.redis.hset(self.key, HOLDER, 1)
        self.redis.pexpire(self.key, LEASE_MS)

    def unlock(self) -> None:
        with self.redis.pipeline() as both:
            both.delete(self.key)
            both.publish(self.channel, "0")
            assert both.execute()[0] == 1

    def listen(self) -> None:
        self._messages.subscribe(self.channel)
        until(lambda: self.listeners() > 0, within=WITHIN, what="Redisson listens")

    def hear(self) -> bytes:
        found: list[bytes] = []

        def has_come() -> bool:
            message = self._messages.get_message(timeout=0.01)
            found.extend([] if message is None else [message["data"]])
            return bool(found)

        until(has_come, within=WITHIN, what="a message")
        return found[0]

    def listeners(self) -> int:
        return int(self.redis.pubsub_numsub(self.channel)[0][1])

    def waits(self) -> int:
        return int(self.redis.zcard(f"{self.key}:queue"))

    def close(self) -> None:
        self._messages.close()


@pytest.fixture
def redisson(server: Server, name: str) -> Iterator[Redisson]:
    with server.client() as client:
        made = Redisson(client, name)
        yield made
        made.close()


def visit(lock: Lock | Semaphore) -> None:
    with lock:
        pass


@contextmanager
def in_threads(*calls: Callable[[], object]) -> Iterator[None]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(WITHIN)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.every_server
def test_a_thread_is_woken_by_redisson_and_tells_it(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    """No heartbeat comes here, with which the waiter would look otherwise."""
    client = connect(server.url, redisson=True)
    redisson.hold()

    def take() -> None:
        with client.lock(name):
            redisson.listen()

    with without_any_heartbeat(), in_threads(take):
        until(redisson.waits, within=WITHIN, what="a thread waits")
        redisson.unlock()
    assert redisson.hear() == TOLD


def test_a_task_is_woken_by_redisson(server: Server, redisson: Redisson, name: str) -> None:
    redisson.hold()

    async def play() -> None:
        async with AsyncClient(server.url, redisson=True) as client:

            async def take() -> None:
                async with client.lock(name):
                    pass

            waiter = asyncio.create_task(take())
            while not redisson.waits():
                await asyncio.sleep(0.001)
            redisson.unlock()
            await asyncio.wait_for(waiter, WITHIN)

    with without_any_heartbeat():
        asyncio.run(play())


def test_the_first_of_a_clients_waiters_is_woken_and_gives_the_lock_on(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    client = connect(server.url, redisson=True)
    redisson.hold()
    order: list[int] = []

    def take(number: int) -> None:
        with client.lock(name):
            order.append(number)

    with without_any_heartbeat(), in_threads(lambda: take(1)):
        until(lambda: redisson.waits() == 1, within=WITHIN, what="one waits")
        with in_threads(lambda: take(2)):
            until(lambda: redisson.waits() == 2, within=WITHIN, what="two wait")
            redisson.unlock()
    assert order == [1, 2]


def test_another_clients_turn_is_passed_on_to_it(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    """The first in the queue has no ear for Redisson: the look of the second tells it."""
    deaf, client = connect(server.url), connect(server.url, redisson=True)
    redisson.hold()
    order: list[str] = []

    def take(one: Client, word: str) -> None:
        with one.lock(name):
            order.append(word)

    with without_any_heartbeat(), in_threads(lambda: take(deaf, "deaf")):
        until(lambda: redisson.waits() == 1, within=WITHIN, what="one waits")
        with in_threads(lambda: take(client, "hears")):
            until(lambda: redisson.waits() == 2, within=WITHIN, what="two wait")
            redisson.unlock()
    assert order == ["deaf", "hears"]


def test_a_channel_is_given_up_some_time_after_its_last_waiter(
    server: Server, connect: Connect, redisson: Redisson, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(channels, "SCAN_SECONDS", 0.0)
    client = connect(server.url, redisson=True)
    redisson.hold()

    take = partial(visit, client.lock(name))
    with in_threads(take):
        until(redisson.waits, within=WITHIN, what="a thread waits")
        assert redisson.listeners() == 1
        redisson.unlock()
    client._session.hub.subscriptions[0].call()
    until(lambda: redisson.listeners() == 0, within=WITHIN, what="the channel is given up")
    redisson.hold()
    with without_any_heartbeat(), in_threads(take):
        until(redisson.waits, within=WITHIN, what="a thread waits")
        redisson.unlock()


def test_a_connection_that_breaks_is_replaced_and_the_waiter_looks(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    """A message in between is lost, so the waiter looks once the channel is confirmed again."""
    client = connect(server.url, redisson=True)
    redisson.hold()

    take = partial(visit, client.lock(name))
    with without_any_heartbeat(), in_threads(take):
        until(redisson.waits, within=WITHIN, what="a thread waits")
        redisson.redis.delete(redisson.key)
        server.cli("CLIENT", "KILL", "TYPE", "pubsub")


def test_waiters_for_permits_and_latches_need_no_channel_of_redissons(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    client = connect(server.url, redisson=True)
    permit, latch = client.semaphore(name, 1).acquire(), client.latch(name, 2)
    assert permit is not None

    take = partial(visit, client.semaphore(name, 1))
    with in_threads(take, latch.wait):
        for key in (f"{redisson.key}:sem:queue", f"{redisson.key}:latch:waiters"):
            until(partial(redisson.redis.zcard, key), within=WITHIN, what="both wait")
        assert redisson.listeners() == 0
        permit.release()
        latch.arrive("one")
        latch.arrive("two")


def test_a_user_without_the_channel_is_warned_and_waits_by_heartbeats(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    server.cli("ACL", "SETUSER", "narrow", "on", ">x", "~*", "+@all", "resetchannels", "&lock:client:*")
    try:
        client = connect(f"redis://narrow:x@127.0.0.1:{server.port}/0", redisson=True)
        redisson.hold()

        def take() -> None:
            with pytest.warns(RelockWarning, match="refuses a channel of Redisson"), client.lock(name):
                pass

        with patch.object(janitor, "HEARTBEAT_SECONDS", 0.1), in_threads(take):
            until(redisson.waits, within=WITHIN, what="a thread waits")
            redisson.unlock()
    finally:
        server.cli("ACL", "DELUSER", "narrow")


def test_a_forced_release_tells_redisson(server: Server, connect: Connect, redisson: Redisson, name: str) -> None:
    client = connect(server.url, redisson=True)
    redisson.listen()
    assert connect(server.url).lock(name).acquire()
    assert client.force_release(name)
    assert redisson.hear() == TOLD


def test_a_grant_for_a_waiter_that_has_left_is_undone_and_redisson_told(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    client = connect(server.url, redisson=True)
    with client.lock(name):
        pass
    hub = client._session.hub
    hub.subscriptions[0].ensure()
    until(hub.is_confirmed, within=WITHIN, what="the client listens")
    redisson.listen()
    gone = f"{hub.client}:gone@3000"
    redisson.redis.hset(redisson.key, f"{gone}~x.7", 1)
    redisson.redis.pexpire(redisson.key, LEASE_MS)
    server.cli("PUBLISH", f"lock:client:{hub.client}", f"grant gone@3000 x.7 7 7 3000 run:repl {name}")
    assert redisson.hear() == TOLD
    assert not redisson.redis.exists(redisson.key)


@pytest.mark.parametrize("nodes", [["redis://a:1", "redis://b:1", "redis://c:1"], "redis+cluster://a:1"])
def test_several_masters_and_a_cluster_are_refused(nodes: object) -> None:
    with pytest.raises(ConfigurationError, match="one master only") as caught:
        Client(nodes, redisson=True)  # type: ignore[arg-type]
    assert caught.value.option == "redisson"


def test_a_client_without_the_option_tells_redisson_nothing(
    server: Server, connect: Connect, redisson: Redisson, name: str
) -> None:
    client = connect(server.url)
    redisson.listen()
    with client.lock(name):
        redisson.redis.publish(redisson.channel, "not of the lock")
    client.force_release(name)
    redisson.redis.publish(redisson.channel, "the end")
    assert [redisson.hear(), redisson.hear()] == [b"not of the lock", b"the end"]
