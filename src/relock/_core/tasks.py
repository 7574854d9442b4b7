"""Tasks of the janitor."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Failure
from relock._core.hold import Hold
from relock._keys import LockKeys

RETRY_SECONDS_MIN = 0.1
HEAL_RETRY_SECONDS_MIN = 0.002
HEAL_SECONDS = 1.0  # for so long a quorum's word is good enough to heal; the next renewal brings a new one


class UndoTask(NamedTuple):
    """Task to end a hold or a place in the queue on every master.

    Attributes:
        not_after: our time after which nothing of the undone request can arrive any more.
        give_up_at: our time at which the hold's lease has run out by itself.
        pause: seconds until the undo is tried again, if it has to be.
        keeps_place: True if the waiter goes on waiting.
        ticket: that waiter's, which gets its place back if it has lost that to this hold; 0 if it has no ticket.
        left: the masters that have not confirmed the undo since nothing can arrive any more; None: all.
    """

    keys: LockKeys
    owner: bytes
    token: int
    ttl: float
    not_after: float
    give_up_at: float
    pause: float = RETRY_SECONDS_MIN
    keeps_place: bool = False
    ticket: int = 0
    left: frozenset[int] | None = None


class PendingCheck(NamedTuple):
    """Look to be taken later at what a slow master leaves in doubt because it has not answered yet.

    Every release over several masters that returns at the quorum leaves a check, so a check must be cheap to make.

    Attributes:
        is_left: returns whether the answers that have come by then leave a doubt.
        answers: those to the last request, among which slow masters' answers go on arriving.
        until: our time after which no answer comes any more.
        task: makes the task that settles the doubt.
    """

    is_left: Callable[[], bool]
    answers: Sequence[Answer]
    until: float
    task: "Callable[[], UndoTask | Settle]"

    def is_open(self, now: float) -> bool:
        """Return whether an answer may yet come that settles the doubt."""
        awaited = any(isinstance(answer[0], Failure) and answer[0].awaited for answer in self.answers)
        return awaited and now < self.until


class PassOn(NamedTuple):
    """Task to pass on the turn, and give up the place, of a waiter that has left."""

    keys: LockKeys
    owner: bytes


class Settle(NamedTuple):
    """Task to write a true hold count to the masters, which may have another one."""

    hold: Hold
    pause: float = RETRY_SECONDS_MIN


class Heal(NamedTuple):
    """Task to heal holds that a quorum has just confirmed, and another master does not have.

    Attributes:
        until: our time after which the quorum's word is too old to heal by.
        pause: seconds until the task is tried again where another client's attempt is in the way on a master.
    """

    holds: tuple[Hold, ...]
    until: float
    pause: float = HEAL_RETRY_SECONDS_MIN


class Accuse(NamedTuple):
    """Task to take a master's vote after `step` of its clock, unless a quorum shows that it was a step of our clock."""

    step: ClockStep
    pause: float = RETRY_SECONDS_MIN  # until it is tried again, where the master could not be told
    waits: bool = True  # once, where masters that are not heard may show the same step


class Sample(NamedTuple):
    """Task to look at the clocks of all masters, after a message that looks as if one of the clocks had stepped."""


class GoOn(NamedTuple):
    """Task to `do` what a caller that has gone could not do yet, and can be done now; `do` does not wait."""

    do: Callable[[], object]


Task = GoOn | UndoTask | PassOn | Settle | Heal | Accuse | Sample
