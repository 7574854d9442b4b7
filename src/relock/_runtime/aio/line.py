"""Line in which tasks of one loop wait until their requests can be sent."""

import asyncio
from collections import deque
from collections.abc import Callable

from relock._core.effects import Clock
from relock._core.hold import FOREVER
from relock._runtime.aio.alarms import TIMER_SECONDS_MAX


class Line:
    """Line of tasks: the first sends first, but those whose calls are under way go before those that come.

    What calls under way learn may spare the others a request: thousands that come at once for a lock that is taken
    would each look at the lock first, and only then ask for a place in its queue.

    Args:
        room: returns how many requests more the masters take now.

    Attributes:
        places: the tasks that wait, and some that wait no more.
        under_way: how many of the first tasks have begun their calls.
        coming: how many tasks have been told to come, and have not sent anything yet.
    """

    coming: int
    places: "deque[asyncio.Future[bool]]"
    under_way: int

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, room: Callable[[], int]) -> None:
        self.places = deque()
        self.under_way = 0
        self.coming = 0
        self._loop = loop
        self._clock = clock
        self._room = room

    async def wait(self, until: float, *, has_begun: bool) -> None:
        """Wait for the caller's turn, until the clock's `until` (s) at most."""
        place = self._loop.create_future()
        if has_begun:
            self.places.insert(self.under_way, place)
            self.under_way += 1
        else:
            self.places.append(place)
        self.make_room()
        timer = None
        if until < FOREVER:
            timer = self._loop.call_later(min(max(0.0, until - self._clock()), TIMER_SECONDS_MAX), _wake, place, False)
        is_coming = False
        try:
            is_coming = await place
        except BaseException:
            if place.done() and not place.cancelled() and place.result():
                self.coming -= 1
                self.make_room()  # its turn is the next one's
            place.cancel()  # it stays in line, and is passed over
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if is_coming:
            self.coming -= 1
        if self.places:
            self._loop.call_soon(self.make_room)  # if this one sends nothing, no reply would let the next one in

    def make_room(self) -> None:
        """Let the first in line send, as far as the masters take more requests."""
        while self.places and self._room() > 0:
            if _wake(self._next(), True):
                self.coming += 1

    def dismiss(self) -> None:
        """Let all go on, because the client is closed."""
        while self.places:
            _wake(self._next(), False)

    def _next(self) -> "asyncio.Future[bool]":
        self.under_way = max(0, self.under_way - 1)
        return self.places.popleft()


def _wake(place: "asyncio.Future[bool]", is_coming: bool) -> bool:
    """Wake a task in line, whose turn it is or whose time is over; return False where the task has left."""
    if place.done():
        return False
    place.set_result(is_coming)
    return True
