"""Runs of the simulator from the command line: ``python -m relock.testing --seeds 0-2000``."""

import json
import sys
import time
from pathlib import Path

import click

from relock.testing._simulation import Simulation, ViolationError


class Seeds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A range of seeds, ``0-2000``: the first, and the one after the last; or one seed."""

    name = "A-B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """See `click.ParamType`."""
        if isinstance(value, range):
            return value
        first, _, last = str(value).partition("-")
        try:
            begin = int(first)
            return range(begin, int(last) if last else begin + 1)
        except ValueError:
            self.fail(f"{value!r} is no range of seeds, such as 0-2000", param, ctx)


@click.command()
@click.option("--seeds", type=Seeds(), default="0-2000", show_default=True, help="Which runs to play.")
@click.option("--first", is_flag=True, help="Stop at the first violation.")
@click.option("--timeline", is_flag=True, help="Print each run that is bad, line by line; of one seed, in any case.")
@click.option("--result", type=click.Path(dir_okay=False, path_type=Path), help="Write what was counted, as JSON.")
def main(seeds: range, *, first: bool, timeline: bool, result: Path | None) -> None:
    """Plays simulated runs of relock over virtual masters, and says in which of them something was wrong.

    The exit code is 1 if there was any.
    """
    begin = time.perf_counter()
    grants, bad = 0, []
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run()
        except ViolationError as error:
            bad.append(seed)
            click.echo(str(error) if timeline else str(error).partition("\n")[0])
            if first:
                break
        if len(seeds) == 1 and not bad:
            click.echo(simulation.world.timeline())
        grants += simulation.referee.grants
    seconds = time.perf_counter() - begin
    counted = {"first": seeds.start, "last": seeds.stop - 1, "grants": grants, "bad": bad, "seconds": round(seconds, 1)}
    if result is not None:
        result.write_text(json.dumps(counted, indent=2) + "\n")
    click.echo(f"{len(seeds):,} seeds, {grants:,} grants, {len(bad)} bad; {grants / seconds:,.0f} grants a second")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
