"""Locks that the tasks of one event loop take: for hand-offs among them, and for pairs of one task that is alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

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


MakeSite = Callable[[Job], Any]
"""Makes, in the loop, a client for its tasks: `locker` is awaited for the lock of one more task, `close` in the end."""


class RelockSite:
    """One client of relock, as the documentation advises, with the lease of the others, which several masters need."""

    def __init__(self, job: Job) -> None:
        # A first connection may take a busy machine longer than a second.
        self._client = AsyncClient(list(job.urls), ttl=job.ttl, node_timeout=job.ttl / 3)
        self._name = job.name

    async def locker(self) -> TaskLock:
        lock = self._client.lock(self._name)
        await lock.locked()  # connects the client
        return lock

    async def close(self) -> None:
        await self._client.close()


class RedisPySite:
    """One client of redis-py's asyncio."""

    def __init__(self, job: Job) -> None:
        (port,) = ports_of(job)
        self._client = redis.asyncio.Redis(port=port, max_connections=1000)
        self._job = job

    async def locker(self) -> TaskLock:
        await self._client.ping()
        return self._client.lock(self._job.name, timeout=self._job.ttl)

    async def close(self) -> None:
        await self._client.aclose()


class LoopPairs:
    """Uncontended pairs on an event loop of their own, which runs only while pairs are made."""

    pid = None

    def __init__(self, make: MakeSite, ports: Sequence[int], new_loop: NewLoop) -> None:
        self._loop = new_loop()
        urls = tuple(f"redis://127.0.0.1:{port}" for port in ports)
        try:
            self._site, self._lock = self._loop.run_until_complete(self._open(make, Job("", urls, "bench-tasks")))
        except BaseException:
            self._loop.close()
            raise

    @staticmethod
    async def _open(make: MakeSite, job: Job) -> tuple[Any, TaskLock]:
        site = make(job)
        return site, await site.locker()

    def close(self) -> None:
        """Close the connections and the loop."""
        self._loop.run_until_complete(self._site.close())
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


def on_loop(make: MakeSite, new_loop: NewLoop = asyncio.new_event_loop) -> Callable[[Sequence[int]], LoopPairs]:
    """Return a function that makes the pairs of one contestant, on a loop of its own."""
    return lambda ports: LoopPairs(make, ports, new_loop)


def new_uvloop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop's."""
    import uvloop

    return uvloop.new_event_loop()
