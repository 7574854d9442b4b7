"""Patience of a waiter while no quorum answers, and its pauses between two looks."""

from collections.abc import Callable

from relock._core.effects import Clock
from relock._core.quorum import NoQuorum, Refused
from relock._owner import waiter_name

LOOK_AGAIN_SECONDS_MAX = 60.0
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0
AWAY_FAILURES = 10  # a master that is away counts as this many failures: the longest back-off
EXPIRY_SECONDS = 0.002  # a server may keep a key this long after its lease has ended


def pause_behind(ahead: int, lease_left: float) -> float:
    """Return the seconds to sleep, unless woken, in a queue behind `ahead` waiters and a lease of `lease_left` s."""
    if ahead == 0 and lease_left >= 0:
        return min(lease_left + EXPIRY_SECONDS, LOOK_AGAIN_SECONDS_MAX)
    return LOOK_AGAIN_SECONDS_MAX


class Patience:
    """Patience of one wait: when it gives up, and how long it sleeps before it looks again.

    Args:
        seconds: for how long it goes on without a quorum.
        waiter: its name.
        clock: returns the time in seconds.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(self, seconds: float, waiter: bytes, clock: Clock, jitter: Callable[[], float]) -> None:
        self._seconds = seconds
        self._waiter = waiter
        self._clock = clock
        self._jitter = jitter
        self._silent_since: float | None = None
        self._failures = 0

    def is_over(self, outcome: Refused | NoQuorum | None, now: float) -> bool:
        """Return whether to give up before the timeout: a permanent failure, or no quorum for so many seconds."""
        if not isinstance(outcome, NoQuorum) or outcome.vote_in is not None:
            self._silent_since, self._failures = None, 0
            return False
        if outcome.permanent:
            return True
        self._failures += 1
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since >= self._seconds

    def pause(self, outcome: Refused | NoQuorum, *, listening: bool) -> float:
        """Return the seconds to sleep before the next look, unless woken."""
        if isinstance(outcome, NoQuorum):
            if outcome.vote_in is not None:
                # A master that is away may be back at any time, and sends no message then.
                longest = self._backoff(AWAY_FAILURES, BACKOFF_SECONDS_MAX) if outcome.away else LOOK_AGAIN_SECONDS_MAX
                return min(max(BACKOFF_SECONDS_MIN, outcome.vote_in), longest)
            return self._backoff(self._failures, self._patience_left())
        if isinstance(outcome, Refused) and listening:
            left = outcome.lease_left
            if outcome.ahead == 0 and left >= 0:
                if self._is_own(outcome.holder):
                    return self._backoff(1, BACKOFF_SECONDS_MAX)  # its undo is under way, and wakes no waiter
                left = max(BACKOFF_SECONDS_MIN if outcome.holder is None else 0.0, left)
            return pause_behind(outcome.ahead, left)
        self._failures += 1
        return self._backoff(self._failures, LOOK_AGAIN_SECONDS_MAX)

    def _is_own(self, holder: str | None) -> bool:
        """Return whether the holder is this wait itself: an earlier attempt, or an unannounced grant."""
        return holder is not None and waiter_name(holder.encode()) == self._waiter

    def _backoff(self, failures: int, longest: float) -> float:
        doubled: float = BACKOFF_SECONDS_MIN * 2 ** min(failures - 1, 10)
        jitter: float = 0.5 + 0.5 * self._jitter()
        return min(min(doubled, BACKOFF_SECONDS_MAX) * jitter, longest)

    def _patience_left(self) -> float:
        since = self._silent_since if self._silent_since is not None else self._clock()
        return max(0.001, since + self._seconds - self._clock())
