"""Signals of ``relock run``: an exception while it waits for the lock, a message while the command runs."""

import _thread
import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from relock.cli._exit_codes import of_signal

# SIGTSTP is not here: see `ignore_terminal_stop`.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
AGAIN_SECONDS = 0.05  # after this time, a finalizer that a signal has struck is over
_WAKE = 0  # no signal has this number


class Interrupted(BaseException):
    """Signal that ended the wait for the lock; like KeyboardInterrupt, no ``except Exception`` catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def raise_where_it_counts(arm: Callable[[], object]) -> "Callable[[sys.UnraisableHookArgs], object]":
    """Have signals handled once more that raised `Interrupted` in a finalizer, where Python ignores exceptions.

    Call `arm` before, so that the handler raises again. Return the hook of other such exceptions, to be put back.
    """
    others, main = sys.unraisablehook, threading.get_ident()

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if isinstance(ignored.exc_value, Interrupted):
            arm()
            # A `threading.Timer` would wait here for its thread, and the signal might come meanwhile and be lost.
            _thread.start_new_thread(_kill_later, (main, ignored.exc_value.signum))
        else:
            others(ignored)

    sys.unraisablehook = hook
    return others


def _kill_later(thread: int, signum: int) -> None:
    time.sleep(AGAIN_SECONDS)
    signal.pthread_kill(thread, signum)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `Interrupted` in the main thread for the first signal that ends programs; ignore all later ones."""
    seen: list[int] = []

    def handle(signum: int, _frame: FrameType | None) -> None:
        seen.append(signum)
        if len(seen) == 1:
            raise Interrupted(signum)

    before = {signum: signal.getsignal(signum) for signum in ENDING}
    taken = [signum for signum in ENDING if before[signum] != signal.SIG_IGN]  # nohup ignores SIGHUP on purpose
    hook = raise_where_it_counts(seen.clear)
    for signum in taken:
        signal.signal(signum, handle)
    try:
        yield
    finally:
        seen.append(0)
        sys.unraisablehook = hook
        for signum in taken:
            signal.signal(signum, before[signum])


def end_by_signals(end: Callable[[int], object]) -> None:
    """Have the running event loop call `end` with the exit code at each signal that ends programs."""
    for signum in ENDING:
        if signal.getsignal(signum) != signal.SIG_IGN:  # as above
            asyncio.get_running_loop().add_signal_handler(signum, end, of_signal(signum))


@contextlib.contextmanager
def signals_put_off() -> Iterator[None]:
    """Put off the signals that end programs until the block is over; then the first one is handled as before."""
    came: list[int] = []
    taken = [signum for signum in ENDING if signal.getsignal(signum) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, lambda signum, _: came.append(signum)) for signum in taken}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    for first in came[:1]:
        signal.raise_signal(first)


class Signals:
    """The signals of this process, in the order in which they came.

    The handlers only raise (until `collect` is called) or do nothing at all: Python's own C handler writes each
    signal's number into a pipe, and `wait` reads the numbers there. SIGCHLD is among them, so that one
    `select` without polling notices the end of a child at once.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._raising = True

    def install(self) -> None:
        """Take the signals over; those that this process was told to ignore (nohup, ``&``) stay ignored."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        raise_where_it_counts(self._arm)
        for signum in (*FORWARDED, signal.SIGCHLD):
            if signum == signal.SIGCHLD or signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._handle)

    def _arm(self) -> None:
        self._raising = True

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._raising and signum != signal.SIGCHLD:
            self._raising = False  # a second signal must not interrupt the clean-up after the first
            raise Interrupted(signum)

    def collect(self) -> None:
        """Raise nothing from now on: `wait` reports the signals. If one came before, it has been raised."""
        self._raising = False

    def wait(self, seconds: float) -> list[int]:
        """Return the signals since the last call; sleep until there is one, or `wake`, for `seconds` at most."""
        ready, _, _ = select.select([self._read], [], [], max(0.0, seconds))
        return [number for number in os.read(self._read, 4096) if number != _WAKE] if ready else []

    def wake(self) -> None:
        """End a `wait`; any thread may call this."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the thread that waits wakes anyway
            os.write(self._write, bytes([_WAKE]))


def ignore_terminal_stop() -> None:
    """Ignore Ctrl-Z here and (unless the command decides otherwise) in the command, which inherits that.

    A relock that is stopped can't renew the lock. When both go on after the lease's end, the command runs beside the
    next holder until relock kills it. If only the command stopped, the shell would wait without end.
    """
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


def terminal_has_sent(signum: int) -> bool:
    """Return whether the command has received this signal, because the terminal sent it to the whole foreground.

    Ctrl-C goes to every process of the terminal's foreground group, so to the command as well. Passing it on would
    count as a second Ctrl-C there, on which many programs give up their clean-up. A ``kill -INT`` of relock alone looks
    the same from Python while relock is in the foreground: SIGTERM is the one to use there.
    """
    if signum not in FROM_TERMINAL:
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # without a terminal, a process has sent the signal, and only to this process
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
