"""How far a master's clock is ahead of ours: bounds that every reply narrows and time widens."""

from typing import NamedTuple

from attrs import define, field

STEP_SECONDS = 0.05  # clocks that seem to differ by less from one reply to the next have not stepped


class Step(NamedTuple):
    """A master's clock and ours moved apart at once.

    Attributes:
        seen_at: our time at which the reply was read that showed it.
        master: its number.
        seconds: by so many; above 0, the master's went ahead.
        shown_us: the master's clock in that reply.
        after: our time before which it did not happen: the last reply that did not show it was asked for then.
    """

    seen_at: float
    master: int
    seconds: float
    shown_us: int
    after: float = float("-inf")

    def may_be_one_with(self, other: "Step") -> bool:
        """Whether the two may have happened at the same moment, as what happens to our own clock does for all."""
        return self.after <= other.seen_at and other.after <= self.seen_at


@define(eq=False, repr=False)
class Offset:
    """Bounds on (the master's clock minus ours), in seconds.

    A reply that carries the master's time shows that the difference lay between that time less our clock when the
    reply was read, and that time less our clock when the request was sent. Between replies the bounds widen by
    `drift_factor`, because the clocks may run at different rates; and so they did while a reply was under way.

    Attributes:
        stepped_at: our time at which a step was seen last. Replies to requests from before it may show the time from
            before the step, and say nothing of the bounds.
        stepped_after: our time before which that step did not happen.
    """

    drift_factor: float
    low: float = float("-inf")
    high: float = float("inf")
    seen_at: float = field(default=0.0)
    stepped_at: float = float("-inf")
    stepped_after: float = float("-inf")
    _asked_at: float = float("-inf")  # when the last reply that counted was asked for

    def see(self, low: float, high: float, now: float) -> float:
        """Narrows the bounds. Returns by how many seconds the master's clock stepped, 0.0 if it did not.

        Bounds that don't overlap the old ones are a step, ahead (above 0) or back (below 0); the most that it may
        have been is returned.
        """
        asked_at = now - (high - low)
        if asked_at < self.stepped_at:
            return 0.0
        was_asked_at, self._asked_at = self._asked_at, asked_at
        high += self.drift_factor * (high - low)  # the master's clock has run on since, and maybe faster than ours
        widened = self.drift_factor * (now - self.seen_at)
        old_low, old_high = self.low - widened, self.high + widened
        self.seen_at = now
        if low > old_high + STEP_SECONDS or high < old_low - STEP_SECONDS:
            self.low, self.high, self.stepped_after, self.stepped_at = low, high, was_asked_at, now
            # A smaller step before this one may have moved one bound beyond the other, unnoticed.
            return high - min(old_low, old_high) if low > old_high else low - max(old_low, old_high)
        # Comparisons, not max() and min(): every reply of every master comes by here.
        self.low = low if low > old_low else old_low
        self.high = high if high < old_high else old_high
        return 0.0

    def shown_at(self, seconds: float, now: float) -> float:
        """The earliest of our times at which the master's clock may have shown `seconds`, which it did before `now`."""
        return min(seconds - self.high - self.drift_factor * (now - self.seen_at), now)

    def is_ahead(self, seconds: float, now: float) -> bool:
        """Whether the master's clock has shown a time that it can't have reached by `now`: it stepped ahead."""
        return seconds - now > self.high + self.drift_factor * (now - self.seen_at) + STEP_SECONDS

    def earliest(self, when: float) -> float:
        """The master's clock at our time `when`, on the early side."""
        ahead = when - self.seen_at
        return when + self.low - (self.drift_factor * ahead if ahead > 0 else 0.0)
