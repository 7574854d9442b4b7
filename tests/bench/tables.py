"""Tables of the documentation, as Markdown: pairs, hand-offs, and the conditions of a run."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.goals import PLACES
from bench.names import FLOORS
from bench.quiet import STOLEN_MAX
from bench.rows import Row, contestants, middle, multiple, of, stolen, where
from relock.cli._bench.words import ratio

COMMIT_DIGITS = 10
SPEED = ("median_us", "handoffs_per_second")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def strong(name: str) -> str:
    """Return the name, in bold type for our own contestants."""
    return f"**{name}**" if name.startswith("relock") and "bare" not in name else name


def what_ran(report: dict[str, Any]) -> str:
    """Return the machine, the time, the contestants, and the disturbances."""
    machine = report["machine"]
    sha, dirty, _ = report["commit"].partition("-dirty")
    taking_part = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return (
        f"One run of {report['seconds'] / 60:.0f} minutes, of `{sha[:COMMIT_DIGITS]}{dirty}`. {machine['cpus']} CPUs "
        f"({machine['processor']}, {machine['system']}), with a load of {machine['load_before']} when it began. "
        f"{taking_part}. {_disturbed(stolen(report))}"
    )


def _disturbed(parts: Sequence[float]) -> str:
    """Return the number of rounds that other programs disturbed, however often the rounds were played."""
    much = [part for part in parts if part > STOLEN_MAX]
    if not much:
        most = max(parts, default=0.0)
        return f"The host took at most {most:.1%} of the CPUs' time from any of the {len(parts)} rounds that count."
    return (
        f"Of {len(parts)} rounds, {len(much)} were disturbed however often they were played again: the host took "
        f"{min(much):.1%} to {max(much):.1%} of the CPUs' time."
    )


def pairs_table(title: str, found: dict[str, Any], of_what: str, floor: Callable[[str], str]) -> str:
    """Return the times of pairs, each as a multiple of the contestant that `floor` names for it."""
    placements = list(found["pairs_us"])
    head = [title, *(cell for place in placements for cell in (PLACES[place], of_what))]
    rows = []
    for name in found["pairs_us"][placements[0]]:
        cells = []
        for place in placements:
            medians, rounds = found["pairs_us"][place], found["rounds_us"][place][name]
            cells += [f"{medians[name]:,.0f} ({_spread(rounds)})", ratio(medians[name] / medians[floor(name)])]
        rows.append([strong(name), *cells])
    return table(head, rows)


def _spread(values: Sequence[float]) -> str:
    """Return the values between which half of the figures lie."""
    if len(values) < 2:
        return "one round"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{low:,.0f} to {high:,.0f}"


def by_workers(kind: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield two tables of hand-offs, with a column for each number of workers."""
    workers = sorted({row["workers"] for row in rows})
    for title, cell_of in (
        (f"{kind}: median in µs, hand-offs a second (each: of the bare one hop)", _speed),
        (f"{kind}: 99 % in µs, Jain's index, commands a hand-off", _manner),
    ):
        lines = []
        for name in contestants(rows):
            own = [(of(where(rows, workers=count), name), where(rows, workers=count)) for count in workers]
            lines.append([strong(name), *("" if row is None else cell_of(row, cell) for row, cell in own)])
        yield table([title, *(str(count) for count in workers)], lines)


def _speed(row: Row, cell: Sequence[Row]) -> str:
    """Return a hand-off's median and the rate, each with its multiple of the floor's, where there is one."""
    floor = of(cell, FLOORS[cell[0]["kind"]])
    values = [middle(row, figure) for figure in SPEED]
    if math.isnan(values[0]):
        return "no hand-off"
    floors = [math.nan if floor is None else middle(floor, figure) for figure in SPEED]
    multiples = [ratio(multiple(value, other)) for value, other in zip(values, floors, strict=True)]
    cells = zip(values, multiples, strict=True)
    return ", ".join(f"{value:,.0f} ({multiple})" if multiple else f"{value:,.0f}" for value, multiple in cells)


def _manner(row: Row, _cell: Sequence[Row]) -> str:
    """Return the evenness of hand-offs, their commands, and, with sections that take time, the part of time in use."""
    p99_us, jain, commands = (middle(row, figure) for figure in ("p99_us", "jain", "commands_per_handoff"))
    if math.isnan(p99_us):
        return ""
    in_use = f", {middle(row, 'in_use'):.0%} in use" if row["section_ms"] else ""
    return f"{p99_us:,.0f}, {jain:.3f}, {commands:.1f}{in_use}"
