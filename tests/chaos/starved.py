"""Detection of workers that wait while workers that came later are served, again and again.

A call for several locks has no place in a queue for all of them: others may overtake it.
"""

from collections.abc import Iterator, Sequence

from chaos.field import Blow
from chaos.records import FOREVER, Operation

STARVED_SECONDS = 20.0  # longer than one fault keeps a waiter out of the queue: heartbeats restore its place within 3 s
OVERTAKEN_MAX = 20  # workers that came later and are served first: masters that forget also forget the queue


def starved(operations: Sequence[Operation], blows: Sequence[Blow], stall: float, end: float) -> list[str]:
    """Return the waits of the workers that starved, in sentences."""
    return list(_starved(operations, blows, STARVED_SECONDS + 2 * stall, end))


def _starved(operations: Sequence[Operation], blows: Sequence[Blow], longest: float, end: float) -> Iterator[str]:
    for one in operations:
        waited = min(one.returned, max(end, one.called)) - one.called - _stopped(one, blows)
        if one.kind != "acquire" or one.level or one.others or one.outcome == "unknown" or waited <= longest:
            continue
        overtaken = sum(_overtakes(other, one) for other in operations)
        if overtaken > OVERTAKEN_MAX:
            yield f"{one} waited for {waited:.2f} s, and {overtaken} who came later were served"


def _stopped(one: Operation, blows: Sequence[Blow]) -> float:
    """Return the seconds for which faults struck the worker's own process meanwhile."""
    process, until = one.worker.partition(".")[0], one.returned if one.returned != FOREVER else one.called
    spans = (min(blow.end, until) - max(blow.begin, one.called) for blow in blows if blow.process == process)
    return sum(max(0.0, span) for span in spans)


def _overtakes(other: Operation, one: Operation) -> bool:
    return other.is_grant and other.lock == one.lock and other.called > one.called and other.returned < one.returned
