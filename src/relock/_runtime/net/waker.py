"""Ends another thread's poll."""

import os
from contextlib import suppress

CLEARED_BYTES = 4096


class Waker:
    """A pipe to oneself: whoever polls `fileno` goes on when another thread calls `wake`.

    Attributes:
        fileno: what to poll; readable from a `wake` until the next `clear`.

    Raises:
        OSError: the process may open no more files.
    """

    _ends: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._ends = self.fileno, self._end = os.pipe()
        os.set_blocking(self.fileno, False)
        os.set_blocking(self._end, False)

    def wake(self) -> None:
        """Ends the poll that is under way, or the next one. It never waits: a full pipe wakes as well."""
        with suppress(BlockingIOError):
            os.write(self._end, b"\0")

    def clear(self) -> None:
        """Lets the next poll wait again."""
        with suppress(BlockingIOError):
            os.read(self.fileno, CLEARED_BYTES)

    def close(self) -> None:
        """Closes the pipe: nobody may poll it any more. It may be closed again."""
        ends, self._ends = self._ends, ()
        for end in ends:
            with suppress(OSError):
                os.close(end)

    def __del__(self) -> None:
        self.close()
