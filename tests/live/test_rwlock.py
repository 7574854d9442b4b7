"""Read-write lock on real servers: interrupts, kills, silent and forgetful masters, a Cluster, and how many calls."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.cluster import ClusterOfServers
from support.costs import check_costs, learn_scripts
from support.instructions import Interrupt, Strike, points
from support.leftovers import are_free
from support.masters import Deployment, Masters, disable, forget
from support.processes import Worker
from support.servers import Server
from support.tasks import SOON, connecting
from support.until import pause, until

from relock import Client, LockLostError, QuorumError, RWLock

Connect = Callable[..., Client]
TTL = 30.0  # seconds: leftovers must still be there when a test looks for them
READERS = 1000

every_quorum = pytest.mark.every_quorum


def key_of(name: str) -> str:
    return f"lock:{{{name}}}"


def is_free(masters: list[Redis], name: str) -> bool:
    return are_free(masters, key_of(name))


def warm_up(client: Client) -> None:
    """Open connections and load scripts, so that every run takes the same way."""
    both = client.rwlock("warm")
    with both.write, both.read:
        pass
    both.write.acquire()
    both.write.downgrade()
    both.read.release()


def levels(both: RWLock) -> tuple[int, int]:
    return both.write.hold_count, both.read.hold_count


def leave(both: RWLock) -> None:
    for lock in (both.write, both.read):
        while lock.hold_count:
            lock.release()


# Interrupts -----------------------------------------------------------------------------------------------------------


@every_quorum
@pytest.mark.parametrize("owner", [None, "job"])
def test_an_exception_at_any_instruction_of_a_downgrade_leaves_a_writer_or_a_reader(
    connect: Connect, server: Deployment, name: str, *, owner: str | None, seed: int
) -> None:
    client = connect(server.url, ttl=TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]

    def play(number: object, strike: Strike) -> RWLock:
        both = client.rwlock(f"{name}-{number}", owner=owner)
        both.write.acquire()
        both.write.acquire()
        with strike, contextlib.suppress(Interrupt):
            both.write.downgrade()
        return both

    counted = Strike()
    for strike in (Strike(), counted):  # the first run fills caches
        leave(play("count", strike))
    assert counted.count > 600, "relock's instructions are seen"
    left, seen = [], set()
    for point in points(counted.count, seed, 200 if len(masters) == 1 else 40):
        strike = Strike(raise_at=point)
        both = play(point, strike)
        assert levels(both) in {(2, 0), (0, 2)}, f"after an interrupt in {strike.where}"
        seen.add(levels(both))
        leave(both)
        left.append((both.name, strike.where))
    assert len(seen) == 2
    for one, where in left:
        until(partial(is_free, masters, one), within=TTL / 2, what=f"nothing left after an interrupt in {where}")
    assert client.statistics().held == 0


# Processes ------------------------------------------------------------------------------------------------------------


@every_quorum
def test_a_reader_that_was_killed_among_others_lets_a_writer_in_when_its_lease_has_ended(
    connect: Connect, start_worker: Callable[..., Worker], server: Deployment, name: str
) -> None:
    """The other readers renew their leases until they have left."""
    client = connect(server.url)
    both = client.rwlock(name)
    dead = start_worker("workers.locker", server.url, '{"ttl": 4.5}')
    assert dead.receive()["event"] == "ready"
    dead.send({"do": "acquire", "id": 1, "name": name, "side": "read"})
    assert dead.receive()["event"] == "granted"
    with both.read:
        assert len(both.info().readers) == 2
        dead.kill()
        assert not client.rwlock(name, owner="writer").write.acquire(timeout=0)
        until(lambda: len(both.info().readers) == 1, within=30, what="the reader that was killed has it no more")
        both.read.extend()
    assert both.write.acquire(timeout=30)
    both.write.release()
    masters = [one.client() for one in server.members]
    until(lambda: is_free(masters, name), within=60, what="all is free")


# Masters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["down", "hung"])
def test_a_quorum_is_enough(how: str, three_masters: Masters, connect: Connect, name: str) -> None:
    client, others = (connect(three_masters.url, ttl=TTL, node_timeout=5.0) for _ in range(2))
    warm_up(client)
    warm_up(others)
    victim = three_masters.members[1]
    disable(victim, how)
    both, other = client.rwlock(name, timeout=20), others.rwlock(name, timeout=20)
    for _ in range(3):
        with both.write, both.read:
            assert not other.read.acquire(timeout=0)
        with both.read, other.read:
            assert len(both.info().readers) == 2
            assert not client.rwlock(name, owner="writer").write.acquire(timeout=0)
        assert both.write.acquire()
        both.write.downgrade()
        with other.read:
            both.read.release()
    if how == "hung":
        victim.cont()
        masters = [one.client() for one in three_masters.members]
        until(lambda: is_free(masters, name), within=TTL / 2, what="nothing is left on the master that was hung")


@pytest.mark.parametrize("how", ["restarted", "flushed"])
@pytest.mark.parametrize("held", ["read", "write", "both"])
def test_masters_that_forgot_let_nobody_in_before_the_leases_are_over(
    held: str, how: str, start_server: Callable[..., Any], connect: Connect, name: str
) -> None:
    guard = 6.0
    masters = Masters([start_server() for _ in range(3)], guard=guard).let_vote()
    holder, others = (connect(masters.url, ttl=guard, node_timeout=1.0) for _ in range(2))
    warm_up(holder)
    warm_up(others)
    both = holder.rwlock(name, renew=False)
    kept = [lock for side, lock in (("write", both.write), ("read", both.read)) if held in (side, "both")]
    for lock in kept:
        assert lock.acquire(timeout=20)
    forget(masters.members[:2], how)
    wanted = others.rwlock(name).write if held == "read" else others.rwlock(name).read
    is_taken = False
    while any(lock.owned() for lock in kept) and not is_taken:
        with contextlib.suppress(QuorumError):
            is_taken = wanted.acquire(timeout=0)
        assert not (is_taken and any(lock.owned() for lock in kept))
        pause()
    assert is_taken or wanted.acquire(timeout=60)
    wanted.release()


def test_readers_that_a_lone_master_forgot_are_lost(own_server: Server, connect: Connect, name: str) -> None:
    client = connect(own_server.url, ttl=6.0)
    readers = [client.rwlock(name, owner=owner).read for owner in "ab"]
    for reader in readers:
        assert reader.acquire(timeout=20)
    own_server.client().flushall()
    until(lambda: client.statistics().losses == 2, within=20, what="the watchdog finds the losses")
    for reader in readers:
        with pytest.raises(LockLostError):
            reader.release()
    with client.rwlock(name).write:
        pass


def test_holds_of_both_kinds_are_on_the_replica_when_acquire_returns(
    pair: tuple[Server, Server], connect: Connect, name: str
) -> None:
    master, replica = pair
    client = connect(master.url, min_replicas=1, replica_timeout=0.5, ttl=60.0)
    both = client.rwlock(name, timeout=20)
    for _ in range(3):
        with both.write:
            assert replica.cli("HLEN", key_of(name)) == 1
            with both.read:
                assert (replica.cli("HLEN", key_of(name)), replica.cli("ZCARD", f"{key_of(name)}:leases")) == (2, 1)
    assert both.write.acquire()
    replica.stop()
    with pytest.raises(QuorumError, match="0 of 1 replicas"):
        both.read.acquire(timeout=0.5)
    assert levels(both) == (1, 0)
    replica.cont()
    until(lambda: master.client().hlen(key_of(name)) == 1, within=30, what="no reader is left before the lease ends")
    both.write.release()


# A Cluster ------------------------------------------------------------------------------------------------------------


def test_a_read_write_lock_is_on_the_node_that_has_its_slot(
    cluster: ClusterOfServers, connect: Connect, name: str
) -> None:
    client, others = connect(cluster.url), connect(cluster.url)
    for number in range(6):
        both, other = client.rwlock(f"{name}-{number}", timeout=20), others.rwlock(f"{name}-{number}", timeout=20)
        node = cluster.owner(both.name)
        with both.read, other.read:
            assert (node.cli("HLEN", key_of(both.name)), len(both.info().readers)) == (2, 2)
            assert both.read.extend() > 0
        with both.write:
            assert both.read.acquire(timeout=0)
            assert not other.read.acquire(timeout=0)
        with other.read:
            both.read.release()
        assert both.write.acquire()
        both.write.downgrade()
        assert others.force_release(both.name)
        with pytest.raises(LockLostError):
            both.read.extend()
        with pytest.raises(LockLostError):
            both.read.release()
        assert node.cli("EXISTS", key_of(both.name)) == 0


# Costs ----------------------------------------------------------------------------------------------------------------


def test_a_call_costs_one_script_and_no_more(own_server: Server, connect: Connect, name: str) -> None:
    """Counted by the server itself."""
    learn_scripts(own_server)
    client = connect(own_server.url, ttl=120.0)
    warm_up(client)
    both = client.rwlock(name)
    deeds: list[tuple[Callable[[], object], int]] = [
        (both.read.acquire, 1),
        (both.read.acquire, 1),
        (lambda: both.read.ensure(1.0), 0),
        (both.read.extend, 1),
        (both.info, 1),
        (both.read.release, 1),
        (both.read.release, 1),
        (both.write.acquire, 1),
        (both.read.acquire, 1),
        (both.read.release, 1),
        (both.write.downgrade, 2),
        (both.read.release, 1),
    ]
    check_costs(own_server, deeds)


@pytest.mark.parametrize("masters", [1, 3])
async def test_one_writer_s_release_lets_a_thousand_readers_in_with_a_few_scripts_for_each(
    masters: int, start_server: Callable[..., Any], connect: Connect, name: str
) -> None:
    """No reader leaves before all are in: they must be in together."""
    servers = [start_server() for _ in range(masters)]
    url = Masters(servers, guard=TTL).let_vote().url if masters > 1 else servers[0].url
    options = {"ttl": TTL, "node_timeout": 10.0}
    writer = connect(url, **options).rwlock(name).write
    assert writer.acquire(timeout=20)
    async with connecting() as connect_tasks:
        client = connect_tasks(url, **options)
        inside, all_in = 0, asyncio.Event()

        async def read() -> None:
            nonlocal inside
            async with client.rwlock(name).read:
                inside += 1
                if inside == READERS:
                    all_in.set()
                await asyncio.wait_for(all_in.wait(), 10 * SOON)

        tasks = [asyncio.create_task(read()) for _ in range(READERS)]
        first = servers[0].client()
        while first.zcard(f"{key_of(name)}:queue") < READERS:
            await asyncio.sleep(0.05)
        before = [one.calls()["evalsha"] for one in servers]
        assert client.statistics().waiting == READERS
        writer.release()
        await asyncio.gather(*tasks)
        scripts = [one.calls()["evalsha"] - early for one, early in zip(servers, before, strict=True)]
    # One script to get in and one to leave; heartbeats, renewals and second looks may fall into the time, many of them
    # where a master stands still. A herd would take hundreds for each.
    assert max(scripts) <= 20 * READERS, scripts
    masters_clients = [one.client() for one in servers]
    until(lambda: is_free(masters_clients, name), within=TTL, what="all is free")
