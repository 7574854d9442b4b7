"""Common part of `Lock` and `AsyncLock`: the local state of the caller's hold, and errors made from outcomes."""

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Protocol

from relock._core.effects import Failure
from relock._core.hold import FOREVER, Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Grant, NoQuorum, Outcome, Refused
from relock._errors import AcquireTimeoutError, LockLostError, QuorumError, RelockError
from relock._options import TTL_SECONDS_MAX, TTL_SECONDS_MIN, check_seconds
from relock._owner import Owner, named
from relock._runtime.session.session import Session

logger = logging.getLogger(__name__)


class HasSession(Protocol):
    """Part of a client that its locks use."""

    @property
    def _session(self) -> Session:
        """Session in this process; a forked child has a new one."""


class Holding(ABC):
    """Lock, as its callers see it: the local part, without I/O."""

    __slots__ = (
        "__weakref__",
        "_client",
        "_longest",
        "_named_owner",
        "_spec",
        "name",
    )  # a program may make very many locks

    name: str

    def __init__(self, client: HasSession, spec: LockSpec) -> None:
        options = spec.options
        self._client = client
        self._spec = spec
        self._named_owner = None if options.owner is None else named(options.owner)
        # The longest wait, in seconds.
        self._longest = FOREVER if options.timeout is None or options.timeout == -1 else options.timeout
        self.name = spec.keys.name

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
        holders = self._client._session.holds.of_name(self.name)
        state = "locked" if holders else "unlocked"
        count = max((hold.count for hold in holders), default=0)
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{state} {kind} object name={self.name!r} count={count} at {id(self):#x}>"

    # ------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _who(self) -> Owner:
        """Return the owner on whose behalf the call is made."""

    def _hold(self) -> Hold | None:
        return self._client._session.holds.get((self.name, self._who().key))

    def _valid_hold(self) -> Hold | None:
        """Return the caller's hold while it is valid, else None; report its loss if that is found here."""
        hold = self._hold()
        if hold is None or hold.loss is not None or hold.count == 0:
            return None
        session = self._client._session
        reason = hold.reason_for_loss(session.clock())
        if reason is None:
            return hold
        session.lose(hold, reason)
        return None

    def _held(self) -> Hold:
        """Return the caller's hold, which may be lost.

        Raises:
            NotOwnedError: the caller has no hold.
        """
        hold = self._hold()
        if hold is None or hold.count == 0:
            raise self._client._session.holds.not_owned(self.name, self._who())
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

    def _too_few(self, failures: list[Failure]) -> QuorumError:
        """Return the error for a renewal that no quorum has confirmed."""
        spec = self._spec
        return quorum_error(self.name, failures, spec.quorum, len(spec.masters) - len(failures))

    def _too_little(self, hold: Hold, left: float, seconds: float) -> LockLostError:
        """Return the error for a hold that is valid, but for less than `seconds` more."""
        return LockLostError(
            f"the hold of {self.name!r} is valid for {left:.3f} s more, not for {seconds:.3f} s: extend it first",
            lock=self.name,
            token=hold.token,
            reason="less left than asked",
        )

    def _refusal(self, outcome: Outcome) -> bool:
        """Return False if the masters refused the lock; raise `QuorumError` if too few masters answered."""
        if isinstance(outcome, NoQuorum):
            raise quorum_error(self.name, outcome.failures, self._spec.quorum, outcome.answered)
        return False

    def _timeout_error(self, outcome: Outcome) -> AcquireTimeoutError:
        holder, ahead = (None, 0) if isinstance(outcome, Grant | NoQuorum) else (outcome.holder, outcome.ahead)
        why = f"{holder} had it" if holder else "it was the turn of others"
        # A free lock has a `lease_left` of 0.
        if isinstance(outcome, Refused) and not holder and outcome.lease_left:
            why = "another program had its key"
        timeout = self._longest
        return AcquireTimeoutError(
            f"{self.name!r} could not be acquired within {timeout} s: at the last look {why}, and {ahead} waited ahead",
            lock=self.name,
            timeout=timeout,
            holder=holder,
            ahead=ahead,
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
