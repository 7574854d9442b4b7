"""Detection of more permits than a semaphore has, and of what workers leave on the masters."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from support.servers import Server

from chaos.checker import by_place, holds_of
from chaos.records import NEVER, Operation, Violation
from chaos.waiting import wait_until

LEFT_SECONDS = 40.0  # longer than any key outlives its last use, except for tokens


def too_many(operations: Sequence[Operation], limit: int) -> list[Violation]:
    """Return the grants that had a slot beyond the limit, or came while so many others believed in their permits."""
    return [*_beyond(operations, limit), *_at_once(operations, limit)]


def _beyond(operations: Iterable[Operation], limit: int) -> Iterator[Violation]:
    for one in operations:
        if one.is_grant and (one.slot is None or not 0 <= one.slot < limit):
            yield Violation("permits", one.lock, one.returned, f"{one} got a slot that is not below the limit, {limit}")


def _at_once(operations: Iterable[Operation], limit: int) -> Iterator[Violation]:
    holds = [hold for group in by_place(operations).values() for hold in holds_of(group).values() if not hold.is_empty]
    ends: dict[str, list[float]] = {}
    for hold in sorted(holds, key=lambda one: one.begin):
        open_until = ends.setdefault(hold.grant.lock, [])
        while open_until and open_until[0] <= hold.begin:
            heappop(open_until)
        heappush(open_until, hold.end)
        if len(open_until) > limit:
            sentence = f"{hold} came while {len(open_until) - 1} others had permits of {hold.grant.lock!r}"
            yield Violation("permits", hold.grant.lock, hold.begin, f"{sentence}, whose limit is {limit}")


def free_moments(ends: Iterable[float], limit: int) -> list[float]:
    """Return, for each number of first holds, since when fewer than `limit` of them were open, by their ends."""
    latest: list[float] = []
    moments = [NEVER]
    for end in ends:
        heappush(latest, end)
        if len(latest) > limit:
            heappop(latest)
        moments.append(latest[0] if len(latest) == limit else NEVER)
    return moments


def left_over(masters: Sequence[Server], within: float = LEFT_SECONDS) -> list[Violation]:
    """Return the keys of holds, permits and waiters that stay on the masters so long after all workers have ended."""

    def keys() -> list[str]:
        found = {key.decode() for server in masters for key in server.cli("KEYS", "*:{*")}
        return sorted(key for key in found if not key.endswith(":token"))

    wait_until(lambda: not keys(), within)
    return [Violation("left", key, 0.0, f"nobody works any more, and {key!r} is still there") for key in keys()]
