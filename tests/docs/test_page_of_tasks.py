"""The goals and tables of tasks show the measured figures, and no figure that was not measured."""

from typing import Any

import pytest
from bench.goals import WAITING, goals, of_tasks
from bench.names import LOOP_FLOOR, RELOCK_TASKS, floor_for, on_uvloop
from bench.page import load, rendered
from bench.rows import of, stolen, where


@pytest.fixture
def found() -> dict[str, Any]:
    """Return the figures of the latest run, with pairs and hand-offs that meet every goal, if barely."""
    report: dict[str, Any] = load()["aio"]
    report["pairs"]["one"]["pairs_us"]["same"] |= {LOOP_FLOOR: 50.0, RELOCK_TASKS: 70.0}
    for row in report["handoffs"]:
        rate = 6_000.0 if row["contestant"] == RELOCK_TASKS else 10_000.0
        row["rounds"] = [{"handoffs_per_second": rate, "jain": 0.99, "commands_per_handoff": 2.1, "stolen": 0.0}]
    return report


def test_a_goal_that_is_just_reached_is_met(found: dict[str, Any]) -> None:
    judged = list(of_tasks(found))
    assert len(judged) == 4 + len(WAITING)
    assert not [goal for goal in judged if not goal.is_met]


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("memory_bytes", 120_000_000),
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
    for kind, what in (("lock", "one lock"), ("locks", "20 locks")):
        rounds = found["waiting"]["rounds"]
        worse = {**rounds, kind: [{**one, figure: value} for one in rounds[kind]]}
        (missed,) = (goal for goal in of_tasks({"waiting": {**found["waiting"], "rounds": worse}}) if not goal.is_met)
        assert missed.where == what


def test_pairs_are_judged_on_one_cpu_and_hand_offs_where_they_are_slowest(found: dict[str, Any]) -> None:
    found["pairs"]["one"]["pairs_us"]["same"][RELOCK_TASKS] = 75.0
    slow = of(where(found["handoffs"], workers=2), RELOCK_TASKS)
    assert slow is not None
    slow["rounds"][0]["handoffs_per_second"] = 5_000.0
    pair, rate = (goal for goal in of_tasks(found) if not goal.is_met)
    assert (pair.measured, pair.figures) == (1.5, "75 µs / 50 µs")
    assert (rate.measured, rate.where, rate.figures) == (0.5, "2 tasks", "5,000/s / 10,000/s")


def test_each_is_compared_with_the_floor_on_its_own_kind_of_loop(found: dict[str, Any]) -> None:
    floors = {name: floor_for(name) for name in found["pairs"]["one"]["pairs_us"]["same"]}
    assert {name for name, floor in floors.items() if floor != LOOP_FLOOR} == {
        on_uvloop(LOOP_FLOOR),
        on_uvloop(RELOCK_TASKS),
    }


def test_every_round_says_what_was_stolen_of_it(found: dict[str, Any]) -> None:
    rounds = sum(len(row["rounds"]) for row in found["handoffs"])
    rounds += sum(len(parts) for part in found["pairs"].values() for parts in part["stolen"].values())
    rounds += sum(map(len, found["waiting"]["rounds"].values()))
    assert len(stolen(found)) == rounds


def test_what_was_not_measured_is_neither_shown_nor_judged(found: dict[str, Any]) -> None:
    ran = {name: found[name] for name in ("machine", "commit", "versions", "seconds")}
    assert "Tasks of an event loop" not in rendered({})
    for part in ("pairs", "handoffs", "waiting"):
        assert len(rendered({"aio": {**ran, part: found[part]}})) > len(rendered({"aio": ran}))
    assert not list(of_tasks({}))
    report = load()
    assert goals({**report, "aio": found}) == [*goals({**report, "aio": {}}), *of_tasks(found)]
