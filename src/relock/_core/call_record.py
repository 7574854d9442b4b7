"""What an interrupt may leave of a call: noted before anything is sent, and undone from the notes."""

from typing import Any, NamedTuple

from relock._core.book import HoldKey
from relock._core.effects import Effect
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec


class CallRecord:
    """What one call of acquire or release may leave behind if it is interrupted; filled in before anything is sent."""

    spec: LockSpec | None = None  # of an outermost acquire that is under way
    owners: list[bytes] = []  # the waiter, and every name under which it has asked for the lock
    hold: Hold | None = None  # of a nested acquire, or a release
    count: int = 0  # what an interrupt must leave of that hold's levels
    over: tuple[Hold | None, int] | None = None  # the work is done: what must be given back of which hold, and no more
    gate: Any = None  # where it is, or waits to be
    task: Any = None  # what awaits it, where that is a task
    errand: Any = None  # what gives back in its place
    suspended: list[None] | None = None  # of a task's call: see `claim`
    is_overtaken: bool = False  # another caller of its owner has undone it

    def claim(self) -> bool:
        """Take the right to go on with a task's call that is suspended, or to undo it; only one caller gets it.

        The call's own task takes it whenever it goes on, and gives it back before it awaits. Another caller of the same
        owner, which waits behind it while its event loop stands still, takes it to undo the call: Claim, then act.
        """
        try:
            self.suspended.pop()  # type: ignore[union-attr]  # atomic
        except (IndexError, AttributeError):
            return False
        return True


class OvertakenError(Exception):
    """A call was undone by another caller of its owner while its event loop stood still; it begins anew."""


class Enter(NamedTuple):
    """The effect of a call, beside those of `relock._core.effects`: come in at the gate of an owner that
    may call several times at once: an ``owner=``, or a task.

    There its calls queue, for one at a time takes or leaves a level. Answered with a bool: whether the caller is in, at
    the latest at `until`; where that is over, only if nobody else is. The `record` has the gate by then.
    """

    record: CallRecord
    key: HoldKey
    until: float


class Asked:
    """A request that is sent, as an effect of a call: wait for its answers. Answered as an `Ask` is."""

    __slots__ = ()


Step = Effect | Enter | Asked
