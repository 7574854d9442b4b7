"""Pulse of an event loop: background threads ask the loop now and then, and its thread answers while it turns."""

from relock._core.hold import FOREVER


class Pulse:
    """Pulse of one loop: pure state, which several threads change by single assignments.

    Args:
        limit: seconds; the holds of a loop that stands still for longer are not renewed.

    Attributes:
        asked_at: when the loop was asked, if it has not answered; else infinity.
        has_left: True if, since then, places of the loop's waiters were given up.
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
        """Note that the loop turns; return whether a stall was reported or places were given up meanwhile."""
        self.asked_at = FOREVER
        return self._is_told or self.has_left

    def silent_for(self, now: float) -> float:
        """Return the seconds for which the loop has owed an answer."""
        return max(0.0, now - self.asked_at)

    def must_be_told(self, now: float, longest: float) -> bool:
        """Return whether to report that the loop is silent for `longest` seconds: True once for each stall."""
        if self._is_told or self.silent_for(now) < longest:
            return False
        self._is_told = True
        return True
