"""``relock order``: the orders in which tests have taken locks."""

import click

from relock.cli._exit_codes import ExitCode
from relock.cli._nodes import json_option
from relock.cli._output import CommandFailed, print_json, printable
from relock.testing._order_graph import OrderGraph, as_document, describe, find_cycles, merge, read_graph

# `python -OO` would drop a docstring.
HELP = """Work with the orders in which tests have taken locks, as `pytest --relock-order=FILE` writes them."""
MERGE_HELP = """Print the orders in all FILES, as one graph, and whether they make a cycle.

Each line is an order: a caller that had a lock of the first class asked for one of the second. A cycle is
printed after the graph, with the places in the code. Callers in such orders can wait for each other in a circle.

Exits with 1 if there is a cycle, and with 2 if a file can't be read.
"""


@click.group(help=HELP)
def order() -> None:
    """Set up nothing: the commands below need no masters."""


@order.command("merge", help=MERGE_HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@json_option
@click.pass_context
def merge_files(ctx: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """Print the merged graph, and its cycles."""
    graph = merge(map(_read, files))
    cycles = find_cycles(graph)
    if as_json:
        print_json({**as_document(graph), "cycles": [[(edge.held, edge.wanted) for edge in cycle] for cycle in cycles]})
    else:
        for held, wanted in sorted(graph):
            click.echo(printable(f"{held} -> {wanted}"))
        if cycles:
            click.echo()
        for line in describe(cycles).splitlines() if cycles else ():
            click.echo(printable(line))
    ctx.exit(ExitCode.WRONG if cycles else ExitCode.OK)


def _read(file: str) -> OrderGraph:
    try:
        return read_graph(file)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file}: {error}", ExitCode.USAGE) from None
