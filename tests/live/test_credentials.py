"""Credentials that expire: open connections authenticate anew, and nobody notices."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis
from redis.credentials import CredentialProvider
from support.cluster import ClusterOfServers
from support.credentials import Given, Rotation, connections, let_pass
from support.servers import Server
from support.tasks import until as until_in_loop
from support.tls import Tls
from support.until import until

from relock import AsyncClient, Client, Event, Lock, QuorumError
from relock._events import Lost, MasterDown

Connect = Callable[..., Client]
PATIENT = 60.0  # seconds, for what a busy machine may delay
TTL = 15.0  # the watchdog renews after a third of it
SECOND = 1.0  # for which old credentials stay valid


@pytest.fixture
def rotation(server: Server, name: str) -> Iterator[Rotation]:
    """Credentials that the test changes."""
    rotation = Rotation(name, server)
    yield rotation
    rotation.end()


class Work:
    """Threads and tasks that hand a lock over to each other.

    Attributes:
        turns: how often one of them had the lock.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._inside = 0
        self.turns = {"threads": 0, "tasks": 0}
        self.is_over = threading.Event()

    def _enter(self, kind: str) -> None:
        self._inside += 1
        assert self._inside == 1
        self.turns[kind] += 1

    def thread(self) -> None:
        """Take and release the lock until it is over."""
        lock = self._client.lock(self._name, timeout=PATIENT)
        while not self.is_over.is_set():
            with lock:
                self._enter("threads")
                lock.ensure()
                self._inside -= 1

    def tasks(self) -> None:
        """Run a loop of two tasks that do as `thread`."""
        asyncio.run(self._tasks())

    async def _tasks(self) -> None:
        async with AsyncClient(self._client) as client:
            await asyncio.gather(self._task(client), self._task(client))

    async def _task(self, client: AsyncClient) -> None:
        lock = client.lock(self._name, timeout=PATIENT)
        while not self.is_over.is_set():
            async with lock:
                self._enter("tasks")
                await asyncio.sleep(0)
                await lock.ensure()
                self._inside -= 1


def calling(server: Server, client: Client) -> set[str]:
    """Return the ids of the client's connections for calls."""
    return {one["id"] for one in connections(server, client._session.connection_name) if one["sub"] == "0"}


def extends(lock: Lock) -> bool:
    """Return whether the lock could be extended."""
    with suppress(QuorumError):
        return lock.extend() > 0
    return False


@pytest.mark.parametrize("changes", [4, pytest.param(60, marks=pytest.mark.long)])
def test_nobody_notices_that_credentials_change_each_second(
    server: Server, connect: Connect, rotation: Rotation, name: str, changes: int
) -> None:
    told: list[Event] = []
    options: dict[str, Any] = {"ttl": TTL, "on_event": told.append}
    one, two = (connect(redis.Redis(port=server.port, credential_provider=rotation.provider), **options) for _ in "12")

    def users_of_all() -> set[str]:
        return {user for client in (one, two) for user in rotation.users_of(client._session.connection_name)}

    held, wanted, work = one.lock(f"{name}:held"), two.lock(f"{name}:held"), Work(one, f"{name}:work")
    assert held.acquire(timeout=PATIENT)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wanted.acquire, timeout=PATIENT + 2 * changes)
        working = [threads.submit(do) for do in (work.thread, work.thread, work.tasks)]
        try:
            until(lambda: all(work.turns.values()) and two._session.waits, within=PATIENT, what="all have begun")
            before = [calling(server, client) for client in (one, two)]
            turns = dict(work.turns)
            begin = time.monotonic()
            for _ in range(changes):
                rotation.change()
                let_pass(SECOND)
                until(lambda: users_of_all() == {rotation.user}, within=PATIENT, what="all use the new ones")
                rotation.end_old()
            after, took = [calling(server, client) for client in (one, two)], time.monotonic() - begin
            until(
                lambda: all(work.turns[kind] > turns[kind] + changes for kind in turns),
                within=PATIENT,
                what="work goes on",
            )
            until(lambda: one.statistics().renewals >= changes // 4, within=PATIENT, what="renewals go on")
            users = users_of_all()
            assert held.ensure() > 0
            held.release()
            assert waiting.result()
        finally:
            work.is_over.set()
        for done in working:
            done.result()
    assert rotation.killed == 0
    assert users == {rotation.user}
    if took < 25.0:  # idle connections are closed some seconds later
        assert [some - left for some, left in zip(before, after, strict=True)] == [set(), set()]
    assert not [event for event in told if isinstance(event, MasterDown | Lost)]


@pytest.mark.every_server
def test_refused_credentials_end_no_connection_that_works(
    server: Server, connect: Connect, rotation: Rotation, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection is replaced only by one that the server takes; until then, it goes on."""
    told: list[Event] = []
    provider, wrong = rotation.provider, Given(rotation.user, "wrong")
    client = connect(redis.Redis(port=server.port, credential_provider=provider), on_event=told.append)
    shown = client._session.connection_name

    def refusals() -> int:
        return caplog.text.count("refused new credentials")

    async def play() -> None:
        async with AsyncClient(client) as of_tasks:
            lock, other = of_tasks.lock(f"{name}:of-tasks"), client.lock(name)
            assert await lock.acquire(timeout=PATIENT)
            assert other.acquire(timeout=PATIENT)
            before = calling(server, client)
            assert len(before) == 2  # one of the threads, one of the loop
            provider.give(wrong)  # new connections are refused as well
            pool = client._session.masters[0].pool
            await until_in_loop(lambda: (refusals(), pool.idle_connections) == (2, 1), "both have tried, and are back")
            assert (await lock.extend(), other.extend()) > (0.0, 0.0)
            assert calling(server, client) == before
            provider.current = rotation.next()
            assert provider.callback is not None
            provider.callback(wrong)  # the same command is another object, so it is sent again
            await until_in_loop(lambda: not before & calling(server, client), "others have taken over")
            assert (await lock.extend(), other.extend()) > (0.0, 0.0)
            assert set(rotation.users_of(shown)) == {rotation.user}
            await lock.release()
            other.release()

    asyncio.run(play())
    assert not [event for event in told if isinstance(event, MasterDown | Lost)]


streams = pytest.mark.skipif(
    not hasattr(redis.ConnectionPool, "re_auth_callback"), reason="this redis-py has no streaming providers"
)


def reach_all(rotation: Rotation, of_user: Any, connect: Connect, name: str) -> None:
    """Change the credentials of a client of redis-py, and wait until all connections use the new ones."""
    client = connect(of_user)
    assert of_user.ping()
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENT)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.lock(name, timeout=PATIENT).acquire)
        # It is queued only after it has subscribed: no connection is being opened with the old ones then.
        until(lambda: len(client.info(name).queue) == 1, within=PATIENT, what="another thread waits")
        rotation.change()
        until(lambda: {*rotation.users_of(name)} == {rotation.user}, within=PATIENT, what="all use the new ones")
        rotation.end_old()
        lock.release()
        assert waiting.result()
    assert rotation.killed == 0
    rotation.end()


@streams
@pytest.mark.every_server
def test_new_credentials_reach_the_pool_of_the_users_own_client(
    server: Server, rotation: Rotation, connect: Connect, name: str
) -> None:
    given: dict[str, Any] = {"client_name": name, "credential_provider": rotation.provider}
    reach_all(rotation, redis.Redis(port=server.port, **given), connect, name)


@streams
def test_new_credentials_reach_all_nodes_of_a_cluster(cluster: ClusterOfServers, connect: Connect, name: str) -> None:
    rotation = Rotation(name, *cluster.members)
    given: dict[str, Any] = {"client_name": name, "credential_provider": rotation.provider}
    reach_all(rotation, redis.RedisCluster(host="127.0.0.1", port=cluster.members[0].port, **given), connect, name)


@streams
@pytest.mark.every_server
def test_new_credentials_reach_connections_over_tls(tls: Tls, connect: Connect, name: str) -> None:
    """A thread that reads over TLS can't be woken, so this takes until the next ping."""
    rotation = Rotation(name, tls.server)
    given: dict[str, Any] = {
        "client_name": name,
        "credential_provider": rotation.provider,
        "ssl_ca_certs": str(tls.certificate),
    }
    reach_all(rotation, redis.Redis("127.0.0.1", tls.port, ssl=True, **given), connect, name)


def test_a_provider_that_streams_nothing_is_asked_for_each_connection(
    server: Server, connect: Connect, rotation: Rotation, name: str
) -> None:
    """The old credentials end, with the connections that use them; so a call finds none, and opens another."""
    plain = CredentialProvider()
    plain.get_credentials = rotation.provider.get_credentials  # type: ignore[method-assign, assignment]
    client = connect(redis.Redis(port=server.port, credential_provider=plain))
    lock = client.lock(name)
    assert lock.acquire(timeout=PATIENT)
    rotation.change()
    rotation.end_old()
    assert rotation.killed > 0
    until(lambda: not calling(server, client), within=PATIENT, what="the server has closed the connections")
    until(lambda: extends(lock), within=PATIENT, what="another connection works")
    assert set(rotation.users_of(client._session.connection_name)) == {rotation.user}
    lock.release()
