"""What the workers told, and the verdict on it: counted, not assumed. Pure functions over values."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from attrs import define, field, frozen

from relock.cli._demo.ledger import Entry

# The first waiter looks when the lease has ended; the rest is for a machine that is busy with something else.
LATE_SECONDS_MAX = 1.0
# Redis counts a lease in whole milliseconds.
EARLY_SECONDS_MAX = 0.005
HANDOVER_SECONDS_MAX = 1.0
SECONDS_MAX = 20.0
SECONDS_MAX_OF_SEVERAL = 25.0  # masters, whose first votes have to be waited for
SECONDS_MORE_OF_TASKS = 3.0  # for one act more
GUARD_FACTOR_MAX = 1.02  # by how much longer than a lease a guard may be, for clocks that run at different rates


@frozen
class Update:
    """One update of the ledger; times of CLOCK_MONOTONIC, in seconds, which all processes share.

    Attributes:
        worker: ``process.number``.
        serial: which of the worker's updates.
        token: the fencing token of the hold; 0 without a lock.
        levels: the hold count inside the nested hold, and `levels_after` the one after that.
        entered: when the worker had the lock, and `left` when it was about to give it back.
    """

    worker: str
    token: int
    entered: float
    serial: int = 0
    levels: int = 0
    levels_after: int = 0
    left: float = float("inf")


@define
class History:
    """All that happened in one act: what was told of, what is in the ledger, and what was broken off by a SIGKILL."""

    updates: list[Update] = field(factory=list)
    entries: Sequence[Entry] = ()
    killed: set[str] = field(factory=set)
    unfinished: list[Update] = field(factory=list)


@frozen
class Cancelled:
    """A task that was cancelled while it waited: the moments of that, and of the end of its call."""

    worker: str
    at: float
    ended: float


@frozen
class Kept:
    """A hold that lasted longer than its lease; how many others came in meanwhile.

    Attributes:
        loop_stood: the seconds for which the event loop of the holder stood still by the end; None for a thread.
    """

    ttl: float
    seconds: float
    intruders: int
    loop_stood: float | None = None


@frozen
class HolderKilled:
    """The seconds that the lease had left when the holder had ended, and those until somebody else had the lock."""

    lease_left: float
    seconds: float | None


@frozen
class WaiterCancelled:
    """What became of a cancelled waiter's call and place; times in seconds.

    Attributes:
        call: from the cancellation until its call had ended.
        place: until a look found its place in the queue gone; None if none did.
        moved: how many of the others were no longer there by then, or in another order.
        handoff: from the next release to the next holder; None if there was none.
    """

    call: float
    place: float | None
    moved: int
    handoff: float | None


@frozen
class WaiterKilled:
    """How many dead waiters stood at the head of the queue, and the seconds from the release to the next holder."""

    dead: int
    seconds: float | None


@frozen
class MastersKilled:
    """A minority of the masters that was killed and came back empty; times in seconds.

    Attributes:
        killed: how many, and `masters` of how many.
        ttl: the lease that they may have forgotten.
        down: from the kill until the last of them answered again.
        votes: from the kill until each had a vote again.
        turns: how many began before all of them voted again.
        gap: the longest stretch of that time in which none began.
    """

    killed: int
    masters: int
    ttl: float
    down: float
    votes: Sequence[float]
    turns: int
    gap: float


@define
class Record:
    """All that the verdict rests on; None for what did not come about.

    Attributes:
        kills_masters: whether the act `masters` is part of the run.
        is_asyncio: whether the workers are tasks: then `cancelled` is part of it, and a long hold blocks its loop.
        seconds_max: how long the demo may take.
    """

    without: History | None = None
    under: History | None = None
    kept: Kept | None = None
    holder: HolderKilled | None = None
    cancelled: WaiterCancelled | None = None
    waiter: WaiterKilled | None = None
    masters: MastersKilled | None = None
    kills_masters: bool = False
    is_asyncio: bool = False
    seconds_max: float = SECONDS_MAX
    failures: list[str] = field(factory=list)
    seconds: float = 0.0


@frozen
class Finding:
    """One line of the verdict; `numbers` are what `counted` says, for scripts."""

    what: str
    counted: str
    good: bool
    numbers: Mapping[str, float | None] = field(factory=dict)


def lost_updates(history: History) -> int:
    """How many updates that were told of are not in the ledger."""
    written = {(entry.worker, entry.serial) for entry in history.entries}
    return sum((update.worker, update.serial) not in written for update in history.updates)


def untold(history: History) -> list[Entry]:
    """The entries that nobody told of: of workers that were killed before they could, or something is wrong."""
    told = {(update.worker, update.serial) for update in history.updates}
    return [entry for entry in history.entries if (entry.worker, entry.serial) not in told]


def strangers(history: History) -> int:
    """How many entries are in the ledger twice, or were told of by nobody, killed processes aside."""
    keys = {(entry.worker, entry.serial) for entry in history.entries}
    living = sum(entry.worker.partition(".")[0] not in history.killed for entry in untold(history))
    return len(history.entries) - len(keys) + living


def overlaps(updates: Iterable[Update]) -> int:
    """How many updates began before one that had begun earlier was over."""
    latest, count = float("-inf"), 0
    for update in sorted(updates, key=lambda update: update.entered):
        count += update.entered < latest
        latest = max(latest, update.left)
    return count


def falling_tokens(entries: Sequence[Entry]) -> int:
    """How many entries have a token that is not above the one before."""
    return sum(after.token <= before.token for before, after in pairwise(entries))


def verdict(record: Record) -> list[Finding]:
    """The findings on a whole demo."""
    findings = [_without(record.without), *_under(record.under)]
    if record.kills_masters:
        findings += _masters(record.masters)
    findings += [_kept(record.kept, of_task=record.is_asyncio), _holder(record.holder)]
    if record.is_asyncio:
        findings.append(_cancelled(record.cancelled))
    findings.append(_waiter(record.waiter))
    if record.failures:
        findings.append(Finding("no worker failed", "; ".join(record.failures), good=False))
    in_time = record.seconds < record.seconds_max
    counted = f"{record.seconds:.1f} s of {record.seconds_max:.0f} s"
    return [*findings, Finding("done in time", counted, in_time, {"seconds": record.seconds})]


def _missing(what: str) -> Finding:
    return Finding(what, "it did not come to that", good=False)


def _without(history: History | None) -> Finding:
    """The show means something only if the race does harm."""
    what = "without a lock, updates are lost, as expected"
    if history is None:
        return _missing(what)
    made, lost, both = len(history.updates), lost_updates(history), overlaps(history.updates)
    numbers = {"made": made, "lost": lost, "overlaps": both}
    return Finding(what, f"{lost:,} of {made:,} lost; {both:,} overlaps", lost > 0, numbers)


def _under(history: History | None) -> list[Finding]:
    whats = ("with the lock, none is lost", "one at a time", "fencing tokens rise", "nested holds are counted")
    if history is None:
        return [_missing(what) for what in whats]
    made, lost, strange = len(history.updates), lost_updates(history), strangers(history)
    broken_off = len(untold(history))
    both = overlaps([*history.updates, *history.unfinished])
    falling = falling_tokens(history.entries)
    wrong = sum((update.levels, update.levels_after) != (2, 1) for update in history.updates)
    some = made > 0
    text = f"{lost:,} of {made:,} lost; {strange} entries that are double or unknown"
    if broken_off:
        text += f"; {broken_off} written by a process that was killed before it could tell"
    return [
        Finding(whats[0], text, some and lost == strange == 0,
                {"made": made, "lost": lost, "strangers": strange, "untold": broken_off}),
        Finding(whats[1], f"{both:,} overlaps in {made:,} turns", some and both == 0, {"overlaps": both}),
        Finding(whats[2], f"in {len(history.entries):,} entries, {falling:,} fell or came twice",
                some and falling == 0, {"falling": falling}),
        Finding(whats[3], f"{made - wrong:,} of {made:,} turns counted 2 inside and 1 after",
                some and wrong == 0, {"wrong": wrong}),
    ]  # fmt: skip


def longest_gap(moments: Iterable[float], begin: float, end: float) -> float:
    """The longest stretch (s) from `begin` to `end` in which none of `moments` lies."""
    within = sorted(moment for moment in moments if begin <= moment <= end)
    return max(after - before for before, after in pairwise([begin, *within, end]))


def _masters(killed: MastersKilled | None) -> list[Finding]:
    """That the others go on, and that those which forgot everything decide nothing before all of it is over."""
    whats = ("masters killed: the others go on", "masters back, empty: no vote before every lease is over")
    if killed is None:
        return [_missing(what) for what in whats]
    text = (
        f"{killed.turns:,} turns without {killed.killed} of {killed.masters} masters, at most {killed.gap:.2f} s apart"
    )
    goes_on = killed.turns > 0 and killed.gap <= HANDOVER_SECONDS_MAX
    findings = [Finding(whats[0], text, goes_on, {"turns": killed.turns, "gap": killed.gap})]
    if len(killed.votes) < killed.killed:
        text = f"{killed.killed - len(killed.votes)} of {killed.killed} have had no vote again"
        return [*findings, Finding(whats[1], text, good=False)]
    first, last = min(killed.votes), max(killed.votes)
    text = (
        f"down for {killed.down:.2f} s, a vote {first:.2f} to {last:.2f} s after the kill; a lease is {killed.ttl:g} s"
    )
    in_time = killed.ttl <= first and last <= killed.down + GUARD_FACTOR_MAX * killed.ttl + LATE_SECONDS_MAX
    numbers = {"down": killed.down, "first_vote": first, "last_vote": last, "ttl": killed.ttl}
    return [*findings, Finding(whats[1], text, in_time, numbers)]


def _kept(kept: Kept | None, *, of_task: bool) -> Finding:
    what = "a blocked event loop keeps its hold" if of_task else "a long hold is renewed"
    if kept is None:
        return _missing(what)
    text = f"held for {kept.seconds:.2f} s on a lease of {kept.ttl:g} s; {kept.intruders} others came in"
    numbers: dict[str, float | None] = {"seconds": kept.seconds, "ttl": kept.ttl, "intruders": kept.intruders}
    stood = kept.seconds
    if of_task:
        stood = kept.loop_stood or 0.0
        text += f"; the loop stood still for {stood:.2f} s"
        numbers["loop_stood"] = kept.loop_stood
    return Finding(what, text, min(kept.seconds, stood) > kept.ttl and kept.intruders == 0, numbers)


def _holder(killed: HolderKilled | None) -> Finding:
    what = "holder killed: its lease ends, the queue goes on"
    if killed is None:
        return _missing(what)
    numbers = {"lease_left": killed.lease_left, "seconds": killed.seconds}
    if killed.seconds is None:
        return Finding(
            what, f"{killed.lease_left:.2f} s of the lease left; no next holder", good=False, numbers=numbers
        )
    late = killed.seconds - killed.lease_left
    text = f"lease left {killed.lease_left:.3f} s, next holder after {killed.seconds:.3f} s"
    return Finding(what, text, killed.lease_left > 0 and -EARLY_SECONDS_MAX <= late <= LATE_SECONDS_MAX, numbers)


def moved(before: Sequence[str], after: Sequence[str]) -> int:
    """How many waiters left a queue beside the one that had to, or changed their order."""
    stayed = [waiter for waiter in before if waiter in after]
    now = [waiter for waiter in after if waiter in stayed]
    return max(0, len(before) - len(stayed) - 1) + sum(was != is_now for was, is_now in zip(stayed, now, strict=True))


def _cancelled(cancelled: WaiterCancelled | None) -> Finding:
    what = "waiter cancelled: it leaves the queue"
    if cancelled is None:
        return _missing(what)
    place, handoff = cancelled.place, cancelled.handoff
    numbers = {"call": cancelled.call, "place": place, "moved": cancelled.moved, "handoff": handoff}
    texts = [
        f"call ended after {1000 * cancelled.call:.1f} ms",
        "place stayed" if place is None else f"place gone after {1000 * place:.1f} ms",
        *([f"{cancelled.moved} others moved"] if cancelled.moved else []),
        "no next holder" if handoff is None else f"next holder {1000 * handoff:.1f} ms after the release",
    ]
    in_time = all(
        seconds is not None and seconds <= HANDOVER_SECONDS_MAX for seconds in (cancelled.call, place, handoff)
    )
    return Finding(what, ", ".join(texts), in_time and cancelled.moved == 0, numbers)


def _waiter(killed: WaiterKilled | None) -> Finding:
    what = "waiter killed: nobody waits for it"
    if killed is None:
        return _missing(what)
    numbers = {"dead": killed.dead, "seconds": killed.seconds}
    if killed.seconds is None:
        return Finding(
            what, f"{killed.dead} dead waiters at the head of the queue; no next holder", good=False, numbers=numbers
        )
    text = (
        f"{killed.dead} dead waiters at the head of the queue, "
        f"next holder {1000 * killed.seconds:.1f} ms after the release"
    )
    return Finding(what, text, killed.dead > 0 and killed.seconds <= HANDOVER_SECONDS_MAX, numbers)
