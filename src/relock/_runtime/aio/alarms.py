"""Timer of an event loop for many deadlines."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from relock._core.effects import Clock
from relock._core.hold import FOREVER

TIMER_SECONDS_MAX = 60.0  # a loop's clock stops while the machine is suspended, so a timer that wakes looks at ours
LOOKS_PART = 0.05  # the part of the loop's time that looks may take
LATE_SECONDS_MAX = 0.4  # the longest delay of a look in order to keep to that part

T = TypeVar("T")


class Alarms(Generic[T]):
    """Items with a time each, and a single timer: nearly all items are taken out early, and need no own timer.

    The code that adds an item calls `look_by`, unless the timer looks early enough and is not late itself: that
    condition is written out at each place, because a call of a function would cost too much. The same code takes the
    item out.

    A look at thousands of items takes a millisecond. So the pause before the next look is many times as long as the
    last look took, but at most `LATE_SECONDS_MAX`, and items may be late by that. Only the search for due items counts
    towards the pause: the work on them has to be done anyway.

    Args:
        over: acts on an item, with its time and the time now: `over` takes the item out, or gives it another time.

    Attributes:
        due: our time for each item.
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

        The new timer is set before the old one is cancelled: if an exception strikes in between, a timer is left.
        """
        at = min(at, self.looks_at)
        timer = self._loop.call_later(min(max(0.0, at - self._clock()), TIMER_SECONDS_MAX), self._look)
        old, self._timer, self.looks_at = self._timer, timer, at
        if old is not None:
            old.cancel()

    def close(self) -> None:
        """Cancel the timer, because no item is needed any more. Called on the loop, or when the loop is closed."""
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
