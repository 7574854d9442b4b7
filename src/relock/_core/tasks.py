"""Tasks of the janitor."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Failure
from relock._core.hold import Hold
from relock._core.quorum import NEVER
from relock._keys import LockKeys

RETRY_SECONDS_MIN = 0.1
HEAL_RETRY_SECONDS_MIN = 0.002
HEAL_SECONDS = 1.0  # a quorum's confirmation allows healing for this long; the next renewal brings another one


class UndoTask(NamedTuple):
    """Task to end a hold or a place in the queue on every master.

    Attributes:
        not_after: our time after which the undone request can't arrive any more.
        give_up_at: our time at which the hold's lease has run out by itself.
        pause: seconds until the undo is tried again, if necessary.
        keeps_place: True if the waiter goes on waiting.
        ticket: the ticket with which that waiter gets its place back, if this hold took it; 0 for none.
        left: the masters that have not confirmed the undo since `not_after`; None for all.
        rest_until: our time until which the lock rests on a master that ends the hold.
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
    rest_until: float = NEVER


class PendingCheck(NamedTuple):
    """Check to be made later, when a slow master has answered or its time is over.

    Every release over several masters that returns at the quorum leaves a check, so a check must be cheap to make.

    Attributes:
        is_left: returns whether the answers that have come by then leave work to do.
        answers: the answers to the last request, into which late answers are written.
        until: our time after which no answer comes any more.
        task: makes the task for the work that is left.
    """

    is_left: Callable[[], bool]
    answers: Sequence[Answer]
    until: float
    task: "Callable[[], UndoTask | Settle]"

    def is_open(self, now: float) -> bool:
        """Return whether an answer is still to come."""
        awaited = any(isinstance(answer[0], Failure) and answer[0].awaited for answer in self.answers)
        return awaited and now < self.until


class PassOn(NamedTuple):
    """Task to pass on the turn, and give up the place, of a waiter that has left."""

    keys: LockKeys
    owner: bytes


class Settle(NamedTuple):
    """Task to write a hold count again to masters that may have another one."""

    hold: Hold
    pause: float = RETRY_SECONDS_MIN


class Heal(NamedTuple):
    """Task to heal holds that a quorum has just confirmed, and another master does not have.

    Attributes:
        until: our time after which the quorum's confirmation is too old for healing.
        pause: seconds until the task is tried again where another client's attempt is in the way on a master.
    """

    holds: tuple[Hold, ...]
    until: float
    pause: float = HEAL_RETRY_SECONDS_MIN


class Accuse(NamedTuple):
    """Task to quarantine a master after a `step` of its clock, unless a quorum shows that the step was our clock's.

    Attributes:
        pause: seconds until the task is tried again, if the master did not answer.
        waits: True if the task may wait, once, for masters that may yet show the same step.
    """

    step: ClockStep
    pause: float = RETRY_SECONDS_MIN
    waits: bool = True


class Sample(NamedTuple):
    """Task to sample the clocks of all masters, after a message which suggests that one of the clocks stepped."""


class GoOn(NamedTuple):
    """Task to call `do`, which finishes the work of a caller that has ended, and must not wait."""

    do: Callable[[], object]


Task = GoOn | UndoTask | PassOn | Settle | Heal | Accuse | Sample
