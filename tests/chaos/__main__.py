"""Run the nemesis: ``python -m chaos [--minutes M] [--seed S] [--result FILE]`` in ``tests``; exit code 1 if bad.

The same seed makes the same choices, but not at the same moments. So a run keeps each history that is bad.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chaos import page
from chaos.campaign import Campaign, in_parallel, processes
from chaos.catalogue import KINDS
from chaos.controls import CONTROLS
from chaos.field import available_kinds
from chaos.nemesis import SHAPES
from chaos.results import Run, save, table
from chaos.verdict import Finding, summary

EPISODE_SECONDS = 40.0
SHAPES_IN_TURN = (*SHAPES, "busy")  # whose episodes have many more holds


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, in all; the last episodes are ended")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**9)))
    parser.add_argument("--masters", type=int, nargs="+", default=[1, 5], help="in turn")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES_IN_TURN, help="of the load, in turn")
    parser.add_argument("--servers", nargs="+", choices=available_kinds(), default=available_kinds(), help="in turn")
    parser.add_argument("--episode", type=int, help="only this one, again")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=[], metavar="KIND", help="of fault")
    parser.add_argument("--seconds", type=float, default=EPISODE_SECONDS, help="of an episode")
    parser.add_argument("--jobs", type=int, default=2, help="how many episodes at the same time")
    parser.add_argument("--controls", action="store_true", help="also locks with a guard taken out, to be found broken")
    parser.add_argument("--result", type=Path, help="a JSON file that gets an entry for this run, after each episode")
    parser.add_argument("--page", action="store_true", help="the file and the tables of the documentation get it")
    parser.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir(), "relock-chaos-kept"), help="where bad histories go"
    )
    return parser.parse_args()


def main() -> int:
    """Run episode after episode, until the time is over."""
    chosen = options()
    print(f"seed {chosen.seed}", flush=True)
    campaign = Campaign(
        chosen.seed, chosen.masters, chosen.shapes, chosen.servers, chosen.kinds, chosen.seconds, chosen.keep
    )
    result = Run(chosen.seed, {masters: Finding() for masters in chosen.masters})
    with processes(chosen.jobs) as pool:
        if chosen.controls:
            result.controls = dict(zip(CONTROLS, pool.map(campaign.look_at_control, CONTROLS), strict=True))
        numbers = until(60 * chosen.minutes) if chosen.episode is None else iter([chosen.episode])
        for masters, finding in in_parallel(pool, chosen.jobs, campaign, numbers):
            result.totals[masters].add(finding)
            write_down(result, chosen)
    print(table(result.totals))
    print(summary([(f"{masters} masters", total) for masters, total in result.totals.items()]))
    return 0 if result.is_good else 1


def until(seconds: float) -> Iterator[int]:
    """Yield numbers until the time is over."""
    end = time.monotonic() + seconds
    for number in itertools.count(1):
        if time.monotonic() > end:
            return
        yield number


def write_down(result: Run, chosen: argparse.Namespace) -> None:
    """Write down the results so far."""
    if chosen.result is not None:
        save(result, chosen.result)
    if chosen.page:
        save(result, page.RESULT)
        page.write()


if __name__ == "__main__":
    sys.exit(main())
