"""The verdict of the demo: counts of the workers' messages and of the ledger. Pure functions over values."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from attrs import define, field, frozen

NEVER = float("inf")
EARLY_SECONDS_MAX = 0.05  # masters count leases in whole milliseconds, and were asked at different moments
# A busy machine may be late. A lost wake-up costs 3 s, and a dead waiter that is not skipped 10 s.
LATE_SECONDS_MAX = 2.0
GUARD_FACTOR_MAX = 1.02  # a guard outlasts a lease by this factor, for clocks that run at different rates


class Entry(NamedTuple):
    """One line of the ledger: ``process.number`` of the worker, a serial number, the fencing token (0: no lock)."""

    worker: str
    serial: int
    token: int


@frozen
class Update:
    """One turn of a worker, which updates ledgers; times in seconds of CLOCK_MONOTONIC, which all processes share."""

    entry: Entry
    entered: float  # when the worker had the lock or permit, was through the latch, or got a `DeadlockError`
    levels: int = 0  # the hold count inside the nested hold
    levels_after: int = 0  # the hold count after the nested hold
    slot: int = 0  # the number of the permit
    asked: float = 0.0  # when the worker was about to ask for the lock or permit, or to arrive at the latch
    left: float = NEVER  # when the worker was about to release the lock or permit


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


@define
class History:
    """One act, as the workers told it, with the ledgers' entries; an update is in `copies` of the ledgers."""

    copies: int = 1
    updates: list[Update] = field(factory=list)
    reads: list[Update] = field(factory=list)  # the turns without an update; a kill has ended some of them
    victims: list[Update] = field(factory=list)  # the waits that a `DeadlockError` has ended
    entries: Sequence[Entry] = ()

    def lost(self) -> int:
        """Return how many updates that were told are not in the ledgers."""
        written = Counter(self.entries)
        return sum(written[update.entry] != self.copies for update in self.updates)

    def of_no_lock(self) -> list[Finding]:
        """Judge the act without a lock: the demo shows something only if the race does harm."""
        made, lost, most = len(self.updates), self.lost(), most_at_once(self.updates)
        text = f"{lost:,} of {made:,} lost; {most:,} at once"
        return [Finding("without a lock, updates are lost, as expected", text, good=lost > 0)]

    def of_losses(self, what: str) -> list[Finding]:
        """Judge an act in which no update may be lost; processes and masters may have been killed."""
        made, lost = len(self.updates), self.lost()
        return [Finding(what, f"{lost:,} of {made:,} lost", good=made > 0 == lost)]

    def of_holds(self, what: str, limit: int) -> list[Finding]:
        """Judge an act inside the blocks of `what`, which lets in so many."""
        most = most_at_once([*self.updates, *self.reads])
        text = f"{most:,} at once in {len(self.updates):,} updates"
        at_once = Finding(f"with the {what}, at most {limit} at a time", text, good=most == limit)
        return [*self.of_losses(f"with the {what}, none is lost"), at_once]

    def of_lock(self) -> list[Finding]:
        """Judge the act with the lock: also its tokens, and that it is reentrant."""
        made = len(self.updates)
        falling = sum(after.token <= before.token for before, after in pairwise(self.entries))
        right = sum((update.levels, update.levels_after) == (2, 1) for update in self.updates)
        rising = f"in {len(self.entries):,} entries, {falling:,} fell or came twice"
        nested = f"{right:,} of {made:,} updates counted 2 inside and 1 after"
        return [
            *self.of_holds("lock", 1),
            Finding("fencing tokens rise", rising, good=made > 0 == falling),
            Finding("nested holds are counted", nested, good=made > 0 and right == made),
        ]

    def of_readers(self) -> list[Finding]:
        """Judge the act in which a writer must be alone, and readers must be together."""
        writes, reads, made, most = self.updates, self.reads, len(self.updates), most_at_once(self.reads)
        pairs = ((one, other) for one in writes for other in [*writes, *reads] if one is not other)
        beside = sum(one.entered < other.left and other.entered < one.left for one, other in pairs)
        return [
            *self.of_losses("with the read-write lock, none is lost"),
            Finding("a writer is alone", f"{beside:,} others inside in {made:,} writes", good=made > 0 == beside),
            Finding("readers read together", f"{most:,} at once in {len(reads):,} reads", good=most > 1),
        ]

    def of_queue(self, awaited: float, released: float) -> Finding:
        """Judge the readers' queue while the demo read until `released`; a writer was in the queue at `awaited`."""
        waited = [read for read in self.reads if read.asked < released < read.entered]
        passed = [read for read in self.reads if awaited < read.asked and read.entered < released]
        text = f"{len(waited)} readers waited behind a writer, {len(passed):,} passed it"
        return Finding("no reader passes a waiting writer", text, good=len(waited) > 0 == len(passed))

    def of_latch(self, parties: int) -> list[Finding]:
        """Judge the rounds of a latch; the serial number of an entry is that of the round."""
        last = {one.entry.serial: one.asked for one in sorted(self.updates, key=lambda one: one.asked)}
        early = sum(one.entered < last[one.entry.serial] for one in self.updates)
        full = [*Counter(one.entry.serial for one in self.updates).values()].count(parties)
        text = f"{early:,} of {len(self.updates):,} went on early, in {full:,} rounds of {parties}"
        return [Finding("latch: nobody goes on before all have arrived", text, good=full > 0 == early)]

    def of_deadlock(self) -> list[Finding]:
        """Judge the act in which a worker of each process takes two locks, in opposite orders."""
        made, victims, lost = len(self.updates), len(self.victims), self.lost()
        after = sum(update.left > victim.entered for update in self.updates for victim in self.victims)
        text = f"{victims} got a DeadlockError; {after} of {made} transfers were made after it, {lost} lost"
        good = victims == 1 < after == made and lost == 0
        return [Finding("deadlock: one victim, and then all go on", text, good=good)]


def of_masters(ttl: float, down: float, votes: Sequence[float], turns: Iterable[float], end: float) -> list[Finding]:
    """Judge masters that were killed and came back empty (s after the kill); the others let workers in at `turns`."""
    begins, first, last = sorted(turns), min(votes), max(votes)
    gap = max(after - before for before, after in pairwise([0.0, *begins, end]))
    others = f"{len(begins):,} updates meanwhile, at most {gap:.2f} s apart"
    back = f"down for {down:.2f} s, a vote {first:.2f} to {last:.2f} s after the kill; a lease is {ttl:g} s"
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
    text = f"lease left {1000 * lease_left:,.1f} ms, the next holder {1000 * handoff:,.1f} ms after the kill"
    good = lease_left > 0 and -EARLY_SECONDS_MAX <= handoff - lease_left <= LATE_SECONDS_MAX
    return Finding(f"{holder} killed: its lease ends, the queue goes on", text, good=good)


def of_cancelled_waiter(call: float, place: float, handoff: float) -> Finding:
    """Judge a cancelled waiter: when its call ended and its place was gone, and how soon the next one got the lock."""
    gone = f"its call ended after {1000 * call:.1f} ms, its place was gone after {1000 * place:.1f} ms"
    text = f"{gone}, the next holder {1000 * handoff:,.1f} ms after the release"
    return Finding("waiter cancelled: it leaves the queue", text, good=max(call, place, handoff) <= LATE_SECONDS_MAX)


def of_killed_waiter(dead: int, handoff: float) -> Finding:
    """Judge the death of the first `dead` waiters: how soon after the release the next living one had the lock."""
    text = f"{dead} dead waiters at the head of the queue, the next holder {1000 * handoff:,.1f} ms after the release"
    return Finding("waiter killed: nobody waits for it", text, good=dead > 0 and handoff <= LATE_SECONDS_MAX)
