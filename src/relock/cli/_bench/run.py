"""One run of ``relock bench``: relock and the floor, in turn, alone and with other workers that want the lock."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from secrets import token_hex
from typing import TypeVar

from attrs import frozen

from relock import Lock
from relock.cli._bench.crew import CrewFailedError, Program, play, start
from relock.cli._bench.figures import Beside, Figures, Pairs, in_turn, percentile
from relock.cli._bench.floor.floor import floor_of
from relock.cli._bench.floor.masters import FLOOR_ERRORS
from relock.cli._bench.floor.pairs import Pair
from relock.cli._bench.words import BARE, ONE_HOP, REENTRY, RELOCK
from relock.cli._bench.work import Job
from relock.cli._nodes import Where

TTL_SECONDS = 5.0  # a killed worker keeps the lock no longer than this
WARM_PAIRS = 20
ROUNDS_ALONE, ROUNDS_OF_WORKERS = 5, 3

T = TypeVar("T")
ShowsProgress = Callable[[str, float], None]


@frozen
class BenchPlan:
    """Plan of the measurements."""

    workers: tuple[int, ...]
    threads: bool
    seconds: float
    section_seconds: float

    @property
    def kind(self) -> str:
        """Kind of the workers: threads or processes."""
        return "threads" if self.threads else "processes"

    def job(self, where: Where, name: str, workers: int = 1, contestant: str = RELOCK) -> Job:
        """Return the job of so many workers."""
        return Job(
            contestant=contestant,
            urls=where.urls,
            name=name,
            prefix=where.prefix,
            processes=1 if self.threads else workers,
            threads=workers if self.threads else 1,
            section_seconds=self.section_seconds,
            ttl=TTL_SECONDS,
        )


@frozen
class Found:
    """Results of a run."""

    alone: Mapping[str, Beside[Pairs]]  # pairs while nobody else wants the lock, and re-entries
    by_workers: Mapping[int, Beside[Figures]]  # hand-offs, by the number of workers
    missing: Sequence[str]  # the reasons for figures without a floor


class _Steps:
    """Steps of a run: measurements that take about as long as each other.

    Attributes:
        total: how many there are; 0 while that is not known.
    """

    def __init__(self, progress: ShowsProgress) -> None:
        self.total = 0
        self._progress = progress
        self._text = ""
        self._done = 0

    def begin(self, text: str) -> None:
        """Report that the measurements called `text` begin."""
        self._text = text
        self._progress(text, self._done / self.total if self.total else 0.0)

    def each(self, measure: Callable[[], T]) -> Callable[[], T]:
        """Return `measure`, as one step each time."""

        def step() -> T:
            found = measure()
            self._done += 1
            self.begin(self._text)
            return found

        return step


def run(where: Where, plan: BenchPlan, progress: ShowsProgress) -> Found:
    """Measure everything; call `progress` with what is going on, and which part of the run is done, from 0 to 1.

    Raises:
        RelockError: these masters give no lock.
        CrewFailedError: a program or a master went away.
    """
    name = f"relock-bench-{token_hex(4)}"
    with ExitStack() as stack:
        steps = _Steps(progress)
        steps.begin("alone")
        client = stack.enter_context(where.client(ttl=TTL_SECONDS, client_name="bench"))
        client.check()  # masters that can't be used are refused before a worker starts
        floor = stack.enter_context(floor_of(plan.job(where, name)))
        contestants = (ONE_HOP, RELOCK) if floor.has_hops else (RELOCK,)
        of_workers = len(plan.workers) * len(contestants) * ROUNDS_OF_WORKERS
        steps.total = (2 if floor.pair is None else 3) * ROUNDS_ALONE + of_workers
        alone = _alone(client.lock(name), floor.pair, plan.seconds / ROUNDS_ALONE, steps)
        program = start("relock.cli._bench.worker")
        stack.callback(program.close)
        by_workers = {}
        for count in plan.workers:
            steps.begin(f"{count} workers")
            seconds = plan.seconds / ROUNDS_OF_WORKERS
            ways = {
                one: steps.each(partial(_handed_over, program, plan.job(where, name, count, one), seconds))
                for one in contestants
            }
            found = in_turn(ways, ROUNDS_OF_WORKERS)
            by_workers[count] = Beside(found[RELOCK], found.get(ONE_HOP))
        return Found(alone, by_workers, floor.missing)


def _alone(lock: Lock, bare_pair: Pair | None, seconds: float, steps: _Steps) -> dict[str, Beside[Pairs]]:
    def pair() -> None:
        lock.acquire()
        lock.release()

    def reentries() -> Pairs:
        with lock:
            return measure_pairs(pair, seconds)

    ways: dict[str, Callable[[], Pairs]] = {RELOCK: partial(measure_pairs, pair, seconds), REENTRY: reentries}
    if bare_pair is not None:
        ways = {BARE: partial(measure_pairs, bare_pair, seconds), **ways}
    try:
        found = in_turn({way: steps.each(measure) for way, measure in ways.items()}, ROUNDS_ALONE)
    except FLOOR_ERRORS as error:
        raise CrewFailedError(f"a master went away while the floor was measured: {error}") from None
    return {way: Beside(found[way], found.get(BARE)) for way in (RELOCK, REENTRY)}


def measure_pairs(pair: Pair, seconds: float) -> Pairs:
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


def _handed_over(program: Program, job: Job, seconds: float) -> Figures:
    return play([(program, job)], seconds=seconds).figures
