"""Output that nobody reads, as of a terminal that was stopped, or a full pipe: who writes to it never goes on.

Only background threads of one client's do so here. A thread of the user's own that logs has nobody else to blame.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator

from greenlet import GreenletExit

from relock.testing._process import Parking, Process, current_task


def block(process: Process) -> None:
    """Lets the caller wait until the run is over, if it is a background thread of this process."""
    if process.world.in_task():
        task = current_task()
        if task.process is process and task.waits_without_timer:
            with contextlib.suppress(GreenletExit):  # who reports what a handler raises is not to report this
                Parking(process).wait(None)


class Unread(logging.Handler):
    """A log."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def createLock(self) -> None:  # noqa: N802
        """See `logging.Handler`: none, as all tasks are one thread for such a lock."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """See `logging.Handler`."""
        block(self._process)


@contextlib.contextmanager
def unread(process: Process | None) -> Iterator[None]:
    """Nobody reads what is logged and warned of here, if it is of this process."""
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
