"""Campaign of many episodes and controls, some at a time, each in a process of its own.

While one episode waits, for a stopped master for example, another one uses the machine.
"""

import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from attrs import frozen
from support.servers import die_with_parent

from chaos.controls import is_found, run_control
from chaos.nemesis import run, shaped
from chaos.verdict import Finding, summary

PROBLEMS_MAX = 5


@frozen
class Campaign:
    """Common part of episodes, which take the items of each list in turn."""

    seed: str
    masters: Sequence[int]
    shapes: Sequence[str]
    servers: Sequence[str]
    kinds: Sequence[str]
    seconds: float
    keep: Path

    def choose(self, number: int) -> tuple[int, str, str]:
        """Return the conditions of an episode: numbers of masters change fastest, then shapes, then kinds of server."""
        turn, masters = divmod(number - 1, len(self.masters))
        turn, shape = divmod(turn, len(self.shapes))
        return self.masters[masters], self.shapes[shape], self.servers[turn % len(self.servers)]

    def run_episode(self, number: int) -> tuple[int, Finding]:
        """Return the number of masters of one episode, and its finding."""
        masters, shape, server = self.choose(number)
        episode = shaped(shape, masters, f"{self.seed} {number}", self.seconds, self.kinds, server=server)
        finding = run(episode, keep=self.keep)
        print(told(f"episode {number}, {masters} masters, {shape}, {server}", finding), flush=True)
        return masters, finding

    def look_at_control(self, name: str) -> list[str]:
        """Return the checks that found a lock without one guard broken; none if the expected check found nothing."""
        finding = run_control(name, self.seed)
        found = sorted({violation.check for violation in finding.violations}) if is_found(name, finding) else []
        print(f"control, {name}: {'broken, say ' + ', '.join(found) if found else 'NOT NOTICED'}", flush=True)
        return found


def told(name: str, finding: Finding) -> str:
    """Return the finding as text, with only the first of many problems."""
    problems = [*finding.violations[:PROBLEMS_MAX], *finding.late, *finding.errors[:PROBLEMS_MAX]]
    kept = [f"kept in {finding.kept}"] if finding.kept else []
    return "\n  ".join([summary([(name, finding)]), *map(str, problems), *kept])


def processes(number: int) -> ProcessPoolExecutor:
    """Return a pool of so many processes, which end with this one."""
    return ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), die_with_parent)


def in_parallel(
    pool: ProcessPoolExecutor, jobs: int, campaign: Campaign, numbers: Iterator[int]
) -> Iterator[tuple[int, Finding]]:
    """Yield the findings of these episodes, as they come. A number is taken when a process is free for it."""

    def start(count: int) -> set[Future[tuple[int, Finding]]]:
        return {pool.submit(campaign.run_episode, number) for number in itertools.islice(numbers, count)}

    running = start(jobs)
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            running |= start(1)
            yield future.result()
