"""One run of ``relock bench``: relock and the floor, in turn, alone and with other workers that want the lock."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex

from attrs import frozen

from relock import Lock
from relock.cli._bench.beside import Beside, in_turn
from relock.cli._bench.crew import CrewFailedError, Part, Program, play, start
from relock.cli._bench.figures import Figures, figures
from relock.cli._bench.floor.floor import Floor
from relock.cli._bench.floor.masters import FLOOR_ERRORS
from relock.cli._bench.floor.pairs import Pair
from relock.cli._bench.pairs import Pairs, measure_lock, measure_pairs
from relock.cli._bench.words import BARE, ONE_HOP, REENTRY, RELOCK
from relock.cli._bench.work import Job
from relock.cli._nodes import Where

TTL_SECONDS = 5.0  # of the lock: what a worker leaves behind that is killed is gone after it
WARM_SECONDS, WARM_SECONDS_EACH = 0.1, 0.002  # until all workers are at it
ROUNDS_ALONE, ROUNDS_OF_WORKERS = 5, 3


@frozen
class BenchPlan:
    """Plan of what is measured."""

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
    """Results of a run.

    Attributes:
        alone: pairs while nobody else wants the lock, and re-entries.
        by_workers: hand-offs, by the number of workers.
        missing: why some figures have no floor, in words.
    """

    alone: Mapping[str, Beside[Pairs]]
    by_workers: Mapping[int, Beside[Figures]]
    missing: Sequence[str]


def run(where: Where, plan: BenchPlan, progress: Callable[[str], None]) -> Found:
    """Measure everything.

    Raises:
        RelockError: these masters give no lock.
        CrewFailedError: a program or a master went away.
    """
    name = f"relock-bench-{token_hex(4)}"
    with contextlib.ExitStack() as stack:
        progress("alone")
        client = stack.enter_context(where.client(ttl=TTL_SECONDS, client_name="bench"))
        client.check()  # says what is wrong before anybody is started
        floor = stack.enter_context(contextlib.closing(Floor(plan.job(where, name))))
        floor.open()
        alone = _alone(client.lock(name), floor.pair, plan.seconds / ROUNDS_ALONE)
        program = start("relock.cli._bench.worker")
        stack.callback(program.close)
        contestants = (ONE_HOP, RELOCK) if floor.has_hops else (RELOCK,)
        by_workers = {}
        for count in plan.workers:
            progress(f"{count} workers")
            jobs = {one: plan.job(where, name, count, one) for one in contestants}
            by_workers[count] = _handed_over(program, jobs, plan.seconds / ROUNDS_OF_WORKERS)
        return Found(alone, by_workers, floor.missing)


def _alone(lock: Lock, pair: Pair | None, seconds: float) -> dict[str, Beside[Pairs]]:
    ways = {RELOCK: partial(measure_lock, lock, seconds), REENTRY: partial(_reentries, lock, seconds)}
    if pair is not None:
        ways = {BARE: partial(_bare_pairs, pair, seconds), **ways}
    found = in_turn(ways, ROUNDS_ALONE)
    return {way: Beside(found[way], found.get(BARE)) for way in (RELOCK, REENTRY)}


def _reentries(lock: Lock, seconds: float) -> Pairs:
    with lock:
        return measure_lock(lock, seconds)


def _bare_pairs(pair: Pair, seconds: float) -> Pairs:
    try:
        return measure_pairs(pair, seconds)
    except FLOOR_ERRORS as error:
        raise CrewFailedError(f"a master went away while the floor was measured: {error}") from None


def _handed_over(program: Program, jobs: Mapping[str, Job], seconds: float) -> Beside[Figures]:
    found = in_turn({name: partial(_turns, program, job, seconds) for name, job in jobs.items()}, ROUNDS_OF_WORKERS)
    return Beside(found[RELOCK], found.get(ONE_HOP))


def _turns(program: Program, job: Job, seconds: float) -> Figures:
    """Let these workers play one round; return the figures of their turns."""
    workers = job.processes * job.threads
    played = play([Part(program, job)], warm_seconds=WARM_SECONDS + WARM_SECONDS_EACH * workers, seconds=seconds)
    return figures(played.turns, workers, played.window)
