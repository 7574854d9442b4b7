"""The table of `relock top`: its columns in each width, the order of its rows, and texts that fit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support.screens import lock, owner

from relock import LatchInfo, LockInfo, SemaphoreInfo
from relock._doctor.findings import Examination, Verdict
from relock.cli._states import State
from relock.cli._top.sampler import Row, next_row
from relock.cli._top.table import COLUMNS, LINES_MAX, PADDING, columns_for, fold, in_order, line_of


def row_of(state: State) -> Row:
    return next_row(None, state, 0.0)


def shown(state: State, width: int = 119) -> dict[str, str]:
    return {column.heading: column.text(row_of(state)) for column in columns_for(width)}


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (20, "NAME HOLDER"),
        (59, "NAME HOLDER ≈FIRST_FOR WAITERS"),
        (79, "NAME HOLDER ≈HELD_FOR ≈FIRST_FOR TTL_LEFT WAITERS"),
        (119, "NAME KIND HOLDER COUNT ≈HELD_FOR ≈FIRST_FOR TTL_LEFT WAITERS ≈TOKENS/S"),
    ],
)
def test_the_columns_of_each_width(width: int, headings: str) -> None:
    assert [column.heading.replace(" ", "_") for column in columns_for(width)] == headings.split()


def test_columns_fill_each_width_and_are_as_wide_as_they_must() -> None:
    least = {column.heading: column.width for column in COLUMNS}
    for width in range(40, 250):
        columns = columns_for(width)
        assert sum(column.width + PADDING for column in columns) == width
        assert all(column.width >= least[column.heading] >= len(column.heading) for column in columns)


def test_a_lock_a_semaphore_and_a_latch_in_words() -> None:
    held = shown(lock("a\x1b", owner("web", 9), 4000.0, 4.25, (75.0, 2.0), count=2))
    assert list(held.values()) == ["a\\x1b", "lock", "process 9 on web", "2", "1h6m", "1m15s", "4.2s", "2", "-"]
    semaphore = shown(SemaphoreInfo("gpu", 4, 3, (), ("a:1",), waits=(9.0,)), 79)
    assert (semaphore["NAME"], semaphore["WAITERS"], semaphore["≈HELD FOR"]) == ("gpu (semaphore)", "1", "-")
    latch = shown(LatchInfo("go", 3, ("a",)))
    assert (latch["HOLDER"], latch["KIND"], latch["WAITERS"]) == ("closed: 2 of 3 are missing", "latch", "-")
    assert shown(LockInfo("a", None, 0, float("inf"), None, ()))["TTL LEFT"] == "-"


@pytest.mark.parametrize(("rate", "text"), [(0.0, "0.00"), (3.456, "3.46"), (1234.56, "1234.6"), (None, "-")])
def test_a_rate(rate: float | None, text: str) -> None:
    facts: dict[str, Any] = {"tokens_per_second": rate}
    assert COLUMNS[-1].text(Row(lock("a", "b", 1.0, 1.0), 0.0, facts)) == text


@pytest.mark.parametrize("longest", [0.0, 59.9, 3599.0, 86399.0, 315_360_000.0])
def test_each_time_fits_its_column(longest: float) -> None:
    texts = shown(lock("a", "b", longest, longest, (longest,)))
    for column in columns_for(119):
        if column.heading in ("≈HELD FOR", "≈FIRST FOR", "TTL LEFT"):
            assert len(texts[column.heading]) <= column.width


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("orders:42", ["orders:42"]),
        ("process 7 on web-1, owner='job'", ["process 7 on", "web-1,", "owner='job'"]),
        ("orders:eu:4711", ["orders:eu:", "4711"]),
        ("x" * 30, ["x" * 12, "x" * 12, "x" * 6]),
        ("a:" * 30, [*["a:" * 6] * 3, "…:" + "a:" * 5]),
        ("漢字" * 5, ["漢字" * 3, "漢字" * 2]),
    ],
)
def test_a_text_is_folded_between_its_words(text: str, lines: list[str]) -> None:
    assert fold(text, 12) == lines


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=100), st.integers(4, 30))
def test_a_folded_text_fits_and_is_whole_unless_it_is_long(text: str, width: int) -> None:
    lines = fold(text, width)
    assert len(lines) <= LINES_MAX
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines) == text or lines[-1].startswith("…")


def test_the_orders() -> None:
    rows = [
        row_of(lock("long", "b", 9.0, 5.0)),
        row_of(lock("first", "b", 1.0, 9.0, (8.0, 1.0))),
        row_of(lock("second", "b", 2.0, 8.0, (3.0, 1.0))),
        row_of(LatchInfo("latch", 3, ())),
    ]
    names = {sort: [row.state.name for row in in_order(rows, sort)] for sort in ("queue", "held", "ttl")}
    assert names == {
        "queue": ["first", "second", "latch", "long"],
        "held": ["long", "second", "first", "latch"],
        "ttl": ["long", "second", "first", "latch"],
    }


def test_the_line_of_a_master() -> None:
    one = Examination("redis://a:6379/0")
    one.add("reachable", Verdict.WRONG, "no answer\x1b")
    assert line_of(one) == "redis://a:6379/0  no answer\\x1b"
    good = Examination("redis://a:6379/0", reachable=True, clock_offset=(-0.002, 0.004))
    good.add("version", Verdict.OK, "Redis 8.2.0")
    assert line_of(good) == "redis://a:6379/0  Redis 8.2.0  no guard  clock +0.001 s"
    good.vote_in = 0.0
    assert "  votes  " in line_of(good)
    good.vote_in = 90.0
    assert "  no vote for 1 min 30 s  " in line_of(good)
    good.slots = 5461
    assert "  5461 slots  " in line_of(good)
