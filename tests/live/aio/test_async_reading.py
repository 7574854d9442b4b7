"""Wake-ups of tasks: their loop alone hears them, and delays no other waiter while the loop stands still."""

import asyncio
import select
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from support.heartbeats import without_any_heartbeat
from support.servers import Server
from support.tasks import NODE_TIMEOUT, SOON, Connect, free, until
from support.until import until as wait_until

from relock import AsyncClient, Client, ClientClosedError
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._runtime.aio.loop_hub import LoopHub
from relock._runtime.aio.loop_inbox import Inboxes

SPARE = 5  # messages and scripts, for heartbeats and renewals while a machine is busy with something else


async def takes(client: AsyncClient, name: str) -> None:
    """Wait for the lock, and release it."""
    async with client.lock(name):
        pass


async def queued(client: AsyncClient, name: str, count: int = 1) -> None:
    """Start so many tasks that wait for the lock; wait until they are queued."""
    while len((await client.info(name)).queue) != count:
        await asyncio.sleep(0.002)


async def warm(client: AsyncClient, name: str) -> None:
    """Let the loop subscribe, by a task that waits once."""
    async with client.lock(name):
        task = asyncio.create_task(takes(client, name))
        await queued(client, name)
    await task


@contextmanager
def held(server: Server, name: str) -> Iterator[threading.Event]:
    """Let another client have the lock, until the event is set."""
    may_end, has = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(Client(server.url)) as client, client.lock(name):
            has.set()
            may_end.wait(SOON)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(SOON)
    try:
        yield may_end
    finally:
        may_end.set()
        thread.join(SOON)


def called(server: Server, command: str) -> int:
    """Return how often the server has carried out a command."""
    with server.client() as plain:
        found = plain.info("commandstats").get(f"cmdstat_{command}")
    return int(found["calls"]) if found else 0


def listening(server: Server, client: AsyncClient | Client) -> int:
    """Return the number of subscriptions of the client."""
    with server.client() as plain:
        names = [one["name"] for one in plain.client_list() if one["sub"] == "1"]
    return names.count(client._session.connection_name)


async def test_tasks_hand_a_lock_over_in_one_message_and_on_one_subscription(
    connect: Connect, server: Server, name: str
) -> None:
    client, count = connect(server.url), 20
    await warm(client, name)
    async with client.lock(name):
        tasks = [asyncio.create_task(takes(client, name)) for _ in range(count)]
        await queued(client, name, count)
        before = called(server, "publish"), called(server, "evalsha")
    await asyncio.gather(*tasks)
    assert count <= called(server, "publish") - before[0] <= count + SPARE
    assert called(server, "evalsha") - before[1] <= count + 1 + SPARE, "only releases: no grantee sends a request"
    assert listening(server, client) == 1
    await free(client, name)


async def goes_on_first(client: AsyncClient, name: str) -> str:
    """Return which of two tasks goes on first: the one that has released the lock, or the one that has got it."""
    lock, order = client.lock(name), list[str]()
    await lock.acquire()

    async def wait() -> None:
        async with client.lock(name):
            order.append("has it")

    task = asyncio.create_task(wait())
    await queued(client, name)
    foreground = client._foreground()
    waiters = list(foreground._hub.waiters.values())
    await until(lambda: all(waiter.parks for waiter in waiters), "the waiter sleeps")

    def block() -> None:
        """Let the reply and the message lie unread before the loop turns."""
        connection = next(iter(foreground._links())).connection
        subscribed = foreground._hub.subscriptions[0]._connection
        assert subscribed is not None
        assert connection is not None
        unread = [connection.channel.fileno, subscribed.channel.fileno]
        wait_until(
            lambda: len(select.select(unread, [], [], 0.0)[0]) == 2, within=SOON, what="the reply and the message come"
        )

    asyncio.get_running_loop().call_soon(block)
    await lock.release()
    order.append("has released it")
    await asyncio.wait_for(task, SOON)
    return order[0]


async def test_who_has_the_lock_goes_on_before_who_has_released_it(connect: Connect, server: Server, name: str) -> None:
    """The server works on the releaser's request, while the loop turns to the grantee."""
    client = connect(server.url)
    await warm(client, f"{name}-warm")
    assert [await goes_on_first(client, name) for _ in range(5)] == ["has it"] * 5


async def test_what_comes_for_a_loop_that_stands_still_is_heard_when_it_turns_and_costs_no_connection(
    connect: Connect, server: Server, name: str
) -> None:
    client = connect(server.url)
    await warm(client, f"{name}-warm")
    with held(server, name) as may_end:
        task = asyncio.create_task(takes(client, name))
        await queued(client, name)
        subscribed, published = called(server, "subscribe"), called(server, "publish")
        may_end.set()
        wait_until(lambda: called(server, "publish") > published, within=20, what="a message has come")
        time.sleep(0.1)  # the loop stands still; another thread would read at once
        (waiter,) = client._session.hubs.waiters()
        assert not waiter.handed, "no other thread reads the loop's messages"
    await asyncio.wait_for(task, SOON)
    assert called(server, "subscribe") == subscribed, "the subscription is the same"
    await free(client, name)


async def test_a_thread_that_waits_is_served_while_a_loop_of_its_client_stands_still(
    connect: Connect, server: Server, name: str
) -> None:
    client, threads = connect(server.url), Client(server.url)
    tasks, served = AsyncClient(threads), threading.Event()
    await warm(tasks, f"{name}-warm")

    def wait() -> None:
        with threads.lock(name):
            served.set()

    with held(server, f"{name}-of-a-task"), held(server, name) as may_end:
        waiting = asyncio.create_task(takes(tasks, f"{name}-of-a-task"))
        await queued(client, f"{name}-of-a-task")
        thread = threading.Thread(target=wait)
        thread.start()
        await queued(client, name)
        threading.Timer(0.1, may_end.set).start()
        assert served.wait(SOON), "the thread is served while the loop stands still"
        assert not waiting.done()
    await asyncio.wait_for(waiting, SOON)
    thread.join(SOON)
    await tasks.close()
    threads.close()
    await free(client, name)


async def test_tasks_hand_a_lock_over_while_another_loop_of_their_client_stands_still(
    connect: Connect, server: Server, name: str
) -> None:
    client = connect(server.url)
    await warm(client, f"{name}-warm")
    handed: list[float] = []

    async def hand_over() -> None:
        async with client.lock(name):
            tasks = [asyncio.create_task(takes(client, name)) for _ in range(5)]
            await queued(client, name, 5)
        await asyncio.gather(*tasks)
        handed.append(time.monotonic())

    with held(server, f"{name}-of-another"):
        waiting = asyncio.create_task(takes(client, f"{name}-of-another"))
        await queued(client, f"{name}-of-another")
        other = threading.Thread(target=lambda: asyncio.run(hand_over()))
        other.start()
        other.join(SOON)  # the loop stands still, here
        assert handed
        assert not waiting.done()
    await asyncio.wait_for(waiting, SOON)
    await free(client, name)


async def test_a_task_whose_client_is_closed_gives_back_what_lies_unread_for_it(server: Server, name: str) -> None:
    """The client for threads goes on, and so does its janitor: no caller has to wait for the lease of that grant."""
    with Client(server.url, node_timeout=NODE_TIMEOUT) as threads, Client(server.url) as others:
        client = AsyncClient(threads)
        await warm(client, f"{name}-warm")
        held = others.lock(name, owner="holder")
        held.acquire()
        task = asyncio.create_task(takes(client, name))
        await queued(client, name)
        hub = client._foreground()._hub
        await until(lambda: all(waiter.parks for waiter in hub.waiters.values()), "the waiter sleeps")
        held.release()  # the loop stands still, here
        connection = hub.subscriptions[0]._connection
        assert connection is not None
        wait_until(
            lambda: select.select([connection.channel.fileno], [], [], 0.0)[0], within=SOON, what="the grant comes"
        )
        await client.close()
        assert not hub.waiters, "the waiter left while its hub was there"
        with pytest.raises(ClientClosedError):
            await task


def closed_loop_that_waited(client: AsyncClient, name: str) -> LoopHub:
    """Let a task wait for the lock on a loop that is closed then; return the hub."""

    async def wait() -> LoopHub:
        await warm(client, name)
        return client._foreground()._hub

    return asyncio.run(wait())


@without_any_heartbeat()  # one finds that the loop is closed, and stops its hub
def test_a_client_that_is_closed_hears_what_comes_for_a_loop_that_nobody_has_found_closed(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grants may be on their way, so the subscription stays until all published messages have come."""
    threads = Client(server.url, ttl=120, node_timeout=30)  # for as long, a message may be on its way
    session, given_back = threads._session, list[bytes]()
    hub = closed_loop_that_waited(AsyncClient(threads), name)
    monkeypatch.setattr(session.reports, "unclaimed", lambda _keys, owner, _token: given_back.append(owner))
    catch_up = session.hubs.catch_up

    def publish_first(until: float) -> None:
        monkeypatch.setattr(session.hubs, "catch_up", catch_up)  # a slow closing catches up several times
        with server.client() as plain:
            (channel,) = plain.pubsub_channels(f"*{hub.client}")
            plain.publish(channel, b"grant uuid hold.1 200 100 3000 run:repl a")
        catch_up(until)

    monkeypatch.setattr(session.hubs, "catch_up", publish_first)
    threads.close()
    assert given_back == [b"%b:uuid~hold.1" % hub.client.encode()]
    assert listening(server, threads) == 0


def test_a_hub_that_a_loop_takes_over_while_its_client_is_closed_is_stopped(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Client(server.url, node_timeout=NODE_TIMEOUT)
    client, move_to = AsyncClient(threads), LoopHub.move_to

    def close_first(hub: LoopHub, inboxes: Inboxes) -> None:
        closes = threading.Thread(target=threads.close)
        closes.start()
        closes.join(SOON)
        move_to(hub, inboxes)

    monkeypatch.setattr(LoopHub, "move_to", close_first)

    async def come_late() -> None:
        with pytest.raises(ClientClosedError):
            await client.lock(name).acquire()
        await until(lambda: listening(server, threads) == 0, "no subscription is left")

    with without_any_heartbeat():  # a heartbeat stops the hub of a closed loop
        closed_loop_that_waited(client, name)
        asyncio.run(come_late())


RUNS = 100


def test_loops_one_after_another_subscribe_hardly_ever_and_leave_no_connection(server: Server, name: str) -> None:
    """Each loop waits once, and is closed with its connections: the next one takes over the subscription."""
    client, holder = AsyncClient(server.url, node_timeout=5.0), Client(server.url)
    held = holder.lock(name, owner="holder")

    async def wait_once() -> None:
        task = asyncio.create_task(takes(client, name))
        await queued(client, name)
        await asyncio.to_thread(held.release)
        await task

    try:
        held.acquire()
        asyncio.run(wait_once())
        subscribed, begin = called(server, "subscribe"), time.monotonic()
        with server.client() as plain:
            opened = plain.info("stats")["total_connections_received"]
        for _ in range(RUNS):
            held.acquire()
            asyncio.run(wait_once())
        anew = 1 + (time.monotonic() - begin) / HEARTBEAT_SECONDS  # the janitor closes those without a loop
        assert called(server, "subscribe") - subscribed <= anew
        with server.client() as plain:
            links = plain.info("stats")["total_connections_received"] - opened - 3
        assert links <= RUNS + 2 * anew, "each loop opens one, and there are a few for subscriptions and heartbeats"
        wait_until(
            lambda: listening(server, client) == 0, within=SOON, what="no subscription is left for a closed loop"
        )
    finally:
        asyncio.run(client.close())
        holder.close()
