"""Sentinel: each new connection finds the master anew, and a hold survives a failover if the data do."""

import asyncio
import itertools
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from attrs import define
from redis.sentinel import Sentinel as RedisPySentinel
from support.bench import the_floor_is_all_there
from support.cli import relock
from support.room import Crowd, Room
from support.servers import Server, free_port, no_retry
from support.spawn import spawn
from support.until import until
from valkey.sentinel import Sentinel as ValkeyPySentinel

from relock import AsyncClient, Client, ConfigurationError, LockLostError, MasterWithoutVote, QuorumError

SERVICE = "mymaster"
MOVE_SECONDS = 5.0  # within which a waiter that was deaf has had its turn
CONFIGURATION = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {service} 127.0.0.1 {master} 1
sentinel down-after-milliseconds {service} 2000
sentinel failover-timeout {service} 2000
"""


class SentinelProcess:
    """One Sentinel, which decides alone."""

    def __init__(self, program: Path, master: Server, extra: str = "") -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="relock-test-"))
        path = self.folder / "sentinel.conf"
        path.write_text(
            CONFIGURATION.format(port=self.port, folder=self.folder, service=SERVICE, master=master.port) + extra
        )
        with (self.folder / "log").open("ab") as log:
            self._process = spawn([str(program), str(path), "--sentinel"], stdout=log, stderr=log)

    def client(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, retry=no_retry())

    def is_up(self) -> bool:
        with suppress(redis.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def is_ready(self) -> bool:
        """Return whether the Sentinel knows a replica that it could promote."""
        try:
            with self.client() as client:
                replicas = client.sentinel_slaves(SERVICE)
        except redis.ConnectionError:
            return False
        return any(one["master-link-status"] == "ok" and not one["is_disconnected"] for one in replicas)

    def master_port(self) -> int:
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@define
class House:
    """A master, its replica, and the Sentinel that watches both."""

    master: Server
    replica: Server
    sentinel: SentinelProcess

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}"

    def await_replication(self, key: str) -> None:
        with self.replica.client() as client:
            until(lambda: bool(client.exists(key)), within=20, what=f"{key} is on the replica")

    def fail_over(self) -> None:
        """Kill the master, and wait until the replica has its place.

        A Sentinel that was itself held up for two seconds trusts its own observations again only after thirty.
        """
        self.master.kill()
        until(lambda: self.sentinel.master_port() == self.replica.port, within=60, what="the replica is promoted")
        until(lambda: self.replica.client().role()[0] == b"master", within=20, what="the replica is a master")


@pytest.fixture
def house(start_server: Callable[..., Server]) -> Iterator[House]:
    master = start_server("--repl-diskless-sync-delay", "0")
    replica = start_server("--replicaof", "127.0.0.1", str(master.port))
    sentinel = SentinelProcess(master.program, master)
    until(sentinel.is_ready, within=20, what="the Sentinel knows the replica")
    yield House(master, replica, sentinel)
    sentinel.close()


def test_connections_to_the_master_are_named_after_their_client(
    house: House, connect: Callable[..., Client], name: str
) -> None:
    client, given = connect(house.url), connect(f"{house.url}?client_name=chosen")
    client.info(name)
    given.info(name)
    with house.master.client() as plain:
        names = [one["name"] for one in plain.client_list()]
    assert f"relock:{client._session.client_id}" in names
    assert "chosen" in names


@pytest.mark.every_server
def test_a_hold_that_the_replica_knows_goes_on_after_a_failover(
    house: House, connect: Callable[..., Client], name: str
) -> None:
    client = connect(house.url)
    lock = client.lock(name)
    lock.acquire()
    token = lock.token
    house.await_replication(f"lock:{{{name}}}")
    house.fail_over()
    until(lambda: _extends(lock), within=20, what="the hold is renewed on the new master")
    assert (lock.owned(), lock.token) == (True, token)
    assert client.info(name).hold_count == 1
    assert house.replica.cli("EXISTS", f"lock:{{{name}}}") == 1
    assert not connect(house.url).lock(name).acquire(blocking=False)
    lock.release()
    other = connect(house.url).lock(name)
    assert other.acquire(timeout=20)
    assert other.token is not None
    assert token is not None
    assert other.token > token


async def test_a_hold_of_a_task_goes_on_after_a_failover_and_one_that_waits_is_served(house: House, name: str) -> None:
    async with AsyncClient(house.url) as client:

        async def wait() -> bool:
            return await client.lock(name).acquire(timeout=60)

        lock = client.lock(name)
        await lock.acquire()
        token = lock.token
        waiting = asyncio.create_task(wait())
        while not (await lock.info()).queue:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(house.await_replication, f"lock:{{{name}}}:queue")
        await asyncio.to_thread(house.fail_over)
        for _ in range(2000):
            with suppress(QuorumError):
                await lock.extend()
                break
            await asyncio.sleep(0.01)
        assert (lock.owned(), lock.token) == (True, token)
        assert house.replica.cli("EXISTS", f"lock:{{{name}}}") == 1
        assert not waiting.done()
        await lock.release()
        assert await waiting


def test_a_hold_that_the_replica_does_not_know_is_lost(house: House, connect: Callable[..., Client], name: str) -> None:
    losses: list[Any] = []
    lock = connect(house.url, on_lost=losses.append).lock(name)
    lock.acquire()
    house.await_replication(f"lock:{{{name}}}")
    house.replica.cli("CONFIG", "SET", "replica-read-only", "no")
    house.replica.cli("DEL", f"lock:{{{name}}}")  # as if the hold had never arrived: replication is asynchronous
    house.fail_over()
    with pytest.raises(LockLostError):
        until(lambda: _extends(lock) and False, within=20, what="the loss is found")
    until(lambda: len(losses) == 1, within=5, what="the loss is told")


def test_with_a_guard_a_promoted_replica_grants_nothing_before_it_is_over(
    house: House, connect: Callable[..., Client], name: str
) -> None:
    events: list[Any] = []
    client = connect(house.url, ttl=2.0, restart_guard=2.0, on_event=events.append)
    held, free = client.lock(name), client.lock(f"{name}-free")
    assert held.acquire(timeout=10)  # waits for the first guard
    house.await_replication("lock:master")
    events.clear()
    house.fail_over()
    assert free.acquire(timeout=20)
    granted_us = _now_us(house.replica)
    incarnation, until_us = house.replica.cli("HMGET", "lock:master", "incarnation", "no_vote_until_us")
    with house.replica.client() as promoted:
        assert incarnation.decode().startswith(promoted.info("server")["run_id"])
    assert granted_us >= int(until_us)
    assert any(isinstance(event, MasterWithoutVote) and event.seconds_left > 0 for event in events)


@pytest.mark.parametrize("made_by", [RedisPySentinel, ValkeyPySentinel], ids=["redis-py", "valkey-py"])
def test_a_client_that_sentinel_made_does_the_same(
    house: House, connect: Callable[..., Client], name: str, made_by: Any
) -> None:
    manager = made_by([("127.0.0.1", free_port()), ("127.0.0.1", house.sentinel.port)], socket_timeout=1.0)
    client = connect(manager.master_for(SERVICE))  # the first Sentinel is down
    with client.lock(name):
        assert house.master.cli("EXISTS", f"lock:{{{name}}}") == 1
    house.fail_over()
    with client.lock(name, timeout=20):
        assert house.replica.cli("EXISTS", f"lock:{{{name}}}") == 1
    assert client.check() == ()


def test_a_waiter_goes_on_after_a_failover(house: House, connect: Callable[..., Client], name: str) -> None:
    holder = connect(house.url).lock(name, ttl=10.0, renew=False)
    holder.acquire()
    house.await_replication(f"lock:{{{name}}}")
    house.master.kill()
    waiter = connect(house.url).lock(name)
    assert waiter.acquire(timeout=60)
    assert house.sentinel.master_port() == house.replica.port
    assert not holder.owned()


@pytest.mark.parametrize("handoff", ["grant", "wake"])
def test_after_a_planned_failover_waiters_are_served_in_their_turn_and_alone(
    house: House, connect: Callable[..., Client], name: str, handoff: str
) -> None:
    """The old master stays, as a replica, with all connections that Sentinel leaves open."""
    holder, waiting, others = (connect(house.url, handoff=handoff, node_timeout=1.0) for _ in range(3))
    held = holder.lock(name)
    held.acquire()
    crowd = Crowd(Room(), name)
    crowd.wait_for_a_turn(waiting, 2, house.master)
    crowd.come_again(others, 3, house.master)
    house.await_replication(f"lock:{{{name}}}")
    with house.sentinel.client() as client:
        client.execute_command("SENTINEL", "FAILOVER", SERVICE)
    until(lambda: house.sentinel.master_port() == house.replica.port, within=60, what="the replica is promoted")
    until(lambda: _follows(house.master), within=30, what="the old master follows the new one")
    held.release()
    late = crowd.late(MOVE_SECONDS)
    served = crowd.room.served
    crowd.end()
    assert crowd.room.together == []
    assert crowd.room.lost == []
    assert late == [], f"all waiters were served, among {served} turns"


def test_a_sentinel_that_does_not_know_the_service_raises_at_once(
    house: House, connect: Callable[..., Client], name: str
) -> None:
    client = connect(f"redis+sentinel://127.0.0.1:{house.sentinel.port}/other", patience=3600.0)
    with pytest.raises(QuorumError, match="check the name of the master"):
        client.lock(name).acquire()  # its patience does not end during a test


def test_a_sentinel_that_names_a_replica_is_believed_no_more_than_that(
    house: House, connect: Callable[..., Client], name: str
) -> None:
    """Sentinels name a replica for a moment in a failover: that is no `ConfigurationError`, because it passes."""
    late = SentinelProcess(house.master.program, house.replica)
    try:
        client = connect(f"redis+sentinel://127.0.0.1:{late.port}/{SERVICE}")
        until(lambda: "replica" in _failure(client, name), within=20, what="the replica is refused")
    finally:
        late.close()


def test_no_sentinel_is_no_quorum_and_names_each(connect: Callable[..., Client], name: str) -> None:
    ports = free_port(), free_port()
    client = connect(f"redis+sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{SERVICE}")
    with pytest.raises(QuorumError) as caught:
        client.lock(name).acquire(blocking=False)
    assert all(str(port) in str(caught.value) for port in ports)


def test_each_sentinel_that_does_not_answer_costs_a_node_timeout_and_is_asked_last_from_then_on(
    start_server: Callable[..., Server], connect: Callable[..., Client], name: str
) -> None:
    master = start_server()
    sentinel = SentinelProcess(master.program, master)
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    try:
        until(sentinel.is_up, within=20, what="the Sentinel answers")
        places = [f"127.0.0.1:{port}" for port in (*(one.getsockname()[1] for one in silent), sentinel.port)]
        client = connect(f"redis+sentinel://{','.join(places)}/{SERVICE}", ttl=60.0, node_timeout=1.5)
        done = threading.Event()

        def take() -> None:
            with client.lock(name, timeout=60):
                done.set()

        began = time.monotonic()
        threading.Thread(target=take, daemon=True).start()
        assert done.wait(30), "no Sentinel is waited for without end"
        assert time.monotonic() - began > 2.9, "each of the two was waited for"
        for one in silent:
            one.settimeout(0.1)
            assert _accept_all(one) > 0
        client._session.masters[0].pool.open().close()
        assert [_accept_all(one) for one in silent] == [0, 0]
    finally:
        for one in silent:
            one.close()
        sentinel.close()


def test_doctor_looks_at_the_present_master(house: House) -> None:
    house.fail_over()
    reports: list[tuple[int, str]] = []

    def is_well() -> bool:
        """Return whether the doctor finds nothing; it asks once, and while a failover settles, may find no master."""
        done = relock("doctor", "--json", "--node", house.url)
        assert not done.stderr
        reports.append((done.returncode, done.stdout))
        return done.returncode == 0

    until(is_well, within=20, what="the doctor is content")
    (master,) = json.loads(reports[-1][1])["masters"]
    assert (master["address"], master["role"]) == (house.url, "master")
    assert master["run_id"] == house.replica.client().info("server")["run_id"]


def test_a_sentinel_is_no_master(house: House, connect: Callable[..., Client], name: str) -> None:
    with pytest.raises((QuorumError, ConfigurationError)):
        connect(f"redis://127.0.0.1:{house.sentinel.port}").lock(name).acquire(timeout=1)


def _follows(server: Server) -> bool:
    """Return whether the server is a replica; a Sentinel that makes it one closes connections, ours as well."""
    try:
        return bool(server.client().role()[0] == b"slave")
    except redis.ConnectionError:
        return False


def _extends(lock: Any) -> bool:
    try:
        lock.extend()
    except QuorumError:
        return False
    return True


def _accept_all(listening: socket.socket) -> int:
    """Return how many connections were made to a socket that has accepted none of them yet."""
    for count in itertools.count():
        try:
            listening.accept()[0].close()
        except TimeoutError:
            return count
    raise AssertionError("there is an end of them")


def _failure(client: Client, name: str) -> str:
    with pytest.raises(QuorumError) as caught:
        client.lock(name).acquire(blocking=False)
    return str(caught.value)


def _now_us(server: Server) -> int:
    seconds, microseconds = server.cli("TIME")
    return int(seconds) * 1_000_000 + int(microseconds)


def test_a_master_behind_sentinels_has_the_floor_of_the_bench(house: House, name: str) -> None:
    pytest.importorskip("hiredis")
    the_floor_is_all_there(house.url, name)
    assert house.master.cli("KEYS", "*") == []
