"""The tables of ``relock bench``, in the words of the published ones."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from relock.cli._bench.beside import Beside
from relock.cli._bench.figures import Figures
from relock.cli._bench.run import BenchPlan, Found
from relock.cli._bench.words import (
    ALONE,
    ONE_HOP,
    ONE_MORE_LEVEL,
    REENTRY,
    RELOCK,
    RELOCKS_HOP,
    SUMMARY_HEAD,
    handoffs_among,
    manner,
    manner_of,
    micros,
    rate,
    ratio,
    speed,
    speed_of,
)
from relock.cli._output import printable


def show(console: Console, title: str, plan: BenchPlan, found: Found) -> None:
    """Print the tables, and why there is no floor of some."""
    console.print(title, highlight=False)
    console.print(_summary(plan.kind, found), *_waiting(plan, found.by_workers))
    for why in found.missing:
        console.print(f"No floor: {printable(why)}.", highlight=False, markup=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column()
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _summary(kind: str, found: Found) -> Table:
    """The table of the README."""
    table = _table("", *SUMMARY_HEAD)
    for what, way in ((ALONE, RELOCK), (ONE_MORE_LEVEL, REENTRY)):
        table.add_row(what, *_cells(found.alone[way], "median_us", micros))
    for workers, both in found.by_workers.items():
        table.add_row(handoffs_among(workers, kind), *_cells(both, "handoffs_per_second", rate))
    return table


def _cells(both: Beside[Any], figure: str, written: Callable[[float], str]) -> Iterator[str]:
    yield written(getattr(both.relock, figure))
    yield "" if both.floor is None else written(getattr(both.floor, figure))
    yield ratio(both.ratio(figure))


def _waiting(plan: BenchPlan, by_workers: Mapping[int, Beside[Figures]]) -> Iterator[Table]:
    """The two tables of the page of results."""
    floors = [Beside(both.floor, both.floor) for both in by_workers.values() if both.floor is not None]
    rows = {ONE_HOP: floors, RELOCKS_HOP: list(by_workers.values())} if floors else {RELOCKS_HOP: by_workers.values()}
    manner_cell = partial(_manner, is_in_use=plan.section_seconds > 0)
    for title, cell in ((speed_of(plan.kind), _speed), (manner_of(plan.kind), manner_cell)):
        table = _table(title, *map(str, by_workers))
        for name, all_counts in rows.items():
            table.add_row(name, *map(cell, all_counts))
        yield table


def _speed(both: Beside[Figures]) -> str:
    own, of_floor = both.relock, (both.ratio("median_us"), both.ratio("handoffs_per_second"))
    return speed(own.median_us, own.handoffs_per_second, of_floor)


def _manner(both: Beside[Figures], *, is_in_use: bool) -> str:
    """An empty section uses the lock for no time that would say anything."""
    own = both.relock
    return manner(own.p99_us, own.jain, in_use=own.in_use if is_in_use else math.nan)


def worst(found: Sequence[Figures]) -> str | None:
    """Return what was wrong, in words; None if all is well."""
    overlaps, out_of_order = sum(one.overlaps for one in found), sum(one.out_of_order for one in found)
    if not overlaps and not out_of_order:
        return None
    return f"the lock was broken: {overlaps} turns began before the one before was over, {out_of_order} tokens fell"
