"""Runs of the simulator from the command line: ``python -m sim --seeds 0-2000`` in ``tests``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click

from sim import record
from sim.picture import Story, draw
from sim.shards import FIRST, run_of
from sim.simulation import ViolationError
from sim.watch import watched


class _Seeds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A range of seeds, ``0-2000``: the first, and the one after the last; or one seed."""

    name = "A-B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> range:
        """Return the range of seeds that `value` names."""
        if isinstance(value, range):
            return value
        first, _, last = str(value).partition("-")
        try:
            begin = int(first)
            return range(begin, int(last) if last else begin + 1)
        except ValueError:
            self.fail(f"{value!r} is no range of seeds, such as 0-2000", param, ctx)


@click.command()
@click.option("--seeds", type=_Seeds(), default="0-2000", show_default=True, help="Which runs to play.")
@click.option("--first", is_flag=True, help="Stop at the first violation.")
@click.option("--timeline", is_flag=True, help="Print each run that is bad, line by line; of one seed, in any case.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="How many processes play.")
@click.option(
    "--result",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add what was counted to this file, and play only what it lacks of this commit.",
)
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the one run, as SVG.")
@click.option("--from", "since", type=float, help="When the picture begins, in seconds of the run.  [default: 0]")
@click.option("--until", type=float, help="When the picture ends.  [default: just after the first violation, if any]")
def main(
    seeds: range,
    *,
    first: bool,
    timeline: bool,
    jobs: int,
    result: Path | None,
    picture: Path | None,
    since: float | None,
    until: float | None,
) -> None:
    """Play simulated runs of relock over virtual masters, and tell the violations.

    The exit code is 1 if there was any. A picture of a run with a violation shows the messages around the first one,
    unless you say from when, or until when.
    """
    if picture is not None and (len(seeds) != 1 or result is not None):
        raise click.UsageError("--picture draws one run: give one seed, and no --result")
    if picture is not None and seeds.start >= FIRST:
        raise click.UsageError(f"--picture can't draw a run over a Cluster: seeds from {FIRST} on")
    if picture is None and (since, until) != (None, None):
        raise click.UsageError("--from and --until belong to a --picture")
    if len(seeds) == 1 and result is None:
        sys.exit(_tell(seeds.start, picture, since, until))
    commit = record.commit()
    known = [] if result is None else _known(result, commit)
    played: list[record.Run] = []
    with _player(jobs) as play_all:
        left = [piece for part in record.missing(known, commit, seeds) for piece in record.pieces(part)]
        for piece in play_all(partial(record.play, commit, stops=first), left):
            for report in piece.reports:
                click.echo(report if timeline else report.partition("\n")[0])
            played.append(piece.run)
            if result is not None:
                record.write(result, record.add_up([*known, *played]))
            if first and piece.reports:
                break
    click.echo(_summary(played))
    sys.exit(any(run.violations for run in played))


def _tell(seed: int, picture: Path | None, since: float | None, until: float | None) -> bool:
    """Play one seed, line by line, and draw the picture; return whether anything was wrong."""
    simulation, story = (run_of(seed), Story("")) if picture is None else watched(seed)
    try:
        simulation.run()
    except ViolationError as error:
        click.echo(str(error))
    else:
        click.echo(simulation.world.timeline())
    if picture is not None:
        picture.write_text(draw(story.window(since, until)), encoding="utf-8")
    click.echo(f"{simulation.grants:,} grants")
    return bool(simulation.referee.violations or simulation.world.errors)


def _known(result: Path, commit: str) -> list[record.Run]:
    """Return the runs in the file, without those of a tree with changes, whose code may have changed again."""
    try:
        runs = record.read(result)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return [run for run in runs if run.commit != commit] if commit.endswith(record.DIRTY) else runs


@contextmanager
def _player(jobs: int) -> Iterator[Callable[..., Iterable[record.Piece]]]:
    """Yield a function that plays pieces: in this process, or in `jobs` others."""
    if jobs == 1:
        yield map
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield pool.imap_unordered


def _summary(played: list[record.Run]) -> str:
    """Return the results in one line, with the grants per second of one core."""
    seeds, grants, bad = (sum(counts) for counts in zip(*map(_counts, played), strict=True)) if played else (0, 0, 0)
    seconds = sum(run.seconds for run in played) or 1.0
    return f"{seeds:,} seeds, {grants:,} grants, {bad} bad; {grants / seconds:,.0f} grants a second"


def _counts(run: record.Run) -> tuple[int, int, int]:
    return len(run.seeds), run.grants, len(run.violations)


if __name__ == "__main__":
    main()
