"""What the janitor is handed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Failure
from relock._core.hold import Hold
from relock._keys import LockKeys
from relock._runtime.masters.known import MasterState

RETRY_SECONDS_MIN = 0.1
HEAL_RETRY_SECONDS_MIN = 0.002
HEAL_SECONDS = 1.0  # for so long a quorum's word is good enough to heal; the next renewal brings a new one


class UndoTask(NamedTuple):
    """A hold or a place in the queue to end on every master.

    Attributes:
        not_after: our time after which nothing of it can arrive any more.
        give_up_at: our time at which its lease has run out by itself.
        pause: seconds until it is tried again, if it has to be.
        stays: its waiter goes on waiting.
        ticket: of that waiter, which gets its place back where it has lost it to this hold; 0 where it has none.
        left: the masters that have not confirmed it since nothing can arrive any more; None: all.
    """

    keys: LockKeys
    owner: bytes
    token: int
    ttl: float
    not_after: float
    give_up_at: float
    pause: float = RETRY_SECONDS_MIN
    stays: bool = False
    ticket: int = 0
    left: frozenset[int] | None = None


class PendingCheck(NamedTuple):
    """A look to be taken later at what a slow master, which had not answered yet, leaves in doubt.

    Every release over several masters that comes back at the quorum leaves one, so it is made of nothing that is dear.

    Attributes:
        is_left: whether the answers that have come by then leave a doubt.
        answers: what was asked last, where slow masters' answers go on arriving.
        until: our time after which no answer comes any more.
        task: makes what is then to be done about it.
    """

    is_left: Callable[[], bool]
    answers: Sequence[Answer]
    until: float
    task: "Callable[[], UndoTask | Settle]"

    def is_open(self, now: float) -> bool:
        """Whether an answer may yet come that settles it."""
        awaited = any(isinstance(answer[0], Failure) and answer[0].awaited for answer in self.answers)
        return awaited and now < self.until


class PassOn(NamedTuple):
    """A turn that came for a waiter that has left."""

    keys: LockKeys
    owner: bytes


class Settle(NamedTuple):
    """A hold whose count on the masters may differ from the true one."""

    hold: Hold
    pause: float = RETRY_SECONDS_MIN


class Heal(NamedTuple):
    """Holds that a quorum has just confirmed, and another master does not have.

    Attributes:
        until: our time after which that was too long ago to go by it.
        pause: seconds until it is tried again where a master has somebody else's attempt at the moment.
    """

    holds: tuple[Hold, ...]
    until: float
    pause: float = HEAL_RETRY_SECONDS_MIN


class Accuse(NamedTuple):
    """A master that has shown `step`: its clock's, unless a quorum shows the same one, which then was our clock's."""

    master: MasterState
    step: ClockStep
    pause: float = RETRY_SECONDS_MIN  # until it is tried again, where the master could not be told
    waits: bool = True  # once, where masters that are not heard may show the same step


class Sample(NamedTuple):
    """A look at the clocks of all masters: what one of them has published looks as if it had stepped."""


class GoOn(NamedTuple):
    """What a caller that has gone could not do yet, and can now; it does not wait."""

    do: Callable[[], object]


Task = GoOn | UndoTask | PassOn | Settle | Heal | Accuse | Sample
