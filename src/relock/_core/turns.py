"""Judgement of which waiters cannot act, and so lose their places in the queues.

A turn is for a waiter that can act. A waiter must look when it is told (woken, or given the lock), and when its own
time is over. A waiter that does not look is stuck: its thread is in a signal handler, say, or its event loop blocks.
Such a waiter loses its place in the queue, and the others go on. It never loses a hold: one that a releaser gave it for
a moment ends by itself, or the waiter takes it or gives it back.
"""

from collections import deque
from collections.abc import Collection
from typing import Protocol

from relock._core.flows.acquire import HEARTBEAT_SECONDS
from relock._core.lock_spec import HANDED_LEASE_SECONDS
from relock._core.pulse import Pulse

TURN_SECONDS = HANDED_LEASE_SECONDS  # from the first telling to the loss of the place; what was given has ended by then
SILENT_SECONDS = 2 * HEARTBEAT_SECONDS  # without an answer, after which an event loop counts as one that stands still
DOUBT_SECONDS = 0.25  # the same, once a task of the loop has missed its turn
LATE_SECONDS = 0.5  # a thread that wakes later than this was stopped, or its whole process was
PAUSES_MAX = 16  # so many of the latest pauses are known
TICKETS_KEPT = 1  # how often a waiter that has missed its turn gets its place back


class Waiting(Protocol):
    """Waiter, as far as judging its turn needs it.

    Attributes:
        due_at: the moment since which the waiter must look; infinity where it need not.
        pulse: the pulse of the event loop of the waiter's task; None for a thread.
    """

    @property
    def due_at(self) -> float:
        """Time of the local clock since which the waiter must look."""

    @property
    def pulse(self) -> Pulse | None:
        """Pulse of that loop; it says whether the loop turns."""


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
        """Return whether `waiter` was told, and has not looked for as long as a turn lasts."""
        due_at = waiter.due_at
        return due_at <= now - TURN_SECONDS and self.run_for(due_at, now) >= TURN_SECONDS

    def silent_loops(self, waiters: Collection[Waiting], now: float) -> set[Pulse]:
        """Return the pulses of the event loops that stand still, of those whose tasks wait."""
        doubted = {waiter.pulse for waiter in waiters if waiter.pulse is not None and self.has_missed(waiter, now)}
        return {
            pulse
            for pulse in {waiter.pulse for waiter in waiters}
            if pulse is not None and self._is_silent(pulse, now, DOUBT_SECONDS if pulse in doubted else SILENT_SECONDS)
        }

    def _is_silent(self, pulse: Pulse, now: float, longest: float) -> bool:
        asked_at = pulse.asked_at
        return asked_at <= now - longest and self.run_for(asked_at, now) >= longest

    def next_look(self, waiters: Collection[Waiting], now: float) -> float:
        """Return when the first waiter told by now misses its turn, at least `DOUBT_SECONDS` on; infinity if none."""
        left = [TURN_SECONDS - self.run_for(waiter.due_at, now) for waiter in waiters if waiter.due_at <= now]
        return now + max(DOUBT_SECONDS, min(left, default=float("inf")))
