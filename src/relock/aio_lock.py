"""Lock for tasks of an event loop: the class that users call, with the docstrings that they read."""

import math
import sys
from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Never, ParamSpec, Protocol, Self, TypeVar

from relock._core.call_record import CallFlow, CallRecord, OvertakenError
from relock._core.calls import Calls
from relock._core.flows.inspect import LockInfo
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Outcome
from relock._core.renewal import confirm_lease, renew_now
from relock._errors import RelockError
from relock._holding import NOT_KNOWN, Handle, HasSession, Holding, told_entry, too_few, too_little
from relock._options import check_seconds
from relock._owner import Owner
from relock._runtime.aio.foreground import Foreground, current_task
from relock._runtime.aio.loss_hook import LossHooks
from relock._signatures import called_as, check_keywords
from relock.lock import NOT_PASSED, acquiring, longest_wait

P = ParamSpec("P")
T = TypeVar("T")


class AwaitedCall(Coroutine[Any, Any, T]):
    """Coroutine that raises `TypeError` in ``bool()``: ``if lock.acquire():`` without ``await`` would always be true.

    The doors declare it as a plain `Coroutine`: only for that very type, type checkers report a call that stands alone
    without ``await``.

    Args:
        coroutine: the coroutine that runs.
        unbegun: called if an exception is thrown in before the first step, as none of the coroutine's code runs then.
            That happens to a task that ``asyncio.create_task`` has made of the coroutine, if the task is cancelled at
            once. Awaited directly, the coroutine begins at once.
    """

    __slots__ = ("_coroutine", "_unbegun")

    def __init__(self, coroutine: Coroutine[Any, Any, T], unbegun: Callable[[], object] | None = None) -> None:
        self._coroutine = coroutine
        self._unbegun = unbegun  # None from the first step on

    def __bool__(self) -> bool:
        if sys._getframe(1).f_globals.get("__name__") == "asyncio.base_tasks":
            return True  # the `repr` of a task asks, from Python 3.12 on
        raise TypeError("this call has not run yet, so it is neither true nor false: await it")

    def __await__(self) -> Generator[Any, Any, T]:
        self._unbegun = None
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """Resume the coroutine with `value`."""
        self._unbegun = None
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /) -> Any:
        """Raise an exception in the coroutine, as `collections.abc.Coroutine` does, or with the exception alone."""
        unbegun, self._unbegun = self._unbegun, None
        try:
            if isinstance(kind, BaseException):
                return self._coroutine.throw(kind)
            return self._coroutine.throw(kind, value, traceback)
        finally:
            if unbegun is not None:
                unbegun()

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        """Show debuggers, and the ``repr`` of a task, which code runs and where."""
        if name.startswith("cr_") or name in ("__name__", "__qualname__"):
            return getattr(self._coroutine, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def awaited(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a coroutine function return an `AwaitedCall`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return AwaitedCall(function(*args, **kwargs))

    return call


class AsyncLockClient(HasSession, Protocol):
    """Part of a client that its locks use."""

    _is_closed: bool

    def _foreground(self) -> Foreground:
        """Return the foreground of the running loop; raise `ClientClosedError` once the client was closed."""

    async def info(self, name: str) -> LockInfo:
        """Return the holder and the waiters of the lock `name`."""

    async def force_release(self, name: str) -> bool:
        """End any hold of the lock `name`."""


class AsyncReleaseDoor(Handle):
    """Door for tasks that gives back a lock, several locks, or a permit.

    Attributes:
        _releasing: returns the flow of a release.
    """

    __slots__ = ()

    _client: AsyncLockClient
    _current_task = staticmethod(current_task)
    _releasing: ClassVar[Callable[..., CallFlow[None]]]

    def _who(self) -> Owner:
        return self._named_owner or current_task() or self._refuse_outside_task()

    def _refuse_outside_task(self) -> Never:
        raise RuntimeError(
            f"{self.name!r} was used outside a task of asyncio: a hold belongs to the task that calls, so call it "
            "inside an `async def`; in a callback, name an owner="
        )

    def release(self) -> Coroutine[Any, Any, None]:
        """Release one level of a lock, or a permit; the last level ends the hold, whatever the masters do.

        A cancelled release is carried out. The returned coroutine must be awaited, or made a task: otherwise nothing is
        released.

        If less than a quorum confirms this, there is an event and a log line, no error: the lease ends by itself.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost before.
            RuntimeError: it is called outside a task, without ``owner=``.
        """
        who = self._who()
        return AwaitedCall(self._release(who), partial(self._release_later, who))

    def _release_later(self, who: Owner) -> None:
        """Have a level given back in the background, for a release that was cancelled before it began."""
        self._client._session.interrupted_of_tasks.undo_release(CallRecord(), self._spec, who, 1)

    async def _release(self, who: Owner) -> None:
        record, session = CallRecord(), self._client._session
        if self._client._is_closed:
            self._release_of_closed_client(record, who)
            return
        try:
            foreground = self._client._foreground()
            await foreground.run(self._releasing(foreground.calls, record, self._spec, who), record)
        except BaseException as error:
            if not record.is_overtaken:
                self._undo_release(record, who, error)
            elif isinstance(error, OvertakenError):
                if not record.has_begun:  # else the undo of the overtaken call carries the release out
                    await self._release(who)
                return
            elif not record.has_begun:
                self._undo_release(CallRecord(), who, error)
            raise
        if session.pending_warnings:
            session.raise_pending_warnings()

    def _undo_release(self, record: CallRecord, who: Owner, error: BaseException) -> None:
        """Leave the gate after an error of relock; after any other, have the release carried out in the background."""
        interrupted = self._client._session.interrupted_of_tasks
        if isinstance(error, RelockError):
            interrupted.fail(record)
        else:
            interrupted.undo_release(record, self._spec, who, 1)

    def _release_of_closed_client(self, record: CallRecord, who: Owner) -> None:
        """Release a level in the background, if the session is still open: the closed client sends no requests."""
        session = self._client._session
        try:
            for name in self._names:
                session.check_valid(self._held_of(name, who))
        finally:
            session.interrupted_of_tasks.undo_release(record, self._spec, who, 1)


class AsyncDoor(AsyncReleaseDoor):
    """Door for tasks: takes and gives back a lock, or several as one.

    Attributes:
        _acquiring: returns the flow of an acquire.
        _with_note: returns the flow that adds the holder's note to the outcome of a wait in vain.
    """

    __slots__ = ()

    _loss_hooks: LossHooks | None
    _acquiring: ClassVar[Callable[..., CallFlow[Any]]]
    _with_note: Callable[[Any, float], CallFlow[Any]]

    # Taking and giving back -----------------------------------------------------------------------------------------

    @called_as(acquiring)
    def acquire(
        self, blocking: bool = True, timeout: float = NOT_PASSED, **_unknown: Never
    ) -> Coroutine[Any, Any, bool]:
        """Take the lock, or one more level of it if the caller has it. The caller is the task that calls this.

        The call sends nothing: awaiting the result, once, takes the lock. The result itself is neither true nor false:
        ``if lock.acquire():`` without ``await`` raises `TypeError`, and so does each member that is awaited.

        Args:
            blocking: False tries once and never queues; with ``fair=True`` that fails while others wait. Default True.
            timeout: longest wait in seconds, 0 to `threading.TIMEOUT_MAX`; -1: as long as it takes. Default: the lock's
                own ``timeout=``. A wait ends at its timeout plus at most one ``node_timeout``, and another one if the
                event loop stood still for as long.

        Returns:
            True if the caller has the lock now, False if *another owner* has it, or a waiter's turn comes first.

        Raises:
            ValueError: a timeout below 0 other than -1, NaN, or any with ``blocking=False``.
            OverflowError: a timeout above `threading.TIMEOUT_MAX`, also an infinite one of either sign.
            TypeError: a timeout that is no number, an unknown keyword.
            QuorumError: too few masters answered the last attempt, and ``patience`` or the timeout is over.
            LockLostError: the caller's hold was lost, and the caller has not left all its levels yet.
            RuntimeError: it is called outside a task, without ``owner=``.
            ClientClosedError: the client is closed.
        """
        if _unknown:
            check_keywords("acquire", _unknown, ("blocking", "timeout"))
        if timeout is NOT_PASSED and isinstance(blocking, bool):
            limit = self._longest if blocking else 0.0
        else:
            limit = longest_wait(self._longest, blocking, timeout)
        who = self._named_owner or current_task() or self._refuse_outside_task()
        return AwaitedCall(self._take(who, limit))

    async def _take(self, who: Owner, limit: float, *, must: bool = False) -> bool:
        """Return whether the caller has the lock now; if it has not and `must`, raise `AcquireTimeoutError`."""
        foreground = self._client._foreground()
        until = foreground.session.clock() + limit
        while True:
            record, session = CallRecord(), foreground.session
            try:
                flow = self._acquiring(foreground.calls, record, self._spec, who, until)
                outcome: Outcome | None = await foreground.run(flow, record, until)
                if session.pending_warnings:
                    session.raise_pending_warnings()
                if outcome is not None:
                    self._refusal(outcome)
                break
            except OvertakenError:
                foreground = self._client._foreground()
            except BaseException as error:
                if not record.is_overtaken:
                    session.interrupted_of_tasks.undo_acquire(record)
                if session.pending_warnings:
                    session.raise_pending_warnings(beside=error)
                raise
        if outcome is None:
            return True
        if must:
            raise self._timeout_error(await foreground.run(self._with_note(outcome, until), until=until))
        return False

    async def __aenter__(self) -> Self:
        """Take the lock, waiting for the lock's own ``timeout=`` at most.

        Raises:
            AcquireTimeoutError: another owner had the lock for all that time, or waiters came first. The body does not
                run.
            QuorumError, LockLostError, RuntimeError, ClientClosedError: as `acquire`.
        """
        who, calls = self._who(), self._client._foreground().calls
        await self._take(who, self._longest, must=True)
        if self._loss_hooks is not None:  # from here on nothing is raised, or the hold would stay
            self._loss_hooks.add(self._holds_of(who))
            calls.hear_ends()
        return self

    @told_entry("_current_task")
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        *,
        entered: Owner | None = NOT_KNOWN,
    ) -> None:
        """Release one level; an exception of the body propagates.

        Beside an exception of the body, the errors below are a note on that exception and a warning in the log. They
        are raised if the body succeeded, if it was cancelled because the hold was lost, or if Python closes a generator
        in it (`GeneratorExit`). The block itself passes `entered`.

        Raises:
            LockLostError: the hold was lost during the body.
            NotOwnedError: the body released more than it acquired, or another task has entered the block.
        """
        if entered is not current_task() and self._would_leave_another(entered):
            raise self._not_entered()
        who = self._who()
        hook = None if self._loss_hooks is None else self._loss_hooks.remove(self._holds_of(who))
        try:
            is_cancelled_by_us = hook is not None and await hook.end(error)
        except BaseException:  # another cancellation came as well
            self._release_later(who)
            raise
        try:
            await self._release(who)
        except RelockError as failure:
            if error is None or is_cancelled_by_us or isinstance(error, GeneratorExit):
                raise failure from error
            self._note_beside(error, failure)

    if not TYPE_CHECKING:  # a type checker must see no `__enter__`, and so refuses `with`

        def __enter__(self) -> Never:
            raise TypeError(
                f"{self.name!r} is a lock for tasks: use `async with`, not `with`; threads use a lock of relock.Client"
            )

        __exit__ = __enter__  # Python looks both up before it calls `__enter__`


class AsyncHeldDoor(AsyncReleaseDoor, Holding):
    """Door for tasks to one hold: that of the caller on a lock, or that of a permit."""

    __slots__ = ()

    _releasing: ClassVar[Callable[..., CallFlow[None]]] = staticmethod(Calls.release)

    def ensure(self, seconds: float = 0.0) -> Coroutine[Any, Any, int]:
        """Check, usually without I/O, that the caller's hold is valid for `seconds` more.

        One case sends a request: a release has just given the caller the lock, with a lease of 3 s at first, and less
        than `seconds` is left of it. Then the masters are asked for the full lease, once.

        Args:
            seconds: the time that must be left at least, 0 to infinity; default 0.0.

        Returns:
            The fencing token of the hold, to be sent along with an action that must not happen twice.

        Raises:
            LockLostError: the hold was lost, or has less left than `seconds`; in the second case the hold goes on.
            NotOwnedError: the caller holds nothing.
            TypeError, ConfigurationError: `seconds` is no number of seconds from 0.
            RuntimeError: it is called outside a task, without ``owner=``.
        """
        check_seconds("seconds", seconds, 0.0, math.inf, "0 or more")
        return AwaitedCall(self._ensure(self._held(), seconds))

    async def _ensure(self, hold: Hold, seconds: float) -> int:
        session = self._client._session
        session.check_valid(hold)
        left = hold.remaining(session.clock())
        if left < seconds and hold.is_short:
            left = await self._client._foreground().run(confirm_lease(session, hold))
        if left < seconds:
            raise too_little(hold, left, seconds)
        return hold.token

    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, float]:
        """Renew the caller's hold now, on a quorum.

        Args:
            ttl: the lease from now on, in seconds, 0.05 to 10 years; later renewals use the larger ttl. Default None:
                the hold's own. The lease never gets shorter than it was.

        Returns:
            `remaining()` after the renewal.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost.
            QuorumError: too few masters confirmed it; the hold is still valid.
            TypeError, ConfigurationError: a ttl that can't be; with several masters, one above ``restart_guard``.
            RuntimeError: it is called outside a task, without ``owner=``.
        """
        self._check_ttl(ttl)
        return AwaitedCall(self._extend(self._held(), ttl))

    async def _extend(self, hold: Hold, ttl: float | None) -> float:
        session = self._client._session
        failures = await self._client._foreground().run(renew_now(session, hold, ttl))
        if failures is not None:
            raise too_few(self.name, self._spec, failures)
        return hold.remaining(session.clock())


class AsyncLock(AsyncDoor, AsyncHeldDoor):
    """Distributed lock for tasks: reentrant, fair, renewed while its owner lives. Made by `AsyncClient.lock`.

    A hold belongs to the task that *calls* `acquire`, or to ``owner=``; all lock objects of one client with the same
    name and owner share it. So ``asyncio.wait_for(lock.acquire(), 5)`` gives it to the caller. A child task is another
    owner than its parent, and waits for it.

    A cancelled `acquire` leaves nothing behind, and a cancelled `release` is carried out. In a callback, which is no
    task, each member that concerns the caller's hold raises `RuntimeError`, unless the lock has an ``owner=``.

    A holder that was paused past its lease may notice only after another owner has the lock. Call `ensure` before an
    action that must not happen twice, and check the `token` where the action takes effect.
    """

    __slots__ = ("_loss_hooks",)

    _client: AsyncLockClient
    _acquiring: ClassVar[Callable[..., CallFlow[Any]]] = staticmethod(Calls.acquire)

    def __init__(self, client: AsyncLockClient, spec: LockSpec, *, cancel_on_lost: bool) -> None:
        super().__init__(client, spec, spec.keys.name)
        self._loss_hooks = LossHooks() if cancel_on_lost else None

    @awaited
    async def locked(self) -> bool:
        """Ask the masters whether the lock is held. Return True unless a quorum says that the lock is free.

        Raises:
            QuorumError: too few masters answered.
        """
        return (await self._client.info(self.name)).held

    async def info(self) -> LockInfo:
        """Return the holder and the waiters of the lock, as `AsyncClient.info` does."""
        return await self._client.info(self.name)

    @awaited
    async def force_release(self) -> bool:
        """End any hold of the lock, for operators: the queue goes on, tokens go on rising.

        An owner with ``on_lost`` or ``cancel_on_lost`` is told, and usually learns of the loss in milliseconds. Any
        other one learns of the loss with its next renewal, nested acquire or release.

        Returns:
            True if the lock was held.

        Raises:
            QuorumError: too few masters answered.
        """
        return await self._client.force_release(self.name)

    def __reduce__(self) -> Never:
        raise TypeError("an AsyncLock can't be pickled: make one of a client in each process")
