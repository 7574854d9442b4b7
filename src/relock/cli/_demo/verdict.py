"""The verdict of the demo: counted from what the workers told, and from the ledger. Pure functions over values."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from attrs import define, field, frozen

from relock.cli._demo.ledger import Entry

EARLY_SECONDS_MAX = 0.05  # masters count leases in whole milliseconds, and were asked at different moments
LATE_SECONDS_MAX = 2.0  # for a busy machine; a lost wake-up costs 3 s, a dead waiter that is not passed over 10 s
GUARD_FACTOR_MAX = 1.02  # a guard outlasts a lease by this factor, for clocks that run at different rates


@frozen
class Update:
    """One update of the ledger; times in seconds of CLOCK_MONOTONIC, which all processes share.

    Attributes:
        worker: ``process.number``, and `serial` numbers its updates.
        token: the fencing token of the hold; 0 without a lock.
        entered: when the worker had the lock, and `left` when it was about to release it.
        levels: the hold count inside the nested hold, and `levels_after` the one after that.
    """

    worker: str
    serial: int
    token: int
    entered: float
    levels: int = 0
    levels_after: int = 0
    left: float = float("inf")


@define
class History:
    """One act: the updates that were told, the ledger's entries, the killed processes, the updates they had begun."""

    updates: list[Update] = field(factory=list)
    entries: Sequence[Entry] = ()
    killed: set[str] = field(factory=set)
    unfinished: list[Update] = field(factory=list)

    def lost(self) -> int:
        """Return how many updates that were told are not in the ledger."""
        written = {(entry.worker, entry.serial) for entry in self.entries}
        return sum((update.worker, update.serial) not in written for update in self.updates)

    def strange(self) -> int:
        """Return how many entries are there twice, or were told by nobody, though their process lives."""
        told = {(update.worker, update.serial) for update in self.updates}
        keys = [(entry.worker, entry.serial) for entry in self.entries]
        untold = {key for key in keys if key not in told and key[0].partition(".")[0] not in self.killed}
        return len(keys) - len(set(keys)) + len(untold)

    def first_after(self, moment: float) -> Update | None:
        """Return the first update that began after `moment`."""
        later = [update for update in self.updates if update.entered > moment]
        return min(later, key=lambda update: update.entered, default=None)


@frozen
class Finding:
    """One line of the verdict: a claim, what was counted of it, and whether that is good."""

    what: str
    counted: str
    good: bool


def overlaps(updates: Iterable[Update]) -> int:
    """Return how many updates began before an earlier one was over."""
    latest, count = float("-inf"), 0
    for update in sorted(updates, key=lambda update: update.entered):
        count += update.entered < latest
        latest = max(latest, update.left)
    return count


def longest_gap(moments: Iterable[float], begin: float, end: float) -> float:
    """Return the longest stretch (s) from `begin` to `end` without any of `moments`."""
    within = sorted(moment for moment in moments if begin <= moment <= end)
    return max(after - before for before, after in pairwise([begin, *within, end]))


def is_soon(seconds: float | None) -> bool:
    """Return whether something came in time; None stands for never."""
    return seconds is not None and seconds <= LATE_SECONDS_MAX


# One function for each act; all times are in seconds ---------------------------------------------------------------


def of_no_lock(history: History) -> list[Finding]:
    """Judge the act without a lock: the demo shows something only if the race does harm."""
    made, lost, both = len(history.updates), history.lost(), overlaps(history.updates)
    text = f"{lost:,} of {made:,} lost; {both:,} overlaps"
    return [Finding("without a lock, updates are lost, as expected", text, good=lost > 0)]


def of_lock(history: History) -> list[Finding]:
    """Judge the act with the lock, whatever was killed in it."""
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


def of_masters(ttl: float, down: float, votes: Sequence[float | None], turns: int, gap: float) -> list[Finding]:
    """Judge the death of a minority of the masters, which came back empty.

    Args:
        ttl: the lease that they may have forgotten.
        down: from the kill until the last of them answered again.
        votes: from the kill until each had its vote again; None for one that had none.
        turns: how many updates began before all of them voted again, at most `gap` apart.
        gap: the longest stretch without the begin of an update.
    """
    text = f"{turns:,} updates meanwhile, at most {gap:.2f} s apart"
    others = Finding("masters killed: the others go on", text, good=turns > 0 and is_soon(gap))
    what, had = "masters back, empty: no vote before every lease is over", [vote for vote in votes if vote is not None]
    if len(had) < len(votes):
        return [others, Finding(what, f"{len(votes) - len(had)} of {len(votes)} have no vote again", good=False)]
    first, last = min(had), max(had)
    text = f"down for {down:.2f} s, a vote {first:.2f} to {last:.2f} s after the kill; a lease is {ttl:g} s"
    return [others, Finding(what, text, good=ttl <= first and is_soon(last - down - GUARD_FACTOR_MAX * ttl))]


def of_long_hold(ttl: float, seconds: float, intruders: int, *, is_blocked: bool) -> Finding:
    """Judge a hold that lasted for longer than its lease; the holder's event loop may have stood still meanwhile."""
    what = "a blocked event loop keeps its hold" if is_blocked else "a long hold is renewed"
    stood = f"; the loop stood still for {seconds:.2f} s" if is_blocked else ""
    text = f"held for {seconds:.2f} s on a lease of {ttl:g} s; {intruders} others came in{stood}"
    return Finding(what, text, good=seconds > ttl and intruders == 0)


def of_killed_holder(lease_left: float, seconds: float | None) -> Finding:
    """Judge the death of a holder: `seconds` after a look at its lease, the next worker had the lock."""
    late = float("inf") if seconds is None else seconds - lease_left
    after = "no next holder" if seconds is None else f"next holder after {seconds:.3f} s"
    good = lease_left > 0 and late >= -EARLY_SECONDS_MAX and is_soon(late)
    text = f"lease left {lease_left:.3f} s, {after}"
    return Finding("holder killed: its lease ends, the queue goes on", text, good=good)


def of_cancelled_waiter(call: float, place: float | None, handoff: float | None) -> Finding:
    """Judge a cancelled waiter: when its call ended and its place was gone, and how soon the next one got the lock."""
    gone = "its place stayed" if place is None else f"its place was gone after {1000 * place:.1f} ms"
    text = f"its call ended after {1000 * call:.1f} ms, {gone}, {_next(handoff)}"
    return Finding("waiter cancelled: it leaves the queue", text, good=all(map(is_soon, (call, place, handoff))))


def of_killed_waiter(dead: int, handoff: float | None) -> Finding:
    """Judge the death of the first `dead` waiters: how soon after the release the next living one had the lock."""
    text = f"{dead} dead waiters at the head of the queue, {_next(handoff)}"
    return Finding("waiter killed: nobody waits for it", text, good=dead > 0 and is_soon(handoff))


def _next(handoff: float | None) -> str:
    return "no next holder" if handoff is None else f"the next holder {1000 * handoff:.1f} ms after the release"
