"""The policy of asking several masters: the masters that are asked, the certain outcome, and late answers."""

from typing import Any

import pytest
from attrs import define

from relock._core.asking import GRACE_SECONDS, Panel, Round, check_usable, grace_seconds
from relock._core.effects import Answer, Ask, Exchange, Failure
from relock._core.flows.heartbeat import heartbeat
from relock._core.flows.release import leave_call
from relock._core.quorum import is_attempt_certain
from relock._errors import ConfigurationError
from relock._keys import lock_keys
from relock._scripts import load

KEYS = lock_keys("lock", "a")
CALL = leave_call(KEYS, b"me:1")
GRANTED: Answer = ([b"granted", 0, 7],)
REFUSED: Answer = ([b"refused", 10, 5_000, 2, b"you:1"],)
BROKEN = Failure("a", "broken")


@define
class FakeMaster:
    """A master of which only the number matters."""

    index: int
    address: str = "a"
    no_reply_yet: Answer = (Failure("a", "silent", awaited=True),)


class Asker:
    """Asker that notes that it was woken."""

    def __init__(self) -> None:
        self.is_woken = False

    def done(self) -> bool:
        return self.is_woken

    def set_result(self, _: None) -> None:
        assert not self.is_woken
        self.is_woken = True


def panel_of(count: int) -> Panel[FakeMaster]:
    return Panel([FakeMaster(index) for index in range(count)])


def round_of(count: int, asked: Ask, done: Asker | None = None) -> Round:
    """Return the round in which so many masters are asked."""
    (part,) = panel_of(count).route(asked, strict=True).parts(0.0)
    part.round.done = done
    return part.round


def ask(*calls: Any, only: frozenset[int] | None = None) -> Ask:
    return Ask(calls or (CALL,), 1.0, is_attempt_certain, only=only)


def test_each_master_is_a_failure_that_may_yet_answer_until_it_has() -> None:
    round_ = round_of(3, ask(CALL, CALL))
    assert [len(answer) for answer in round_.answers] == [2] * 3
    assert all(reply.awaited for answer in round_.answers for reply in answer)  # type: ignore[union-attr]
    assert round_.missing == 3


def test_a_master_that_is_not_asked_was_sent_nothing_and_is_not_waited_for() -> None:
    way = panel_of(3).route(ask(only=frozenset((0, 2))), strict=True)
    (part,) = way.parts(0.0)
    assert [master.index for master in part.masters] == [0, 2]
    ((failure,),) = way.answers[1:2]
    assert isinstance(failure, Failure)
    assert (failure.sent, failure.awaited) == (False, False)
    assert part.round.missing == 2


def test_all_is_asked_in_one_part() -> None:
    way = panel_of(3).route(ask(), strict=True)
    (part,) = way.parts(0.5)
    assert part.round.sent_at == 0.5
    assert not way.parts(0.5)
    part.round.answered(1, GRANTED)
    assert way.answers[1] is GRANTED


def test_the_asker_is_woken_as_soon_as_the_outcome_is_certain_and_later_answers_are_noted() -> None:
    asker = Asker()
    round_ = round_of(3, ask(), asker)
    round_.answered(0, GRANTED)
    assert (round_.is_certain, asker.is_woken, round_.is_awaited) == (False, False, True)
    round_.answered(1, GRANTED)
    assert (round_.is_certain, asker.is_woken, round_.is_awaited) == (True, True, False)
    round_.answered(2, REFUSED)
    assert round_.answers == [GRANTED, GRANTED, REFUSED]


def test_the_asker_is_woken_by_the_last_answer_though_nothing_is_certain() -> None:
    asker = Asker()
    round_ = round_of(2, ask(), asker)
    round_.answered(1, REFUSED)
    assert not asker.is_woken
    round_.miss(FakeMaster(0), BROKEN)
    assert asker.is_woken


def test_a_master_that_has_answered_fails_no_more() -> None:
    round_ = round_of(3, ask())
    round_.answered(0, GRANTED)
    for _ in range(2):
        round_.miss(FakeMaster(0), BROKEN)
        round_.miss(FakeMaster(1), BROKEN)
    assert round_.answers[:2] == [GRANTED, (BROKEN,)]
    assert round_.missing == 1


def test_a_round_that_spares_nobody_is_certain_when_it_may_spare_some_again() -> None:
    asker = Asker()
    round_ = round_of(3, ask(), asker)
    spared = round_.spare(0)
    round_.answered(0, GRANTED)
    round_.answered(1, GRANTED)
    assert not asker.is_woken
    assert round_.spare(spared) == 0
    assert asker.is_woken


@pytest.mark.parametrize(
    ("masters", "connected", "asked", "is_enough"),
    [(1, 0, 1, False), (1, 1, 1, True), (3, 1, 3, False), (3, 2, 3, True), (3, 0, 2, True), (5, 2, 5, False)],
)
def test_a_quorum_is_enough_or_those_that_are_there_where_only_some_are_asked(
    masters: int, connected: int, asked: int, is_enough: bool
) -> None:
    assert panel_of(masters).is_enough(connected, asked) is is_enough


def test_the_others_have_as_long_again_as_a_quorum_took_to_connect() -> None:
    assert grace_seconds(0.25) == 0.25 + GRACE_SECONDS


def test_a_server_that_was_never_a_master_ends_it() -> None:
    error = ConfigurationError("a replica", option="nodes")
    check_usable([None, None])
    with pytest.raises(ConfigurationError) as caught:
        check_usable([None, error])
    assert caught.value is error


@pytest.mark.parametrize("guarded", [False, True])
def test_a_prepared_request_is_packed_as_its_call_is(guarded: bool) -> None:
    request = load("release").prepare(fence=7, token_ms=8, hand=9)
    exchange = Exchange(request, KEYS, b"me:1", 0.0, 1.0, is_attempt_certain)
    rounds = [Round(asked, 0.0, [GRANTED]) for asked in (exchange, Ask(exchange.calls, 1.0))]
    packed, by_call = [round_.pack(guarded) for round_ in rounds]
    assert packed == by_call
    assert [(round_.is_simple, round_.count, round_.script.name) for round_ in rounds] == [(True, 1, "release")] * 2


@pytest.mark.parametrize(
    ("asked", "is_simple"),
    [(ask(), True), (ask(CALL, CALL), False), (heartbeat([((b"me", KEYS), [(7, b"me:1")])], 1.0), False)],
    ids=["one call", "two calls", "a call with arguments without a fixed number"],
)
def test_only_a_single_call_of_a_fixed_length_may_be_packed_once_for_all_masters(
    asked: Ask, *, is_simple: bool
) -> None:
    assert Round(asked, 0.0, [GRANTED]).is_simple is is_simple
