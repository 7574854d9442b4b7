"""The command of ``relock run``: a child process that waits for its go, and dies with its parent.

It is forked *before* the lock is asked for, while this process has no other thread yet. A fork later, beside the
library's threads, could deadlock the child on a lock that another thread held at that moment; this is why
``preexec_fn`` of `subprocess` is unsafe with threads. The early fork also makes the kernel bind the parent-death signal
to the main thread: Linux sends that signal when the *thread* that forked ends, not the process.

Until its go the child is this program, blocked on a socket. It then executes the command; if the socket is closed
instead, the child exits without having done anything. The child's end closes when the command is executed. If that
fails, the child says so there: its exit code could be a command's own.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Self

from relock.cli._exit_codes import ExitCode, of_signal

PR_SET_PDEATHSIG = 1

# The child resets these signals before it executes the command, which would end Python's handlers anyway.
_DEFAULT_IN_CHILD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Python ignores these at its start, and the command would inherit that. `subprocess` restores them, too.
_IGNORED_BY_PYTHON = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))


class Command:
    """Child process that becomes the command at its go; signals and waits never reach another process by mistake."""

    def __init__(self, pid: int, gate: int) -> None:
        self.pid = pid
        self.exit_code: int | None = None  # as a shell reports it; None while the command runs
        self._gate = gate

    @classmethod
    def prepare(cls, words: Sequence[str]) -> Self:
        """Fork the child; call it from the main thread, before there are others."""
        die_with_parent = parent_death_signal()
        parent = os.getpid()
        gate, childs_gate = (end.detach() for end in socket.socketpair())
        pid = os.fork()
        if pid:
            os.close(childs_gate)
            return cls(pid, gate)
        try:
            os.close(gate)
            _be_the_command(words, childs_gate, die_with_parent, parent)
        finally:
            os._exit(ExitCode.NOT_EXECUTABLE)  # the child must never run the caller's code

    def go(self, token: int) -> None:
        """Execute the command, with the fencing token in its environment."""
        with contextlib.suppress(BrokenPipeError):  # a child that was killed reads nothing; `poll` reports the signal
            os.write(self._gate, b"%d\n" % token)

    def has_failed_to_start(self) -> bool:
        """Return whether the child, which has ended, could not execute the command."""
        with contextlib.suppress(ConnectionResetError):  # it was killed before it read the token
            return os.read(self._gate, 1) != b""
        return False

    def cancel(self) -> None:
        """Kill the child, if it has not ended: it must not live on without supervision."""
        self._close_gate()
        if self.poll() is None:
            self.send(signal.SIGKILL)
            self._reap(0)

    def poll(self) -> int | None:
        """Return the exit code once the command has ended, None while it runs."""
        if self.exit_code is None:
            self._reap(os.WNOHANG)
        return self.exit_code

    def send(self, signum: int) -> None:
        """Signal the command, unless it was reaped: from then on, another process may have its pid."""
        if self.exit_code is None:
            with contextlib.suppress(PermissionError):  # a command that runs as another user (sudo) can't be signalled
                os.kill(self.pid, signum)

    def _reap(self, flags: int) -> None:
        pid, status = os.waitpid(self.pid, flags)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self.exit_code = code if code >= 0 else of_signal(-code)

    def _close_gate(self) -> None:
        gate, self._gate = self._gate, -1
        if gate >= 0:
            os.close(gate)


def parent_death_signal() -> Callable[[], None] | None:
    """Return a function that has Linux kill the calling process when its parent dies; None on other systems.

    The signal is SIGKILL: without the parent, the lock is not renewed, and no process would follow a SIGTERM up with a
    SIGKILL before the lease ends.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return lambda: None if prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0 else os._exit(ExitCode.NOT_EXECUTABLE)


def _be_the_command(words: Sequence[str], gate: int, die_with_parent: Callable[[], None] | None, parent: int) -> None:
    """Wait, in the child, for the go, and become the command; exit if there is no go, or no such command."""
    for signum in _DEFAULT_IN_CHILD:
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup and background jobs of scripts ignore signals on purpose
            signal.signal(signum, signal.SIG_DFL)
    if die_with_parent is not None:
        die_with_parent()
        if os.getppid() != parent:  # the parent died before the kernel was told
            os._exit(of_signal(signal.SIGKILL))
    told = os.read(gate, 64)
    if not told:
        os._exit(ExitCode.OK)
    for signum in _IGNORED_BY_PYTHON:
        signal.signal(signum, signal.SIG_DFL)
    environment = {**os.environ, "RELOCK_TOKEN": told.decode().strip()}
    try:
        os.execvpe(words[0], list(words), environment)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        os.write(gate, b"!")
        os.write(2, f"relock: {words[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(ExitCode.NOT_FOUND if missing else ExitCode.NOT_EXECUTABLE)
