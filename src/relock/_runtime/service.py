"""A daemon thread that is started when it is first needed, and again if it should ever have died."""

import logging
import threading
from abc import ABC, abstractmethod

logger = logging.getLogger(__name__)


class Service(ABC):
    """One background thread of a client.

    Nothing here takes a lock, because it is called where an interrupt may strike between any two instructions: two
    callers may both start a thread, and then all but the last one end by themselves.
    """

    name = "relock"

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.running = False
        self.stopping = False

    def ensure(self) -> None:
        """Starts the thread unless it runs."""
        if self.running or self.stopping:
            return
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down
            logger.debug("%s can't be started any more", self.name, exc_info=True)

    def _run(self) -> None:
        self.running = True
        try:
            while not self.stopping and self._thread is threading.current_thread():
                self._step_safely()
        finally:
            if self._thread is threading.current_thread():
                self.running = False

    def _step_safely(self) -> None:
        try:
            self.step()
        except Exception:
            if not self.stopping:
                logger.exception("%s goes on after a failure", self.name)

    @abstractmethod
    def step(self) -> None:
        """Does what is to be done now, and sleeps until there is more; called again and again."""

    def stop(self) -> None:
        """Tells the thread to end; `wake` it as well where it sleeps."""
        self.stopping = True

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, `timeout` seconds at most; nothing when called on that thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(timeout)
