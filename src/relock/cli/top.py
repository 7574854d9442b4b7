"""``relock top``: a table of what is held and waited for, the longest queues first."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import click

from relock.cli._exit_codes import ExitCode, of_signal
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import CommandFailed, Seconds, print_json
from relock.cli._signals import Interrupted, ended_by_signals
from relock.cli._top.masters import Masters
from relock.cli._top.sampler import Sampler, Snapshot
from relock.cli._top.table import SORTS, in_order

LOOPBACK = "127.0.0.1"

# `python -OO` would drop a docstring.
HELP = """Show what is held and waited for on the masters, in a table that is kept up to date. Nothing is changed.

Keys: s takes the next order, / shows only the names that match a glob (as in Redis), Enter shows what `status` prints
of a name, q quits. Above the table there is a line for each master: its version, its vote, and its clock against this
machine's. The masters' clocks tell the times with ≈, and tokens a second are an estimate.

The masters are scanned (SCAN) every 5 seconds, and at most 200 names a second are looked at: those with waiters first.

With --json one document is printed; with --json and --interval a line for each round, until Ctrl-C. The table needs
the extra `top`: pip install 'redis-relock[top]'.
"""


@click.command(help=HELP)
@click.option(
    "--interval",
    type=Seconds(0.1, 3600.0),
    help="Between two rounds. Default: 1; with --json, print one document and end.",
)
@click.option("--sort", type=click.Choice(SORTS), default="queue", show_default=True, help="What comes first.")
@click.option("--serve", metavar="[HOST:]PORT", help=f"Show the table in browsers. HOST is {LOOPBACK} by default.")
@node_options
@json_option
@click.pass_context
def top(
    ctx: click.Context, *, interval: float | None, sort: str, serve: str | None, where: Where, as_json: bool
) -> None:
    """Show the table, serve it, or print it as JSON."""
    if serve is not None:
        if as_json:
            raise click.UsageError("--json and --serve exclude each other")
        ctx.exit(_serve(serve, ("--interval", f"{interval or 1.0:g}", "--sort", sort, "--prefix", where.prefix), where))
    with closing(Masters(where)) as masters:
        sampler = Sampler(masters, time.monotonic)
        if not as_json:
            ctx.exit(_show(masters, sampler, interval or 1.0, sort))
        try:
            with ended_by_signals():
                for document in _documents(sampler, interval, sort):
                    print_json(document)
        except Interrupted as interrupt:
            ctx.exit(of_signal(interrupt.signum))


def _documents(sampler: Sampler, interval: float | None, sort: str) -> Iterator[dict[str, Any]]:
    """Yield what each round has found; of one round, without an interval.

    Raises:
        QuorumError: too few masters answered the only round.
    """
    while True:
        sampler.survey()
        known = sampler.round()
        if interval is None and known.problem is not None:
            raise known.problem
        yield _as_json(known, sort)
        if interval is None:
            return
        time.sleep(interval)


def _as_json(known: Snapshot, sort: str) -> dict[str, Any]:
    masters = [
        {
            "address": one.address,
            "reachable": one.reachable,
            "version": one.version,
            "vote_in_seconds": one.vote_in,
            "clock_offset_seconds": one.clock_offset,
        }
        for one in known.masters
    ]
    return {
        "at": time.time(),
        "masters": masters,
        "names": known.names,
        "locks": [row.facts for row in in_order(known.rows, sort)],
        "error": None if known.problem is None else str(known.problem),
    }


def _show(masters: Masters, sampler: Sampler, interval: float, sort: str) -> int:
    """Run the app in this terminal, or for a page of the server; return the exit code."""
    try:
        from relock.cli._top.app import Top, play
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    if "TEXTUAL_DRIVER" not in os.environ and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("top needs a terminal; --json does not")
    return asyncio.run(play(Top(masters, sampler, interval, sort)))


def _serve(address: str, words: Sequence[str], where: Where) -> int:
    """Serve the app until a signal comes; return the exit code."""
    try:
        from relock.cli._top.serve import TopServer
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise click.UsageError(f"--serve takes a port, as 8787, or 127.0.0.1:8787, not {address!r}")
    os.environ["RELOCK_NODES"] = " ".join(where.urls)  # passwords are no words of a command
    server = TopServer([sys.executable, "-P", "-m", "relock", "top", *words], host or LOOPBACK, int(port))
    try:
        return asyncio.run(server.play())
    except OSError as error:
        raise click.UsageError(f"--serve {address}: {error.strerror}") from None


def _missing(error: ModuleNotFoundError) -> Exception:
    """Return the end of the command if a package of the extra is missing, else the error itself."""
    if (package := (error.name or "").partition(".")[0]) not in ("textual", "textual_serve", "aiohttp"):
        return error
    says = f"top needs {package.replace('_', '-')}: pip install 'redis-relock[top]'"
    return CommandFailed(says, ExitCode.CONFIGURATION)
