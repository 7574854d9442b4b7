"""Rings of workers in a history, and errors that tell of one: both as far as the history proves them."""

from typing import Any

import pytest
from attrs import evolve

from chaos.deadlocks import RING_SECONDS, rings
from chaos.field import Blow, FieldPlan
from chaos.records import FOREVER, History, Operation
from chaos.verdict import Finding, judge

LONG = RING_SECONDS + 10.0


def pair(worker: str, has: str, wants: str, waits: float, until: float, **changes: Any) -> list[Operation]:
    """Return the calls of a worker that has a lock from 1.0 to `until`, and waits for another one meanwhile."""
    number = ord(worker) * 10
    end = Operation(number + 1, f"{worker}.t0", has, "release", until, until + 0.01, level=1)
    wait = Operation(number + 2, f"{worker}.t0", wants, "acquire", waits, until - 0.01, "refused", beside=(has, worker))
    return [Operation(number, f"{worker}.t0", has, "acquire", 0.5, 1.0, token=1, count=1), end, evolve(wait, **changes)]


def of(*workers: list[Operation], blow: Blow | None = None) -> Finding:
    operations = [one for calls in workers for one in calls]
    return judge(FieldPlan(1, ""), History(operations), [blow] if blow else [], stall=0.0, end=100.0)


def found(*workers: list[Operation], blow: Blow | None = None) -> set[str]:
    return {one.check for one in of(*workers, blow=blow).violations}


A = pair("x", "a", "b", 2.0, LONG)


def test_a_ring_stands_from_the_last_wait_to_the_first_end() -> None:
    operations = [*A, *pair("y", "b", "c", 3.0, 30.0), *pair("z", "c", "a", 2.5, 9.0)]
    (ring,) = rings(operations)
    assert (ring.begin, ring.end, [one.worker for one in ring.waits]) == (3.0, 8.99, ["y.t0", "z.t0", "x.t0"])


@pytest.mark.parametrize(
    "other",
    [
        pair("y", "b", "c", 3.0, LONG),
        pair("y", "b", "a", 3.0, LONG, beside=()),
        pair("y", "c", "a", 3.0, LONG),
        [*pair("y", "b", "d", 1.5, 1.9, beside=()), *pair("y", "c", "a", 3.0, LONG)],
        pair("y", "a", "b", 3.0, LONG),
        pair("y", "b", "a", LONG + 1.0, LONG + 5.0),
    ],
    ids=[
        "it waits for another lock",
        "it has no lock",
        "it has another lock",
        "its hold has ended",
        "both wait for the same",
        "it waits later",
    ],
)
def test_workers_that_do_not_wait_for_each_other_are_no_ring(other: list[Operation]) -> None:
    assert rings([*A, *other]) == []


def test_a_wait_for_workers_of_a_ring_is_not_part_of_it() -> None:
    others = [*pair("y", "b", "c", 2.0, 9.0), *pair("z", "c", "b", 2.5, 9.0)]
    (ring,) = rings([*pair("x", "a", "b", 3.0, 9.0), *others])
    assert [one.worker for one in ring.waits] == ["z.t0", "y.t0"]


def test_a_ring_that_stays_is_a_violation_unless_faults_or_a_death_explain_it() -> None:
    other = pair("y", "b", "a", 3.0, LONG)
    assert found(A, other) == {"ring"}
    assert found(A, other, blow=Blow("masters stopped", "all", (0,), begin=5.0, end=20.0)) == set()
    assert found(A, [evolve(other[0], killed=8.0), evolve(other[2], outcome="unknown", returned=FOREVER)]) == set()
    assert found(A, pair("y", "b", "a", 3.0, 15.0)) == set()


def told(*cycle: tuple[str, str]) -> dict[str, Any]:
    """Return what a call is told of a ring: for each wait the lock, and the name of the hold that has it."""
    return {"outcome": "failed", "cycle": [(lock, "a waiter", hold) for lock, hold in cycle], "returned": 6.0}


TRUE = told(("b", "y"), ("a", "x"))


@pytest.mark.parametrize(
    ("victim", "other"),
    [
        (pair("x", "a", "b", 2.0, 9.0, **told(("b", "y"), ("a", "unknown"))), pair("y", "b", "a", 3.0, 9.0)),
        (
            pair("x", "a", "b", 2.0, 9.0, **told(("b", "y"), ("a", "x"), ("d", "unknown"))),
            pair("y", "b", "a", 3.0, 9.0),
        ),
        (pair("x", "a", "b", 2.0, 9.0, **TRUE), pair("y", "b", "c", 3.0, 9.0)),
        (pair("x", "a", "b", 2.0, 9.0, **TRUE), pair("y", "c", "a", 3.0, 9.0)),
        (pair("x", "a", "b", 2.0, 9.0, **TRUE), pair("y", "b", "a", 6.5, 9.0)),
        (pair("x", "a", "b", 2.0, 9.0, **TRUE, beside=()), pair("y", "b", "a", 3.0, 9.0)),
        (pair("v", "d", "e", 2.0, 9.0, **TRUE), [*A, *pair("y", "b", "a", 3.0, 9.0)]),
    ],
    ids=[
        "unknown hold",
        "one unknown hold",
        "waits for another",
        "has another",
        "waits too late",
        "has nothing",
        "another's ring",
    ],
)
def test_an_error_without_a_ring_is_a_false_alarm(victim: list[Operation], other: list[Operation]) -> None:
    assert "alarm" in found(victim, other)


@pytest.mark.parametrize("returned", [8.99, FOREVER], ids=["the other waits on", "the other was killed"])
def test_an_error_of_a_ring_is_right(returned: float) -> None:
    victim, other = pair("x", "a", "b", 2.0, 9.0, **TRUE), pair("y", "b", "a", 3.0, 9.0, returned=returned)
    finding = of(victim, other)
    assert (finding.violations, finding.rings, finding.deadlock_errors) == ([], 1, 1)
