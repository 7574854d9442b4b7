"""Measures tasks of an event loop: ``python -m bench.aio [--only pairs,handoffs,waiting] [--scale N]`` in ``tests``.

A pair and a hand-off stand beside floors that are made of the loop and a socket alone, and beside threads; then 10,000
tasks wait. ``--publish`` puts the figures into ``docs/results/bench.json``, in the place of those that were there of
tasks, and makes the pages anew.
"""

import argparse
import json
import logging
import time
import warnings
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from support import compact

from bench import page
from bench.__main__ import show_goals
from bench.aio.measure import PARTS, WORKERS, AioPlan, measure_tasks
from bench.aio.page import parts_rendered
from bench.build import NOT_PUBLISHED, how_optimised
from bench.goals import of_tasks

WIDTH = 160


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.aio", description="What tasks of an event loop take.")
    add = parser.add_argument
    add("--only", default=",".join(PARTS), metavar="LIST", help="measure these only, of pairs,handoffs,waiting")
    add("--workers", default=",".join(map(str, WORKERS)), metavar="LIST", help="how many tasks hand a lock over")
    add("--scale", type=float, default=1.0, help="measure so many times as long (default: %(default)s, some 8 minutes)")
    add("--json", action="store_true", help="print the figures as JSON")
    add("--publish", action="store_true", help="write the figures into the documentation")
    options = parser.parse_args()
    options.only = tuple(options.only.split(","))
    options.workers = tuple(map(int, options.workers.split(",")))
    if not set(options.only) <= set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    if options.publish and set(options.only) != set(PARTS):
        parser.error("only a whole run is published")
    if options.publish and how_optimised() is None:
        parser.error(NOT_PUBLISHED)
    return options


def publish(found: dict[str, Any]) -> None:
    """Puts the figures into the report, and makes its pages anew."""
    compact.write(page.RESULT, {**page.load(), "aio": found})
    page.write()


def main() -> None:
    options = _arguments()
    errors, begin = Console(stderr=True), time.monotonic()

    def tell(text: str) -> None:
        errors.print(f"{time.monotonic() - begin:4.0f} s: {text}", style="dim", highlight=False)

    found = measure_tasks(AioPlan.scaled(options.scale, options.workers, options.only), tell)
    if options.publish:
        publish(found)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    for text in parts_rendered(found):
        console.print(Markdown(text))
    show_goals(console, list(of_tasks(found)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    main()
