"""Several calls for one owner at once, of tasks and of threads: they take turns, and each does what it says."""

import asyncio

import pytest
from support.tasks import free, until

from relock import AsyncClient
from relock._core.call_record import CallRecord

pytestmark = pytest.mark.every_quorum


async def test_a_task_that_has_others_carry_out_several_calls_at_once_gets_each_level(
    client: AsyncClient, name: str
) -> None:
    lock = client.lock(name)
    assert await asyncio.gather(*[lock.acquire() for _ in range(5)]) == [True] * 5
    assert lock.hold_count == 5
    await asyncio.gather(lock.release(), lock.acquire(), lock.release())
    assert lock.hold_count == 4
    assert await asyncio.gather(*[lock.release() for _ in range(5)], return_exceptions=True)
    assert lock.hold_count == 0
    await free(client, name)


async def test_a_release_that_is_cancelled_in_line_gives_its_level_back_in_its_turn(
    client: AsyncClient, name: str
) -> None:
    """The loop does not stand still meanwhile, and whoever is inside is not disturbed."""
    lock, gates = client.lock(name, owner="job"), client._session.gates
    assert await lock.acquire()
    assert await lock.acquire()
    inside = CallRecord()
    assert gates.try_enter(inside, (name, ("owner", "job")), "another")
    releases = [asyncio.create_task(lock.release()) for _ in range(2)]
    for release in releases:
        await asyncio.sleep(0)
        release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await release
    assert lock.hold_count == 2
    gates.leave(inside)
    await until(lambda: lock.hold_count == 0, "both levels are given back")
    await free(client, name)
    await until(lambda: not gates._gates, "nobody is at the gate")


async def test_an_acquire_that_is_cancelled_in_line_leaves_nothing(client: AsyncClient, name: str) -> None:
    lock, gates = client.lock(name, owner="job"), client._session.gates
    inside = CallRecord()
    assert gates.try_enter(inside, (name, ("owner", "job")), "another")
    acquires = [asyncio.create_task(lock.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    for acquire in acquires[:2]:
        acquire.cancel()
    gates.leave(inside)
    assert await acquires[2]
    assert lock.hold_count == 1
    await lock.release()
    assert not gates._gates
    await free(client, name)


async def test_a_thread_does_not_wait_for_a_task_of_the_loop_that_it_runs(client: AsyncClient, name: str) -> None:
    """Neither would go on. A release is carried out all the same, once that task has left."""
    lock = client._client.lock(name, owner="job")
    assert await client.lock(name, owner="job").acquire()
    inside = CallRecord()
    client._session.gates.try_enter(inside, (name, ("owner", "job")), asyncio.current_task())
    other = asyncio.create_task(asyncio.to_thread(lock.acquire))
    await until(client._session.gates._gates[name, ("owner", "job")].first, "a thread is in line")

    async def call() -> None:
        with pytest.raises(RuntimeError, match="use an AsyncClient here as well"):
            lock.acquire()
        with pytest.raises(RuntimeError, match="use an AsyncClient here as well"):
            lock.release()

    await asyncio.create_task(call())
    client._session.gates.leave(inside)
    assert await other
    await until(lambda: lock.hold_count == 1, "one was taken, and one given back")
    await asyncio.to_thread(lock.release)
    await free(client, name)
