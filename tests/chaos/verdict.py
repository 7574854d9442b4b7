"""The verdict on episodes: violations, faults that struck, and the longest waits against their bounds."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from attrs import define, evolve, field

from chaos.catalogue import KINDS
from chaos.checker import Hold, Holds, by_place, check, check_kept, check_told, holds_of, is_late, without_promise
from chaos.deadlocks import deadlocks, false_alarms, lasting_rings, rings
from chaos.field import Blow, FieldPlan
from chaos.history import grants
from chaos.kinds import POLL_SECONDS
from chaos.latches import passages, wrong_passages
from chaos.permits import free_moments, too_many
from chaos.readers import beside_writers
from chaos.records import FOREVER, History, Operation, Violation
from chaos.starved import starved

SLACK_SECONDS = 2.0  # for processes that start, and for busy machines; measured stalls are added
RENEW_PART = 3  # a hold is renewed after a third of its lease
STALL_PART = 0.25  # of a lease: if the machine stands still for that long, a hold may be lost without a fault
REATTACH_SECONDS = 1.0  # until a restarted master has its replica, and with it another id: its guard begins anew
COUNTED = ("rings", "deadlock_errors", "downgrades", "passages")  # of the shapes that have them
NUMBERS = ("episodes", "acquisitions", "contended", "operations", "seconds", "late_refused", "late_harmless", *COUNTED)
MIXED = "several at once"
SUMS = ("struck", "missed", "holds", "waits", "renewals", "alone")  # the fields that add up over faults


@define
class Tally:
    """The counts of one kind of fault.

    Attributes:
        struck: how many struck a hold, a wait or a renewal in flight; only these count.
        missed: how many did not.
        holds, waits, renewals: how many of each they struck.
        alone: how many of those that struck came alone, so that they alone delayed the next grant.
        longest: the longest time to the next grant; `bound` is its bound, for several faults at once the largest.
    """

    struck: int = 0
    missed: int = 0
    holds: int = 0
    waits: int = 0
    renewals: int = 0
    alone: int = 0
    longest: float = 0.0
    bound: float = 0.0

    def add(self, other: "Tally") -> None:
        """Return the sum of both."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest, self.bound = max(self.longest, other.longest), max(self.bound, other.bound)


@define
class Finding:
    """The result of an episode, or of several together.

    Attributes:
        contended: the acquires that had to wait for another hold.
        late: the waits that were longer than they may be, in sentences.
        late_refused: writes after D that the store refused.
        late_harmless: writes after D that the store took, because no newer holder had written yet.
        rings: how many rings of workers surely stood.
        deadlock_errors: how many calls got a `DeadlockError`.
        downgrades: how often a writer became a reader.
        passages: how many waits ended because their latch was open.
        stall: the longest time for which the machine itself stood still.
        expected: the kinds of fault that had to strike, whatever chance drew.
    """

    episodes: int = 0
    acquisitions: int = 0
    contended: int = 0
    operations: int = 0
    rings: int = 0
    deadlock_errors: int = 0
    downgrades: int = 0
    passages: int = 0
    seconds: float = 0.0
    stall: float = 0.0
    violations: list[Violation] = field(factory=list)
    errors: list[str] = field(factory=list)
    late: list[str] = field(factory=list)
    late_refused: int = 0
    late_harmless: int = 0
    losses: Counter[str] = field(factory=Counter)
    faults: dict[str, Tally] = field(factory=lambda: defaultdict(Tally))
    servers: set[str] = field(factory=set)
    expected: set[str] = field(factory=set)
    kept: str | None = None

    @property
    def is_good(self) -> bool:
        """Return whether nothing was broken."""
        return not (self.violations or self.errors or self.late)

    @property
    def missing(self) -> list[str]:
        """The expected kinds of fault that struck nothing."""
        met = {name.partition(" (")[0] for name, tally in self.faults.items() if tally.struck}
        return sorted(self.expected - met)

    @property
    def struck(self) -> int:
        """Return the number of faults that struck something; of several at once, each counts."""
        return sum(tally.struck for name, tally in self.faults.items() if name != MIXED)

    def add(self, other: "Finding") -> None:
        """Return the sum of both."""
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.stall = max(self.stall, other.stall)
        self.violations += other.violations
        self.errors += other.errors
        self.late += other.late
        self.losses += other.losses
        self.servers |= other.servers
        self.expected |= other.expected
        for name, tally in other.faults.items():
            self.faults[name].add(tally)


def judge(plan: FieldPlan, history: History, blows: Sequence[Blow], stall: float, end: float) -> Finding:
    """Return the finding on one episode, whose faults were over by `end`."""
    operations = history.operations
    signals = [*check_told(history), *_kept(plan, operations, blows, stall)]
    for step in sorted(step for blow in blows for step in blow.steps):
        operations = without_promise(operations, step)
    history = evolve(history, operations=operations)
    finding = Finding(1, len(grants(operations)), operations=len(operations), stall=stall, violations=check(history))
    finding.violations += signals
    finding.violations += deadlocks(operations, blows, stall)
    finding.violations += [*lasting_rings(found := rings(operations), blows, stall), *false_alarms(operations)]
    finding.rings, finding.deadlock_errors = len(found), sum(bool(one.cycle) for one in operations)
    finding.violations += too_many(operations, plan.limit) if plan.limit else []
    finding.violations += beside_writers(operations) if plan.reads else []
    finding.violations += wrong_passages(history.latches, plan.parties, blows, stall)
    finding.downgrades = sum(one.downgrades for one in grants(operations))
    finding.passages = passages(history.latches)
    finding.late += starved(operations, blows, stall, end)
    finding.contended = _count_contended(operations)
    finding.losses = Counter(loss.reason for loss in history.losses)
    _count_late_writes(history, finding)
    _count_faults(plan, Timeline(operations, plan.ttl, end, plan.limit or 1), blows, finding)
    return finding


def _kept(plan: FieldPlan, operations: Sequence[Operation], blows: Sequence[Blow], stall: float) -> list[Violation]:
    """Return the holds that were lost without a fault that may take one away, and without a stall of the machine."""
    alone = Counter(blow.wave for blow in blows)
    if stall > plan.ttl * STALL_PART:
        return []
    calm = [blow for blow in blows if blow.calm_from is not None and blow.process and alone[blow.wave] == 1]
    return [one for blow in calm for one in check_kept(operations, blow.process or "", blow.calm_from or 0.0, blow.end)]


def _count_contended(operations: Sequence[Operation]) -> int:
    holds_by_place: dict[str, list[Hold]] = defaultdict(list)
    for hold in sorted(holds_of_all(operations).values(), key=lambda one: one.begin):
        holds_by_place[hold.grant.place].append(hold)
    return sum(
        after.grant.called < before.end and after.grant.worker != before.grant.worker
        for holds in holds_by_place.values()
        for before, after in pairwise(holds)
    )


def _count_late_writes(history: History, finding: Finding) -> None:
    holds = holds_of_all(history.operations)
    late = [write for write in history.writes if is_late(write, holds)]
    finding.late_refused = sum(not write.accepted for write in late)
    finding.late_harmless = len(late) - finding.late_refused


def holds_of_all(operations: Sequence[Operation]) -> Holds:
    """Return the holds of all locks, by the number of their grants."""
    return {number: hold for group in by_place(operations).values() for number, hold in holds_of(group).items()}


# Faults -------------------------------------------------------------------------------------------------------------


class Calls:
    """The calls on one lock, by which those of a moment are found fast."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.all = sorted(operations, key=lambda one: one.called)
        self._called = [one.called for one in self.all]
        self._ends = list(accumulate((one.returned for one in self.all), max))  # no call before this one ends later

    def under_way(self, moment: float) -> list[Operation]:
        """Return the calls that began before `moment`, and returned then or later."""
        first, last = bisect_left(self._ends, moment), bisect_left(self._called, moment)
        return [one for one in self.all[first:last] if one.returned >= moment]


class Wait(NamedTuple):
    """Seconds for which a lock was free, or was asked for, until a grant at `granted_at`, or the end."""

    seconds: float
    lock: str
    granted_at: float


class Timeline:
    """Timeline of an episode whose faults were over by `end`: it tells which calls were under way at a moment.

    Each lock, or semaphore, has up to `limit` holders at a time.
    """

    def __init__(self, operations: Sequence[Operation], ttl: float, end: float, limit: int) -> None:
        self._ttl, self._end = ttl, end
        self._by_number = holds_of_all(operations)
        self._holds = list(self._by_number.values())
        self._waits = [one for one in operations if one.kind == "acquire" and one.level == 0]
        self.locks = sorted({one.lock for one in operations})
        known = [one for one in self._waits if one.outcome != "unknown"]  # a killed worker does not wait
        self._asked = {lock: Calls(one for one in known if one.lock == lock) for lock in self.locks}
        self._grants = {lock: grants(self._asked[lock].all) for lock in self.locks}
        self._unseen = {lock: [one for one in self._asked[lock].all if one.may_hold_unseen] for lock in self.locks}
        self._times = {lock: [one.returned for one in self._grants[lock]] for lock in self.locks}
        ends = {lock: [self._by_number[one.number].end for one in self._grants[lock]] for lock in self.locks}
        self._free = {lock: free_moments(ends[lock], limit) for lock in self.locks}

    def struck(self, blow: Blow) -> Tally:
        """Count what a fault struck: holds and waits at its beginning, and renewals that were due while it lasted."""
        holds, waits = self._open_holds(blow), self._open_waits(blow)
        part = self._ttl / RENEW_PART
        renewals = sum(
            int((min(blow.end, hold.end) - hold.begin) / part) > int(max(0.0, blow.begin - hold.begin) / part)
            for hold in self._holds
            if self._is_of(blow, hold.grant) and hold.begin <= blow.end and hold.end >= blow.begin
        )
        is_aimed = bool(blow.masters) or blow.process is not None
        has_struck = is_aimed and blow.hits != 0 and bool(holds or waits or renewals)
        return Tally(int(has_struck), int(not has_struck), len(holds), len(waits), renewals)

    def _open_holds(self, blow: Blow) -> list[Hold]:
        holds = (hold for hold in self._holds if self._is_of(blow, hold.grant))
        return [hold for hold in holds if hold.begin <= blow.begin < _lease_end(hold)]

    def _open_waits(self, blow: Blow) -> list[Operation]:
        waits = (one for one in self._waits if self._is_of(blow, one))
        return [one for one in waits if one.called <= blow.begin < one.returned]

    @staticmethod
    def _is_of(blow: Blow, operation: Operation) -> bool:
        return blow.process is None or operation.worker.startswith(f"{blow.process}.")

    def locks_of(self, blow: Blow) -> list[str]:
        """Return the locks whose next grant a fault of this kind may delay.

        A fault of a holder delays the locks that it held; on the locks for which its process waited, it counts as a
        fault of a waiter.
        """
        if blow.reach != "holder":
            return self.locks
        held = {hold.grant.lock for hold in self._open_holds(blow)}
        return sorted(held - {one.lock for one in self._open_waits(blow)})

    def waits(self, locks: Iterable[str], since: float, until: float, mute: frozenset[str] = frozenset()) -> list[Wait]:
        """Return the waits for free locks, from `since` to the first grant of each after `until`.

        A lock counts as free from the moment when its holder began to release it, or when its lease was over, or when
        the holder was last seen alive; a semaphore, once that left fewer holders than its limit. It is not free while a
        call for several locks may have it already. Requests of the `mute` processes do not count, because they can take
        no lock. Such a process may keep one of several locks while it waits for the next. A call that waits for the
        kept one does not ask for a later one.
        """
        return [self._wait(lock, i, since, mute) for lock in locks for i in self._within(lock, since, until)]

    def _within(self, lock: str, since: float, until: float) -> range:
        """Return the indices of the grants to look at; the one after the last stands for a grant that never came."""
        times = self._times[lock]
        return range(bisect_right(times, since), min(bisect_right(times, until), len(times)) + 1)

    def _wait(self, lock: str, place: int, since: float, mute: frozenset[str]) -> Wait:
        grants_ = self._grants[lock]
        granted = grants_[place].returned if place < len(grants_) else self._end
        asking = self._asked[lock].under_way(granted)
        asking = [one for one in asking if one.worker.partition(".")[0] not in mute]
        asked = [one.called for one in asking if not (mute and one.may_ask_for_another)]
        if not asked:
            return Wait(0.0, lock, granted)
        unseen = (min(one.returned, granted) for one in self._unseen[lock] if one.called < granted)
        free = max([self._free[lock][place], *unseen])
        return Wait(max(0.0, granted - max(since, min(asked), free)), lock, granted)


def _lease_end(hold: Hold) -> float:
    """Return when a hold was over, even if its worker was killed."""
    return hold.end if hold.grant.killed == FOREVER else hold.grant.until


def _count_faults(plan: FieldPlan, timeline: Timeline, blows: Sequence[Blow], finding: Finding) -> None:
    waves: dict[int, list[Blow]] = defaultdict(list)
    for blow in blows:
        waves[blow.wave].append(blow)
    for number, wave in waves.items():
        tallies = [timeline.struck(blow) for blow in wave]
        for blow, tally in zip(wave, tallies, strict=True):
            tally.bound = _bound(plan, blow)[0]
            finding.faults[_name(plan, blow)].add(tally)
        if any(tally.struck for tally in tallies):
            later = [blow for blow in blows if blow.wave > number]
            _count_waits(plan, timeline, wave, later, finding)


def _count_waits(
    plan: FieldPlan, timeline: Timeline, wave: Sequence[Blow], later: Sequence[Blow], finding: Finding
) -> None:
    """Set the time to the next grant against its bound; several faults at once may take all their bounds together.

    A fault of a later wave is one of several, too, if it came before that grant and within the bound.
    """
    bounds, anchors = zip(*(_bound(plan, blow) for blow in wave), strict=True)
    since = anchors[0] if len(wave) == 1 else max(blow.end for blow in wave)
    locks = timeline.locks_of(wave[0]) if len(wave) == 1 else timeline.locks
    mute = frozenset(blow.process for blow in wave if blow.process and KINDS[blow.kind].mutes)
    for wait in timeline.waits(locks, since, max(since, *(blow.end for blow in wave)), mute):
        together, bound = [*wave], sum(bounds)
        for blow in later:
            if blow.begin < min(wait.granted_at, wait.granted_at - wait.seconds + bound):
                together.append(blow)
                bound += _bound(plan, blow)[0]
        name = _name(plan, wave[0]) if len(together) == 1 else MIXED
        finding.faults[name].add(Tally(longest=wait.seconds, bound=bound))
        if wait.seconds > bound + SLACK_SECONDS + 2 * finding.stall:
            what = " + ".join(f"{blow.kind} ({blow.reach})" for blow in together)
            finding.late.append(
                f"{wait.seconds:.2f} s to the next grant of {wait.lock} after {what} at {since:.6f}, "
                f"and {bound:.2f} s are allowed"
            )
    name = _name(plan, wave[0]) if len(wave) == 1 else MIXED
    finding.faults[name].add(Tally(struck=int(len(wave) > 1), alone=int(len(wave) == 1)))


def _name(plan: FieldPlan, blow: Blow) -> str:
    return blow.kind + (f" ({blow.reach})" if plan.masters > 1 and blow.masters else "")


def _bound(plan: FieldPlan, blow: Blow) -> tuple[float, float]:
    """Return the seconds within which the next grant must come, and the moment from which they count."""
    kind = KINDS[blow.kind]
    if blow.reach == "minority":
        return POLL_SECONDS, blow.begin
    bound = kind.bound(plan.ttl, plan.guard)
    if plan.has_replicas and kind.forgets and not kind.needs_replicas:
        bound += REATTACH_SECONDS + 1.02 * plan.guard
    begin = blow.begin if blow.since is None else blow.since
    return bound, begin if kind.anchor == "begin" else blow.end


def summary(findings: Iterable[tuple[str, Finding]]) -> str:
    """Return the verdict as text."""
    return "\n".join(f"{name}: {_line(finding)}" for name, finding in findings)


def _line(finding: Finding) -> str:
    verdict = "good" if finding.is_good else "BAD"
    return (
        f"{verdict}; {finding.acquisitions:,} acquisitions in {finding.seconds:.0f} s, {finding.struck} faults struck, "
        f"{len(finding.violations)} violations, {len(finding.late)} waits too long, {len(finding.errors)} errors, "
        f"{finding.late_refused} late writes refused ({finding.late_harmless} with nobody newer), "
        f"longest stall {finding.stall:.2f} s{_counted(finding)}{_missing(finding)}"
    )


def _counted(finding: Finding) -> str:
    return "".join(
        f", {getattr(finding, name):,} {name.replace('_', ' ')}" for name in COUNTED if getattr(finding, name)
    )


def _missing(finding: Finding) -> str:
    return f", never struck: {', '.join(finding.missing)}" if finding.missing else ""
