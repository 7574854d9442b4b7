"""Lines of calls that wait for a connection, because as many are in use as there may be.

The first that came is served first. A call that waits holds no connection of any master: of two calls that each have
what the other one waits for, neither would go on.

Nothing is handed over here. A call that gives a connection back puts it into the pool and wakes the first in line,
which takes it from there. So an interrupt between any two steps loses no connection, and no place but the caller's
own. A connection that broke, or that an interrupted call has left, wakes nobody: it is found at the next look.
"""

import weakref
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

from relock._runtime.platform import Platform

LOOK_SECONDS = 0.02  # how often a call that waits for a connection looks whether there is one


class Place:
    """One call's place in a line.

    Attributes:
        until: our time after which it is nobody's any more, whatever has become of the call.
        wakes: a token for each reason to look.
    """

    __slots__ = ("__weakref__", "until", "wakes")

    until: float

    def __init__(self, until: float, platform: Platform) -> None:
        self.until = until
        self.wakes: SimpleQueue[None] = platform.queue()

    def sleep(self, seconds: float) -> None:
        """Sleep until woken, for `seconds` or `LOOK_SECONDS` at most."""
        with suppress(Empty):
            self.wakes.get(timeout=max(0.0, min(seconds, LOOK_SECONDS)))

    def calm(self) -> None:
        """Drop the reasons to look that there were up to now."""
        with suppress(Empty):
            while True:
                self.wakes.get_nowait()


class Line:
    """The calls that wait for connections to one master, or to several that are asked together.

    Attributes:
        waiting: their places, the first one first. A call that was interrupted before it could leave has died, and is
            passed over.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.waiting: deque[weakref.ref[Place]] = deque()

    def place(self, until: float) -> Place:
        """Return a place for a call that waits until `until` at most; the place is not in line yet."""
        return Place(until, self._platform)

    def join(self, place: Place) -> None:
        """Put a place at the end of the line."""
        self.waiting.append(weakref.ref(place))

    def leave(self, place: Place) -> None:
        """Take a place out of the line, wherever it stands, and wake the first one."""
        with suppress(ValueError):
            self.waiting.remove(weakref.ref(place))
        self.wake()

    def is_first(self, place: Place, now: float) -> bool:
        """Return whether `place` is the first in line that still waits at `now`."""
        return self._first(now) is place

    def wake(self) -> None:
        """Wake the first in line, which looks for a connection: there may be one now."""
        first = self._first(float("-inf"))
        if first is not None and first.wakes.empty():
            first.wakes.put(None)

    def _first(self, now: float) -> Place | None:
        while True:
            try:
                reference = self.waiting[0]
            except IndexError:
                return None
            place = reference()
            if place is not None and place.until >= now:
                return place
            with suppress(ValueError):  # another thread has taken it out
                self.waiting.remove(reference)
