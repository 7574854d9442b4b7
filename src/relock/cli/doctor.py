"""``relock doctor``: an examination of the masters, of all that locks need."""

import sys
from collections.abc import Sequence
from typing import Any

import click
from attrs import asdict

from relock._doctor.examine import examine_all
from relock._doctor.findings import Examination, Finding, Verdict
from relock._doctor.together import compare
from relock.cli._exit_codes import ExitCode
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import Seconds, print_json, printable

_COLOURS = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "bold red"}
_ALL = "all masters"


# `python -OO` would drop a docstring.
HELP = """Try everything that locks need, on each master.

Looked at: whether it can be reached, has all commands, is a master and has a vote; its version, its clock against
this machine's, what it evicts and what a restart makes it forget; whether all scripts and Pub/Sub work for this user.
The scripts run on a scratch lock and semaphore of a random name, which are gone within seconds. Of several masters
together: whether they are independent servers, their number, whether their clocks agree and their restart guards.

Exits with 1 if anything is wrong. A note is no failure: it says what to know.
"""


@click.command(help=HELP)
@click.option(
    "--timeout",
    type=Seconds(0.01, 3600.0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for each reply.",
)
@node_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, timeout: float, where: Where, as_json: bool) -> None:
    """Print what was found on each master."""
    nodes = where.nodes()
    examinations = examine_all(nodes, where.options().prefix, timeout)
    together = compare(examinations)
    everything = [*together, *(finding for one in examinations for finding in one.findings)]
    healthy = all(finding.verdict is not Verdict.WRONG for finding in everything)
    if as_json:
        print_json(_as_json(examinations, together, healthy=healthy))
    elif sys.stdout.isatty():
        _print_table(examinations, together)
    else:
        _print_plain(examinations, together)
    ctx.exit(ExitCode.OK if healthy else ExitCode.WRONG)


def _as_json(examinations: Sequence[Examination], together: Sequence[Finding], *, healthy: bool) -> dict[str, Any]:
    masters = []
    for one in examinations:
        master = asdict(one)
        master["clock_offset_seconds"] = master.pop("clock_offset")
        masters.append(master)
    return {"healthy": healthy, "masters": masters, "together": [asdict(finding) for finding in together]}


def _rows(examinations: Sequence[Examination], together: Sequence[Finding]) -> list[tuple[str, Finding]]:
    rows = [(one.address, finding) for one in examinations for finding in one.findings]
    return [*rows, *((_ALL, finding) for finding in together)]


def _print_plain(examinations: Sequence[Examination], together: Sequence[Finding]) -> None:
    """Print a line for each finding, its parts between tabs: for files, and for grep."""
    for address, finding in _rows(examinations, together):
        parts = (address, finding.verdict.value, finding.check, finding.says, finding.advice)
        click.echo("\t".join(printable(part) for part in parts if part))


def _print_table(examinations: Sequence[Examination], together: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="relock doctor", title_justify="left")
    for heading in ("master", "check", "", "what was found, and what to do"):
        table.add_column(heading)
    shown = ""
    for address, finding in _rows(examinations, together):
        if address != shown and shown:
            table.add_section()
        text = Text(printable(finding.says))  # a str would be read as markup, and the text is a server's
        if finding.advice:
            text.append(f"\n→ {printable(finding.advice)}", style="bold")
        verdict = Text(finding.verdict.value, style=_COLOURS[finding.verdict])
        table.add_row(Text("" if address == shown else printable(address)), finding.check, verdict, text)
        shown = address
    Console().print(table)
