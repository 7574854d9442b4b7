"""Deadlines of rounds, when tasks that wait for answers must go on without them."""

import asyncio
from collections.abc import Callable

from relock._core.asking import Round
from relock._core.effects import Clock
from relock._runtime.aio.alarms import Alarms


class Deadlines(Alarms[Round]):
    """Deadlines of one loop's rounds: an asker whose time is over is woken, once what has come for it is taken.

    Args:
        late_max: returns the seconds by which masters get more time at most, where the loop comes late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, late_max: Callable[[], float]) -> None:
        super().__init__(loop, clock)
        self._late_max = late_max

    def over(self, what: Round, at: float, now: float) -> None:
        """Wake the asker of a round whose time is over, once what has come over the round's carriers by now is taken.

        Where the loop comes late to this, the masters get once more the time by which it is late: replies may have
        waited for the loop not in the socket, which was full, but behind that.
        """
        for carrier in what.carriers:
            carrier.take()
        if what.is_late or not what.is_awaited:
            self.due.pop(what, None)
            what.wake()
        else:
            what.is_late = True
            self.due[what] = now + min(now - at, self._late_max())
