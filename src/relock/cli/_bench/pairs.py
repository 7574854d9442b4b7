"""Pairs of acquire and release while nobody else wants the lock."""

import time
from collections.abc import Callable

from attrs import frozen

from relock import Lock
from relock.cli._bench.figures import percentile

WARM_PAIRS = 20


@frozen
class Pairs:
    """Figures of the pairs that were measured."""

    pairs: int
    median_us: float
    p99_us: float
    pairs_per_second: float


def measure_pairs(pair: Callable[[], None], seconds: float) -> Pairs:
    """Measure pairs for so many seconds, after some that do not count."""
    for _ in range(WARM_PAIRS):
        pair()
    times_ns: list[int] = []
    begin_ns = now_ns = time.monotonic_ns()
    until_ns = begin_ns + int(seconds * 1e9)
    while now_ns < until_ns or not times_ns:
        pair_ns = now_ns
        pair()
        now_ns = time.monotonic_ns()
        times_ns.append(now_ns - pair_ns)
    return Pairs(
        pairs=len(times_ns),
        median_us=percentile(times_ns, 50) / 1e3,
        p99_us=percentile(times_ns, 99) / 1e3,
        pairs_per_second=len(times_ns) * 1e9 / (now_ns - begin_ns),
    )


def measure_lock(lock: Lock, seconds: float) -> Pairs:
    """Measure pairs of this lock; if the caller has it already, those are re-entries."""

    def pair() -> None:
        lock.acquire()
        lock.release()

    return measure_pairs(pair, seconds)
