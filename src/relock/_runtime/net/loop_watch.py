"""A socket that belongs to another thread, watched by an event loop."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress


class LoopWatch:
    """Has `loop` call `readable` while there is something to read at `fileno`. On the loop's thread.

    The loop watches a number of its own for that socket. Its owner may close it at any moment, and what is opened next
    may get its number while the loop's tables still name the old one.

    Raises:
        OSError: the process may open no more files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fileno: int, readable: Callable[[], object]) -> None:
        self._loop = loop
        own = os.dup(fileno)
        self._own = [own]  # until it is closed, perhaps by two threads at once
        try:
            loop.add_reader(own, readable)
        except BaseException:
            self.forget()
            raise

    def close(self) -> None:
        """The loop looks at it no more. On the loop's thread, or when the loop is closed; again does no harm."""
        if not self._loop.is_closed():
            for own in self._own:
                self._loop.remove_reader(own)
        self.forget()

    def forget(self) -> None:
        """As `close`, without a word to the loop: in a forked child its tables are those of the parent."""
        with suppress(IndexError):
            os.close(self._own.pop())
