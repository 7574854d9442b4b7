"""The verdict of the demo: counts of the workers' messages and of the ledger. Pure functions over values."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from attrs import define, field, frozen

from relock.cli._demo.ledger import Entry

NEVER = float("inf")
EARLY_SECONDS_MAX = 0.05  # masters count leases in whole milliseconds, and were asked at different moments
# A busy machine may be late. A lost wake-up costs 3 s, and a dead waiter that is not skipped 10 s.
LATE_SECONDS_MAX = 2.0
GUARD_FACTOR_MAX = 1.02  # a guard outlasts a lease by this factor, for clocks that run at different rates


@frozen
class Update:
    """One update of the ledger; times in seconds of CLOCK_MONOTONIC, which all processes share.

    Attributes:
        entry: the update's line in the ledger.
        entered: when the worker had the lock, and `left` when it was about to release it.
        levels: the hold count inside the nested hold, and `levels_after` the one after that.
    """

    entry: Entry
    entered: float
    levels: int = 0
    levels_after: int = 0
    left: float = NEVER


@define
class History:
    """One act: the updates that were told, the ledger's entries, the killed processes, the updates they had begun."""

    updates: list[Update] = field(factory=list)
    entries: Sequence[Entry] = ()
    killed: set[str] = field(factory=set)
    unfinished: list[Update] = field(factory=list)

    def lost(self) -> int:
        """Return how many updates that were told are not in the ledger."""
        written = set(self.entries)
        return sum(update.entry not in written for update in self.updates)

    def strange(self) -> int:
        """Return how many entries are there twice, or were not reported although their process lives."""
        once = set(self.entries)
        untold = once.difference(update.entry for update in self.updates)
        unknown = [entry for entry in untold if entry.worker.partition(".")[0] not in self.killed]
        return len(self.entries) - len(once) + len(unknown)


@frozen
class Finding:
    """One line of the verdict: a claim, the counts, and whether they are good."""

    what: str
    counted: str
    good: bool


def overlaps(updates: Iterable[Update]) -> int:
    """Return how many updates began before an earlier one was over."""
    ordered = sorted(updates, key=lambda update: update.entered)
    latest = accumulate((update.left for update in ordered), max)
    return sum(update.entered < left for update, left in zip(ordered[1:], latest, strict=False))


def longest_gap(moments: Iterable[float], begin: float, end: float) -> float:
    """Return the longest stretch (s) from `begin` to `end` without any of `moments`."""
    within = sorted(moment for moment in moments if begin <= moment <= end)
    return max(after - before for before, after in pairwise([begin, *within, end]))


def of_no_lock(history: History) -> list[Finding]:
    """Judge the act without a lock: the demo shows something only if the race does harm."""
    made, lost, both = len(history.updates), history.lost(), overlaps(history.updates)
    text = f"{lost:,} of {made:,} lost; {both:,} overlaps"
    return [Finding("without a lock, updates are lost, as expected", text, good=lost > 0)]


def of_lock(history: History) -> list[Finding]:
    """Judge the act with the lock, in which processes and masters may have been killed."""
    made, lost, strange = len(history.updates), history.lost(), history.strange()
    both = overlaps([*history.updates, *history.unfinished])
    falling = sum(after.token <= before.token for before, after in pairwise(history.entries))
    right = sum((update.levels, update.levels_after) == (2, 1) for update in history.updates)
    some = made > 0
    none_lost = f"{lost:,} of {made:,} lost; {strange:,} entries double or unknown"
    rising = f"in {len(history.entries):,} entries, {falling:,} fell or came twice"
    nested = f"{right:,} of {made:,} updates counted 2 inside and 1 after"
    return [
        Finding("with the lock, none is lost", none_lost, good=some and lost == strange == 0),
        Finding("one at a time", f"{both:,} overlaps in {made:,} updates", good=some and both == 0),
        Finding("fencing tokens rise", rising, good=some and falling == 0),
        Finding("nested holds are counted", nested, good=some and right == made),
    ]


def of_transfers(history: History) -> list[Finding]:
    """Judge the act in which an update is a transfer, which writes to the ledgers of two accounts."""
    made, lost = len(history.updates), sum(history.entries.count(update.entry) != 2 for update in history.updates)
    return [Finding("two locks at once: no transfer is lost", f"{lost:,} of {made:,} lost", good=made > 0 == lost)]


def of_masters(ttl: float, down: float, votes: Sequence[float], turns: int, gap: float) -> list[Finding]:
    """Judge the death of a minority of the masters, which came back empty.

    Args:
        ttl: the lease that they may have forgotten.
        down: from the kill until the last of them answered again.
        votes: from the kill until each had its vote again.
        turns: how many updates began before all of them voted again, at most `gap` apart.
        gap: the longest stretch without the begin of an update.
    """
    others = f"{turns:,} updates meanwhile, at most {gap:.2f} s apart"
    first, last, missing = min(votes), max(votes), votes.count(NEVER)
    back = f"down for {down:.2f} s, a vote {first:.2f} to {last:.2f} s after the kill; a lease is {ttl:g} s"
    if missing:
        back = f"{missing} of {len(votes)} have no vote again"
    in_time = ttl <= first and last - down - GUARD_FACTOR_MAX * ttl <= LATE_SECONDS_MAX
    return [
        Finding("masters killed: the others go on", others, good=turns > 0 and gap <= LATE_SECONDS_MAX),
        Finding("masters back, empty: no vote before every lease is over", back, good=in_time),
    ]


def of_long_hold(ttl: float, seconds: float, intruders: int, *, is_blocked: bool) -> Finding:
    """Judge a hold that lasted for longer than its lease; the holder's event loop may have stood still meanwhile."""
    what = "a blocked event loop keeps its hold" if is_blocked else "a long hold is renewed"
    stood = f"; the loop stood still for {seconds:.2f} s" if is_blocked else ""
    text = f"held for {seconds:.2f} s on a lease of {ttl:g} s; {intruders} others came in{stood}"
    return Finding(what, text, good=seconds > ttl and intruders == 0)


def of_killed_holder(lease_left: float, handoff: float) -> Finding:
    """Judge the death of a holder: how soon after it the lease was over, and the next worker had the lock."""
    text = f"lease left {1000 * lease_left:,.1f} ms, {_next(handoff)} the kill"
    good = lease_left > 0 and -EARLY_SECONDS_MAX <= handoff - lease_left <= LATE_SECONDS_MAX
    return Finding("holder killed: its lease ends, the queue goes on", text, good=good)


def of_cancelled_waiter(call: float, place: float, handoff: float) -> Finding:
    """Judge a cancelled waiter: when its call ended and its place was gone, and how soon the next one got the lock."""
    gone = "its place stayed" if place == NEVER else f"its place was gone after {1000 * place:.1f} ms"
    text = f"its call ended after {1000 * call:.1f} ms, {gone}, {_next(handoff)} the release"
    return Finding("waiter cancelled: it leaves the queue", text, good=max(call, place, handoff) <= LATE_SECONDS_MAX)


def of_killed_waiter(dead: int, handoff: float) -> Finding:
    """Judge the death of the first `dead` waiters: how soon after the release the next living one had the lock."""
    text = f"{dead} dead waiters at the head of the queue, {_next(handoff)} the release"
    return Finding("waiter killed: nobody waits for it", text, good=dead > 0 and handoff <= LATE_SECONDS_MAX)


def _next(handoff: float) -> str:
    return "no next holder after" if handoff == NEVER else f"the next holder {1000 * handoff:,.1f} ms after"
