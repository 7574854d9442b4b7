"""A fault counts if it struck something, and the time to the next grant is measured from when the lock was free."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from chaos.field import Blow, Plan
from chaos.records import FOREVER, History, Operation
from chaos.results import Run, save
from chaos.verdict import Finding, judge

TTL = 1.0
PLAN = Plan(masters=1, seed="", ttl=TTL)
END = 100.0


def turn(number: int, worker: str, called: float, begin: float, end: float, **changes: Any) -> list[Operation]:
    """A hold that was asked for at `called`, from `begin` to `end`."""
    grant = Operation(number, worker, "a", "acquire", called, begin, token=number, count=1, until=end + 0.5)
    return [evolve(grant, **changes), Operation(number + 1, worker, "a", "release", end, end + 0.01, level=1)]


def verdict(operations: list[Operation], *blows: Blow) -> Finding:
    return judge(PLAN, History(operations), blows, stall=0.0, end=END)


def blow(kind: str, begin: float, end: float, **changes: Any) -> Blow:
    return evolve(Blow(kind, "all", (0,), begin=begin, end=end), **changes)


def test_what_a_fault_met_is_counted() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 3.0, 4.1, 4.2)
    tally = verdict(operations, blow("stopped", 3.5, 3.6)).faults["1: stopped"]
    assert (tally.struck, tally.missed, tally.holds, tally.waits, tally.renewals) == (1, 0, 1, 1, 0)


def test_a_renewal_is_in_flight_where_one_was_due() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0)
    assert verdict(operations, blow("stopped", 2.3, 2.4)).faults["1: stopped"].renewals == 1
    assert verdict(operations, blow("stopped", 2.4, 2.5)).faults["1: stopped"].renewals == 0


def test_a_fault_that_met_nobody_does_not_count() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0)
    for missed in (
        blow("stopped", 5.0, 6.0),
        blow("lost replies", 3.0, 3.1, hits=0),
        blow("holder killed", 3.0, 3.1, masters=(), process="p2"),
        blow("holder killed", 3.0, 3.1, masters=(), process=None),
    ):
        tally = verdict(operations, missed).faults[f"1: {missed.kind}"]
        assert (tally.struck, tally.missed) == (0, 1), missed


def test_a_killed_holder_was_struck_though_it_told_nothing_after_that() -> None:
    (grant, _) = turn(1, "p1.t0", 1.0, 2.0, 4.0, killed=2.9)
    struck = blow("holder killed", 3.0, 3.1, masters=(), process="p1")
    assert verdict([grant], struck).faults["1: holder killed"].holds == 1


@pytest.mark.parametrize(("granted", "is_late"), [(4.5, False), (14.5, True)])
def test_the_time_to_the_next_grant_counts_from_the_release(granted: float, is_late: bool) -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, granted, granted + 1)
    finding = verdict(operations, blow("stopped", 3.0, 3.5))
    assert finding.faults["1: stopped"].longest == pytest.approx(granted - 4.0)
    assert bool(finding.late) == is_late
    assert finding.is_good == (not is_late)


def test_the_time_counts_from_when_somebody_asked() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 50.0, 50.25, 51.0)
    finding = verdict(operations, blow("stopped", 3.0, 3.5))
    assert finding.faults["1: stopped"].longest == pytest.approx(0.25)


def test_who_is_never_granted_anything_waits_to_the_end() -> None:
    waiting = Operation(3, "p2.t0", "a", "acquire", 2.5, END + 1, outcome="refused")
    finding = verdict([*turn(1, "p1.t0", 1.0, 2.0, 4.0), waiting], blow("stopped", 3.0, 3.5))
    assert finding.late
    unknown = evolve(waiting, returned=FOREVER, outcome="unknown")  # it was killed, and waits for nothing
    assert not verdict([*turn(1, "p1.t0", 1.0, 2.0, 4.0), unknown], blow("stopped", 3.0, 3.5)).late


def test_what_a_lone_master_promised_ends_when_its_clock_steps() -> None:
    operations = turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, 3.2, 3.3)
    assert verdict(operations, blow("stopped", 3.0, 3.5)).violations
    assert not verdict(operations, blow("clock ahead and back", 3.1, 3.5, steps=[3.1])).violations


def test_results_of_several_runs_add_up(tmp_path: Path) -> None:
    good = verdict(turn(1, "p1.t0", 1.0, 2.0, 4.0), blow("stopped", 3.0, 3.5))
    bad = verdict(turn(1, "p1.t0", 1.0, 2.0, 4.0) + turn(3, "p2.t0", 2.5, 3.2, 3.3), blow("stopped", 3.0, 3.5))
    for seed, finding in (("7", good), ("8", bad)):
        save(Run(seed, 1, {1: finding}, {"no guard": ["intervals"]}), tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert [run["seed"] for run in result["runs"]] == ["7", "8"]
    assert [run["good"] for run in result["runs"]] == [True, False]
    assert not result["good"]
    assert result["masters"]["1"]["acquisitions"] == 3
    assert len(result["masters"]["1"]["violations"]) == len(bad.violations)
    assert result["faults"]["1: stopped"]["struck"] == 2


def test_a_control_that_is_not_noticed_is_bad() -> None:
    assert not Run("7", 0, {}, {"no guard": []}).is_good
