"""`AsyncClient` on real servers: owners of holds, leftovers of cancellations, and sharing by loops and threads."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from queue import SimpleQueue
from typing import Any

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT, SOON, Connect, free, until
from support.until import until as wait_until
from support.urls import options_for

from relock import (
    AcquireTimeoutError,
    AsyncClient,
    AsyncLock,
    Client,
    LockLostError,
    LoopStalled,
    Loss,
    LossCode,
    NotOwnedError,
)

pytestmark = pytest.mark.every_quorum

RENEWED_TTL = 4.5  # seconds: long enough for a machine that stands still for three


async def take(lock: AsyncLock) -> None:
    """Take the lock, in a task of its own, and release it."""
    async with lock:
        pass


async def test_a_hold_has_levels_and_a_token(client: AsyncClient, name: str) -> None:
    lock = client.lock(name)
    async with lock as held:
        assert held is lock
        first = await lock.ensure(1.0)
        assert lock.owned()
        async with lock:
            assert lock.hold_count == 2
        assert (await client.info(name)).held
        assert await lock.locked()
        assert [found async for found in client.names(name)] == [name]
        assert await lock.extend(40.0) > 30
    assert not lock.owned()
    await lock.acquire()
    assert lock.token is not None
    assert lock.token > first
    await lock.release()
    with pytest.raises(NotOwnedError):
        await lock.release()


@pytest.mark.parametrize(
    "take",
    [
        lambda lock: asyncio.wait_for(lock.acquire(), SOON),
        lambda lock: asyncio.gather(lock.acquire()),
        lambda lock: asyncio.create_task(lock.acquire()),
        lambda lock: asyncio.shield(lock.acquire()),
    ],
    ids=["wait_for", "gather", "create_task", "shield"],
)
async def test_the_owner_is_the_task_that_calls(
    client: AsyncClient, name: str, take: Callable[[Any], Awaitable[object]]
) -> None:
    """Tasks that await do not own the hold: each way here runs the acquire in a task of its own."""
    lock = client.lock(name)
    await take(lock)
    assert lock.owned()
    await asyncio.wait_for(lock.release(), SOON)
    assert not lock.owned()


async def test_a_child_is_another_owner_than_its_parent(client: AsyncClient, name: str) -> None:
    lock = client.lock(name)

    async def child() -> bool:
        assert not lock.owned()
        return await lock.acquire(blocking=False)

    async with lock:
        assert not await asyncio.create_task(child())
        async with asyncio.TaskGroup() as group:
            inner = group.create_task(child())
        assert not inner.result()


async def test_a_task_that_leaves_what_another_one_has_entered_is_told_of_both(client: AsyncClient, name: str) -> None:
    """Fixtures and dependencies of web frameworks do so: they enter in one task and leave in another."""
    lock = client.lock(name)

    async def call() -> None:
        advice = (
            "held by the task 'that enters', and the task 'that leaves' does not hold it: .* give the lock an owner="
        )
        for use in (lock.release, lock.extend, lock.ensure):
            with pytest.raises(NotOwnedError, match=advice):
                await use()

    async def enter() -> None:
        async with lock:
            await asyncio.create_task(call(), name="that leaves")

    await asyncio.create_task(enter(), name="that enters")
    with pytest.raises(NotOwnedError, match="must acquire a lock before"):
        await lock.release()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin eagerly from CPython 3.12 on")
async def test_an_eager_task_is_an_owner_like_any_other(client: AsyncClient, name: str) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]

    async def use(lock: AsyncLock) -> bool:
        async with lock:
            return lock.owned()

    lock = client.lock(name)
    async with lock:
        waiting = asyncio.create_task(use(client.lock(name)))
        assert await asyncio.create_task(lock.acquire())
        assert lock.hold_count == 2
        await lock.release()
    assert await waiting
    await free(client, name)


async def test_a_callback_needs_an_owner(client: AsyncClient, name: str) -> None:
    found: list[object] = []
    lock, named = client.lock(name), client.lock(name, owner="job")

    def call() -> None:
        try:
            found.append(lock.acquire())
        except RuntimeError as error:
            found.append(error)
        found.append(named.acquire())

    asyncio.get_running_loop().call_soon(call)
    await until(lambda: len(found) == 2, "the callback has run")
    assert "owner=" in str(found[0])
    assert await found[1]  # type: ignore[misc]
    assert named.owned()
    await named.release()


async def test_tasks_are_served_in_the_order_in_which_they_came(client: AsyncClient, name: str) -> None:
    order: list[int] = []

    async def take(number: int) -> None:
        async with client.lock(name):
            order.append(number)

    async with client.lock(name):
        tasks = []
        for number in range(10):
            tasks.append(asyncio.create_task(take(number)))
            while len((await client.info(name)).queue) <= number:
                await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    assert order == list(range(10))


async def test_a_refusal_and_a_timeout(client: AsyncClient, name: str) -> None:
    other = client.lock(name, owner="other")
    await other.acquire()
    lock = client.lock(name, timeout=0.05)
    assert not await lock.acquire(blocking=False)
    assert not await lock.acquire(timeout=0.05)
    with pytest.raises(AcquireTimeoutError):
        async with lock:
            raise AssertionError
    await other.release()
    await free(client, name)
    assert client.statistics().waiting == 0


async def test_tasks_of_one_owner_share_its_hold_one_at_a_time(client: AsyncClient, name: str) -> None:
    tasks = [asyncio.create_task(client.lock(name, owner="job").acquire()) for _ in range(20)]
    assert all(await asyncio.gather(*tasks))
    assert client.lock(name, owner="job").hold_count == 20
    for _ in range(20):
        await client.lock(name, owner="job").release()
    await free(client, name)


async def test_a_thread_and_a_task_that_name_one_owner_share_its_hold(client: AsyncClient, name: str) -> None:
    threads = client._client
    await asyncio.to_thread(threads.lock(name, owner="job").acquire)
    lock = client.lock(name, owner="job")
    assert await lock.acquire(blocking=False)
    assert lock.hold_count == 2
    await lock.release()
    await asyncio.to_thread(threads.lock(name, owner="job").release)
    await free(client, name)


async def test_threads_and_tasks_of_one_client_exclude_each_other(server: Deployment, name: str) -> None:
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client = AsyncClient(threads)
        async with client.lock(name):
            assert not await asyncio.to_thread(threads.lock(name).acquire, False)
            waiting = asyncio.create_task(asyncio.to_thread(threads.lock(name, owner="t").acquire))
            while not (await client.info(name)).queue:
                await asyncio.sleep(0.002)
        assert await waiting
        assert not await client.lock(name).acquire(blocking=False)
        await asyncio.to_thread(threads.lock(name, owner="t").release)
        await client.close()
        threads.lock(name).acquire()
        threads.lock(name).release()


async def test_a_cancelled_wait_leaves_nothing_and_passes_no_turn_over(client: AsyncClient, name: str) -> None:
    served: list[str] = []

    async def take(who: str) -> None:
        async with client.lock(name):
            served.append(who)

    async with client.lock(name):
        tasks = {}
        for count, who in enumerate(("cancelled", "next"), start=1):
            tasks[who] = asyncio.create_task(take(who))
            while len((await client.info(name)).queue) < count:
                await asyncio.sleep(0.002)
        tasks["cancelled"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks["cancelled"]
    await tasks["next"]
    assert served == ["next"]
    await free(client, name)
    assert (client.statistics().held, client.statistics().waiting) == (0, 0)


async def test_a_timeout_of_asyncio_cancels_a_wait(client: AsyncClient, name: str) -> None:
    other = client.lock(name, owner="other")
    await other.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.lock(name).acquire()
    await other.release()
    await free(client, name)


async def test_a_cancelled_release_is_carried_out(client: AsyncClient, name: str) -> None:
    lock = client.lock(name)

    async def take_and_release() -> None:
        await lock.acquire()
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await lock.release()

    for _ in range(20):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(take_and_release())
        await free(client, name)


async def test_a_grant_that_comes_in_the_turn_of_the_cancellation_is_given_back(client: AsyncClient, name: str) -> None:
    """The task is cancelled when it has been given the lock, and has not run since."""
    hits = 0
    for number in range(20):
        holder, lock = client.lock(f"{name}-{number}"), client.lock(f"{name}-{number}")
        await holder.acquire()
        waiting = asyncio.create_task(take(lock))
        while not (await lock.info()).queue:
            await asyncio.sleep(0.001)
        (waiter,) = client._session.hubs.waiters()
        await holder.release()
        while not (waiter.handed or waiting.done()):
            await asyncio.sleep(0)
        hits += not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await free(client, lock.name)
    assert hits, "some were cancelled with the lock on its way"
    assert client.statistics().held == 0


async def test_a_task_that_ends_without_a_release_is_an_owner_that_has_ended(
    connect: Connect, server: Deployment, name: str
) -> None:
    client = connect(server.url, ttl=3.0)

    async def take() -> None:
        await client.lock(name).acquire()

    await asyncio.create_task(take())
    assert (await client.info(name)).held
    await until(lambda: client.statistics().losses == 1, "the hold is lost")
    await free(client, name)


async def test_a_loop_that_stands_still_keeps_its_hold(connect: Connect, server: Deployment, name: str) -> None:
    client = connect(server.url, ttl=RENEWED_TTL)
    lock = client.lock(name)
    async with lock:
        stand_still_for_a_lease(client)
        assert lock.owned()
        assert await lock.ensure(0.1)


def stand_still_for_a_lease(client: AsyncClient) -> None:
    """Block the loop until a hold has been renewed so often that its first lease is over."""
    renewals = client.statistics().renewals
    wait_until(lambda: client.statistics().renewals >= renewals + 4, within=SOON, what="the hold is renewed")


async def test_a_loop_that_stands_still_is_told_once(connect: Connect, server: Deployment, name: str) -> None:
    events: list[Any] = []
    client = connect(server.url, ttl=RENEWED_TTL, on_event=events.append)
    for count in (1, 2):
        async with client.lock(name) as lock:
            stand_still_for_a_lease(client)
            assert lock.owned()
        await until(lambda: len(stalls(events)) >= count, "the event is told")  # noqa: B023
        assert [event.seconds >= RENEWED_TTL / 3 for event in stalls(events)] == [True] * count


def stalls(events: list[Any]) -> list[LoopStalled]:
    return [event for event in events if isinstance(event, LoopStalled)]


async def test_a_loop_that_stands_still_for_longer_than_the_limit_loses_its_holds(
    connect: Connect, server: Deployment, name: str
) -> None:
    losses: SimpleQueue[Loss] = SimpleQueue()
    client = connect(server.url, ttl=RENEWED_TTL, stall_limit=0.1, on_lost=losses.put)
    other = connect(server.url)
    begun, taken = threading.Event(), threading.Event()

    async def take() -> None:
        async with other.lock(name):
            taken.set()

    def wait() -> None:
        begun.wait(SOON)
        asyncio.run(take())

    thread = threading.Thread(target=wait)
    thread.start()
    lock = client.lock(name)
    await lock.acquire()
    begun.set()
    assert taken.wait(SOON), "the thread takes the lock while this loop stands still"
    with pytest.raises(LockLostError, match="its event loop stands still"):
        await lock.release()
    await asyncio.to_thread(thread.join)
    await until(lambda: not losses.empty(), "the loss is told")
    assert losses.get().code == LossCode.STALLED


async def test_each_client_on_a_loop_has_a_limit_of_its_own(server: Deployment, name: str) -> None:
    taken = threading.Event()

    def take() -> None:
        with threads.lock(name):
            taken.set()

    with Client(server.url, **options_for(server.url, {"ttl": RENEWED_TTL})) as threads:
        async with AsyncClient(threads, stall_limit=0.1) as strict, AsyncClient(threads) as lenient:
            await strict.lock(name).acquire()
            async with lenient.lock(f"{name} b") as kept:
                thread = threading.Thread(target=take)
                thread.start()
                assert taken.wait(SOON), "a thread takes the lock while this loop stands still"
                assert kept.owned()
            with pytest.raises(LockLostError, match="its event loop stands still"):
                await strict.lock(name).release()
            await asyncio.to_thread(thread.join)


async def test_a_loop_that_turns_is_never_over_its_limit(connect: Connect, server: Deployment, name: str) -> None:
    client = connect(server.url, ttl=RENEWED_TTL, stall_limit=0.7 * RENEWED_TTL)
    async with client.lock(name) as lock:
        renewals = client.statistics().renewals
        await until(
            lambda: client.statistics().renewals >= renewals + 4, "the hold is renewed for longer than the limit"
        )
        assert lock.owned()


async def test_callbacks_are_called_on_the_loop(connect: Connect, server: Deployment, name: str) -> None:
    told: list[tuple[str, Any]] = []

    def tell(event: object) -> None:
        told.append(("function", asyncio.get_running_loop()))

    async def tell_in_a_task(loss: object) -> None:
        await asyncio.sleep(0)
        told.append(("task", asyncio.get_running_loop()))

    client = connect(server.url, on_lost=tell)
    lock = client.lock(name, on_lost=tell_in_a_task)
    assert await lock.acquire()
    assert await client.lock(name, on_lost=tell_in_a_task).acquire(), "the same callback is called once"
    await lock.force_release()
    with pytest.raises(LockLostError):
        await lock.extend()
    await until(lambda: len(told) >= 2, "both are told")
    await asyncio.sleep(0.01)
    assert sorted(told) == [("function", asyncio.get_running_loop()), ("task", asyncio.get_running_loop())]


def test_callbacks_are_called_on_a_thread_where_no_loop_runs(server: Deployment, name: str) -> None:
    told: SimpleQueue[str] = SimpleQueue()

    async def tell(loss: object) -> None:
        told.put(threading.current_thread().name)

    client = AsyncClient(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))

    async def take() -> None:
        await client.lock(name, owner="job", on_lost=tell).acquire()

    asyncio.run(take())
    (hold,) = client._session.holds.of_name(name)
    client._session.lose(hold, LossCode.EXPIRED)
    assert told.get(timeout=SOON) == "relock-losses"
    asyncio.run(client.close())


async def test_a_lost_hold_is_told(client: AsyncClient, name: str) -> None:
    lost: list[object] = []
    lock = client.lock(name, on_lost=lost.append)
    await lock.acquire()
    assert await client.force_release(name)
    with pytest.raises(LockLostError):
        await lock.release()
    await until(lambda: lost, "the callback has run")
    assert lock.lost


async def test_half_of_many_waiters_are_cancelled_and_the_others_are_served(client: AsyncClient, name: str) -> None:
    served: list[int] = []

    async def take(number: int) -> None:
        async with client.lock(name):
            served.append(number)

    async with client.lock(name):
        tasks = [asyncio.create_task(take(number)) for number in range(300)]
        await until(lambda: client.statistics().waiting == 300, "all wait")
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks[::2], return_exceptions=True)
    await asyncio.gather(*tasks[1::2])
    assert sorted(served) == list(range(1, 300, 2))
    await free(client, name)
    assert client.statistics().waiting == 0


async def test_a_coroutine_function_runs_with_the_lock_that_its_argument_names(client: AsyncClient, name: str) -> None:
    @client.synchronized(name + ":{number}", timeout=5.0)
    async def work(number: int) -> list[str]:
        assert client.lock(f"{name}:{number}").owned()
        return [found async for found in client.names(f"{name}:*")]

    assert await work(7) == [f"{name}:7"]
    # A master of a minority may learn of the first release later, and `names` lists what any master has.
    assert f"{name}:8" in await asyncio.wait_for(work(number=8), SOON)
    await free(client, f"{name}:7")


@pytest.mark.parametrize(
    "kind", ["a plain function", "a generator", "an async generator", "a context manager", "a class"]
)
async def test_what_is_no_coroutine_function_is_refused(client: AsyncClient, kind: str) -> None:
    async def generate() -> AsyncIterator[int]:
        yield 1

    functions: dict[str, Any] = {
        "a plain function": len,
        "a generator": lambda: (yield),
        "an async generator": generate,
        "a context manager": contextlib.asynccontextmanager(generate),
        "a class": AsyncClient,
    }
    with pytest.raises(TypeError, match="synchronized"):
        client.synchronized("name")(functions[kind])


def test_a_client_is_used_in_one_loop_after_another(server: Deployment, name: str) -> None:
    client = AsyncClient(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))

    async def use() -> int:
        async with client.lock(name) as lock:
            return await lock.ensure()

    first, second = asyncio.run(use()), asyncio.run(use())
    assert second > first
    asyncio.run(client.close())


def test_several_loops_at_once_exclude_each_other(server: Deployment, name: str) -> None:
    client = AsyncClient(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))
    inside, most = [0], [0]

    async def use() -> None:
        for _ in range(20):
            async with client.lock(name):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                await asyncio.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    asyncio.run(client.close())
