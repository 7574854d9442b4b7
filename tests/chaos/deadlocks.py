"""Detection of deadlocks: a call for several locks that waits, while no worker at all gets one of them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from chaos.field import Blow
from chaos.history import grants
from chaos.records import FOREVER, Operation, Violation

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
