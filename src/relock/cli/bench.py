"""``relock bench``: what a lock costs on these masters, alone and with others who want it."""

import contextlib
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import click
from attrs import asdict, frozen
from rich.console import Console

from relock.cli._bench.crew import CrewFailedError, Part, Program, play, start
from relock.cli._bench.figures import Figures, figures
from relock.cli._bench.pairs import Pairs, measure_pairs
from relock.cli._bench.show import show, without_nan, worst
from relock.cli._bench.work import Job
from relock.cli._demo.interrupts import Interrupts
from relock.cli._exit_codes import EPILOG, ExitCode, of_signal
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import CommandFailed, Seconds, print_json
from relock.cli._signals import Interrupted

TTL_SECONDS = 5.0  # of the lock: what a worker leaves behind that is killed is gone after it
WARM_SECONDS, WARM_SECONDS_EACH = 0.1, 0.002  # until all workers are at it
WORKERS_MAX = 500
LIMIT_SECONDS = 24 * 3600.0


@frozen
class BenchPlan:
    """What to measure."""

    workers: tuple[int, ...]
    threads: bool
    seconds: float
    section_seconds: float

    def job(self, where: Where, name: str, workers: int) -> Job:
        """What so many workers do."""
        return Job(
            contestant="relock",
            urls=where.urls,
            name=name,
            prefix=where.prefix,
            processes=1 if self.threads else workers,
            threads=workers if self.threads else 1,
            section_seconds=self.section_seconds,
            ttl=TTL_SECONDS,
        )


def _counts(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """The numbers of workers."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and 2 <= int(word) <= WORKERS_MAX for word in words):
        raise click.BadParameter(f"{text!r} is no list of numbers from 2 to {WORKERS_MAX}, such as 2,8,32")
    return tuple(int(word) for word in words)


@click.command(epilog=EPILOG)
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
    """Measure what a lock costs on these masters.

    First alone: a pair of acquire and release, and one more level of a lock that is held. Then with workers, each a
    process, that take the same lock again and again: how long a hand-off takes, from the call of release in one to the
    return of acquire in the next; how many there are in a second; and how evenly the turns are spread (Jain's index:
    1 if all had as many).

    It uses one lock of a random name, with a lease of 5 seconds, and puts as much load on the masters as it can. What
    it leaves there is gone within seconds. Ctrl-C ends it early.
    """
    plan = BenchPlan(workers, threads, seconds, section)
    try:
        with Interrupts(LIMIT_SECONDS):
            pairs, by_workers = _measure(where, plan)
    except Interrupted as interrupt:
        ctx.exit(of_signal(interrupt.signum))
    except CrewFailedError as error:
        raise CommandFailed(str(error), ExitCode.UNREACHABLE) from None
    if as_json:
        print_json(_as_json(where, plan, pairs, by_workers))
    else:
        show(Console(), _title(where, plan), pairs, by_workers)
    broken = worst(list(by_workers.values()))
    if broken:
        raise CommandFailed(broken, ExitCode.WRONG)


def _measure(where: Where, plan: BenchPlan) -> tuple[dict[str, Pairs], dict[int, Figures]]:
    name = f"relock-bench-{token_hex(4)}"
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(_progress())
        progress("alone")
        client = stack.enter_context(where.client(ttl=TTL_SECONDS, client_name="bench"))
        client.check()  # says what is wrong before anybody is started
        lock = client.lock(name)
        pairs = {"uncontended": measure_pairs(lock, plan.seconds)}
        with lock:
            pairs["re-entry"] = measure_pairs(lock, plan.seconds)
        program = start("relock.cli._bench.worker")
        stack.callback(program.close)
        by_workers = {}
        for count in plan.workers:
            progress(f"{count} workers")
            by_workers[count] = _hand_over(program, plan, plan.job(where, name, count))
    return pairs, by_workers


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is going on."""
    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(f"relock bench: {text}")


def _hand_over(program: Program, plan: BenchPlan, job: Job) -> Figures:
    """What the turns of these workers amount to."""
    workers = job.processes * job.threads
    warm_seconds = WARM_SECONDS + WARM_SECONDS_EACH * workers
    played = play([Part(program, job)], warm_seconds=warm_seconds, seconds=plan.seconds)
    return figures(played.turns, workers, played.window)


def _title(where: Where, plan: BenchPlan) -> str:
    masters = "one master" if len(where.urls) == 1 else f"{len(where.urls)} masters"
    kind = "threads of one process" if plan.threads else "processes"
    inside = f"which have the lock for {plan.section_seconds * 1e3:g} ms" if plan.section_seconds else "empty sections"
    return f"relock bench: {masters}; workers are {kind}, {inside}"


def _as_json(where: Where, plan: BenchPlan, pairs: dict[str, Pairs], by_workers: dict[int, Figures]) -> dict[str, Any]:
    return {
        "masters": len(where.urls),
        "workers_are": "threads" if plan.threads else "processes",
        "section_seconds": plan.section_seconds,
        "alone": {name.replace("-", ""): without_nan(asdict(found)) for name, found in pairs.items()},
        "handed_over": [{"workers": workers, **without_nan(asdict(found))} for workers, found in by_workers.items()],
    }
