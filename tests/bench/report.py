"""Measures everything that the documentation shows, and writes it there: ``python -m bench.report`` in ``tests``.

It takes about half an hour, longer where others disturb it (`bench.quiet`). The figures go to
``docs/results/bench.json``; the tables and plots of the documentation are made of that file alone.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from chaos.results import commit
from rich.console import Console
from support import compact

from bench import page
from bench.__main__ import measure_one, measure_several
from bench.aio.measure import AioPlan, measure_tasks
from bench.build import NOT_PUBLISHED, how_optimised
from bench.handoff.contestants import CONTESTANTS, is_peer
from bench.handoff.measure import Cell, HandoffPlan, measure
from bench.machine import placements
from bench.peers import missing
from bench.setting import machine, versions

KINDS, WORKERS = ("processes", "threads"), (2, 8, 32, 128)


def plans(scale: float, workers: tuple[int, ...]) -> Iterator[HandoffPlan]:
    """Every comparison of hand-offs. With client and server on CPUs of their own all of them, else what is telling."""
    pinned = placements()[-1]
    rounds = max(1, round(4 * scale))
    everybody, ours = tuple(CONTESTANTS), tuple(name for name in CONTESTANTS if not is_peer(name))

    def cells(masters: int, placement: str, section_ms: float, *counts: int) -> tuple[Cell, ...]:
        return tuple(Cell(masters, placement, kind, count, section_ms) for kind, count in product(KINDS, counts))

    yield HandoffPlan(cells(1, pinned, 0.0, *workers), everybody, rounds, 0.5 * scale)
    yield HandoffPlan(cells(1, pinned, 1.0, *workers), ours, rounds, 0.5 * scale)
    yield HandoffPlan(cells(1, "unpinned", 0.0, *workers), ours, 1, 0.5 * scale)
    for masters in (3, 5):
        only_processes = tuple(cell for cell in cells(masters, pinned, 0.0, 8, 32) if cell.kind == "processes")
        yield HandoffPlan(only_processes, everybody, rounds, 0.5 * scale)


def results(scale: float, workers: tuple[int, ...], console: Console) -> dict[str, Any]:
    """Everything."""
    begin = time.monotonic()
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "versions": versions()}

    def tell(text: str) -> None:
        console.print(f"{time.monotonic() - begin:4.0f} s: {text}", highlight=False)

    for plan in plans(scale, workers):
        rows += measure(plan, tell)
    tell("alone")
    pairs = {"one": measure_one(max(1, round(10 * scale))), "several": measure_several(max(1, round(8 * scale)))}
    found |= {"seconds": round(time.monotonic() - begin), "pairs": pairs, "handoffs": rows}
    return {**found, "aio": measure_tasks(AioPlan.scaled(scale, workers), tell)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the figures there, and leave the documentation alone")
    parser.add_argument(
        "--workers",
        type=lambda text: tuple(map(int, text.split(","))),
        default=WORKERS,
        metavar="LIST",
        help="how many hand a lock over (default: 2,8,32,128)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="measure so many times as long (default: %(default)s, some 30 minutes)"
    )
    options = parser.parse_args()
    if how_optimised() is None and not options.output:
        parser.error(f"{NOT_PUBLISHED}, or write the figures elsewhere with --output")
    console = Console(stderr=True)
    for line in missing():
        console.print(line)
    found = results(options.scale, options.workers, console)
    compact.write(options.output or page.RESULT, found)
    if not options.output:
        page.write()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    main()
