"""Votes and validity, as arithmetic."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relock._core.effects import Answer, Failure, Reply
from relock._core.quorum import (
    NEVER,
    Grant,
    NoQuorum,
    Refused,
    deadline_of,
    drift_of,
    gather_seconds,
    is_attempt_certain,
    is_count_certain,
    is_token_safe,
    judge,
    quorum_of,
)

MASTERS = ("a", "b", "c", "d", "e")
GRANTED: Reply = [b"granted", 10, 100]
REFUSED: Reply = [b"refused", 10, 5_000, 2, b"you:1"]
QUEUED: Reply = [b"queued", 10, 5_000, 2, b"you:1", 77]
VOID: Reply = [b"void", 10]
COUNTED: Reply = [b"counted", 10]
ABSENT: Reply = [b"absent", 10]
SILENT = Failure("x", "silent")
AWAITED = Failure("x", "not yet", awaited=True)
DOWN = Failure("x", "refused", sent=False)
NO_TIME = Failure("x", "there was no time to ask it", sent=False, no_time=True)


@pytest.mark.parametrize(
    ("answers", "lacked", "lacked_in_a_short_look"),
    [
        ([NO_TIME], True, True),
        ([AWAITED], False, True),
        ([DOWN], False, False),
        ([VOID], True, True),
        ([REFUSED, NO_TIME, DOWN], True, True),
        ([REFUSED, AWAITED, DOWN], False, True),
        ([NO_TIME, DOWN, DOWN], False, False),
        ([NO_TIME, AWAITED, DOWN], False, True),
        ([REFUSED, NO_TIME, AWAITED, DOWN, DOWN], False, True),
    ],
)
def test_time_was_lacking_where_those_without_it_would_make_a_quorum(
    answers: list[Reply | Failure], lacked: bool, lacked_in_a_short_look: bool
) -> None:
    outcome = judge([[answer] for answer in answers], MASTERS[: len(answers)], 30.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert outcome.lacked_time(was_short=False) is lacked
    assert outcome.lacked_time(was_short=True) is lacked_in_a_short_look


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


def said(*replies: Reply | Failure) -> list[Answer]:
    """Return the answers of as many masters, each to one call."""
    return [[reply] for reply in replies]


def test_a_grant_counts_while_its_lease_runs() -> None:
    answers = said(GRANTED)
    assert judge(answers, MASTERS[:1], end=5.0, now=4.9) == Grant(100, 5.0, [5.0], True, answers)
    late = judge(answers, MASTERS[:1], end=5.0, now=5.0)
    assert isinstance(late, NoQuorum)
    assert late.undecided, "the grant of a master must be undone"


def test_the_token_is_the_largest_and_is_settled_only_where_a_quorum_gave_it() -> None:
    above = [b"granted", 10, 101]
    answers = said(GRANTED, above, SILENT)
    assert judge(answers, MASTERS[:3], end=5.0, now=1.0) == Grant(101, 5.0, [5.0, 5.0, NEVER], False, answers)
    for replies, settled in (
        ((GRANTED, GRANTED, GRANTED), True),
        ((above, above, SILENT), True),
        ((above, GRANTED, above), True),
        ((GRANTED, above, GRANTED), False),  # a quorum gave the same one, but not the largest
    ):
        grant = judge(said(*replies), MASTERS[:3], end=5.0, now=1.0)
        assert isinstance(grant, Grant)
        assert grant.settled == settled


def test_a_token_is_safe_only_below_the_clock_that_ends_each_lease() -> None:
    for tokens, clocks, safe in (((100, 100), (90, 90), True), ((100, 1_090), (90, 90), False)):
        replies: list[Reply] = [[b"granted", clock, token] for clock, token in zip(clocks, tokens, strict=True)]
        grant = judge(said(*replies), MASTERS[:2], end=5.0, now=1.0)
        assert isinstance(grant, Grant)
        assert is_token_safe(grant, lease_ms=1) == safe


def test_a_refusal_names_the_owner_and_for_how_long() -> None:
    assert judge(said(REFUSED), MASTERS[:1], 5.0, 1.0) == Refused("you:1", 2, 5.0, None, undecided=False)
    assert judge(said(QUEUED), MASTERS[:1], 5.0, 1.0) == Refused("you:1", 2, 5.0, 77, undecided=False, placed=True)


@pytest.mark.parametrize("other", [[*QUEUED[:5], 76], [*QUEUED[:5], 78], [b"proposed", *QUEUED[1:]]], ids=str)
@pytest.mark.parametrize("place", range(3))
def test_a_place_is_written_only_where_all_that_answer_have_the_same_ticket(other: Reply, place: int) -> None:
    replies = [QUEUED, QUEUED]
    replies.insert(place, other)
    same, mixed = (judge(said(*one), MASTERS[:3], 5.0, 1.0) for one in ([QUEUED] * 3, replies))
    assert isinstance(same, Refused)
    assert isinstance(mixed, Refused)
    assert (same.placed, mixed.placed) == (True, False)


def test_a_refusal_of_several_is_what_a_quorum_of_them_allows() -> None:
    free = [b"proposed", 10, 0, 0, b"", 79]
    endless = [b"proposed", 10, -1, 9, b"", 78]
    mixed = judge(said(free, free, endless, [*free[:3], 4, b"they:1", 80], free), MASTERS, 5.0, 1.0)
    assert mixed == Refused("they:1", 0, 0.0, 80, undecided=False), (
        "the lock is free on a quorum, with the waiter first"
    )
    held = judge(said(free, free, endless, endless, endless), MASTERS, 5.0, 1.0)
    assert held == Refused(None, 9, -1.0, 79, undecided=False), "the lock is held without an end on a quorum"


def test_a_minority_of_grants_or_silence_leaves_something_to_undo() -> None:
    for minority in (GRANTED, SILENT):
        outcome = judge(said(REFUSED, REFUSED, minority), MASTERS[:3], 5.0, 1.0)
        assert isinstance(outcome, Refused)
        assert outcome.undecided
    refused = judge(said(REFUSED, REFUSED, DOWN), MASTERS[:3], 5.0, 1.0)
    assert isinstance(refused, Refused)
    assert not refused.undecided


def test_without_a_quorum_each_failure_is_named() -> None:
    outcome = judge(said(SILENT, DOWN, REFUSED), MASTERS[:3], 5.0, 1.0)
    assert outcome == NoQuorum((SILENT, DOWN), 1, None, away=True)


def no_vote(seconds: float) -> Reply:
    return [b"no_vote", 1_000_000, 1_000_000 + int(seconds * 1e6)]


class ComingIn(Sequence[Reply | Failure]):
    """The answer of a master whose reply arrives, read by another thread, after so many looks at it."""

    def __init__(self, looks: int, late: Reply) -> None:
        self.looks, self.late = looks, late

    def __getitem__(self, place: Any) -> Any:
        self.looks -= 1
        return AWAITED if self.looks >= 0 else self.late

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("looks", range(4))
@pytest.mark.parametrize("late", [no_vote(1), VOID, GRANTED, REFUSED])
@pytest.mark.parametrize("other", [GRANTED, DOWN])
def test_a_reply_that_comes_in_while_it_is_judged_is_counted_once(
    looks: int, late: Reply, other: Reply | Failure
) -> None:
    outcome = judge([[other], [DOWN], ComingIn(looks, late)], MASTERS[:3], end=5.0, now=1.0)
    if isinstance(outcome, NoQuorum):
        assert len(outcome.failures) + outcome.answered == 3
    else:
        assert late in (GRANTED, REFUSED)
        assert looks < 2


def test_a_master_without_a_vote_did_not_answer_and_says_when_it_will() -> None:
    outcome = judge(said(no_vote(2.5)), MASTERS[:1], 5.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert outcome.vote_in == 2.5
    assert not outcome.undecided
    assert "2.5 s" in outcome.failures[0].why


@pytest.mark.parametrize(
    ("answers", "vote_in"),
    [
        ((no_vote(1), DOWN, DOWN), None),
        ((no_vote(1), no_vote(2), DOWN), 2.0),
        ((no_vote(1), no_vote(2), no_vote(3)), 2.0),
        ((REFUSED, no_vote(2), DOWN), 2.0),
    ],
)
def test_a_quorum_can_vote_once_enough_of_those_that_answer_can(answers: tuple[Any, ...], vote_in: float) -> None:
    outcome = judge(said(*answers), MASTERS[:3], 5.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert outcome.vote_in == vote_in


def test_what_came_too_late_is_nothing_to_undo() -> None:
    outcome = judge(said(VOID), MASTERS[:1], 5.0, 1.0)
    assert isinstance(outcome, NoQuorum)
    assert not outcome.undecided


ANSWERS = st.sampled_from([GRANTED, REFUSED, VOID, SILENT, DOWN, [b"no_vote", 0, 1_000_000]])


@given(st.sampled_from([1, 3, 5]).flatmap(lambda n: st.lists(ANSWERS, min_size=n, max_size=n)))
def test_a_grant_takes_a_quorum_of_grants_and_whatever_else_was_granted_is_undone(answers: list[object]) -> None:
    grants = sum(answer is GRANTED for answer in answers)
    outcome = judge(said(*answers), MASTERS[: len(answers)], end=5.0, now=1.0)  # type: ignore[arg-type]
    if grants >= quorum_of(len(answers)):
        assert isinstance(outcome, Grant)
    else:
        assert not isinstance(outcome, Grant)
        assert outcome.undecided == (grants > 0 or SILENT in answers)


AWAITED = Failure("x", "not yet", awaited=True)


@given(
    st.sampled_from([1, 3, 5]).flatmap(lambda n: st.lists(st.one_of(ANSWERS, st.just(AWAITED)), min_size=n, max_size=n))
)
def test_what_is_awaited_can_not_change_an_outcome_that_is_certain(answers: list[Any]) -> None:
    if not is_attempt_certain(said(*answers)):
        return
    kinds = set()
    for late in (GRANTED, REFUSED, SILENT):
        filled = [late if answer is AWAITED else answer for answer in answers]
        kinds.add(type(judge(said(*filled), MASTERS[: len(answers)], end=5.0, now=1.0)))
    assert len(kinds) == 1


def test_an_outcome_is_certain_with_a_quorum_of_grants_or_without_a_chance_of_one() -> None:
    for certain, answers in (
        (True, (GRANTED, GRANTED, GRANTED, AWAITED, AWAITED)),
        (False, (GRANTED, GRANTED, AWAITED, AWAITED, AWAITED)),
        (True, (REFUSED, REFUSED, REFUSED, AWAITED, AWAITED)),
        (False, (REFUSED, REFUSED, SILENT, AWAITED, AWAITED)),
        (False, (GRANTED, GRANTED, REFUSED, AWAITED, REFUSED)),
    ):
        assert is_attempt_certain(said(*answers)) == certain


@pytest.mark.parametrize(
    ("answers", "is_certain"),
    [
        ([COUNTED, COUNTED, AWAITED], True),
        ([COUNTED, ABSENT, AWAITED], False),
        ([COUNTED, ABSENT, DOWN], True),
        ([COUNTED, ABSENT, ABSENT], True),
        ([VOID, AWAITED, AWAITED], False),
        ([ABSENT, ABSENT, AWAITED], True),
    ],
)
def test_a_count_is_written_by_a_quorum_or_waits_for_masters_that_may_complete_it(
    answers: list[Reply | Failure], is_certain: bool
) -> None:
    assert is_count_certain([[answer] for answer in answers]) is is_certain


@pytest.mark.parametrize(
    ("one_way_ms", "quorum", "expected_ms"),
    [
        ((1, 20, 20), 2, 70),
        ((1, 40, 40), 2, 110),
        ((10, 60, 110), 2, 150),
        ((110, 10, 60), 2, 150),
        ((1, 2, 300, 300, 300), 3, 530),
        ((0, 0, 0), 2, 30),
        ((1, float("inf"), float("inf")), 2, 530),  # two masters have not answered yet
        ((1, 2, float("inf")), 2, 34),
        ((-1, -1, 5), 2, 30),  # a small step has moved the bounds past each other
    ],
    ids=str,
)
def test_grants_are_gathered_for_as_long_as_asking_a_quorum_would_take(
    one_way_ms: tuple[float, ...], quorum: int, expected_ms: float
) -> None:
    round_trips = [2 * ms / 1000 for ms in one_way_ms]
    assert gather_seconds(round_trips, quorum, 0.03, 0.5) == pytest.approx(expected_ms / 1000)


@given(st.lists(st.floats(0.0, 0.25), min_size=1, max_size=7))
def test_no_waiter_gives_a_grant_back_whose_quorum_is_on_its_way_from_a_releaser_as_far_away(
    delays: list[float],
) -> None:
    quorum = quorum_of(len(delays))
    arrivals = sorted(2 * delay for delay in delays)  # to the master, and back
    waits = gather_seconds([2 * delay for delay in delays], quorum, 0.0, 0.5)
    assert arrivals[quorum - 1] - arrivals[0] <= waits
