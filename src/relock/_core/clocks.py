"""Bounds on how far a master's clock is ahead of ours: every reply narrows them, and time widens them."""

from collections.abc import Iterable
from typing import NamedTuple

from attrs import define, field

Bounds = tuple[float, float]  # low and high (s)

NOT_AFTER_US_MAX = 10**16 - 1  # in the year 2286, and of 16 digits
PROPOSAL_US_MIN = 10**15  # in the year 2001
UNKNOWN = NOT_YET = float("inf")
LEAD_SECONDS = 0.001  # what a request may take beyond the round trips that were seen
STEP_SECONDS = 0.05  # clocks that seem to differ by less from one reply to the next have not stepped
# For so long the bounds may go without a new date. Where a step is in doubt, they are farther apart than those of any
# reply that comes so soon: so that reply is looked at.
LOOK_SECONDS = 0.02


class ClockStep(NamedTuple):
    """Step of a clock: a master's clock and ours moved apart at once.

    Attributes:
        seen_at: our time at which the reply that showed the step was read.
        master: its number.
        seconds: by so many they moved apart; above 0, the master's went ahead.
        shown_us: the master's clock in that reply.
        after: our time before which the step did not happen: the last reply without it was asked for then.
    """

    seen_at: float
    master: int
    seconds: float
    shown_us: int
    after: float = float("-inf")

    def may_be_one_with(self, other: "ClockStep") -> bool:
        """Return whether both steps may have happened at the same moment, as those from our own clock do."""
        return self.after <= other.seen_at and other.after <= self.seen_at


@define(eq=False, repr=False)
class Offset:
    """Bounds on (the master's clock minus ours), in seconds.

    A reply carries the master's time. The difference is at least that time less our clock when the reply was read,
    and at most that time less our clock when the request was sent. Between replies, and while one is under way, the
    bounds widen by `drift_factor`, because the clocks may run at different rates.

    Replies on two connections may be read in another order than that in which they were given. So where a reply that
    was under way together with the last one does not agree with the bounds, the clock has stepped, but nobody knows
    which way. Until the reply to the next request, which is newer than either, the bounds are those of both. Where that
    reply comes so late that both may have become what it shows, the clock counts as gone ahead.

    Attributes:
        look_by: our time until which a reply that would make neither bound tighter shows nothing new, and need not be
            seen.
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
    look_by: float = float("-inf")
    _asked_at: float = float("-inf")  # when the last reply that counted was asked for
    _rivals: tuple[Bounds, Bounds] | None = None  # where a step is in doubt: one of the two is from before it

    @property
    def round_trip(self) -> float:
        """Seconds for which a request and its reply are under way, as far as the last ones have shown."""
        return self.high - self.low

    @property
    def is_in_doubt(self) -> bool:
        """True if the clock has stepped, and only the reply to the next request will show which way."""
        return self._rivals is not None

    def see(self, low: float, high: float, now: float) -> float:
        """Narrow the bounds. Return by how many seconds the master's clock stepped, 0.0 if it did not.

        Bounds that don't overlap the old ones are a step, ahead (above 0) or back (below 0). The most that the step may
        have been is returned, as soon as its direction is known.
        """
        asked_at = now - (high - low)
        if asked_at < self.stepped_at:
            return 0.0
        high += self.drift_factor * (high - low)  # the master's clock has run on since, and maybe faster than ours
        widened = self.drift_factor * (now - self.seen_at)
        old_low, old_high = self.low - widened, self.high + widened
        if low > old_high + STEP_SECONDS or high < old_low - STEP_SECONDS or self._rivals is not None:
            return self._see_step(asked_at, low, high, now)
        # Widen, then date: bounds that are not as wide as their date demands promise too much: to another thread, and
        # for good if an interrupt comes between.
        self.low, self.high = old_low, old_high
        self.seen_at, self._asked_at = now, asked_at
        # Comparisons, not max() and min(): every reply of every master comes by here.
        self.low = low if low > old_low else old_low
        self.high = high if high < old_high else old_high
        self.look_by = now + LOOK_SECONDS
        return 0.0

    def _see_step(self, asked_at: float, low: float, high: float, now: float) -> float:
        """Return the step that a reply shows, where it does not agree with the bounds or a step is in doubt."""
        if asked_at < self.stepped_at:  # Date, then change: the bounds were read, so the date is looked at once more
            return 0.0
        widened = self.drift_factor * (now - self.seen_at)
        rivals = self._rivals
        old = rivals or ((self.low, self.high),)
        lows, highs = [bounds[0] - widened for bounds in old], [bounds[1] + widened for bounds in old]
        if rivals is None:
            if asked_at < self.seen_at:
                self._begin_to_doubt((lows[0], highs[0]), (low, high), asked_at, now)
                return 0.0
            self.stepped_after = self._asked_at
        ahead, back = low - min(highs), max(lows) - high
        agrees_with_all = ahead <= 0.0 and back <= 0.0
        if agrees_with_all and min(highs) < max(lows):
            return 0.0  # it was under way for long: a later one will tell
        # Where it agrees with rivals that agree with one another by now, no reply can tell them apart any more: the
        # clock went ahead by the most that it may have, which at worst ends holds too early.
        went_ahead = agrees_with_all or ahead > STEP_SECONDS or ahead >= back
        # Date, then change: to no thread does a reply from before that moment say anything of the new bounds.
        self.stepped_at, self._rivals = now, None
        self.low, self.high, self.seen_at, self._asked_at = low, high, now, asked_at
        # A smaller step before this one may have moved one bound beyond the other, unnoticed.
        return high - min(*lows, *highs) if went_ahead else low - max(*lows, *highs)

    def _begin_to_doubt(self, old: Bounds, new: Bounds, asked_at: float, now: float) -> None:
        """Note that two replies that were under way together don't agree: nobody knows which of them came first."""
        self.stepped_after = min(asked_at, self._asked_at)
        self.stepped_at = now
        self._rivals = old, new
        self.low, self.high = min(*old, *new), max(*old, *new)
        self.seen_at = now  # Widen, then date

    def shown_at(self, seconds: float, now: float) -> float:
        """Return the earliest of our times at which the master's clock, which has shown `seconds`, may have done so.

        Return `NOT_YET` where it can't have shown that by `now`: the clock stepped ahead.
        """
        widened = self.drift_factor * (now - self.seen_at)  # the date is read before the bound
        moment = seconds - self.high - widened
        if moment <= now:
            return moment
        return now if moment <= now + STEP_SECONDS else NOT_YET

    def not_after_us(self, until: float) -> int:
        """Return our time `until` on the master's clock (us, of at most 16 digits), on the early side."""
        ahead = until - self.seen_at
        earliest = until + self.low - (self.drift_factor * ahead if ahead > 0 else 0.0)
        # Another thread may just have found another server there, of whose clock nothing is known yet: void at once.
        return min(int(earliest * 1e6), NOT_AFTER_US_MAX) if earliest > 0.0 else 0

    def earliest(self, when: float) -> float:
        """Return the master's clock at our time `when`, on the early side."""
        ahead = when - self.seen_at
        return when + self.low - (self.drift_factor * ahead if ahead > 0 else 0.0)


def propose(offsets: Iterable[Offset], now: float) -> int:
    """Return a time (us, in 16 digits) that no master's clock will have reached when it acts on a request sent `now`.

    That is likely, and not sure. Return 0 where nothing is known of the clocks, or the time would not have 16 digits.
    """
    ahead = 0.0
    for offset in offsets:
        most = offset.high + offset.round_trip  # infinite where it was not heard of yet
        if ahead < most < UNKNOWN:
            ahead = most
    proposal = int((now + ahead + LEAD_SECONDS) * 1e6)
    return proposal if PROPOSAL_US_MIN <= proposal <= NOT_AFTER_US_MAX else 0
