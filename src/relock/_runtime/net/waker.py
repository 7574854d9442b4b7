"""Pipe that ends another thread's poll."""

import os
from contextlib import suppress

CLEARED_BYTES = 4096


class Waker:
    """Pipe inside the process: a thread that polls `fileno` goes on when another thread calls `wake`.

    Attributes:
        fileno: the descriptor to poll; readable from a `wake` until the next `clear`.

    Raises:
        OSError: the process may open no more files.
    """

    _ends: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._ends = self.fileno, self._end = os.pipe()
        os.set_blocking(self.fileno, False)
        os.set_blocking(self._end, False)

    def wake(self) -> None:
        """End the poll that is under way, or the next one; never wait, because a full pipe wakes as well."""
        with suppress(BlockingIOError):
            os.write(self._end, b"\0")

    def clear(self) -> None:
        """Take bytes out of the pipe, so that the next poll waits again."""
        with suppress(BlockingIOError):
            os.read(self.fileno, CLEARED_BYTES)

    def close(self) -> None:
        """Close the pipe, which no thread may poll any more; closing it again does no harm."""
        ends, self._ends = self._ends, ()
        for end in ends:
            with suppress(OSError):
                os.close(end)

    def __del__(self) -> None:
        self.close()
