"""Connections of a loop that end while nothing is under way on them, above all while the loop does not turn."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.masters import Deployment
from support.tasks import SOON, Connect, until

from relock import AsyncClient, MasterDown, Released, ReleaseUnconfirmed
from relock._runtime.aio.link import QUIET_SECONDS, Link

pytestmark = pytest.mark.every_quorum

Use = Callable[[AsyncClient, str], Awaitable[object]]


def links_of(client: AsyncClient) -> list[Link]:
    (foreground,) = client._foregrounds.values()
    return list(foreground._links())


def addresses_of(client: AsyncClient) -> list[str]:
    """Return the servers' names for the connections of the client's loop."""
    found = []
    for link in links_of(client):
        assert link.connection is not None
        sock: Any = link.connection.raw._sock  # type: ignore[attr-defined]
        found.append("{}:{}".format(*sock.getsockname()))
    return found


def listed(server: Deployment) -> set[str]:
    """Return the client connections that the servers list."""
    return {one["addr"] for member in server.members for one in member.client().client_list()}


def kill(server: Deployment, addresses: list[str]) -> None:
    """Let the servers end these connections."""
    for member in server.members:
        for one in member.client().client_list():
            if one["addr"] in addresses:
                member.client().client_kill_filter(addr=one["addr"])


def stand_still_until_gone(server: Deployment, addresses: list[str]) -> None:
    """Block the loop until the servers have ended these connections, and for longer than a link trusts one."""
    end = time.monotonic() + SOON
    while listed(server) & set(addresses):
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(2 * QUIET_SECONDS)


async def connected(client: AsyncClient, name: str) -> list[str]:
    """Use the client until its loop is connected to each master and waits for no reply; return the connections."""
    async with client.lock(f"{name}-first"):
        await until(lambda: all(link.connection is not None for link in links_of(client)), "all are connected")
    await until(lambda: not any(link.load for link in links_of(client)), "all have answered")
    return addresses_of(client)


async def told(client: AsyncClient, events: list[Any], name: str) -> list[Any]:
    """Return all events so far that tell of trouble, which come in their order, on another thread."""
    async with client.lock(f"{name}-last"):
        pass
    await until(
        lambda: any(isinstance(one, Released) and one.lock == f"{name}-last" for one in events), "the event is told"
    )
    return [event for event in events if isinstance(event, MasterDown | ReleaseUnconfirmed)]


async def acquire(client: AsyncClient, name: str) -> None:
    assert await client.lock(name).acquire(blocking=False)


async def release(client: AsyncClient, name: str) -> None:
    await client.lock(name, owner="holder").release()
    assert not (await client.info(name)).held


async def look(client: AsyncClient, name: str) -> None:
    assert (await client.info(name)).held


USES: dict[str, Use] = {"acquire": acquire, "release": release, "info": look}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


async def hold(client: AsyncClient, name: str, use: Use) -> None:
    if use is not acquire:
        assert await client.lock(name, owner="holder").acquire()


@each_use
async def test_a_connection_that_ended_while_the_loop_stood_still_is_not_used(
    use: Use, connect: Connect, own_server: Deployment, name: str
) -> None:
    events: list[Any] = []
    client = connect(own_server.url, patience=0.0, on_event=events.append)
    await hold(client, name, use)
    addresses = await connected(client, name)
    kill(own_server, addresses)
    stand_still_until_gone(own_server, addresses)
    await use(client, name)
    assert not await told(client, events, name)


@each_use
async def test_a_server_that_closes_idle_connections_is_no_event_while_the_loop_turns(
    use: Use, connect: Connect, own_server: Deployment, name: str
) -> None:
    events: list[Any] = []
    client = connect(own_server.url, patience=0.0, on_event=events.append)
    await hold(client, name, use)
    kill(own_server, await connected(client, name))
    await until(lambda: all(link.connection is None for link in links_of(client)), "the loop has seen their ends")
    assert all(master.down is None for master in client.statistics().masters)
    await use(client, name)
    assert not await told(client, events, name)


async def test_the_servers_own_timeout_costs_no_call(connect: Connect, own_server: Deployment, name: str) -> None:
    events: list[Any] = []
    client = connect(own_server.url, patience=0.0, on_event=events.append)
    for member in own_server.members:
        member.client().config_set("timeout", 3)  # the loop may stand still for less than that
    for i in range(2):
        addresses = await connected(client, f"{name}-{i}")
        stand_still_until_gone(own_server, addresses)
        assert await client.lock(f"{name}-{i}").acquire(blocking=False)
    assert not await told(client, events, name)
