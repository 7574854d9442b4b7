"""The tables."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.handoff.contestants import floor_of
from bench.rows import conditions, middle

COLUMNS = ("", "median", "p99", "hand-offs/s", "Jain", "sent", "called", "median", "rate")
CAPTION = "median, p99: µs; sent: commands a hand-off; called: with those of scripts; last: multiples of one hop"


def troubles(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What must not be, in words."""
    for row in rows:
        where = f"{row['contestant']}, {conditions(row)}"
        for one in row["rounds"]:
            if "failed" in one:
                yield f"{where}: {one['failed']}"
            elif one["overlaps"] or one["out_of_order"]:
                yield f"{where}: {one['overlaps']} turns overlapped, {one['out_of_order']} tokens did not rise"


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """A table for each cell."""
    for (masters, placement, kind, workers, section_ms), group in groupby(rows, key=conditions):
        cell = list(group)
        table = Table(
            title=f"{workers} {kind}, {section_ms:g} ms inside, {placement}, {masters} master{'s' * (masters > 1)}",
            title_justify="left",
        )
        for column in COLUMNS:
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        floor = floor_of(cell)
        for row in cell:
            table.add_row(row["contestant"], *_cells(row, floor))
        console.print(table)
    console.print(CAPTION)
    for trouble in troubles(rows):
        console.print(f"[bold red]{trouble}")


def _cells(row: dict[str, Any], floor: dict[str, Any] | None) -> Iterator[str]:
    yield f"{middle(row, 'median_us'):,.0f}"
    yield f"{middle(row, 'p99_us'):,.0f}"
    yield f"{middle(row, 'handoffs_per_second'):,.0f}"
    yield f"{middle(row, 'jain'):.3f}"
    yield f"{middle(row, 'commands_per_handoff'):.2f}"
    yield f"{middle(row, 'calls_per_handoff'):.1f}"
    if floor is not None:
        yield f"{middle(row, 'median_us') / middle(floor, 'median_us'):.2f}"
        yield f"{middle(row, 'handoffs_per_second') / middle(floor, 'handoffs_per_second'):.2f}"
