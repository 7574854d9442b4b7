"""Measure hand-offs: from the call of `release` in one worker to the return of `acquire` in the next.

All contestants play the same cell of conditions in turn, round after round.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from typing import Any

import attrs
from attrs import frozen
from support.servers import Server

from bench.contestants import CONTESTANTS, WORKERS
from bench.floors import LEASE_SECONDS
from bench.machine import pin, placed, servers_started
from bench.names import PROCESSES, THREADS, is_peer
from bench.quiet import undisturbed
from relock.cli._bench.crew import CrewFailedError, Program, play, start
from relock.cli._bench.figures import without_nan
from relock.cli._bench.words import RELOCKS_HOP
from relock.cli._bench.work import Job

POLLING_SECONDS = 1.2  # a polling contestant has few turns a second
TURNS_EACH = 8  # at least, where all workers have as many: or a perfect order would seem unfair
TURN_SECONDS = 0.001  # at most, of a turn beside its critical section, if hand-offs go well
VOTE_SECONDS = 1.02 * LEASE_SECONDS + 5.0
_serials = count()


@frozen
class Cell:
    """The conditions of one comparison."""

    masters: int
    placement: str
    kind: str  # of the workers: threads or tasks of one process, or processes
    workers: int
    section_ms: float

    def job(self, contestant: str, urls: Sequence[str]) -> Job:
        """Return the job of the workers, with a lock of a fresh name."""
        processes, threads = (self.workers, 1) if self.kind == PROCESSES else (1, self.workers)
        return Job(
            contestant=contestant,
            urls=tuple(urls),
            name=f"bench-handoff-{next(_serials)}",
            processes=processes,
            threads=threads,
            section_seconds=self.section_ms / 1e3,
            ttl=LEASE_SECONDS,
            limit=CONTESTANTS[contestant].limit,
        )


@frozen
class HandoffPlan:
    """Plan: the cells, which have as many masters each, the contestants, and the seconds."""

    cells: tuple[Cell, ...]
    contestants: tuple[str, ...]
    rounds: int
    seconds: float

    def contestants_of(self, cell: Cell, round_: int) -> Iterator[str]:
        """Yield the contestants of a round of a cell: the peers only in the first round, as their rates are far off."""
        for name in self.contestants:
            hands_over = CONTESTANTS[name].hands_over(cell.masters, cell.kind, cell.workers)
            if hands_over and (round_ == 0 or not is_peer(name)):
                yield name

    def seconds_of(self, cell: Cell, contestant: str) -> float:
        """Return the seconds for one contestant: long enough for some turns of each worker, if hand-offs go well."""
        enough = TURNS_EACH * cell.workers * (cell.section_ms / 1e3 + TURN_SECONDS)
        polls = POLLING_SECONDS if CONTESTANTS[contestant].polls else 0.0
        return max(self.seconds, enough, polls)


def measure(plan: HandoffPlan, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each cell and contestant, with a figure for each round."""
    (masters,) = {cell.masters for cell in plan.cells}
    rows: list[dict[str, Any]] = []
    with servers_started(masters) as servers, closing(Bench(servers)) as bench:
        if masters > 1:
            bench.let_vote()
        for cell in plan.cells:
            progress(f"{masters} masters, {cell.placement}, {cell.workers} {cell.kind}, {cell.section_ms:g} ms")
            rows += bench.measure(cell, plan)
    return rows


class Bench:
    """The servers, and the programs that the workers come from."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self._urls = [server.url for server in servers]
        self._programs: dict[str, Program] = {}

    def _program(self, module: str) -> Program:
        if module not in self._programs:
            self._programs[module] = start(module)
        return self._programs[module]

    def close(self) -> None:
        """End the programs."""
        while self._programs:
            self._programs.popitem()[1].close()

    def let_vote(self) -> None:
        """Let relock look at fresh masters, and wait until its guard is over and they have a vote."""
        job = Cell(len(self._servers), "unpinned", THREADS, 1, 0.0).job(RELOCKS_HOP, self._urls)
        play([(self._program(WORKERS), job)], warm_seconds=VOTE_SECONDS, seconds=0.1)

    def measure(self, cell: Cell, plan: HandoffPlan) -> list[dict[str, Any]]:
        """Return a row for each contestant."""
        rows: dict[str, dict[str, Any]] = {}
        with placed(self._servers, cell.placement):
            for round_ in range(plan.rounds):
                for name in plan.contestants_of(cell, round_):
                    row = rows.setdefault(name, {**attrs.asdict(cell), "contestant": name, "rounds": []})
                    found, stolen = undisturbed(partial(self._round, cell, name, plan.seconds_of(cell, name)))
                    row["rounds"].append({**found, "stolen": stolen})
        return list(rows.values())

    def _round(self, cell: Cell, contestant: str, seconds: float) -> dict[str, Any]:
        toolchain = CONTESTANTS[contestant].toolchain
        warm_seconds = toolchain.warm_seconds * cell.workers if toolchain else 0.0
        try:
            with self._parts(cell.job(contestant, self._urls)) as parts:
                played = play(parts, seconds=seconds, warm_seconds=warm_seconds, look=self._calls)
        except CrewFailedError as error:
            self.close()
            return {"failed": str(error)}
        before, after = played.looks
        sent = sum(after[name] - before[name] for name in CONTESTANTS[contestant].sends)
        return without_nan(
            {**attrs.asdict(played.figures), "commands_per_handoff": sent / max(1, played.figures.handoffs)}
        )

    @contextmanager
    def _parts(self, job: Job) -> Iterator[list[tuple[Program, Job]]]:
        """Yield the programs that play a job, on this process's CPUs; for another language, one for each process."""
        toolchain = CONTESTANTS[job.contestant].toolchain
        if toolchain is None:
            program = self._program(CONTESTANTS[job.contestant].program)
            pin(program.pid, os.sched_getaffinity(0))
            yield [(program, job)]
            return
        with ExitStack() as stack:
            parts = []
            for number in range(job.processes):
                program = toolchain.start()
                stack.callback(program.kill)  # its turns are told, and nothing more is wanted of it
                parts.append((program, attrs.evolve(job, processes=1, first_worker=number * job.threads)))
            yield parts

    def _calls(self) -> Counter[str]:
        """Return how often each command was called on all masters so far, by scripts as well."""
        return sum((Counter(server.all_calls()) for server in self._servers), Counter())
