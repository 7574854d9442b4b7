"""Writer of lines to stderr on a thread of its own, so that no other thread waits for the reader of stderr.

A terminal can be stopped (Ctrl-S), or a pipe be full because its reader sleeps: then a write blocks until that is over.
A non-blocking descriptor would not do: that is a property of the open file, which the command shares.
"""

import contextlib
import os
import select
import threading
from queue import SimpleQueue

LINES_MAX = 1000  # lines beyond this number that would wait are dropped, and counted
FLUSH_SECONDS = 1.0


class Scribe:
    """Thread that writes lines, and the lines that it has not written yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._dropped = 0
        threading.Thread(target=self._run, name="relock-stderr", daemon=True).start()

    def write(self, line: bytes) -> None:
        """Have `line` written after those before it, or drop it if `LINES_MAX` wait; return at once."""
        if self._waiting.qsize() < LINES_MAX:
            self._waiting.put(line)
        else:
            self._dropped += 1

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until what was handed in before is written, `seconds` at most."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait(seconds)

    def _run(self) -> None:
        while True:
            one = self._waiting.get()
            if not isinstance(one, threading.Event):
                self._write(one)
            if self._dropped and self._waiting.empty():
                dropped, self._dropped = self._dropped, 0
                self._write(b"relock: %d lines are missing here: nobody read them in time\n" % dropped)
            if isinstance(one, threading.Event):
                one.set()

    def _write(self, line: bytes) -> None:
        """Write a line, not through `sys.stderr`: the interpreter's end would wait for the thread that writes there."""
        with contextlib.suppress(OSError):  # a stderr that is closed, or has lost its reader, is no failure
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # another process may have made the descriptor non-blocking
                    select.select([], [self._descriptor], [])
