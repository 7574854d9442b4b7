"""Several locks taken as one: all or nothing, in one order, in one round if all are free.

A caller that waits for one lock while it holds others can be part of a deadlock. Here every caller takes locks in the
order of their names' bytes, and waits while it holds only smaller names than the one for which it waits. So no circle
of waiting callers can close (Havender, "Avoiding Deadlock in Multitasking Systems", 1968).

To wait for each name in turn would cost a round trip for each. So the call first tries all names at once, without
waiting. If some are refused, it keeps those before the first refused one and gives back those behind it. It waits in
the queue of that one, and then tries the names behind it in the same way.

Each member is an ordinary hold of its owner, with levels of its own, and each member's call has its own `CallRecord`:
an interrupt undoes all members.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attrs import evolve

from relock._core.book import Book
from relock._core.call_record import CallFlow, CallRecord
from relock._core.calls import Calls
from relock._core.lock_spec import LockSpec, MultiSpec
from relock._core.quorum import NEVER, Outcome
from relock._core.together import together
from relock._errors import LockLostError, RelockError
from relock._events import Loss
from relock._owner import Owner


class NotAll(NamedTuple):
    """Outcome of a call that did not get all locks: that of the lock `name`, for which it gave up."""

    name: str
    outcome: Outcome


class ToldOnce:
    """Callback for the losses of one multi-lock: calls `function` with the first one only.

    Two callbacks for the same function are equal while neither has been called: a nested acquire adds none.
    """

    def __init__(self, function: Callable[[Loss], object]) -> None:
        self._function = function
        self._untold = [function]

    def __call__(self, loss: Loss) -> None:
        if self._untold:
            self._untold.pop()(loss)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToldOnce) and self._untold == other._untold != []

    def __hash__(self) -> int:
        return hash(self._function)


def acquire_all(calls: Calls, record: CallRecord, spec: MultiSpec, who: Owner, until: float) -> CallFlow[NotAll | None]:
    """Take one more level of each lock for the caller, or of none. Return None if the caller has them all now.

    Raises:
        LockLostError, RuntimeError: as `Calls.acquire`, for any of the locks.
    """
    several, holds = calls._host.several, calls._host.holds
    several[record] = None  # Note, then send
    members = _telling_once(spec.members, holds, who)
    outcome = yield from _MemberCalls(calls).acquire_all(record, members, who, until)
    several.pop(record, None)
    return outcome


def release_all(calls: Calls, record: CallRecord, spec: MultiSpec, who: Owner) -> CallFlow[None]:
    """Leave one level of each lock, in one batch, whatever becomes of the others.

    Raises:
        NotOwnedError, LockLostError: as `Calls.release`; a loss comes first, and the errors of the others are notes.
    """
    return _MemberCalls(calls).release_all(record, spec, who)


def _telling_once(members: Sequence[LockSpec], holds: Book, who: Owner) -> Sequence[LockSpec]:
    """Return the specs with one callback for all: the first loss of one hold of the multi-lock is reported.

    If holds of the owner have such a callback from before, it is that one.
    """
    options = members[0].options
    if options.on_lost is None:
        return members
    once = ToldOnce(options.on_lost)
    before = [hold for member in members if (hold := holds.get((member.keys.name, who.key))) is not None]
    known = next((known for hold in before for known in hold.callbacks if known == once), once)
    return [evolve(member, options=evolve(options, on_lost=known)) for member in members]


class _MemberCalls(Calls):
    """Calls for the members of multi-locks: every request is an effect, and the refusal of a member is not reported."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls._host, calls._interrupted, calls._hub, is_crowded=calls._is_crowded)
        self._asked_as: dict[str, bytes | None] = {}  # by which name each refused member was asked for last

    def _tell_no_grant(self, spec: LockSpec, came_at: float, owner: bytes | None, outcome: Outcome) -> None:
        """Report nothing: the call goes on, or reports its refusal itself, by the name that is kept here."""
        del came_at, outcome  # those of the whole call are told
        self._asked_as[spec.keys.name] = owner

    def acquire_all(
        self, record: CallRecord, members: Sequence[LockSpec], who: Owner, until: float
    ) -> CallFlow[NotAll | None]:
        """Take all `members`, as the function `acquire_all` does."""
        came_at, left = self._host.clock(), members
        while left:
            outcomes = yield from self._take_each(record, left, who, NEVER)
            refused = next((i for i, outcome in enumerate(outcomes) if outcome is not None), None)
            if refused is None:
                break
            member, outcome = left[refused], outcomes[refused]
            yield from self._give_back(record, who, left[refused + 1 :])
            if self._host.clock() < until:
                (outcome,) = yield from self._take_each(record, [member], who, until)
            if outcome is not None:
                yield from self._give_up(record, who, until)
                super()._tell_no_grant(member, came_at, self._asked_as.get(member.keys.name), outcome)
                return NotAll(member.keys.name, outcome)
            left = left[refused + 1 :]
        yield from self._check_all(record, who)
        return None

    def _give_up(self, record: CallRecord, who: Owner, until: float) -> CallFlow[None]:
        """Give back all that the call has taken; in the background if the call is late by a node timeout already."""
        if self._host.clock() <= until + self._host.node_timeout:
            yield from self._give_back(record, who)
        else:
            self._interrupted.undo_acquire(record)

    def _check_all(self, record: CallRecord, who: Owner) -> CallFlow[None]:
        """Give back all members if one was lost while the call waited for another; then raise `LockLostError`."""
        try:
            for part in record.members:
                hold, _ = part.completed or (None, 0)
                if hold is not None:
                    self._host.check_valid(hold)
        except LockLostError:
            yield from self._give_back(record, who)
            raise

    def _take_each(
        self, record: CallRecord, members: Sequence[LockSpec], who: Owner, until: float
    ) -> CallFlow[list[Outcome | None]]:
        """Take each of these, and note which were taken. Return an outcome for each, None if it was taken.

        Raises:
            RelockError: the call for one of these raised it; first, all that the whole call has taken is given back.
        """
        parts = [record.part() for _ in members]
        record.members = [*record.members, *parts]  # Note, then send
        flows = [self.acquire(part, member, who, until) for part, member in zip(parts, members, strict=True)]
        results = yield from together(flows)
        for part, member, result in zip(parts, members, results, strict=True):
            if result is None:  # from here on, an undo gives back one level, and leaves levels that came on top
                part.completed = self._host.holds.get((member.keys.name, who.key)), 1
            elif isinstance(result, RelockError):
                self._interrupted.undo_acquire(part, result)  # so that it leaves its gate: giving back enters others
        errors = [result for result in results if isinstance(result, RelockError)]
        if errors:
            yield from self._give_back(record, who)
            raise errors[0]
        return results

    def _give_back(self, record: CallRecord, who: Owner, members: Sequence[LockSpec] | None = None) -> CallFlow[None]:
        """Release what the call has taken, of `members` or in all, in one batch."""
        names = None if members is None else {member.keys.name for member in members}
        releases, flows = [], []
        for part in record.members:
            hold, levels = part.completed or (None, 0)
            if hold is not None and (names is None or hold.keys.name in names):
                release = record.part()
                release.due = hold, levels
                record.members = [release if one is part else one for one in record.members]  # owed without a gap
                releases.append(release)
                flows.append(self.release(release, hold.spec, who))
        yield from together(flows)
        for release in releases:
            self._interrupted.fail(release)

    def release_all(self, record: CallRecord, spec: MultiSpec, who: Owner) -> CallFlow[None]:
        """Leave one level of each member, as the function `release_all` does."""
        record.owe(spec, self._host.holds, who, 1)
        flows = [self.release(part, one, who) for part, one in zip(record.members, spec.members, strict=True)]
        results = yield from together(flows)
        errors = [error for error in results if error is not None]
        if errors:
            first = min(errors, key=lambda error: not isinstance(error, LockLostError))
            for error in errors:
                if error is not first:
                    first.add_note(f"relock: {error}")
            raise first
