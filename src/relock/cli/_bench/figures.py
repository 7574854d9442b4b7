"""Figures of turns: hand-offs and their latency, the rate, fairness, and whether two had the lock at once."""

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from attrs import AttrsInstance, fields, frozen

T = TypeVar("T", bound=AttrsInstance)


class Turn(NamedTuple):
    """Turn of one worker with the lock; both times (ns) by the clock that all processes of the machine share."""

    worker: int
    acquired_ns: int  # when `acquire` had returned
    releasing_ns: int  # when `release` was called
    token: int  # the fencing token; 0 where there is none


@frozen
class Window:
    """The time (ns) that counts: begun when everybody was at work, ended while everybody still was."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Length (s) of the window."""
        return (self.end_ns - self.begin_ns) / 1e9

    def __contains__(self, moment_ns: int) -> bool:
        return self.begin_ns <= moment_ns < self.end_ns


@frozen
class Figures:
    """Figures of the turns within a window."""

    turns: int
    handoffs: int  # turns that somebody else had than the turn before
    turns_per_second: float
    handoffs_per_second: float
    median_us: float  # of a hand-off; NaN where there was none
    p99_us: float
    jain: float  # of the turns of each worker: 1 if all had as many, 1/n if one had all
    in_use: float  # the part of the window in which somebody had the lock and had not called `release`
    overlaps: int  # turns that began before the turn before had called `release`: each is a broken promise
    out_of_order: int  # tokens that are not above the one before


def figures(turns: Iterable[Turn], workers: int, window: Window) -> Figures:
    """Return the figures of turns within `window`, but count broken promises in all; `workers` includes idle ones."""
    ordered = sorted(turns, key=lambda turn: turn.acquired_ns)
    steps = [(before, after) for before, after in pairwise(ordered) if after.acquired_ns in window]
    latencies_ns = [after.acquired_ns - before.releasing_ns for before, after in steps if _changes_hands(before, after)]
    counts = [0] * workers
    for _, after in steps:
        counts[after.worker] += 1
    return Figures(
        turns=len(steps),
        handoffs=len(latencies_ns),
        turns_per_second=len(steps) / window.seconds,
        handoffs_per_second=len(latencies_ns) / window.seconds,
        median_us=percentile(latencies_ns, 50) / 1e3,
        p99_us=percentile(latencies_ns, 99) / 1e3,
        jain=jain(counts),
        in_use=sum(_held_ns(turn, window) for turn in ordered) / (window.end_ns - window.begin_ns),
        overlaps=sum(after.acquired_ns < before.releasing_ns for before, after in pairwise(ordered)),
        out_of_order=sum(after.token <= before.token for before, after in pairwise(ordered) if after.token),
    )


def _changes_hands(before: Turn, after: Turn) -> bool:
    return before.worker != after.worker


def _held_ns(turn: Turn, window: Window) -> int:
    return max(0, min(turn.releasing_ns, window.end_ns) - max(turn.acquired_ns, window.begin_ns))


def middle(rounds: Sequence[T]) -> T:
    """Return the figures of several rounds as one: counts are added up, of all else the median counts.

    A round in which there is no such figure (NaN) has no say.
    """
    found = {}
    for figure in fields(type(rounds[0])):
        values = [getattr(one, figure.name) for one in rounds]
        found[figure.name] = sum(values) if figure.type is int else _median(values)
    return type(rounds[0])(**found)


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan


def percentile(values: Sequence[float], rank: float) -> float:
    """Return the smallest of the values that `rank` per cent of them do not exceed; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(rank / 100 * len(values)) - 1)]


def jain(counts: Sequence[int]) -> float:
    """Return Jain's fairness index: the square of the sum over n times the sum of the squares; NaN where all are 0."""
    squares = len(counts) * sum(count * count for count in counts)
    return sum(counts) ** 2 / squares if squares else math.nan
