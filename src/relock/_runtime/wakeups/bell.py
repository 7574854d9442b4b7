"""Bell that wakes all threads that wait for the same change.

`threading.Event` does that too, but a thread that waits on one takes the lock inside it. An exception that a signal
handler raises there can leave this lock taken, and then no thread can set the event any more.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from relock._runtime.platform import Platform


class Rung(Protocol):
    """Queue that a bell rings."""

    def put(self, item: None, /) -> None:
        """Add a token."""

    def empty(self) -> bool:
        """Return whether the queue holds no token."""


class Bell:
    """Bell with a queue for each waiting thread, where `ring` puts a token; each step is one operation of a deque."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._waiting: deque[Rung] = deque()

    def wait_for(self, is_so: Callable[[], bool], until: float) -> bool:
        """Wait until `is_so()` is true, until the clock's `until` (s) at most; return whether it is.

        The thread that makes it true must call `ring` afterwards.
        """
        rung: SimpleQueue[None] = self._platform.queue()
        try:
            self.join(rung)  # Mark, then look: a change after the look rings
            while not is_so():
                left = until - self._platform.clock()
                if left <= 0:
                    return False
                with suppress(Empty):
                    rung.get(timeout=left)
            return True
        finally:
            self.leave(rung)

    def join(self, rung: Rung) -> None:
        """Have `rung` get a token whenever the bell rings, unless one is in the queue."""
        self._waiting.append(rung)

    def leave(self, rung: Rung) -> None:
        """Give `rung` no more tokens."""
        with suppress(ValueError):  # an interrupt came before it was there
            self._waiting.remove(rung)

    def ring(self) -> None:
        """Make every thread that waits look again."""
        for rung in self._waiting.copy():
            if rung.empty():  # else its thread has yet to look; or an interrupt has left it here, where nobody reads it
                rung.put(None)
