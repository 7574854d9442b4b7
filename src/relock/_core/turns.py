"""Judgement of which waiters cannot act, and so lose their places in the queues.

A turn is for a waiter that can act. A waiter must look when it is told (woken, or given the lock), and when its own
time is over. A task's waiter hears by its event loop alone, so it must also look while the loop owes an answer to
whether it turns. A waiter that does not look is stuck: its thread is in a signal handler, say, or its loop blocks.
Such a waiter loses its place in the queue, and the others go on. It never loses a hold: one that a releaser gave it for
a moment ends by itself, or the waiter takes it or gives it back.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from relock._core.hold import FOREVER
from relock._core.lock_spec import HANDED_LEASE_SECONDS

TURN_SECONDS = HANDED_LEASE_SECONDS  # from the first telling to the loss of the place; what was given has ended by then
LOOK_SECONDS = 0.25  # between two looks at which waiters have missed their turns, at least
LATE_SECONDS = 0.5  # a thread that wakes later than this was stopped, or its whole process was
PAUSES_MAX = 16  # so many of the latest pauses are known
TICKETS_KEPT = 1  # how often a waiter that has missed its turn gets its place back


class Waiting(Protocol):
    """Waiter, as far as judging its turn needs it."""

    @property
    def overdue_since(self) -> float:
        """Time of the local clock since which the waiter must look; infinity where it need not."""


class Turns:
    """Turns of one client's waiters, counted in the time for which the process itself has run.

    A process that was stopped goes on with all its waiters overdue. No waiter could look during the pause, so the pause
    does not count.
    """

    def __init__(self) -> None:
        self._pauses: deque[tuple[float, float]] = deque(maxlen=PAUSES_MAX)  # when each ended, and its seconds

    def woke(self, due: float, now: float) -> None:
        """Note that a thread that was to wake at `due` has woken; where it is late, the process was stopped."""
        if now - due > LATE_SECONDS:
            self._pauses.append((now, now - due))

    def run_for(self, since: float, now: float) -> float:
        """Return the seconds for which the process has run since `since`."""
        paused = sum(min(seconds, end - since) for end, seconds in self._pauses if end > since)
        return now - since - paused

    def has_missed(self, waiter: Waiting, now: float) -> bool:
        """Return whether `waiter` must look, and has not for as long as a turn lasts."""
        since = waiter.overdue_since
        return since <= now - TURN_SECONDS and self.run_for(since, now) >= TURN_SECONDS

    def next_look(self, waiters: Iterable[Waiting], now: float) -> float:
        """Return when the first of these waiters misses its turn, at least `LOOK_SECONDS` on; infinity if none may."""
        first = min((waiter.overdue_since for waiter in waiters), default=FOREVER)
        return FOREVER if first > now else now + max(LOOK_SECONDS, TURN_SECONDS - self.run_for(first, now))
