"""Threads that call users' code: callbacks, handlers of the log, and warnings.

A callback may hang, and so may a handler of the log: on a terminal that is not read, on a server that is gone. So none
runs on a thread that renews, undoes, wakes or connects, nor in the middle of a call. Callbacks and log records are
handed in here, and each thread calls and writes them in order. There are several threads, so that one that hangs stops
no other. Each client has one for losses and one for events; the process has one for the log, because all clients share
its handlers.

The number of waiting items is bounded. If they come faster than they are delivered, the newest are dropped, ordinary
ones first. The log says when dropping begins, and when it ends and how many were dropped.

A warning for a caller is not issued here, but on the caller's own thread: when its call is over, or at once if the call
is about to do harm, by blocking an event loop, say.
"""

import atexit
import logging
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from relock._errors import RelockWarning
from relock._runtime.live_set import LiveSet
from relock._runtime.platform import Platform
from relock._runtime.service import Service

logger = logging.getLogger("relock.callbacks")

PACKAGE = __name__.partition(".")[0]
WAITING_MAX = 10_000  # items that may wait for one thread
ORDINARY_MAX = 9_000  # ordinary items are dropped from this number on, which leaves room for warnings and losses
IDLE_SECONDS = 1.0  # after so long without a record, the thread of the log ends
EXIT_SECONDS = 0.5  # how long the end of the interpreter waits for items that were not delivered yet
LOOK_SECONDS = 0.01
_callback_queues: "LiveSet[CallbackQueue]" = LiveSet()

#: Fields of a record that name the time and the thread in which it was made, and the fields of an event.
_OF_ITS_MOMENT = ("relock", "created", "msecs", "relativeCreated", "thread", "threadName", "taskName")


class CallbackQueue(Service):
    """Queue of callbacks, with the thread that calls them in order.

    Attributes:
        dropped: how many items were dropped, because too many waited.
    """

    def __init__(self, platform: Platform, name: str) -> None:
        super().__init__(platform)
        self.name = name
        self.dropped = 0
        self._waiting: SimpleQueue[tuple[Callable[[Any], object], Any]] = platform.queue()
        self._dropped_before: int | None = None  # `dropped` when the present dropping began; None while none is
        _callback_queues.add(self)

    def hand(self, tell: Callable[[Any], object], value: object, *, is_ordinary: bool = False) -> None:
        """Have `tell` called with `value`; return at once."""
        if self._waiting.qsize() < (ORDINARY_MAX if is_ordinary else WAITING_MAX):
            self._waiting.put((tell, value))
        else:
            self._drop()
        self.ensure()

    def _drop(self) -> None:
        self.dropped += 1
        if self._dropped_before is None:
            self._dropped_before = self.dropped - 1
            self._platform.log.warning(
                logger, "%s can't keep up, because of a callback or a handler that hangs: some are dropped", self.name
            )

    def _say_what_was_dropped(self) -> None:
        before = self._dropped_before
        if before is not None and self._waiting.qsize() <= ORDINARY_MAX // 2:
            self._dropped_before = None
            self._platform.log.warning(logger, "%s goes on; %d were dropped", self.name, self.dropped - before)

    def step(self) -> None:
        """Call the next callback; if it raises an exception, log that."""
        self._tell(*self._waiting.get())

    def _tell(self, tell: Callable[[Any], object], value: object) -> None:
        try:
            tell(value)
        except BaseException:  # also SystemExit, which would end only this thread
            self._failed(tell, value)
        self._say_what_was_dropped()

    def _failed(self, tell: Callable[[Any], object], value: object) -> None:
        """Log that `tell` has failed on `value`, while the error is being handled."""
        self._platform.log.error(logger, "the callback %r failed on %r", tell, value, exc_info=True)

    def stop(self) -> None:
        """End the thread after it has delivered everything that was handed in before."""
        if self.running or not self._waiting.empty():  # its thread may not have come to run yet
            self._waiting.put((self._end, None))
        else:
            super().stop()

    def _end(self, _: object) -> None:
        self.stopping = True

    def settle(self, seconds: float) -> None:
        """Wait `seconds` at most until all items handed in before are delivered; do not wait on that very thread."""
        if (self._waiting.empty() and not self.running) or self.is_caller():
            return
        until, told = self._platform.clock() + seconds, self._platform.queue()
        self._waiting.put((told.put, None))
        self.ensure()
        while self._platform.clock() < until and (self.running or not self.stopping):
            with suppress(Empty):
                told.get(timeout=LOOK_SECONDS)
                return

    def settle_at_exit(self, until: float) -> None:
        """Settle at the interpreter's end, unless the thread is a simulated one, or was left behind by a fork."""
        if not isinstance(self._waiting, SimpleQueue):
            return
        if self._thread is None or self._thread.is_alive():
            self.settle(until - self._platform.clock())


class Log(CallbackQueue):
    """Log, on whose thread handlers and filters run.

    A record has the time, thread, line and context variables of the code that logs, as if its handlers ran there. If no
    thread can be started (there are too many, or the interpreter is about to end), the handlers do run there.
    """

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform, "relock-log")
        self._is_idle = False

    def debug(self, logger: logging.Logger, text: str, *args: object, exc_info: bool = False) -> None:
        """Log at level DEBUG, as `logging.Logger.debug` does."""
        self._write(logger, logging.DEBUG, text, args, exc_info)

    def warning(self, logger: logging.Logger, text: str, *args: object, exc_info: bool = False) -> None:
        """Log at level WARNING, as `logging.Logger.warning` does."""
        self._write(logger, logging.WARNING, text, args, exc_info)

    def error(self, logger: logging.Logger, text: str, *args: object, exc_info: bool = False) -> None:
        """Log at level ERROR, as `logging.Logger.error` does."""
        self._write(logger, logging.ERROR, text, args, exc_info)

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
        self._write(logger, level, text, args, exc_info, fields=fields)

    def warn(self, text: str) -> None:
        """Have the log's thread issue a `RelockWarning`; if a filter makes an error of it, drop that error."""
        self.hand(_warn, text)

    def _write(
        self,
        logger: logging.Logger,
        level: int,
        text: str,
        args: tuple[Any, ...],
        exc_info: bool,
        *,
        fields: Callable[[], dict[str, object]] | None = None,
    ) -> None:
        if not is_enabled(logger, level):
            return
        frame = sys._getframe(2)
        error, code = sys.exc_info() if exc_info else None, frame.f_code
        made = logging.LogRecord(logger.name, level, code.co_filename, frame.f_lineno, text, args, error, code.co_name)
        if fields is not None:
            made.relock = fields()
        self.hand(self._handle, (copy_context(), logger, made, args), is_ordinary=level < logging.WARNING)

    def _handle(self, what: tuple[Context, logging.Logger, logging.LogRecord, tuple[Any, ...]]) -> None:
        context, logger, made, args = what
        context.run(_handle, logger, made, args)

    def _failed(self, tell: Callable[[Any], object], value: object) -> None:  # noqa: ARG002
        """Print the error of a filter or a handler, as Python does for an exception that ends a thread."""
        if isinstance(sys.exception(), Exception):  # ignore SystemExit, as threads do
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))

    def ensure(self) -> bool:
        """Start the thread unless it runs; if it can't be started, deliver on the caller's thread and return False."""
        if self._running.locked():
            return True
        try:
            self._platform.start(self._run, self.name)
        except RuntimeError:
            self._tell_all()
            return False
        return True

    def _tell_all(self) -> None:
        while True:
            try:
                told = self._waiting.get_nowait()
            except Empty:
                return
            self._tell(*told)

    def _run(self) -> None:
        """Deliver records until none has come for a while: the thread belongs to no client that would stop it."""
        while self._running.acquire(blocking=False):
            self._thread, self._is_idle = self._platform.current(), False
            try:
                while not self._is_idle:
                    self.step()
            finally:
                self._running.release()
            if self._waiting.empty():  # Mark, then look: a caller from here on finds no thread, and starts one
                return

    def step(self) -> None:
        """Deliver the next record, if one comes in time."""
        try:
            told = self._waiting.get(timeout=IDLE_SECONDS)
        except Empty:
            self._is_idle = True
        else:
            self._tell(*told)

    def renew(self) -> None:
        """Begin anew in a forked child: the parent delivers the waiting records, and its thread is not in the child."""
        self._running, self._thread = threading.Lock(), None
        self._waiting = self._platform.queue()
        self.dropped = 0
        self._dropped_before = None


def is_enabled(logger: logging.Logger, level: int) -> bool:
    """Return whether `logger` logs at `level`, like `logging.Logger.isEnabledFor`, but without taking its lock.

    A thread that reconfigures the log has that lock, and may wait for a handler that hangs.
    """
    return not logger.disabled and level > logger.manager.disable and level >= logger.getEffectiveLevel()


def _handle(logger: logging.Logger, made: logging.LogRecord, args: tuple[Any, ...]) -> None:
    """Log a record like `made`, but made by the logger: users may replace its factory of records, which may be slow."""
    where = made.pathname, made.lineno
    record = logger.makeRecord(made.name, made.levelno, *where, made.msg, args, made.exc_info, made.funcName)
    record.__dict__.update({name: made.__dict__[name] for name in _OF_ITS_MOMENT if name in made.__dict__})
    logger.handle(record)


def warn_caller(texts: deque[str], stacklevel: int, beside: BaseException | None) -> None:
    """Warn of each of the `texts`, on the thread of a caller whose call has done its work.

    There a `warnings.showwarning` that hangs blocks no other caller. If a filter makes an error of a warning, the
    caller undoes its call, as after any other error. That error does not replace an exception in `beside`.
    """
    while texts:
        try:
            text = texts.popleft()
        except IndexError:  # another thread has issued the last warning
            return
        try:
            warnings.warn(text, RelockWarning, stacklevel=stacklevel)
        except Exception:
            if beside is None:
                raise


def warn_at_once(text: str) -> None:
    """Warn a caller in the middle of its call, of harm that the rest of the call is going to do.

    If `warnings.showwarning` hangs, the caller is like any thread that hangs: a grant for it ends with its short lease.
    """
    warnings.warn(text, RelockWarning, stacklevel=_levels_to_the_caller(sys._getframe()))


def _levels_to_the_caller(frame: FrameType | None) -> int:
    """Return the number of frames from `frame` up to the caller of relock, whose line a warning should name."""
    levels = 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == PACKAGE:
        frame, levels = frame.f_back, levels + 1
    return levels


def _warn(text: str) -> None:
    with suppress(RelockWarning):
        warnings.warn(text, RelockWarning, stacklevel=2)


def _settle_at_exit() -> None:
    until: float | None = None
    for queue in _callback_queues:
        until = until or queue._platform.clock() + EXIT_SECONDS
        queue.settle_at_exit(until)


def _renew_in_child() -> None:
    for queue in _callback_queues:
        if isinstance(queue, Log):
            queue.renew()


atexit.register(_settle_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
