"""Detection of readers that have a lock at the same time as a writer, and of tokens that fall from one to the other."""

from collections.abc import Iterator, Sequence

from chaos.checker import Hold, by_place, holds_of
from chaos.records import Operation, Violation

CHECK = "readers"


def beside_writers(operations: Sequence[Operation]) -> list[Violation]:
    """Return the grants to a reader that came while another writer believed in its hold, and the reverse.

    A reader's token must be above those of the writers before, and a writer's above those of the readers before.
    """
    return [one for group in by_place(operations).values() for one in _beside(group)]


def _beside(operations: Sequence[Operation]) -> Iterator[Violation]:
    holds = [hold for hold in holds_of(operations).values() if not hold.is_empty]
    begun: dict[bool, list[Hold]] = {True: [], False: []}  # of readers, and of writers, those that have not ended
    highest: dict[bool, Hold] = {}
    for hold in sorted(holds, key=lambda one: one.begin):
        lock, reads = hold.grant.lock, hold.grant.reads
        begun[not reads] = [one for one in begun[not reads] if hold.begin < one.end]
        other = next((one for one in begun[not reads] if one.grant.worker != hold.grant.worker), None)
        above = highest.get(not reads)
        if other is not None:
            yield Violation(CHECK, lock, hold.begin, f"a reader and a writer have {lock!r}: {other} and {hold}")
        if above is not None and hold.grant.token <= above.grant.token:
            yield Violation(CHECK, lock, hold.begin, f"{hold} got no larger token than {above}, which came before it")
        begun[reads].append(hold)
        if reads not in highest or hold.grant.token > highest[reads].grant.token:
            highest[reads] = hold
