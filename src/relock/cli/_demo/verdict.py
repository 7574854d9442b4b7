"""The verdict of the demo: counted from what the workers told, and from the ledger. Pure functions over values."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from attrs import define, field, frozen

from relock.cli._demo.ledger import Entry

EARLY_SECONDS_MAX = 0.05  # masters count leases in whole milliseconds, and were asked at different moments
LATE_SECONDS_MAX = 2.0  # for a busy machine; a lost wake-up costs 3 s, a dead waiter that is not passed over 10 s
GUARD_FACTOR_MAX = 1.02  # a guard outlasts a lease by this factor, for clocks that run at different rates
Numbers = Mapping[str, float | None]


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


@frozen
class Finding:
    """One line of the verdict; `numbers` has the figures of `counted`, for scripts."""

    what: str
    counted: str
    good: bool
    numbers: Numbers = field(factory=dict)


def finding(what: str, text: str, good: bool, **numbers: float | None) -> Finding:
    """Return a finding whose text has the `numbers` in it."""
    return Finding(what, text.format(**numbers), good, numbers)


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


def moved(before: Sequence[str], after: Sequence[str]) -> int:
    """Return how many waiters left a queue, beside the one that had to, or changed their order."""
    stayed = [waiter for waiter in before if waiter in after]
    now = [waiter for waiter in after if waiter in stayed]
    return max(0, len(before) - len(stayed) - 1) + sum(was != is_now for was, is_now in zip(stayed, now, strict=True))


def is_soon(seconds: float | None) -> bool:
    """Return whether something came in time; None: it did not come."""
    return seconds is not None and seconds <= LATE_SECONDS_MAX


# One function for each act; all times are in seconds ---------------------------------------------------------------


def of_no_lock(history: History) -> list[Finding]:
    """Judge the act without a lock: the demo shows something only if the race does harm."""
    made, lost, both = len(history.updates), history.lost(), overlaps(history.updates)
    what, text = "without a lock, updates are lost, as expected", "{lost:,} of {made:,} lost; {overlaps:,} overlaps"
    return [finding(what, text, lost > 0, made=made, lost=lost, overlaps=both)]


def of_lock(history: History) -> list[Finding]:
    """Judge the act with the lock, whatever was killed in it."""
    made, lost, strange = len(history.updates), history.lost(), history.strange()
    both = overlaps([*history.updates, *history.unfinished])
    falling = sum(after.token <= before.token for before, after in pairwise(history.entries))
    right = sum((update.levels, update.levels_after) == (2, 1) for update in history.updates)
    some, entries = made > 0, len(history.entries)
    return [
        finding("with the lock, none is lost", "{lost:,} of {made:,} lost; {strangers:,} entries double or unknown",
                some and lost == strange == 0, made=made, lost=lost, strangers=strange),
        finding("one at a time", "{overlaps:,} overlaps in {made:,} updates", some and both == 0,
                overlaps=both, made=made),
        finding("fencing tokens rise", "in {entries:,} entries, {falling:,} fell or came twice", some and falling == 0,
                entries=entries, falling=falling),
        finding("nested holds are counted", "{right:,} of {made:,} updates counted 2 inside and 1 after",
                some and right == made, made=made, right=right),
    ]  # fmt: skip


def of_masters(ttl: float, down: float, votes: Sequence[float | None], turns: int, gap: float) -> list[Finding]:
    """Judge the death of a minority of the masters, which came back empty.

    Args:
        ttl: the lease that they may have forgotten.
        down: from the kill until the last of them answered again.
        votes: from the kill until each had its vote again; None for one that had none.
        turns: how many updates began before all of them voted again, at most `gap` apart.
        gap: see `turns`.
    """
    goes_on = turns > 0 and is_soon(gap)
    text = "{turns:,} updates meanwhile, at most {gap:.2f} s apart"
    findings = [finding("masters killed: the others go on", text, goes_on, turns=turns, gap=gap)]
    what, had = "masters back, empty: no vote before every lease is over", [vote for vote in votes if vote is not None]
    if len(had) < len(votes):
        text = f"{len(votes) - len(had)} of {len(votes)} have no vote again"
        return [*findings, Finding(what, text, good=False)]
    first, last = min(had), max(had)
    text = "down for {down:.2f} s, a vote {first_vote:.2f} to {last_vote:.2f} s after the kill; a lease is {ttl:g} s"
    in_time = ttl <= first and is_soon(last - down - GUARD_FACTOR_MAX * ttl)
    return [*findings, finding(what, text, in_time, down=down, first_vote=first, last_vote=last, ttl=ttl)]


def of_long_hold(ttl: float, seconds: float, intruders: int, loop_stood: float | None) -> list[Finding]:
    """Judge a hold that lasted for longer than its lease; `loop_stood` is None for a thread's."""
    what, text, stood = "a long hold is renewed", "", seconds
    if loop_stood is not None:
        what, stood = "a blocked event loop keeps its hold", loop_stood
        text = "; the loop stood still for {loop_stood:.2f} s"
    text = "held for {seconds:.2f} s on a lease of {ttl:g} s; {intruders} others came in" + text
    good = min(seconds, stood) > ttl and intruders == 0
    return [finding(what, text, good, seconds=seconds, ttl=ttl, intruders=intruders, loop_stood=loop_stood)]


def of_killed_holder(lease_left: float, seconds: float | None) -> list[Finding]:
    """Judge the death of a holder: `seconds` after a look at its lease, the next worker had the lock."""
    what = "holder killed: its lease ends, the queue goes on"
    if seconds is None:
        return [finding(what, "lease left {lease_left:.3f} s; no next holder", False, lease_left=lease_left)]
    late = seconds - lease_left
    good = lease_left > 0 and late >= -EARLY_SECONDS_MAX and is_soon(late)
    text = "lease left {lease_left:.3f} s, next holder after {seconds:.3f} s"
    return [finding(what, text, good, lease_left=lease_left, seconds=seconds)]


def of_cancelled_waiter(call: float, place: float | None, others: int, handoff: float | None) -> list[Finding]:
    """Judge a cancelled waiter: when its call ended and its place was gone, and how soon the next one got the lock."""
    gone = "its place stayed" if place is None else f"its place was gone after {1000 * place:.1f} ms"
    text = f"its call ended after {1000 * call:.1f} ms, {gone}, {others} others moved, {_next(handoff)}"
    good = others == 0 and is_soon(call) and is_soon(place) and is_soon(handoff)
    what = "waiter cancelled: it leaves the queue"
    return [finding(what, text, good, call=call, place=place, moved=others, handoff=handoff)]


def of_killed_waiter(dead: int, handoff: float | None) -> list[Finding]:
    """Judge the death of the first `dead` waiters: how soon after the release the next living one had the lock."""
    text = "{dead} dead waiters at the head of the queue, " + _next(handoff)
    return [finding("waiter killed: nobody waits for it", text, dead > 0 and is_soon(handoff), dead=dead,
                    handoff=handoff)]  # fmt: skip


def _next(handoff: float | None) -> str:
    return "no next holder" if handoff is None else f"the next holder {1000 * handoff:.1f} ms after the release"
