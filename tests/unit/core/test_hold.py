"""A hold's validity, and the watchdog's decisions, without a clock."""

import math
from collections.abc import Generator
from typing import Any

import pytest
from attrs import evolve

from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Ask, Effect, Failure
from relock._core.flows.extend import extend, heal
from relock._core.hold import (
    FOREVER,
    HANDED_SETTLE_SECONDS,
    Hold,
)
from relock._core.lock_spec import LockSpec
from relock._core.quorum import NEVER, Grant, deadline_of, quorum_of
from relock._core.renewal import BATCH_MAX, pace_of, plan_renewals
from relock._events import LossCode
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner
from relock._scripts import Call

GRANT = Grant(7, 9.0, [9.0], True, [[[b"granted", 0, 7]]])
EXTENDED, ABSENT = [b"extended", 0], [b"absent", 0]
SILENT = Failure("a", "silent")


def hold(masters: int = 1, *, ends: list[float] | None = None, count: int = 1, **changes: Any) -> Hold:
    """Return a hold of 9 s from the moment 0 on, granted by all masters without drift; then make `changes`."""
    addresses = tuple("abcde"[:masters])
    options = ClientOptions(ttl=9.0)
    spec = evolve(LockSpec.of(lock_keys("lock", "a"), addresses, options.for_lock(), options), validity=9.0)
    ends = ends or [9.0] * masters
    answers: list[Answer] = [[SILENT if end == NEVER else [b"granted", 0, 7]] for end in ends]
    one = Hold(spec, b"me:1", Owner(1, None, None), Grant(7, 9.0, ends, True, answers), count)
    one.deadline = deadline_of(ends, quorum_of(masters))
    for name, value in changes.items():
        setattr(one, name, value)
    return one


def test_a_hold_is_valid_until_its_deadline_and_not_at_it() -> None:
    one = hold()
    assert one.remaining(8.0) == 1.0
    assert one.reason_for_loss(8.999) is None
    assert one.reason_for_loss(9.0) == LossCode.EXPIRED
    assert one.remaining(9.5) == 0.0


def longer(ttl: float = 900.0) -> Hold:
    """Return a hold of 9 s whose owner has asked for a longer lease."""
    one = hold()
    one.ask_for(ttl)
    return one


def test_a_longer_lease_that_was_not_confirmed_is_no_reason_to_wait_longer_with_the_next_renewal() -> None:
    one = longer()
    assert not one.count_renewal([SILENT], 1.0, 901.0, 1.5, ttl=900.0)
    assert one.renew_at == 1.5 + 0.9
    assert plan_renewals([one], 1.5).renew == (), "the next renewal is not due at once"
    assert plan_renewals([one], 2.4).renew == (one,)


def test_a_renewal_of_the_lease_from_before_it_was_lengthened_confirms_no_longer_one() -> None:
    """The watchdog had already sent its renewal."""
    one = longer()
    assert one.count_renewal([EXTENDED], 1.0, 10.0, 1.5, ttl=9.0)
    assert (one.deadline, one.renew_at) == (10.0, 4.0)


def test_a_renewal_counts_for_the_lease_that_was_sent_also_where_a_longer_one_is_asked_for_meanwhile() -> None:
    """The watchdog waits for the answer while the owner begins to extend the hold."""
    one = hold()
    flow = extend((one,), lambda: 1.0, 0.5)
    next(flow)
    one.ask_for(900.0)
    with pytest.raises(StopIteration):
        flow.send([[EXTENDED]])
    assert 9.0 < one.deadline < 10.0
    assert one.leased == 9.0


def renewing(one: Hold) -> tuple[Generator[Effect, Any, Any], tuple[Call, ...]]:
    """Return a renewal that waits for its answers, and the calls that it has sent."""
    flow = extend((one,), lambda: 1.0, 0.5)
    ask = next(flow)
    assert isinstance(ask, Ask)
    return flow, ask.calls


@pytest.mark.parametrize("ttl", [9.0, 90.0], ids=["its own lease", "a longer one"])
def test_only_the_first_extension_of_a_hold_that_a_releaser_gave_tells_its_note(ttl: float) -> None:
    one = hold()
    one.ask_for(ttl)
    (without,) = renewing(one)[1]
    spec = evolve(one.spec, options=evolve(one.spec.options, note="why"))
    assert Hold(spec, b"me:1", Owner(1, None, None), GRANT, 1).untold_note is None, "the acquire has told it"
    one.untold_note = Hold(spec, b"me:1~1", Owner(1, None, None), GRANT._replace(begins=0.0), 1).untold_note
    flow, (call,) = renewing(one)
    assert (call.own, call.rest, call.rest_count) == (without.own, b"$3\r\nwhy\r\n", 1)
    with pytest.raises(StopIteration):
        flow.send([[EXTENDED]])
    assert renewing(one)[1] == (without,)


def test_a_longer_lease_that_was_confirmed_is_renewed_after_a_third_of_it() -> None:
    one = longer()
    one.ask_for(90.0)
    one.ask_for(1800.0)
    assert one.count_renewal([EXTENDED], 1.0, 1801.0, 1.5, ttl=1800.0)
    assert (one.ttl, one.renew_at) == (1800.0, 601.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, LossCode.EXPIRED),
        ({"renew": False}, LossCode.NOT_RENEWED),
        ({"renew_until": 5.0}, LossCode.MAX_HOLD),
        ({"liveness": lambda: None}, LossCode.OWNER_ENDED),
        ({"ends": [NEVER]}, LossCode.FORGOTTEN),
    ],
)
def test_the_reason_of_a_loss(changes: dict[str, Any], reason: str) -> None:
    assert hold(**changes).reason_for_loss(10.0) == reason


UNASKED = Failure("a", "it is being connected", sent=False)


@pytest.mark.parametrize(
    ("changes", "answers", "is_enough"),
    [
        ({}, [[[b"granted", 0, 7]]] * 3, True),
        ({}, [[[b"granted", 0, 7]]] * 2 + [[UNASKED]], True),
        ({}, [[[b"granted", 0, 7]]] * 2 + [[SILENT]], False),
        ({"healing_pending": True}, [[[b"granted", 0, 7]]] * 3, False),
        ({"owner": b"me:1@3000~ab.7"}, [[[b"granted", 0, 7]]] * 3, False),
    ],
    ids=["all answered", "one was not asked", "one is silent", "it was healed", "a waiter was served"],
)
def test_one_undo_is_enough_where_nothing_that_gives_the_hold_can_arrive_any_more(
    changes: dict[str, Any], answers: list[Answer], *, is_enough: bool
) -> None:
    one = hold(3, answers=answers, late_until=5.0, **changes)
    assert one.undo_after == (NEVER if is_enough else 5.0)


def test_a_loss_is_said_once_and_keeps_what_was_held() -> None:
    one = hold(count=2)
    loss = one.lose(LossCode.EXPIRED, 9.5)
    assert loss is not None
    assert (loss.lock, loss.owner, loss.token, loss.hold_count, loss.held_for) == ("a", "me:1", 7, 2, 9.5)
    assert one.lose(LossCode.EXPIRED, 9.6) is None
    assert one.remaining(1.0) == 0.0


class Interrupt(BaseException):
    """Exception that the test raises; relock does not know the class."""


def test_a_loss_that_an_interrupt_keeps_from_being_said_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses would not be reported again, and the owner would find the hold neither valid nor lost."""

    class Struck(list[bool]):
        def pop(self, *_: Any) -> bool:
            super().pop()
            raise Interrupt

    one = hold()
    monkeypatch.setattr(one, "_unreported", Struck([True]))
    with pytest.raises(Interrupt):
        one.lose(LossCode.EXPIRED, 9.5)
    assert one.loss is not None
    assert one.lose(LossCode.EXPIRED, 9.6) is None


def test_a_renewal_counts_from_the_moment_before_it_was_sent() -> None:
    one = hold()
    assert one.count_renewal([EXTENDED], sent_at=3.0, end=12.0, now=3.5)
    assert (one.deadline, one.renew_at) == (12.0, 6.0)


def test_a_renewal_that_arrives_after_the_deadline_counts_for_nothing() -> None:
    one = hold()
    assert not one.count_renewal([EXTENDED], sent_at=8.9, end=17.9, now=9.0)
    assert one.deadline == 9.0


def test_a_renewal_never_shortens() -> None:
    one = hold(ends=[20.0])
    one.count_renewal([EXTENDED], sent_at=3.0, end=12.0, now=3.5)
    assert one.deadline == 20.0


def test_silence_changes_nothing_and_is_tried_again_after_a_tenth() -> None:
    one = hold()
    assert not one.count_renewal([SILENT], sent_at=3.0, end=12.0, now=3.5)
    assert (one.deadline, one.renew_at) == (9.0, 3.5 + 0.9)


def test_absent_ends_the_hold_at_once_where_it_rules_a_quorum_out() -> None:
    one = hold()
    one.count_renewal([ABSENT], sent_at=3.0, end=12.0, now=3.5)
    assert one.reason_for_loss(3.5) == LossCode.FORGOTTEN
    three = hold(masters=3)
    three.count_renewal([ABSENT, SILENT, EXTENDED], sent_at=3.0, end=12.0, now=3.5)
    assert three.deadline == 9.0, "two leases still run, the second largest end counts"


def test_two_partial_renewals_of_different_masters_advance_the_deadline() -> None:
    five = hold(masters=5)
    five.count_renewal([EXTENDED, EXTENDED, SILENT, SILENT, SILENT], sent_at=3.0, end=12.0, now=3.5)
    assert five.deadline == 9.0
    five.count_renewal([SILENT, SILENT, EXTENDED, SILENT, SILENT], sent_at=4.0, end=13.0, now=4.5)
    assert five.deadline == 12.0


def test_a_masters_clock_that_went_ahead_ends_its_lease_earlier() -> None:
    one = hold()
    one.shift(ClockStep(1.0, 0, 4.0, 0))
    assert one.deadline == 5.0


@pytest.mark.parametrize(
    ("asked_at", "answered_us", "remaining"),
    [(0.9, 999, 3.0), (0.9, 1000, 8.0), (1.1, 0, 8.0)],
    ids=["asked and answered before", "its own answer showed it", "asked afterwards, of another node"],
)
def test_what_was_confirmed_before_a_clock_went_ahead_has_not_its_full_length(
    asked_at: float, answered_us: int, remaining: float
) -> None:
    """Threads may see the step between that answer and the moment at which the answer counts."""
    one = hold()
    one.shift(ClockStep(1.0, 0, 4.0, 1000))
    one.count_renewal([[b"extended", answered_us]], asked_at, 10.0, 2.0)
    assert one.remaining(2.0) == remaining


class Struck(list[float]):
    """The ends of a hold; another thread sees a step of the first master's clock just before one of them is written."""

    def __init__(self, one: Hold, step: ClockStep) -> None:
        super().__init__(one.lease_ends)
        self._hold, self._step = one, step

    def __setitem__(self, place: Any, end: Any) -> None:
        if not self._hold._clock_steps:
            self._hold.shift(self._step)
        super().__setitem__(place, end)


@pytest.mark.parametrize("status", [b"extended", b"healed"])
def test_a_clock_that_goes_ahead_while_a_lease_is_counted_shortens_it(status: bytes) -> None:
    """Leases were confirmed before the step, until 20.0; by the master's clock as it is now that is 16.0."""
    one = hold()
    one.lease_ends = Struck(one, ClockStep(3.0, 0, 4.0, 1000))
    count = one.count_renewal if status == b"extended" else one.count_healing
    count([[status, 999]], 1.0, 20.0, 2.0)
    assert one.deadline == 16.0


def test_a_clock_that_goes_ahead_while_a_late_grant_is_counted_shortens_it() -> None:
    base = hold(masters=3, ends=[9.0, 9.0, NEVER])
    answers: list[Any] = [*base.answers[:2], [UNREAD]]
    three = Hold(base.spec, b"me:1", Owner(1, None, None), Grant(7, 9.0, base.lease_ends, False, answers), 1)
    answers[2] = [[b"granted", 999, 7]]
    three.lease_ends = Struck(three, ClockStep(1.0, 2, 4.0, 1000))
    three.drop_absent([SILENT, SILENT, SILENT])
    assert three.lease_ends == [9.0, 9.0, 5.0]


class Changed(list[float]):
    """The ends of a hold; another thread sees a step while the deadline is computed."""

    def __init__(self, one: Hold, step: ClockStep) -> None:
        super().__init__(one.lease_ends)
        self._hold, self._step = one, step

    def copy(self) -> list[float]:
        before = super().copy()
        if not self._hold._clock_steps:
            self._hold.shift(self._step)
        return before


def test_a_clock_that_goes_ahead_while_the_deadline_is_worked_out_counts() -> None:
    one = hold()
    one.lease_ends = Changed(one, ClockStep(1.0, 0, 4.0, 1000))
    one.drop_absent([SILENT])
    assert one.deadline == 5.0


def test_a_clock_that_went_ahead_costs_one_lease_of_all_that_were_granted() -> None:
    """Leases of all masters count, even if their grant came after a quorum had been enough."""
    three = hold(masters=3, ends=[9.0, 9.0, NEVER])
    three.answers[2] = [[b"granted", 0, 7]]  # type: ignore[index]
    three.shift(ClockStep(1.0, 0, 20.0, 0))
    assert three.deadline == 9.0


UNREAD = Failure("c", "not yet", awaited=True)


@pytest.mark.parametrize("said", [SILENT, [b"counted", 2000], [b"extended", 2000]], ids=["-", "counted", "extended"])
@pytest.mark.parametrize(
    ("granted", "end"),
    [([b"granted", 999, 7], NEVER), ([b"granted", 1000, 7], 9.0), (UNREAD, NEVER)],
    ids=["before", "its own answer showed it", "not read yet"],
)
def test_what_was_granted_before_a_clock_went_ahead_and_is_heard_of_afterwards_counts_for_nothing(
    granted: Any, end: float, said: Any
) -> None:
    """Leases of such a grant are too long by the step. The reply to a count shows the hold, but not its length."""
    base = hold(masters=3, ends=[9.0, 9.0, NEVER])
    answers: list[Any] = [*base.answers[:2], [UNREAD]]
    three = Hold(base.spec, b"me:1", Owner(1, None, None), Grant(7, 9.0, base.lease_ends, False, answers), 1)
    three.shift(ClockStep(1.0, 2, 20.0, 1000))
    answers[2][0] = granted
    three.drop_absent([SILENT, SILENT, said])
    assert three.lease_ends[2] == end


def test_a_grant_that_came_late_counts_like_the_others() -> None:
    three = hold(masters=3, ends=[9.0, 9.0, NEVER])
    three.answers[2] = [[b"granted", 0, 7]]  # type: ignore[index]
    three.drop_absent([ABSENT, SILENT, SILENT])
    assert three.deadline == 9.0, "two of three masters still have the hold"
    three.drop_absent([SILENT, SILENT, ABSENT])
    assert three.reason_for_loss(1.0) == LossCode.FORGOTTEN, "each forgetful master counts"


def test_a_master_that_extends_a_hold_or_counts_it_has_granted_it() -> None:
    """Two of the masters that granted the hold have forgotten it; the replies of two others are not read yet."""
    under_way = Failure("a", "it is late", sent=True, awaited=True)
    for say in ([b"counted", 0], EXTENDED):
        five = hold(masters=5, ends=[9.0, 9.0, 9.0, NEVER, NEVER])
        for i in (3, 4):
            five.answers[i][0] = under_way  # type: ignore[index]
        five.drop_absent([ABSENT, ABSENT, say, say, say])
        assert five.deadline == 9.0
    renewed = hold(masters=5, ends=[9.0, 9.0, 9.0, NEVER, NEVER])
    assert renewed.count_renewal([ABSENT, ABSENT, EXTENDED, EXTENDED, EXTENDED], sent_at=3.0, end=12.0, now=3.1)
    assert renewed.deadline == 12.0


def test_healing_says_on_which_master_another_attempt_is_in_the_way() -> None:
    """The watchdog then tries the healing again, because such attempts come and go."""
    one, other = hold(masters=3, ends=[9.0, NEVER, 9.0]), hold(masters=3, ends=[9.0, NEVER, 9.0])
    flow = heal((one, other), lambda _: True, lambda: 1.0, 0.05)
    next(flow)
    healed, refused = [b"healed", 0], [b"refused", 0]
    with pytest.raises(StopIteration) as end:
        flow.send([[SILENT, SILENT], [healed, refused], [SILENT, SILENT]])
    assert end.value.value == (other,)


def test_a_hold_is_given_again_only_to_masters_that_do_not_have_it() -> None:
    """A master that had the hold, and loses it just then to an operator's force_release, must not get it again."""
    holds = [hold(masters=3, ends=ends) for ends in ([9.0, NEVER, 9.0], [9.0, 9.0, 9.0], [9.0, 9.0, NEVER])]
    flow = heal(holds, lambda _: True, lambda: 1.0, 0.05)
    first = next(flow)
    second = flow.send([[SILENT], [[b"healed", 0]], [SILENT]])
    assert isinstance(first, Ask)
    assert isinstance(second, Ask)
    assert [(ask.only, len(ask.calls)) for ask in (first, second)] == [(frozenset({1}), 1), (frozenset({2}), 1)]


def test_a_hold_that_was_released_is_given_to_no_master_again() -> None:
    """The release may come between the renewal that found the hold missing, and the healing."""
    flow = heal((hold(masters=3, ends=[9.0, NEVER, 9.0]),), lambda _: False, lambda: 1.0, 0.05)
    with pytest.raises(StopIteration):
        next(flow)


RELEASED = [b"released", 0]
DOWN = Failure("a", "down", sent=False)


@pytest.mark.parametrize("was_silent", [False, True])
def test_a_place_in_the_queue_may_be_given_after_the_release(was_silent: bool) -> None:
    """A master may grant it whose answer to the acquire had not come when a quorum had granted the lock."""
    base, queued = hold(masters=3, ends=[9.0, 9.0, NEVER]), [b"queued", 0, 5_000, 0, b"other:1", 7]
    answers: list[Any] = [*base.answers[:2], [SILENT if was_silent else queued]]
    one = Hold(base.spec, b"me:1~2.7", Owner(1, None, None), Grant(7, 9.0, base.lease_ends, False, answers), 1)
    answers[2] = [queued]
    assert one.may_be_left([[RELEASED], [RELEASED], [ABSENT]]) == was_silent


@pytest.mark.parametrize(("owner", "may_be_left"), [(b"me:1~2", False), (b"me:1~2.7", True)])
def test_a_place_may_be_given_after_the_release_by_a_master_without_a_vote(owner: bytes, *, may_be_left: bool) -> None:
    """Requests with a ticket write the place before the script checks whether the master has a vote."""
    base = hold(masters=3, ends=[9.0, 9.0, NEVER])
    answers: list[Any] = [*base.answers[:2], [SILENT]]
    one = Hold(base.spec, owner, Owner(1, None, None), Grant(7, 9.0, base.lease_ends, False, answers), 1)
    answers[2] = [[b"no_vote", 0, 1]]
    assert one.may_be_left([[RELEASED], [RELEASED], [ABSENT]]) == may_be_left


@pytest.mark.parametrize("acquired", [DOWN, [b"queued", 0, 5_000, 0, b"other:1", 7]])
@pytest.mark.parametrize(("owner", "was_queued"), [(b"me:1", False), (b"me:1~2", False), (b"me:1~2.7", True)])
def test_a_place_in_the_queue_is_left_where_the_release_is_not_heard_of(
    acquired: Any, owner: bytes, was_queued: bool
) -> None:
    """An earlier request of the same wait got the place, when the waiter had its ticket."""
    base = hold(masters=3, ends=[9.0, 9.0, NEVER])
    answers = [*base.answers[:2], [acquired]]
    one = Hold(base.spec, owner, Owner(1, None, None), Grant(7, 9.0, base.lease_ends, False, answers), 1)
    assert one.may_be_left([[RELEASED], [RELEASED], [DOWN]]) == was_queued
    assert not one.may_be_left([[RELEASED], [RELEASED], [ABSENT]])


@pytest.mark.parametrize("said", [[b"healed", 0], [b"refused", 0]])
def test_what_was_healed_is_left_though_an_older_absent_was_read_after_that(said: list[Any]) -> None:
    """Replies to a count may be such: it was written while the healing was on its way, by another connection."""
    base = hold(masters=3, ends=[9.0, 9.0, NEVER])
    one = Hold(
        base.spec, b"me:1", Owner(1, None, None), Grant(7, 9.0, base.lease_ends, False, [*base.answers[:2], [DOWN]]), 1
    )
    one.count_healing([DOWN, DOWN, said], 0.0, 9.0, 1.0)
    one.drop_absent([[b"counted", 0], [b"counted", 0], ABSENT])
    assert one.may_be_left([[RELEASED], [RELEASED], [DOWN]]) == (said[0] == b"healed")
    assert not one.may_be_left([[RELEASED], [RELEASED], [ABSENT]])


def test_what_was_asked_for_twice_may_be_granted_again_after_its_release() -> None:
    one = hold()
    twice = Hold(one.spec, b"me:1", Owner(1, None, None), Grant(7, 9.0, [9.0], True, one.answers, is_repeated=True), 1)
    assert not one.may_be_left([[RELEASED]])
    assert twice.may_be_left([[RELEASED]])


@pytest.mark.parametrize("is_released", [False, True])
def test_a_release_during_a_healing_knows_that_the_healing_may_have_come_after_it(is_released: bool) -> None:
    """Answers to the healing do not show the order of the two."""
    one = hold(masters=3, ends=[9.0, NEVER, 9.0])
    one.answers[1] = [DOWN]  # type: ignore[index]
    book = {one}
    flow = heal((one,), book.__contains__, lambda: 1.0, 0.05)
    next(flow)
    if is_released:
        book.clear()
    with pytest.raises(StopIteration):
        flow.send([[DOWN], [[b"healed", 0]], [DOWN]])
    assert one.may_be_left([[RELEASED], [ABSENT], [RELEASED]]) == is_released


def test_a_healing_without_an_answer_stays_in_doubt_whatever_a_later_one_says() -> None:
    one = hold(masters=3, ends=[9.0, NEVER, 9.0])
    one.answers[1] = [DOWN]  # type: ignore[index]
    for answer in (SILENT, [b"healed", 0]):
        flow = heal((one,), lambda _: True, lambda: 1.0, 0.05)
        next(flow)
        with pytest.raises(StopIteration):
            flow.send([[DOWN], [answer], [DOWN]])
    assert one.may_be_left([[RELEASED], [ABSENT], [RELEASED]])


def test_healing_counts_only_before_the_deadline() -> None:
    three = hold(masters=3, ends=[9.0, 12.0, NEVER])
    three.count_healing([SILENT, SILENT, [b"healed", 0]], sent_at=8.0, end=13.0, now=8.9)
    assert three.deadline == 12.0
    late = hold(masters=3, ends=[9.0, 12.0, NEVER])
    late.count_healing([SILENT, SILENT, [b"healed", 0]], sent_at=8.0, end=13.0, now=9.0)
    assert late.deadline == 9.0


@pytest.mark.parametrize(
    ("acquired", "released", "left"),
    [
        ([[b"granted", 0, 7]], RELEASED, False),
        ([SILENT], RELEASED, False),
        ([[b"granted", 0, 7]], SILENT, True),
        ([[b"granted", 0, 7]], ABSENT, True),
        ([SILENT], ABSENT, True),
        ([DOWN], ABSENT, False),
        ([DOWN], SILENT, False),
        ([[b"refused", 0]], DOWN, False),
    ],
)
def test_the_masters_on_which_a_release_may_have_left_something(acquired: list[Any], released: Any, left: bool) -> None:
    three = hold(masters=3, ends=[9.0, 9.0, NEVER])
    three.answers[2] = acquired  # type: ignore[index]
    assert three.may_be_left([[RELEASED], [RELEASED], [released]]) == left
    three.healing_pending = True
    assert three.may_be_left([[RELEASED], [RELEASED], [released]]), "a healing that is under way may come after either"


def test_what_was_healed_may_be_left_where_the_release_is_not_answered() -> None:
    three = hold(masters=3, ends=[9.0, 9.0, NEVER])
    three.answers[2] = [DOWN]  # type: ignore[index]
    three.count_healing([SILENT, SILENT, [b"healed", 0]], sent_at=8.0, end=12.0, now=1.0)
    assert three.may_be_left([[RELEASED], [RELEASED], [DOWN]])
    assert not three.may_be_left([[RELEASED], [RELEASED], [RELEASED]])


def test_the_plan_renews_what_is_due_and_what_is_nearly_due_with_it() -> None:
    due, nearly, later = hold(renew_at=3.0), hold(renew_at=3.2), hold(renew_at=5.0)
    plan = plan_renewals([due, nearly, later], now=3.0)
    assert plan.renew == (due, nearly)
    assert plan.look_at == 5.0
    assert not plan.lost


def test_the_shortest_leases_are_renewed_first() -> None:
    long, short = hold(ttl=30.0), hold(ttl=1.0)
    assert plan_renewals([long, short, long], now=8.0).renew == (short, long, long)


@pytest.mark.parametrize("count", [1, 2, 51, 1_000, 10_000])
@pytest.mark.parametrize("round_seconds", [0.0, 0.002, 0.05])
def test_none_comes_later_than_it_might_have_come_early(count: int, round_seconds: float) -> None:
    due = [hold(ttl=30.0)] * count
    pace = pace_of(due, 100.0, round_seconds)
    writes = math.ceil(count / pace.holds)
    assert (writes - 1) * max(pace.seconds, round_seconds) <= 1.0
    assert pace.until > 100.0 + writes * pace.seconds


def test_many_renewals_are_small_writes_with_pauses_between() -> None:
    pace = pace_of([hold(ttl=30.0)] * 10_000, 0.0, 0.002)
    assert tuple(pace) == pytest.approx((50, 0.005, 2.0))


def test_writes_to_masters_that_are_far_away_are_larger() -> None:
    assert pace_of([hold(ttl=30.0)] * 10_000, 0.0, 0.03).holds > 300
    assert pace_of([hold(ttl=30.0)] * 10_000, 0.0, 1.0).holds == BATCH_MAX


def test_a_few_short_leases_do_not_hurry_the_long_ones() -> None:
    long = [hold(ttl=30.0)] * 9_990
    hurried = pace_of([*[hold(ttl=0.3)] * 10, *long], 0.0, 0.002)
    assert hurried == pace_of([*long, *long[:10]], 0.0, 0.002)
    short = pace_of([*[hold(ttl=0.3)] * 5_000, *long[:5_000]], 0.0, 0.002)
    assert math.ceil(5_000 / short.holds) * short.seconds == pytest.approx(0.01)


def test_a_retry_is_not_due_at_once() -> None:
    one = hold()
    one.count_renewal([SILENT], sent_at=3.0, end=12.0, now=3.5)
    assert plan_renewals([one], now=3.5).renew == ()


@pytest.mark.parametrize(
    "changes",
    [{"renew_at": FOREVER}, {"renew_until": 2.0}, {"liveness": lambda: None}],
    ids=["renew=False", "max_hold", "its thread ended"],
)
def test_what_is_not_renewed_is_looked_at_at_its_deadline(changes: dict[str, Any]) -> None:
    one = hold(**changes)
    plan = plan_renewals([one], now=4.0)
    assert plan.renew == ()
    assert plan.look_at == 9.0
    assert plan_renewals([one], now=9.0).lost[0][0] is one


def test_without_holds_there_is_nothing_to_look_at() -> None:
    assert plan_renewals([], now=1.0).look_at == FOREVER
    lost = hold()
    lost.lose(LossCode.FORGOTTEN, 1.0)
    for now in (1.0, 10.0):
        assert plan_renewals([lost], now=now) == ((), (), FOREVER), "the loss of a hold is told only once"


def handed(masters: int = 1, **changes: Any) -> Hold:
    """Return a hold that a releaser gave for 3 s from the moment 0 on; the lock's lease is 9 s."""
    one = hold(masters, **changes)
    grant = Grant(7, 3.0, [3.0] * masters, True, one.answers, 0.0, is_short=True)
    return Hold(one.spec, b"me:1~ab.7", Owner(1, None, None), grant, 1)


@pytest.mark.parametrize("renew", [True, False])
def test_the_full_lease_is_asked_for_once_a_hold_that_was_given_has_lasted_a_moment(renew: bool) -> None:
    """Leases are asked for even without renewal, because the caller asked for the full lease."""
    one = handed()
    one.renew = renew
    assert one.remaining(0.5) == 2.5
    assert plan_renewals([one], 0.49).renew == ()
    assert plan_renewals([one], 0.49).look_at == HANDED_SETTLE_SECONDS
    assert plan_renewals([one], HANDED_SETTLE_SECONDS).renew == (one,)
    assert one.count_renewal([EXTENDED], 0.5, 9.5, 0.6)
    assert one.remaining(0.6) == pytest.approx(8.9)
    assert not one.is_short
    assert one.renew_at == (0.5 + 3.0 if renew else FOREVER)


def test_a_full_lease_that_is_confirmed_after_the_short_one_counts_for_nothing() -> None:
    one = handed()
    assert not one.count_renewal([EXTENDED], 0.01, 9.01, 3.0)
    assert one.reason_for_loss(3.0) == LossCode.EXPIRED
    assert one.remaining(3.5) == 0.0


def test_a_full_lease_is_confirmed_by_a_quorum() -> None:
    one = handed(3)
    assert not one.count_renewal([EXTENDED, ABSENT, SILENT], 0.01, 9.01, 0.02)
    assert one.is_short
    assert one.remaining(1.0) == 2.0
    assert one.count_renewal([EXTENDED, ABSENT, EXTENDED], 1.0, 10.0, 1.1)
    assert one.remaining(1.1) == 8.9
    assert one.lacking == {1}


def test_a_renewal_of_a_short_lease_that_failed_comes_again_before_that_is_over() -> None:
    one = handed()
    one.renew = False
    assert not one.count_renewal([SILENT], 1.0, 10.0, 1.1)
    assert one.renew_at == pytest.approx(1.1 + 0.3)


def test_short_leases_of_long_ttls_are_renewed_before_they_are_over() -> None:
    short = [handed() for _ in range(200)]
    for one in short:
        one.ttl = 300.0
    pace = pace_of(short, 1.0, 0.002)
    assert math.ceil(200 / pace.holds) * pace.seconds <= 0.2
    assert plan_renewals([hold(ttl=9.0, renew_at=0.0), short[0]], 1.0).renew[0] is short[0]
