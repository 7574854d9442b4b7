"""Pulse of an event loop, which shows whether the loop turns: it is asked now and then, and its thread answers."""

from relock._core.hold import FOREVER


class Pulse:
    """Pulse of one loop. It owns nothing and sends nothing; several threads use it, each by single assignments.

    Args:
        limit: seconds after which a loop that stands still has its holds renewed no more.

    Attributes:
        asked_at: the time at which the open question was asked; infinity while there is none.
        has_left: True if places of the loop's waiters were given up since then.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.asked_at = FOREVER
        self.has_left = False
        self._is_told = False

    def ask(self, now: float) -> bool:
        """Note that the loop is asked now, and return True; return False while the loop owes an answer."""
        if self.asked_at < FOREVER:
            return False
        self._is_told = self.has_left = False
        self.asked_at = now
        return True

    def answer(self) -> bool:
        """Note that the loop turns; return whether anything was done because it did not."""
        self.asked_at = FOREVER
        return self._is_told or self.has_left

    def silent_for(self, now: float) -> float:
        """Return the seconds for which the loop has owed an answer."""
        return max(0.0, now - self.asked_at)

    def must_be_told(self, now: float, longest: float) -> bool:
        """Return whether the loop has been silent for `longest` seconds; True only once until the loop turns again."""
        if self._is_told or self.silent_for(now) < longest:
            return False
        self._is_told = True
        return True
