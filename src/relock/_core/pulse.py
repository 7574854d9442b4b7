"""Answers whether an event loop turns: now and then it is asked, and its own thread answers."""

from relock._core.hold import FOREVER


class Pulse:
    """The pulse of one loop. It owns nothing and sends nothing; several threads use it, each by single assignments.

    Args:
        limit: seconds after which a loop that stands still has its holds renewed no more.

    Attributes:
        asked_at: when the question that is open was asked; infinity while none is.
        has_left: since then, places of its waiters were given up.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.asked_at = FOREVER
        self.has_left = False
        self._is_told = False

    def ask(self, now: float) -> bool:
        """Whether the loop must be asked now; not while it owes an answer."""
        if self.asked_at < FOREVER:
            return False
        self._is_told = self.has_left = False
        self.asked_at = now
        return True

    def answer(self) -> bool:
        """The loop turns; returns whether anything was done because it did not."""
        self.asked_at = FOREVER
        return self._is_told or self.has_left

    def silent_for(self, now: float) -> float:
        """For how many seconds it has owed an answer."""
        return max(0.0, now - self.asked_at)

    def must_be_told(self, now: float, longest: float) -> bool:
        """Whether it has been silent for `longest` seconds, for the first time since it turned."""
        if self._is_told or self.silent_for(now) < longest:
            return False
        self._is_told = True
        return True
