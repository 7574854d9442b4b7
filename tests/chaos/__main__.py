"""Runs the nemesis: ``python -m chaos [--minutes M] [--seed S] [--result FILE]`` in ``tests``; exit code 1 if bad.

The same seed makes the same choices, though not the same moments: a history that is found bad is kept.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos.controls import CONTROLS, run_control
from chaos.faults import KINDS
from chaos.field import Plan
from chaos.nemesis import Episode, run
from chaos.results import Run, save, table
from chaos.verdict import Finding, summary

EPISODE_SECONDS = 30.0
PROBLEMS_MAX = 5
SHAPES: tuple[dict[str, Any], ...] = ({"locks": 3, "long": 0.01}, {"locks": 16, "long": 0.002})  # crowded, busy
PAUSES = (0.5, 2.0)  # between faults, in the same order


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, in all; the last episode is ended")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**9)))
    parser.add_argument("--masters", type=int, nargs="+", default=[1, 5], help="in turn")
    parser.add_argument("--episode", type=int, help="only this one, again")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=[], metavar="KIND", help="of fault")
    parser.add_argument("--seconds", type=float, default=EPISODE_SECONDS, help="of an episode")
    parser.add_argument("--controls", action="store_true", help="also locks with a guard taken out, to be found broken")
    parser.add_argument("--result", type=Path, help="where the result goes, as JSON; runs are added up there")
    parser.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir(), "relock-chaos-kept"), help="where bad histories go"
    )
    return parser.parse_args()


def main() -> int:
    """Episode after episode, with each number of masters in turn."""
    chosen = options()
    print(f"seed {chosen.seed}", flush=True)
    controls = {name: look_at_control(name, chosen.seed) for name in CONTROLS} if chosen.controls else {}
    totals = {masters: Finding() for masters in chosen.masters}
    end, done = time.monotonic() + 60 * chosen.minutes, 0
    for number in itertools.count(1) if chosen.episode is None else [chosen.episode]:
        if time.monotonic() > end:
            break
        masters, finding = run_episode(number, chosen)
        totals[masters].add(finding)
        done += 1
    result = Run(chosen.seed, done, totals, controls)
    if chosen.result is not None:
        save(result, chosen.result)
    print(table(totals))
    print(summary([(f"{masters} masters", total) for masters, total in totals.items()]))
    return 0 if result.is_good else 1


def run_episode(number: int, chosen: argparse.Namespace) -> tuple[int, Finding]:
    """Each number of masters in turn, and each shape after all numbers."""
    turn, place = divmod(number - 1, len(chosen.masters))
    masters, shape = chosen.masters[place], turn % len(SHAPES)
    plan = Plan(masters, f"{chosen.seed} {number}", **SHAPES[shape])
    finding = run(Episode(plan, chosen.seconds, chosen.kinds, pause=PAUSES[shape]), chosen.keep)
    print(summary([(f"episode {number}, {masters} masters", finding)]), flush=True)
    for problem in [*finding.violations[:PROBLEMS_MAX], *finding.late, *finding.errors[:PROBLEMS_MAX]]:
        print(f"  {problem}", flush=True)
    if finding.kept:
        print(f"  kept in {finding.kept}", flush=True)
    return masters, finding


def look_at_control(name: str, seed: str) -> list[str]:
    """The checks that found a lock with a guard taken out to be broken."""
    found = sorted({violation.check for violation in run_control(name, seed).violations})
    print(f"control, {name}: {'broken, say ' + ', '.join(found) if found else 'NOT NOTICED'}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
