"""Notes of one call, made before anything is sent: an interrupt undoes the call from them."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from relock._core.book import Book, HoldKey
from relock._core.effects import Effect
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec, MultiSpec
from relock._errors import DeadlockError
from relock._owner import Owner

# Between two looks at a gate: an interrupt may have kept the caller before from waking the next in line.
LOOK_SECONDS = 1.0
SILENT_SECONDS = 0.75  # after so long without an answer, an event loop counts as standing still
GIVE_WAY_SECONDS = SILENT_SECONDS + LOOK_SECONDS  # within this time, callers on such a loop have given way

T = TypeVar("T")


class CallRecord:
    """Notes of what one acquire or release may leave behind if it is interrupted; made before anything is sent."""

    spec: LockSpec | None = None  # of an outermost acquire that is under way
    owners: list[bytes] = []  # the waiter, and every name under which it has asked for the lock
    hold: Hold | None = None  # of a nested acquire, or a release
    count: int = 0  # the levels that this hold must have after an interrupt
    completed: tuple[Hold | None, int] | None = None  # set once the work is done: the hold and the levels to give back
    due: tuple[Hold | None, int] | None = None  # of a release: the hold, and the levels that it owes in any case
    error: DeadlockError | None = None  # with which the wait of this call ends, unless its next look is granted
    gate: Any = None  # the gate that the call is at, inside or in line: an `Admission`
    task: Any = None  # the task that awaits the call; None for a call of a thread
    deferred_release: Any = None  # the background work that releases levels for this call
    suspended: list[None] | None = None  # of a task's call: see `claim`
    is_overtaken: bool = False  # another caller of the same owner has undone the call
    members: Sequence["CallRecord"] = ()  # of the calls that are parts of this one: a multi-lock has several members
    whole: "CallRecord | None" = None  # the record of the call that this one is a part of

    def part(self) -> Self:
        """Return the record of a part of this call, which is claimed and undone with the whole."""
        part = type(self)()
        part.whole, part.task = self, self.task
        return part

    @property
    def has_begun(self) -> bool:
        """True if a release has noted what it gives back: then an undo carries the release out."""
        return self.hold is not None or bool(self.members)

    def owe(self, spec: "LockSpec | MultiSpec", holds: Book, who: Owner, levels: int) -> None:
        """Note once that this call releases `levels` levels (0: all) of the owner's hold, or of each member's hold."""
        if isinstance(spec, LockSpec):
            self.due = self.due or (holds.get((spec.keys.name, who.key)), levels)
            if self.due[0] is not None:
                self.due[0].is_used = True
        elif not self.members:
            parts = [self.part() for _ in spec.members]
            for part, member in zip(parts, spec.members, strict=True):
                part.owe(member, holds, who, levels)
            self.members = parts  # Note, then send

    def claim(self) -> bool:
        """Claim a suspended call of a task, to go on with it or to undo it; return whether this caller has got it.

        The task claims its call whenever it goes on, and gives the claim back before it awaits. If the task's event
        loop stands still, another caller of the same owner may wait behind the call. That caller has the call claimed
        and undone: Claim, then act.
        """
        try:
            self.suspended.pop()  # type: ignore[union-attr]  # atomic
        except (IndexError, AttributeError):
            return False
        return True


NO_CALL = CallRecord()
"""Notes of a wait that no call of a user makes, in which nothing is noted."""


class OvertakenError(Exception):
    """Raised in a call that was undone for another caller, while its event loop stood still: it must begin anew."""


class Enter(NamedTuple):
    """Effect of a call, beside those of `relock._core.effects`: enter the gate of the call's owner.

    An ``owner=`` or a task may make several calls at once. One call at a time takes or leaves a level, and the others
    queue at the gate. Answered with a bool: whether the caller is in by `until`. If `until` is over already, the caller
    comes in only if no other one is inside. Then `record` names the gate.
    """

    record: CallRecord
    key: HoldKey
    until: float


Step = Effect | Enter

CallFlow = Generator[Step, Any, T]
"""Flow of a call: it yields steps, is sent the answer of each, and returns a result."""
