"""Who hears the wake-ups of tasks: their loop, and others for it while it stands still."""

import asyncio
import select
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from support.scene import is_led_by
from support.servers import Server
from support.tasks import SOON, Connect, free, until
from support.until import until as wait_until

from relock import AsyncClient, Client
from relock._runtime.wakeups.reading import STUCK_SECONDS


async def takes(client: AsyncClient, name: str) -> None:
    """Waits for the lock, and lets it go."""
    async with client.lock(name):
        pass


async def leading(client: AsyncClient, name: str) -> None:
    """Has its loop read: some task waits, and the thread of the subscription has heard one message."""
    lock, reader, reading = client.lock(name), client._foreground()._reader, client._session.hub.reading
    while not is_led_by(reading, reader):
        async with lock:
            task = asyncio.create_task(takes(client, name))
            while not (await lock.info()).queue:
                await asyncio.sleep(0.002)
        await task


@contextmanager
def held(server: Server, name: str) -> Iterator[threading.Event]:
    """Another client has the lock, until the event is set."""
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


def subscriptions(server: Server) -> list[str]:
    with server.client() as plain:
        return [client["id"] for client in plain.client_list() if client["sub"] == "1"]


async def test_the_loop_reads_while_its_tasks_hand_a_lock_over(connect: Connect, server: Server, name: str) -> None:
    client = connect(server.url)
    await leading(client, name)
    await free(client, name)


async def goes_on_first(client: AsyncClient, name: str) -> str | None:
    """Return which of two tasks goes on first: the one that has released the lock, or the one that has it then.

    None if the loop did not find both messages at once: a thread has heard of the grant before.
    """
    lock, order, both = client.lock(name), list[str](), list[bool]()
    await lock.acquire()

    async def wait() -> None:
        async with client.lock(name):
            order.append("has it")

    task = asyncio.create_task(wait())
    reader = client._foreground()._reader
    await until(lambda: client._session.hub.waiters and reader._watches, "it waits, and its loop reads")

    def block() -> None:
        """Let the reply and the message lie unread before the loop turns."""
        connection = next(iter(client._foreground()._links())).connection
        assert connection is not None
        unread = [connection.channel.fileno, *(ear.channel.fileno for ear in reader._ears)]

        def have_come() -> bool:
            return len(select.select(unread, [], [], 0.0)[0]) == len(unread)

        def is_handed() -> bool:
            return any(waiter.handed for waiter in client._session.hub.waiters.values())

        wait_until(lambda: have_come() or is_handed(), within=SOON, what="the reply and the message come")
        both.append(have_come())

    asyncio.get_running_loop().call_soon(block)
    await lock.release()
    order.append("has released it")
    await asyncio.wait_for(task, SOON)
    return order[0] if both == [True] else None


@pytest.mark.xfail(
    strict=False, reason="in some processes, after other tests, the releaser goes on first: not explained"
)
async def test_who_has_the_lock_goes_on_before_who_has_released_it(connect: Connect, server: Server, name: str) -> None:
    """The server works on what that one sends, while the loop turns to the other.

    A thread of the client may take the message away from the loop at the last moment, so most of the tries count.
    """
    client = connect(server.url)
    await leading(client, f"{name}-warm")
    firsts: list[str] = []
    while len(firsts) < 9:
        first = await goes_on_first(client, name)
        firsts += [] if first is None else [first]
    assert firsts.count("has it") > 6, firsts


@pytest.mark.parametrize("seconds", [0.8 * STUCK_SECONDS, 2 * STUCK_SECONDS])
async def test_what_comes_for_a_loop_that_stands_still_is_heard_by_a_thread_and_costs_no_connection(
    connect: Connect, server: Server, name: str, seconds: float
) -> None:
    client = connect(server.url)
    await leading(client, f"{name}-warm")
    with held(server, name) as may_end:
        task = asyncio.create_task(takes(client, name))
        waiters = client._session.hub.waiters
        await until(lambda: waiters and client._foreground()._reader._watches, "it waits, and its loop reads")
        before = subscriptions(server)
        may_end.set()
        time.sleep(seconds)  # the loop stands still, and goes on doing so until a thread has heard
        wait_until(lambda: all(waiter.handed for waiter in waiters.values()), within=SOON, what="a thread has heard")
    await asyncio.wait_for(task, SOON)
    assert [one for one in subscriptions(server) if one in before], "the subscription is the same"
    await free(client, name)


async def test_a_thread_that_waits_is_served_while_a_loop_of_its_client_stands_still(
    connect: Connect, server: Server, name: str
) -> None:
    client, threads = connect(server.url), Client(server.url)
    tasks, served = AsyncClient(threads), threading.Event()
    await leading(tasks, f"{name}-warm")

    def wait() -> None:
        with threads.lock(name):
            served.set()

    with held(server, f"{name}-of-a-task"), held(server, name) as may_end:
        waiting = asyncio.create_task(takes(tasks, f"{name}-of-a-task"))
        reader = tasks._foreground()._reader
        await until(lambda: is_led_by(threads._session.hub.reading, reader), "the loop reads")
        thread = threading.Thread(target=wait)
        thread.start()
        await until(lambda: len(threads._session.hub.waiters) == 2, "the thread waits")
        threading.Timer(0.1, may_end.set).start()
        assert served.wait(SOON), "while the loop stands still, here"
        assert not waiting.done()
    await asyncio.wait_for(waiting, SOON)
    thread.join(SOON)
    await tasks.close()
    threads.close()
    await free(client, name)
