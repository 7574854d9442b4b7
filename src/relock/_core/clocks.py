"""Bounds on how far a master's clock is ahead of ours: every reply narrows them, and time widens them."""

from collections.abc import Iterable
from typing import NamedTuple

from attrs import define, field

Bounds = tuple[float, float]  # low and high, in seconds

NOT_AFTER_US_MAX = 10**16 - 1  # the largest time of 16 digits, in the year 2286
PROPOSAL_US_MIN = 10**15  # the smallest time of 16 digits, in the year 2001
UNKNOWN = NOT_YET = float("inf")
TICKETS_END = 2**53  # a master can't tell larger tickets apart: Lua's numbers are doubles
TICKET_AHEAD_US = 1_000_000  # a ticket that several masters are to take is this far ahead of their clocks
LEAD_SECONDS = 0.001  # a request may take this much longer than the round trips seen so far
STEP_SECONDS = 0.05  # a smaller difference between two replies is no step
# A reply within this time may be skipped if it makes neither bound tighter. A doubt about a step makes the bounds wider
# than this, so the reply to the next request is tighter, and is not skipped.
LOOK_SECONDS = 0.02


class ClockStep(NamedTuple):
    """Step of a clock: a master's clock and ours moved apart at once.

    Attributes:
        seen_at: our time at which the reply that showed the step was read.
        master: the master's number.
        seconds: by how much the clocks moved apart; above 0 if the master's went ahead.
        shown_us: the master's clock in that reply.
        after: our time before which the step did not happen: when the last request was sent whose reply did not show
            the step.
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

    Replies on two connections may be read in another order than the master gave them. Say that a reply was under way
    together with the last one, and does not agree with the bounds. Then the clock has stepped, but it is not known
    which way. Until the reply to the next request, which is newer than both, the bounds cover both replies. If the new
    reply takes so long that it agrees with both, the clock counts as gone ahead.

    Attributes:
        look_by: our time until which a reply that makes neither bound tighter may be skipped.
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
    _asked_at: float = float("-inf")  # when the request was sent whose reply counted last
    _rivals: tuple[Bounds, Bounds] | None = None  # while a step is in doubt, one of the two is from before the step

    @property
    def round_trip(self) -> float:
        """Seconds for which a request and its reply are under way, as far as the last ones have shown."""
        return self.high - self.low

    @property
    def is_in_doubt(self) -> bool:
        """True if the clock has stepped, and only the reply to the next request will show which way."""
        return self._rivals is not None

    def see(self, low: float, high: float, now: float) -> float:
        """Narrow the bounds by those of a reply; return by how many seconds the master's clock stepped, or 0.0.

        Bounds that don't overlap the old ones show a step, ahead (above 0) or back (below 0). As soon as its direction
        is known, return the largest step that is possible.
        """
        asked_at = now - (high - low)
        if asked_at < self.stepped_at:
            return 0.0
        # The master's clock has run on since its reply, and maybe faster than ours.
        high += self.drift_factor * (high - low)
        widened = self.drift_factor * (now - self.seen_at)
        old_low, old_high = self.low - widened, self.high + widened
        if low > old_high + STEP_SECONDS or high < old_low - STEP_SECONDS or self._rivals is not None:
            return self._see_step(asked_at, low, high, now)
        # Widen, then date: the old bounds with the new date would be too tight. Another thread might use them for a
        # moment, and all threads from then on if an interrupt came between.
        self.low, self.high = old_low, old_high
        self.seen_at, self._asked_at = now, asked_at
        # Every reply of every master is seen here, and comparisons are faster than max() and min().
        self.low = low if low > old_low else old_low
        self.high = high if high < old_high else old_high
        self.look_by = now + LOOK_SECONDS
        return 0.0

    def _see_step(self, asked_at: float, low: float, high: float, now: float) -> float:
        """Return the step that a reply shows, if the reply disagrees with the bounds or a step is in doubt."""
        if asked_at < self.stepped_at:  # Date, then change: the date is read again after the bounds
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
            return 0.0  # the reply was under way too long to decide; a later reply will
        # The rivals may have widened until they agree with one another. If the reply agrees with both, no later
        # reply can tell them apart. Then the clock counts as gone ahead as far as it can have: holds may end early.
        went_ahead = agrees_with_all or ahead > STEP_SECONDS or ahead >= back
        # Date, then change: no thread may compare a reply to an earlier request with the new bounds.
        self.stepped_at, self._rivals = now, None
        self.low, self.high, self.seen_at, self._asked_at = low, high, now, asked_at
        # An earlier step, too small to be noticed, may have moved one bound beyond the other.
        return high - min(*lows, *highs) if went_ahead else low - max(*lows, *highs)

    def _begin_to_doubt(self, old: Bounds, new: Bounds, asked_at: float, now: float) -> None:
        """Note that two replies that were under way together don't agree: it is unknown which was given first."""
        self.stepped_after = min(asked_at, self._asked_at)
        self.stepped_at = now
        self._rivals = old, new
        self.low, self.high = min(*old, *new), max(*old, *new)
        self.seen_at = now  # Widen, then date

    def shown_at(self, seconds: float, now: float) -> float:
        """Return the earliest of our times at which the master's clock may have shown `seconds`.

        Return `NOT_YET` if it can't have shown that by `now`: then the clock stepped ahead.
        """
        widened = self.drift_factor * (now - self.seen_at)  # a reader must read the date before the bound
        moment = seconds - self.high - widened
        if moment <= now:
            return moment
        return now if moment <= now + STEP_SECONDS else NOT_YET

    def not_after_us(self, until: float) -> int:
        """Return the earliest time (us, of at most 16 digits) that the master's clock may show at our time `until`."""
        ahead = until - self.seen_at
        earliest = until + self.low - (self.drift_factor * ahead if ahead > 0 else 0.0)
        # If another thread has just found a new server, with an unknown clock, return 0: the request is void.
        return min(int(earliest * 1e6), NOT_AFTER_US_MAX) if earliest > 0.0 else 0

    def earliest(self, when: float) -> float:
        """Return the earliest time (s) that the master's clock may show at our time `when`."""
        ahead = when - self.seen_at
        return when + self.low - (self.drift_factor * ahead if ahead > 0 else 0.0)


def propose(offsets: Iterable[Offset], now: float) -> int:
    """Return a time (us, in 16 digits) that probably no master's clock has reached when a request sent `now` arrives.

    Return 0 if no clock is known, or the time would not have 16 digits.
    """
    ahead = 0.0
    for offset in offsets:
        most = offset.high + offset.round_trip  # infinite for a master that has not answered yet
        if ahead < most < UNKNOWN:
            ahead = most
    proposal = int((now + ahead + LEAD_SECONDS) * 1e6)
    return proposal if PROPOSAL_US_MIN <= proposal <= NOT_AFTER_US_MAX else 0


def propose_ticket(ahead_us: int) -> int:
    """Return a ticket for several masters to write alike, where `ahead_us` lies just above their clocks; 0 for none.

    The ticket lies a second above the clocks: a master whose clock has passed the ticket would write a larger one.
    """
    ticket = ahead_us + TICKET_AHEAD_US
    return ticket if TICKET_AHEAD_US < ticket < TICKETS_END else 0
