"""``relock bench``: what a lock costs on these masters, alone and with others that want it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from relock.cli._bench.crew import CrewFailedError
from relock.cli._bench.run import BenchPlan, Found, ShowsProgress, run
from relock.cli._bench.show import show, worst
from relock.cli._bench.words import REENTRY, RELOCK
from relock.cli._exit_codes import EPILOG, ExitCode, of_signal
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import CommandFailed, Seconds, print_json
from relock.cli._signals import Interrupted, ended_by_signals

WORKERS_MAX = 500


def _counts(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the numbers of workers."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and 2 <= int(word) <= WORKERS_MAX for word in words):
        raise click.BadParameter(f"{text!r} is no list of numbers from 2 to {WORKERS_MAX}, such as 2,8,32")
    return tuple(int(word) for word in words)


# `python -OO` would drop a docstring.
HELP = """Measure what a lock costs on these masters.

First alone: a pair of acquire and release, and one more level of a lock that is held. Then with workers, each a
process, that take the same lock again and again: how long a hand-off takes, from the call of release in one to the
return of acquire in the next; how many there are in a second; and how evenly the turns are spread (Jain's index:
1 if all had as many).

Beside each, measured in turn with it: the bare floor, which is bare sockets and the smallest scripts that are
right. No lock can be faster there.

It uses one lock of a random name, with a lease of 5 seconds, and puts as much load on the masters as it can. What
it leaves there is gone within seconds. Ctrl-C ends it early.
"""


@click.command(epilog=EPILOG, help=HELP)
@click.option("--workers", metavar="N,N…", default="2,8,32", show_default=True, callback=_counts,
              help="How many want the lock at once, one number after the other.")  # fmt: skip
@click.option("--threads", is_flag=True, help="The workers are threads of one process, which share a client.")
@click.option("--seconds", type=Seconds(0.05, 3600.0), default=1.0, show_default=True,
              help="For how long each is measured.")  # fmt: skip
@click.option("--section", type=Seconds(0.0, 1.0), default=0.0, show_default=True, metavar="SECONDS",
              help="For how long each worker has the lock before it gives it back.")  # fmt: skip
@node_options
@json_option
@click.pass_context
def bench(
    ctx: click.Context,
    *,
    workers: tuple[int, ...],
    threads: bool,
    seconds: float,
    section: float,
    where: Where,
    as_json: bool,
) -> None:
    """Print the figures."""
    plan = BenchPlan(workers, threads, seconds, section)
    try:
        with ended_by_signals(), _progress() as progress:
            found = run(where, plan, progress)
    except Interrupted as interrupt:
        ctx.exit(of_signal(interrupt.signum))
    except CrewFailedError as error:
        raise CommandFailed(str(error), ExitCode.UNREACHABLE) from None
    if as_json:
        print_json(_as_json(where, plan, found))
    else:
        show(Console(), _title(where, plan), plan, found)
    broken = worst([both.relock for both in found.by_workers.values()])
    if broken:
        raise CommandFailed(broken, ExitCode.WRONG)


@contextlib.contextmanager
def _progress() -> Iterator[ShowsProgress]:
    """Show on a terminal what is going on, and how much is done; elsewhere nothing."""
    console = Console(stderr=True)
    columns = TextColumn("relock bench: {task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, part: bar.update(task, description=text, completed=part)


def _title(where: Where, plan: BenchPlan) -> str:
    masters = "one master" if len(where.urls) == 1 else f"{len(where.urls)} masters"
    kind = "threads of one process" if plan.threads else "processes"
    inside = f"which have the lock for {plan.section_seconds * 1e3:g} ms" if plan.section_seconds else "empty sections"
    return f"relock bench: {masters}; workers are {kind}, {inside}"


def _as_json(where: Where, plan: BenchPlan, found: Found) -> dict[str, Any]:
    return {
        "masters": len(where.urls),
        "workers_are": plan.kind,
        "section_seconds": plan.section_seconds,
        "alone": {
            "uncontended": found.alone[RELOCK].as_json("median_us"),
            "reentry": found.alone[REENTRY].as_json("median_us"),
        },
        "handed_over": [
            {"workers": workers, **both.as_json("median_us", "handoffs_per_second")}
            for workers, both in found.by_workers.items()
        ],
        "no_floor": list(found.missing),
    }
