"""Calls of a latch in a history: no caller passes before all parties have arrived, and all of them do afterwards."""

import itertools
from typing import Any

import pytest
from attrs import evolve

from chaos.field import Blow, FieldPlan
from chaos.latches import PASS_SECONDS
from chaos.records import FOREVER, History, Kind, Operation, Outcome
from chaos.verdict import judge

numbers = itertools.count()


def call(kind: Kind, called: float, returned: float, outcome: Outcome = "ok", **what: Any) -> Operation:
    number = next(numbers)
    return Operation(number, f"p{number}.t0", "latch-0", kind, called, returned, outcome, **what)


def arrive(party: str, at: float, outcome: Outcome = "ok", missing: int = 1) -> Operation:
    return call("arrive", at, at + 0.1, outcome, party=party, count=missing)


def found(*calls: Operation, blow: Blow | None = None) -> list[int]:
    """Return the places of the calls that are wrong, of a latch with two parties."""
    history = History(latches=calls)
    finding = judge(FieldPlan(1, "", parties=2), history, [blow] if blow else [], stall=0.0, end=100.0)
    return [i for i, one in enumerate(calls) if any(str(one) in wrong.sentence for wrong in finding.violations)]


BOTH = arrive("a", 1.0), arrive("b", 5.0, missing=0)


def test_waits_end_once_all_have_arrived() -> None:
    assert found(*BOTH, call("wait", 2.0, 5.2), call("wait", 2.0, 3.0, "refused"), call("wait", 6.0, 6.1)) == []


def test_nobody_passes_before_all_have_begun_to_arrive() -> None:
    assert found(*BOTH, call("wait", 2.0, 4.9)) == [2]
    assert found(arrive("a", 1.0), arrive("a", 2.0), call("wait", 2.0, 4.9)) == [2], "the same party counts once"
    assert found(arrive("a", 1.0, missing=0)) == [0]


@pytest.mark.parametrize("outcome", ["unknown", "failed"])
def test_an_arrival_with_an_unknown_outcome_may_count_or_not(outcome: Outcome) -> None:
    calls = arrive("a", 1.0), arrive("b", 2.0, outcome)
    assert found(*calls, call("wait", 2.0, 4.9)) == []
    assert found(*calls, call("wait", 3.0, 60.0, "refused")) == []


def test_nobody_is_kept_out_afterwards() -> None:
    assert found(*BOTH, call("wait", 6.0, 6.1, "refused")) == [2]
    assert found(*BOTH, call("wait", 2.0, 6.0 + PASS_SECONDS)) == [2]
    assert found(*BOTH, call("wait", 2.0, 6.0 + PASS_SECONDS, "failed")) == [2]
    assert found(*BOTH, call("wait", 2.0, FOREVER, "unknown")) == [], "its worker was killed"


def test_masters_may_forget_and_time_of_faults_does_not_count() -> None:
    refused, late = call("wait", 6.0, 8.0, "refused"), call("wait", 2.0, 6.0 + PASS_SECONDS)
    forgets, stops = (Blow(kind, "all", (0,), begin=4.0, end=7.0) for kind in ("FLUSHALL", "masters stopped"))
    assert found(*BOTH, refused, late, blow=forgets) == []
    assert found(*BOTH, refused, late, blow=evolve(forgets, begin=60.0, end=61.0)) == [2, 3]
    assert found(*BOTH, arrive("a", 7.1), arrive("b", 7.2), call("wait", 8.0, 8.1, "refused"), blow=forgets) == [4]
    assert found(*BOTH, refused, late, blow=stops) == [2]
