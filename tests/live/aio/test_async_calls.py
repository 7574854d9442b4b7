"""Several calls for one owner at once, of tasks and of threads, which take turns and each have their effect."""

import asyncio
import threading

import pytest
from support.masters import Deployment
from support.tasks import SOON, free, until
from support.urls import options_for

from relock import AsyncClient, Client
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
    """The task is cancelled at once, while another call is inside."""
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
    await until(lambda: not gates._gates, "no call is at the gate")


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
    """Thread and task would both stand still. The release is carried out once that task has left."""
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


@pytest.mark.parametrize("call", ["acquire", "release"])
async def test_a_thread_of_the_owner_gets_by_while_the_loop_stands_still(
    client: AsyncClient, name: str, call: str
) -> None:
    """The loop stands still during the thread's calls, with the request of its task under way."""
    tasks, threads = client.lock(name, owner="job"), client._client.lock(name, owner="job")
    assert await tasks.acquire()
    assert await tasks.acquire()
    found: list[object] = []

    def block() -> None:
        for step in (lambda: threads.acquire(blocking=False), threads.release):
            thread = threading.Thread(target=lambda step=step: found.append(step()), daemon=True)
            thread.start()
            thread.join(SOON)

    task = asyncio.create_task(getattr(tasks, call)())
    asyncio.get_running_loop().call_soon(block)  # the task has then sent its request, and has no reply yet
    assert await task is (True if call == "acquire" else None)
    assert found == [True, None]
    await until(lambda: tasks.hold_count == (3 if call == "acquire" else 1), "each call has done its work, once")
    while tasks.owned():
        await tasks.release()
    await free(client, name)
    assert not client._session.gates._gates


def test_a_thread_of_the_owner_gets_by_while_the_loop_is_stopped(server: Deployment, name: str) -> None:
    """Loops that are stopped may go on later: then the task's call is carried out."""
    client = Client(server.url, **options_for(server.url, {}))
    tasks, threads = AsyncClient(client), client.lock(name, owner="job")
    lock = tasks.lock(name, owner="job")
    threads.acquire()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(lock.info())  # opens its connection
    task = loop.create_task(lock.acquire())
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert not task.done()
    assert threads.acquire(blocking=False) is True
    threads.release()
    assert loop.run_until_complete(task) is True
    assert threads.hold_count == 2
    threads.release()
    loop.run_until_complete(lock.release())
    loop.run_until_complete(tasks.close())
    loop.close()
    client.close()
