"""Timer of an event loop, shared by all that must go on at some time, though nothing has come for it."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from relock._core.effects import Clock
from relock._core.hold import FOREVER

TIMER_SECONDS_MAX = 60.0  # a loop's clock stops while the machine is suspended, so a timer that wakes looks at ours
LOOKS_PART = 0.05  # of the loop's time, which looks at many may take
LATE_SECONDS_MAX = 0.4  # that a look may be put off to keep to that part

T = TypeVar("T")


class Alarms(Generic[T]):
    """Things with a time each, and one timer. Nearly all are taken out before, so a timer for each would be in vain.

    The code that puts a thing in calls `look_by`, unless the timer is in time for the thing and is not late itself:
    written out at each place, as calls are counted. The same code takes the thing out.

    A look at thousands of them takes a millisecond. So the next look comes after many times as long as the last one
    took, and they may go on late by that, but by no more than `LATE_SECONDS_MAX`. Only the search for what is due
    counts, not what is done about it: that has to be done anyway.

    Args:
        over: acts on a thing, with the thing's time and the time now: it takes the thing out, or gives it another time.

    Attributes:
        due: our time for each thing.
        looks_at: our time at which the timer looks. A timer whose time is over is lost, or late: an exception struck
            the code that set it, or the machine was suspended, and a loop's clock stands still meanwhile.
    """

    due: dict[T, float]
    looks_at: float

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, over: Callable[[T, float, float], object]
    ) -> None:
        self.due = {}
        self.looks_at = FOREVER
        self._loop = loop
        self._clock = clock
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def look_by(self, at: float) -> None:
        """Have the timer look at `at`, or earlier if it would have.

        The new timer is set before the old one is cancelled: where an exception strikes, one of them is left.
        """
        at = min(at, self.looks_at)
        timer = self._loop.call_later(min(max(0.0, at - self._clock()), TIMER_SECONDS_MAX), self._look)
        old, self._timer, self.looks_at = self._timer, timer, at
        if old is not None:
            old.cancel()

    def close(self) -> None:
        """Cancel the timer: nobody waits any more. Called on the loop, or when the loop is closed."""
        timer, self._timer, self.looks_at = self._timer, None, FOREVER
        if timer is not None and not self._loop.is_closed():
            timer.cancel()

    def _look(self) -> None:
        self._timer, self.looks_at, pause = None, FOREVER, 0.0
        try:
            now = self._clock()
            over = [(what, at) for what, at in [*self.due.items()] if now >= at]
            pause = min((self._clock() - now) / LOOKS_PART, LATE_SECONDS_MAX)
            for what, at in over:
                self._over(what, at, now)
        finally:
            if self.due:
                self.look_by(max(min(self.due.values()), self._clock() + pause))
