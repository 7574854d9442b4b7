"""Semaphore for threads: the classes that users call, with the docstrings that they read."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

from relock._core.call_record import CallRecord
from relock._core.flows import permits as permit_flows
from relock._core.flows.inspect import look
from relock._core.flows.permits import SemaphoreInfo
from relock._errors import RelockError
from relock._holding import NOT_KNOWN, told_entry
from relock._owner import Owner, owner_of_permit
from relock._permits import PermitView, SemaphoreHandle
from relock._signatures import called_as, check_keywords
from relock.lock import NOT_PASSED, HeldDoor, longest_wait


def acquiring_permits(self: Any, permits: int = 1, *, blocking: bool = True, timeout: float = NOT_PASSED) -> object:
    """Show the parameters of `acquire` to `called_as`; never called."""


class Permit(PermitView, HeldDoor):
    """Permit of a semaphore, or several that were taken at once. Made by `Semaphore.acquire`, and by its ``with``.

    Any thread of the process may use it and release it. It is renewed while the thread lives that acquired it, or, with
    ``owner=``, until it is released. A release gives back all permits that were taken at once.
    """

    __slots__ = ()

    def __reduce__(self) -> Never:
        raise TypeError("a Permit can't be pickled: it belongs to the process that acquired it")


class Semaphore(SemaphoreHandle):
    """Distributed semaphore: at most `limit` permits at a time, fair, renewed. Made by `Client.semaphore`.

    Every permit has a lease, so the permits of a process that died come back. The semaphore is not reentrant: two
    acquires of one thread take two permits. The limit is sent with each request and stored nowhere.

    A holder that was paused past its lease may notice only after another one has its permit: see `Permit.ensure`.
    """

    __slots__ = ()

    def _who(self) -> Owner:
        return self._named_owner or self._client._session.platform.who()

    @called_as(acquiring_permits)
    def acquire(
        self, permits: int = 1, *, blocking: bool = True, timeout: float = NOT_PASSED, **_unknown: Never
    ) -> Permit | None:
        """Take a permit, or several at once.

        Args:
            permits: how many, from 1 to the limit; with several masters 1. Default 1.
            blocking: False tries once and never queues; with ``fair=True`` that fails while others wait. Default True.
            timeout: longest wait in seconds, 0 to `threading.TIMEOUT_MAX`; -1: as long as it takes. Default: the
                semaphore's own ``timeout=``. A wait ends at its timeout plus at most one ``node_timeout``.

        Returns:
            The permit; None if too few were free, or a waiter's turn comes first.

        Raises:
            ConfigurationError: so many permits can never be had at once.
            ValueError: a timeout below 0 other than -1, NaN, or any with ``blocking=False``.
            OverflowError: a timeout above `threading.TIMEOUT_MAX`, also an infinite one of either sign.
            TypeError: a number of permits or a timeout that is no number, an unknown keyword.
            QuorumError: too few masters answered the last attempt, and ``patience`` or the timeout is over.
            ClientClosedError: the client is closed.
        """
        if _unknown:
            check_keywords("acquire", _unknown, ("permits", "blocking", "timeout"))
        limit = longest_wait(self._longest, blocking, timeout)
        spec = self._spec_for(permits)
        record = CallRecord()
        session = self._client._session
        # See `Door.acquire` for why each `try` stands here, and why there are two.
        try:
            try:
                permit = Permit(self._client, spec, owner_of_permit(self._who()), permits)
                until = session.clock() + limit
                outcome = session.run(session.calls.acquire(record, spec, permit._who(), until))
                if session.pending_warnings:
                    session.raise_pending_warnings()
                return permit if outcome is None or self._refusal(outcome) else None
            except BaseException:
                session.interrupted.undo_acquire(record)
                raise
        except BaseException as error:
            session.interrupted.undo_acquire_again(record)
            if session.pending_warnings:
                session.raise_pending_warnings(beside=error)
            raise

    def __enter__(self) -> Permit:
        """Take one permit, waiting for the semaphore's own ``timeout=`` at most.

        Raises:
            AcquireTimeoutError: no permit was free for all that time, or waiters came first. The body does not run.
            QuorumError, ClientClosedError: as `acquire`.
        """
        record = CallRecord()
        session = self._client._session
        permit: Permit | None = None
        try:
            try:
                permit = Permit(self._client, self._spec, owner_of_permit(self._who()), 1)
                until = session.clock() + self._longest
                outcome = session.run(session.calls.acquire(record, self._spec, permit._who(), until))
                if session.pending_warnings:
                    session.raise_pending_warnings()
                if outcome is None or self._refusal(outcome):
                    self._enter(session.platform.who(), permit)
                    return permit
                raise self._timeout_error(outcome)
            except BaseException:
                session.interrupted.undo_acquire(record)
                raise
        except BaseException as error:
            session.interrupted.undo_acquire_again(record)
            self._leave(session.platform.who(), permit)
            if session.pending_warnings:
                session.raise_pending_warnings(beside=error)
            raise

    @told_entry("_client._session.platform.who")
    def __exit__(
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
            NotOwnedError: the body has released the permit, or another thread has entered the block.
        """
        record = CallRecord()
        session = self._client._session
        permit: Permit | None = None
        try:
            try:
                caller = session.platform.who()
                if entered is not caller and entered is not NOT_KNOWN:
                    raise self._not_entered()
                permit = self._inside(caller)
                session.run(session.calls.release(record, permit._spec, permit._who()))
                self._leave(session.platform.who(), permit)
            except RelockError:
                session.interrupted.fail(record)
                raise
            except BaseException:
                permit = permit or self._inside(session.platform.who())
                session.interrupted.undo_release(record, permit._spec, permit._who(), 1)
                raise
        except RelockError as failure:
            self._leave(session.platform.who(), permit)
            if error is None or isinstance(error, GeneratorExit):
                raise
            self._note_beside(error, failure)
        except BaseException:
            permit = permit or self._inside(session.platform.who())
            session.interrupted.undo_release_again(record, permit._spec, permit._who(), 1)
            self._leave(session.platform.who(), permit)
            raise
        if kind is None and session.pending_warnings:
            session.raise_pending_warnings()

    if not TYPE_CHECKING:  # a type checker must see no `__aenter__`, and so refuses `async with`

        def __aenter__(self) -> Never:
            raise TypeError(
                f"{self.name!r} is a semaphore for threads: use `with`, not `async with`; tasks use a semaphore of "
                "relock.AsyncClient"
            )

        __aexit__ = __aenter__  # Python looks both up before it calls `__aenter__`

    # Asking the masters ---------------------------------------------------------------------------------------------

    def info(self) -> SemaphoreInfo:
        """Return the limit, the holders and the waiters, as a quorum of the masters agree on them.

        Raises:
            QuorumError: too few masters answered.
        """
        session = self._client._session
        answers = session.run(look(self._spec, session.clock))
        session.raise_pending_warnings()
        return self._state(answers)

    def override(self, limit: int, seconds: float) -> None:
        """Replace the limit for a time, for operators: it wins over the limit of every caller.

        Nobody's permit ends by a lower limit. A higher one serves waiters within 3 seconds.

        Args:
            limit: 0 to 1,000; 0 lets nobody in.
            seconds: for how long, 0 to 10 years; 0 ends an earlier override.

        Raises:
            QuorumError: too few masters answered; the others have it.
            TypeError, ConfigurationError: a value that can't be.
        """
        cap, session = self._check_override(limit, seconds), self._client._session
        answers = session.run(permit_flows.override(self._spec, cap, seconds, session.clock))
        session.raise_pending_warnings()
        self._check_answers(answers)

    def force_release(self, owner: str) -> bool:
        """End the permits of one holder, for operators: the next waiter is woken, tokens go on rising.

        The holder learns of the loss as that of a lock does: see `Lock.force_release`.

        Args:
            owner: the ``owner`` of one of the holders that `info` names.

        Returns:
            True if it had permits.

        Raises:
            QuorumError: too few masters answered.
            TypeError, ConfigurationError: an owner that can't be.
        """
        name, session = self._check_owner(owner), self._client._session
        since = session.clock()
        released, answers = session.run(permit_flows.force_release(self._spec, name, session.clock))
        if released:
            session.reports.forced(self.name, since, name.encode())
        session.raise_pending_warnings()
        self._check_answers(answers)
        return bool(released)

    def __reduce__(self) -> Never:
        raise TypeError("a Semaphore can't be pickled: make one of a client in each process")
