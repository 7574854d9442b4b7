"""Detection of deadlocks, and of what relock's own search for them must not do.

A call for several locks must not wait while no worker at all gets one of them. A ring of workers, each of which has a
lock and waits for that of the next one, must not stay. And no worker may get a `DeadlockError` without a ring.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from attrs import frozen

from chaos.checker import Hold, by_place, holds_of
from chaos.field import Blow
from chaos.history import grants
from chaos.records import FOREVER, Operation, Violation

RING_SECONDS = 20.0  # beyond the time of faults: twice as long as relock takes to end a ring of several clients
STANDSTILL_SECONDS = 25.0  # beyond the time of faults: longer than two faults, one after the other, delay a grant


def deadlocks(operations: Sequence[Operation], blows: Sequence[Blow], stall: float) -> list[Violation]:
    """Return the calls that waited in a deadlock, each once."""
    return list(_deadlocks(operations, blows, STANDSTILL_SECONDS + 2 * stall))


def _deadlocks(operations: Sequence[Operation], blows: Sequence[Blow], longest: float) -> Iterator[Violation]:
    granted: dict[str, list[float]] = defaultdict(list)
    for grant in grants(operations):
        granted[grant.lock].append(grant.returned)
    for one in operations:
        if not one.others or one.lock > min(one.others) or one.returned == FOREVER:  # killed, or told of already
            continue
        names = [one.lock, *one.others]
        within = [at for name in names for at in granted[name] if one.called < at < one.returned]
        for since, until in pairwise([one.called, *sorted(within), one.returned]):
            stood = until - since - struck_seconds(blows, since, until)
            if stood > longest:
                sentence = f"{one} stood still for {stood:.2f} s, and nobody got any of {', '.join(sorted(names))}"
                yield Violation("deadlock", one.lock, until, sentence)
                break


def struck_seconds(blows: Sequence[Blow], since: float, until: float) -> float:
    """Return the seconds of a time in which faults struck, of any process or master."""
    return sum(max(0.0, min(blow.end, until) - max(blow.begin, since)) for blow in blows)


# Rings --------------------------------------------------------------------------------------------------------------


@frozen
class Ring:
    """A ring that surely stood: each worker waits for the lock that the next one believes in.

    Attributes:
        waits: the calls that wait; the first is the last that began.
        end: when the first wait returned, or the first hold was over.
    """

    waits: Sequence[Operation]
    end: float

    @property
    def begin(self) -> float:
        """Return when the last of the waits began."""
        return self.waits[0].called


def rings(operations: Sequence[Operation]) -> list[Ring]:
    """Return the rings that surely stood, each once."""
    groups = by_place(one for one in operations if not one.reads)
    holds = {lock: [hold for hold in holds_of(group).values() if not hold.is_empty] for lock, group in groups.items()}
    waits = [one for one in operations if one.beside]
    return [ring for one in waits if (ring := _ring(one, holds, waits)) is not None]


def _ring(last: Operation, holds: Mapping[str, Sequence[Hold]], waits: Sequence[Operation]) -> Ring | None:
    """Return the ring that a wait closed when it began; None if it closed none."""
    ring, end, moment = [last], last.returned, last.called
    while True:
        lock = ring[-1].lock
        hold = next((one for one in holds.get(lock, ()) if one.begin <= moment < one.end), None)
        waiting = (one for one in waits if one.called <= moment < one.returned)
        wait = next((one for one in waiting if hold is not None and one.worker == hold.grant.worker), None)
        if hold is None or wait is None:
            return None
        end = min(end, hold.end, wait.returned)
        if wait is last:
            return Ring(ring, end)
        if wait in ring:
            return None
        ring.append(wait)


def lasting_rings(found: Sequence[Ring], blows: Sequence[Blow], stall: float) -> Iterator[Violation]:
    """Yield the rings that stayed, though all of their workers lived."""
    for ring in found:
        stood = ring.end - ring.begin - struck_seconds(blows, ring.begin, ring.end)
        if stood > RING_SECONDS + 2 * stall:
            sentence = f"a ring stood for {stood:.2f} s without a fault: {', '.join(map(str, ring.waits))}"
            yield Violation("ring", ring.waits[0].lock, ring.end, sentence)


def false_alarms(operations: Sequence[Operation]) -> Iterator[Violation]:
    """Yield the calls that got a `DeadlockError` whose ring, by what workers did, can't have stood at any moment."""
    waits = {one.beside[1]: one for one in operations if one.beside}
    for one in operations:
        following = [*one.cycle[1:], *one.cycle[:1]]
        ring = [waits.get(holder) for _, _, holder in one.cycle]
        known = [wait for wait in ring if wait is not None]
        if one.cycle and not (
            one in known
            and len(known) == len(ring)
            and all(wait.beside[0] == edge[0] for wait, edge in zip(known, one.cycle, strict=True))
            and all(wait.lock == edge[0] for wait, edge in zip(known, following, strict=True))
            and max(wait.called for wait in known) < min(wait.returned for wait in known)
        ):
            sentence = f"{one} was told of a ring that there can't have been: {one.cycle}; {', '.join(map(str, known))}"
            yield Violation("alarm", one.lock, one.returned, sentence)
