"""Supervision of a command while a lock is held for it: if the lock can't be kept, the command is ended in time."""

import signal
from typing import Protocol, Self

from attrs import frozen

from relock.cli._output import say
from relock.cli._signals import Signals, terminal_has_sent

KILL_SECONDS_MAX = 0.05
KILL_TTL_PART = 20
LOOK_AGAIN_SECONDS = 1.0
SLEEP_SECONDS_MIN = 0.001  # a sleep may end just before a limit, and the next one must not last 0 s


class Supervised(Protocol):
    """Child process, as far as `supervise` needs it."""

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, None while it runs."""

    def send(self, signum: int) -> None:
        """Signal the process."""


class Kept(Protocol):
    """Lock, as far as `supervise` needs it."""

    def remaining(self) -> float:
        """Return the seconds for which the lock is surely still held."""


@frozen
class Limits:
    """Times (s) before the end of the lease at which the command gets SIGTERM, and SIGKILL.

    SIGKILL takes its time too: it is sent a moment before the end, not at it.
    """

    grace: float
    kill: float

    @classmethod
    def of(cls, ttl: float, grace: float) -> Self:
        """Return the limits for a lease of `ttl` seconds."""
        return cls(grace, min(KILL_SECONDS_MAX, ttl / KILL_TTL_PART))


def supervise(command: Supervised, lock: Kept, signals: Signals, limits: Limits) -> bool:
    """Watch the command to its end; return whether it was told to end because the lock could not be kept.

    After every sleep, the time left is read anew, so a sleep that ends late does no harm.
    """
    sent = 0
    while command.poll() is None:
        left = lock.remaining()
        if left <= limits.kill and sent != signal.SIGKILL:
            sent = signal.SIGKILL
            command.send(sent)  # Act, then tell: the terminal may hang
            say("the lock is lost, or about to end: the command gets SIGKILL")
        elif left <= limits.grace and not sent:
            sent = signal.SIGTERM
            command.send(sent)
            command.send(signal.SIGCONT)  # a stopped command could not act on SIGTERM
            say(f"the lock can't be renewed, and its lease ends in {left:.1f} s: the command gets SIGTERM")
        _forward(command, signals.wait(_seconds_to_sleep(left, sent, limits)))
    return sent != 0


def _seconds_to_sleep(left: float, sent: int, limits: Limits) -> float:
    """Return the seconds until the next limit. A signal, the command's end or the lock's loss ends the sleep."""
    if sent == signal.SIGKILL:
        return LOOK_AGAIN_SECONDS
    return max(left - (limits.kill if sent else limits.grace), SLEEP_SECONDS_MIN)


def _forward(command: Supervised, signums: list[int]) -> None:
    for signum in signums:
        if signum != signal.SIGCHLD and not terminal_has_sent(signum):
            command.send(signum)
