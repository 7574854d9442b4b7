"""Votes and validity, as arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relock._core.effects import Failure
from relock._core.quorum import (
    NEVER,
    Granted,
    NoQuorum,
    Refused,
    deadline_of,
    drift_of,
    judge,
    quorum_of,
)

MASTERS = ("a", "b", "c", "d", "e")
GRANTED = [b"granted", 10, 100]
REFUSED = [b"refused", 10, 5_000, 2, b"you:1"]
QUEUED = [b"queued", 10, 5_000, 2, b"you:1", 77]
VOID = [b"void", 10]
SILENT = Failure("x", "silent")
DOWN = Failure("x", "refused", sent=False)


def test_a_quorum_is_a_majority() -> None:
    assert [quorum_of(n) for n in (1, 2, 3, 4, 5, 6, 7)] == [1, 2, 2, 3, 3, 4, 4]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9), st.floats(0, 1e9))
def test_before_the_deadline_a_quorum_of_leases_runs_and_after_it_none(ends: list[float], moment: float) -> None:
    quorum = quorum_of(len(ends))
    deadline = deadline_of(ends, quorum)
    running = sum(end > moment for end in ends)
    assert (running >= quorum) == (moment < deadline)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9), st.data())
def test_a_later_end_never_shortens_a_deadline(ends: list[float], data: st.DataObject) -> None:
    quorum = quorum_of(len(ends))
    place = data.draw(st.integers(0, len(ends) - 1))
    later = [*ends]
    later[place] += 1.0
    assert deadline_of(later, quorum) >= deadline_of(ends, quorum)


def test_the_drift_is_a_part_of_the_ttl_and_two_milliseconds() -> None:
    assert drift_of(10.0, 0.01) == pytest.approx(0.102)


def test_a_grant_counts_while_its_lease_runs() -> None:
    assert judge([GRANTED], MASTERS[:1], end=5.0, now=4.9) == Granted(100, [5.0], settled=True)
    late = judge([GRANTED], MASTERS[:1], end=5.0, now=5.0)
    assert isinstance(late, NoQuorum)
    assert late.undecided, "what a master granted must be undone"


def test_the_token_is_the_largest_and_is_settled_only_where_all_know_it() -> None:
    other = [b"granted", 10, 101]
    outcome = judge([GRANTED, other, SILENT], MASTERS[:3], end=5.0, now=1.0)
    assert outcome == Granted(101, [5.0, 5.0, NEVER], settled=False)


def test_a_refusal_says_who_has_it_and_for_how_long() -> None:
    assert judge([REFUSED], MASTERS[:1], 5.0, 1.0) == Refused("you:1", 2, 5.0, None, undecided=False)
    assert judge([QUEUED], MASTERS[:1], 5.0, 1.0) == Refused("you:1", 2, 5.0, 77, undecided=False)


def test_a_minority_of_grants_or_silence_leaves_something_to_undo() -> None:
    for minority in (GRANTED, SILENT):
        outcome = judge([REFUSED, REFUSED, minority], MASTERS[:3], 5.0, 1.0)
        assert isinstance(outcome, Refused)
        assert outcome.undecided
    refused = judge([REFUSED, REFUSED, DOWN], MASTERS[:3], 5.0, 1.0)
    assert isinstance(refused, Refused)
    assert not refused.undecided


def test_without_a_quorum_each_failure_is_named() -> None:
    outcome = judge([SILENT, DOWN, REFUSED], MASTERS[:3], 5.0, 1.0)
    assert outcome == NoQuorum((SILENT, DOWN), 1, None)


def test_a_master_without_a_vote_did_not_answer_and_says_when_it_will() -> None:
    outcome = judge([[b"no_vote", 1_000_000, 3_500_000]], MASTERS[:1], 5.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert outcome.vote_in == 2.5
    assert not outcome.undecided
    assert "2.5 s" in outcome.failures[0].why


def test_a_wait_for_a_vote_is_no_wait_for_a_dead_master() -> None:
    outcome = judge([[b"no_vote", 0, 1_000_000], DOWN, DOWN], MASTERS[:3], 5.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert outcome.vote_in is None


def test_what_came_too_late_is_nothing_to_undo() -> None:
    outcome = judge([VOID], MASTERS[:1], 5.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert not outcome.undecided


ANSWERS = st.sampled_from([GRANTED, REFUSED, VOID, SILENT, DOWN, [b"no_vote", 0, 1_000_000]])


@given(st.sampled_from([1, 3, 5]).flatmap(lambda n: st.lists(ANSWERS, min_size=n, max_size=n)))
def test_a_grant_takes_a_quorum_of_grants_and_whatever_else_was_granted_is_undone(answers: list[object]) -> None:
    grants = sum(answer is GRANTED for answer in answers)
    outcome = judge(answers, MASTERS[: len(answers)], end=5.0, now=1.0)  # type: ignore[arg-type]
    if grants >= quorum_of(len(answers)):
        assert isinstance(outcome, Granted)
    else:
        assert not isinstance(outcome, Granted)
        assert outcome.undecided == (grants > 0 or SILENT in answers)
