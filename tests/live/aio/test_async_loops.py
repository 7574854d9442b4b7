"""Loops other than asyncio's own, other ways to cancel, and the cases of CPython's tests for `asyncio.Lock`."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import uvloop
from support.masters import Deployment
from support.tasks import SOON, Connect, connecting, free, until

from relock import AsyncClient, AsyncLock, NotOwnedError

pytestmark = pytest.mark.every_quorum

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, server: Deployment) -> Callable[..., None]:
    """Return a function that runs a coroutine function on another loop, and gives it a maker of clients."""

    def run(scene: Callable[[Connect], Coroutine[Any, Any, None]]) -> None:
        async def play() -> None:
            async with connecting() as connect:
                await scene(lambda **options: connect(server.url, **options))

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(play())

    return run


async def wait(client: AsyncClient, name: str, served: list[int], number: int) -> None:
    async with client.lock(name):
        served.append(number)


async def are_queued(client: AsyncClient, name: str, count: int) -> None:
    while len((await client.info(name)).queue) != count:
        await asyncio.sleep(0.002)


def test_waiters_are_served_in_their_order_on_any_loop(run: Callable[..., None], name: str) -> None:
    async def scene(connect: Connect) -> None:
        client, served = connect(), list[int]()
        async with client.lock(name), asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(wait(client, name, served, number))
                await are_queued(client, name, number + 1)
            await client.lock(name).release()
            await until(lambda: len(served) == 5, "all are served")
            await client.lock(name).acquire()
        assert served == [0, 1, 2, 3, 4]
        await free(client, name)

    run(scene)


def test_a_cancelled_waiter_leaves_on_any_loop(run: Callable[..., None], name: str) -> None:
    async def scene(connect: Connect) -> None:
        client, served = connect(), list[int]()
        async with client.lock(name):
            waits = [asyncio.create_task(wait(client, name, served, number)) for number in range(4)]
            await are_queued(client, name, 4)
            for number in (0, 2):
                waits[number].cancel()
            await are_queued(client, name, 2)
        await asyncio.gather(*waits, return_exceptions=True)
        assert sorted(served) == [1, 3]
        await free(client, name)

    run(scene)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_parent_hears_what_it_waits_for_after_a_fork_on_any_loop(run: Callable[..., None], name: str) -> None:
    """The child closes its copies of the sockets, and touches nothing that it shares with the parent's loop."""

    async def scene(connect: Connect) -> None:
        client, other, served = connect(), connect(), list[int]()
        async with other.lock(name, owner="other"):
            waiting = asyncio.create_task(wait(client, name, served, 0))
            await are_queued(other, name, 1)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = int(client.statistics().held)  # the child notices the fork, and closes its copies
                finally:
                    os._exit(status)
            assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
        await asyncio.wait_for(waiting, SOON)
        assert served == [0]

    run(scene)


async def test_a_scope_of_anyio_that_cancels_again_and_again_leaves_nothing(client: AsyncClient, name: str) -> None:
    other = client.lock(name, owner="other")
    await other.acquire()
    with anyio.move_on_after(0.05) as scope:
        await client.lock(name).acquire()
    assert scope.cancelled_caught
    await other.release()
    await free(client, name)


async def test_a_release_in_a_cancelled_scope_of_anyio_is_carried_out(client: AsyncClient, name: str) -> None:
    with anyio.CancelScope() as scope:
        async with client.lock(name):
            scope.cancel()
            await anyio.sleep(SOON)
    assert scope.cancelled_caught
    await free(client, name)


# As in CPython's Lib/test/test_asyncio/test_locks.py ------------------------------------------------------------------


async def test_a_waiter_that_is_cancelled_twice_in_a_race_passes_nobody_over(client: AsyncClient, name: str) -> None:
    """Case `test_cancel_race`: one waiter is cancelled when the lock is released, and another one waits behind."""
    lock, served = client.lock(name), list[int]()
    await lock.acquire()
    waits = [asyncio.create_task(wait(client, name, served, number)) for number in range(3)]
    await are_queued(client, name, 3)
    release = asyncio.create_task(lock.release())
    waits[0].cancel()
    await release
    await asyncio.gather(*waits, return_exceptions=True)
    assert sorted(served) == [1, 2]
    await free(client, name)


async def test_a_waiter_that_is_cancelled_when_it_was_given_the_lock_gives_it_on(
    client: AsyncClient, name: str
) -> None:
    """Cases `test_finished_waiter_cancelled` and `test_cancel_release_race`, at each turn after the grant."""
    for turns in range(12):
        lock, served = client.lock(name), list[int]()
        await lock.acquire()
        waits = [asyncio.create_task(wait(client, name, served, number)) for number in range(2)]
        await are_queued(client, name, 2)
        await lock.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), SOON)
        assert served[-1] == 1
        await free(client, name)


async def test_what_was_not_acquired_is_not_released(client: AsyncClient, name: str) -> None:
    """Case `test_release_not_acquired`."""
    lock: AsyncLock = client.lock(name)
    with pytest.raises(NotOwnedError):
        await lock.release()
    assert await lock.acquire()
    await lock.release()
    with pytest.raises(NotOwnedError):
        await lock.release()
