"""Watch of an event loop on a socket that belongs to another thread."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress


class LoopWatch:
    """Watch of `loop` on a socket: the loop calls `readable` while there is something to read at `fileno`.

    It is made on the loop's thread, and duplicates the descriptor: the socket's owner may close the socket at any
    moment, and what is opened next may get its number while the loop's tables still name the old one.

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
        """End the watch, on the loop's thread or when the loop is closed; to close it again does no harm."""
        if not self._loop.is_closed():
            for own in self._own:
                self._loop.remove_reader(own)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor and do not tell the loop: a forked child shares the loop's tables with its parent."""
        with suppress(IndexError):
            os.close(self._own.pop())
