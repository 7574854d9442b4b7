"""Measure the documentation's figures: ``python -m bench.report [threads|tasks] [--publish]`` in ``tests``.

The half about threads and processes takes about 23 minutes, the half about tasks eight; longer if other programs
disturb it (`bench.quiet`). ``--publish`` replaces the figures of a half in ``docs/results/bench.json``. Then it makes
the tables and plots of the documentation, from that file alone. Without ``--publish`` the figures are shown.
``--only`` and ``--scale`` measure less; a part may be published beside others of the same code and the same machine.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from attrs import frozen
from chaos.results import commit
from rich.console import Console
from rich.markdown import Markdown
from support import compact

from bench import handoffs, page, pairs, waiting
from bench.contestants import CONTESTANTS
from bench.handoffs import Cell, HandoffPlan
from bench.machine import LIBRARIES, LIBRARIES_OF_LOOPS, NOT_PUBLISHED, how_optimised, machine, placements, versions
from bench.names import LONE, PROCESSES, TASKS, THREADS, is_peer
from bench.peers import missing

HALVES = ("threads", "tasks")
PARTS = ("handoffs", "pairs", "waiting")
WORKERS = (2, 8, 32, 128)
WIDTH = 160


@frozen
class Effort:
    """The parts that are measured, among how many workers, and so many times as long as usual."""

    parts: tuple[str, ...] = PARTS
    workers: tuple[int, ...] = WORKERS
    scale: float = 1.0

    def rounds(self, usual: int) -> int:
        """Return the number of rounds, at least one."""
        return max(1, round(usual * self.scale))


def of_threads(effort: Effort) -> Iterator[HandoffPlan]:
    """Yield each comparison of threads and processes: all with client and server on CPUs of their own, else some."""
    pinned = placements()[-1]
    rounds, seconds = effort.rounds(4), 0.5 * effort.scale
    everybody, ours = tuple(CONTESTANTS), tuple(name for name in CONTESTANTS if not is_peer(name))

    def cells(placement: str, section_ms: float) -> tuple[Cell, ...]:
        kinds = product((PROCESSES, THREADS), effort.workers)
        return tuple(Cell(1, placement, kind, count, section_ms) for kind, count in kinds)

    yield HandoffPlan(cells(pinned, 0.0), everybody, rounds, seconds)
    yield HandoffPlan(cells(pinned, 1.0), ours, rounds, seconds)
    yield HandoffPlan(cells("unpinned", 0.0), ours, 1, seconds)
    for masters in (3, 5):
        several = tuple(Cell(masters, pinned, PROCESSES, count, 0.0) for count in (8, 32))
        yield HandoffPlan(several, everybody, rounds, seconds)


def of_tasks(effort: Effort) -> Iterator[HandoffPlan]:
    """Yield each comparison of tasks."""
    cells = tuple(Cell(1, placements()[-1], TASKS, count, 0.0) for count in effort.workers)
    yield HandoffPlan(cells, tuple(CONTESTANTS), effort.rounds(4), 0.5 * effort.scale)


def measure(half: str, effort: Effort, console: Console) -> dict[str, Any]:
    """Return a report of one half: the machine of the run, and the figures of each part."""
    begin = time.monotonic()
    libraries, plans = (LIBRARIES, of_threads) if half == "threads" else (LIBRARIES_OF_LOOPS, of_tasks)
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "versions": versions(libraries)}

    def tell(text: str) -> None:
        console.print(f"{half}, {time.monotonic() - begin:4.0f} s: {text}", highlight=False)

    if "handoffs" in effort.parts:
        found["handoffs"] = [row for plan in plans(effort) for row in handoffs.measure(plan, tell)]
    if "pairs" in effort.parts:
        tell("alone")
        kind, usual = (LONE, 10) if half == "threads" else (TASKS, 25)
        found["pairs"] = pairs.measure(kind, effort.rounds(usual))
    if "waiting" in effort.parts:
        tell("many that wait")
        found["waiting"] = waiting.measure(half, effort.rounds(1 if half == "threads" else 3))
    return {**found, "seconds": round(time.monotonic() - begin)}


def publish(found: dict[str, Any], *, are_parts: bool = False) -> None:
    """Put what was measured into the report, and make its pages anew: whole halves, or else parts of one half."""
    published = page.load()
    if are_parts:
        found = {"aio": _beside(published["aio"], found["aio"])} if "aio" in found else _beside(published, found)
    compact.write(page.RESULT, {**published, **found})
    page.write()


def _beside(published: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return a half that was published before, with the parts that were measured anew.

    Raises:
        SystemExit: the published half is of other code, or of another kind of machine, server or Python.
    """
    for what in ("commit", "versions", "machine"):
        before, now = (
            {**one[what], "load_before": 0} if what == "machine" else one[what] for one in (published, found)
        )
        if before != now:
            raise SystemExit(f"not published: what is published has another {what}, {before}, and is not of this run")
    return {**published, **{part: found[part] for part in PARTS if part in found}}


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(Markdown(page.rendered(found)))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    add("half", nargs="?", choices=HALVES, help="measure this half only")
    add("--only", action="append", choices=PARTS, help="measure this part only (may be given again)")
    add("--workers", default=",".join(map(str, WORKERS)), metavar="LIST", help="how many hand a lock over")
    add("--scale", type=float, default=1.0, help="measure so many times as long (default: %(default)s)")
    add("--output", type=Path, metavar="FILE", help="write the figures there as well")
    add("--publish", action="store_true", help="write the figures into the documentation")
    options = parser.parse_args(words)
    if options.publish and options.only and options.half is None:
        parser.error("parts are published of one half: name it")
    if options.publish and how_optimised() is None:
        parser.error(NOT_PUBLISHED)
    return options


def main(words: Sequence[str] | None = None) -> None:
    options = _arguments(words)
    console = Console(stderr=True)
    for line in missing():
        console.print(line)
    effort = Effort(tuple(options.only or Effort().parts), tuple(map(int, options.workers.split(","))), options.scale)
    found: dict[str, Any] = {}
    if options.half != "tasks":
        found |= measure("threads", effort, console)
    if options.half != "threads":
        found["aio"] = measure("tasks", effort, console)
    if options.output:
        compact.write(options.output, found)
    if options.publish:
        publish(found, are_parts=bool(options.only))
    else:
        show(found)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    main()
