"""Client for tasks of event loops: makes their locks, and asks the masters about locks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack

from relock._core.flows import inspect as inspect_flows
from relock._core.flows.inspect import LockInfo
from relock._core.hold import FOREVER
from relock._decorators import SynchronizesTasks
from relock._errors import ClientClosedError, ConfigurationError
from relock._holding import check_answered
from relock._options import (
    TTL_SECONDS_MIN,
    ClientArguments,
    ClientOptions,
    LockArguments,
    PermitArguments,
    SharedArguments,
    check_flag,
    check_seconds,
)
from relock._owner import running_loop
from relock._runtime.aio.foreground import Foreground
from relock._runtime.aio.on_loop import OnLoop
from relock._runtime.aio.on_thread import on_thread
from relock._runtime.net.parse import Nodes
from relock._runtime.session.session import Session
from relock._signatures import check_lock_keywords, lists
from relock._statistics import Statistics
from relock.aio_lock import AsyncLock, awaited
from relock.client import Client

if TYPE_CHECKING:
    from relock._elections import OnLost
    from relock.aio_election import Lead, Stop
    from relock.aio_latch import AsyncLatch
    from relock.aio_multi_lock import AsyncMultiLock
    from relock.aio_rwlock import AsyncRWLock
    from relock.aio_semaphore import AsyncSemaphore

T = TypeVar("T")

NAMES_AT_ONCE = 100  # a thread fetches this many at a time for `AsyncClient.names`
LOOK_SECONDS = 0.001  # `close` looks this often for connections that have ended


def _running_loop_of(foregrounds: dict[asyncio.AbstractEventLoop, Foreground]) -> asyncio.AbstractEventLoop | None:
    """Return, of the running loops in `foregrounds`, the one that was added last; None if none runs."""
    return next((loop for loop in reversed(list(foregrounds)) if loop.is_running()), None)


def _check_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise an error if `loop` can't be used.

    Raises:
        RuntimeError: no event loop of asyncio runs in this thread.
        ConfigurationError: the loop watches no sockets, as the Proactor loop of Windows.
    """
    if loop is None:
        raise RuntimeError("no event loop of asyncio runs in this thread, and relock knows no others, such as trio's")
    if type(loop).add_reader is asyncio.AbstractEventLoop.add_reader:
        raise ConfigurationError(f"a {type(loop).__name__} watches no sockets: relock needs a loop with add_reader")


class _OwnClient(Client):
    """The client of an `AsyncClient` that was given none; its ``repr`` says `AsyncClient`."""

    def __repr__(self) -> str:
        return super().__repr__().replace("relock.Client", "relock.AsyncClient")


class AsyncClient(SynchronizesTasks):
    """Locks for tasks, on one Redis or Valkey master, or on a quorum of several independent ones.

    Making a client checks the arguments, sends nothing and needs no event loop; the client connects when it is first
    used. A client may be a module's global, and be used in several loops, one after the other or at once. After
    ``fork()`` the child's copy is a fresh client that holds nothing.

    The watchdog that renews is a thread: a loop that stands still keeps its holds.

    Args:
        nodes: as for `Client`; or a `Client`, with no further option but ``stall_limit``: then threads and tasks have
            one session, and exclude each other.
        stall_limit: seconds, from 0.05, for which an event loop may stand still before relock stops renewing the holds
            of its tasks, so that other owners get their turn. The holds end within this time and two more leases.
            Default None: relock goes on renewing. In either case there is an event, `LoopStalled`.
        ttl: lease of a hold in seconds, 0.05 to 10 years; default 30.0.
        renew: the watchdog renews the lease after each third of it, while the owner lives; default True.
        fair: first come, first served; False lets a newcomer take a free lock before the queue; default True.
        node_timeout: longest wait for a master (s), 0.001 to ttl/3 and to a day; default None: ttl/10, in 0.1 to 1.
        max_hold: seconds, above 0, after which the watchdog renews a hold no more; default None: no limit.
        patience: seconds, 0 to ``math.inf``, for which an acquire goes on without a quorum; default 30.0.
        restart_guard: seconds, 0 to 10 years, without grants after a restart; default None: 0 for one master, else ttl.
        restart_guard_by: ``"server"``, the default: the guard asks which server it is; ``"marker"``: only for its key.
        min_replicas: replicas that must confirm a grant and a renewal, 0 to 2147483647; default 0.
        replica_timeout: longest wait for these replicas in seconds, above 0; default 1.0.
        max_connections: connections for calls to each master, from 1; default 64.
        handoff: ``"grant"``, the default: a release gives the lock to the first waiter; ``"wake"``: only wakes it.
        redisson: tell and hear waiters of Redisson's ``RLock`` on the same key; default False. One master only.
        deadlock: ``"raise"``, the default, ``"report"`` or ``"ignore"``: for a wait in a ring of callers.
        deadlock_after: seconds, from 0.5, until a wait looks for a ring of several clients; default 2.5; None: never.
        long_wait: seconds, above 0, after which a wait for a lock is an event `LongWait`; default None: never.
        drift_factor: allowance for clocks of different rates, as a part of the ttl, 0.0 to 0.5; default 0.01.
        prefix: first part of every key and channel, not empty, without braces; default ``"lock"``.
        client_name: readable part of the client's name on the server; default None: host and process id.
        on_lost: called with a `Loss` for each hold that was lost, as that of `lock`; default None.
        on_event: called with each `Event`, in the same way; default None.

    Raises:
        TypeError: an argument of a wrong type, an unknown option.
        ConfigurationError: a value that can't work.
    """

    @lists(ClientArguments, ClientOptions)
    def __init__(
        self, nodes: Nodes | Client, *, stall_limit: float | None = None, **options: Unpack[ClientArguments]
    ) -> None:
        if stall_limit is not None:
            check_seconds("stall_limit", stall_limit, TTL_SECONDS_MIN, FOREVER, f"at least {TTL_SECONDS_MIN} seconds")
        self._stall_limit = FOREVER if stall_limit is None else stall_limit
        self._foregrounds: dict[asyncio.AbstractEventLoop, Foreground] = {}
        self._loop = partial(
            _running_loop_of, self._foregrounds
        )  # a bound method would keep the client alive in each callback
        if isinstance(nodes, Client):
            if options:
                raise TypeError(f"a Client has its options already: pass {', '.join(options)} to the Client")
            self._client, self._is_own = nodes, False
        else:
            self._call_on_loop(options, "on_lost", "on_event")
            self._client, self._is_own = _OwnClient(nodes, **options), True
        self._is_closed = False

    @property
    def _session(self) -> Session:
        """Session of the client in this process."""
        return self._client._session

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client is closed: make a new one")

    def _foreground(self) -> Foreground:
        """Return the foreground of the running loop; raise `ClientClosedError` once the client was closed."""
        if self._is_closed:
            self._check_open()
        loop: Any = running_loop()
        foreground = self._foregrounds.get(loop)
        if foreground is None or foreground.session is not self._client._session:
            _check_loop(loop)
            self._forget_closed_loops()
            foreground = self._foregrounds[loop] = self._make_foreground(loop)
        return foreground

    def _make_foreground(self, loop: asyncio.AbstractEventLoop) -> Foreground:
        return Foreground(self._session, loop, self._stall_limit)

    def _call_on_loop(self, options: Any, *names: str) -> None:
        """Have the callbacks with these `names` among the `options` called on a loop that uses the client."""
        for name in names:
            callback = options.get(name)
            if callable(callback):
                options[name] = OnLoop(callback, self._loop)

    def _forget_closed_loops(self) -> None:
        """Forget the loops that are closed, and have the calls of their tasks undone."""
        for loop in [loop for loop in self._foregrounds.copy() if loop.is_closed()]:
            foreground = self._foregrounds.pop(loop, None)
            if foreground is not None and foreground.session is self._session:
                foreground.abandon()

    # Locks ----------------------------------------------------------------------------------------------------------

    @lists(LockArguments)
    def lock(self, name: str, *, cancel_on_lost: bool = False, **options: Unpack[LockArguments]) -> AsyncLock:
        """Return a lock; send nothing.

        Args:
            name: any non-empty str that has a UTF-8 form and does not begin with ``}``.
            ttl: lease in seconds, 0.05 to 10 years; with several masters at most the guard; default: the client's.
            renew: whether the watchdog renews the lease while the owner lives; default: the client's.
            fair: first come, first served; False lets a newcomer take a free lock; default: the client's.
            timeout: longest wait in seconds, from 0, of ``async with`` and of `AsyncLock.acquire` without a timeout; -1
                or None, the default: as long as it takes.
            owner: tasks and threads of this client that name the same owner share the hold; default None: the calling
                task.
            max_hold: seconds, above 0, after which the watchdog renews the hold no more; default: the client's.
            deadlock: what a wait does in a deadlock: ``"raise"``, ``"report"`` or ``"ignore"``; default: the client's.
            on_lost: called once with a `Loss` if the hold is lost, on the loop that uses the client: a function by
                ``call_soon``, a coroutine function as a task. If no loop runs, on a thread of its own. Default None.
            cancel_on_lost: whether relock cancels the body of an ``async with`` if the hold is lost; leaving the body
                then raises `LockLostError`. A cancellation from elsewhere at the same moment goes on as such. Another
                owner may have the lock before the body stops. `AsyncLock.acquire` cancels nothing. Default False.
            at_least: seconds, 0 to 10 years, from the grant on, for which the lock stays taken even if it is released
                earlier; with several masters at most the guard; default 0.0.
            note: text for people that look at the lock, such as which job it is or a URL, which the masters keep with
                the hold: a str of 1 to 200 bytes in UTF-8; default None.

        Raises:
            TypeError: an argument of a wrong type, an unknown option.
            ConfigurationError: a value that can't work.
        """
        check_lock_keywords("lock", options)
        check_flag("cancel_on_lost", cancel_on_lost)
        self._call_on_loop(options, "on_lost")
        return AsyncLock(self, self._client._spec_of(name, **options), cancel_on_lost=cancel_on_lost)

    @lists(SharedArguments)
    def lock_all(
        self, names: Iterable[str], *, cancel_on_lost: bool = False, **options: Unpack[SharedArguments]
    ) -> "AsyncMultiLock":
        """Return one lock for several names: it takes all of them or none; send nothing.

        Args:
            names: from 1 to 64 different names, each as for `lock`. Their order makes no difference.
            cancel_on_lost: as for `lock`; if any of the holds is lost.
            options: as for `lock`; each lock has them. ``timeout`` is the longest wait for all locks together. If
                several holds are lost, ``on_lost`` is called for the first one only.

        Raises:
            TypeError: an argument of a wrong type, such as a single str for the names; an unknown option.
            ConfigurationError: a value that can't work.
        """
        from relock.aio_multi_lock import AsyncMultiLock

        check_lock_keywords("lock_all", options, SharedArguments)
        check_flag("cancel_on_lost", cancel_on_lost)
        self._call_on_loop(options, "on_lost")
        return AsyncMultiLock(self, self._client._multi_spec_of(names, **options), cancel_on_lost=cancel_on_lost)

    @lists(SharedArguments)
    def rwlock(self, name: str, *, cancel_on_lost: bool = False, **options: Unpack[SharedArguments]) -> "AsyncRWLock":
        """Return a read-write lock: many readers or one writer; send nothing.

        Args:
            name: as for `lock`, which is the writer's side of the same name.
            cancel_on_lost: as for `lock`, for both sides.
            options: as for `lock`. With ``fair=False`` a writer waits for as long as new readers come.

        Raises:
            TypeError: an argument of a wrong type, an unknown option.
            ConfigurationError: a value that can't work.
        """
        from relock.aio_rwlock import AsyncRWLock

        check_lock_keywords("rwlock", options, SharedArguments)
        check_flag("cancel_on_lost", cancel_on_lost)
        self._call_on_loop(options, "on_lost")
        spec = self._client._spec_of(name, **options)
        return AsyncRWLock(self, spec, self._client._options, cancel_on_lost=cancel_on_lost)

    @lists(PermitArguments)
    def semaphore(self, name: str, limit: int, **options: Unpack[PermitArguments]) -> "AsyncSemaphore":
        """Return a semaphore: at most `limit` permits at a time; send nothing.

        Args:
            name: as for `lock`; a lock of the same name is another thing.
            limit: how many permits there are, 1 to 1,000. Callers with different limits each judge by their own.
            options: as for `lock`. ``owner`` names the permits, whose holders are not tied to a task then.

        Raises:
            TypeError: an argument of a wrong type, an unknown option.
            ConfigurationError: a value that can't work.
        """
        from relock.aio_semaphore import AsyncSemaphore

        check_lock_keywords("semaphore", options, PermitArguments)
        self._call_on_loop(options, "on_lost")
        spec = self._client._permit_spec_of(name, limit, **options)
        return AsyncSemaphore(self, spec, limit, self._client._options)

    def latch(self, name: str, parties: int, ttl: float = 3600.0) -> "AsyncLatch":
        """Return a latch, which opens once so many parties have arrived; send nothing.

        Args:
            name: as for `lock`; a lock of the same name is another thing. For the next round, use another name.
            parties: how many parties must arrive, 1 to 1,000; the same for all callers.
            ttl: seconds, 0.05 to 10 years, for which the masters remember the arrivals after the last one; default
                3600.0.

        Raises:
            TypeError: an argument of a wrong type.
            ConfigurationError: a value that can't work.
        """
        from relock._latches import latch_spec
        from relock.aio_latch import AsyncLatch

        client = self._client
        return AsyncLatch(self, latch_spec(client._options, client._addresses, name, parties, ttl))

    async def elect(
        self,
        name: str,
        lead: "Lead",
        *,
        stop: "Stop" = None,
        ttl: float | None = None,
        note: str | None = None,
        on_lost: "OnLost" = None,
    ) -> None:
        """Await `lead` with an `AsyncTerm` whenever this process is the leader, until `stop` is set; return then.

        When `lead` returns, the leadership is given up and the campaign goes on; also after a loss, which cancels
        `lead`, and while too few masters answer. A cancellation of this task ends the campaign at once.

        Args:
            name: as for `lock`, which is what a leader has; ``max_hold`` does not count.
            lead: awaited in this task. Its exception gives the leadership up, and is raised here.
            stop: an `asyncio.Event` that ends the campaign, within about a second if it waits; default None: never.
            ttl: as for `lock`. A dead leader is followed within this time and about a second.
            note: as for `lock`.
            on_lost: as for `lock`.

        Raises:
            TypeError, ConfigurationError, ClientClosedError: as `lock` and `AsyncLock.acquire`.
        """
        from relock.aio_election import campaign

        await campaign(partial(self.lock, name, ttl=ttl, note=note), lead, stop, on_lost)

    # Looking --------------------------------------------------------------------------------------------------------

    async def info(self, name: str) -> LockInfo:
        """Return the holder and the waiters of a lock, as a quorum of the masters agree on them.

        Raises:
            QuorumError: too few masters answered.
        """
        spec = self._client._spec_of(name)
        answers = await self._foreground().run(inspect_flows.look(spec, self._session.clock))
        return self._client._agree(name, answers)

    @awaited
    async def force_release(self, name: str) -> bool:
        """End any hold of `name`, as `AsyncLock.force_release` does.

        Raises:
            QuorumError: too few masters answered.
        """
        spec, since = self._client._spec_of(name), self._session.clock()
        released, answers = await self._foreground().run(inspect_flows.force_release(spec, self._session.clock))
        if released:
            self._session.reports.forced(name, since)
        self._session.raise_pending_warnings()
        check_answered(name, answers, self._session.quorum)
        return bool(released)

    async def names(self, pattern: str = "*", kind: str | None = None) -> AsyncIterator[str]:
        """Iterate over the names that are held or waited for on any master, in no order, each once.

        Args:
            pattern: a glob for the whole name, as in Redis: ``*``, ``?`` (one byte), ``[ab]``, ``[a-c]``, ``[^ab]``; a
                backslash escapes the next character. Default: all names.
            kind: ``"lock"``, ``"semaphore"`` or ``"latch"``, for the names of these only; default None: all.

        Raises:
            ConfigurationError: the pattern has no UTF-8 form, or there is no such kind.
            QuorumError: too few masters answered. A lock that changes meanwhile may be listed or not.
        """
        self._check_open()
        names = self._client.names(pattern, kind)
        while batch := await self._on_thread(lambda: [*islice(names, NAMES_AT_ONCE)]):
            for name in batch:
                yield name

    async def check(self) -> tuple[str, ...]:
        """Connect, and return the faults of the masters, in words; empty if all is well.

        If a quorum answers, a master that does not answer is one of the faults.

        Raises:
            QuorumError: too few masters answered.
            ConfigurationError: a master can't be used at all, or two are the same server.
        """
        self._check_open()
        return await self._on_thread(self._client.check)

    def statistics(self) -> Statistics:
        """Return the counts so far, and the state of each master; no I/O."""
        return self._client.statistics()

    async def _on_thread(self, function: Callable[[], T]) -> T:
        return await on_thread(self._session.platform, asyncio.get_running_loop(), function)

    # The end --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the waits of tasks and the connections of all loops; close the `Client`, if none was given.

        A `Client` that was given stays open. For a loop that stands still, this waits a node timeout at most, and two
        more if calls of the loop's tasks are under way.

        Holds are not released, because a task may still be inside: they end with their leases, and a later
        `AsyncLock.release` ends them locally. If a `Client` was given, that release ends them on the masters, too.
        """
        self._is_closed = True
        if self._is_own:
            await self._on_thread(self._client.close)
        ends = list(self._foregrounds.values())
        self._foregrounds.clear()
        for foreground in ends:
            foreground.stop()
        await self._while(lambda: any(foreground.is_in_use for foreground in ends))
        for foreground in ends:
            foreground.close()
        await self._while(lambda: any(foreground.is_open for foreground in ends))

    async def _while(self, is_so: Callable[[], bool]) -> None:
        """Wait while `is_so()` is true, for a node timeout at most: another loop may stand still."""
        session = self._session
        until = session.clock() + session.node_timeout
        while is_so() and session.clock() < until:
            await asyncio.sleep(LOOK_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    if not TYPE_CHECKING:  # a type checker must see no `__enter__`, and so refuses `with`

        def __enter__(self) -> Never:
            raise TypeError("an AsyncClient is for tasks: use `async with`, not `with`; threads use a relock.Client")

        __exit__ = __enter__  # Python looks both up before it calls `__enter__`

    def __reduce__(self) -> Never:
        raise TypeError("an AsyncClient can't be pickled: make one in each process")

    def __repr__(self) -> str:
        shown = repr(self._client).replace("relock.Client", "relock.AsyncClient")
        return shown.replace("<open ", "<closed ", 1) if self._is_closed else shown
