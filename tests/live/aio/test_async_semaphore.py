"""Permits of a semaphore, for tasks: owners, cancellation, and the ends of tasks, loops and clients."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT, SOON, TURNS, Connect, cancel_after, until
from support.until import until as sync_until
from support.urls import options_for

from relock import (
    AcquireTimeoutError,
    AsyncClient,
    AsyncPermit,
    AsyncSemaphore,
    Client,
    ClientClosedError,
    LockLostError,
    Loss,
    NotOwnedError,
    Semaphore,
)

pytestmark = pytest.mark.every_quorum


async def got(semaphore: AsyncSemaphore, permits: int = 1) -> AsyncPermit:
    permit = await semaphore.acquire(permits, timeout=SOON)
    assert permit is not None
    return permit


async def all_free(semaphore: AsyncSemaphore) -> None:
    """Wait until no caller has a permit, and none waits."""
    for _ in range(2000):
        info = await semaphore.info()
        if not info.used and not info.queue:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(info)


async def test_permits_of_tasks_are_never_more_than_the_limit(client: AsyncClient, name: str) -> None:
    semaphore, inside = client.semaphore(name, 3, timeout=SOON), set[int | None]()
    entered = 0

    async def work() -> None:
        nonlocal entered
        async with semaphore as permit:
            assert permit.slot not in inside
            inside.add(permit.slot)
            assert len(inside) <= 3
            await asyncio.sleep(0)
            await permit.ensure()
            entered += 1
            inside.remove(permit.slot)

    await asyncio.gather(*(work() for _ in range(60)))
    assert entered == 60
    await all_free(semaphore)
    assert not semaphore._entered
    assert client.statistics().held == 0


async def test_two_acquires_of_one_task_are_two_permits_that_any_task_may_release(
    client: AsyncClient, name: str
) -> None:
    semaphore = client.semaphore(name, 2)
    first, second = await got(semaphore), await got(semaphore)
    assert {first.slot, second.slot} == {0, 1}
    assert await semaphore.acquire(blocking=False) is None
    assert await semaphore.acquire(timeout=0.05) is None
    await asyncio.create_task(first.release())
    assert (first.owned(), second.owned()) == (False, True)
    with pytest.raises(NotOwnedError):
        await first.release()
    await asyncio.gather(second.release())
    await all_free(semaphore)


async def test_tasks_of_one_gather_take_different_permits(client: AsyncClient, name: str) -> None:
    """The caller of `acquire` is the same task for each."""
    semaphore = client.semaphore(name, 5)
    permits = await asyncio.gather(*(semaphore.acquire(timeout=SOON) for _ in range(5)))
    assert {permit.slot for permit in permits if permit} == {0, 1, 2, 3, 4}
    assert await semaphore.acquire(timeout=0) is None
    await asyncio.gather(*(permit.release() for permit in permits if permit))
    await all_free(semaphore)


async def test_a_full_semaphore_raises_out_of_a_block(client: AsyncClient, name: str) -> None:
    semaphore = client.semaphore(name, 1, timeout=0.05)
    async with semaphore:
        with pytest.raises(AcquireTimeoutError, match="whose limit is 1, had no free permit"):
            async with semaphore:
                raise AssertionError("the body does not run")
    assert not semaphore._entered
    await all_free(semaphore)


async def test_a_call_that_is_cancelled_at_any_await_leaves_nothing(client: AsyncClient, name: str) -> None:
    async def use(semaphore: AsyncSemaphore) -> None:
        async with semaphore:
            await asyncio.sleep(0)

    async def take_and_release(semaphore: AsyncSemaphore) -> None:
        permit = await semaphore.acquire()
        assert permit is not None
        await permit.release()

    calls: list[Callable[[AsyncSemaphore], Any]] = [use, take_and_release]
    for number, call in enumerate(calls):
        for turns in TURNS:
            semaphore = client.semaphore(f"{name}-{number}-{turns}", 1)
            was_over = await cancel_after(turns, call(semaphore))
            assert not semaphore._entered
            await all_free(semaphore)
            if was_over:
                break
    await until(lambda: client.statistics().held == 0, "no permit is left")


async def test_a_wait_that_is_cancelled_leaves_nothing_and_passes_its_turn_on(client: AsyncClient, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    holder = await got(semaphore)
    first = asyncio.create_task(semaphore.acquire())
    await until(lambda: client.statistics().waiting == 1, "one waits")
    second = asyncio.create_task(semaphore.acquire())
    await until(lambda: client.statistics().waiting == 2, "and another one")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(semaphore.acquire(), 0.05)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await holder.release()
    permit = await asyncio.wait_for(second, SOON)
    assert permit is not None
    await permit.release()
    await all_free(semaphore)


async def test_a_turn_that_comes_together_with_a_cancellation_is_passed_on(client: AsyncClient, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    for turns in range(12):
        holder = await got(semaphore)
        waiting = asyncio.create_task(semaphore.acquire())
        await until(lambda: client.statistics().waiting == 1, "it waits")
        await holder.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(outcome, AsyncPermit):
            await outcome.release()
        await all_free(semaphore)
    assert client.statistics().held == 0


async def test_a_release_that_is_cancelled_is_carried_out(client: AsyncClient, name: str) -> None:
    """Cancelled before it begins, and in its middle."""
    semaphore = client.semaphore(name, 1, owner="job")
    for turns in (0, 1):
        permit = await got(semaphore)
        await cancel_after(turns, permit.release())
        await all_free(semaphore)
    assert client.statistics().held == 0


async def test_two_releases_at_once_release_once(client: AsyncClient, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    for _ in range(3):
        permit = await got(semaphore)
        ends = await asyncio.gather(permit.release(), permit.release(), return_exceptions=True)
        assert [type(end).__name__ for end in ends] == ["NoneType", "NotOwnedError"]
        await all_free(semaphore)
    assert client.statistics().losses == 0


async def test_a_task_that_leaves_the_block_of_another_one_is_told(client: AsyncClient, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    permit = await semaphore.__aenter__()
    with pytest.raises(NotOwnedError, match="is in no block of"):
        await asyncio.create_task(semaphore.__aexit__(None, None, None))
    assert permit.owned()
    await semaphore.__aexit__(None, None, None)
    await all_free(semaphore)


# Ends -----------------------------------------------------------------------------------------------------------------


async def test_a_permit_is_renewed_while_its_task_lives_and_no_longer(
    connect: Connect, server: Deployment, name: str
) -> None:
    client, told = connect(server.url, ttl=4.5), list[Loss]()
    semaphore, go_on = client.semaphore(name, 2, on_lost=told.append), asyncio.Event()
    kept = await got(client.semaphore(name, 2, owner="job"))

    async def hold() -> AsyncPermit:
        permit = await got(semaphore)
        await go_on.wait()
        return permit

    task = asyncio.create_task(hold())
    await until(lambda: client.statistics().renewals >= 4, "two renewals of each")
    assert (await semaphore.info()).used == 2
    go_on.set()
    permit = await task
    await until(lambda: told, "the loss is told")
    assert [loss.reason for loss in told] == ["its owner ended without releasing it"]
    assert (permit.lost, kept.owned()) == (True, True)
    again = await got(semaphore)
    await again.release()
    await kept.release()
    await all_free(semaphore)


def wait_until_free(semaphore: Semaphore) -> None:
    def is_free() -> bool:
        info = semaphore.info()
        return not info.used and not info.queue

    sync_until(is_free, within=SOON, what="nothing is left")


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_close_ends_a_wait(server: Deployment, name: str, *, is_own: bool) -> None:
    options = options_for(server.url, {"node_timeout": 1.0})  # so long does a close last
    with Client(server.url, **options) as others, Client(server.url, **options) as threads:
        client = AsyncClient(server.url, **options) if is_own else AsyncClient(threads)
        semaphore, there = client.semaphore(name, 1), others.semaphore(name, 1)
        holder = there.acquire()
        assert holder is not None
        waiting = asyncio.create_task(semaphore.acquire())
        await until(lambda: client.statistics().waiting == 1, "the task waits")
        await client.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await semaphore.acquire()
        holder.release()
        await asyncio.to_thread(wait_until_free, there)


async def test_a_permit_is_released_though_the_client_of_its_task_was_closed(server: Deployment, name: str) -> None:
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client = AsyncClient(threads)
        semaphore = client.semaphore(name, 2)
        async with semaphore:
            permit = await got(semaphore)
            await client.close()
            await permit.release()
            assert not permit.owned()
            with pytest.raises(NotOwnedError):
                await permit.release()
        await asyncio.to_thread(wait_until_free, threads.semaphore(name, 2))


def test_a_wait_of_a_task_of_a_closed_loop_is_given_up(server: Deployment, name: str) -> None:
    """The task is kept alive, not cancelled, and waits."""
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client, loop, there = AsyncClient(threads), asyncio.new_event_loop(), threads.semaphore(name, 1)
        holder = there.acquire()
        assert holder is not None
        tasks: list[asyncio.Task[AsyncPermit | None]] = []

        async def wait() -> None:
            tasks.append(asyncio.create_task(client.semaphore(name, 1, owner="job").acquire()))
            await until(lambda: client.statistics().waiting == 1, "the task is in the queue")

        loop.run_until_complete(wait())
        loop.close()
        holder.release()
        wait_until_free(there)
        asyncio.run(client.close())
        assert not tasks[0].done()
        tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("owner", [None, "job"])
def test_a_body_that_is_closed_after_its_loop_gives_its_permit_back(
    server: Deployment, name: str, owner: str | None
) -> None:
    client, loop = AsyncClient(server.url, **options_for(server.url, {"ttl": 120.0})), asyncio.new_event_loop()
    semaphore = client.semaphore(name, 2, owner=owner)

    async def work() -> None:
        async with semaphore:
            await asyncio.sleep(3600)

    bodies = [work(), work()]
    tasks = [loop.create_task(body) for body in bodies]
    loop.run_until_complete(until(lambda: client.statistics().held == 2, "each task has a permit"))
    loop.close()
    for body in bodies:
        with pytest.raises(RuntimeError, match="no event loop of asyncio runs"):
            body.close()
    assert not semaphore._entered
    with Client(server.url, **options_for(server.url, {})) as others:
        wait_until_free(others.semaphore(name, 2))
    asyncio.run(client.close())
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_a_lost_permit_is_an_error_at_its_release(
    client: AsyncClient, connect: Connect, server: Deployment, name: str
) -> None:
    told: list[Loss] = []
    operator, semaphore = connect(server.url), client.semaphore(name, 1, on_lost=told.append)
    permit = await got(semaphore)
    there = operator.semaphore(name, 1)
    (holder,) = (await there.info()).holders
    assert await there.force_release(holder.owner) is True
    with pytest.raises(LockLostError):
        await permit.extend()
    with pytest.raises(LockLostError):
        await permit.release()
    with pytest.raises(NotOwnedError):
        await permit.release()
    await until(lambda: told, "the loss is told")
    with pytest.raises(LockLostError):  # noqa: PT012
        async with semaphore as entered:
            (holder,) = (await there.info()).holders
            assert await there.force_release(holder.owner) is True
            with pytest.raises(LockLostError):
                await entered.extend()
    await all_free(semaphore)


async def test_an_override_holds_for_tasks(client: AsyncClient, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    holder = await got(semaphore)
    waiting = asyncio.create_task(semaphore.acquire())
    await until(lambda: client.statistics().waiting == 1, "it waits")
    await semaphore.override(2, 60)
    second = await asyncio.wait_for(waiting, SOON)
    assert second is not None
    assert (await semaphore.info()).limit == 2
    await semaphore.override(2, 0)
    await holder.release()
    assert await semaphore.acquire(timeout=0) is None
    await second.release()
    await all_free(semaphore)
