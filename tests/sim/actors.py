"""Clients that run an event loop. Each worker of such a client has an *actor*: a task that makes the worker's calls.

A worker of these processes is a thread beside the loop, which waits for its actor as a program's main thread does. So
it takes its turns as all workers do, but the calls of relock are those of its actor, in the loop, and their owner is
the actor. An interrupt of the worker cancels the actor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from attrs import frozen
from support.virtual_actor import VirtualActor

from relock import AsyncClient, AsyncLock, AsyncMultiLock, AsyncReadLock, AsyncWriteLock, Client
from relock._owner import Owner, running_loop
from relock._runtime.aio.foreground import current_task as current_owner
from relock.aio_lock import AsyncDoor
from relock.testing._loop import VirtualLoop
from relock.testing._platform import VirtualQueue
from relock.testing._process import Process, Task, current_task
from sim.plan import LOCK

AWAITS = 4  # of a call, among whose first waits a cancellation strikes, at the end of one
WRAPPED_PART = 0.3  # of the calls, which a task of their own makes, as `wait_for` does; the actor awaits that task
CANCELLED_SECONDS_MAX = 0.02  # of a task that tries to take the lock when its loop ends
CLOSED_SECONDS = 60.0  # longer than it takes to close a loop
BLOCKED_PART = 0.2  # of a holder's checks, after which the next call blocks the loop in its midst


class Interrupted(BaseException):
    """Exception that a signal's handler raises in a thread; a task is cancelled instead."""


class SwallowedError(Exception):
    """Error of a call that went on though it was cancelled."""


class Actor(VirtualActor):
    """Actor whose calls are cancelled, wrapped in tasks, and blocked, as chance decides.

    Attributes:
        who: the task as an owner, once it has made a call.
    """

    who: Owner | None

    def __init__(self, loop: VirtualLoop, process: Process, random: Random) -> None:
        super().__init__(loop, process, Interrupted)
        self.who = None
        self._random = random
        self._block_seconds = 0.0  # for which its loop stands still once its next call has sent a request
        self._strike: int | None = None  # the wait at whose end the next call is cancelled; 0: before it begins
        self._wrapped: asyncio.Task[Any] | None = None  # makes the present call, if the actor itself does not

    def carry_out(self, coroutine: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        """Return an awaitable that carries out `coroutine`."""
        self.who, self._wrapped = current_owner(), None
        strike, self._strike = self._strike, None
        if strike:
            return _Counted(coroutine, strike, partial(self.cancel_call, self._doing))
        seconds, self._block_seconds = self._block_seconds, 0.0
        if seconds:
            return _Counted(coroutine, 0, bool, partial(self._loop.call_soon, self._process.sleep, seconds))
        if strike == 0 or self._random.random() < WRAPPED_PART:
            self._wrapped = self._loop.create_task(coroutine)
            if strike == 0:
                self._wrapped.cancel()
            return self._wrapped
        return _Counted(coroutine, 0, bool)

    def acting(self) -> "asyncio.Task[Any] | None":
        """Return the task that carries out the present call."""
        return self._wrapped or self.task

    # What its worker does -------------------------------------------------------------------------------------------

    def doom(self) -> None:
        """Let the next call be cancelled as one of its waits ends, in the same turn of the loop, or before the call."""
        self._strike = self._random.randint(0, AWAITS)

    def spare(self) -> None:
        """Call that cancellation off."""
        self._strike = None

    def block(self, longest: float) -> None:
        """Let the loop be blocked now and then in the actor's next call, for at least half of `longest` (s)."""
        if self._random.random() < BLOCKED_PART:
            self._block_seconds = longest * self._random.uniform(0.5, 1.0)


class _Counted:
    """Awaitable of a coroutine that calls `strike` just when its wait number `count` ends.

    That is before the coroutine goes on: so a cancellation comes in the same turn of the loop as the awaited result.

    Raises:
        SwallowedError: the coroutine was cancelled, and did not end by that at once.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        count: int,
        strike: Callable[[], object],
        begun: Callable[[], object] = bool,
    ) -> None:
        self._begun = begun  # called when the first wait begins
        self._coroutine = coroutine
        self._count = count
        self._strike = strike

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._coroutine.__await__()
        go_on: Callable[[], Any] = partial(steps.send, None)
        begun: Callable[[], object] = self._begun
        while True:
            try:
                awaited = go_on()
            except StopIteration as end:
                return end.value
            begun()
            begun = bool
            if isinstance(awaited, asyncio.Future):
                self._count -= 1
                if not self._count:
                    awaited.add_done_callback(lambda _: self._strike())
            go_on = partial(steps.send, None)
            try:
                yield awaited
            except asyncio.CancelledError as error:
                with suppress(StopIteration):
                    steps.throw(error)
                raise SwallowedError from error
            except BaseException as error:
                go_on = partial(steps.throw, error)


class _ByActor(AsyncDoor):
    """Door that also shows the actor's holds to the actor's worker, which is outside the loop."""

    actor: Actor

    def _who(self) -> Owner:
        if running_loop() is not None or self._named_owner is not None or self.actor.who is None:
            return super()._who()
        return self.actor.who


class _ActorsLock(_ByActor, AsyncLock):
    """Lock of an actor."""


class _ActorsMultiLock(_ByActor, AsyncMultiLock):
    """Several locks of an actor as one."""


class _ActorsReadLock(AsyncReadLock, _ByActor):
    """Lock of an actor that reads."""


class _ActorsWriteLock(_ByActor, AsyncWriteLock):
    """Lock of an actor that writes."""


class TaskLock:
    """An `AsyncLock`, several as one, or an `AsyncPermit`, as workers use a `Lock`."""

    def __init__(self, lock: Any, actor: Actor) -> None:
        self._lock = lock
        self.actor = actor
        self._spec = lock._spec

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Any:
        """Take the lock, or one more level, by the actor."""
        return self.actor.do(lambda: self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        """Release one level, by the actor."""
        self.actor.do(self._lock.release)

    def downgrade(self) -> None:
        """Let the actor be a reader in place of a writer."""
        self.actor.do(self._lock.downgrade)

    def extend(self, ttl: float | None = None) -> Any:
        """Renew the actor's hold now."""
        return self.actor.do(lambda: self._lock.extend(ttl))

    def ensure(self, seconds: float = 0.0) -> Any:
        """Check that the actor's hold is valid for long enough."""
        return self.actor.do(lambda: self._lock.ensure(seconds))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class TaskSemaphore(TaskLock):
    """An `AsyncSemaphore`, as workers use a `Semaphore`."""

    def take(self, permits: int, *, blocking: bool = True, timeout: float = -1) -> "TaskLock | None":
        """Take permits by the actor."""
        permit = self.actor.do(lambda: self._lock.acquire(permits, blocking=blocking, timeout=timeout))
        return permit and TaskLock(permit, self.actor)


@frozen
class TaskRWLock:
    """The two sides of an `AsyncRWLock`, as workers use those of an `RWLock`."""

    read: TaskLock
    write: TaskLock


class ClientOfActors:
    """A client whose process runs a loop, as workers use a `Client`.

    Attributes:
        is_left: its loop is closed, or is about to be.

    Args:
        client: the session's client.
        name: with the seed, it decides everything about loops; so all other choices are as in a run without loops.
        limit: the limit of the semaphore that tasks use in place of the lock, if any.
        reads: whether tasks use a read-write lock.
    """

    def __init__(
        self, client: Client, process: Process, name: str, *, limit: int | None = None, reads: bool = False
    ) -> None:
        self._process = process
        self._limit = limit
        self._reads = reads
        self._random = Random(f"loop {process.world.seed} {name}")
        self._client = AsyncClient(client)
        self._loop = self._make_loop()
        self._actors: dict[Task, Actor] = {}
        self.is_left = False

    def _make_loop(self) -> VirtualLoop:
        return VirtualLoop(self._process, timers_first=self._random.random() < 0.5)

    def actor(self) -> Actor:
        """Return the actor of the calling worker."""
        worker = current_task()
        if worker not in self._actors:
            self._actors[worker] = Actor(self._loop, self._process, self._random)
        return self._actors[worker]

    def close_loop(self, closed: Callable[[], object]) -> None:
        """Close the loop after its present turn, as a program does that leaves tasks behind; then call `closed`."""
        self.is_left = True
        self._loop.call_soon_threadsafe(self._loop.end, closed)

    def close(self) -> None:
        """Close the client at the end of a program, on its loop; or on another one after that loop was closed."""
        if len(self._actors) == 1 and self._random.random() < 0.5:
            self._end_loop()
            self.begin_anew()
        self._client._is_own = True  # so that the session's client is closed, too
        Actor(self._loop, self._process, self._random).do(self._client.close)

    def end_run(self) -> None:
        """End the loop as ``asyncio.run`` does, which cancels the other tasks."""
        for _ in range(self._random.choice([0, 1, 3])):
            self.actor().do(partial(self._cancel_one, self._random.random() * CANCELLED_SECONDS_MAX))
        self._end_loop()

    async def _cancel_one(self, seconds: float) -> None:
        """Let a task take the lock and hold it, and cancel that task after a while."""
        task = self._loop.create_task(self._hold())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])

    async def _hold(self) -> None:
        client, limit = self._client, self._limit
        door: Any = client.lock(LOCK) if limit is None else client.semaphore(LOCK, limit)
        if self._reads and self._random.random() < 0.5:
            door = client.rwlock(LOCK).read
        async with door:
            await asyncio.sleep(CLOSED_SECONDS)

    def _end_loop(self) -> None:
        closed = VirtualQueue(self._process)
        self.close_loop(partial(closed.put, None))
        closed.get(timeout=CLOSED_SECONDS)

    def begin_anew(self) -> None:
        """Make another loop, for other workers."""
        self._loop = self._make_loop()
        self.is_left = False

    def stand_still(self, sleep: Callable[[], object], *, is_stopped: bool) -> None:
        """Keep the loop from turning while `sleep` lasts: a callback blocks it, or it is stopped."""
        if is_stopped:
            self._loop.call_soon_threadsafe(self._loop.stop_for, sleep)
        else:
            self._loop.call_soon_threadsafe(sleep)

    def lock(self, name: str, **options: Any) -> TaskLock:
        """Return a lock that the actor of the caller uses."""
        made, actor = self._client.lock(name, **options), self.actor()
        lock = _ActorsLock(self._client, made._spec, cancel_on_lost=False)
        lock.actor = actor
        return TaskLock(lock, actor)

    def rwlock(self, name: str, **options: Any) -> TaskRWLock:
        """Return a read-write lock that the actor of the caller uses."""
        made, actor = self._client.rwlock(name, **options), self.actor()
        read = _ActorsReadLock(self._client, made.read._spec, cancel_on_lost=False)
        write = _ActorsWriteLock(self._client, made.write._spec, made.write._reading, cancel_on_lost=False)
        read.actor = write.actor = actor
        return TaskRWLock(TaskLock(read, actor), TaskLock(write, actor))

    def semaphore(self, name: str, limit: int, **options: Any) -> TaskSemaphore:
        """Return a semaphore that the actor of the caller uses."""
        return TaskSemaphore(self._client.semaphore(name, limit, **options), self.actor())

    def lock_all(self, names: list[str], **options: Any) -> TaskLock:
        """Return several locks as one, which the actor of the caller uses."""
        made, actor = self._client.lock_all(names, **options), self.actor()
        lock = _ActorsMultiLock(self._client, made._spec, cancel_on_lost=False)
        lock.actor = actor
        return TaskLock(lock, actor)


def actor_of(lock: Any) -> Actor | None:
    """Return the actor that uses a lock; None if a thread uses it."""
    return lock.actor if isinstance(lock, TaskLock) else None
