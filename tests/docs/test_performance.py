"""The benchmark's page of results, the page about performance and the README say what the benchmark's results say."""

import copy

from bench.goals import goals
from bench.handoff.contestants import ONE_HOP, TWO_HOPS
from bench.page import MARKS, PAGE, README, USERS_PAGE, load, pages, rendered
from bench.rows import of, our_way


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


def test_the_readme_says_what_was_measured_on_five_masters() -> None:
    said = {goal.what: goal.measured for goal in goals(load())}
    semaphore = said["5 masters, 8 processes: hand-offs / redis-semaphore (Node)"]
    redsync = said["5 masters, 32 processes: hand-offs / redsync (Go)"]
    text = " ".join(README.read_text().split())
    assert f"{semaphore:.1f} times as many hand-offs as Node's redis-semaphore among 8 processes" in text
    assert f"{redsync:.1f} times as many as Go's redsync among 32" in text


def test_no_turn_of_ours_or_of_the_floors_overlapped_another() -> None:
    for row in load()["handoffs"]:
        if row["contestant"] in (ONE_HOP, TWO_HOPS) or row["contestant"].startswith("relock"):
            assert not any(one.get("overlaps") or one.get("out_of_order") for one in row["rounds"]), row


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
    assert not _median_goal(report)[1], "a figure that is missing is a goal that is missed"


def _median_goal(report: dict[str, object]) -> tuple[float, bool]:
    goal = next(goal for goal in goals(copy.deepcopy(report)) if goal.what.startswith("hand-off, median"))
    return round(goal.measured, 3), goal.is_met
