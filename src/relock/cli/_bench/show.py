"""The tables and the plot of ``relock bench``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from relock.cli._bench.figures import Figures
from relock.cli._bench.pairs import Pairs

BAR_WIDTH = 30


def show(console: Console, title: str, pairs: Mapping[str, Pairs], by_workers: Mapping[int, Figures]) -> None:
    """Everything."""
    console.print(title, highlight=False)
    console.print(_alone(pairs), _waiting(by_workers))
    rates = {workers: found.handoffs_per_second for workers, found in by_workers.items()}
    medians = {workers: found.median_us for workers, found in by_workers.items()}
    console.print(
        _plot("Hand-offs a second, by workers", rates), _plot("Median of a hand-off, µs, by workers", medians)
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    return table


def _alone(pairs: Mapping[str, Pairs]) -> Table:
    table = _table("Nobody else wants it: one acquire and one release", "", "median, µs", "p99, µs", "a second")
    for name, found in pairs.items():
        table.add_row(name, _number(found.median_us), _number(found.p99_us), _number(found.pairs_per_second))
    return table


def _waiting(by_workers: Mapping[int, Figures]) -> Table:
    table = _table(
        "Handed over: from release in one worker to acquire in the next",
        *("workers", "median, µs", "p99, µs", "a second", "fairness (Jain)"),
    )
    for workers, found in by_workers.items():
        jain = "" if math.isnan(found.jain) else f"{found.jain:.3f}"
        cells = (found.median_us, found.p99_us, found.handoffs_per_second)
        table.add_row(str(workers), *map(_number, cells), jain)
    return table


def _plot(title: str, values: Mapping[int, float]) -> Table:
    """A bar for each number of workers."""
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column(width=BAR_WIDTH)
    table.add_column(justify="right")
    largest = max((value for value in values.values() if math.isfinite(value)), default=0.0)
    for workers, value in values.items():
        length = value if math.isfinite(value) else 0.0
        table.add_row(str(workers), Bar(largest or 1.0, 0.0, length, width=BAR_WIDTH), _number(value))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "none"


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with None for what is no number: JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def worst(found: Sequence[Figures]) -> str | None:
    """What must not be, in words; None if all is well."""
    overlaps, out_of_order = sum(one.overlaps for one in found), sum(one.out_of_order for one in found)
    if not overlaps and not out_of_order:
        return None
    return f"the lock was broken: {overlaps} turns began before the one before was over, {out_of_order} tokens fell"
