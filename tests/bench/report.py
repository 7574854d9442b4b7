"""Measures everything that the documentation shows, and writes it there: ``python -m bench.report`` in ``tests``.

It takes about twenty minutes, longer where others disturb it (`bench.quiet`). The figures go to
``docs/results/bench.json``; the tables and plots of the documentation are made of that file alone.
"""

import argparse
import json
import logging
import os
import platform
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from chaos.results import commit
from rich.console import Console
from support.servers import Server

from bench import page
from bench.__main__ import measure_one, measure_several
from bench.build import how_optimised
from bench.handoff.contestants import CONTESTANTS, is_peer
from bench.handoff.measure import Cell, HandoffPlan, measure
from bench.machine import placements, servers_started
from bench.peers import missing

LIBRARIES = ("redis", "hiredis", "python-redis-lock", "pottery", "redlock-py")
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


def machine() -> dict[str, Any]:
    """What it ran on, in general words, and how busy that was with other things when it began."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": processor,
        "system": platform.system(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    with servers_started(1) as (server,):
        return {
            "Python": f"{platform.python_version()} ({how_optimised() or 'not optimised by a profile'})",
            "server": _version_of(server),
            **{library: version(library) for library in LIBRARIES},
        }


def _version_of(server: Server) -> str:
    with server.client() as client:
        said = client.info("server")
    return f"Valkey {said['valkey_version']}" if "valkey_version" in said else f"Redis {said['redis_version']}"


def results(scale: float, workers: tuple[int, ...], console: Console) -> dict[str, Any]:
    """Everything."""
    begin = time.monotonic()
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "versions": versions()}
    for plan in plans(scale, workers):
        rows += measure(plan, lambda text: console.print(f"{time.monotonic() - begin:4.0f} s: {text}", highlight=False))
    console.print(f"{time.monotonic() - begin:4.0f} s: alone", highlight=False)
    pairs = {"one": measure_one(max(1, round(10 * scale))), "several": measure_several(max(1, round(8 * scale)))}
    return {**found, "seconds": round(time.monotonic() - begin), "pairs": pairs, "handoffs": rows}


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
        "--scale", type=float, default=1.0, help="measure so many times as long (default: %(default)s, some 20 minutes)"
    )
    options = parser.parse_args()
    if how_optimised() is None and not options.output:
        parser.error(
            "this CPython was not optimised by a profile, so users get other figures, and these are not published: "
            "use one that was built with --enable-optimizations, or write the figures elsewhere with --output"
        )
    console = Console(stderr=True)
    for line in missing():
        console.print(line)
    found = results(options.scale, options.workers, console)
    text = json.dumps(found, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
        return
    page.RESULT.write_text(text)
    page.write()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    main()
