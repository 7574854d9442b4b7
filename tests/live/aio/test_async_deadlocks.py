"""Deadlocks of tasks: a task that awaits its own call gets an error, and one that has another task do so does not."""

import asyncio
from typing import Any

import pytest
from support.masters import Deployment
from support.tasks import Connect, free, until

from relock import AsyncClient, Deadlocked, DeadlockError

pytestmark = pytest.mark.every_quorum


def waits(client: AsyncClient, count: int) -> bool:
    """Return whether so many tasks sleep in a queue."""
    return sum(waiter.parks > 0 for waiter in client._session.hubs.waiters()) == count


async def test_of_two_tasks_the_last_gets_an_error_and_the_first_its_lock(client: AsyncClient, name: str) -> None:
    x, y = client.lock(f"{name}-x"), client.lock(f"{name}-y")

    async def first() -> None:
        async with x, y:
            pass

    async with y:
        other = asyncio.create_task(first())
        await until(lambda: waits(client, 1), "the first task sleeps")
        with pytest.raises(DeadlockError) as caught:
            await x.acquire()
        assert caught.value.lock == x.name
        assert [lock for lock, _, _ in caught.value.cycle] == [x.name, y.name]
        assert y.hold_count == 1
        assert not other.done()
    await other
    assert client.statistics().deadlocks == 1
    for lock in (x, y):
        await free(client, lock.name)
    assert client._session.waits == {}


async def test_a_task_that_sleeps_gets_its_error_there(client: AsyncClient, name: str) -> None:
    """The last task's lock only reports."""
    x, y = client.lock(f"{name}-x"), client.lock(f"{name}-y")

    async def first() -> None:
        async with x, y:
            raise AssertionError("the body does not run")

    async with y:
        other = asyncio.create_task(first())
        await until(lambda: waits(client, 1), "the first task sleeps")
        assert await client.lock(x.name, deadlock="report").acquire()
        with pytest.raises(DeadlockError):
            await other
        await x.release()
    for lock in (x, y):
        await free(client, lock.name)


@pytest.mark.parametrize("carried", ["first", "last"])
async def test_a_ring_of_a_task_that_has_another_one_wait_for_it_is_told_only(
    connect: Connect, server: Deployment, name: str, carried: str
) -> None:
    """The first task can still release its lock, and does."""
    events: list[Any] = []
    client = connect(server.url, on_event=events.append)
    x, y = client.lock(f"{name}-x"), client.lock(f"{name}-y")

    async def rival() -> None:
        async with x:
            rival_has.set()
            await may_wait.wait()
            async with y:
                pass

    rival_has, may_wait = asyncio.Event(), asyncio.Event()
    other = asyncio.create_task(rival())
    await rival_has.wait()
    assert await y.acquire()

    async def let_wait() -> None:
        before = client.statistics().waiting
        may_wait.set()
        await until(lambda: waits(client, before + 1), "the other task sleeps")

    if carried == "last":
        await let_wait()
    waiting = asyncio.create_task(x.acquire())
    await until(lambda: waits(client, 2 if carried == "last" else 1), "the call sleeps")
    if carried == "first":
        await let_wait()
    await until(lambda: any(isinstance(event, Deadlocked) for event in events), "the deadlock is told")
    assert [event.victim for event in events if isinstance(event, Deadlocked)] == [None]
    assert not waiting.done()
    assert not other.done()
    await y.release()
    await other
    assert await waiting
    await x.release()
    assert client.statistics().deadlocks == 1
    for lock in (x, y):
        await free(client, lock.name)
