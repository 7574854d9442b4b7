"""``relock guard``: the masters' restart guards, and an operator's way to end one."""

from collections.abc import Sequence
from typing import Any

import click

from relock._doctor.marker import Look, look_at_guard, lower_guard, utc
from relock._errors import ConfigurationError
from relock._runtime.net.node import Node
from relock.cli._exit_codes import ExitCode
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

REPLY_SECONDS = 2.0
_OUTCOMES = {"lowered": "its guard was ended", "absent": "it has no guard any more"}
_CHANGED = "its guard has changed since it was shown, and was left alone: look again"

# `python -OO` would drop a docstring.
HELP = """Show each master's restart guard, which client has set it and until when the master has no vote.

A guard that was set by mistake keeps a master without a vote for too long, and clients with a smaller guard take it
over. --lower ends it, after a question. The master then votes at once, and its guard is the largest of the clients
that get locks there from then on. First correct the client that has set the guard, or it sets it again. A client that
has taken the guard over begins it if the master restarts empty while that client runs: restart these clients, too.

Exits with 1 if the question was answered with no, with 69 if a master did not answer, and with 75 if a guard
changed meanwhile.
"""


@click.command(help=HELP)
@click.option("--lower", is_flag=True, help="End the guard on each master, after a question.")
@click.option(
    "--yes", is_flag=True, help="With --lower: do not ask. No lease is left that a master may have forgotten."
)
@node_options
@json_option
@click.pass_context
def guard(ctx: click.Context, lower: bool, yes: bool, where: Where, as_json: bool) -> None:
    """Print each master's guard; with ``--lower``, end the guards that were shown."""
    if yes and not lower:
        raise click.UsageError("--yes goes with --lower")
    nodes = where.nodes()
    if any(node.cluster is not None for node in nodes):
        raise ConfigurationError("a Cluster has no restart guard", option="nodes")
    looks = [look_at_guard(node, where.options().prefix, REPLY_SECONDS) for node in nodes]
    if lower:
        looks = _lower(nodes, looks, where.options().prefix, yes=yes)
    if as_json:
        print_json({"masters": [_as_json(look) for look in looks]})
    else:
        for look in looks:
            click.echo(_as_text(look))
    ctx.exit(_exit_code(looks))


def _lower(nodes: Sequence[Node], looks: Sequence[Look], prefix: str, *, yes: bool) -> list[Look]:
    """End the guards that were shown, after the question."""
    guarded = [look for look in looks if look.marker is not None and (look.marker.guard or look.marker.vote_in)]
    if guarded and not yes:
        for look in looks:
            click.echo(_as_text(look), err=True)
        click.confirm(_question(guarded), abort=True, err=True)
    return [
        lower_guard(node, prefix, REPLY_SECONDS, look.marker) if look in guarded and look.marker is not None else look
        for node, look in zip(nodes, looks, strict=True)
    ]


def _question(guarded: Sequence[Look]) -> str:
    left = max((look.marker.vote_in for look in guarded if look.marker is not None), default=0.0)
    if left:
        risk = f"A lease that a master has forgotten may still run, for up to {left:.0f} s. Then two may hold one lock."
    else:
        risk = "Each of these masters has a vote: ending the guard changes nothing before its next restart."
    return f"{risk} End the guard?"


def _as_json(look: Look) -> dict[str, Any]:
    marker = look.marker
    return {
        "address": look.address,
        "guard_seconds": None if marker is None else marker.guard,
        "vote_in_seconds": None if marker is None else marker.vote_in,
        "set_by": marker.set_by or None if marker is not None else None,
        "set_at": None if marker is None else marker.set_at,
        "outcome": look.outcome or None,
        "trouble": look.trouble or None,
    }


def _as_text(look: Look) -> str:
    """Return the line for a master."""
    marker = look.marker
    if look.trouble:
        says = look.trouble
    elif look.outcome:
        says = _OUTCOMES.get(look.outcome, _CHANGED)
    elif marker is None:
        says = "no guard"
    elif marker.guard is None:
        says = "its marker is damaged: another program has written there"
    else:
        vote = f"no vote until {utc(marker.now + marker.vote_in)}" if marker.vote_in else "it has a vote"
        says = f"a guard of {marker.guard:g} s{marker.origin}; {vote}"
    return printable(f"{look.address}: {says}")


def _exit_code(looks: Sequence[Look]) -> ExitCode:
    if any(look.trouble for look in looks):
        return ExitCode.UNREACHABLE
    return ExitCode.NOT_AVAILABLE if any(look.outcome == "changed" for look in looks) else ExitCode.OK
