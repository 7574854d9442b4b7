"""What the documentation shows of ``docs/results/bench.json``; ``python -m bench.page`` in ``tests`` makes it anew.

These are the tables and plots of ``docs/results/benchmark.md``, and a few rows of them in the README and in
``docs/concepts/performance.md``. The tables are a part of their page, between two marks, so that they can be read where
nothing is built; a test compares.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.aio import page as aio_page
from bench.goals import PLACES, Goal, goals
from bench.rows import Row, middle, our_way, where
from bench.tables import by_workers, pairs_table, table, what_ran
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
MARKS = {
    PAGE: ("<!-- What follows is made from results/bench.json. -->", "<!-- This was made from results/bench.json. -->"),
    USERS_PAGE: (
        "<!-- What follows is made from results/bench.json. -->",
        "<!-- This was made from results/bench.json. -->",
    ),
    README: (
        "<!-- What follows is made from docs/results/bench.json. -->",
        "<!-- This was made from docs/results/bench.json. -->",
    ),
}


def rendered(report: dict[str, Any]) -> str:
    """All that is made of the figures."""
    return "\n\n".join(
        [
            what_ran(report),
            "## Goals, and what is missed",
            _goals(goals(report)),
            "## Nobody else wants it",
            *_alone(report["pairs"]),
            "## Handed over",
            *_handed_over(report["handoffs"]),
            "## Handed over, on several masters",
            *_on_several(report["handoffs"]),
            *aio_page.rendered(report),
        ]
    )


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


def _alone(pairs: dict[str, Any]) -> Iterator[str]:
    yield "![One acquire and release, as a multiple of bare sockets](plots/alone.svg)"
    for title, found in (
        ("one master, µs (half of the rounds)", pairs["one"]),
        ("five masters, µs (half of the rounds)", pairs["several"]),
    ):
        yield pairs_table(title, found, "of bare sockets", lambda _: BARE)
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


PEERS = ("redis-py Lock", "python-redis-lock", "redislock (Go)", "rueidislock (Go)")
PEERS_ON_SEVERAL = ("redlock-py", "pottery", "redis-semaphore (Node)", "redlock (Node)", "redsync (Go)")


def in_short(report: dict[str, Any]) -> str:
    """What the README shows: microseconds, and hand-offs a second, on the machine of the run."""
    times = report["pairs"]["one"]["pairs_us"]["split"]
    reentries = {RELOCK: times[REENTRY], BARE: times[BARE]}
    lines = [_row(ALONE, times, RELOCK, micros, PEERS), _row(ONE_MORE_LEVEL, reentries, RELOCK, micros, PEERS)]
    rows = where(report["handoffs"], masters=1, placement="split", kind="processes", section_ms=0.0)
    lines += _rates(rows, PEERS)
    return f"{_where_it_ran(report)}\n\n{table(_head('', PEERS), lines)}"


def _head(title: str, peers: Sequence[str]) -> list[str]:
    ours, *floors = SUMMARY_HEAD
    return [title, f"**{ours}**", *floors, *peers]


def _row(
    what: str, found: dict[str, float], ours: str, written: Callable[[float], str], peers: Sequence[str]
) -> list[str]:
    """What relock and the floor take, the one as a multiple of the other, and what the peers take."""
    own, floor, *others = ("" if name not in found else written(found[name]) for name in (ours, BARE, *peers))
    return [what, own, floor, ratio(found[ours] / found.get(BARE, math.nan)), *others]


def _rates(rows: Sequence[Row], peers: Sequence[str]) -> Iterator[list[str]]:
    """The hand-offs among each number of processes."""
    for workers in sorted({row["workers"] for row in rows}):
        cell = where(rows, workers=workers)
        rates = {row["contestant"]: middle(row, "handoffs_per_second") for row in cell}
        rates |= {BARE: rates[ONE_HOP]} if ONE_HOP in rates else {}
        yield _row(handoffs_among(workers, "processes"), rates, our_way(cell), rate, peers)


def for_users(report: dict[str, Any]) -> str:
    """What the page about performance shows: the README's table, the same on several masters, and what is missed."""
    tables = [in_short(report), _several_in_short(report), *aio_page.in_short(report)]
    return "\n\n".join([*tables, _missed(goals(report))])


def _several_in_short(report: dict[str, Any]) -> str:
    rows = where(report["handoffs"], kind="processes")
    masters = max(row["masters"] for row in rows)
    times = report["pairs"]["several"]["pairs_us"]["split"]
    rates = _rates(where(rows, masters=masters), PEERS_ON_SEVERAL)
    lines = [_row(ALONE, times, RELOCK, micros, PEERS_ON_SEVERAL), *rates]
    return table(_head(f"{masters} masters", PEERS_ON_SEVERAL), lines)


def _missed(found: Sequence[Goal]) -> str:
    missed = [f"* {goal.what}: {_measured(goal)}; the goal is {_bound(goal)}" for goal in found if not goal.is_met]
    return "\n".join([f"Of {len(found)} goals, {len(missed)} are missed:", "", *missed])


def _measured(goal: Goal) -> str:
    more = "; ".join(part for part in (goal.where, goal.figures) if part)
    return f"{goal.measured:.2f}{f' ({more})' if more else ''}"


def _where_it_ran(report: dict[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    return (
        f"On {machine['cpus']} CPUs of a virtual machine ({machine['processor']}, {machine['system']}), clients on one "
        f"and the server on the other; Python {versions['Python']}, {versions['server']}."
    )


def page_with(path: Path, page: str, content: str) -> str:
    """The page of this path with this between its marks."""
    begin, end = MARKS[path]
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def pages(report: dict[str, Any]) -> dict[Path, str]:
    """The pages as they must be."""
    contents = {PAGE: rendered(report), USERS_PAGE: for_users(report), README: in_short(report)}
    return {path: page_with(path, path.read_text(), content) for path, content in contents.items()}


def load() -> dict[str, Any]:
    """The latest report."""
    report: dict[str, Any] = json.loads(RESULT.read_text())
    return report


def write() -> None:
    """Writes the tables into the page, and the plots beside it."""
    from bench.plots import draw

    report = load()
    for path, page in pages(report).items():
        path.write_text(page)
    draw(report, PAGE.parent / "plots")


if __name__ == "__main__":
    write()
