"""The end of an `AsyncClient`, of a loop that uses it, and of the calls that its tasks had under way."""

import asyncio
import gc
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT, SOON, Connect, free, until
from support.urls import options_for

from relock import AsyncClient, Client, ClientClosedError, Loss, LossCode
from relock._core.call_record import CallRecord

pytestmark = pytest.mark.every_quorum


async def test_a_closed_client_ends_its_waits(connect: Connect, server: Deployment, name: str) -> None:
    client, others = connect(server.url), connect(server.url)
    await others.lock(name, owner="other").acquire()
    waiting = asyncio.create_task(client.lock(name).acquire())
    while not (await others.info(name)).queue:
        await asyncio.sleep(0.002)
    await client.close()
    with pytest.raises(ClientClosedError):
        await waiting
    with pytest.raises(ClientClosedError):
        await client.lock(name).acquire()
    await others.lock(name, owner="other").release()
    await free(others, name)


async def test_a_client_that_is_closed_gives_back_what_its_calls_get(
    connect: Connect, server: Deployment, name: str
) -> None:
    """The requests are on their way when the client is closed."""
    client, others = connect(server.url), connect(server.url)
    async with client.lock(f"{name}-warm"):
        pass
    calls = [asyncio.create_task(client.lock(f"{name}-{i}").acquire()) for i in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    results = await asyncio.gather(*calls, return_exceptions=True)
    await closing
    for i, result in enumerate(results):
        if isinstance(result, ClientClosedError):
            await free(others, f"{name}-{i}")
        else:
            assert result is True, "the reply came before the client was closed"
    assert any(isinstance(result, ClientClosedError) for result in results)


async def test_a_client_that_was_given_another_one_ends_its_waits_alone(server: Deployment, name: str) -> None:
    """Waits for a lock end, and waits at the gate of an owner."""
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client = AsyncClient(threads)
        threads.lock(name, owner="other").acquire()
        inside = CallRecord()
        assert threads._session.gates.try_enter(inside, (f"{name}-2", ("owner", "job")), "a thread")
        waits = [
            asyncio.create_task(client.lock(name).acquire()),
            asyncio.create_task(client.lock(f"{name}-2", owner="job").acquire()),
        ]
        await until(lambda: client.statistics().waiting == 1, "one is in the queue")
        await asyncio.wait_for(client.close(), SOON)
        for wait in waits:
            with pytest.raises(ClientClosedError):
                await wait
        threads._session.gates.leave(inside)
        threads.lock(name, owner="other").release()
        await asyncio.to_thread(wait_until_free, threads, name)
        assert not threads._session.foregrounds
        with threads.lock(name):
            pass


def wait_until_free(client: Client, name: str) -> None:
    with client.lock(name, timeout=SOON):
        pass


async def test_a_client_that_is_closed_takes_the_connections_of_the_loops_that_use_it_along(
    server: Deployment, name: str
) -> None:
    """No call closes the `AsyncClient` itself."""
    threads = Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))
    async with AsyncClient(threads).lock(name):
        pass
    masters = threads._session.masters
    assert any(master.pool.loop_connections for master in masters)
    await asyncio.to_thread(threads.close)
    await until(lambda: not threads._session.foregrounds, "the loop has closed its links")
    await until(lambda: not any(master.pool.loop_connections for master in masters), "nothing is left")


async def test_tasks_that_sleep_end_with_a_client_for_threads_that_is_closed(
    server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks wait for a subscription that no master confirms, and one of them for its owner's turn behind that."""
    threads = Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))
    tasks = AsyncClient(threads)
    hub = tasks._foreground()._hub
    monkeypatch.setattr(hub, "is_confirmed", lambda: False)
    monkeypatch.setattr(type(hub.subscriptions[0]), "ensure", lambda _: None)
    await tasks.lock(name, owner="holder").acquire()

    async def wait() -> None:
        await tasks.lock(name, owner="job").acquire()

    waits = [asyncio.create_task(wait()) for _ in range(2)]
    foreground = tasks._foreground()
    await until(lambda: len(foreground._idle) == 2, "both sleep")
    await asyncio.to_thread(threads.close)
    for error in await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), SOON):
        assert isinstance(error, ClientClosedError)
    await tasks.close()


async def test_a_hold_is_released_though_the_client_of_its_task_was_closed(server: Deployment, name: str) -> None:
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client = AsyncClient(threads)
        lock = client.lock(name)
        await lock.acquire()
        await client.close()
        with pytest.raises(ClientClosedError):
            await lock.acquire()
        await lock.release()
        assert not lock.owned()
        await asyncio.to_thread(wait_until_free, threads, name)
        assert not threads._session.foregrounds


async def test_a_release_that_is_cancelled_before_it_began_is_carried_out(client: AsyncClient, name: str) -> None:
    lock = client.lock(name)
    await lock.acquire()
    release = asyncio.create_task(lock.release())
    release.cancel()
    with pytest.raises(asyncio.CancelledError):
        await release
    assert not lock.owned()
    await free(client, name)


def test_what_the_tasks_of_a_closed_loop_had_under_way_is_ended(server: Deployment, name: str) -> None:
    """Tasks of the loop are kept alive, not cancelled: one has a place in the queue, one a grant, one a request."""
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client, loop = AsyncClient(threads), asyncio.new_event_loop()
        threads.lock(name, owner="other").acquire()
        tasks: list[asyncio.Task[bool]] = []

        async def wait() -> None:
            tasks.append(asyncio.create_task(client.lock(name).acquire()))
            await until(lambda: client.statistics().waiting == 1, "the task is in the queue")
            tasks.append(asyncio.create_task(client.lock(f"{name}-2").acquire()))
            await asyncio.sleep(0)

        loop.run_until_complete(wait())
        pending = [task for task in tasks if not task.done()]  # on a busy machine, the second may have been granted
        loop.close()
        threads.lock(name, owner="other").release()
        wait_until_free(threads, name)

        async def go_on() -> None:
            async with client.lock(name), client.lock(f"{name}-2"):
                pass
            await client.close()

        asyncio.run(go_on())
        assert client.statistics().waiting == 0
        assert tasks[0] in pending
        assert not any(task.done() for task in pending)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("stall_limit", [None, 60.0])
def test_the_hold_of_a_task_whose_loop_is_closed_is_lost(
    server: Deployment, name: str, stall_limit: float | None
) -> None:
    """Tasks of a closed loop never run again, so the owner has ended, though the task is kept alive."""
    losses: queue.SimpleQueue[Loss] = queue.SimpleQueue()
    options = options_for(server.url, {"ttl": 3.0, "on_lost": losses.put})
    client, loop = AsyncClient(server.url, stall_limit=stall_limit, **options), asyncio.new_event_loop()

    async def work() -> None:
        await client.lock(name).acquire()
        await asyncio.sleep(3600)

    task = loop.create_task(work())
    loop.run_until_complete(until(lambda: client.statistics().held, "the task has the lock"))
    loop.close()
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as others:
        wait_until_free(others, name)
    assert losses.get(timeout=SOON).code == LossCode.OWNER_ENDED
    assert not client._session.foregrounds, "nothing is left of the loop"
    asyncio.run(client.close())
    task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("cancel_on_lost", [False, True])
def test_a_body_that_is_closed_after_its_loop_gives_the_lock_back(
    server: Deployment, name: str, cancel_on_lost: bool
) -> None:
    """An ``owner=`` does not end with its task, so otherwise the hold would be renewed without end."""
    client, loop = AsyncClient(server.url, **options_for(server.url, {})), asyncio.new_event_loop()

    async def work() -> None:
        async with client.lock(name, owner="job", cancel_on_lost=cancel_on_lost):
            await asyncio.sleep(3600)

    body = work()
    task = loop.create_task(body)
    loop.run_until_complete(until(lambda: client.statistics().held, "the task has the lock"))
    loop.close()
    with pytest.raises(RuntimeError, match="no event loop of asyncio runs"):
        body.close()
    with Client(server.url, **options_for(server.url, {})) as others:
        wait_until_free(others, name)
    asyncio.run(client.close())
    task._log_destroy_pending = False  # type: ignore[attr-defined]


KINDS: dict[str, Callable[[AsyncClient, str], Any]] = {
    "lock": lambda client, name: client.lock(name, cancel_on_lost=True),
    "several": lambda client, name: client.lock_all([name]),
    "reader": lambda client, name: client.rwlock(name).read,
    "semaphore": lambda client, name: client.semaphore(name, 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_same", [True, False])
def test_a_body_that_is_collected_while_another_task_is_inside_leaves_the_others_hold_alone(
    server: Deployment, name: str, kind: str, *, is_same: bool
) -> None:
    """The collector closes the body of a task that never goes on, wherever it runs: here in a task of another loop."""
    client, loop = AsyncClient(server.url, **options_for(server.url, {"ttl": 3.0})), asyncio.new_event_loop()
    first = KINDS[kind](client, name)
    second = first if is_same else KINDS[kind](client, name)

    async def work() -> None:
        async with first:
            await asyncio.sleep(3600)

    async def work_beside(body: Coroutine[Any, Any, None]) -> None:
        async with second as entered:
            with pytest.raises(RuntimeError):  # a NotOwnedError is one, too
                body.close()
            assert entered.owned()
        assert not entered.owned()

    body = work()
    task = loop.create_task(body)
    loop.run_until_complete(until(lambda: client.statistics().held, "the first task is inside"))
    loop.close()
    asyncio.run(work_beside(body))
    asyncio.run(client.close())
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_loops_that_use_one_client_end_with_it(server: Deployment, name: str) -> None:
    client = AsyncClient(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))
    is_used, ends = threading.Semaphore(0), []

    async def use() -> None:
        try:
            while True:
                async with client.lock(name):
                    is_used.release()
        except ClientClosedError as error:
            ends.append(error)

    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(9):
        assert is_used.acquire(timeout=SOON)

    async def close() -> None:
        await asyncio.gather(client.close(), client.close())
        await client.close()

    asyncio.run(close())
    for thread in threads:
        thread.join(SOON)
    assert len(ends) == 3
    assert not client._session.foregrounds


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_fork_inside_a_running_loop(client: AsyncClient, name: str) -> None:
    """The child's client holds nothing; the parent's loop still gets its messages."""
    lock = client.lock(name)

    async def wait() -> None:
        async with client.lock(name):
            pass

    await lock.acquire()
    waiting = asyncio.create_task(wait())
    await until(lambda: client.statistics().waiting == 1, "the task is in the queue")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asyncio._set_running_loop(None)
            status = asyncio.run(work_in_child(client, name))
            gc.collect()
        finally:
            os._exit(status)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0
    assert await lock.extend() > 0
    await lock.release()
    await asyncio.wait_for(waiting, SOON)


async def work_in_child(client: AsyncClient, name: str) -> int:
    """Do the work of a forked child; return 0 if all was right."""
    lock = client.lock(name)
    if lock.owned() or await lock.acquire(blocking=False):
        return 2
    async with client.lock(f"{name}-of-the-child"):
        pass
    await client.close()
    return 0
