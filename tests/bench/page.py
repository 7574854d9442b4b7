"""Tables and plots of ``docs/results/bench.json``; ``python -m bench.page`` in ``tests`` makes them anew.

These are the tables and plots of ``docs/results/benchmark.md``, a few figures of them in the README, and a few rows in
``docs/concepts/performance.md``. Each table is a part of its page, between two marks, so that it can be read without
building the documentation. A test compares.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.goals import PLACES, Goal, goals, waited
from bench.names import (
    EVENT,
    KINDS,
    LOOP_FLOOR,
    LOOP_HOP,
    REDIS_PY_TASKS,
    RELOCK_TASKS,
    RELOCK_THREADS,
    TASKS,
    on_uvloop,
)
from bench.rows import Row, middle, our_way, where
from bench.tables import by_workers, pairs_table, strong, table, what_ran
from relock.cli._bench.words import (
    ALONE,
    BARE,
    ONE_HOP,
    ONE_MORE_LEVEL,
    REENTRY,
    RELOCK,
    SUMMARY_HEAD,
    handoffs_among,
    micros,
    rate,
    ratio,
)

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "docs" / "results" / "bench.json"
PAGE = ROOT / "docs" / "results" / "benchmark.md"
USERS_PAGE = ROOT / "docs" / "concepts" / "performance.md"
README = ROOT / "README.md"
RESULT_SEEN_FROM = {PAGE: "results/bench.json", USERS_PAGE: "results/bench.json", README: "docs/results/bench.json"}
MARKS = {
    path: (f"<!-- What follows is made from {result}. -->", f"<!-- This was made from {result}. -->")
    for path, result in RESULT_SEEN_FROM.items()
}


def rendered(report: dict[str, Any]) -> str:
    """Return all tables of the parts that were measured."""
    parts = [what_ran(report)] if "machine" in report else []
    parts += ["## Goals, and what is missed", _goals(goals(report))]
    if pairs := report.get("pairs"):
        parts += ["## Nobody else wants it", *_alone(pairs)]
    if rows := report.get("handoffs"):
        parts += ["## Handed over", *_handed_over(rows), "## Handed over, on several masters", *_on_several(rows)]
    if waiting := report.get("waiting"):
        parts += [f"## {waiting['threads']:,} threads that wait", _of_threads(waiting)]
    if found := report.get("aio"):
        parts += ["## Tasks of an event loop", what_ran(found), *_of_tasks(found)]
    return "\n\n".join(parts)


def _goals(found: Sequence[Goal]) -> str:
    rows = []
    for goal in found:
        worst = f" ({goal.where})" if goal.where else ""
        measured = f"{goal.measured:.2f}{worst}{'' if goal.is_met else ', **missed**'}"
        rows.append([goal.what, _bound(goal), measured, goal.figures])
    return table(["ratio", "goal", "measured, at its worst", "its figures"], rows)


def _bound(goal: Goal) -> str:
    aim = "" if goal.aim is None else f" (aimed at: {goal.aim:.3g})"
    return f"{'at most' if goal.at_most else 'at least'} {goal.bound:.3g}{aim}"


def _both_pairs(pairs: dict[str, Any], of_what: str, floor: Callable[[str], str]) -> Iterator[str]:
    for title, part in (("one master", "one"), ("five masters", "several")):
        yield pairs_table(f"{title}, µs (half of the rounds)", pairs[part], of_what, floor)


def _alone(pairs: dict[str, Any]) -> Iterator[str]:
    yield "![One acquire and release, as a multiple of bare sockets](plots/alone.svg)"
    yield from _both_pairs(pairs, "of bare sockets", lambda _: BARE)
    busy = pairs["one"]["server_us"]
    yield (
        f"By its own account the server is busy for {busy['shipped']:.0f} µs with the scripts of a pair, and for "
        f"{busy['floor']:.0f} µs with the floor's: {busy['shipped'] / busy['floor']:.2f} times as long."
    )
    for place, times in pairs["several"]["stopped_us"].items():
        yield (
            f"With two of five masters stopped ({PLACES[place]}) the median is {times['stopped']:,.0f} µs, against "
            f"{times['healthy']:,.0f} µs with all of them ({times['stopped'] / times['healthy']:.2f} times as long); "
            f"99 % take at most {times['stopped_p99']:,.0f} µs, against {times['healthy_p99']:,.0f} µs "
            f"({times['stopped_p99'] / times['healthy_p99']:.2f} times); the first attempt took at most "
            f"{times['first_max'] / 1000:,.1f} ms."
        )


def _handed_over(rows: Sequence[Row]) -> Iterator[str]:
    yield "![Hand-offs a second, by the number of workers](plots/rate.svg)"
    yield "![Median of a hand-off, by the number of workers](plots/latency.svg)"
    yield "![Jain's index, by the number of workers](plots/fairness.svg)"
    one_master = where(rows, masters=1)
    for placement in dict.fromkeys(row["placement"] for row in one_master):
        for section_ms in sorted({row["section_ms"] for row in where(one_master, placement=placement)}):
            inside = f"each has it for {section_ms:g} ms" if section_ms else "empty critical section"
            place = PLACES[placement]
            yield f"### {place[0].upper()}{place[1:]}, {inside}"
            for kind in ("processes", "threads"):
                rows_of_kind = where(one_master, placement=placement, section_ms=section_ms, kind=kind)
                if rows_of_kind:
                    yield from by_workers(kind, rows_of_kind)


def _on_several(rows: Sequence[Row]) -> Iterator[str]:
    several = [row for row in rows if row["masters"] > 1]
    for masters in sorted({row["masters"] for row in several}):
        yield f"### {masters} masters"
        for kind in dict.fromkeys(row["kind"] for row in several):
            yield from by_workers(kind, where(several, masters=masters, kind=kind))


def _of_threads(found: dict[str, Any]) -> str:
    """Return what threads cost that wait for a lock, as readers or for a permit: the medians over the rounds."""
    counts = ("threads", "subscriptions", "connections")
    rows = [
        [
            kind,
            f"{(_middle(found, kind, 'memory_bytes') - _middle(found, EVENT, 'memory_bytes')) / 1e6:.1f}",
            f"{_middle(found, kind, 'cpu_part'):.2%}",
            *(f"{_middle(found, kind, count):.0f}" for count in counts),
            f"{_middle(found, kind, 'calls_per_second'):.1f}",
        ]
        for kind in found["rounds"]
    ]
    costs = table(["they wait for", "MB more", "of a CPU", "threads more", *counts[1:], "commands/s"], rows)
    if "one read lock" not in found["rounds"]:
        return costs
    seconds = _middle(found, "one read lock", "served_seconds")
    return f"{costs}\n\nOnce the writer's hold had ended, all had the read lock within {seconds:.2f} s."


# Tasks ----------------------------------------------------------------------------------------------------------------


def floor_for(name: str) -> str:
    """Return the floor on the loop of this contestant; threads have none, and are compared with asyncio's floor."""
    floor = on_uvloop(LOOP_FLOOR)
    return floor if name in (floor, on_uvloop(RELOCK_TASKS)) else LOOP_FLOOR


def _of_tasks(found: dict[str, Any]) -> Iterator[str]:
    """Yield the tables of those parts that were measured."""
    if "pairs" in found:
        yield from _both_pairs(found["pairs"], "of the floor on its loop", floor_for)
    rows = found.get("handoffs", ())
    for placement in dict.fromkeys(row["placement"] for row in rows):
        yield f"### Among tasks of one process, {PLACES[placement]}, empty critical section"
        yield from by_workers(TASKS, where(rows, placement=placement))
    if "waiting" in found:
        yield f"### {found['waiting']['tasks']:,} tasks that wait"
        yield _waiting(found["waiting"])


def _waiting(found: dict[str, Any]) -> str:
    """Return a table with a row for each process and a column for each figure: the medians over the rounds."""
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
    """Return the slowest script of all rounds, because one that is slow keeps all others waiting."""
    slowest = max(found["rounds"][kind], key=lambda one: one["slowest_us"])
    return f"{slowest['slowest_us'] / 1e3:.1f} ms, {slowest['slowest']}" if slowest["slowest"] else ""


# In short -------------------------------------------------------------------------------------------------------------

PEERS = ("redis-py Lock", "python-redis-lock", "redislock (Go)", "rueidislock (Go)")
PEERS_ON_SEVERAL = ("redlock-py", "pottery", "redis-semaphore (Node)", "redlock (Node)", "redsync (Go)")
SOME_ON_SEVERAL = ("pottery", "redsync (Go)", "redis-semaphore (Node)")
BESIDE_TASKS = (RELOCK_THREADS, REDIS_PY_TASKS)
MANY = 32  # processes, in the README


def in_three_lines(report: dict[str, Any]) -> str:
    """Return the rows of the README: one master alone, one master with many processes, and several masters."""
    times = report["pairs"]["one"]["pairs_us"]["split"]
    alone = ", ".join(f"{name} {micros(times[name])}" for name in (RELOCK, BARE, *PEERS[:2]))
    rows = where(report["handoffs"], kind="processes")
    one = where(rows, masters=1, placement="split", section_ms=0.0)
    several = where(rows, masters=max(row["masters"] for row in rows))
    masters = several[0]["masters"]
    return "\n".join(
        [
            f"* acquire and release, nobody else wants it: {alone};",
            f"* hand-offs among {MANY} processes: {_rates_of(one, (ONE_HOP, *PEERS[:2]))};",
            f"* the same over {masters} masters: {_rates_of(several, SOME_ON_SEVERAL)}.",
        ]
    )


def _rates_of(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Return the hand-offs a second among many workers, ours first."""
    cell = where(rows, workers=MANY)
    rates = {row["contestant"]: middle(row, "handoffs_per_second") for row in cell}
    names = {our_way(cell): RELOCK, ONE_HOP: BARE}
    return ", ".join(f"{names.get(name, name)} {rate(rates[name])}" for name in (our_way(cell), *peers))


def in_short(report: dict[str, Any]) -> str:
    """Return microseconds, and hand-offs a second, on the machine of the run."""
    times = report["pairs"]["one"]["pairs_us"]["split"]
    lines = [
        _row(ALONE, times, (RELOCK, BARE), micros, PEERS),
        _row(ONE_MORE_LEVEL, {RELOCK: times[REENTRY], BARE: times[BARE]}, (RELOCK, BARE), micros, PEERS),
        *_rates(where(report["handoffs"], masters=1, placement="split", kind="processes", section_ms=0.0), PEERS),
    ]
    return f"{_where_it_ran(report)}\n\n{table(_head('', PEERS), lines)}"


def _several_in_short(report: dict[str, Any]) -> str:
    rows = where(report["handoffs"], kind="processes")
    masters = max(row["masters"] for row in rows)
    times = report["pairs"]["several"]["pairs_us"]["split"]
    rates = _rates(where(rows, masters=masters), PEERS_ON_SEVERAL)
    lines = [_row(ALONE, times, (RELOCK, BARE), micros, PEERS_ON_SEVERAL), *rates]
    return table(_head(f"{masters} masters", PEERS_ON_SEVERAL), lines)


def tasks_in_short(found: dict[str, Any]) -> str:
    """Return the rows about tasks for the page about performance."""
    times = found["pairs"]["one"]["pairs_us"]["split"]
    rates = _rates(where(found["handoffs"], placement="split"), BESIDE_TASKS, LOOP_HOP)
    lines = [_row(ALONE, times, (RELOCK_TASKS, LOOP_FLOOR), micros, BESIDE_TASKS), *rates]
    return table([TASKS, strong(RELOCK_TASKS), "bare on a loop", "relock / bare on a loop", *BESIDE_TASKS], lines)


def _head(title: str, peers: Sequence[str]) -> list[str]:
    ours, *floors = SUMMARY_HEAD
    return [title, f"**{ours}**", *floors, *peers]


def _row(
    what: str, found: dict[str, float], pair: tuple[str, str], written: Callable[[float], str], peers: Sequence[str]
) -> list[str]:
    """Return the times of relock, with its multiple of the floor, of the floor, and of the peers."""
    own, floor, *others = ("" if name not in found else written(found[name]) for name in (*pair, *peers))
    return [what, own, floor, ratio(found[pair[0]] / found.get(pair[1], math.nan)), *others]


def _rates(rows: Sequence[Row], peers: Sequence[str], floor: str = ONE_HOP) -> Iterator[list[str]]:
    """Yield the hand-offs among each number of workers."""
    for workers in sorted({row["workers"] for row in rows}):
        cell = where(rows, workers=workers)
        rates = {row["contestant"]: middle(row, "handoffs_per_second") for row in cell}
        yield _row(handoffs_among(workers, cell[0]["kind"]), rates, (our_way(cell), floor), rate, peers)


def for_users(report: dict[str, Any]) -> str:
    """Return the rows for the page about performance."""
    judged = goals(report)
    missed = sum(not goal.is_met for goal in judged)
    list_of_them = f"{missed} of {len(judged)} [goals](../results/benchmark.md#goals-and-what-is-missed) are missed."
    return "\n\n".join([in_short(report), _several_in_short(report), tasks_in_short(report["aio"]), list_of_them])


def _where_it_ran(report: dict[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    return (
        f"On {machine['cpus']} CPUs of a virtual machine ({machine['processor']}, {machine['system']}), clients on one "
        f"and the server on the other; Python {versions['Python']}, {versions['server']}."
    )


# Files ----------------------------------------------------------------------------------------------------------------


def pages(report: dict[str, Any]) -> dict[Path, str]:
    """Return the text that each page must have."""
    contents = {PAGE: rendered(report), USERS_PAGE: for_users(report), README: in_three_lines(report)}
    return {path: _with_content(path, content) for path, content in contents.items()}


def _with_content(path: Path, content: str) -> str:
    """Return the page of this path with `content` between its marks."""
    begin, end = MARKS[path]
    before, _, rest = path.read_text().partition(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def load() -> dict[str, Any]:
    """Return the latest report."""
    report: dict[str, Any] = json.loads(RESULT.read_text())
    return report


def write() -> None:
    """Write the tables into the pages, and the plots beside them."""
    from bench.plots import draw

    report = load()
    for path, page in pages(report).items():
        path.write_text(page)
    draw(report, PAGE.parent / "plots")


if __name__ == "__main__":
    write()
