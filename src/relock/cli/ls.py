"""``relock ls``: the names of the locks that are held or waited for."""

import click

from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

# `python -OO` would drop a docstring.
HELP = """List the names of the locks that are held or waited for on any master.

PATTERN is a glob as in Redis: * ? [...]; quote it, or the shell will expand it. The masters are scanned (SCAN),
which does not block them; what changes meanwhile may or may not be listed.
"""


@click.command(help=HELP)
@click.argument("pattern", default="*")
@node_options
@json_option
def ls(pattern: str, where: Where, as_json: bool) -> None:
    """Print the names, a line each."""
    with where.client() as client:
        if as_json:
            print_json(sorted(client.names(pattern)))
            return
        for name in client.names(pattern):
            click.echo(printable(name))
