"""Check whether a history is that of a reentrant fenced mutex. Pure functions over values.

Each slot of a semaphore is judged as a mutex of its own. `chaos.permits` counts the permits. Of a read-write lock the
writers are judged so, and `chaos.readers` judges the readers beside them.

`check_intervals` sweeps over the beliefs of the holders: no two at a time, and tokens rise. `check_model` looks for an
order of all calls, each at a moment between its call and its return, that a reentrant fenced mutex could have gone
through: the search of Wing and Gong with the cache of Lowe, as in Knossos and Porcupine. `check_store`, `check_counter`
and `check_markers` judge the protected resource.

A hold whose release no worker saw may end at its deadline or later, and never before. A call whose outcome is unknown
may have had its effect or not. `check_model` leaves such an acquire out, because whatever may follow it may also follow
without it. After a release with an unknown outcome, or one that found the hold lost, the hold may end from its call on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from attrs import evolve, frozen

from chaos.records import FOREVER, History, Operation, Update, Violation, Write


@frozen
class Hold:
    """A hold as its holder saw it.

    Attributes:
        grant: the outermost acquire.
        end: when its holder began to release it, or believed in it no more, or was last seen alive.
        may_end: from this moment on another worker may get the lock, though no release has returned.
    """

    grant: Operation
    end: float
    may_end: float

    @property
    def begin(self) -> float:
        """Return the time at which the holder knew of the hold; of a downgrade, from when it had one of the sides."""
        return self.grant.called if self.grant.downgrades else self.grant.returned

    @property
    def is_empty(self) -> bool:
        """Return whether the hold was over before the holder knew of it."""
        return self.end <= self.begin

    def __str__(self) -> str:
        grant = self.grant
        return f"{grant.worker} (acquire #{grant.number}, token {grant.token}, {self.begin:.6f} to {self.end:.6f})"


Holds = dict[int, Hold]  # by the number of their grants


def check(history: History) -> list[Violation]:
    """Return every violation that the checks find; the search for an order names the first of each lock."""
    by_lock = by_place(one for one in history.operations if not one.reads)
    holds = {number: hold for operations in by_lock.values() for number, hold in holds_of(operations).items()}
    violations = []
    for operations in by_lock.values():
        violations += check_intervals(operations)
        violations += check_model(operations)
    for _, writes in sorted(_by_lock(history.writes).items()):
        violations += check_store(writes, holds)
    for _, updates in sorted(_by_lock(history.updates).items()):
        violations += check_counter(updates, holds)
    return violations + check_markers(history, holds)


_Record = TypeVar("_Record", Write, Update)


def by_place(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Return the calls on each lock, and on each slot of each semaphore."""
    groups: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        groups[operation.place].append(operation)
    return groups


def _by_lock(records: Iterable[_Record]) -> dict[str, list[_Record]]:
    groups: dict[str, list[_Record]] = defaultdict(list)
    for record in records:
        groups[record.lock].append(record)
    return groups


# Holds --------------------------------------------------------------------------------------------------------------


def holds_of(operations: Iterable[Operation]) -> Holds:
    """Return the holds of one lock."""
    holds: Holds = {}
    current: dict[tuple[str, bool], Operation] = {}  # of a worker, as a writer and as a reader
    for operation in sorted(operations, key=lambda one: one.called):
        key = operation.worker, operation.reads
        if operation.is_grant:
            current[key] = operation
            holds[operation.number] = _hold(operation, None)
        elif operation.kind == "release" and operation.level == 1 and key in current:
            grant = current.pop(key)
            holds[grant.number] = _hold(grant, operation)
    return holds


def _hold(grant: Operation, release: Operation | None) -> Hold:
    released = FOREVER if release is None else release.called
    is_known = release is not None and release.outcome == "ok"
    return Hold(
        grant,
        end=min(released, grant.until, grant.killed),
        may_end=min(grant.until, FOREVER if is_known else released),
    )


def without_promise(operations: Sequence[Operation], moment: float) -> list[Operation]:
    """Return the history to be judged if the promise for all holds ended at `moment`, when a clock stepped.

    A hold that was open then ends then; later acts of its worker are left out.
    """
    judged: list[Operation] = []
    void: set[tuple[str, str, bool]] = set()
    for operation in sorted(operations, key=lambda one: one.called):
        key = operation.worker, operation.lock, operation.reads
        if operation.kind == "acquire" and operation.level == 0:
            void.discard(key)
            if operation.is_grant and operation.called <= moment:
                void.add(key)
                operation = evolve(operation, until=min(operation.until, moment))  # noqa: PLW2901
        elif key in void and operation.returned > moment:
            operation = evolve(operation, outcome="failed" if operation.kind == "acquire" else "unknown")  # noqa: PLW2901
        judged.append(operation)
    return judged


# Losses -------------------------------------------------------------------------------------------------------------


def _lost(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Yield the grants whose release found the hold lost, with that release."""
    current: dict[tuple[str, str, bool], Operation] = {}
    for operation in sorted(operations, key=lambda one: one.called):
        key = operation.worker, operation.lock, operation.reads
        if operation.is_grant:
            current[key] = operation
        elif operation.kind == "release" and operation.level == 1 and key in current:
            grant = current.pop(key)
            if operation.outcome == "failed":
                yield grant, operation


def check_told(history: History) -> list[Violation]:
    """Check that each process was told of each loss once. A process that was killed may not have been told."""
    times = Counter((loss.process, loss.lock, loss.token) for loss in history.losses)
    violations = [
        Violation("told", lock, 0.0, f"{process} was told {count} times that its hold of {lock!r} is lost ({token})")
        for (process, lock, token), count in times.items()
        if count > 1
    ]
    for grant, release in _lost(history.operations):
        process = grant.worker.partition(".")[0]
        if process in history.ended and not times[process, grant.lock, grant.token]:
            sentence = f"{process} was never told that what it got by {grant} was lost"
            violations.append(Violation("told", grant.lock, release.returned, sentence))
    return violations


def check_kept(operations: Iterable[Operation], process: str, since: float, until: float) -> list[Violation]:
    """Check that a process lost no hold that began and was over in a time in which no fault takes holds away.

    The moment of its release does not count, because a fault may keep the thread from releasing.
    """
    return [
        Violation("kept", grant.lock, release.returned, f"what was got by {grant} was lost, though nothing struck it")
        for grant, release in _lost(operations)
        if grant.worker.startswith(f"{process}.") and grant.called >= since and grant.until <= until
    ]


# Intervals ----------------------------------------------------------------------------------------------------------


def check_intervals(operations: Iterable[Operation]) -> list[Violation]:
    """Check what holders of one lock believed: no two at a time, and tokens rise from one to the next."""
    holds = sorted((hold for hold in holds_of(operations).values() if not hold.is_empty), key=lambda hold: hold.begin)
    return [*_overlaps(holds), *_tokens(holds)]


def _overlaps(holds: Sequence[Hold]) -> Iterator[Violation]:
    latest: Hold | None = None
    for hold in holds:
        if latest is not None and hold.begin < latest.end:
            sentence = f"two holders of {hold.grant.place!r} at {hold.begin:.6f}: {latest} and {hold}"
            yield Violation("intervals", hold.grant.lock, hold.begin, sentence)
        if latest is None or hold.end > latest.end:
            latest = hold


def _tokens(holds: Sequence[Hold]) -> Iterator[Violation]:
    for before, after in pairwise(holds):
        if after.grant.token <= before.grant.token:
            how = "the same token as" if after.grant.token == before.grant.token else "a smaller token than"
            sentence = f"{after} got {how} the holder of {after.grant.place!r} before it, {before}"
            yield Violation("tokens", after.grant.lock, after.begin, sentence)


# Model --------------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The mutex: which grant holds it (an index of the history, or -1), its levels, and how many grants there were.

    Tokens must rise. So grants have one possible order, and their number stands for the highest token.
    """

    grant: int
    levels: int
    grants: int


class Node(NamedTuple):
    """A place in the search: all calls before `frontier` have had their effect, except for the skipped ones."""

    skipped: tuple[int, ...]
    frontier: int
    state: State


HELD = "but {holder} held the lock"
SAME_TOKEN = "with token {token}, which {other} had got before"
SMALLER_LATER = "with token {token}, but {other} later got the smaller token {other_token}"
NOT_ONE = "and has {count} levels, not {expected}"
NOT_HELD = "but it did not hold the lock: {holder}"
OTHER_TOKEN = "with token {token}, but its hold has {other_token}: {holder}"
REFUSED_ITS_OWN = "and was refused a lock that it held itself: {holder}"


def check_model(operations: Iterable[Operation]) -> list[Violation]:
    """Check that the model allows some order of the calls on one lock; find one violation at most."""
    blocked = Search(operations).run()
    return [] if blocked is None else [blocked]


class Search:
    """Search for an order of the calls on one lock."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        operations = list(operations)
        known = (one for one in operations if one.outcome in ("ok", "refused"))
        self._operations = sorted(known, key=lambda one: one.called)
        self._holds = holds_of(operations)
        self._by_token = sorted((one for one in self._operations if one.is_grant), key=lambda one: one.token)
        self._deepest = Node((), 0, State(-1, 0, 0))

    def run(self) -> Violation | None:
        """Return the violation, or None if there is an order."""
        stack = [self._deepest]
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node.frontier == len(self._operations) and not node.skipped:
                return None
            if node.frontier - len(node.skipped) > self._deepest.frontier - len(self._deepest.skipped):
                self._deepest = node
            for successor in self._successors(node):
                if successor not in seen:
                    seen.add(successor)
                    stack.append(successor)
        return self._explain()

    def _successors(self, node: Node) -> list[Node]:
        """Return the next nodes of the search, the most promising last. A call that changes nothing comes at once."""
        candidates, moment = self._candidates(node)
        found: list[tuple[int, Node]] = []
        for index in candidates:
            if self._objection(node.state, index, moment) is None:
                if self._operations[index].outcome == "refused":
                    return [_after(node, index, node.state)]
                found.append((self._rank(node.state, index), _after(node, index, self._step(node.state, index))))
        return [successor for _, successor in sorted(found, reverse=True)]

    def _candidates(self, node: Node) -> tuple[list[int], float]:
        """Return the calls that began before any remaining call returned, and the moment of that return."""
        moment = min((self._operations[index].returned for index in node.skipped), default=FOREVER)
        candidates, index = list(node.skipped), node.frontier
        while index < len(self._operations) and self._operations[index].called <= moment:
            candidates.append(index)
            moment = min(moment, self._operations[index].returned)
            index += 1
        return candidates, moment

    def _rank(self, state: State, index: int) -> int:
        """Put the calls of the holder before those that take the lock from it."""
        return int(self._operations[index].is_grant) + int(self._operations[index].is_grant and state.grant >= 0)

    def _step(self, state: State, index: int) -> State:
        operation = self._operations[index]
        if operation.is_grant:
            return State(index, 1, state.grants + 1)
        if operation.kind == "acquire":
            return state._replace(levels=state.levels + 1)
        return State(state.grant if state.levels > 1 else -1, state.levels - 1, state.grants)

    def _objection(self, state: State, index: int, moment: float) -> str | None:
        """Return why the model refuses this call now, with the lock free again if that is possible by `moment`."""
        operation = self._operations[index]
        holder = self._operations[state.grant] if state.grant >= 0 else None
        if operation.is_grant:
            return self._objection_to_grant(state, operation, holder, moment)
        is_holder = holder is not None and holder.worker == operation.worker
        if operation.outcome == "refused":
            return REFUSED_ITS_OWN if is_holder and operation.level > 0 else None
        if not is_holder:
            return NOT_HELD
        if operation.kind == "acquire" and holder is not None and operation.token != holder.token:
            return OTHER_TOKEN
        expected = state.levels + (1 if operation.kind == "acquire" else -1)
        return NOT_ONE if operation.count not in (expected, None) else None

    def _objection_to_grant(
        self, state: State, operation: Operation, holder: Operation | None, moment: float
    ) -> str | None:
        if holder is not None and self._holds[holder.number].may_end > moment:
            return HELD
        if state.grants > 0 and operation.token == self._by_token[state.grants - 1].token:
            return SAME_TOKEN
        if operation.token != self._by_token[state.grants].token:
            return SMALLER_LATER
        return NOT_ONE if operation.count not in (1, None) else None

    def _explain(self) -> Violation:
        """Name the call that must come next and may not, at the point where the search came furthest."""
        node = self._deepest
        candidates, moment = self._candidates(node)
        index = min(candidates, key=lambda one: self._operations[one].returned)
        operation, state = self._operations[index], node.state
        objection = self._objection(state, index, moment) or "but then the calls after it are impossible"
        holder = self._holds[self._operations[state.grant].number] if state.grant >= 0 else "nobody had it"
        other = self._other(state, objection)
        reason = objection.format(
            holder=holder,
            token=operation.token,
            other=other,
            other_token=self._operations[state.grant].token if objection == OTHER_TOKEN else other and other.token,
            count=operation.count,
            expected=state.levels + 1 if operation.kind == "acquire" else state.levels - 1,
        )
        verb = "was granted" if operation.kind == "acquire" and operation.outcome == "ok" else "returned"
        return Violation("model", operation.lock, operation.returned, f"{operation} {verb}, {reason}")

    def _other(self, state: State, objection: str) -> Operation | None:
        if objection == SAME_TOKEN:
            return self._by_token[state.grants - 1]
        return self._by_token[state.grants] if state.grants < len(self._by_token) else None


def _after(node: Node, index: int, state: State) -> Node:
    """Return the node that follows when the call at `index` has its effect."""
    if index < node.frontier:
        return Node(tuple(one for one in node.skipped if one != index), node.frontier, state)
    return Node((*node.skipped, *range(node.frontier, index)), index + 1, state)


# The protected resource ---------------------------------------------------------------------------------------------


def check_store(writes: Iterable[Write], holds: Holds) -> list[Violation]:
    """Check that the fenced store refused old tokens, and no holder of the lock."""
    violations: list[Violation] = []
    latest: Write | None = None

    def report(write: Write, sentence: str) -> None:
        violations.append(Violation("store", write.lock, write.returned, sentence))

    for write in sorted(writes, key=lambda one: one.order):
        hold = holds[write.grant]
        if write.accepted:
            if latest is not None and (write.token < latest.token or _is_before(hold, holds[latest.grant])):
                report(write, f"the store took a stale write of {hold} after one of {holds[latest.grant]}")
            if latest is None or not hold.is_empty:
                latest = write
        elif write.returned <= hold.end:
            newer = "nobody" if latest is None else str(holds[latest.grant])
            report(write, f"the store refused a write of {hold}, who held {write.lock!r}, because of {newer}")
    return violations


def _is_before(hold: Hold, other: Hold) -> bool:
    return not hold.is_empty and not other.is_empty and hold.begin < other.begin


def is_late(write: Write, holds: Holds) -> bool:
    """Return whether a write began after its hold was over."""
    return write.called > holds[write.grant].grant.until


def check_counter(updates: Iterable[Update], holds: Holds) -> list[Violation]:
    """Check that no update of a holder was lost, unless to a write after the end of a hold, or of a killed worker."""
    violations = []
    in_time: Update | None = None
    strays: list[Update] = []
    for update in sorted(updates, key=lambda one: one.called):
        hold = holds[update.grant]
        if update.returned > hold.end:
            strays.append(update)
            continue
        possible = {0 if in_time is None else in_time.written}
        possible |= {stray.written for stray in strays if stray.called <= update.read_at}
        if update.read not in possible:
            before = (
                "nobody had written" if in_time is None else f"{holds[in_time.grant]} had written {in_time.written}"
            )
            sentence = f"{hold} read {update.read} from the counter of {update.lock!r}, but {before}: an update is lost"
            violations.append(Violation("counter", update.lock, update.read_at, sentence))
        in_time, strays = update, [stray for stray in strays if stray.returned > update.called]
    return violations


def check_markers(history: History, holds: Holds) -> list[Violation]:
    """Check that no holder found the marker of another one that held the lock as well."""
    violations = []
    for collision in history.collisions:
        hold, other = holds[collision.grant], holds.get(collision.other)
        if other is None or other.begin > collision.called:
            continue
        if collision.returned <= min(hold.end, other.end):
            sentence = f"{hold} found the marker of {other} in the place of its own"
            violations.append(Violation("marker", collision.lock, collision.returned, sentence))
    return violations
