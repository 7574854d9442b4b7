"""Bounds on the difference of two clocks."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.instructions import Interrupt, Strike

from relock._core.clocks import LEAD_SECONDS, LOOK_SECONDS, NOT_YET, STEP_SECONDS, Offset, propose


def test_the_first_reply_bounds_the_difference() -> None:
    offset = Offset(0.01)
    assert offset.see(99.0, 101.0, now=10.0) == 0.0
    assert offset.earliest(10.0) == 109.0


def test_bounds_narrow_with_tighter_replies_and_widen_with_time() -> None:
    offset = Offset(0.01)
    offset.see(90.0, 110.0, now=0.0)
    offset.see(99.0, 101.0, now=0.0)
    offset.see(90.0, 110.0, now=0.0)
    assert (offset.low, offset.high) == (99.0, 101.02)
    offset.see(90.0, 110.0, now=10.0)
    assert (round(offset.low, 9), round(offset.high, 9)) == (98.9, 101.12)


def test_a_not_after_time_gets_earlier_with_the_age_of_the_sample() -> None:
    offset = Offset(0.01)
    offset.see(100.0, 100.5, now=0.0)
    assert offset.earliest(50.0) == 150.0 - 0.5


def test_a_step_ahead_is_reported_as_the_most_it_may_be() -> None:
    offset = Offset(0.01)
    offset.see(100.0, 100.1, now=0.0)
    assert round(offset.see(103.0, 103.2, now=0.5), 9) == 3.207
    assert offset.see(103.0, 103.2, now=1.0) == 0.0, "a step is reported once"


def test_a_step_came_after_the_last_reply_that_did_not_show_it_was_asked_for() -> None:
    """Steps may come between that request and its reply, which shows the clock at some moment between them."""
    offset = Offset(0.01)
    assert offset.stepped_after == float("-inf")
    offset.see(100.0, 100.5, now=7.0)
    offset.see(103.0, 103.2, now=9.0)
    assert (offset.stepped_after, offset.stepped_at) == (6.5, 9.0)
    offset.see(100.0, 105.0, now=10.0)
    assert offset.see(110.0, 110.1, now=11.0) > 6
    assert round(offset.stepped_after, 9) == 8.8, "the reply before it was asked for earlier than the step was seen"


def test_a_step_back_is_below_zero() -> None:
    offset = Offset(0.01)
    offset.see(100.0, 100.1, now=0.0)
    assert offset.see(90.0, 90.1, now=0.5) < -9


def test_what_was_too_little_to_be_a_step_counts_with_the_next_one() -> None:
    for ahead in (0.04, -0.04):
        offset = Offset(0.0)
        offset.see(100.0, 100.0, now=0.0)
        assert offset.see(100.0 + ahead, 100.0 + ahead, now=0.0) == 0.0
        assert round(offset.see(100.0 + 2 * ahead, 100.0 + 2 * ahead, now=0.0), 9) == 2 * ahead


def test_a_reply_from_before_a_step_is_no_step_back() -> None:
    """The reply to an earlier request comes late, on one of two connections."""
    offset = Offset(0.01)
    offset.see(100.0, 100.01, now=0.0)
    assert offset.see(103.0, 103.01, now=1.0) > 2
    assert offset.see(99.9, 100.1, now=1.1) == 0.0, "a request from before the step, answered before it"
    assert round(offset.high - offset.low, 9) == 0.0101, "the bounds of after the step stay"
    assert offset.see(100.0, 100.01, now=1.2) < -2, "a step back is reported"


@pytest.mark.parametrize("seconds", [0.2, -0.2])
def test_two_replies_that_do_not_agree_show_no_direction_until_a_newer_one_does(seconds: float) -> None:
    """Replies were under way together, and the older is read last: a clock that stepped back seems to step ahead."""
    offset = Offset(0.0)
    offset.see(99.7, 100.3, now=0.0)  # slow, so that the next reply does not show the step at once
    after, before = 100.0 + seconds, 100.0
    assert offset.see(after, after + 0.01, now=1.01) == 0.0, "a reply asked for at 1.0, after the step"
    assert offset.see(before - 0.05, before + 0.07, now=1.05) == 0.0, "a reply asked for at 0.93, before the step"
    assert offset.is_in_doubt
    assert offset.stepped_at == 1.05, "grants of both replies are void"
    assert offset.stepped_after == pytest.approx(0.93)
    assert offset.earliest(1.05) == 1.05 + min(before - 0.05, after), "the earlier of both bounds counts"
    assert offset.shown_at(102.0, now=9.0) == pytest.approx(102.0 - max(before + 0.07, after + 0.01))
    assert offset.see(after, after + 0.01, now=1.06) == 0.0, "a reply that was asked for no later decides nothing"
    step = offset.see(after, after + 0.01, now=2.0)
    assert seconds * step > 0
    assert abs(step) >= abs(seconds)
    assert not offset.is_in_doubt
    assert (offset.low, offset.high) == (after, after + 0.01)
    assert offset.see(after, after + 0.01, now=3.0) == 0.0, "a step is reported once"


def test_a_reply_that_agrees_with_both_leaves_the_direction_to_the_next_one() -> None:
    offset = Offset(0.0)
    offset.see(99.7, 100.3, now=0.0)
    offset.see(99.8, 99.81, now=1.01)
    offset.see(99.95, 100.07, now=1.05)
    assert offset.see(99.5, 100.5, now=3.0) == 0.0
    assert offset.is_in_doubt
    assert offset.see(99.8, 99.81, now=4.0) < -0.1


@pytest.mark.parametrize("idle", [0.1, 1.0, 10.0, 30.0, 100.0, 1000.0, 100_000.0])
@pytest.mark.parametrize("step", [0.1, 0.3, 1.0, 5.0, -0.1, -1.0, -5.0])
def test_the_next_reply_ends_a_doubt_however_late_it_is(step: float, idle: float) -> None:
    """The bounds of both would widen until they met: then no reply could decide between them any more."""
    offset = Offset(0.01)
    offset.see(-0.0005, 0.0005, 9.0)
    offset.see(-0.0005, 0.0005, 10.001)
    assert offset.see(step - 0.0005, step + 0.0005, 10.0012) == 0.0
    assert offset.is_in_doubt
    seen = offset.see(step - 0.0005, step + 0.0005, 10.0012 + idle)
    assert not offset.is_in_doubt
    assert (offset.low, offset.high) == (step - 0.0005, pytest.approx(step + 0.0005, abs=0.0001))
    if 2 * 0.01 * idle > abs(step):
        assert seen > abs(step), "the step counts as the largest that is possible"
    else:
        assert seen == pytest.approx(step, abs=0.02 + 0.01 * idle)
    assert offset.see(step - 0.0005, step + 0.0005, 10.1 + idle) == 0.0


@pytest.mark.parametrize("sign", [1, -1])
def test_whatever_order_replies_are_read_in_a_step_has_one_direction(sign: int) -> None:
    dice = random.Random(sign)
    for _ in range(5_000):
        step, step_at = sign * dice.choice([0.06, 0.2, 2.0]), dice.uniform(0, 20)
        replies = []
        for _ in range(dice.randrange(3, 10)):
            sent_at = dice.uniform(0, 20)
            answered_at = sent_at + dice.choice([0.0005, 0.01, 0.2]) * dice.random()
            replies.append((answered_at + dice.choice([0.0005, 0.01, 0.2, 3.0]) * dice.random(), answered_at, sent_at))
        offset = Offset(0.01)
        for now, answered_at, sent_at in sorted(replies):
            master = answered_at + 100.0 + (step if answered_at >= step_at else 0.0)
            assert sign * offset.see(master - now, master - sent_at, now) >= 0.0


@given(
    st.floats(-1e6, 1e6),
    st.floats(0.995, 1.005),
    st.floats(0.995, 1.005),
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 2.0), st.floats(0.0, 20.0)), min_size=1, max_size=30),
)
def test_clocks_that_do_not_step_are_never_accused_and_the_bounds_hold(
    true_offset: float, master_rate: float, own_rate: float, replies: list[tuple[float, float, float]]
) -> None:
    offset = Offset(0.0101)  # a little more than the rates differ by at most
    true_time = 0.0
    for pause, there, back in replies:
        sent_at = own_rate * (true_time + pause)
        answered_at = true_time + pause + there
        true_time = answered_at + back
        now, master = own_rate * true_time, master_rate * answered_at + true_offset
        assert offset.see(master - now, master - sent_at, now) == 0.0
        assert offset.earliest(now) <= master_rate * true_time + true_offset + STEP_SECONDS / 1000


def test_what_the_clock_has_shown_it_showed_no_earlier_than_the_samples_allow() -> None:
    offset = Offset(0.01)
    offset.see(100.0, 100.5, now=10.0)  # between 100.0 and 100.5 s ahead of ours
    assert offset.shown_at(112.0, now=12.0) == pytest.approx(112.0 - 100.5 - 0.005 - 0.02)
    assert offset.shown_at(112.55, now=12.0) == 12.0, "no moment is later than now"
    assert offset.shown_at(112.0, now=20.0) < 112.0 - 100.5 - 0.02, "an older sample gives an earlier moment"


def test_without_a_sample_nothing_is_known() -> None:
    assert Offset(0.01).shown_at(112.0, now=12.0) == float("-inf")
    assert Offset(0.01).shown_at(1e9, now=12.0) == float("-inf")


def test_a_time_that_can_not_have_come_yet_shows_a_step_ahead() -> None:
    offset = Offset(0.01)
    offset.see(100.0, 100.5, now=10.0)
    assert offset.shown_at(112.0 + 0.51 + STEP_SECONDS, now=12.0) == 12.0
    assert offset.shown_at(112.0 + 0.53 + STEP_SECONDS, now=12.0) == NOT_YET


@pytest.mark.parametrize("reply", [(90.0, 110.0), (103.0, 115.0)], ids=["agrees", "is a rival"])
def test_an_interrupt_at_any_instruction_leaves_bounds_as_wide_as_their_age_demands(reply: tuple[float, float]) -> None:
    """Other threads that look between two instructions find such bounds, too."""

    def first_seen() -> Offset:
        offset = Offset(0.01)
        offset.see(100.0, 100.5, now=0.0)
        return offset

    with Strike() as strike:
        first_seen().see(*reply, now=10.0)
    for raise_at in range(1, strike.count + 1):
        offset = first_seen()
        try:
            with Strike(raise_at) as strike:
                offset.see(*reply, now=10.0)
        except Interrupt:
            pass
        assert offset.earliest(20.0) - 20.0 < 99.801, strike.where
        assert 120.0 - offset.shown_at(120.0, now=20.0) > 100.704, strike.where


UPPER: Any = Offset.__dict__["high"]


class ReadMeanwhile(Offset):
    """Offset whose upper bound is read while another thread sees a reply with wide bounds."""

    is_late = False

    @property
    def high(self) -> float:
        before: float = UPPER.__get__(self)
        if self.is_late:
            self.is_late = False
            self.see(90.0, 110.0, now=10.0)
        return before

    @high.setter
    def high(self, high: float) -> None:
        UPPER.__set__(self, high)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_reply_that_another_thread_sees_makes_no_bound_tighter_than_either_sample(*, is_late: bool) -> None:
    offset = ReadMeanwhile(0.01)
    offset.see(100.0, 100.5, now=0.0)
    offset.is_late = is_late
    assert 120.0 - offset.shown_at(120.0, now=20.0) > 100.704
    offset.is_late = is_late
    assert offset.shown_at(120.74, now=20.0) <= 20.0


YEAR_2023 = 1_700_000_000.0


def offset_of(ahead: float, round_trip: float) -> Offset:
    offset = Offset(0.0)
    offset.see(ahead, ahead + round_trip, now=0.0)
    return offset


def test_what_is_proposed_is_above_every_clock_when_the_request_arrives() -> None:
    near, far = offset_of(YEAR_2023, 0.001), offset_of(YEAR_2023 - 0.1, 0.2)
    proposal = propose([near, Offset(0.0), far], now=50.0)
    assert proposal == round((YEAR_2023 - 0.1 + 0.2 + 0.2 + 50.0 + LEAD_SECONDS) * 1e6)
    assert proposal >= max(near.high, far.high) * 1e6 + 50e6
    assert propose([near], now=50.001) > propose([near], now=50.0), "proposals rise with the time"


@pytest.mark.parametrize("offsets", [[], [Offset(0.0)], [offset_of(1000.0, 0.1)], [offset_of(1e12, 0.1)]])
def test_nothing_is_proposed_where_no_clock_is_known_or_one_shows_another_age(offsets: list[Offset]) -> None:
    assert propose(offsets, now=50.0) == 0


def test_where_a_step_is_in_doubt_no_reply_that_comes_soon_shows_nothing_new() -> None:
    assert LOOK_SECONDS < STEP_SECONDS
