"""``relock ls``: the names of the locks, semaphores and latches that are in use."""

import click

from relock._keys import KINDS, LOCK
from relock._names import each_once, find_names
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

# `python -OO` would drop a docstring.
HELP = """List the names of the locks and semaphores that are held or waited for on any master, and of latches.

PATTERN is a glob as in Redis: * ? [...]; quote it, or the shell will expand it. The masters are scanned (SCAN),
which does not block them; what changes meanwhile may or may not be listed.

A name that is no lock's is followed by a tab and its kind. With --kind, only names are printed.
"""


@click.command(help=HELP)
@click.argument("pattern", default="*")
@click.option("--kind", type=click.Choice(KINDS), help="List the names of this kind only.")
@node_options
@json_option
def ls(pattern: str, kind: str | None, where: Where, as_json: bool) -> None:
    """Print the names, a line each."""
    with where.client() as client:
        found = each_once(find_names(client._session, pattern, kind))
        if as_json:
            print_json([{"name": name, "kind": its_kind} for name, its_kind in sorted(found)])
            return
        for name, its_kind in found:
            click.echo(printable(name) if its_kind in (LOCK, kind) else f"{printable(name)}\t{its_kind}")
