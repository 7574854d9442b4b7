"""Records of a history: frozen values, with times (s) of one clock that all processes share."""

import math
from collections.abc import Sequence
from typing import Literal

from attrs import field, frozen

FOREVER = math.inf
NEVER = -math.inf

Kind = Literal["acquire", "release", "arrive", "wait"]
Outcome = Literal["ok", "refused", "failed", "unknown"]


def place_of(name: str, slot: int | None) -> str:
    """Return the name of a lock, or of a slot of a semaphore, which is to be used as a lock is."""
    return name if slot is None else f"{name}.{slot}"


@frozen
class Operation:
    """One call of a worker.

    Attributes:
        number: its number in the whole history.
        worker: ``process.thread``; it has one call under way at a time.
        lock: the name of the lock, or of the latch.
        kind: an acquire or a release; of a latch, an arrival or a wait.
        level: how many levels the worker had before: 0 makes an acquire the outermost, 1 a release the last.
        called: when it began; `returned` is when it returned, infinity for a call that never did.
        outcome: ``refused`` if another worker had the lock; ``failed`` if there was an error; ``unknown`` if the worker
            was killed.
        token: the fencing token after the call.
        count: the hold count after the call; None if the hold was lost before the worker could look. Of a latch: how
            many parties were missing.
        until: of an outermost acquire: until when its worker believed in the hold: the last deadline (D) that it saw.
        killed: of an outermost acquire: the time of the last event of a worker that was killed in its hold.
        others: of an outermost acquire: the other locks that the same call takes, by `lock_all`.
        slot: the number of a permit, in the grant and in its release; `lock` then names the semaphore.
        reads: it is a reader's call.
        downgrades: of a reader's acquire: the worker has the lock as a writer until it has it as a reader.
        beside: of an acquire: the lock that its worker has already, and the name of that hold on the masters.
        cycle: of a call that got a `DeadlockError`: the ring that the error names.
        party: the name under which an arrival counts at a latch.
    """

    number: int
    worker: str
    lock: str
    kind: Kind
    called: float
    returned: float = FOREVER
    outcome: Outcome = "ok"
    level: int = 0
    token: int = 0
    count: int | None = 0
    until: float = FOREVER
    killed: float = FOREVER
    others: Sequence[str] = ()
    slot: int | None = None
    reads: bool = False
    downgrades: bool = False
    beside: Sequence[str] = ()
    cycle: Sequence[Sequence[str]] = ()
    party: str = ""

    @property
    def place(self) -> str:
        """Name what one worker at a time may have: the lock, or the slot of the semaphore."""
        return place_of(self.lock, self.slot)

    @property
    def may_hold_unseen(self) -> bool:
        """Return whether the call may have the lock before it returns: it waits for another lock meanwhile."""
        return self.kind == "acquire" and self.lock < max(self.others, default="")

    @property
    def may_ask_for_another(self) -> bool:
        """Return whether the call may wait for another lock, and ask for this one only when it has that."""
        return self.lock > min(self.others, default=self.lock)

    @property
    def is_grant(self) -> bool:
        """Return whether the call is an outermost acquire that was granted."""
        return self.kind == "acquire" and self.level == 0 and self.outcome == "ok"

    def __str__(self) -> str:
        """Show the worker, the call, and the times."""
        what = self.kind if self.level == (self.kind == "release") else f"nested {self.kind}"
        end = "never returned" if self.returned == FOREVER else f"{self.returned:.6f}"
        return f"{what} #{self.number} of {self.place!r} by {self.worker} ({self.called:.6f} to {end})"


@frozen
class Write:
    """One write to the fenced store.

    Attributes:
        lock: the place (see `Operation`) behind which the store is; of updates and collisions as well.
        grant: the number of the outermost acquire that the token comes from.
        order: the position of the write among all that the store judged.
    """

    worker: str
    lock: str
    grant: int
    token: int
    called: float
    returned: float
    accepted: bool
    order: int


@frozen
class Update:
    """One update of the counter: read, sleep, write. A write that began and was not seen to end may be done or not."""

    worker: str
    lock: str
    grant: int
    read: int
    read_at: float
    written: int
    called: float
    returned: float = FOREVER


@frozen
class Collision:
    """A marker that a holder found of another holder, whose outermost acquire was `other`."""

    worker: str
    lock: str
    grant: int
    other: int
    called: float
    returned: float


@frozen
class Loss:
    """A message to a process that a hold of one of its threads was lost."""

    process: str
    lock: str
    token: int
    at: float
    reason: str


@frozen
class History:
    """The events of an episode."""

    operations: Sequence[Operation] = ()
    writes: Sequence[Write] = ()
    updates: Sequence[Update] = ()
    collisions: Sequence[Collision] = ()
    losses: Sequence[Loss] = ()
    ended: frozenset[str] = frozenset()  # the processes that did all their work
    latches: Sequence[Operation] = ()  # the calls of latches, which are no operations of a lock


@frozen
class Violation:
    """A broken promise, in a sentence.

    Attributes:
        check: the check that found it.
        at: the moment that it is about.
    """

    check: str
    lock: str
    at: float
    sentence: str = field(eq=False)

    def __str__(self) -> str:
        return f"[{self.check}] {self.sentence}"
