"""What ends the demo early: a signal, or its time. Both are exceptions in the main thread, whatever that waits for."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from relock.cli._signals import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TimeIsUp(BaseException):
    """The demo has taken too long. Nothing but its addressee may catch it."""


class Interrupts:
    """Raises `Interrupted` for the first signal, or `TimeIsUp` after `seconds`, and from then on nothing.

    So the clean-up that follows can't be interrupted in its turn. Clean-up that follows on a good end calls `off`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._raising = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in (*ENDING, signal.SIGALRM):
            if signum == signal.SIGALRM or signal.getsignal(signum) != signal.SIG_IGN:  # nohup: that stays
                self._before[signum] = signal.signal(signum, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if not self._raising:
            return
        self._raising = False
        raise TimeIsUp if signum == signal.SIGALRM else Interrupted(signum)

    def off(self) -> None:
        """Nothing is raised any more."""
        self._raising = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.off()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
