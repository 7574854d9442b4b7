"""Measures hand-offs: ``python -m bench.handoff [--workers 2,8,32,128] [--rounds N] [--json]`` in ``tests``.

A hand-off is from the call of ``release()`` in one worker to the return of ``acquire()`` in the next, by the clock that
all processes of a machine share. Everybody is measured in turn under the same conditions, the floors too; compare
within one table.
"""

import argparse
import json
from itertools import product

from rich.console import Console

from bench.handoff.contestants import CONTESTANTS
from bench.handoff.measure import Cell, HandoffPlan, measure
from bench.handoff.show import show
from bench.machine import PLACEMENTS, placements
from bench.peers import missing

KINDS = ("threads", "processes")
TABLE_WIDTH = 120


def _words(text: str) -> list[str]:
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.handoff", description="How fast a lock is handed over.")
    add = parser.add_argument
    add("--masters", type=int, choices=(1, 3, 5), default=1, help="how many masters (default: %(default)s)")
    add("--kinds", type=_words, default=list(KINDS), metavar="LIST", help="of workers: threads,processes,tasks")
    add("--workers", type=_words, default=["2", "8", "32", "128"], metavar="LIST", help="how many: 2,8,32,128")
    add("--sections-ms", type=_words, default=["0", "1"], metavar="LIST", help="how long each has the lock: 0,1")
    add(
        "--placements",
        type=_words,
        default=["split" if len(placements()) > 1 else "same", "unpinned"],
        metavar="LIST",
        help=f"which CPUs, of {', '.join(PLACEMENTS)} (default: split,unpinned)",
    )
    add("--only", action="append", metavar="NAME", help=f"measure these only, of {', '.join(CONTESTANTS)}")
    add("--rounds", type=int, default=3, help="how often everybody is measured in turn (default: %(default)s)")
    add("--seconds", type=float, default=0.5, help="for how long, at least (default: %(default)s)")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    cells = [
        Cell(options.masters, placement, kind, int(workers), float(section_ms))
        for placement, kind, section_ms, workers in product(
            options.placements, options.kinds, options.sections_ms, options.workers
        )
    ]
    plan = HandoffPlan(tuple(cells), tuple(options.only or CONTESTANTS), options.rounds, options.seconds)
    errors = Console(stderr=True)
    for line in missing():
        errors.print(line)
    rows = measure(plan, lambda text: errors.print(text, style="dim"))
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        console = Console()
        console.width = max(console.width, TABLE_WIDTH)
        show(rows, console)


if __name__ == "__main__":
    main()
