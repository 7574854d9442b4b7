"""The figures of a report, as its tables, plots and goals ask for them."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
CONDITIONS = ("masters", "placement", "section_ms", "kind", "workers")


def middle(row: Row, figure: str) -> float:
    """Return the median over the rounds, without those that have no such figure; NaN if none has."""
    values = [one[figure] for one in row["rounds"] if one.get(figure) is not None]
    return statistics.median(values) if values else math.nan


def multiple(value: float, floor: float) -> float:
    """Return how many times the floor's a figure is; NaN if the floor's is zero, because it handed nothing over."""
    return value / floor if floor else math.nan


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


def cells(rows: Sequence[Row], fields: Sequence[str] = CONDITIONS) -> list[list[Row]]:
    """Return the rows in groups of the same conditions."""
    by_conditions: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_conditions.setdefault(tuple(row[field] for field in fields), []).append(row)
    return list(by_conditions.values())


def waited(waiting: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the figures of threads or tasks that wait for this: medians over the rounds, and the worst of some.

    Their memory is set against that of the first kind. The slowest script counts, because it keeps all others waiting.
    """
    rounds, of_first = waiting["rounds"][kind], next(iter(waiting["rounds"].values()))
    numbers = [figure for figure, value in rounds[0].items() if not isinstance(value, str)]
    found = {figure: middle({"rounds": rounds}, figure) for figure in numbers}
    more = found["memory_bytes"] - middle({"rounds": of_first}, "memory_bytes")
    slowest = max(rounds, key=lambda one: one.get("slowest_us", 0))
    return {
        **found,
        "megabytes": found["memory_bytes"] / 1e6,
        "megabytes_more": more / 1e6,
        "kilobytes_each": more / 1e3 / (waiting.get("tasks") or waiting["threads"]),
        "all_connections": found["connections"] + found["subscriptions"],
        "cpu_percent": 100 * found["cpu_part"],
        "slowest_ms": slowest.get("slowest_us", 0) / 1e3,
        "slowest": slowest.get("slowest", ""),
        "left": max(one.get("left", 0) for one in rounds),
    }


def stolen(report: dict[str, Any]) -> list[float]:
    """Return the part of the CPUs' time that the host took from each round of a report, or of its part about tasks."""
    handed_over = [one["stolen"] for row in report.get("handoffs", ()) for one in row["rounds"]]
    alone = [part for found in report.get("pairs", {}).values() for parts in found["stolen"].values() for part in parts]
    waited = [one["stolen"] for rounds in report.get("waiting", {}).get("rounds", {}).values() for one in rounds]
    return handed_over + alone + waited
