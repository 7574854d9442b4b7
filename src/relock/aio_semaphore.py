"""Semaphore for tasks: the classes that users call, with the docstrings that they read."""

from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

from relock._core.call_record import CallRecord
from relock._core.flows import permits as permit_flows
from relock._core.flows.inspect import MasterReplies, look
from relock._core.flows.permits import SemaphoreInfo
from relock._errors import RelockError
from relock._holding import NOT_KNOWN, told_entry
from relock._owner import Owner, owner_of_permit
from relock._permits import PermitView, SemaphoreHandle
from relock._runtime.aio.foreground import current_task
from relock._signatures import called_as, check_keywords
from relock.aio_lock import AsyncHeldDoor, AsyncLockClient, AwaitedCall, awaited
from relock.lock import NOT_PASSED, longest_wait
from relock.semaphore import acquiring_permits


class AsyncPermit(PermitView, AsyncHeldDoor):
    """Permit of a semaphore, or several that were taken at once. Made by `AsyncSemaphore.acquire`, and its block.

    Any task may use it and release it. It is renewed while the task lives that acquired it, or, with ``owner=``, until
    it is released. A release gives back all permits that were taken at once.
    """

    __slots__ = ()

    def __reduce__(self) -> Never:
        raise TypeError("an AsyncPermit can't be pickled: it belongs to the process that acquired it")


class AsyncSemaphore(SemaphoreHandle):
    """Distributed semaphore for tasks: at most `limit` permits at a time. Made by `AsyncClient.semaphore`.

    `Semaphore` says what is promised. A permit belongs to the task that *calls* `acquire`, or to ``owner=``: that is
    whose end ends its renewals. A cancelled `acquire` leaves nothing behind, and a cancelled release is carried out.
    """

    __slots__ = ()

    _client: AsyncLockClient
    _current_task = staticmethod(current_task)

    def _who(self) -> Owner:
        return self._named_owner or self._caller()

    def _caller(self) -> Owner:
        """Return the calling task as an owner.

        Raises:
            RuntimeError: the caller is no task.
        """
        task = current_task()
        if task is None:
            raise RuntimeError(
                f"{self.name!r} was used outside a task of asyncio: a permit belongs to the task that calls, so "
                "call it inside an `async def`; in a callback, name an owner="
            )
        return task

    @called_as(acquiring_permits)
    def acquire(
        self, permits: int = 1, *, blocking: bool = True, timeout: float = NOT_PASSED, **_unknown: Never
    ) -> Coroutine[Any, Any, AsyncPermit | None]:
        """Take a permit, or several at once. The call sends nothing: awaiting the result, once, takes them.

        Args:
            permits: how many, from 1 to the limit; with several masters 1. Default 1.
            blocking: False tries once and never queues; with ``fair=True`` that fails while others wait. Default True.
            timeout: longest wait in seconds, 0 to `threading.TIMEOUT_MAX`; -1: as long as it takes. Default: the
                semaphore's own ``timeout=``. A wait ends at its timeout plus at most one ``node_timeout``, and another
                one if the event loop stood still for as long.

        Returns:
            The permit; None if too few were free, or a waiter's turn comes first.

        Raises:
            ConfigurationError: so many permits can never be had at once.
            ValueError: a timeout below 0 other than -1, NaN, or any with ``blocking=False``.
            OverflowError: a timeout above `threading.TIMEOUT_MAX`, also an infinite one of either sign.
            TypeError: a number of permits or a timeout that is no number, an unknown keyword.
            QuorumError: too few masters answered the last attempt, and ``patience`` or the timeout is over.
            RuntimeError: it is called outside a task, without ``owner=``.
            ClientClosedError: the client is closed.
        """
        if _unknown:
            check_keywords("acquire", _unknown, ("permits", "blocking", "timeout"))
        limit = longest_wait(self._longest, blocking, timeout)
        permit = AsyncPermit(self._client, self._spec_for(permits), owner_of_permit(self._who()), permits)
        return AwaitedCall(self._take(permit, limit))

    async def _take(self, permit: AsyncPermit, limit: float, *, must: bool = False) -> AsyncPermit | None:
        """Return `permit` once the caller has it, else None; if the caller `must` have it, raise an error instead."""
        foreground = self._client._foreground()
        record, session = CallRecord(), foreground.session
        until = session.clock() + limit
        try:
            flow = foreground.calls.acquire(record, permit._spec, permit._who(), until)
            outcome = await foreground.run(flow, record, until)
            if session.pending_warnings:
                session.raise_pending_warnings()
            if outcome is None or self._refusal(outcome):
                return permit
        except BaseException as error:
            session.interrupted_of_tasks.undo_acquire(record)
            if session.pending_warnings:
                session.raise_pending_warnings(beside=error)
            raise
        if must:
            raise self._timeout_error(outcome)
        return None

    async def __aenter__(self) -> AsyncPermit:
        """Take one permit, waiting for the semaphore's own ``timeout=`` at most.

        Raises:
            AcquireTimeoutError: no permit was free for all that time, or waiters came first. The body does not run.
            QuorumError, RuntimeError, ClientClosedError: as `acquire`.
        """
        caller = self._caller()
        permit = AsyncPermit(self._client, self._spec, owner_of_permit(self._who()), 1)
        await self._take(permit, self._longest, must=True)
        self._enter(caller, permit)
        return permit

    @told_entry("_current_task")
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        *,
        entered: Owner | None = NOT_KNOWN,
    ) -> None:
        """Release the permit of the block; an exception of the body propagates.

        Beside an exception of the body, the errors below are a note on that exception and a warning in the log. They
        are raised if the body succeeded, or if Python closes a generator in it (`GeneratorExit`).
        The block itself passes `entered`.

        Raises:
            LockLostError: the permit was lost during the body.
            NotOwnedError: the body has released the permit, or another task has entered the block.
        """
        caller = self._caller() if entered is NOT_KNOWN else entered
        # A body whose task can't run any more is closed outside that task.
        if caller is not current_task() and (caller.liveness is None or caller.liveness() is not None):
            raise self._not_entered()
        permit: AsyncPermit = self._inside(caller)
        self._leave(caller, permit)
        try:
            await permit._release(permit._who())
        except RelockError as failure:
            if error is None or isinstance(error, GeneratorExit):
                raise failure from error
            self._note_beside(error, failure)

    if not TYPE_CHECKING:  # a type checker must see no `__enter__`, and so refuses `with`

        def __enter__(self) -> Never:
            raise TypeError(
                f"{self.name!r} is a semaphore for tasks: use `async with`, not `with`; threads use a semaphore of "
                "relock.Client"
            )

        __exit__ = __enter__  # Python looks both up before it calls `__enter__`

    # Asking the masters ---------------------------------------------------------------------------------------------

    async def info(self) -> SemaphoreInfo:
        """Return the limit, the holders and the waiters, as a quorum of the masters agree on them.

        Raises:
            QuorumError: too few masters answered.
        """
        foreground = self._client._foreground()
        answers: MasterReplies = await foreground.run(look(self._spec, foreground.session.clock))
        return self._state(answers)

    async def override(self, limit: int, seconds: float) -> None:
        """Replace the limit for a time, for operators, as `Semaphore.override` does.

        Args:
            limit: 0 to 1,000; 0 lets nobody in.
            seconds: for how long, 0 to 10 years; 0 ends an earlier override.

        Raises:
            QuorumError: too few masters answered; the others have it.
            TypeError, ConfigurationError: a value that can't be.
        """
        cap, foreground = self._check_override(limit, seconds), self._client._foreground()
        flow = permit_flows.override(self._spec, cap, seconds, foreground.session.clock)
        answers: MasterReplies = await foreground.run(flow)
        self._check_answers(answers)

    @awaited
    async def force_release(self, owner: str) -> bool:
        """End the permits of one holder, for operators, as `Semaphore.force_release` does.

        Args:
            owner: the ``owner`` of one of the holders that `info` names.

        Returns:
            True if it had permits.

        Raises:
            QuorumError: too few masters answered.
            TypeError, ConfigurationError: an owner that can't be.
        """
        name, foreground = self._check_owner(owner), self._client._foreground()
        flow = permit_flows.force_release(self._spec, name, foreground.session.clock)
        since = foreground.session.clock()
        released, answers = await foreground.run(flow)
        if released:
            foreground.session.reports.forced(self.name, since, name.encode())
        self._check_answers(answers)
        return bool(released)

    def __reduce__(self) -> Never:
        raise TypeError("an AsyncSemaphore can't be pickled: make one of a client in each process")
