"""Common part of `MultiLock` and `AsyncMultiLock`: what a caller sees of its holds without I/O."""

from collections.abc import Mapping

from relock._core.call_record import CallFlow
from relock._core.flows.inspect import with_note
from relock._core.hold import Hold
from relock._core.lock_spec import MultiSpec
from relock._core.multi import NotAll
from relock._core.renewal import confirm_lease, renew_now
from relock._core.together import together
from relock._errors import AcquireTimeoutError, LockLostError
from relock._holding import Handle, HasSession, refusal, timeout_error, too_few, too_little


class HoldingAll(Handle):
    """Several locks, as a caller sees them that takes them as one."""

    __slots__ = ()

    _spec: MultiSpec

    def __init__(self, client: HasSession, spec: MultiSpec) -> None:
        super().__init__(client, spec, ", ".join(member.keys.name for member in spec.members))

    # Looking, without I/O -------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the locks, each once, in the order in which they are taken."""
        return tuple(member.keys.name for member in self._spec.members)

    _names = names

    def owned(self) -> bool:
        """Return whether the caller has all locks; local, no I/O. False once one of the holds is lost."""
        return bool(self._valid_holds())

    @property
    def hold_count(self) -> int:
        """Number of levels that the caller has of every lock; local, no I/O. 0 if it lacks one of them."""
        return min([hold.count for hold in self._valid_holds()], default=0)

    @property
    def token(self) -> None:
        """None: each lock has a fencing token of its own, see `tokens`."""

    @property
    def tokens(self) -> Mapping[str, int | None]:
        """Fencing token of each hold, by the lock's name; None for each if the caller does not have all locks."""
        tokens = {hold.keys.name: hold.token for hold in self._valid_holds()}
        return {name: tokens.get(name) for name in self.names}

    @property
    def lost(self) -> bool:
        """True if the caller's latest hold of one of the locks was lost; False again with the next fresh acquire."""
        holds = self._holds_of(self._who())
        return any(self._valid(hold) is None and hold.loss is not None for hold in holds)

    def remaining(self) -> float:
        """Return for how many seconds all holds are still valid, at least; local, no I/O; 0.0 without all of them."""
        now = self._client._session.clock()
        return min([hold.remaining(now) for hold in self._valid_holds()], default=0.0)

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        holds = self._client._session.holds
        held = sum(bool(holds.of_name(name)) for name in self.names)
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{kind} object names={self.names!r} locked={held} of {len(self.names)} at {id(self):#x}>"

    # ------------------------------------------------------------------------------------------------------------------

    def _valid_holds(self) -> list[Hold]:
        """Return the caller's holds if all are valid, else none. Look once: they may end between two looks."""
        holds = [hold for hold in self._holds_of(self._who()) if self._valid(hold) is not None]
        return holds if len(holds) == len(self._spec.members) else []

    def _held(self) -> list[Hold]:
        """Return the caller's holds, which may be lost.

        Raises:
            NotOwnedError: the caller lacks one of the locks.
        """
        who = self._who()
        return [self._held_of(name, who) for name in self.names]

    def _ensuring(self, holds: list[Hold], seconds: float) -> CallFlow[dict[str, int]]:
        """Check that all holds are valid for `seconds` more; return the fencing tokens."""
        session = self._client._session
        for hold in holds:
            session.check_valid(hold)
        short = [hold for hold in holds if hold.is_short and hold.remaining(session.clock()) < seconds]
        for error in (yield from together([confirm_lease(session, hold) for hold in short])):
            if isinstance(error, LockLostError):
                raise error
        for hold in holds:
            left = hold.remaining(session.clock())
            if left < seconds:
                raise too_little(hold, left, seconds)
        return {hold.keys.name: hold.token for hold in holds}

    def _extending(self, holds: list[Hold], ttl: float | None) -> CallFlow[None]:
        """Renew all holds, in one batch."""
        session = self._client._session
        results = yield from together([renew_now(session, hold, ttl) for hold in holds])
        for hold, result in zip(holds, results, strict=True):
            if isinstance(result, LockLostError):
                raise result
            if result is not None:
                raise too_few(hold.keys.name, hold.spec, result)

    def _refusal(self, outcome: NotAll) -> bool:
        """Return False if the masters refused a lock; raise `QuorumError` if too few masters answered."""
        return refusal(outcome.name, self._spec.members[0], outcome.outcome)

    def _with_note(self, outcome: NotAll, until: float) -> CallFlow[NotAll]:
        """Add the note of the lock for which the call has given up, as for a single lock."""
        (member,) = [member for member in self._spec.members if member.keys.name == outcome.name]
        found = yield from with_note(outcome.outcome, member, until, self._client._session.clock)
        return outcome._replace(outcome=found)

    def _timeout_error(self, outcome: NotAll) -> AcquireTimeoutError:
        return timeout_error(outcome.name, self._longest, outcome.outcome)
