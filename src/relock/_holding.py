"""Common part of all locks: what a caller sees of its hold without I/O, and errors made from outcomes."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial, update_wrapper
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from relock._core.call_record import CallFlow
from relock._core.effects import Failure
from relock._core.flows.inspect import MasterReplies, with_note
from relock._core.hold import FOREVER, Hold
from relock._core.lock_spec import LockSpec, MultiSpec
from relock._core.quorum import Grant, NoQuorum, Outcome, Refused
from relock._errors import AcquireTimeoutError, LockLostError, NotOwnedError, QuorumError, RelockError
from relock._options import TTL_SECONDS_MAX, TTL_SECONDS_MIN, check_seconds
from relock._owner import Owner, is_rest, named
from relock._runtime.session.session import Session

logger = logging.getLogger("relock.lock")

F = TypeVar("F", bound=Callable[..., Any])
NOT_KNOWN = None  # which caller has entered a block, for a method that was looked up on the class, as `ExitStack` does


class BlockExit:
    """Method ``__exit__`` or ``__aexit__`` that is passed, as `entered`, the caller that has entered the block.

    The end of a block may run in another thread or task: the garbage collector closes a generator or a coroutine that
    will never go on, wherever the collector happens to run. That caller may be in a block of the same lock, and must
    not lose its own hold. Python looks the method up on the door before it calls ``__enter__``, so ``__get__`` runs in
    the caller that enters.

    Args:
        leave: the method.
        caller_of: returns the function that names the calling thread or task, for a door.
    """

    def __init__(self, leave: Callable[..., Any], caller_of: Callable[[Any], Callable[[], object]]) -> None:
        self._leave = leave
        self._caller_of = caller_of
        update_wrapper(cast("Callable[..., Any]", self), leave)

    def __get__(self, door: Any, kind: type | None = None) -> Callable[..., Any]:
        if door is None:
            return self._leave
        return partial(self._leave, door, entered=self._caller_of(door)())


def told_entry(caller: str) -> Callable[[F], F]:
    """Make a method a `BlockExit`; `caller` is the path, from the door, to the function that names the caller."""

    def decorate(leave: F) -> F:
        return BlockExit(leave, attrgetter(caller))  # type: ignore[return-value]  # a descriptor acts as the method

    return decorate


class HasSession(Protocol):
    """Part of a client that its locks use."""

    @property
    def _session(self) -> Session:
        """Session in this process; a forked child has a new one."""


class Handle(ABC):
    """Lock, as its callers see it: options, the owner, and errors; no I/O."""

    __slots__ = (
        "__weakref__",
        "_client",
        "_longest",
        "_named_owner",
        "_spec",
        "name",
    )  # a program may make very many locks

    _spec: LockSpec | MultiSpec
    name: str

    def __init__(self, client: HasSession, spec: LockSpec | MultiSpec, name: str) -> None:
        options = spec.options
        self._client = client
        self._spec = spec
        self._named_owner = None if options.owner is None else named(options.owner)
        # The longest wait, in seconds.
        self._longest = FOREVER if options.timeout is None or options.timeout == -1 else options.timeout
        self.name = name

    @abstractmethod
    def _who(self) -> Owner:
        """Return the owner on whose behalf the call is made."""

    @property
    @abstractmethod
    def _names(self) -> tuple[str, ...]:
        """Names of the locks that the caller takes."""

    @abstractmethod
    def _refusal(self, outcome: Any) -> bool:
        """Return False if the masters refused the lock; raise `QuorumError` if too few masters answered."""

    @abstractmethod
    def _timeout_error(self, outcome: Any) -> AcquireTimeoutError:
        """Return the error for a block that the caller can't enter."""

    def _would_leave_another(self, entered: Owner | None) -> bool:
        """Return whether a block that another caller, `entered`, has entered would end a hold of this caller.

        If this caller has no hold, the release raises the better error: that one names the caller which has the lock.
        """
        return entered is not NOT_KNOWN and self._named_owner is None and bool(self._holds_of(self._who()))

    def _not_entered(self) -> NotOwnedError:
        """Return the error for the end of a block that another thread or task has entered."""
        text = f"the caller is in no block of {self.name!r}: another thread or task has entered it; an owner= is shared"
        return NotOwnedError(text, lock=self.name)

    def _valid(self, hold: Hold | None) -> Hold | None:
        """Return `hold` while it is valid, else None; report its loss if that is found here."""
        if hold is None or hold.loss is not None or hold.count == 0:
            return None
        session = self._client._session
        code = hold.reason_for_loss(session.clock())
        if code is None:
            return hold
        session.lose(hold, code)
        return None

    def _holds_of(self, who: Owner) -> list[Hold]:
        """Return the holds that `who` has of these locks, lost ones included."""
        holds = [self._client._session.holds.get((name, who.key)) for name in self._names]
        return [hold for hold in holds if hold is not None]

    def _held_of(self, name: str, who: Owner) -> Hold:
        """Return the hold that `who` has of the lock `name`, which may be lost.

        Raises:
            NotOwnedError: there is none.
        """
        holds = self._client._session.holds
        hold = holds.get((name, who.key))
        if hold is None or hold.count == 0:
            raise holds.not_owned(name, who)
        return hold

    def _note_beside(self, error: BaseException, failure: RelockError) -> None:
        """Report `failure`, raised on leaving a block, beside `error` of the block's body, which propagates.

        If the body has ended with the same error, there is nothing more to report.
        """
        kind = type(failure).__name__
        if (type(error), error.args) == (type(failure), failure.args):
            return
        with suppress(Exception):  # a user's class may override `add_note` and raise
            error.add_note(f"relock: leaving the block of {self.name!r} also raised {kind}: {failure}")
        text = "leaving the block of %r, whose body raised %s, raised %s: %s"
        self._client._session.platform.log.warning(logger, text, self.name, type(error).__name__, kind, failure)

    def _check_ttl(self, ttl: float | None) -> None:
        """Raise `TypeError` or `ConfigurationError` for a ttl that can't work."""
        if ttl is not None:
            check_seconds("ttl", ttl, TTL_SECONDS_MIN, TTL_SECONDS_MAX, "between 0.05 seconds and 10 years")
            self._client._session.options.check_guard(ttl, len(self._spec.masters))


class Holding(Handle):
    """Single lock, as its callers see it: the local part, without I/O."""

    __slots__ = ()

    _spec: LockSpec

    # Looking, without I/O -------------------------------------------------------------------------------------------

    def owned(self) -> bool:
        """Return whether the caller has the lock; local, no I/O. False once the hold is lost."""
        return self._valid_hold() is not None

    @property
    def hold_count(self) -> int:
        """Number of levels that the caller has; local, no I/O. 0 without a hold, and once the hold is lost."""
        hold = self._valid_hold()
        return 0 if hold is None else hold.count

    @property
    def token(self) -> int | None:
        """Fencing token of the caller's hold, greater than every earlier holder's; None without a hold."""
        hold = self._valid_hold()
        return None if hold is None else hold.token

    @property
    def lost(self) -> bool:
        """True if the caller's latest hold was lost; False again with the next fresh acquire."""
        hold = self._hold()
        if hold is None:
            return False
        self._valid_hold()
        return hold.loss is not None

    def remaining(self) -> float:
        """Return for how many seconds the caller's hold is still valid, at least; local, no I/O; 0.0 without a hold.

        After a release has given the caller the lock, this is less than 3 s until the full lease is confirmed, about
        half a second later.
        """
        hold = self._valid_hold()
        return 0.0 if hold is None else hold.remaining(self._client._session.clock())

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        holders = self._client._session.holds.of_name(self.name, self._spec.keys.kind)
        state = "locked" if holders else "unlocked"
        count = max((hold.count for hold in holders), default=0)
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{state} {kind} object name={self.name!r} count={count} at {id(self):#x}>"

    # ------------------------------------------------------------------------------------------------------------------

    def _hold(self) -> Hold | None:
        return self._client._session.holds.get((self.name, self._who().key))

    def _valid_hold(self) -> Hold | None:
        """Return the caller's hold while it is valid, else None; report its loss if that is found here."""
        return self._valid(self._client._session.holds.get((self.name, self._who().key)))  # `_hold`, inlined

    def _held(self) -> Hold:
        """Return the caller's hold, which may be lost.

        Raises:
            NotOwnedError: the caller has no hold.
        """
        return self._held_of(self.name, self._who())

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.name,)

    def _refusal(self, outcome: Outcome) -> bool:
        """Return False if the masters refused the lock; raise `QuorumError` if too few masters answered."""
        return refusal(self.name, self._spec, outcome)

    def _with_note(self, outcome: Outcome, until: float) -> CallFlow[Outcome]:
        """Return the flow that adds the holder's note to the outcome of a wait in vain, for `_timeout_error`."""
        return with_note(outcome, self._spec, until, self._client._session.clock)

    def _timeout_error(self, outcome: Outcome) -> AcquireTimeoutError:
        return timeout_error(self.name, self._longest, outcome)


def refusal(name: str, spec: LockSpec, outcome: Outcome) -> bool:
    """Return False if the masters refused the lock `name`; raise `QuorumError` if too few masters answered."""
    if isinstance(outcome, NoQuorum):
        raise quorum_error(name, outcome.failures, spec.quorum, outcome.answered)
    return False


def refused_by(outcome: Outcome) -> tuple[str | None, int, str]:
    """Return the holder at the last look of a wait, the number of waiters ahead, and both in words."""
    holder, ahead = (None, 0) if isinstance(outcome, Grant | NoQuorum) else (outcome.holder, outcome.ahead)
    if is_rest(holder):
        return None, ahead, "it rested after its release (at_least)"
    if holder:
        return holder, ahead, f"{holder} had it"
    # A free lock has a `lease_left` of 0.
    is_foreign = isinstance(outcome, Refused) and outcome.lease_left != 0
    return None, ahead, "another program had its key" if is_foreign else "it was the turn of others"


def timeout_error(name: str, timeout: float, outcome: Outcome) -> AcquireTimeoutError:
    """Return the error for a block that a caller could not enter within `timeout` seconds."""
    holder, ahead, why = refused_by(outcome)
    note = outcome.note if isinstance(outcome, Refused) else None
    if note is not None:
        why = f"{why} ({note!r})"  # another program may have chosen it: it must not control a terminal
    return AcquireTimeoutError(
        f"{name!r} could not be acquired within {timeout} s: at the last look {why}, and {ahead} waited ahead",
        lock=name,
        timeout=timeout,
        holder=holder,
        ahead=ahead,
        note=note,
    )


def too_few(name: str, spec: LockSpec, failures: list[Failure]) -> QuorumError:
    """Return the error for a renewal that no quorum has confirmed."""
    return quorum_error(name, failures, spec.quorum, len(spec.masters) - len(failures))


def too_few_answered(name: str | None, answers: MasterReplies, needed: int) -> QuorumError:
    """Return the error for `answers` to a look, or to an operator's request, that are fewer than `needed`."""
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    return quorum_error(name, failures, needed, len(answers) - len(failures))


def check_answered(name: str, answers: MasterReplies, needed: int) -> None:
    """Raise `QuorumError` if fewer than `needed` masters answered."""
    if sum(isinstance(answer, list) for answer in answers) < needed:
        raise too_few_answered(name, answers, needed)


def too_little(hold: Hold, left: float, seconds: float) -> LockLostError:
    """Return the error for a hold that is valid, but for less than `seconds` more."""
    return LockLostError(
        f"the {hold.keys.noun} of {hold.keys.name!r} is valid for {left:.3f} s more, not for {seconds:.3f} s: extend "
        "it first",
        lock=hold.keys.name,
        token=hold.token,
        reason="less left than asked",
    )


def quorum_error(
    name: str | None, failures: "tuple[Failure, ...] | list[Failure]", needed: int, answered: int
) -> QuorumError:
    """Return the error for too few answers, with each master's failure; a lone master's failure is the message."""
    by_master = {failure.master: failure.why for failure in failures}
    reasons = "; ".join(f"{master}: {why}" for master, why in by_master.items())
    subject = "" if name is None else f"{name!r}: "
    if needed == 1:
        message = reasons or "the server did not answer"
    else:
        total = len(by_master) + answered
        message = f"{answered} of {total} masters answered, and {needed} are needed: {reasons or 'no master answered'}"
    return QuorumError(subject + message, lock=name, failures=by_master, needed=needed, answered=answered)
