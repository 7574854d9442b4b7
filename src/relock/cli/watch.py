"""``relock watch``: a line whenever the holder of a lock or its waiters change."""

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

import click

from relock import Client, QuorumError
from relock._keys import KINDS, LOCK
from relock.cli._exit_codes import of_signal
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import Seconds, print_json, printable
from relock.cli._signals import Interrupted, ended_by_signals
from relock.cli._states import facts_of, in_words, look

# `python -OO` would drop a docstring.
HELP = """Print a line now, and whenever the holder of the lock NAME or its waiters have changed, until Ctrl-C.

The masters are asked every --interval seconds: of several changes between two questions, the last one is shown. With
--json each line is an object, whose `at` is a Unix time. If too few masters answer, that is a line, too.
"""

# The facts whose changes are shown; times always change.
_CHANGING = ("holders", "note", "resting", "queue", "arrived", "error")


@click.command(help=HELP)
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default=LOCK, show_default=True, help="What NAME names.")
@click.option("--interval", type=Seconds(0.05, 3600.0), default=0.5, show_default=True, help="Between two questions.")
@click.option("--lines", type=click.IntRange(min=1), help="Print so many lines, and end. Default: until Ctrl-C.")
@node_options
@json_option
@click.pass_context
def watch(
    ctx: click.Context, *, name: str, kind: str, interval: float, lines: int | None, where: Where, as_json: bool
) -> None:
    """Print the changes."""
    try:
        with ended_by_signals(), where.client() as client:
            for facts, text in islice(_changes(client, name, kind, interval), lines):
                at = datetime.now().astimezone()
                if as_json:
                    print_json({"at": at.timestamp(), **facts})
                else:
                    click.echo(f"{at:%H:%M:%S}  {text}")
    except Interrupted as interrupt:
        ctx.exit(of_signal(interrupt.signum))


def _changes(client: Client, name: str, kind: str, interval: float) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the state, as facts and in words, and then each state in which another owner has it, or others wait."""
    last = None
    while True:
        facts, text = _look(client, name, kind)
        seen = [facts.get(key) for key in _CHANGING]
        if seen != last:
            yield facts, text
        last = seen
        time.sleep(interval)


def _look(client: Client, name: str, kind: str) -> tuple[dict[str, Any], str]:
    try:
        state = look(client, name, kind)
    except QuorumError as error:
        return {"name": name, "kind": kind, "error": str(error)}, f"not known: {printable(str(error))}"
    facts = facts_of(state)
    waiting = len(facts.get("queue", ()))
    return facts, in_words(state) + (f", {waiting} waiting" if waiting else "")
