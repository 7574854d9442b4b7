"""Locks that the tasks of one event loop take: for hand-offs among them, and for pairs of one task that is alone."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

import redis.asyncio

from bench.floors import ports_of
from relock import AsyncClient
from relock.cli._bench.work import Job

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class TaskLock(Protocol):
    """One task's lock; it may have a fencing token in `token`."""

    @property
    def acquire(self) -> Callable[[], Awaitable[object]]:
        """Wait for the lock."""

    @property
    def release(self) -> Callable[[], Awaitable[object]]:
        """Release the lock."""


TaskLocker = Callable[[], Awaitable[TaskLock]]
"""Makes the lock of one more task."""

TaskSite = Callable[[Job], AbstractAsyncContextManager[TaskLocker]]
"""Opens a client for the tasks of a loop."""


@asynccontextmanager
async def relock_site(job: Job) -> AsyncIterator[TaskLocker]:
    """Open a client of relock, as the documentation advises, with the lease of the others, which several masters need.

    A first connection may take a busy machine longer than a second.
    """
    async with AsyncClient(list(job.urls), ttl=job.ttl, node_timeout=job.ttl / 3) as client:

        async def locker() -> TaskLock:
            lock = client.lock(job.name)
            await lock.locked()  # connects the client
            return lock

        yield locker


@asynccontextmanager
async def redis_py_site(job: Job) -> AsyncIterator[TaskLocker]:
    """Open a client of redis-py's asyncio."""
    async with redis.asyncio.Redis(port=ports_of(job)[0], max_connections=1000) as client:

        async def locker() -> TaskLock:
            await client.ping()
            return client.lock(job.name, timeout=job.ttl)

        yield locker


class LoopPairs:
    """Uncontended pairs on an event loop of their own, which runs only while pairs are made."""

    pid = None

    def __init__(self, site: TaskSite, ports: Sequence[int], new_loop: NewLoop) -> None:
        self._loop, self._stack = new_loop(), AsyncExitStack()
        urls = tuple(f"redis://127.0.0.1:{port}" for port in ports)
        try:
            self._lock = self._loop.run_until_complete(self._open(site(Job("", urls, "bench-tasks"))))
        except BaseException:
            self._loop.close()
            raise

    async def _open(self, site: AbstractAsyncContextManager[TaskLocker]) -> TaskLock:
        locker = await self._stack.enter_async_context(site)
        return await locker()

    def close(self) -> None:
        """Close the connections and the loop."""
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()

    def many(self, count: int) -> float:
        """Return the time (s) of so many pairs, without the start and the stop of the loop."""
        return self._loop.run_until_complete(self._many(count))

    async def _many(self, count: int) -> float:
        lock = self._lock
        begin = time.perf_counter()
        for _ in range(count):
            await lock.acquire()
            await lock.release()
        return time.perf_counter() - begin


def on_loop(site: TaskSite, new_loop: NewLoop = asyncio.new_event_loop) -> Callable[[Sequence[int]], LoopPairs]:
    """Return a function that makes the pairs of one contestant, on a loop of its own."""
    return lambda ports: LoopPairs(site, ports, new_loop)
