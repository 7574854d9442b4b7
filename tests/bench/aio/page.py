"""What the documentation shows of tasks: nothing, until a report has that part."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.aio.names import KINDS, LOOP_FLOOR, LOOP_HOP, REDIS_PY_TASKS, RELOCK_TASKS, RELOCK_THREADS, TASKS, on_uvloop
from bench.goals import PLACES, waited
from bench.rows import Row, middle, where
from bench.tables import by_workers, pairs_table, strong, table, what_ran
from relock.cli._bench.words import ALONE, handoffs_among, micros, rate, ratio

OF_FLOOR = "of the floor on its loop"
BESIDE = (RELOCK_THREADS, REDIS_PY_TASKS)


def floor_for(name: str) -> str:
    """The floor on the loop of this contestant; threads have none, and are compared with that of asyncio's loop."""
    floor = on_uvloop(LOOP_FLOOR)
    return floor if name in (floor, on_uvloop(RELOCK_TASKS)) else LOOP_FLOOR


def rendered(report: dict[str, Any]) -> Iterator[str]:
    """The tables of the page of results."""
    found = report.get("aio")
    if not found:
        return
    yield "## Tasks of an event loop"
    yield what_ran(found)
    yield from parts_rendered(found)


def parts_rendered(found: dict[str, Any]) -> Iterator[str]:
    """The tables of those parts that were measured."""
    if "pairs" in found:
        yield from _alone(found["pairs"])
    rows = found.get("handoffs", ())
    for placement in dict.fromkeys(row["placement"] for row in rows):
        yield f"### Among tasks of one process, {PLACES[placement]}, empty critical section"
        yield from by_workers(TASKS, where(rows, placement=placement))
    if "waiting" in found:
        yield f"### {found['waiting']['tasks']:,} tasks that wait"
        yield _waiting(found["waiting"])


def _alone(pairs: dict[str, Any]) -> Iterator[str]:
    for title, part in (("one master", "one"), ("five masters", "several")):
        yield pairs_table(f"{title}, µs (half of the rounds)", pairs[part], OF_FLOOR, floor_for)


def _waiting(found: dict[str, Any]) -> str:
    """A row for each process, a column for each figure: the medians over the rounds."""
    columns: dict[str, Callable[[str], str]] = {
        "memory, MB": lambda kind: f"{_middle(found, kind, 'memory_bytes') / 1e6:.1f}",
        "KB for each": lambda kind: f"{waited(found, kind)['kilobytes']:.1f}",
        "of a CPU": lambda kind: f"{_middle(found, kind, 'cpu_part'):.1%}",
        "threads more": lambda kind: f"{_middle(found, kind, 'threads'):.0f}",
        "connections": lambda kind: f"{waited(found, kind)['connections']:.0f}",
        "commands/s": lambda kind: f"{_middle(found, kind, 'calls_per_second'):.1f}",
        "queued in": lambda kind: _seconds(found, kind, "queued_seconds"),
        "half of them cancelled in": lambda kind: _seconds(found, kind, "cancelled_seconds"),
        "the others served in": lambda kind: _seconds(found, kind, "served_seconds"),
        "slowest script": lambda kind: _slowest(found, kind),
    }
    rows = [[what, *(cell(kind) for cell in columns.values())] for kind, what in KINDS.items()]
    return table(["they wait for", *columns], rows)


def _middle(found: dict[str, Any], kind: str, figure: str) -> float:
    return float(statistics.median([one[figure] for one in found["rounds"][kind]]))


def _seconds(found: dict[str, Any], kind: str, figure: str) -> str:
    seconds = _middle(found, kind, figure)
    return f"{seconds:.2f} s" if seconds else ""


def _slowest(found: dict[str, Any], kind: str) -> str:
    """Of all rounds, because one that is slow keeps everybody else waiting."""
    slowest = max(found["rounds"][kind], key=lambda one: one["slowest_us"])
    return f"{slowest['slowest_us'] / 1e3:.1f} ms, {slowest['slowest']}" if slowest["slowest"] else ""


def in_short(report: dict[str, Any]) -> Iterator[str]:
    """What the page about performance shows."""
    found = report.get("aio")
    if not found:
        return
    times = found["pairs"]["one"]["pairs_us"]["split"]
    rows = [_row(ALONE, times, (RELOCK_TASKS, LOOP_FLOOR), micros)]
    handoffs = where(found["handoffs"], placement="split")
    for workers in sorted({row["workers"] for row in handoffs}):
        rates = _rates(where(handoffs, workers=workers))
        rows.append(_row(handoffs_among(workers, TASKS), rates, (RELOCK_TASKS, LOOP_HOP), rate))
    head = [TASKS, strong(RELOCK_TASKS), "bare on a loop", "relock / bare on a loop", *BESIDE]
    yield table(head, rows)


def _rates(cell: Sequence[Row]) -> dict[str, float]:
    return {row["contestant"]: middle(row, "handoffs_per_second") for row in cell}


def _row(what: str, found: dict[str, float], pair: tuple[str, str], written: Callable[[float], str]) -> list[str]:
    ours, floor = (found[name] for name in pair)
    others = ("" if name not in found else written(found[name]) for name in BESIDE)
    return [what, written(ours), written(floor), ratio(ours / floor), *others]
