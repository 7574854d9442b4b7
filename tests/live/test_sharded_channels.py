"""Sharded channels on a Cluster: a waiter listens on its name's channel, on the node that has the name's slot."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis
from support.cluster import ClusterOfServers, knows_sharded_channels, port_with_bus, slot_of
from support.credentials import Rotation
from support.heartbeats import without_heartbeats
from support.processes import Worker
from support.servers import Server, find_servers
from support.tasks import connecting
from support.tasks import until as task_until
from support.tls import Tls, skipped_without_tls
from support.until import until

from relock import AsyncClient, AsyncLock, Client, Lock
from relock._doctor.examine import examine_all
from relock._doctor.findings import Verdict
from relock._runtime.masters.cluster import Cluster
from relock._runtime.net.parse import parse_nodes
from relock._runtime.wakeups import channels

WAIT_SECONDS = 60.0


@pytest.fixture
def sharded(cluster: ClusterOfServers) -> ClusterOfServers:
    """A Cluster whose nodes know sharded channels."""
    if not knows_sharded_channels(cluster):
        pytest.skip("this server knows no sharded channels")
    return cluster


def listeners(server: Server, name: str) -> list[bytes]:
    """Return the channels for a lock on which clients listen at this node."""
    found: list[bytes] = server.cli("PUBSUB", "SHARDCHANNELS", f"lock:{{{name}}}:client:*")
    return found


def subscribers(server: Server, client_id: str) -> int:
    """Return how many connections of a client at this node have subscribed to anything."""
    with server.client() as client:
        found = [one for one in client.client_list() if client_id in one["name"]]
    return sum(int(one["sub"]) + int(one.get("ssub", 0)) > 0 for one in found)


class Waiting:
    """A thread that waits for a lock, keeps it until `go`, and releases it."""

    def __init__(self, client: Client, looker: Client, name: str) -> None:
        self.lock = client.lock(name, timeout=WAIT_SECONDS)
        self.has, self.go = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        before = len(looker.info(name).queue)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: len(looker.info(name).queue) == before + 1, within=20, what="a caller waits")

    def _run(self) -> None:
        try:
            with self.lock:
                self.has.set()
                self.go.wait(WAIT_SECONDS)
        except Exception as error:
            self.errors.append(error)

    def end(self) -> None:
        self.go.set()
        self._thread.join(WAIT_SECONDS)
        assert self.errors == []
        assert self.has.is_set()


def hand_over(holder: Client, other: Client, name: str) -> Waiting:
    """Have a client wait for a lock until another one releases it, without a heartbeat."""
    lock = holder.lock(name)
    lock.acquire()
    with without_heartbeats():
        waiting = Waiting(other, holder, name)
        lock.release()
        assert waiting.has.wait(WAIT_SECONDS)
    return waiting


def was_given(looker: Client, name: str) -> bool:
    """Return whether the present hold was given by a release: its name then says which hold that was."""
    return "~" in str(looker.info(name).owner)


def sent(cluster: ClusterOfServers, command: str) -> int:
    return sum(server.all_calls().get(command, 0) for server in cluster.members)


def connect_as_older(client: Client) -> None:
    """Let a client connect, and find a Cluster of which one node knows no sharded channels."""

    def find(master: Cluster, _until: float) -> None:
        master.is_sharded = False

    with patch.object(Cluster, "_find_kind", find):
        client.info("any")


@pytest.mark.every_server
def test_a_release_gives_the_lock_in_one_hop_and_nothing_is_broadcast(
    cluster: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    holder, other = connect(cluster.url), connect(cluster.url)
    before = {word: sent(cluster, word) for word in ("publish", "spublish")}
    waiting = hand_over(holder, other, name)
    after = {word: sent(cluster, word) - count for word, count in before.items()}
    if knows_sharded_channels(cluster):
        assert was_given(holder, name)
        assert after == {"publish": 0, "spublish": 1}
        assert len(listeners(cluster.owner(name), name)) == 1
    else:
        assert not was_given(holder, name), "without exact counts a waiter is only woken"
        assert after["publish"] >= 1
    waiting.end()


@pytest.mark.every_server
@pytest.mark.over_tls
def test_a_release_gives_the_lock_in_one_hop_over_tls(
    server_kind: str, connect: Callable[..., Client], name: str, tmp_path: Path
) -> None:
    tls = Tls(tmp_path / "tls", port_with_bus())
    with skipped_without_tls():
        arguments = (*tls.arguments, "--tls-cluster", "yes")
        cluster = ClusterOfServers(server_kind, find_servers()[server_kind], *arguments, masters=1)
    try:
        url = tls.url(scheme="rediss+cluster")
        holder, other = connect(url), connect(url)
        waiting = hand_over(holder, other, name)
        assert was_given(holder, name) == knows_sharded_channels(cluster)
        waiting.end()
        (shard,) = holder._session.masters[0].shards.values()  # type: ignore[attr-defined]
        assert shard.address == f"rediss://127.0.0.1:{tls.port}/0"
    finally:
        cluster.close()


@pytest.mark.every_server
def test_a_dead_waiter_is_passed_over_at_once(
    sharded: ClusterOfServers, connect: Callable[..., Client], start_worker: Callable[..., Worker], name: str
) -> None:
    holder, other = connect(sharded.url), connect(sharded.url)
    lock = holder.lock(name)
    lock.acquire()
    process = start_worker("workers.locker", sharded.url)
    process.send({"do": "acquire", "id": 1, "name": name, "timeout": WAIT_SECONDS})
    until(lambda: len(holder.info(name).queue) == 1, within=20, what="the process waits")
    (dead,) = holder.info(name).queue
    with without_heartbeats():
        waiting = Waiting(other, holder, name)
        process.kill()
        until(lambda: len(listeners(sharded.owner(name), name)) == 1, within=20, what="the server has seen its end")
        lock.release()
        assert waiting.has.wait(WAIT_SECONDS)
    assert was_given(holder, name)
    assert dead in holder.info(name).queue, "it was passed over before it counted as dead"
    waiting.end()


@pytest.mark.every_server
@pytest.mark.parametrize("older", ["holder", "waiter"])
def test_clients_of_both_kinds_wake_each_other(
    sharded: ClusterOfServers, connect: Callable[..., Client], name: str, older: str
) -> None:
    """A client that connected while one node was older goes on as it began."""
    holder, other = connect(sharded.url), connect(sharded.url)
    connect_as_older(holder if older == "holder" else other)
    waiting = hand_over(holder, other, name)
    assert was_given(holder, name) == (older == "holder"), "the waiter's name says where it listens"
    waiting.end()


@pytest.mark.every_server
def test_a_waiter_listens_where_its_slot_has_moved_and_looks_then(
    sharded: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    holder, other = connect(sharded.url), connect(sharded.url)
    source = sharded.owner(name)
    target = next(server for server in sharded.members if server is not source)
    lock = holder.lock(name)
    lock.acquire()
    with without_heartbeats():
        waiting = Waiting(other, holder, name)
        sharded.begin_to_move(slot_of(name), source, target)
        sharded.move_all_keys(slot_of(name), source, target)
        enqueued = target.calls().get("evalsha", 0)
        sharded.finish_moving(slot_of(name), source, target)
        until(lambda: listeners(target, name), within=20, what="the waiter listens at the new node")
        until(lambda: target.calls().get("evalsha", 0) > enqueued, within=20, what="the waiter has looked")
        assert listeners(source, name) == []
        lock.release()
        assert waiting.has.wait(WAIT_SECONDS)
    assert was_given(holder, name)
    waiting.end()


def test_no_waiter_is_lost_when_a_node_is_killed_and_hand_offs_go_on_in_one_hop(
    own_cluster: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    if not knows_sharded_channels(own_cluster):
        pytest.skip("this server knows no sharded channels")
    dies = own_cluster.owner(name)
    replica = own_cluster.add_replica(dies)
    holder, other = connect(own_cluster.url, ttl=60.0), connect(own_cluster.url, ttl=60.0)
    lock = holder.lock(name)
    lock.acquire()
    waiters = [Waiting(other, holder, name) for _ in range(3)]
    until(lambda: replica.cli("DBSIZE") == dies.cli("DBSIZE"), within=20, what="the replica has the queue")
    dies.kill()
    until(lambda: listeners(replica, name), within=60, what="the waiters listen at the new master")
    until(lambda: _extends(lock), within=30, what="the hold is renewed there")
    lock.release()
    for number, waiting in enumerate(waiters):
        assert waiting.has.wait(WAIT_SECONDS), number
        assert was_given(holder, name)
        waiting.end()


def _extends(lock: Lock) -> bool:
    try:
        lock.extend()
    except ConnectionError:
        return False
    return True


@pytest.mark.every_server
def test_an_unused_channel_is_given_up_and_asked_for_again(
    sharded: ClusterOfServers, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other, node = connect(sharded.url), connect(sharded.url), sharded.owner(name)
    for _ in range(2):
        with holder.lock(name):
            waiting = Waiting(other, holder, name)
            assert len(listeners(node, name)) == 1
        assert waiting.has.wait(WAIT_SECONDS)
        assert was_given(holder, name)
        waiting.end()
        assert len(listeners(node, name)) == 1, "it is kept for a while"
        with monkeypatch.context() as patched:
            patched.setattr(channels, "KEPT_SECONDS", 0.0)
            patched.setattr(channels, "SCAN_SECONDS", 0.0)
            _scan_soon(other)
            until(lambda: listeners(node, name) == [], within=20, what="it is given up")


def _scan_soon(client: Client) -> None:
    for hub in client._session.hubs.all():
        for one in hub.subscriptions:
            if one.channels is not None:
                one.channels._scans_at = 0.0
                one.call()


def test_only_so_many_unused_channels_are_kept(
    sharded: ClusterOfServers, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "UNUSED_MAX", 3)  # one at each node
    holder, other = connect(sharded.url), connect(sharded.url)
    names = [f"{name}-{number}" for number in range(8)]
    for one in names:
        with holder.lock(one):
            waiting = Waiting(other, holder, one)
        waiting.end()
    with holder.lock(name):
        waiting = Waiting(other, holder, name)
        _scan_soon(other)
        until(
            lambda: sum(len(listeners(server, f"{name}-*")) for server in sharded.members) <= 3,
            within=20,
            what="the others are given up",
        )
        assert len(listeners(sharded.owner(name), name)) == 1, "one that is used is kept"
    waiting.end()


@pytest.mark.skipif(not hasattr(redis.ConnectionPool, "re_auth_callback"), reason="no streaming providers")
def test_new_credentials_leave_no_waiter_deaf(
    sharded: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    """The second connection of a subscription asks for the channels of the first one."""
    rotation = Rotation(name, *sharded.members)
    given: dict[str, Any] = {"client_name": name, "credential_provider": rotation.provider}
    holder = connect(sharded.url)
    other = connect(redis.RedisCluster(host="127.0.0.1", port=sharded.members[0].port, **given))
    lock = holder.lock(name)
    lock.acquire()
    with without_heartbeats():
        waiting = Waiting(other, holder, name)
        rotation.change()
        until(lambda: {*rotation.users_of(name)} == {rotation.user}, within=20, what="all use the new ones")
        until(lambda: listeners(sharded.owner(name), name), within=20, what="the new connection listens")
        lock.release()
        assert waiting.has.wait(WAIT_SECONDS)
    assert was_given(holder, name)
    waiting.end()
    rotation.end()


@pytest.mark.every_server
async def test_tasks_hear_their_names_over_one_connection_to_each_node(cluster: ClusterOfServers, name: str) -> None:
    async with connecting() as connect:
        holder, other = connect(cluster.url), connect(cluster.url)
        locks, waits = await _held_and_waited_for(holder, other, [f"{name}-{number}" for number in range(60)])
        _assert_one_connection_to_each_node(cluster, other, name, len(locks))
        with without_heartbeats():
            await asyncio.gather(*[lock.release() for lock in locks])
            given = await asyncio.wait_for(asyncio.gather(*waits), WAIT_SECONDS)
        # A busy machine may keep this process from one of them for longer than a grant's first lease.
        assert any(given) == knows_sharded_channels(cluster)


@pytest.mark.long
@pytest.mark.every_server
async def test_a_thousand_names_need_one_connection_to_each_node(cluster: ClusterOfServers, name: str) -> None:
    """Heartbeats go on, because a busy machine may keep a loop with so many tasks from reacting to a turn.

    Releases only wake: a grant comes with a lease of 3 s, and such a process may need longer to renew a thousand.
    """
    async with connecting() as connect:
        holder, other = (connect(cluster.url, handoff="wake", ttl=60.0) for _ in range(2))
        locks, waits = await _held_and_waited_for(holder, other, [f"{name}-{number}" for number in range(1000)])
        _assert_one_connection_to_each_node(cluster, other, name, len(locks))
        await asyncio.gather(*[lock.release() for lock in locks])
        await asyncio.gather(*waits)


async def _held_and_waited_for(
    holder: AsyncClient, other: AsyncClient, names: list[str]
) -> tuple[list[AsyncLock], list[asyncio.Task[bool]]]:
    """Return the locks that one client holds, and the tasks of the other one that wait for them."""
    locks = [holder.lock(one) for one in names]
    await asyncio.gather(*[lock.acquire() for lock in locks])
    waits = [asyncio.create_task(_hold_once(other, one)) for one in names]
    for one in names:
        while len((await holder.info(one)).queue) != 1:
            await asyncio.sleep(0.01)
    return locks, waits


def _assert_one_connection_to_each_node(cluster: ClusterOfServers, client: AsyncClient, name: str, count: int) -> None:
    own = [subscribers(server, client._session.client_id) for server in cluster.members]
    if knows_sharded_channels(cluster):
        assert own == [1, 1, 1]
        assert sum(len(listeners(server, f"{name}-*")) for server in cluster.members) == count
    else:
        assert sum(own) == 1


async def _hold_once(client: AsyncClient, name: str) -> bool:
    """Take the lock, and return whether a release gave it."""
    async with client.lock(name) as lock:
        return "~" in str((await lock.info()).owner)


@pytest.mark.every_server
async def test_a_task_listens_where_its_slot_has_moved_and_gives_up_what_is_unused(
    sharded: ClusterOfServers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sharded.owner(name)
    target = next(server for server in sharded.members if server is not source)
    async with connecting() as connect:
        holder, other = connect(sharded.url), connect(sharded.url)
        with without_heartbeats():
            async with holder.lock(name):
                waits = asyncio.create_task(_hold_once(other, name))
                await task_until(lambda: listeners(source, name), "the task listens")
                while not (await holder.info(name)).queue:
                    await asyncio.sleep(0.01)
                sharded.begin_to_move(slot_of(name), source, target)
                sharded.move_all_keys(slot_of(name), source, target)
                enqueued = target.calls().get("evalsha", 0)
                sharded.finish_moving(slot_of(name), source, target)
                await task_until(lambda: listeners(target, name), "it listens at the new node")
                await task_until(lambda: target.calls().get("evalsha", 0) > enqueued, "it has looked")
            assert await asyncio.wait_for(waits, WAIT_SECONDS)
        monkeypatch.setattr(channels, "KEPT_SECONDS", 0.0)
        _scan_soon(other)  # type: ignore[arg-type]
        await task_until(lambda: not listeners(target, name), "the channel is given up")


SHARDED_ONLY = ("resetchannels", "&lock:{*}:client:*")


@pytest.mark.every_server
def test_with_the_right_to_sharded_channels_alone_a_release_gives_in_one_hop(
    sharded: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    for server in sharded.members:
        server.cli("ACL", "SETUSER", "sharded", "reset", "on", ">x", "~*", "+@all", *SHARDED_ONLY)
    url = sharded.url.replace("://", "://sharded:x@")
    holder, other = connect(url), connect(url)
    lock = holder.lock(name)
    lock.acquire()
    with without_heartbeats():
        waiting = Waiting(other, holder, name)
        lock.release()
        assert waiting.has.wait(WAIT_SECONDS)
    assert was_given(holder, name)
    waiting.end()
    (problem,) = {text.partition(": ")[2] for text in holder.check()}
    assert "deadlocks between clients are not found" in problem
    for one in examine_all(parse_nodes(url), "lock", 5.0):
        found = {finding.check: finding for finding in one.findings}
        assert found["sharded channels"].verdict is Verdict.OK
        assert found["scripts"].verdict is Verdict.OK
        assert any("deadlocks between clients are not found" in finding.says for finding in one.findings)
        assert all(finding.verdict is not Verdict.WRONG for finding in one.findings)


@pytest.mark.every_server
def test_doctor_says_what_a_user_lacks_for_sharded_channels(sharded: ClusterOfServers) -> None:
    rights = {
        "-ssubscribe": Verdict.NOTE,
        "-spublish": Verdict.WRONG,
        "-pubsub|shardnumsub": Verdict.NOTE,
        "+ping": Verdict.OK,
    }
    for right, verdict in rights.items():
        for server in sharded.members:
            server.cli("ACL", "SETUSER", "lacking", "reset", "on", ">x", "~*", "&*", "+@all", right)
        for one in examine_all(parse_nodes(sharded.url.replace("://", "://lacking:x@")), "lock", 5.0):
            (found,) = [finding for finding in one.findings if finding.check == "sharded channels"]
            assert found.verdict is verdict, right
            (waking,) = [finding for finding in one.findings if finding.says == "a release wakes the next in the queue"]
            assert waking.verdict is Verdict.OK
