"""Lock for threads: the class that users call, with the docstrings that they read."""

import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Never, Protocol, Self

from relock._core.call_record import CallFlow, CallRecord
from relock._core.calls import Calls
from relock._core.conditions import check_no_reader, lose_waited, take_again
from relock._core.flows.inspect import LockInfo
from relock._core.hold import FOREVER, Hold
from relock._core.renewal import confirm_lease, renew_now
from relock._errors import ConfigurationError, LockLostError, RelockError
from relock._holding import NOT_KNOWN, Handle, HasSession, Holding, told_entry, too_few, too_little
from relock._options import check_seconds
from relock._owner import Owner
from relock._signatures import called_as, check_keywords

# The default timeout, -1 as in `threading.RLock`, as an object of its own: so it differs from a -1 that is passed.
NOT_PASSED = float("-1")


def acquiring(self: Any, blocking: bool = True, timeout: float = NOT_PASSED) -> object:
    """Show the parameters of `acquire` to `called_as`; never called."""


class LockClient(HasSession, Protocol):
    """Part of a client that its locks use."""

    def info(self, name: str) -> LockInfo:
        """Return the holder and the waiters of the lock `name`."""

    def force_release(self, name: str) -> bool:
        """End any hold of the lock `name`."""


class ReleaseDoor(Handle):
    """Door for threads that gives back a lock, several locks, or a permit.

    Attributes:
        _releasing: returns the flow of a release.
    """

    __slots__ = ()

    _releasing: ClassVar[Callable[..., CallFlow[None]]]

    def _who(self) -> Owner:
        return self._named_owner or self._client._session.platform.who()

    def release(self) -> None:
        """Release one level of a lock, or a permit; the last level ends the hold, whatever the masters do.

        If less than a quorum confirms this, there is an event and a log line, no error: the lease ends by itself.

        Raises:
            NotOwnedError: the caller holds nothing.
            LockLostError: the hold was lost before.
        """
        record = CallRecord()
        session = self._client._session
        try:
            try:
                who = self._named_owner or session.platform.who()
                session.run(self._releasing(session.calls, record, self._spec, who))
            except RelockError:
                session.interrupted.fail(record)
                raise
            except BaseException:
                session.interrupted.undo_release(record, self._spec, self._who(), 1)
                raise
        except RelockError:
            raise
        except BaseException:
            session.interrupted.undo_release_again(record, self._spec, self._who(), 1)
            raise
        if self._client._session.pending_warnings:
            self._client._session.raise_pending_warnings()


class Door(ReleaseDoor):
    """Door for threads: takes and gives back a lock, or several as one.

    Attributes:
        _acquiring: returns the flow of an acquire.
        _with_note: returns the flow that adds the holder's note to the outcome of a wait in vain.
    """

    __slots__ = ()

    _acquiring: ClassVar[Callable[..., CallFlow[Any]]]
    _with_note: Callable[[Any, float], CallFlow[Any]]

    # Taking and giving back -----------------------------------------------------------------------------------------

    @called_as(acquiring)
    def acquire(self, blocking: bool = True, timeout: float = NOT_PASSED, **_unknown: Never) -> bool:
        """Take the lock, or one more level of it if the caller has it.

        Args:
            blocking: False tries once and never queues; with ``fair=True`` that fails while others wait. Default True.
            timeout: longest wait in seconds, 0 to `threading.TIMEOUT_MAX`; -1: as long as it takes. Default: the lock's
                own ``timeout=``. A wait ends at its timeout plus at most one ``node_timeout``.

        Returns:
            True if the caller has the lock now, False if *another owner* has it, or a waiter's turn comes first.

        Raises:
            ValueError: a timeout below 0 other than -1, NaN, or any with ``blocking=False``.
            OverflowError: a timeout above `threading.TIMEOUT_MAX`, also an infinite one of either sign.
            TypeError: a timeout that is no number, an unknown keyword.
            QuorumError: too few masters answered the last attempt, and ``patience`` or the timeout is over.
            LockLostError: the caller's hold was lost, and the caller has not left all its levels yet.
            RuntimeError: another task of the event loop that runs in this thread has the lock.
            ClientClosedError: the client is closed.
        """
        if _unknown:
            check_keywords("acquire", _unknown, ("blocking", "timeout"))
        if timeout is NOT_PASSED and isinstance(blocking, bool):
            limit = self._longest if blocking else 0.0
        else:
            limit = longest_wait(self._longest, blocking, timeout)
        record = CallRecord()
        session = self._client._session
        # Here and in each door below, each `try` must stand in relock's outermost frame. An exception may strike
        # between any two instructions: also before a called function enters its own `try`, or after it has left that.
        # There are two, because a second exception may strike the clean-up after the first one.
        try:
            try:
                who = self._named_owner or session.platform.who()
                until = session.clock() + limit
                outcome = session.run(self._acquiring(session.calls, record, self._spec, who, until))
                if session.pending_warnings:
                    session.raise_pending_warnings()
                return outcome is None or self._refusal(outcome)
            except BaseException:
                session.interrupted.undo_acquire(record)
                raise
        except BaseException as error:
            session.interrupted.undo_acquire_again(record)
            if session.pending_warnings:
                session.raise_pending_warnings(beside=error)
            raise

    def __enter__(self) -> Self:
        """Take the lock, waiting for the lock's own ``timeout=`` at most.

        Raises:
            AcquireTimeoutError: another owner had the lock for all that time, or waiters came first. The body does not
                run.
            QuorumError, LockLostError, RuntimeError, ClientClosedError: as `acquire`.
        """
        record = CallRecord()
        session = self._client._session
        try:
            try:
                who = self._named_owner or session.platform.who()
                until = session.clock() + self._longest
                outcome = session.run(self._acquiring(session.calls, record, self._spec, who, until))
                if session.pending_warnings:
                    session.raise_pending_warnings()
                if outcome is None or self._refusal(outcome):
                    return self
                raise self._timeout_error(session.run(self._with_note(outcome, until)))
            except BaseException:
                session.interrupted.undo_acquire(record)
                raise
        except BaseException as error:
            session.interrupted.undo_acquire_again(record)
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
        """Release one level; an exception of the body propagates.

        Beside an exception of the body, the errors below are a note on that exception and a warning in the log. They
        are raised if the body succeeded, or if Python closes a generator in it (`GeneratorExit`).
        The block itself passes `entered`.

        Raises:
            LockLostError: the hold was lost during the body.
            NotOwnedError: the body released more than it acquired, or another thread has entered the block.
        """
        record = CallRecord()
        session = self._client._session
        try:
            try:
                who = self._named_owner or session.platform.who()
                if entered is not who and self._would_leave_another(entered):
                    raise self._not_entered()
                session.run(self._releasing(session.calls, record, self._spec, who))
            except RelockError:
                session.interrupted.fail(record)
                raise
            except BaseException:
                session.interrupted.undo_release(record, self._spec, self._who(), 1)
                raise
        except RelockError as failure:
            if error is None or isinstance(error, GeneratorExit):
                raise
            self._note_beside(error, failure)
        except BaseException:
            session.interrupted.undo_release_again(record, self._spec, self._who(), 1)
            raise
        if kind is None and self._client._session.pending_warnings:
            self._client._session.raise_pending_warnings()

    if not TYPE_CHECKING:  # a type checker must see no `__aenter__`, and so refuses `async with`

        def __aenter__(self) -> Never:
            raise TypeError(
                f"{self.name!r} is a lock for threads: use `with`, not `async with`; tasks use a lock of "
                "relock.AsyncClient"
            )

        __aexit__ = __aenter__  # Python looks both up before it calls `__aenter__`


class HeldDoor(ReleaseDoor, Holding):
    """Door for threads to one hold: that of the caller on a lock, or that of a permit."""

    __slots__ = ()

    _releasing: ClassVar[Callable[..., CallFlow[None]]] = staticmethod(Calls.release)

    def ensure(self, seconds: float = 0.0) -> int:
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
        """
        check_seconds("seconds", seconds, 0.0, math.inf, "0 or more")
        session = self._client._session
        hold = self._held()
        session.check_valid(hold)
        left = hold.remaining(session.clock())
        if left < seconds and hold.is_short:
            left = session.run(confirm_lease(session, hold))
        if left < seconds:
            raise too_little(hold, left, seconds)
        return hold.token

    def extend(self, ttl: float | None = None) -> float:
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
        """
        self._check_ttl(ttl)
        session, hold = self._client._session, self._held()
        failures = session.run(renew_now(session, hold, ttl))
        if failures is not None:
            raise too_few(self.name, self._spec, failures)
        return hold.remaining(session.clock())


class Lock(Door, HeldDoor):
    """Distributed lock: reentrant, fair, renewed while its owner lives. Made by `Client.lock`.

    This class stands in for `threading.RLock`: `acquire`, `release` and ``with`` behave alike, and a
    `threading.Condition` takes it. A hold belongs to the calling thread, or to ``owner=``; all lock objects of one
    client with the same name and owner share it.

    A holder that was paused past its lease may notice only after another owner has the lock. Call `ensure` before an
    action that must not happen twice, and check the `token` where the action takes effect.
    """

    __slots__ = ()

    _client: LockClient
    _acquiring: ClassVar[Callable[..., CallFlow[Any]]] = staticmethod(Calls.acquire)

    # Asking the masters ---------------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Ask the masters whether the lock is held. Return True unless a quorum says that the lock is free.

        Raises:
            QuorumError: too few masters answered.
        """
        return self._client.info(self.name).held

    def info(self) -> LockInfo:
        """Return the holder and the waiters of the lock, as `Client.info` does."""
        return self._client.info(self.name)

    def force_release(self) -> bool:
        """End any hold of the lock, for operators: the queue goes on, tokens go on rising.

        An owner with ``on_lost`` or ``cancel_on_lost`` is told, and usually learns of the loss in milliseconds. Any
        other one learns of the loss with its next renewal, nested acquire or release.

        Returns:
            True if the lock was held.

        Raises:
            QuorumError: too few masters answered.
        """
        return self._client.force_release(self.name)

    # What threading.Condition and CPython's tests expect of an RLock ------------------------------------------------

    def _is_owned(self) -> bool:
        """Return whether the caller has the lock: a condition asks before it waits or notifies.

        Raises:
            LockLostError: the caller's hold was lost; that is an error, not False.
            ConfigurationError: the lock has an ``owner=``, or the caller has it as a reader as well.
        """
        if self._named_owner is not None:
            raise ConfigurationError(
                f"owner={self._named_owner.name!r} with a Condition: the threads that use it would be inside together, "
                "and a wait would give up the levels of all of them; make its lock without owner=",
                lock=self.name,
                option="owner",
            )
        hold = self._hold()
        if hold is None or hold.count == 0:
            return False
        self._client._session.check_valid(hold)
        check_no_reader(self._client._session, hold)
        return True

    def _recursion_count(self) -> int:
        return self.hold_count

    def _release_save(self) -> tuple[Hold, int]:
        """Release every level, for a condition's wait, even of a lost hold.

        The condition has its waiter in its list already. If this raised, the waiter would stay there, and the next
        `notify` would be lost on it. So if the hold turns out to be lost, the next use of the lock raises.
        """
        hold = self._held()
        count, record, session = hold.count, CallRecord(), self._client._session
        try:
            try:
                session.run(session.calls.release(record, self._spec, self._who(), levels=0))
            except RelockError:
                session.interrupted.fail(record)
                raise
            except BaseException:
                session.interrupted.undo_release(record, self._spec, self._who(), 0)
                raise
        except RelockError as error:
            if not isinstance(error, LockLostError):  # the next use of the lock reports a lost hold
                raise
        except BaseException as error:  # even after an interrupt, the levels are given up
            session.interrupted.undo_release_again(record, self._spec, self._who(), 0)
            lose_waited(session, hold, count, error)
            raise
        return hold, count

    def _acquire_restore(self, saved: tuple[Hold, int]) -> None:
        """Take again the levels that `_release_save` released, at the end of a condition's wait.

        This waits for the masters without a limit. The condition takes a waiter whose wait has timed out off its list
        only after this, so errors of relock are not raised: if the lock can't be taken again, the caller gets its
        levels back as those of a lost hold. An interrupt is raised, so that no code runs without the lock.
        """
        hold, count = saved
        record = CallRecord()
        session = self._client._session
        try:
            try:
                outcome = session.run(take_again(session.calls, record, self._who(), hold, count))
                if outcome is not None and not self._refusal(outcome):
                    raise self._timeout_error(outcome)
            except BaseException:
                session.interrupted.undo_acquire(record)
                raise
        except BaseException as error:
            session.interrupted.undo_acquire_again(record)
            lose_waited(session, hold, count, error)
            if not isinstance(error, RelockError):
                raise

    def _at_fork_reinit(self) -> None:
        """Do nothing: a forked child has a new session, and so holds nothing."""

    def __reduce__(self) -> Never:
        raise TypeError("a Lock can't be pickled: make one of a client in each process")


def longest_wait(longest: float, blocking: bool, timeout: float) -> float:
    """Return the longest wait (s), judged as `threading.RLock.acquire` does; `longest` is the lock's own."""
    if timeout.__class__ in (float, int):
        if timeout == -1:
            if not blocking:
                return 0.0
            return longest if timeout is NOT_PASSED else FOREVER
        if blocking and 0 <= timeout <= threading.TIMEOUT_MAX:
            return timeout
    return _judged(blocking, timeout)


def _judged(blocking: bool, timeout: float) -> float:
    """Return a timeout as `threading.RLock` judges it: ask a new one, which is free, so that this does not wait."""
    try:
        threading.RLock().acquire(bool(blocking), timeout)
    except TypeError:
        advice = "it must be a number of seconds; -1, which is the default, waits as long as it takes"
        raise TypeError(f"timeout={timeout!r}: {advice}") from None
    except OverflowError:
        raise OverflowError(
            f"the timeout must be at most threading.TIMEOUT_MAX, {threading.TIMEOUT_MAX:g} seconds, or -1 to wait as "
            "long as it takes"
        ) from None
    except ValueError:
        right = "0 or more seconds, or -1 to wait as long as it takes"
        advice = f"it must be {right}" if blocking else "a non-blocking acquire takes no timeout"
        raise ValueError(f"timeout={timeout!r}: {advice}") from None
    if timeout < 0:  # `RLock` has accepted the timeout, which rounds to -1
        return FOREVER if blocking else 0.0
    return float(timeout)
