"""Tasks on a Redis Cluster: on the node that has the slot, also while slots move."""

import asyncio
import socket
import time

import pytest
import redis.asyncio
from support.cluster import ClusterOfServers, names_in, slot_of
from support.tasks import SOON, connecting, free, until

from relock import AsyncClient, MasterDown, QuorumError
from relock._runtime.aio.link import QUIET_SECONDS


async def take(client: AsyncClient, name: str) -> None:
    async with client.lock(name, timeout=SOON):
        pass


@pytest.mark.every_server
async def test_locks_on_all_nodes_are_taken_nested_renewed_and_released(cluster: ClusterOfServers, name: str) -> None:
    async with connecting() as connect:
        client, names = connect(cluster.url, ttl=6.0, node_timeout=2.0), [f"{name}-{i}" for i in range(12)]
        locks = [client.lock(one) for one in names]
        assert all(await asyncio.gather(*[lock.acquire() for lock in locks]))
        assert all(await asyncio.gather(*[lock.acquire() for lock in locks]))
        await until(lambda: client.statistics().renewals >= len(locks), "all are renewed")
        for lock in locks:
            assert cluster.owner(lock.name).cli("EXISTS", f"lock:{{{lock.name}}}") == 1
            assert await lock.extend(30.0) > 20.0
            assert (await lock.info()).hold_count == 2
            await lock.release()
            await lock.release()
            await free(client, lock.name)
        assert [one async for one in client.names(f"{name}-*")] == []


async def test_with_the_settings_of_a_cluster_client_of_redis_asyncio(cluster: ClusterOfServers, name: str) -> None:
    """Clients of a cluster know only one node before their first use."""
    node = redis.asyncio.cluster.ClusterNode("127.0.0.1", cluster.members[0].port)
    given = redis.asyncio.RedisCluster(startup_nodes=[node])
    async with connecting() as connect:
        client = connect(given)
        for number in range(6):
            await take(client, f"{name}-{number}")
    await (given.aclose if hasattr(given, "aclose") else given.close)()  # redis-py 5.0.0 has only `close`


@pytest.mark.every_server
async def test_waiters_are_served_in_their_order_and_a_cancelled_one_leaves(
    cluster: ClusterOfServers, name: str
) -> None:
    served: list[int] = []

    async def wait(client: AsyncClient, number: int) -> None:
        async with client.lock(name):
            served.append(number)

    async with connecting() as connect:
        clients = [connect(cluster.url_by(server)) for server in cluster.members]
        holder = clients[0].lock(name, owner="holder")
        await holder.acquire()
        waits = []
        for number in range(6):
            waits.append(asyncio.create_task(wait(clients[number % 3], number)))
            while len((await clients[0].info(name)).queue) <= number:
                await asyncio.sleep(0.002)
        waits[2].cancel()
        await holder.release()
        await asyncio.gather(*waits, return_exceptions=True)
        assert served == [0, 1, 3, 4, 5]
        await free(clients[0], name)


@pytest.mark.every_server
async def test_nobody_is_inside_together_while_a_slot_moves(cluster: ClusterOfServers, name: str) -> None:
    """Calls are redirected while the slot moves, first once and then for good."""
    slot = slot_of(name)
    names = [one for one, _ in zip(names_in(slot), range(3), strict=False)]
    source = cluster.owner(name)
    target = next(server for server in cluster.members if server is not source)
    inside, tokens, is_over = dict.fromkeys(names, 0), {one: list[int]() for one in names}, asyncio.Event()

    async def work(client: AsyncClient, one: str) -> None:
        while not is_over.is_set():
            async with client.lock(one, timeout=SOON) as lock:
                inside[one] += 1
                assert inside[one] == 1
                tokens[one].append(lock.token or 0)
                await asyncio.sleep(0)
                inside[one] -= 1

    async with connecting() as connect:
        clients = [connect(cluster.url_by(server)) for server in cluster.members]
        works = [asyncio.create_task(work(client, one)) for client in clients for one in names]
        for there, back in ((source, target), (target, source)):
            await until(lambda: all(len(granted) > 3 for granted in tokens.values()), "all are at work")
            await asyncio.to_thread(cluster.begin_to_move, slot, there, back)
            await asyncio.sleep(0.05)
            await asyncio.to_thread(cluster.move_all_keys, slot, there, back)
            await asyncio.to_thread(cluster.finish_moving, slot, there, back)
            for granted in tokens.values():
                assert granted == sorted(set(granted))
                granted.clear()
        is_over.set()
        await asyncio.gather(*works)


async def test_no_node_at_all_is_no_quorum(name: str) -> None:
    client = AsyncClient("redis+cluster://127.0.0.1:1", node_timeout=0.2, patience=0.0)
    with pytest.raises(QuorumError):
        await client.lock(name).acquire()
    await client.close()


async def test_connections_to_nodes_that_end_while_the_loop_stands_still_are_not_used(
    cluster: ClusterOfServers, name: str
) -> None:
    names, events = [f"{name}-{i}" for i in range(12)], list[object]()
    async with connecting() as connect:
        client = connect(cluster.url, patience=0.0, on_event=events.append)
        for one in names:
            await take(client, one)
        (foreground,) = client._foregrounds.values()
        for link in foreground._links():
            assert link.connection is not None
            sock = link.connection.raw._sock  # type: ignore[attr-defined]
            sock.shutdown(socket.SHUT_RDWR)  # as if the node had closed the connection
        time.sleep(2 * QUIET_SECONDS)
        for one in names:
            assert await client.lock(one).acquire(blocking=False)
        assert not [event for event in events if isinstance(event, MasterDown)]
