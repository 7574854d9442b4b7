"""The thread on which users' callbacks run: never the watchdog's, never the hub's."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from relock._runtime.platform import Platform
from relock._runtime.service import Service

logger = logging.getLogger(__name__)


class Callbacks(Service):
    """Runs callbacks one after the other, in the order in which they were handed in."""

    name = "relock-callbacks"

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._waiting: SimpleQueue[tuple[Callable[[Any], object], Any]] = platform.queue()

    def call(self, callback: Callable[[Any], object], value: object) -> None:
        """Hands in a callback; returns at once."""
        self._waiting.put((callback, value))
        self.ensure()

    def step(self) -> None:
        """Runs the next callback; what it raises is logged and harms nothing."""
        callback, value = self._waiting.get()
        try:
            callback(value)
        except BaseException:  # also SystemExit: it would end this thread, and nothing else
            logger.exception("the callback %r failed on %r", callback, value)

    def stop(self) -> None:
        """Ends the thread after the callbacks that were handed in before."""
        if self.running or not self._waiting.empty():  # its thread may not have come to run yet
            self._waiting.put((self._end, None))
        else:
            super().stop()

    def _end(self, _: object) -> None:
        self.stopping = True
