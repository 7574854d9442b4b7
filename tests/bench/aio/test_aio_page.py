"""The goals and tables of tasks say what was measured of them, and nothing where nothing was."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.aio import __main__ as program
from bench.aio.measure import PARTS, AioPlan
from bench.aio.names import KINDS, LOOP_FLOOR, LOOP_HOP, REDIS_PY_TASKS, RELOCK_TASKS, RELOCK_THREADS, on_uvloop
from bench.aio.page import floor_for, in_short, parts_rendered, rendered
from bench.goals import WAITING, goals, of_tasks
from bench.page import load
from bench.rows import stolen

TIMES_US = {
    LOOP_FLOOR: 50.0,
    RELOCK_TASKS: 70.0,
    on_uvloop(LOOP_FLOOR): 40.0,
    on_uvloop(RELOCK_TASKS): 60.0,
    RELOCK_THREADS: 55.0,
    REDIS_PY_TASKS: 150.0,
}
RATES = {LOOP_HOP: 10_000.0, RELOCK_TASKS: 6_000.0, RELOCK_THREADS: 8_000.0, REDIS_PY_TASKS: 8.0}
WAITED = {
    "memory_bytes": 110_000_000,
    "cpu_part": 0.04,
    "threads": 3,
    "subscriptions": 1,
    "connections": 2,
    "calls_per_second": 15.0,
    "queued_seconds": 3.0,
    "cancelled_seconds": 1.0,
    "served_seconds": 2.0,
    "slowest_us": 5_000,
    "slowest": "enqueue",
    "left": 0,
    "stolen": 0.0,
}
NOBODY = {**WAITED, "memory_bytes": 30_000_000, "queued_seconds": 0.0}


def of_pairs() -> dict[str, Any]:
    places = ("same", "split")
    return {
        "pairs_us": {place: dict(TIMES_US) for place in places},
        "rounds_us": {place: {name: [time] for name, time in TIMES_US.items()} for place in places},
        "stolen": {place: [0.0] for place in places},
    }


def row(contestant: str, workers: int, per_second: float) -> dict[str, Any]:
    one = {"median_us": 1e6 / per_second, "p99_us": 2e6 / per_second, "handoffs_per_second": per_second}
    conditions = {"masters": 1, "placement": "split", "kind": "tasks", "workers": workers, "section_ms": 0.0}
    rounds = [{**one, "jain": 0.99, "commands_per_handoff": 2.1, "stolen": 0.0}]
    return {**conditions, "contestant": contestant, "rounds": rounds}


@pytest.fixture
def found() -> dict[str, Any]:
    """What meets every goal, if barely."""
    return {
        "machine": {"cpus": 2, "processor": "one", "system": "Linux", "load_before": 0.0},
        "commit": 40 * "a",
        "versions": {"Python": "3.11"},
        "seconds": 400,
        "pairs": {"one": of_pairs(), "several": of_pairs()},
        "handoffs": [row(name, workers, rate) for workers in (2, 8) for name, rate in RATES.items()],
        "waiting": {"tasks": 10_000, "rounds": {kind: [NOBODY if kind == "nobody" else WAITED] for kind in KINDS}},
    }


def test_a_goal_that_is_just_reached_is_met(found: dict[str, Any]) -> None:
    judged = list(of_tasks(found))
    assert len(judged) == 4 + len(WAITING)
    assert not [goal for goal in judged if not goal.is_met]


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("memory_bytes", 110_100_000),
        ("cpu_part", 0.05),
        ("connections", 3),
        ("calls_per_second", 16.0),
        ("queued_seconds", 3.1),
        ("cancelled_seconds", 1.1),
        ("slowest_us", 5_100),
        ("left", 1),
    ],
)
def test_a_goal_of_waiting_tasks_is_missed_for_one_lock_or_for_many(
    figure: str, value: float, found: dict[str, Any]
) -> None:
    for kind, where in (("lock", "one lock"), ("locks", "20 locks")):
        rounds = {**found["waiting"]["rounds"], kind: [{**WAITED, figure: value}]}
        (missed,) = (goal for goal in of_tasks({"waiting": {**found["waiting"], "rounds": rounds}}) if not goal.is_met)
        assert missed.where == where


def test_pairs_are_judged_on_one_cpu_and_hand_offs_where_they_are_slowest(found: dict[str, Any]) -> None:
    found["pairs"]["one"]["pairs_us"]["same"][RELOCK_TASKS] = 75.0
    found["handoffs"][1] = row(RELOCK_TASKS, 2, 5_000.0)
    pair, rate = (goal for goal in of_tasks(found) if not goal.is_met)
    assert (pair.measured, pair.figures) == (1.5, "75 µs / 50 µs")
    assert (rate.measured, rate.where, rate.figures) == (0.5, "2 tasks", "5,000/s / 10,000/s")


def test_each_is_compared_with_the_floor_on_its_own_kind_of_loop() -> None:
    floors = {name: floor_for(name) for name in TIMES_US}
    assert [name for name, floor in floors.items() if floor != LOOP_FLOOR] == list(
        map(on_uvloop, (LOOP_FLOOR, RELOCK_TASKS))
    )


def test_the_tables_have_the_figures(found: dict[str, Any]) -> None:
    text = "\n\n".join(rendered({"aio": found}))
    assert f"| **{RELOCK_TASKS}** | 70 (one round) | 1.40 |" in text
    assert f"| **{on_uvloop(RELOCK_TASKS)}** | 60 (one round) | 1.50 |" in text
    assert f"| **{RELOCK_TASKS}** | 167 (1.67), 6,000 (0.60) |" in text
    assert "| one lock | 110.0 | 8.0 | 4.0% | 3 | 3 | 15.0 | 3.00 s | 1.00 s | 2.00 s | 5.0 ms, enqueue |" in text
    assert len(stolen(found)) == 4 + 8 + 4
    (short,) = in_short({"aio": found})
    assert "| hand-offs among 8 tasks | 6,000/s | 10,000/s | 0.60 | 8,000/s | 8/s |" in short


def test_what_was_not_measured_is_not_shown(found: dict[str, Any]) -> None:
    assert not list(rendered({}))
    assert not list(in_short({}))
    for part in PARTS:
        assert list(parts_rendered({part: found[part]}))
    assert not list(of_tasks({}))


def test_tasks_are_published_beside_what_is_there(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, result = load(), tmp_path / "bench.json"
    result.write_text(json.dumps(before))
    monkeypatch.setattr(page, "RESULT", result)
    monkeypatch.setattr(page, "write", lambda: None)
    program.publish(found)
    after = load()
    assert after == {**before, "aio": found}
    assert goals(after) == [*goals({**before, "aio": {}}), *of_tasks(found)]


def test_a_short_run_measures_at_least_once() -> None:
    plan = AioPlan.scaled(0.01)
    assert (plan.rounds_of_pairs, plan.rounds_of_handoffs, plan.rounds_of_waiting) == (1, 1, 1)
    assert (plan.waiting_tasks, plan.quiet_seconds) == (10_000, 10.0)
