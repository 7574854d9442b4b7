"""``relock status``: the holder of a lock, and its waiters."""

import math
from typing import Any

import click

from relock import LockInfo
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

# `python -OO` would drop a docstring.
HELP = """Show the holder of the lock NAME and its waiters, as a quorum of the masters agree on them.

The times are seconds. A lock of another library has no owner that relock can name.
"""


@click.command(help=HELP)
@click.argument("name")
@node_options
@json_option
def status(name: str, where: Where, as_json: bool) -> None:
    """Print the holder of the lock and its waiters."""
    with where.client() as client:
        info = client.info(name)
    if as_json:
        print_json(_as_json(info))
    else:
        click.echo(_as_text(info))


def _as_json(info: LockInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "held": info.held,
        "owner": info.owner,
        "hold_count": info.hold_count,
        "lease_left_seconds": info.ttl if math.isfinite(info.ttl) else None,  # JSON knows no infinity
        "token": info.token,
        "queue": list(info.queue),
    }


def _as_text(info: LockInfo) -> str:
    """Return a line for each thing, the names of the things in a column."""
    lease = f"{info.ttl:.3f} s left" if math.isfinite(info.ttl) else "without an end"
    holder = info.owner or ("another library's lock" if info.held else "nobody")
    lines = [("lock", info.name), ("holder", holder)]
    if info.held:
        lines += [("hold count", str(info.hold_count)), ("lease", lease)]
    lines += [
        ("token" if info.held else "last token", str(info.token) if info.token is not None else "none"),
        ("queue", f"{len(info.queue)} waiting" if info.queue else "nobody waits"),
    ]
    lines += [("", f"{place}. {waiter}") for place, waiter in enumerate(info.queue, 1)]
    return "\n".join(f"{label:<12}{printable(text)}" for label, text in lines)
