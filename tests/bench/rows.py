"""The figures of a report, as its tables, plots and goals ask for them."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def middle(row: Row, figure: str) -> float:
    """Return the median over the rounds, without those that have no such figure; NaN if none has."""
    values = [one[figure] for one in row["rounds"] if one.get(figure) is not None]
    return statistics.median(values) if values else float("nan")


def where(rows: Iterable[Row], **conditions: Any) -> list[Row]:
    """Return the rows that were measured under these conditions."""
    return [row for row in rows if all(row[name] == value for name, value in conditions.items())]


def of(rows: Iterable[Row], contestant: str) -> Row | None:
    """Return the row of one contestant among rows of one cell, if it was measured."""
    return next((row for row in rows if row["contestant"] == contestant), None)


def contestants(rows: Iterable[Row]) -> list[str]:
    """Return the contestants in the order in which they were measured."""
    return list(dict.fromkeys(row["contestant"] for row in rows))


def our_way(rows: Iterable[Row]) -> str:
    """Return the contestant that is this library with its fastest hand-off."""
    return next(name for name in contestants(rows) if name.startswith("relock"))


def cells(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows in groups of the same conditions."""
    by_conditions: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        conditions = tuple(row[field] for field in ("masters", "placement", "kind", "workers", "section_ms"))
        by_conditions.setdefault(conditions, []).append(row)
    return list(by_conditions.values())


def stolen(report: dict[str, Any]) -> list[float]:
    """Return the part of the CPUs' time that the host took from each round of a report, or of its part about tasks."""
    handed_over = [one["stolen"] for row in report.get("handoffs", ()) for one in row["rounds"]]
    alone = [part for found in report.get("pairs", {}).values() for parts in found["stolen"].values() for part in parts]
    waited = [one["stolen"] for rounds in report.get("waiting", {}).get("rounds", {}).values() for one in rounds]
    return handed_over + alone + waited
