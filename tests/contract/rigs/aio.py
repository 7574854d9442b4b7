"""The driver for tasks of event loops, over real servers as `contract.rigs.threads`.

The tests are written for callers that wait. So each thread of a test has an *actor*: a task of a loop in another
thread. The task does what its thread asks for, and owns what it acquires. An interrupt of the thread cancels its actor.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self

from support.masters import Deployment

from contract.rigs.rig import NODE_TIMEOUT, SOON, TTL, Interrupted, Running
from contract.rigs.threads import Thread, ThreadRig
from contract.rigs.watch import Watch
from relock import (
    AsyncClient,
    AsyncLatch,
    AsyncLock,
    AsyncMultiLock,
    AsyncPermit,
    AsyncRWLock,
    AsyncSemaphore,
    AsyncTerm,
    Client,
)
from relock._core.call_record import Step
from relock._core.effects import Park, Pause
from relock._runtime.aio.foreground import Foreground
from relock.lock import NOT_PASSED

LOOK_SECONDS = 0.004

Work = Callable[[], Coroutine[Any, Any, Any]]
Start = Callable[[Callable[[], Any]], Running]


class ActsForThread(Protocol):
    """Actor of a thread, as far as other threads use it."""

    def do(self, work: Work) -> Any:
        """Do the work, and return its result or raise its error."""

    def see(self, look: Callable[[], Any]) -> Any:
        """Look at something local as the task would."""


MyActor = Callable[[], ActsForThread]
"""Finds the actor of the caller."""


class Actor:
    """A task of a loop of its own, which one thread uses.

    Attributes:
        task: the task that does the work.
    """

    task: "asyncio.Task[None]"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._work: asyncio.Queue[tuple[Work, Future[Any]] | None] = asyncio.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        _of_thread.inside = self
        self.task = self.loop.create_task(self._act())
        self.loop.run_until_complete(self.task)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _act(self) -> None:
        while (given := await self._work.get()) is not None:
            work, result = given
            try:
                result.set_result(await work())
            except asyncio.CancelledError:
                self.task.uncancel()
                result.set_exception(Interrupted())
            except BaseException as error:
                result.set_exception(error)

    def do(self, work: Work) -> Any:
        """Do the work, and return its result or raise its error."""
        result: Future[Any] = Future()
        self.loop.call_soon_threadsafe(self._work.put_nowait, (work, result))
        return result.result()

    def see(self, look: Callable[[], Any]) -> Any:
        """Look at something local as the task would."""

        async def looking() -> Any:
            return look()

        return self.do(looking)

    def cancel(self) -> None:
        """Cancel the work that the task does now."""
        self.loop.call_soon_threadsafe(self.task.cancel)

    def end(self) -> None:
        """End the task, its loop and its thread."""
        self.loop.call_soon_threadsafe(self._work.put_nowait, None)
        self._thread.join(SOON)


class _OfThread(threading.local):
    """The actor of each thread, and the actor whose loop runs in the thread."""

    actor: Actor | None = None
    inside: Actor | None = None


_of_thread = _OfThread()
_actors: list[Actor] = []


def my_actor() -> Actor:
    """Return the actor of the calling thread."""
    if _of_thread.actor is None:
        _of_thread.actor = Actor()
        _actors.append(_of_thread.actor)
    return _of_thread.actor


def current() -> object:
    """Return the caller's actor, or the actor that the caller is; the watch asks for it."""
    inside = _of_thread.inside
    if inside is None:
        return my_actor()
    return inside if asyncio.current_task() is inside.task else None


class WatchedForeground(Foreground):
    """A foreground whose effects the watch sees: before and after each."""

    def __init__(self, session: Any, loop: asyncio.AbstractEventLoop, watch: Watch) -> None:
        super().__init__(session, loop, float("inf"))
        self._handlers = {kind: self._around(kind.__name__, handle, watch) for kind, handle in self._handlers.items()}

    def _around(self, name: str, handle: Callable[[Any], Any], watch: Watch) -> Callable[[Any], Any]:
        async def seen(effect: Step) -> Any:
            seconds = 0.0
            if isinstance(effect, Park):
                seconds = effect.until - self.session.clock()
            elif isinstance(effect, Pause):
                seconds = effect.seconds
            watch.see(f"before {name}", seconds)
            result = await handle(effect)
            watch.see(f"after {name}")
            return result

        return seen


class WatchedAsyncClient(AsyncClient):
    """A client whose tasks' steps the watch sees."""

    def __init__(self, client: Client, watch: Watch) -> None:
        super().__init__(client)
        self._watch = watch

    def _make_foreground(self, loop: asyncio.AbstractEventLoop) -> Foreground:
        return WatchedForeground(self._session, loop, self._watch)


class LockOfActors:
    """An `AsyncLock` as threads use a `Lock`."""

    def __init__(self, lock: AsyncLock | AsyncMultiLock, actor: MyActor) -> None:
        self._lock: Any = lock
        self._actor = actor
        self.name = lock.name

    def acquire(self, blocking: bool = True, timeout: float = NOT_PASSED) -> Any:
        return self._actor().do(lambda: self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._actor().do(self._lock.release)

    def __enter__(self) -> Self:
        self._actor().do(self._lock.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._actor().do(lambda: self._lock.__aexit__(kind, error, traceback))

    def extend(self, ttl: float | None = None) -> Any:
        return self._actor().do(lambda: self._lock.extend(ttl))

    def ensure(self, seconds: float = 0.0) -> Any:
        return self._actor().do(lambda: self._lock.ensure(seconds))

    def locked(self) -> Any:
        return self._actor().do(self._lock.locked)

    def info(self) -> Any:
        return self._actor().do(self._lock.info)

    def force_release(self) -> Any:
        return self._actor().do(self._lock.force_release)

    def owned(self) -> Any:
        return self._actor().see(self._lock.owned)

    def remaining(self) -> Any:
        return self._actor().see(self._lock.remaining)

    @property
    def hold_count(self) -> Any:
        return self._actor().see(lambda: self._lock.hold_count)

    @property
    def token(self) -> Any:
        return self._actor().see(lambda: self._lock.token)

    @property
    def lost(self) -> Any:
        return self._actor().see(lambda: self._lock.lost)

    @property
    def _spec(self) -> Any:
        return self._lock._spec


class MultiLockOfActors(LockOfActors):
    """An `AsyncMultiLock` as threads use a `MultiLock`."""

    def __init__(self, lock: AsyncMultiLock, actor: MyActor) -> None:
        super().__init__(lock, actor)
        self.names = lock.names

    @property
    def tokens(self) -> Any:
        return self._actor().see(lambda: self._lock.tokens)


class PermitOfActors(LockOfActors):
    """An `AsyncPermit` as threads use a `Permit`."""

    def __init__(self, permit: AsyncPermit, actor: MyActor) -> None:
        super().__init__(permit, actor)  # type: ignore[arg-type]
        self.permits = permit.permits

    @property
    def slot(self) -> Any:
        return self._actor().see(lambda: self._lock.slot)


class WriteLockOfActors(LockOfActors):
    """An `AsyncWriteLock` as threads use a `WriteLock`."""

    def downgrade(self) -> None:
        self._actor().do(self._lock.downgrade)


class RWLockOfActors:
    """An `AsyncRWLock` as threads use an `RWLock`."""

    def __init__(self, lock: AsyncRWLock, actor: MyActor) -> None:
        self._lock = lock
        self._actor = actor
        self.name = lock.name
        self.read = LockOfActors(lock.read, actor)
        self.write = WriteLockOfActors(lock.write, actor)

    def info(self) -> Any:
        return self._actor().do(self._lock.info)


class SemaphoreOfActors:
    """An `AsyncSemaphore` as threads use a `Semaphore`."""

    def __init__(self, semaphore: AsyncSemaphore, actor: MyActor) -> None:
        self._semaphore: Any = semaphore
        self._actor = actor
        self.name = semaphore.name

    def acquire(self, permits: int = 1, **options: Any) -> PermitOfActors | None:
        permit = self._actor().do(lambda: self._semaphore.acquire(permits, **options))
        return None if permit is None else PermitOfActors(permit, self._actor)

    def __enter__(self) -> PermitOfActors:
        return PermitOfActors(self._actor().do(self._semaphore.__aenter__), self._actor)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._actor().do(lambda: self._semaphore.__aexit__(kind, error, traceback))

    def info(self) -> Any:
        return self._actor().do(self._semaphore.info)

    def override(self, limit: int, seconds: float) -> None:
        self._actor().do(lambda: self._semaphore.override(limit, seconds))

    def force_release(self, owner: str) -> Any:
        return self._actor().do(lambda: self._semaphore.force_release(owner))


class LatchOfActors:
    """An `AsyncLatch` as threads use a `Latch`."""

    def __init__(self, latch: AsyncLatch, actor: MyActor) -> None:
        self._latch = latch
        self._actor = actor

    def arrive(self, party: str | None = None) -> Any:
        return self._actor().do(lambda: self._latch.arrive(party))

    def wait(self, timeout: float = NOT_PASSED) -> Any:
        return self._actor().do(lambda: self._latch.wait(timeout))

    def missing(self) -> Any:
        return self._actor().do(self._latch.missing)

    def info(self) -> Any:
        return self._actor().do(self._latch.info)


class TermOfActors:
    """An `AsyncTerm` as threads use a `Term`."""

    def __init__(self, term: AsyncTerm, actor: MyActor) -> None:
        self._term = term
        self._actor = actor
        self.token, self.lost, self.remaining = term.token, term.lost, term.remaining

    def ensure(self, seconds: float = 0.0) -> Any:
        return self._actor().do(lambda: self._term.ensure(seconds))

    def resign(self) -> None:
        self._actor().do(self._term.resign)


class ClientOfActors:
    """An `AsyncClient` as threads use a `Client`."""

    def __init__(self, client: Client, watch: Watch, actor: MyActor, start: Start) -> None:
        self._client = client
        self._actor = actor
        self._start = start
        self._async = WatchedAsyncClient(client, watch)

    def lock(self, name: str, **options: Any) -> LockOfActors:
        return LockOfActors(self._async.lock(name, **options), self._actor)

    def lock_all(self, names: Iterable[str], **options: Any) -> MultiLockOfActors:
        return MultiLockOfActors(self._async.lock_all(names, **options), self._actor)

    def rwlock(self, name: str, **options: Any) -> RWLockOfActors:
        return RWLockOfActors(self._async.rwlock(name, **options), self._actor)

    def semaphore(self, name: str, limit: int, **options: Any) -> SemaphoreOfActors:
        return SemaphoreOfActors(self._async.semaphore(name, limit, **options), self._actor)

    def latch(self, name: str, parties: int, **options: Any) -> LatchOfActors:
        return LatchOfActors(self._async.latch(name, parties, **options), self._actor)

    def elect(self, name: str, lead: Callable[[TermOfActors], object], **options: Any) -> None:
        async def lead_beside(term: AsyncTerm) -> None:
            """Call the function in a thread of its own, because it waits for its actor."""
            running = self._start(lambda: lead(TermOfActors(term, self._actor)))
            while not running.is_over:
                await asyncio.sleep(LOOK_SECONDS)
            running.result()

        self._actor().do(lambda: self._async.elect(name, lead_beside, **options))

    def synchronized(self, template: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a function as the coroutine function that calls it."""
        decorator: Any = self._async.synchronized(template, **options)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            decorated = decorator(call)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return self._actor().do(lambda: decorated(*args, **kwargs))

            return wrapper

        return decorate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class AioRig(ThreadRig):
    """Rig of tasks over real servers."""

    sleep = "before Park"
    shares_connections = True

    def __init__(self, server: Deployment) -> None:
        super().__init__(server)
        self.watch = Watch(current)

    def client(self, *, ttl: float = TTL, node_timeout: float = NODE_TIMEOUT, **options: Any) -> Any:
        """Return a client behind the lines."""
        client = super().client(ttl=ttl, node_timeout=node_timeout, **options)
        return ClientOfActors(client, self.watch, my_actor, self.start)

    def interrupt(self, call: Callable[[], object], when: Callable[[], object]) -> bool:
        """Interrupt the call by cancelling the actor."""
        actor, over = my_actor(), threading.Event()

        def ring() -> None:
            self.until(lambda: over.is_set() or when(), "the moment to interrupt")
            if not over.is_set():
                actor.cancel()

        bell = Thread(ring)
        try:
            call()
        except Interrupted:
            return True
        finally:
            over.set()
            bell.result()
        return False

    def close(self) -> None:
        """End the actors, the clients and the servers."""
        super().close()
        while _actors:
            _actors.pop().end()
        _of_thread.actor = None
