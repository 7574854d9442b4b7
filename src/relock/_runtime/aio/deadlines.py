"""When tasks that wait for answers must go on without them."""

import asyncio
from collections.abc import Callable

from relock._core.effects import Clock
from relock._core.hold import FOREVER
from relock._runtime.aio.loop_inbox import TIMER_SECONDS_MAX
from relock._runtime.aio.loop_round import LoopRound


class Deadlines:
    """Wakes the askers of one loop whose time is over. Nearly all are answered before: so all share one timer.

    Args:
        late_max: seconds for which masters get more time at most, where the loop comes late.

    Attributes:
        due: those whose askers are to be woken.
    """

    due: dict[LoopRound, None]

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, late_max: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._late_max = late_max
        self.due = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = FOREVER

    def add(self, round_: LoopRound) -> None:
        """Wakes the asker at the end of its time, once what has come over its links by then is taken.

        A timer whose time was over before this was asked is lost, or late: an exception struck the one that set it, or
        the machine was suspended, and a loop's clock stands still meanwhile.
        """
        self.due[round_] = None
        if round_.until < self._timer_at or self._timer_at < round_.sent_at:
            self._set_timer(min(round_.until, self._timer_at))

    def remove(self, round_: LoopRound) -> None:
        """It is over."""
        self.due.pop(round_, None)

    def close(self) -> None:
        """Nobody waits any more. On the loop, or when that is closed."""
        if self._timer is not None and not self._loop.is_closed():
            self._timer.cancel()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(min(max(0.0, at - self._clock()), TIMER_SECONDS_MAX), self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, FOREVER
        now = self._clock()
        try:
            for round_ in [*self.due]:
                if now >= round_.look_at:
                    self._judge(round_, now)
        finally:
            if self.due:
                self._set_timer(min([round_.look_at for round_ in self.due]))

    def _judge(self, round_: LoopRound, now: float) -> None:
        """Its time is over, unless what it waits for has come by now.

        Where the loop comes late to this, the masters get once more the time by which it is late: replies may have
        waited for it not in the socket, which was full, but behind that.
        """
        for link in round_.links:
            link.take()
        if round_.is_late or round_.done.done():
            self.remove(round_)
            round_.wake()
        else:
            round_.is_late = True
            round_.look_at = now + min(now - round_.look_at, self._late_max())
