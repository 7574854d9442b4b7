"""The benchmark's page of results, the page about performance and the README agree with the benchmark's results."""

import copy
import subprocess
import sys
from typing import Any

import pytest
from bench.goals import goals, of_pairs, of_tasks
from bench.names import RELOCK_TASKS, RELOCK_THREADS, TWO_HOPS
from bench.page import MARKS, PAGE, README, USERS_PAGE, in_short, load, pages, rendered
from bench.rows import middle, of, our_way, where

from relock.cli._bench.words import BARE, ONE_HOP, RELOCK, RELOCKS_HOP


def test_the_tables_say_what_the_results_say() -> None:
    for path, page in pages(load()).items():
        assert path.read_text() == page, "python -m bench.page, in tests, makes them anew"


def test_the_plots_are_there() -> None:
    text = rendered(load())
    plots = sorted(path.name for path in (PAGE.parent / "plots").glob("*.svg"))
    assert plots == ["alone.svg", "fairness.svg", "latency.svg", "rate.svg"]
    assert all(f"(plots/{name})" in text for name in plots)


def test_other_results_change_the_tables_and_nothing_else() -> None:
    report = load()
    report["pairs"]["one"]["pairs_us"]["same"]["relock"] = 98765.0
    report["pairs"]["one"]["pairs_us"]["split"]["relock"] *= 1000
    others = pages(report)
    assert "98,765" in others[PAGE]
    for short in (README, USERS_PAGE):
        assert others[short] != short.read_text()
    for path, page in pages(load()).items():
        begin, end = MARKS[path]
        assert others[path].partition(begin)[0] == page.partition(begin)[0]
        assert others[path].partition(end)[2] == page.partition(end)[2] != ""


def test_the_changelog_says_what_memory_a_waiting_task_takes() -> None:
    kilobytes = max(goal.measured for goal in of_tasks(load()["aio"]) if "KB for each" in goal.what)
    text = " ".join((README.parent / "CHANGELOG.md").read_text().split())
    assert f"10,000 tasks that wait take about {kilobytes:.0f} KB each" in text


def test_a_hand_off_among_tasks_takes_about_as_long_as_one_among_threads() -> None:
    def time_of(name: str) -> float:
        return sum(middle(row, "median_us") for row in load()["aio"]["handoffs"] if row["contestant"] == name)

    assert 0.8 < time_of(RELOCK_TASKS) / time_of(RELOCK_THREADS) < 1.25
    assert "takes about as long as one among threads of a process" in " ".join(USERS_PAGE.read_text().split())


def test_no_turn_of_ours_or_of_the_floors_overlapped_another() -> None:
    for row in load()["handoffs"]:
        if row["contestant"] in (ONE_HOP, TWO_HOPS) or row["contestant"].startswith("relock"):
            assert not any(one.get("overlaps") or one.get("out_of_order") for one in row["rounds"]), row


def test_the_page_about_costs_counts_the_modules() -> None:
    code = "import sys, relock; print(sum(name.split('.')[0] == 'relock' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{done.stdout.strip()} compiled modules" in " ".join((USERS_PAGE.parent / "cost.md").read_text().split())


def test_a_goal_is_judged_where_it_is_missed_worst() -> None:
    report = load()
    rows = [row for row in report["handoffs"] if row["masters"] == 1 and row["placement"] != "unpinned"]
    ours = our_way(rows)
    for row in rows:
        row["rounds"] = [{"median_us": 100.0 if row["contestant"] == ONE_HOP else 110.0}]
    assert _median_goal(report) == (1.1, True)
    slow = of([row for row in rows if row["workers"] == 8], ours)
    assert slow is not None
    slow["rounds"] = [{"median_us": 300.0}]
    assert _median_goal(report) == (3.0, False)
    slow["rounds"] = [{"failed": "no master"}]
    assert not _median_goal(report)[1], "a missing figure is a missed goal"


def _median_goal(report: dict[str, object]) -> tuple[float, bool]:
    goal = next(goal for goal in goals(copy.deepcopy(report)) if goal.what.startswith("hand-off, median"))
    return round(goal.measured, 3), goal.is_met


def test_a_ratio_has_the_figures_that_it_is_made_of_beside_it() -> None:
    report = load()
    report["pairs"]["one"]["import_seconds"] = {"relock": 0.15, "redis": 0.1}
    by_themselves = (
        "Jain's index",
        "commands a hand-off",
        "the part of the time in which the lock is in use",
        "seconds until",
    )
    for goal in goals(report):
        is_by_itself = goal.what.removeprefix("tasks: ").startswith(by_themselves) or "tasks wait:" in goal.what
        assert (goal.figures == "") == is_by_itself, goal
    assert "| 1.50, **missed** | 150 ms / 100 ms |" in rendered(report)


def test_the_table_of_the_readme_has_the_ratio_to_the_floor_beside_both_figures() -> None:
    rows = [line.split("|")[2:5] for line in in_short(load()).splitlines() if "wants it" in line or "among" in line]
    assert len(rows) == 5
    for row in rows:
        ours, floors, ratio = (float(cell.replace(",", "").removesuffix("/s ").removesuffix("µs ")) for cell in row)
        assert ratio == pytest.approx(ours / floors, abs=0.02)


def test_how_long_the_lock_is_in_use_is_judged_where_it_was_measured() -> None:
    report = load()
    for row in report["handoffs"]:
        for one in row["rounds"]:
            one["in_use"] = 0.9 if row["section_ms"] else 0.1
    assert _in_use(report) == (0.9, True)
    assert "90% in use" in rendered(report)
    assert "10% in use" not in rendered(report), "an empty section uses no time"
    worst = next(row for row in report["handoffs"] if row["section_ms"] and row["contestant"] == RELOCKS_HOP)
    worst["rounds"] = [{"in_use": 0.8}]
    assert _in_use(report) == (0.8, False)


def _in_use(report: dict[str, Any]) -> tuple[float, bool]:
    (goal,) = (goal for goal in goals(report) if "in use" in goal.what)
    return goal.measured, goal.is_met


def test_a_rate_is_judged_against_that_of_the_best_peer_under_the_same_conditions() -> None:
    report = load()
    for row in where(report["handoffs"], masters=1):
        row["rounds"] = [{"handoffs_per_second": 1000.0 if row["contestant"].startswith("relock") else 100.0}]
    peer = of(where(report["handoffs"], masters=1, workers=8, kind="threads"), "python-redis-lock")
    assert peer is not None
    peer["rounds"] = [{"handoffs_per_second": 800.0}]
    (goal,) = (goal for goal in goals(report) if "the best peer" in goal.what)
    assert (goal.measured, goal.is_met) == (1.25, False)
    assert (goal.where, goal.figures) == ("8 threads, python-redis-lock", "1,000/s / 800/s")


def test_a_bound_is_what_must_be_and_an_aim_is_what_would_be_better() -> None:
    report = load()
    times = report["pairs"]["several"]["pairs_us"]["split"]
    times[RELOCK] = 1.25 * times[BARE]
    (goal,) = (
        goal for goal in goals(report) if goal.what == "five masters: acquire + release / bare sockets, two CPUs"
    )
    assert goal.is_met
    assert "at most 1.3 (aimed at: 1.2)" in rendered(report)


def test_a_part_of_the_benchmark_is_judged_by_itself() -> None:
    pairs = load()["pairs"]
    one, several = (list(of_pairs({part: pairs[part]})) for part in ("one", "several"))
    assert [goal.what for goal in (*one, *several)] == [goal.what for goal in of_pairs(pairs)]
    assert not list(of_pairs({}))
