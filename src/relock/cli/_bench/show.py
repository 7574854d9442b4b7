"""The table of ``relock bench``, in the words of the published ones."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from relock.cli._bench import words
from relock.cli._bench.figures import Beside, Figures
from relock.cli._bench.run import BenchPlan, Found
from relock.cli._output import printable


def show(console: Console, title: str, plan: BenchPlan, found: Found) -> None:
    """Print the table, and why some figures have no floor."""
    table = Table()
    table.add_column(no_wrap=True)
    for head in words.SUMMARY_HEAD:
        table.add_column(head, justify="right")
    for what, way in ((words.ALONE, words.RELOCK), (words.ONE_MORE_LEVEL, words.REENTRY)):
        _add(table, what, found.alone[way], "median_us", words.micros)
    for workers, both in found.by_workers.items():
        table.add_section()
        _add(table, words.handoffs_among(workers, plan.kind), both, "handoffs_per_second", words.rate)
        _add(table, "a hand-off, median", both, "median_us", words.micros)
        _add(table, "a hand-off, 99 % within", both, "p99_us", words.micros)
        _add(table, words.JAIN, both, "jain", words.index)
        if plan.section_seconds:  # an empty section keeps the lock for no time that tells anything
            _add(table, "of the time, the lock is in use", both, "in_use", words.part)
    console.print(title, highlight=False)
    console.print(table)
    for why in found.missing:
        console.print(f"No floor: {printable(why)}.", highlight=False, markup=False)


def _add(table: Table, what: str, both: Beside[Any], figure: str, written: Callable[[float], str]) -> None:
    floor = "" if both.floor is None else written(getattr(both.floor, figure))
    table.add_row(what, written(getattr(both.relock, figure)), floor, words.ratio(both.ratio(figure)))


def worst(found: Sequence[Figures]) -> str | None:
    """Return what was wrong, in words; None if all is well."""
    overlaps, out_of_order = sum(one.overlaps for one in found), sum(one.out_of_order for one in found)
    if not overlaps and not out_of_order:
        return None
    return (
        f"the lock was broken: {overlaps} turns began before the earlier had ended, {out_of_order} tokens did not rise"
    )
