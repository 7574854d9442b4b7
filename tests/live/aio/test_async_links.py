"""The way of a loop to its masters: its capacity, its connections, and a slow loop that blames no master."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.masters import Deployment
from support.servers import Server
from support.tasks import SOON, Connect, free, until
from support.until import until as wait_until

from relock import AsyncClient, MasterDown, QuorumError
from relock._core.asking import Round
from relock._core.effects import Exchange
from relock._core.quorum import is_attempt_certain
from relock._runtime.aio.link import Link
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.pool import Pool

pytestmark = pytest.mark.every_quorum


async def use(client: AsyncClient, name: str) -> None:
    async with client.lock(name):
        pass


async def test_many_tasks_that_come_before_there_is_a_connection_keep_within_the_limit(
    connect: Connect, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, request, most = connect(server.url), Connection.request, [0]

    def count(self: Connection, round_: Any) -> None:
        request(self, round_)
        most[0] = max(most[0], len(self.in_flight))

    monkeypatch.setattr(Connection, "request", count)
    await asyncio.gather(*[use(client, f"{name}-{i}") for i in range(1000)])
    assert 1 < most[0] <= Link.in_flight_max
    assert not client._session.holds.all()


def scripts(member: Server) -> int:
    """Return how many scripts the server has run for clients."""
    return member.calls()["evalsha"]


def has_run(member: Server, count: int) -> bool:
    return scripts(member) >= count


async def test_a_loop_that_stood_still_takes_all_that_lies_unread_before_it_judges(
    connect: Connect, server: Deployment, name: str
) -> None:
    """The answers need more than one read, and the master sent all of them in time."""
    events: list[Any] = []
    client = connect(server.url, node_timeout=3.0, ttl=15.0, patience=0.0, on_event=events.append)
    await client.lock(name, owner="holder").acquire()
    waits = [asyncio.create_task(use(client, name)) for _ in range(60)]
    while len((await client.info(name)).queue) < 60:
        await asyncio.sleep(0.01)
    before = [scripts(member) for member in server.members]
    looks = [asyncio.create_task(client.info(name)) for _ in range(Link.in_flight_max // 2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(3.1)  # longer than the node timeout
    for member, ran in zip(server.members, before, strict=True):
        wait_until(partial(has_run, member, ran + len(looks)), within=SOON, what="the master has answered all")
    for info in await asyncio.gather(*looks):
        assert len(info.queue) == 60
    assert not [event for event in events if isinstance(event, MasterDown)]
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await client.lock(name, owner="holder").release()
    await free(client, name)


async def test_a_loop_whose_executor_is_busy_connects_and_closes(
    connect: Connect, server: Deployment, name: str
) -> None:
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        waker, sleeper = os.pipe()
        busy = loop.run_in_executor(None, os.read, waker, 1)
        client = connect(server.url)
        try:
            async with asyncio.timeout(SOON):
                await use(client, name)
                await client.check()
                await client.close()
                is_over.set()
        finally:
            os.write(sleeper, b".")
            await busy
    assert is_over.is_set()


async def test_a_connection_that_is_given_up_is_closed_when_it_owes_nothing(
    connect: Connect, server: Deployment, name: str
) -> None:
    """Timers of the connection are gone, too, because the number of its socket may soon be another socket's."""
    client = connect(server.url)
    await use(client, name)
    (foreground,) = client._foregrounds.values()
    links = list(foreground._links())
    await until(lambda: all(link.is_connected for link in links), "all masters are connected")
    old = [link.connection for link in links]
    calls = [asyncio.create_task(use(client, f"{name}-{i}")) for i in range(3)]
    await asyncio.sleep(0)
    for link, connection in zip(links, old, strict=True):
        assert connection is not None
        assert connection.in_flight
        connection.shown.is_retired = True
        assert not link.is_connected
        assert link._retired
    await asyncio.gather(*calls)
    await until(lambda: not any(link._retired for link in links), "all replies have come")
    await use(client, name)
    assert not {link.connection for link in links} & set(old)


async def test_whoever_waits_for_a_connection_hears_whatever_kept_it_from_being_opened(
    connect: Connect, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unexpected errors are told, too, and also reach the loop's handler of exceptions."""
    client, heard = connect(server.url, patience=0.0), []

    def fail(_: Pool) -> Connection:
        raise ZeroDivisionError("there is always one more error")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
    monkeypatch.setattr(Pool, "open_for_loop", fail)
    with pytest.raises(QuorumError, match="there is always one more error"):
        await client.lock(name).acquire()
    monkeypatch.undo()
    assert {type(error) for error in heard} == {ZeroDivisionError}
    await use(client, name)


def _retire(link: Link, connection: Connection) -> None:
    connection.shown.is_retired = True


def _lead_elsewhere(link: Link, connection: Connection) -> None:
    connection.shown.incarnation = b"another server's"


def _fill(link: Link, connection: Connection) -> None:
    connection.in_flight.extend([connection] * Link.in_flight_max)  # type: ignore[list-item]


def _keep_waiting(link: Link, connection: Connection) -> None:
    link.waiting.append(connection)  # type: ignore[arg-type]


@pytest.mark.parametrize("obstacle", [_retire, _lead_elsewhere, _fill, _keep_waiting])
async def test_whatever_is_in_the_way_of_the_short_way_is_left_to_the_general_one(
    server: Deployment, name: str, obstacle: Callable[[Link, Connection], None]
) -> None:
    if len(server.members) > 1:
        pytest.skip("only a lone master is asked straight")
    async with AsyncClient(server.url) as client:
        lock = client.lock(name)
        await lock.locked()
        link, spec, now = client._foreground()._lone, lock._spec, client._session.clock()
        assert link is not None
        connection = link.connection
        assert connection is not None
        obstacle(link, connection)
        until = now + spec.node_timeout
        exchange = Exchange(spec.templates.acquire, spec.keys, b"a:b", now, until, is_attempt_certain)
        assert not link.send_at_once(Round(exchange, now, [link.master.no_reply_yet]))
        link.waiting.clear()
        connection.in_flight.clear()
        assert await lock.acquire(timeout=0)
        await lock.release()
