"""Common part of the semaphores for threads and for tasks: what is decided without I/O."""

from typing import Any

from relock._core.flows import permits as permit_flows
from relock._core.flows.inspect import MasterReplies
from relock._core.flows.permits import SemaphoreInfo
from relock._core.lock_spec import LockSpec, Wish
from relock._core.quorum import Outcome
from relock._errors import AcquireTimeoutError, ConfigurationError
from relock._holding import Handle, HasSession, Holding, check_answered, refusal, refused_by, too_few_answered
from relock._options import (
    TTL_SECONDS_MAX,
    ClientOptions,
    check_limit,
    check_permits,
    check_seconds,
)
from relock._owner import Owner, OwnerKey


class PermitView(Holding):
    """Permit of a semaphore, as its users see it: the local part, without I/O.

    Attributes:
        permits: how many permits of the semaphore these are; 1 as a rule.
    """

    __slots__ = ("permits",)

    permits: int

    def __init__(self, client: Any, spec: LockSpec, who: Owner, permits: int) -> None:
        super().__init__(client, spec, spec.keys.name)
        self._named_owner = who
        self.permits = permits

    @property
    def slot(self) -> int | None:
        """Number of the permit, from 0 to the limit less 1. No two owners have the same one at a time.

        None without a permit, and for several permits that were taken at once.
        """
        hold = self._hold()
        return None if hold is None or hold.kept < 0 else hold.kept

    @property
    def token(self) -> int | None:
        """Fencing token of the permit, greater than that of every earlier owner of the same slot; None without one.

        With one master it is greater than every earlier permit's, of whatever slot.
        """
        return super().token

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        hold = self._hold()
        state = "released" if hold is None or hold.count == 0 else "lost" if hold.loss is not None else "held"
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{state} {kind} object name={self.name!r} permits={self.permits} slot={self.slot} at {id(self):#x}>"


class SemaphoreHandle(Handle):
    """Semaphore, as its callers see it: options and errors; no I/O.

    Attributes:
        limit: how many permits there are, unless an operator's `override` says otherwise.
    """

    __slots__ = ("_entered", "_options", "limit")

    _spec: LockSpec
    limit: int

    def __init__(self, client: HasSession, spec: LockSpec, limit: int, options: ClientOptions) -> None:
        super().__init__(client, spec, spec.keys.name)
        self.limit = limit
        self._options = options
        self._entered: dict[OwnerKey, list[Any]] = {}

    def _spec_for(self, permits: int) -> LockSpec:
        """Return the spec for so many permits at once; raise an error for a number that can't be had."""
        if permits.__class__ is int and permits == 1:
            return self._spec
        spec = self._spec
        wish = Wish(check_permits(permits, self.limit, len(spec.masters)), self.limit)
        return LockSpec.of(spec.keys, spec.masters, spec.options, self._options, wish)

    # Blocks -----------------------------------------------------------------------------------------------------------

    def _enter(self, caller: Owner, permit: PermitView) -> None:
        """Note that `caller` has entered a block with `permit`."""
        self._entered.setdefault(caller.key, []).append(permit)

    def _inside(self, caller: Owner) -> Any:
        """Return the permit with which `caller` has entered its innermost block.

        Raises:
            NotOwnedError: the caller is in no block of this semaphore: another thread or task has entered.
        """
        entered = self._entered.get(caller.key)
        if not entered:
            raise self._not_entered()
        return entered[-1]

    def _leave(self, caller: Owner, permit: PermitView | None) -> None:
        """Note that `caller` is no longer in a block with `permit`; do nothing if it never entered."""
        left = [one for one in self._entered.get(caller.key, ()) if one is not permit]
        if left:
            self._entered[caller.key] = left
        else:
            self._entered.pop(caller.key, None)

    # Answers ----------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, ...]:
        return ()  # the holds are those of the permits

    def _refusal(self, outcome: Outcome) -> bool:
        """Return False if the masters refused a permit; raise `QuorumError` if too few masters answered."""
        return refusal(self.name, self._spec, outcome)

    def _timeout_error(self, outcome: Outcome) -> AcquireTimeoutError:
        holder, ahead, why = refused_by(outcome)
        return AcquireTimeoutError(
            f"{self.name!r}, whose limit is {self.limit}, had no free permit for {self._longest} s: at the last look "
            f"{why}, and {ahead} waited ahead",
            lock=self.name,
            timeout=self._longest,
            holder=holder,
            ahead=ahead,
        )

    def _check_answers(self, answers: MasterReplies) -> None:
        """Raise `QuorumError` if `answers` are too few."""
        check_answered(self.name, answers, self._spec.quorum)

    def _state(self, answers: MasterReplies) -> SemaphoreInfo:
        """Return the state of the semaphore by the `answers` to a look; raise `QuorumError` if they are too few."""
        info = permit_flows.agree(self.name, self.limit, answers)
        if info is None:
            raise too_few_answered(self.name, answers, self._spec.quorum)
        return info

    def _check_override(self, limit: int, seconds: float) -> int:
        """Return an operator's limit; raise an error for one that can't be, or for such a number of seconds."""
        cap = check_limit(limit, least=0)
        check_seconds("seconds", seconds, 0.0, TTL_SECONDS_MAX, "between 0 seconds and 10 years")
        return cap

    def _check_owner(self, owner: str) -> str:
        """Return the name of a holder; raise an error for what can't be one."""
        if not isinstance(owner, str):
            raise TypeError(f"owner must be a str, not {type(owner).__name__}: {owner!r}")
        if ":" not in owner:
            raise ConfigurationError(
                f"owner={owner!r}: it must be the owner of one of the holders that info() names", option="owner"
            )
        return owner

    def __repr__(self) -> str:
        """Show local state only: no I/O, and nothing secret."""
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{kind} object name={self.name!r} limit={self.limit} at {id(self):#x}>"
