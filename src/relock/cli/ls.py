"""``relock ls``: the names of the locks, semaphores and latches that are in use."""

from collections.abc import Iterable, Sequence

import click

from relock._keys import KINDS, LOCK
from relock._names import each_once, find_names
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable, screen_width, span
from relock.cli._states import State, facts_of, in_words, look

# `python -OO` would drop a docstring.
HELP = """List the names of the locks and semaphores that are held or waited for on any master, and of latches.

PATTERN is a glob as in Redis: * ? [...]; quote it, or the shell will expand it. The masters are scanned (SCAN),
which does not block them; what changes meanwhile may or may not be listed.

A name that is no lock's is followed by a tab and its kind. With --kind, only names are printed.

With --long, each name is looked at: for how long it is held, the rest of its lease, how many wait, for how long the
first of these has waited, and the holder. The masters' clocks tell these times, so they are approximations. A terminal
that is too narrow for the table shows the columns that `relock top` has there, with long names folded.
"""

_HEADINGS = ("NAME", "KIND", "HELD FOR", "LEASE", "WAITING", "FIRST FOR", "HOLDER")


@click.command(help=HELP)
@click.argument("pattern", default="*")
@click.option("--kind", type=click.Choice(KINDS), help="List the names of this kind only.")
@click.option("--long", "is_long", is_flag=True, help="Look at each name, one after the other.")
@node_options
@json_option
def ls(pattern: str, kind: str | None, is_long: bool, where: Where, as_json: bool) -> None:
    """Print the names, a line each."""
    with where.client() as client:
        found = each_once(find_names(client._session, pattern, kind))
        if is_long:
            states = [look(client, *one) for one in sorted(found)]
            if as_json:
                print_json([facts_of(state) for state in states])
            else:
                for line in table(states, screen_width()):
                    click.echo(line)
            return
        if as_json:
            print_json([{"name": name, "kind": its_kind} for name, its_kind in sorted(found)])
            return
        for name, its_kind in found:
            click.echo(printable(name) if its_kind in (LOCK, kind) else f"{printable(name)}\t{its_kind}")


def table(states: Sequence[State], width: int | None) -> Iterable[str]:
    """Return the lines of the table, none longer than so many cells; None: as long as they are."""
    rows = [_HEADINGS, *map(_row, states)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if width is None or max(map(len, lines)) <= width:
        return lines
    from relock.cli._top.table import narrow_lines

    return narrow_lines(states, width)


def _row(state: State) -> tuple[str, ...]:
    facts = facts_of(state)
    times = (facts.get(key) for key in ("held_for_seconds", "lease_left_seconds", "first_waits_seconds"))
    held_for, left, first = ("-" if seconds is None else span(seconds) for seconds in times)
    waiting = str(len(facts["queue"])) if "queue" in facts else "-"
    return (printable(state.name), state.kind, held_for, left, waiting, first, in_words(state))
