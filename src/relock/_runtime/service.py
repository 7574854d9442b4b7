"""Daemon thread that is started when it is first needed, and again if it has died."""

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from relock._errors import ClientClosedError
from relock._runtime.platform import Platform

logger = logging.getLogger("relock.background")

SHUTDOWN = "interpreter shutdown"  # part of Python's message if no thread can be started because the interpreter ends
FAILURE_PAUSE_SECONDS = 0.1  # a step that fails again and again must not keep a core busy


class Service(ABC):
    """Background thread of a client.

    Callers may be interrupted between any two instructions, so they take no lock here, and two callers may both start a
    thread. The thread that gets `_running` goes on, and the other one ends at once.
    """

    name = "relock"

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.stopping = False
        self.has_begun = False
        self._after_steps: Callable[[], object] | None = None
        self._start_failed = False
        self._thread: Any = None
        self._running = threading.Lock()  # held by the service's thread while it runs

    @property
    def running(self) -> bool:
        """True while the thread runs."""
        return self._running.locked()

    def is_caller(self) -> bool:
        """Return whether the calling thread is the thread of this service."""
        return self._thread is not None and self._thread is self._platform.current()

    def ensure(self) -> bool:
        """Start the thread unless it runs; return False if no thread can be started.

        A failed start is logged, and tried again with the next call.
        """
        if self._running.locked() or self.stopping:
            return True
        self.has_begun = True
        try:
            self._platform.start(self._run, self.name)
        except RuntimeError as error:  # there may be no more threads, or the interpreter is shutting down
            self._log_failed_start(is_news=not (sys.is_finalizing() or SHUTDOWN in str(error)))
            return False
        self._start_failed = False
        return True

    def _log_failed_start(self, *, is_news: bool) -> None:
        """Warn once until a start succeeds, and not with each acquire; never at the end of the interpreter."""
        is_news = is_news and not self._start_failed
        self._start_failed = True
        self._platform.log.write(
            logger,
            logging.WARNING if is_news else logging.DEBUG,
            "the thread %s can't be started: its work is not done until it can be",
            self.name,
            exc_info=True,
        )

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        self._thread = self._platform.current()
        try:
            while not self.stopping:
                self._step_safely()
                if self._after_steps is not None:
                    self._after_steps()
        finally:
            self._running.release()

    def _step_safely(self) -> None:
        try:
            self.step()
        except (ClientClosedError, SystemExit):
            if not self.stopping:  # `close` is about to call `stop`; until then, do not spin
                self._platform.sleep(FAILURE_PAUSE_SECONDS)
        except Exception:
            if not self.stopping:
                self._platform.log.error(logger, "%s goes on after a failure", self.name, exc_info=True)
                self._platform.sleep(FAILURE_PAUSE_SECONDS)

    @abstractmethod
    def step(self) -> None:
        """Do the work that is due now, and sleep until there is more; called again and again."""

    def wake(self) -> None:  # noqa: B027 - not every service has steps that may be far away
        """Have the thread take its next step now, if that could be far away. Takes no lock."""

    def call_after_steps(self, function: Callable[[], object]) -> None:
        """Have the thread call `function` after each step, the first time soon. Takes no lock."""
        self._after_steps = function  # Mark, then look: the step that `wake` causes must find the function
        self.wake()

    def stop(self) -> None:
        """Tell the thread to end. A subclass must also wake it."""
        self.stopping = True

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, `timeout` seconds at most; not at all when called on that thread."""
        if self._thread is not None and not self.is_caller():
            self._thread.join(timeout)
