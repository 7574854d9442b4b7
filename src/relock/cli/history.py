"""``relock history``: what clients have recorded about a lock."""

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from relock._keys import LOCK
from relock._owner import described
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import ParamType, print_json, printable, say, span
from relock.history import STREAM, Entry, check_stream, find_entries

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

# `python -OO` would drop a docstring.
HELP = """Print what was recorded about the lock or semaphore NAME: a line for each event, the oldest first.

Clients record their grants, releases, losses, deadlocks and forced releases if their programs use
relock.history.Recorder. An event that no client could write is missing. The times are those of the master's clock at
which it got the event.

With --json each line is an object, whose `at` is a Unix time.
"""


class Span(ParamType):
    """Type of an option: a time such as ``90``, ``90s``, ``15m``, ``1h`` or ``7d``, in seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; fail with an error that says what would be right."""
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", str(value))
        if found is None:
            self.fail(f"{value!r} is no time such as 90s, 15m, 1h or 7d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command(help=HELP)
@click.argument("name")
@click.option("--since", type=Span(), help="How far back: 90s, 15m, 1h, 7d. Default: all that is there.")
@click.option("--stream", default=STREAM, show_default=True, help="The stream's key, as the programs name it.")
@node_options
@json_option
def history(*, name: str, since: float | None, stream: str, where: Where, as_json: bool) -> None:
    """Print the entries."""
    check_stream(stream)
    with where.client() as client:
        entries, silent = find_entries(client, stream, name, since)
    for entry in entries:
        if as_json:
            print_json(entry)
        else:
            at = datetime.fromtimestamp(entry["at"]).astimezone()
            click.echo(f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}  {printable(_in_words(entry))}")
    for master in silent:
        say(f"{master} did not answer: what was recorded there is missing")


def _in_words(entry: Entry) -> str:
    """Return an entry in words; as it is if another program, or a later version, has written it."""
    owner = described(entry["owner"]) if "owner" in entry else "whichever owner"
    try:
        text = _WORDS[entry["event"]](entry, owner)
    except (KeyError, TypeError):
        return json.dumps(entry)
    return text if entry.get("kind", LOCK) == LOCK else f"{entry['kind']}: {text}"


def _deadlock_in_words(entry: Entry, _: str) -> str:
    victim = f", ended for {described(entry['victim'])}" if "victim" in entry else ""
    return f"deadlock of {len(entry['cycle'])} callers{victim}"


_WORDS: dict[str, Callable[[Entry, str], str]] = {
    "Granted": lambda entry, owner: f"granted to {owner} after {span(entry['waited'])}, token {entry['token']}",
    "Released": lambda entry, owner: f"released by {owner} after {span(entry['held_for'])}",
    "ReleaseUnconfirmed": lambda entry, owner: (
        f"released by {owner}, unconfirmed: the lease ends within {span(entry['seconds_left'])}"
    ),
    "Lost": lambda entry, owner: f"lost by {owner}: {entry['reason']}",
    "ForceReleased": lambda entry, owner: f"taken by force from {owner}, by the client {entry['client']}",
    "Deadlocked": _deadlock_in_words,
}
