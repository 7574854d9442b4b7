"""Output that nothing reads, as of a stopped terminal or a full pipe: a thread that writes to it never goes on.

Only background threads of one client write to it here. relock can't help a user's own thread that does.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator

from greenlet import GreenletExit

from relock.testing._process import Parking, Process, current_task


def block(process: Process) -> None:
    """Let the caller wait until the run is over, if it is a background thread of this process.

    The thread of an event loop is none: its tasks are users' code, which hears of warnings in its own calls.
    """
    if process.world.in_task():
        task = current_task()
        if task.process is process and task.waits_without_timer and not task.name.endswith(" loop"):
            with contextlib.suppress(GreenletExit):  # the thread that reports a handler's errors must not report it
                Parking(process).wait(None)


class Unread(logging.Handler):
    """A log that nothing reads."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def createLock(self) -> None:  # noqa: N802
        """Make no lock for this handler, because such a lock takes all tasks for one thread."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Block the process on a record of the log."""
        block(self._process)


@contextlib.contextmanager
def unread(process: Process | None) -> Iterator[None]:
    """Leave the log and the warnings of this process unread inside the block."""
    logger = logging.getLogger("relock")
    level, propagate = logger.level, logger.propagate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL + 1)
        handler: logging.Handler = logging.NullHandler()
        if process is not None:
            warnings.simplefilter("always")
            warnings.showwarning = lambda *_warning: block(process)
            logger.setLevel(logging.WARNING)
            handler = Unread(process)
            logger.propagate = False
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
