"""Output of `relock bench`, of invented figures; and that the floor is the published one."""

import hashlib
from io import StringIO

import pytest
from rich.console import Console

from relock.cli._bench.figures import Beside, Figures, Pairs
from relock.cli._bench.floor.sockets import FOLDER
from relock.cli._bench.run import BenchPlan, Found
from relock.cli._bench.show import show
from relock.cli._bench.words import ALONE, BARE, JAIN, ONE_MORE_LEVEL, REENTRY, RELOCK

IN_USE = "of the time, the lock is in use"


def pairs(median_us: float) -> Pairs:
    return Pairs(pairs=100, median_us=median_us, p99_us=3 * median_us, pairs_per_second=1e6 / median_us)


def handed(median_us: float, per_second: float) -> Figures:
    return Figures(
        turns=100,
        handoffs=100,
        turns_per_second=per_second,
        handoffs_per_second=per_second,
        median_us=median_us,
        p99_us=4 * median_us,
        jain=0.997,
        in_use=0.1,
        overlaps=0,
        out_of_order=0,
    )


def shown(found: Found, section_seconds: float = 0.0) -> list[list[str]]:
    """Return the cells of each line."""
    plan = BenchPlan((8,), threads=False, seconds=1.0, section_seconds=section_seconds)
    console = Console(file=StringIO(), width=200)
    show(console, "a title", plan, found)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines]


def test_each_figure_stands_beside_the_floors_and_their_ratio() -> None:
    floor = pairs(40.0)
    cells = shown(
        Found(
            {RELOCK: Beside(pairs(60.0), floor), REENTRY: Beside(pairs(50.0), floor)},
            {8: Beside(handed(200.0, 4000.0), handed(100.0, 10_000.0))},
            [],
        )
    )
    for row in (
        ["", "relock", BARE, "relock / bare sockets"],
        [ALONE, "60 µs", "40 µs", "1.50"],
        [ONE_MORE_LEVEL, "50 µs", "40 µs", "1.25"],
        ["hand-offs among 8 processes", "4,000/s", "10,000/s", "0.40"],
        ["a hand-off, median", "200 µs", "100 µs", "2.00"],
        ["a hand-off, 99 % within", "800 µs", "400 µs", "2.00"],
        [JAIN, "0.997", "0.997", "1.00"],
    ):
        assert row in cells
    assert not [row for row in cells if row[0] == IN_USE]


def test_without_a_floor_relocks_figures_stand_alone_and_it_says_why() -> None:
    cells = shown(
        Found(
            {RELOCK: Beside(pairs(60.0), None), REENTRY: Beside(pairs(50.0), None)},
            {8: Beside(handed(200.0, 4000.0), None)},
            ["NOPERM [bold]not\x1b allowed"],
        )
    )
    assert [ALONE, "60 µs", "", ""] in cells
    assert ["hand-offs among 8 processes", "4,000/s", "", ""] in cells
    assert [JAIN, "0.997", "", ""] in cells
    assert ["No floor: NOPERM [bold]not\\x1b allowed."] in cells


def test_where_the_lock_is_held_for_a_while_it_says_for_how_much_of_the_time() -> None:
    alone = {way: Beside(pairs(60.0), None) for way in (RELOCK, REENTRY)}
    by_workers = {8: Beside(handed(200.0, 4000.0), handed(100.0, 10_000.0))}
    assert [IN_USE, "10%", "10%", "1.00"] in shown(Found(alone, by_workers, []), section_seconds=0.001)


@pytest.mark.parametrize(
    ("script", "digest"),
    [
        ("take", "5c737d1375255c5c156c249989df6568a662033d"),
        ("give", "c90786d7211f10c2c62ba837bcdc7df7fceb9da7"),
        ("enter", "340c830acc55e609a956d661f0b959334cfb011e"),
        ("grant", "847f06781b20e8f9eace8ca4a352de0de50b9e59"),
    ],
)
def test_the_floors_scripts_never_change(script: str, digest: str) -> None:
    """Ratios that were published could otherwise not be compared with later ones."""
    assert hashlib.sha1((FOLDER / f"{script}.lua").read_bytes()).hexdigest() == digest
