"""Notes of one call, made before anything is sent: an interrupt undoes the call from them."""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from relock._core.book import HoldKey
from relock._core.effects import Effect
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec

# Between two looks at a gate: the caller that was to wake the next in line may have been struck before.
LOOK_SECONDS = 1.0
SILENT_SECONDS = 0.75  # without an answer, after which an event loop counts as one that stands still
GIVE_WAY_SECONDS = SILENT_SECONDS + LOOK_SECONDS  # within which callers that can't go on have given way

T = TypeVar("T")


class CallRecord:
    """Notes of what one acquire or release may leave behind if it is interrupted; made before anything is sent."""

    spec: LockSpec | None = None  # of an outermost acquire that is under way
    owners: list[bytes] = []  # the waiter, and every name under which it has asked for the lock
    hold: Hold | None = None  # of a nested acquire, or a release
    count: int = 0  # what an interrupt must leave of that hold's levels
    completed: tuple[Hold | None, int] | None = None  # set once the work is done: the hold and the levels to give back
    gate: Any = None  # the gate that the call is at, inside or in line: an `Admission`
    task: Any = None  # the task that awaits the call; None for a thread's
    deferred_release: Any = None  # the background work that gives back in the place of this call
    suspended: list[None] | None = None  # of a task's call: see `claim`
    is_overtaken: bool = False  # another caller of the same owner has undone the call

    def claim(self) -> bool:
        """Take the right to go on with a task's call that is suspended, or to undo it; only one caller gets it.

        The call's own task takes the right whenever it goes on, and gives it back before it awaits. If the task's event
        loop stands still, another caller of the same owner may wait behind the call. That caller takes the right to
        undo the call: Claim, then act.
        """
        try:
            self.suspended.pop()  # type: ignore[union-attr]  # atomic
        except (IndexError, AttributeError):
            return False
        return True


class OvertakenError(Exception):
    """Error of a call that another caller of its owner undid while its event loop stood still; the call begins anew."""


class Enter(NamedTuple):
    """Effect of a call, beside those of `relock._core.effects`: enter the gate of the call's owner.

    Such an owner may call several times at once: an ``owner=``, or a task. One call at a time takes or leaves a
    level, and the others queue at the gate. The answer is a bool: whether the caller is in by `until`. If `until` is
    over already, the caller comes in only where nobody else is inside. By then the `record` has the gate.
    """

    record: CallRecord
    key: HoldKey
    until: float


Step = Effect | Enter

CallFlow = Generator[Step, Any, T]
"""Flow of a call: it yields steps, is sent the answer of each, and returns a result."""
