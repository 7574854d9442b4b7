"""Detection of workers that pass a latch before all parties have arrived, and of those that it keeps out afterwards."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from chaos.deadlocks import struck_seconds
from chaos.field import Blow
from chaos.kinds import KINDS
from chaos.records import FOREVER, NEVER, Operation, Violation

CHECK = "latch"
PASS_SECONDS = 8.0  # beyond the time of faults: some looks more, after a message was lost or a connection broken


def wrong_passages(calls: Sequence[Operation], parties: int, blows: Sequence[Blow], stall: float) -> list[Violation]:
    """Return the calls that found a latch open too early, and the waits that it kept out."""
    by_latch: dict[str, list[Operation]] = defaultdict(list)
    for one in calls:
        by_latch[one.lock].append(one)
    longest = PASS_SECONDS + 2 * stall
    found = [one for group in by_latch.values() for one in _too_early(group, parties)]
    return found + [one for group in by_latch.values() for one in _kept_out(group, parties, blows, longest)]


def passages(calls: Sequence[Operation]) -> int:
    """Return how many waits ended because their latch was open."""
    return sum(one.kind == "wait" and one.outcome == "ok" for one in calls)


def _too_early(calls: Sequence[Operation], parties: int) -> Iterator[Violation]:
    """Yield the calls that were told that more parties had arrived than had begun to; unknown arrivals count."""
    for one in calls:
        if one.outcome == "ok":
            begun = {other.party for other in calls if other.kind == "arrive" and other.called < one.returned}
            if len(begun) < parties - (one.count or 0):
                sentence = f"{one} found {one.count} of {parties} parties missing, and only {len(begun)} had arrived"
                yield Violation(CHECK, one.lock, one.returned, sentence)


def _kept_out(calls: Sequence[Operation], parties: int, blows: Sequence[Blow], longest: float) -> Iterator[Violation]:
    """Yield the waits that were refused at an open latch, or that went on for too long there."""
    for one in calls:
        if one.kind != "wait" or one.returned == FOREVER:
            continue
        opened = _opened(calls, parties, blows, one.returned)
        stood = one.returned - max(one.called, opened)
        if one.outcome == "refused" and one.called > opened:
            yield Violation(CHECK, one.lock, one.returned, f"{one} was refused, and all had arrived by {opened:.6f}")
        elif stood - struck_seconds(blows, one.returned - stood, one.returned) > longest:
            sentence = f"{one} took {stood:.2f} s after {opened:.6f}, when all had arrived"
            yield Violation(CHECK, one.lock, one.returned, sentence)


def _opened(calls: Sequence[Operation], parties: int, blows: Sequence[Blow], before: float) -> float:
    """Return when the last party had arrived, by what no fault before a moment can have made masters forget."""
    since = max((one.end for one in blows if KINDS[one.kind].forgets and one.begin < before), default=NEVER)
    arrived: dict[str, float] = {}
    for one in calls:
        if one.kind == "arrive" and one.outcome == "ok" and one.called > since:
            arrived[one.party] = min(one.returned, arrived.get(one.party, FOREVER))
    return FOREVER if len(arrived) < parties else max(arrived.values())
