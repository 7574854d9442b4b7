"""Judgement of which waiters cannot act, and so lose their places in the queues.

A waiter that has its turn must look: when a message wakes it or gives it the lock, and when its own timeout is over. A
waiter that does not look is stuck: its thread is in a signal handler, say, or its event loop blocks. A task's waiter
is overdue, too, while its loop has not answered the question whether it turns. A stuck waiter loses its place in the
queue, and the others go on. It never loses a hold: a short hold that a releaser gave ends by itself, unless the waiter
takes it or gives it back.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from relock._core.hold import FOREVER
from relock._core.lock_spec import HANDED_LEASE_SECONDS

TURN_SECONDS = HANDED_LEASE_SECONDS  # from the first message to the loss of the place; a short hold has ended by then
LOOK_SECONDS = 0.25  # between two searches for waiters that have missed their turns, at least
LATE_SECONDS = 0.5  # a thread that wakes later than this was stopped, or its whole process was
PAUSES_MAX = 16  # pauses that are remembered
TICKETS_KEPT = 1  # how often a waiter that has missed its turn gets its place back


class Waiting(Protocol):
    """Waiter, as far as judging its turn needs it."""

    @property
    def overdue_since(self) -> float:
        """Our time since which the waiter must look; infinity if it need not."""


class Turns:
    """Turns of one client's waiters, measured in the time for which the process itself has run.

    When a stopped process goes on, all its waiters may be overdue. No waiter could look during the pause, so the pause
    does not count.
    """

    def __init__(self) -> None:
        self._pauses: deque[tuple[float, float]] = deque(maxlen=PAUSES_MAX)  # when each ended, and its seconds

    def woke(self, due: float, now: float) -> None:
        """Note that a thread which was to wake at `due` has woken `now`; if it is late, the process was stopped."""
        if now - due > LATE_SECONDS:
            self._pauses.append((now, now - due))

    def run_for(self, since: float, now: float) -> float:
        """Return the seconds for which the process has run since `since`."""
        paused = sum(min(seconds, end - since) for end, seconds in self._pauses if end > since)
        return now - since - paused

    def has_missed(self, waiter: Waiting, now: float) -> bool:
        """Return whether `waiter` has had to look for as long as a turn lasts, and has not."""
        since = waiter.overdue_since
        return since <= now - TURN_SECONDS and self.run_for(since, now) >= TURN_SECONDS

    def next_look(self, waiters: Iterable[Waiting], now: float) -> float:
        """Return when the first of these waiters misses its turn, at least `LOOK_SECONDS` on; infinity if none may."""
        first = min((waiter.overdue_since for waiter in waiters), default=FOREVER)
        return FOREVER if first > now else now + max(LOOK_SECONDS, TURN_SECONDS - self.run_for(first, now))
