"""Wakes every thread that waits for the same change.

`threading.Event` does that too, but a caller who waits on one takes the lock inside it. An exception that a signal
handler raises there can leave this lock taken, and then nobody can set the event any more.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from relock._runtime.platform import Platform


class Rung(Protocol):
    """Where a bell is heard."""

    def put(self, item: None, /) -> None:
        """Adds a token."""

    def empty(self) -> bool:
        """Whether there is none."""


class Bell:
    """Waiting threads have a queue each, in which `ring` puts a token; each step is one operation of a deque."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._waiting: deque[Rung] = deque()

    def wait_for(self, is_so: Callable[[], bool], until: float) -> bool:
        """Whether `is_so()`, after waiting for it until the clock's `until` (s) at most.

        Whoever makes it so must call `ring` afterwards.
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
        """From now on `rung` gets a token whenever the bell rings, unless one is in it."""
        self._waiting.append(rung)

    def leave(self, rung: Rung) -> None:
        """It gets none any more."""
        with suppress(ValueError):  # an interrupt came before it was there
            self._waiting.remove(rung)

    def ring(self) -> None:
        """Makes every thread that waits look again."""
        for rung in self._waiting.copy():
            if rung.empty():  # else its thread has yet to look; or an interrupt has left it here, where nobody reads it
                rung.put(None)
