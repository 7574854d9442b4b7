"""Figures of pairs and of turns, as the median of several rounds, and relock's beside those of the bare floor."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from attrs import AttrsInstance, asdict, fields, frozen

T = TypeVar("T", bound=AttrsInstance)


class Turn(NamedTuple):
    """Turn of one worker with the lock; both times (ns) by the clock that all processes of the machine share."""

    worker: int
    acquired_ns: int  # the time at which `acquire` had returned
    releasing_ns: int  # the time at which `release` was called
    token: int  # the fencing token; 0 where there is none


@frozen
class Pairs:
    """Figures of pairs of acquire and release while nobody else wants the lock."""

    pairs: int
    median_us: float
    p99_us: float
    pairs_per_second: float


@frozen
class Figures:
    """Figures of the turns within a window."""

    turns: int
    handoffs: int  # turns of another worker than the turn that lets them in
    turns_per_second: float
    handoffs_per_second: float
    median_us: float  # the median of a hand-off; NaN without hand-offs
    p99_us: float
    jain: float  # Jain's index of the workers' turns: 1 if all had as many, 1/n if one had all
    in_use: float  # the part of the window in which a worker had the lock, or a permit, and had not called `release`
    overlaps: int  # turns that began before the turn that lets them in had called `release`: broken promises
    out_of_order: int  # tokens that are not above the token before


def figures(turns: Iterable[Turn], workers: int, window: range, limit: int = 1) -> Figures:
    """Return the figures of turns within `window`, but count broken promises in all; `workers` includes idle ones.

    Up to `limit` workers may have a turn at a time: then the first release lets in the turn after so many, and so on.
    """
    ordered = sorted(turns, key=lambda turn: turn.acquired_ns)
    released = sorted(ordered, key=lambda turn: turn.releasing_ns)
    following = [*zip(released, ordered[limit:], strict=False)]
    steps = [(before, after) for before, after in following if after.acquired_ns in window]
    latencies_ns = [after.acquired_ns - before.releasing_ns for before, after in steps if after.worker != before.worker]
    counts = [0] * workers
    for _, after in steps:
        counts[after.worker] += 1
    seconds = len(window) / 1e9
    return Figures(
        turns=len(steps),
        handoffs=len(latencies_ns),
        turns_per_second=len(steps) / seconds,
        handoffs_per_second=len(latencies_ns) / seconds,
        median_us=percentile(latencies_ns, 50) / 1e3,
        p99_us=percentile(latencies_ns, 99) / 1e3,
        jain=jain(counts),
        in_use=sum(_held_ns(turn, window) for turn in ordered) / len(window) / limit,
        overlaps=sum(after.acquired_ns < before.releasing_ns for before, after in following),
        out_of_order=sum(after.token <= before.token for before, after in following if after.token),
    )


def _held_ns(turn: Turn, window: range) -> int:
    return max(0, min(turn.releasing_ns, window.stop) - max(turn.acquired_ns, window.start))


def percentile(values: Sequence[float], rank: float) -> float:
    """Return the smallest of the values that `rank` per cent of them do not exceed; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(rank / 100 * len(values)) - 1)]


def jain(counts: Sequence[int]) -> float:
    """Return Jain's fairness index: the square of the sum over n times the sum of the squares; NaN where all are 0."""
    squares = len(counts) * sum(count * count for count in counts)
    return sum(counts) ** 2 / squares if squares else math.nan


def middle(rounds: Sequence[T]) -> T:
    """Return the figures of several rounds as one: counts are added up, of all else the median counts.

    A round without such a figure (NaN) is left out.
    """
    found = {}
    for figure in fields(type(rounds[0])):
        values = [value for one in rounds if math.isfinite(value := getattr(one, figure.name))]
        found[figure.name] = sum(values) if figure.type is int else statistics.median(values or [math.nan])
    return type(rounds[0])(**found)


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, T]:
    """Measure each way once in each round; return each way's figures, combined by `middle`."""
    played = [{name: measure() for name, measure in ways.items()} for _ in range(rounds)]
    return {name: middle([found[name] for found in played]) for name in ways}


@frozen
class Beside(Generic[T]):
    """Figures of relock and of the floor, measured in alternate rounds, so that disturbances strike both."""

    relock: T
    floor: T | None

    def ratio(self, figure: str) -> float:
        """Return relock's figure as a multiple of the floor's; NaN where one of them has none."""
        floor = 0.0 if self.floor is None else getattr(self.floor, figure)
        return getattr(self.relock, figure) / floor if floor else math.nan

    def as_json(self, *figures: str) -> dict[str, Any]:
        """Return the figures of relock, with the floor's, and the ratios of `figures`."""
        own = without_nan(asdict(self.relock))
        if self.floor is None:
            return {**own, "floor": None, "of_floor": None}
        ratios = {figure: self.ratio(figure) for figure in figures}
        return {**own, "floor": without_nan(asdict(self.floor)), "of_floor": without_nan(ratios)}


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same values, with None for NaN and infinity, which JSON lacks."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
