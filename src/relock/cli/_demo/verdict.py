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
    """One update of the ledger; times in seconds of CLOCK_MONOTONIC, which all processes share."""

    entry: Entry
    entered: float  # when the worker had the lock or permit
    levels: int = 0  # the hold count inside the nested hold
    levels_after: int = 0  # the hold count after the nested hold
    slot: int = 0  # the number of the permit
    left: float = NEVER  # when the worker was about to release the lock or permit


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


def most_at_once(updates: Iterable[Update]) -> int:
    """Return the largest number of updates that were under way at the same time."""
    steps = sorted(step for update in updates for step in ((update.entered, 1), (update.left, -1)))
    return max(accumulate(change for _, change in steps), default=0)


def of_no_lock(history: History) -> list[Finding]:
    """Judge the act without a lock: the demo shows something only if the race does harm."""
    made, lost, most = len(history.updates), history.lost(), most_at_once(history.updates)
    text = f"{lost:,} of {made:,} lost; {most:,} at once"
    return [Finding("without a lock, updates are lost, as expected", text, good=lost > 0)]


def of_holds(history: History, what: str, limit: int) -> list[Finding]:
    """Judge an act inside the blocks of `what`, which lets in so many; processes and masters may have been killed."""
    made, lost, strange = len(history.updates), history.lost(), history.strange()
    most = most_at_once([*history.updates, *history.unfinished])
    none_lost = f"{lost:,} of {made:,} lost; {strange:,} entries double or unknown"
    at_once = f"{most:,} at once in {made:,} updates"
    return [
        Finding(f"with the {what}, none is lost", none_lost, good=made > 0 == lost == strange),
        Finding(f"with the {what}, at most {limit} at a time", at_once, good=most == limit),
    ]


def of_lock(history: History) -> list[Finding]:
    """Judge the act with the lock: also its tokens, and that it is reentrant."""
    made = len(history.updates)
    falling = sum(after.token <= before.token for before, after in pairwise(history.entries))
    right = sum((update.levels, update.levels_after) == (2, 1) for update in history.updates)
    rising = f"in {len(history.entries):,} entries, {falling:,} fell or came twice"
    nested = f"{right:,} of {made:,} updates counted 2 inside and 1 after"
    return [
        *of_holds(history, "lock", 1),
        Finding("fencing tokens rise", rising, good=made > 0 == falling),
        Finding("nested holds are counted", nested, good=made > 0 and right == made),
    ]


def of_transfers(history: History) -> list[Finding]:
    """Judge the act in which an update is a transfer, which writes to the ledgers of two accounts."""
    made, lost = len(history.updates), sum(history.entries.count(update.entry) != 2 for update in history.updates)
    return [Finding("two locks at once: no transfer is lost", f"{lost:,} of {made:,} lost", good=made > 0 == lost)]


def of_masters(ttl: float, down: float, votes: Sequence[float], turns: Iterable[float], end: float) -> list[Finding]:
    """Judge the death of a minority of the masters, which came back empty; times in seconds since their kill.

    They answered again after `down`, and had their `votes`. The others let updates begin at the `turns`, until `end`.
    """
    begins = sorted(turns)
    gap = max(after - before for before, after in pairwise([0.0, *begins, end]))
    others = f"{len(begins):,} updates meanwhile, at most {gap:.2f} s apart"
    first, last, missing = min(votes), max(votes), votes.count(NEVER)
    back = f"down for {down:.2f} s, a vote {first:.2f} to {last:.2f} s after the kill; a lease is {ttl:g} s"
    if missing:
        back = f"{missing} of {len(votes)} have no vote again"
    in_time = ttl <= first and last - down - GUARD_FACTOR_MAX * ttl <= LATE_SECONDS_MAX
    return [
        Finding("masters killed: the others go on", others, good=bool(begins) and gap <= LATE_SECONDS_MAX),
        Finding("masters back, empty: no vote before every lease is over", back, good=in_time),
    ]


def of_long_hold(ttl: float, seconds: float, intruders: int, *, is_blocked: bool) -> Finding:
    """Judge a hold that lasted for longer than its lease; the holder's event loop may have stood still meanwhile."""
    what = "a blocked event loop keeps its hold" if is_blocked else "a long hold is renewed"
    text = f"held for {seconds:.2f} s on a lease of {ttl:g} s; {intruders} others came in"
    return Finding(what, text, good=seconds > ttl and intruders == 0)


def of_killed_holder(lease_left: float, handoff: float, holder: str = "holder") -> Finding:
    """Judge the death of a holder: how soon after it the lease was over, and the next worker had its lock or permit."""
    text = f"lease left {1000 * lease_left:,.1f} ms, {_next(handoff)} the kill"
    good = lease_left > 0 and -EARLY_SECONDS_MAX <= handoff - lease_left <= LATE_SECONDS_MAX
    return Finding(f"{holder} killed: its lease ends, the queue goes on", text, good=good)


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
