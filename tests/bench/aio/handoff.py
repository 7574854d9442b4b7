"""Who hands a lock over from task to task of one process, and what each task of theirs does."""

import asyncio
from collections.abc import Callable, Coroutine
from secrets import token_hex
from typing import Any, Protocol

import redis.asyncio

from bench.aio.loop_socket import LoopMessages, LoopSocket
from bench.aio.names import LOOP_HOP, REDIS_PY_TASKS, RELOCK_TASKS
from bench.bare_socket import BareSocket
from relock import AsyncClient
from relock.cli._bench.floor.hops import LEASE_MS
from relock.cli._bench.floor.sockets import FOLDER, packed
from relock.cli._bench.work import Job


class TaskLocker(Protocol):
    """One task's lock."""

    async def acquire(self) -> int:
        """Waits for the lock; the fencing token, or 0 where there is none."""

    def release(self) -> Coroutine[Any, Any, None]:
        """Gives it back."""


class TaskSite(Protocol):
    """What the tasks of one loop share; made in the loop."""

    async def locker(self) -> TaskLocker:
        """One for another task, connected."""

    async def close(self) -> None:
        """The end."""


# The floor ------------------------------------------------------------------------------------------------------------


class LoopHops:
    """The scripts of one hop, over the two sockets that the tasks of a loop share. It is never changed with relock."""

    def __init__(self, job: Job) -> None:
        loop, (port,) = asyncio.get_running_loop(), job.ports
        bare = BareSocket(port)
        self._shas = [bare.load((FOLDER / f"{name}.lua").read_bytes()) for name in ("enter", "grant")]
        bare.close()
        self._name = job.name
        self._commands, self._messages = LoopSocket(loop, port), LoopMessages(loop, port)

    async def locker(self) -> "LoopHop":
        """Subscribes to the channel of one more task."""
        me = f"{self._name}-{token_hex(8)}"
        await self._messages.call(packed("SUBSCRIBE", me))
        enter, leave = (
            packed("EVALSHA", sha, 2, self._name, f"{self._name}:queue", me, LEASE_MS) for sha in self._shas
        )
        return LoopHop(self._commands, self._messages, me.encode(), (enter, leave))

    async def close(self) -> None:
        """Closes the sockets."""
        self._commands.close()
        self._messages.close()


class LoopHop:
    """The release gives the lock to the head of the queue, and the message says so."""

    def __init__(self, commands: LoopSocket, messages: LoopMessages, me: bytes, scripts: tuple[bytes, bytes]) -> None:
        self._call, self._waiting, self._me = commands.call, messages.waiting, me
        self._enter, self._leave = scripts
        self._loop = asyncio.get_running_loop()

    async def acquire(self) -> int:
        """At once if the lock is free, else when the message comes, which may be before the reply."""
        granted = self._loop.create_future()
        self._waiting[self._me] = granted.set_result
        if not await self._call(self._enter):
            await granted
        return 0

    async def release(self) -> None:
        """One script."""
        await self._call(self._leave)


# Locks ----------------------------------------------------------------------------------------------------------------


class RelockSite:
    """A client that the tasks share, as the documentation advises."""

    def __init__(self, job: Job) -> None:
        self._client = AsyncClient(list(job.urls), ttl=job.ttl)
        self._name = job.name

    async def locker(self) -> "RelockLocker":
        """One for another task; the first connects the client."""
        locker = RelockLocker(self._client, self._name)
        await locker.lock.locked()
        return locker

    async def close(self) -> None:
        """Closes the client."""
        await self._client.close()


class RelockLocker:
    """One task's lock."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.lock = client.lock(name)
        self.release = self.lock.release

    async def acquire(self) -> int:
        """Waits as long as it takes; the fencing token."""
        await self.lock.acquire()
        return self.lock.token or 0


class RedisPySite:
    """A client of redis-py that the tasks share."""

    def __init__(self, job: Job) -> None:
        (port,) = job.ports
        self._client = redis.asyncio.Redis(port=port, max_connections=1000)
        self._job = job

    async def locker(self) -> "RedisPyLocker":
        """One for another task."""
        await self._client.ping()
        return RedisPyLocker(self._client.lock(self._job.name, timeout=self._job.ttl))

    async def close(self) -> None:
        """Closes the client."""
        await self._client.aclose()


class RedisPyLocker:
    """One task's lock."""

    def __init__(self, lock: "redis.asyncio.lock.Lock") -> None:
        self._acquire, self.release = lock.acquire, lock.release

    async def acquire(self) -> int:
        """Waits as long as it takes."""
        if not await self._acquire():
            raise RuntimeError("did not get the lock")
        return 0


SITES: dict[str, Callable[[Job], TaskSite]] = {
    LOOP_HOP: LoopHops,
    RELOCK_TASKS: RelockSite,
    REDIS_PY_TASKS: RedisPySite,
}
