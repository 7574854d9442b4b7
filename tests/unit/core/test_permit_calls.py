"""Calls for a permit on three masters: which slot is asked for, and what is left of the wait once it has a permit."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.pure_host import OPTIONS, THREAD, PureHost

from relock._core.call_record import CallRecord
from relock._core.effects import Answer, Ask, Failure, Listen
from relock._core.hold import FOREVER
from relock._core.lock_spec import LockSpec, Wish
from relock._core.quorum import Refused
from relock._core.tasks import PassOn
from relock._core.waiting import SLOTS_TRIED_MAX
from relock._keys import permit_keys
from relock._owner import owner_of_permit

LIMIT = 4
GUESS = 2  # what the host's chance, a half, makes of four slots
WAITER = b"me:1#1/4@3000"
NOW = 100_000_000


def refused(free: bytes, ahead: int = 0) -> list[Any]:
    return [b"refused", NOW, 0, ahead, b"", free]


def queued(free: bytes = b"") -> list[Any]:
    return [b"queued", NOW, 5_000, 0, b"you:1", 7, free]


def granted(slot: int) -> list[Any]:
    return [b"granted", NOW, NOW, slot]


def three(reply: list[Any]) -> list[Answer]:
    return [(reply,)] * 3


class Caller:
    """Caller that asks three masters for a permit of four, and is answered step by step."""

    def __init__(self, until: float = FOREVER, *, fair: bool = True) -> None:
        self.host = PureHost(3)
        options = OPTIONS.for_lock(fair=fair)
        self.spec = LockSpec.of(permit_keys("lock", "a"), tuple("abc"), options, OPTIONS, Wish(1, LIMIT))
        self.who = owner_of_permit(THREAD)
        self._flow = self.host.calls.acquire(CallRecord(), self.spec, self.who, until)
        self.step: Any = next(self._flow)
        self.outcome: Any = self

    def answer(self, answer: object) -> None:
        """Answer the present step; `outcome` has what the call returns, once it has ended."""
        try:
            self.step = self._flow.send(answer)
        except StopIteration as end:
            self.outcome = end.value

    @property
    def asked(self) -> tuple[str, bytes, bytes]:
        """The script of the present request, its owner and its slot."""
        (call,) = self.step.calls
        _, owner, _, slot, *_ = call.own.split(b"\r\n")
        return call.script.name, owner, slot

    @property
    def slot(self) -> int:
        return self.host.holds["a", self.who.key].kept


def test_a_right_guess_takes_one_request() -> None:
    caller = Caller()
    assert caller.asked == ("permit_acquire", WAITER, b"%d" % GUESS)
    caller.answer(three(granted(GUESS)))
    assert (caller.outcome, caller.slot, caller.host.handed) == (None, GUESS, [])


@pytest.mark.parametrize("until", [FOREVER, 0.0])
def test_after_a_wrong_guess_a_slot_that_a_quorum_has_free_is_asked_for_at_once(until: float) -> None:
    """A caller that looks only once asks as well. A late copy of the first request can't count for the other slot."""
    caller = Caller(until)
    caller.answer([(refused(b"0 1"),), (refused(b"1 3"),), (refused(b"0 3"),)])
    assert caller.asked == ("permit_acquire", WAITER + b"~1", b"1")
    caller.answer(three(granted(1)))
    assert (caller.outcome, caller.slot) == (None, 1)


@pytest.mark.parametrize(
    "answers",
    [
        three(refused(b"0 1 2", ahead=1)),
        three(refused(b"0 1 2")),
        three(refused(b"")),
        [(refused(b"0"),), *three(refused(b"1"))[:1], (refused(b"3"),)],
    ],
    ids=["another's turn", "the slot was free", "none is free", "none is free on a quorum"],
)
def test_no_other_slot_is_asked_for_without_a_reason(answers: Sequence[Answer]) -> None:
    caller = Caller(until=0.0)
    caller.answer(answers)
    assert isinstance(caller.outcome, Refused)


def test_dead_waiters_ahead_keep_nobody_from_asking_for_another_slot() -> None:
    """The masters count them, and pass them over."""
    caller = Caller(until=0.0)
    caller.answer(three(refused(b"0 1 3", ahead=1)))
    assert caller.asked[2] in (b"0", b"1", b"3")


def test_an_unfair_caller_asks_for_a_free_slot_also_while_others_wait() -> None:
    caller = Caller(until=0.0, fair=False)
    caller.answer(three(refused(b"3", ahead=1)))
    assert caller.asked == ("permit_acquire", b"me:1#1/4~1", b"3")


def test_other_callers_can_not_keep_a_caller_asking_without_end() -> None:
    caller, asked = Caller(until=0.0), 0
    while isinstance(caller.step, Ask) and caller.outcome is caller:
        asked += 1
        own = int(caller.asked[2])
        caller.answer(three(refused(b"%d" % ((own + 1) % LIMIT))))
    assert asked == 1 + SLOTS_TRIED_MAX
    assert isinstance(caller.outcome, Refused)


def test_no_other_slot_is_asked_for_when_the_time_is_over() -> None:
    caller = Caller(until=0.0)
    caller.host.now += caller.spec.node_timeout
    caller.answer(three(refused(b"0")))
    assert isinstance(caller.outcome, Refused)


def test_a_minority_of_grants_is_given_back_before_another_slot_is_asked_for() -> None:
    """The next attempt has a name of its own, so that no undo of the first one touches it."""
    caller = Caller()
    caller.answer([(granted(GUESS),), (refused(b"3"),), (refused(b"3"),)])
    assert caller.step.calls[0].script.name == "permit_give_back"
    caller.answer(three([b"released", NOW]))
    assert caller.asked == ("permit_acquire", WAITER + b"~1", b"3")


@pytest.mark.parametrize("third", [queued(), Failure("c", "silent", sent=True)], ids=["queued", "silent"])
def test_a_master_that_has_only_queued_the_owner_of_a_permit_is_told_to_pass_its_turn_on(third: Any) -> None:
    """A semaphore may have more permits, and then it is the turn of the next waiter."""
    caller = Caller()
    caller.answer(three(refused(b"")))
    assert isinstance(caller.step, Listen)
    caller.answer(True)
    assert caller.asked[0] == "permit_enqueue"
    caller.answer([(granted(GUESS),), (granted(GUESS),), (third,)])
    assert caller.outcome is None
    assert caller.host.handed == ([PassOn(caller.spec.keys, WAITER)] if third == queued() else [])
