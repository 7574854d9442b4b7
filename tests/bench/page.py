"""Tables and plots of ``docs/results/bench.json``; ``python -m bench.page`` in ``tests`` makes them anew.

These are the tables and plots of ``docs/results/benchmark.md``, a few figures of them in the README, and a few rows in
``docs/concepts/performance.md``. Each table is a part of its page, between two marks, so that it can be read without
building the documentation. A test compares.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.goals import PLACES, Goal, goals
from bench.names import (
    KINDS,
    LOOP_FLOOR,
    LOOP_HOP,
    READERS,
    REDIS_PY_TASKS,
    RELOCK_TASKS,
    RELOCK_THREADS,
    TASKS,
    floor_for,
)
from bench.rows import CONDITIONS, Row, cells, middle, multiple, our_way, waited, where
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
PLOTS = (
    "![Hand-offs a second, by the number of workers](plots/rate.svg)",
    "![Median of a hand-off, by the number of workers](plots/latency.svg)",
    "![Jain's index, by the number of workers](plots/fairness.svg)",
)


def rendered(report: dict[str, Any]) -> str:
    """Return all tables of the parts that were measured."""
    parts = [what_ran(report)] if "machine" in report else []
    parts += ["## Goals, and what is missed", _goals(goals(report))]
    if pairs := report.get("pairs"):
        parts += ["## Nobody else wants it", *_alone(pairs)]
    if rows := report.get("handoffs"):
        several = [row for row in rows if row["masters"] > 1]
        parts += ["## Handed over", *PLOTS, *_handed_over(where(rows, masters=1), _conditions)]
        parts += ["## Handed over, on several masters", *_handed_over(several, lambda row: f"{row['masters']} masters")]
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


def _handed_over(rows: Sequence[Row], title: Callable[[Row], str]) -> Iterator[str]:
    """Yield tables of hand-offs under each title: one after another for each kind of workers."""
    for under_one in cells(rows, CONDITIONS[:3]):
        yield f"### {title(under_one[0])}"
        for of_kind in cells(under_one, ("kind",)):
            yield from by_workers(of_kind[0]["kind"], of_kind)


def _conditions(row: Row) -> str:
    place, section_ms = PLACES[row["placement"]], row["section_ms"]
    inside = f"each has it for {section_ms:g} ms" if section_ms else "empty critical section"
    return f"{place[0].upper()}{place[1:]}, {inside}"


def _of_threads(found: dict[str, Any]) -> str:
    """Return the cost of threads that wait, and the time until all readers had the lock."""
    costs = _waiting(found, {kind: kind for kind in found["rounds"]}, OF_THREADS)
    if READERS not in found["rounds"]:
        return costs
    seconds = waited(found, READERS)["served_seconds"]
    return f"{costs}\n\nOnce the writer's hold had ended, all had the read lock within {seconds:.2f} s."


Column = Callable[[dict[str, Any]], str]


def _if_any(figure: str, text: str) -> Column:
    """Return a column that is empty for a process without this figure."""
    return lambda found: text.format_map(found) if found[figure] else ""


OF_THREADS: dict[str, Column] = {
    "MB more": "{megabytes_more:.1f}".format_map,
    "of a CPU": "{cpu_part:.2%}".format_map,
    "threads more": "{threads:.0f}".format_map,
    "subscriptions": "{subscriptions:.0f}".format_map,
    "connections": "{connections:.0f}".format_map,
    "commands/s": "{calls_per_second:.1f}".format_map,
}
OF_TASKS: dict[str, Column] = {
    "memory, MB": "{megabytes:.1f}".format_map,
    "KB for each": "{kilobytes_each:.1f}".format_map,
    "of a CPU": "{cpu_part:.1%}".format_map,
    "threads more": "{threads:.0f}".format_map,
    "connections": "{all_connections:.0f}".format_map,
    "commands/s": "{calls_per_second:.1f}".format_map,
    "queued in": _if_any("queued_seconds", "{queued_seconds:.2f} s"),
    "half of them cancelled in": _if_any("cancelled_seconds", "{cancelled_seconds:.2f} s"),
    "the others served in": _if_any("served_seconds", "{served_seconds:.2f} s"),
    "slowest script": _if_any("slowest", "{slowest_ms:.1f} ms, {slowest}"),
}


def _waiting(found: dict[str, Any], kinds: dict[str, str], columns: dict[str, Column]) -> str:
    """Return a table with a row for each kind of process, by its name in the records."""
    rows = [[what, *(cell(waited(found, kind)) for cell in columns.values())] for kind, what in kinds.items()]
    return table(["they wait for", *columns], rows)


# Tasks ----------------------------------------------------------------------------------------------------------------


def _of_tasks(found: dict[str, Any]) -> Iterator[str]:
    """Yield the tables of those parts that were measured."""
    if "pairs" in found:
        yield from _both_pairs(found["pairs"], "of the floor on its loop", floor_for)
    one_process = "Among tasks of one process, {}, empty critical section"
    yield from _handed_over(found.get("handoffs", ()), lambda row: one_process.format(PLACES[row["placement"]]))
    if "waiting" in found:
        yield f"### {found['waiting']['tasks']:,} tasks that wait"
        yield _waiting(found["waiting"], KINDS, OF_TASKS)


# In short -------------------------------------------------------------------------------------------------------------

PEERS = ("redis-py Lock", "python-redis-lock", "redislock (Go)", "rueidislock (Go)")
PEERS_ON_SEVERAL = ("redlock-py", "pottery", "redis-semaphore (Node)", "redlock (Node)", "redsync (Go)")
SOME_ON_SEVERAL = ("pottery", "redsync (Go)", "redis-semaphore (Node)")
OF_OURS = (f"**{SUMMARY_HEAD[0]}**", *SUMMARY_HEAD[1:])
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
    rows = where(report["handoffs"], masters=1, placement="split", kind="processes", section_ms=0.0)
    return f"{_where_it_ran(report)}\n\n{_compared(['', *OF_OURS], times, rows, PEERS)}"


def _several_in_short(report: dict[str, Any]) -> str:
    rows = where(report["handoffs"], kind="processes")
    masters = max(row["masters"] for row in rows)
    times = report["pairs"]["several"]["pairs_us"]["split"]
    return _compared([f"{masters} masters", *OF_OURS], times, where(rows, masters=masters), PEERS_ON_SEVERAL)


def _tasks_in_short(found: dict[str, Any]) -> str:
    head = [TASKS, strong(RELOCK_TASKS), "bare on a loop", "relock / bare on a loop"]
    times, rows = found["pairs"]["one"]["pairs_us"]["split"], where(found["handoffs"], placement="split")
    peers, pair = (RELOCK_THREADS, REDIS_PY_TASKS), (RELOCK_TASKS, LOOP_FLOOR)
    return _compared(head, times, rows, peers, pair=pair, hop=LOOP_HOP)


def _compared(
    head: Sequence[str],
    times: dict[str, float],
    rows: Sequence[Row],
    peers: Sequence[str],
    *,
    pair: tuple[str, str] = (RELOCK, BARE),
    hop: str = ONE_HOP,
) -> str:
    """Return a table of times and of hand-offs a second: relock's, the floor's, their ratio, and those of the peers."""
    lines = [_line(ALONE, times, pair, micros, peers)]
    if REENTRY in times:
        lines.append(_line(ONE_MORE_LEVEL, {RELOCK: times[REENTRY], BARE: times[BARE]}, pair, micros, peers))
    for workers in sorted({row["workers"] for row in rows}):
        cell = where(rows, workers=workers)
        rates = {row["contestant"]: middle(row, "handoffs_per_second") for row in cell}
        lines.append(_line(handoffs_among(workers, cell[0]["kind"]), rates, (our_way(cell), hop), rate, peers))
    return table([*head, *peers], lines)


def _line(
    what: str, found: dict[str, float], pair: tuple[str, str], written: Callable[[float], str], peers: Sequence[str]
) -> list[str]:
    own, floor, *others = ("" if name not in found else written(found[name]) for name in (*pair, *peers))
    return [what, own, floor, ratio(multiple(found[pair[0]], found.get(pair[1], math.nan))), *others]


def for_users(report: dict[str, Any]) -> str:
    """Return the rows for the page about performance."""
    judged = goals(report)
    missed = sum(not goal.is_met for goal in judged)
    list_of_them = f"{missed} of {len(judged)} [goals](../results/benchmark.md#goals-and-what-is-missed) are missed."
    return "\n\n".join([in_short(report), _several_in_short(report), _tasks_in_short(report["aio"]), list_of_them])


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
