"""Line in which tasks of one loop wait until their requests can be sent."""

import asyncio
from collections import deque
from collections.abc import Callable

from relock._core.effects import Clock
from relock._core.hold import FOREVER
from relock._runtime.aio.alarms import TIMER_SECONDS_MAX


class Line:
    """Line of tasks: tasks whose calls have begun go first, then new calls; each group in the order of coming.

    The calls that have begun may save the new ones a request. Say that thousands of tasks come at once for a lock that
    is taken. Then the first refusal tells the later ones to ask for a place in the queue with their first request.

    Args:
        room: returns how many more requests the masters take now.

    Attributes:
        places: the tasks that wait, and some that no longer do.
        under_way: how many of the first tasks have begun their calls.
        coming: how many tasks were woken because of room, and have not sent their requests yet.
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
                self.make_room()  # give the turn of this task to the next one
            place.cancel()  # the future stays in `places`, and `_wake` skips it
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if is_coming:
            self.coming -= 1
        if self.places:
            self._loop.call_soon(self.make_room)  # in case this task sends nothing, so that no reply wakes the next

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
    """Wake a task in line, because there is room or its time is over; return False if the task has left."""
    if place.done():
        return False
    place.set_result(is_coming)
    return True
