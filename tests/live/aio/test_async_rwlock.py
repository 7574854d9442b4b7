"""Read-write lock, for tasks: owners, cancellation, and the ends of bodies whose hold is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.tasks import SOON, TURNS, Connect, cancel_after, free, until

from relock import AsyncClient, AsyncLock, AsyncRWLock, LockLostError, LossCode, UpgradeError

pytestmark = pytest.mark.every_quorum


def levels(both: AsyncRWLock) -> tuple[int, int]:
    return both.write.hold_count, both.read.hold_count


def start(lock: AsyncLock, timeout: float = -1) -> "asyncio.Task[bool]":
    """Start a task that takes the lock for itself: the owner is the task that calls `acquire`."""

    async def take() -> bool:
        return await lock.acquire(timeout=timeout)

    return asyncio.create_task(take())


async def test_tasks_are_readers_together_and_writers_alone(client: AsyncClient, name: str) -> None:
    both, inside, most = client.rwlock(name, timeout=SOON), list[str](), list[int]()

    async def work(number: int) -> None:
        kind = "write" if number % 5 == 0 else "read"
        lock: Any = getattr(both, kind)
        async with lock:
            assert not inside or (kind == "read" and "write" not in inside)
            inside.append(kind)
            await asyncio.sleep(0)
            await lock.ensure()
            most.append(len(inside))
            inside.remove(kind)

    await asyncio.gather(*(work(number) for number in range(60)))
    assert len(most) == 60
    await free(client, name)
    assert client.statistics().held == 0


async def test_each_task_is_an_owner_and_nests_whatever_waits(client: AsyncClient, name: str) -> None:
    both = client.rwlock(name)
    async with both.write:
        waiting = start(client.lock(name))
        await until(lambda: client.statistics().waiting == 1, "another task waits as a writer")
        async with both.read:
            assert levels(both) == (1, 1)
        await both.write.downgrade()
        assert levels(both) == (0, 1)
        with pytest.raises(UpgradeError):
            await both.write.acquire()
        other = start(both.read, 0)
        assert await other is False, "it comes behind the writer"
        await both.read.release()
        assert await asyncio.wait_for(waiting, SOON)
        assert await client.force_release(name)
        assert await both.write.acquire(timeout=SOON)
    await free(client, name)


async def test_a_call_that_is_cancelled_at_any_await_leaves_nothing_or_all(client: AsyncClient, name: str) -> None:
    async def read(both: AsyncRWLock) -> None:
        async with both.read:
            await asyncio.sleep(0)

    async def downgrade(both: AsyncRWLock) -> None:
        async with both.write:
            try:
                await both.write.downgrade()
            finally:
                seen.append(levels(both))
                if both.read.hold_count:
                    await both.read.release()
                    await both.write.acquire()

    seen: list[tuple[int, int]] = []
    calls: list[Callable[[AsyncRWLock], Any]] = [read, downgrade]
    for number, call in enumerate(calls):
        for turns in TURNS:
            both = client.rwlock(f"{name}-{number}-{turns}")
            was_over = await cancel_after(turns, call(both))
            await free(client, both.name)
            if was_over:
                break
    assert set(seen) <= {(1, 0), (0, 1)}
    assert seen
    await until(lambda: client.statistics().held == 0, "no hold is left")


async def test_a_wait_of_a_reader_that_is_cancelled_leaves_nothing(client: AsyncClient, name: str) -> None:
    both = client.rwlock(name)
    assert await both.write.acquire(timeout=SOON)
    tasks = [start(both.read) for _ in range(3)]
    await until(lambda: client.statistics().waiting == 3, "they wait")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(start(both.read), 0.05)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await both.write.downgrade()
    assert await asyncio.wait_for(asyncio.gather(*tasks[1:]), SOON) == [True, True]
    await both.read.release()
    await until(lambda: client.statistics().held == 2, "two tasks have ended with their holds")


@pytest.mark.parametrize("side", ["read", "write"])
async def test_a_body_is_cancelled_when_its_hold_is_lost_whichever_side(
    side: str, client: AsyncClient, connect: Connect, name: str, server: Any
) -> None:
    operator = connect(server.url)
    lock: Any = getattr(client.rwlock(name, cancel_on_lost=True), side)
    is_cancelled = False
    with pytest.raises(LockLostError):  # noqa: PT012
        async with lock:
            assert await operator.force_release(name)
            for hold in client._session.holds.of_name(name, "read" if side == "read" else "lock"):
                hold.renew_at = 0.0  # the operator's message may have been lost, or have told of the loss by now
            client._session.watchdog.poke()
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                is_cancelled = True
                raise
    assert is_cancelled
    await free(client, name)


async def test_cancel_on_lost_of_one_side_leaves_the_body_of_the_other_alone(client: AsyncClient, name: str) -> None:
    both = client.rwlock(name, cancel_on_lost=True)
    async with both.write:
        with pytest.raises(LockLostError):  # noqa: PT012
            async with both.read:
                hold = next(iter(client._session.holds.of_name(name, "read")))
                client._session.lose(hold, LossCode.EXPIRED)
                await asyncio.sleep(SOON)
        assert both.write.owned()
        await asyncio.sleep(0)
    await free(client, name)
