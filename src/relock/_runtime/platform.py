"""Platform of the runtime: a clock, threads, queues and polls to wait with, sockets, and random numbers.

The package waits, sleeps and draws numbers only through the platform. So a simulation with a platform of its own
decides everything that happens, and runs the very code that runs in production.
"""

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from relock._core.effects import Clock
from relock._owner import Owner, current_thread, running_loop, running_task
from relock._runtime.net.channel import Channel, open_channel
from relock._runtime.net.green import replaced_threads
from relock._runtime.net.loop_channel import LoopChannel
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.waker import Waker

if not hasattr(select, "poll"):
    raise ImportError("relock needs select.poll: Windows has none, and eventlet takes it away")

#: The one clock of the client side. It goes on while the machine is suspended, where the system has such a clock.
CLOCK: Clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class LogWriter(Protocol):
    """Writer of the log that never waits for a handler, such as `relock._runtime.background.telling.Log`."""

    dropped: int

    def debug(self, logger: logging.Logger, text: str, *args: object, exc_info: bool = False) -> None:
        """Log for debugging, as `logging.Logger.debug` does."""

    def warning(self, logger: logging.Logger, text: str, *args: object, exc_info: bool = False) -> None:
        """Log a warning, as `logging.Logger.warning` does."""

    def error(self, logger: logging.Logger, text: str, *args: object, exc_info: bool = False) -> None:
        """Log an error, as `logging.Logger.error` does."""

    def write(
        self,
        logger: logging.Logger,
        level: int,
        text: str,
        *args: object,
        exc_info: bool = False,
        fields: Callable[[], dict[str, object]] | None = None,
    ) -> None:
        """Log at `level`, as `logging.Logger.log` does, with `fields()` as the attribute ``relock`` of the record."""

    def warn(self, text: str) -> None:
        """Issue a `RelockWarning` for a background thread."""

    def settle(self, seconds: float) -> None:
        """Wait until all that was handed in before is written, `seconds` at most."""


class Platform:
    """Threads of this process, and the sockets and clocks of this machine; `Machine` adds the log.

    Attributes:
        log: the only writer of the log, so that nothing else waits for a handler.
        clock: returns seconds that only rise.
        queue: makes a `queue.SimpleQueue`, which may be used at any moment, also by an interrupted thread.
        poller: makes a `select.poll`.
        waker: makes a `Waker`, which ends such a poll.
        sleep: sleeps for so many seconds.
        chance: draws a number from 0 to 1.
        who: returns the calling thread as an `Owner`.
        loop: returns the event loop that the calling thread runs, or None.
        task: returns the task or callback that this loop runs; None outside a loop.
        open_channel: makes the channel of an open connection.
        loop_channel: makes such a channel that an event loop watches.
    """

    log: LogWriter
    clock: Clock = staticmethod(CLOCK)
    queue: Callable[[], "SimpleQueue[Any]"] = SimpleQueue
    poller: Callable[[], Any] = staticmethod(select.poll)
    waker: Callable[[], Waker] = Waker
    sleep: Callable[[float], object] = staticmethod(time.sleep)
    chance: Callable[[], float] = staticmethod(random.random)
    who: Callable[[], Owner] = staticmethod(current_thread)
    loop: Callable[[], object | None] = staticmethod(running_loop)
    task: Callable[[], object | None] = staticmethod(running_task)
    open_channel: Callable[[RawConnection, float], Channel] = staticmethod(open_channel)
    loop_channel: Callable[..., LoopChannel] = LoopChannel

    def random_hex(self, count: int) -> str:
        """Return `count` random bytes from the operating system, in hex."""
        return os.urandom(count).hex()

    def start(self, target: Callable[[], object], name: str) -> None:
        """Start a daemon thread.

        Raises:
            RuntimeError: there can't be another thread, or it would be a greenlet, in which a wait would never end.
        """
        text = replaced_threads()
        if text is not None:
            raise RuntimeError(text)
        threading.Thread(target=target, name=name, daemon=True).start()

    def current(self) -> Any:
        """Return the calling thread, to be joined by another one."""
        return threading.current_thread()
