"""The gates of an ``owner=``: one caller at a time, in the order in which they came.

The caller inside may come in again.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from support.instructions import Interrupt, Strike

from relock._core.call_record import CallRecord
from relock._owner import ReadKey
from relock._runtime.machine import THREADS
from relock._runtime.session.gates import Gates

KEY = ("lock", ("owner", "job"))
READ_KEY = ("lock", ReadKey(KEY[1]))
FIRST, SECOND, THIRD = "first", "second", "third"
FOREVER = float("inf")


@pytest.fixture
def gates() -> Gates:
    return Gates(THREADS)


def come(gates: Gates, who: str) -> CallRecord:
    """Come in at once."""
    record = CallRecord()
    assert gates.try_enter(record, KEY, who)
    return record


class Waiting:
    """A caller in line."""

    def __init__(self, gates: Gates, who: str) -> None:
        self.record = CallRecord()
        self.tokens: SimpleQueue[None] = SimpleQueue()
        assert not gates.try_enter(self.record, KEY, who)
        self._waiting = gates.wait(self.record, KEY, FOREVER, who, self.tokens)
        assert not self.is_in()

    def is_in(self) -> bool:
        """Return whether the caller has its turn, and take it."""
        try:
            next(self._waiting)
        except StopIteration as end:
            return bool(end.value)
        return False

    def give_up(self) -> None:
        """Leave the wait by an exception."""
        self._waiting.close()


def test_the_first_in_line_comes_in_first_and_is_woken_for_it(gates: Gates) -> None:
    inside, second, third = come(gates, FIRST), Waiting(gates, SECOND), Waiting(gates, THIRD)
    assert not gates.try_enter(CallRecord(), KEY, "another")
    gates.leave(inside)
    assert not second.tokens.empty()
    assert third.tokens.empty()
    assert not third.is_in()
    assert second.is_in()
    gates.leave(second.record)
    assert third.is_in()


def test_both_sides_of_a_read_write_lock_have_one_gate(gates: Gates) -> None:
    """No side gets in while the other one is inside or in line; another lock of the owner has a gate of its own."""
    for inside_as, comes_as in itertools.permutations((KEY, READ_KEY)):
        inside, second = CallRecord(), CallRecord()
        assert gates.try_enter(inside, inside_as, FIRST)
        assert gates.try_enter(CallRecord(), ("another lock", comes_as[1]), FIRST)
        assert not gates.try_enter(second, comes_as, SECOND)
        waiting = gates.wait(second, comes_as, FOREVER, SECOND, SimpleQueue())
        next(waiting)
        gates.leave(inside)
        assert not gates.try_enter(CallRecord(), inside_as, THIRD), "the second is in line"
        with pytest.raises(StopIteration):
            next(waiting)
        gates.leave(second)
        assert KEY not in gates._gates
        assert READ_KEY not in gates._gates
        gates._gates.clear()


def test_whoever_is_inside_comes_in_again_though_others_are_in_line(gates: Gates) -> None:
    """Signal handlers run in the thread that they have interrupted, which would wait for itself without end."""
    outer, second = come(gates, FIRST), Waiting(gates, SECOND)
    inner = come(gates, FIRST)
    gates.leave(inner)
    assert not second.is_in(), "the outer call is still inside"
    gates.leave(outer)
    assert second.is_in()


def test_who_gives_up_hands_the_turn_on(gates: Gates) -> None:
    inside, second, third = come(gates, FIRST), Waiting(gates, SECOND), Waiting(gates, THIRD)
    gates.leave(inside)
    second.give_up()
    assert not third.tokens.empty()
    assert third.is_in()


def test_to_leave_again_does_no_harm(gates: Gates) -> None:
    inside, second = come(gates, FIRST), Waiting(gates, SECOND)
    admission = inside.gate
    gates.leave(inside)
    assert second.is_in()
    inside.gate = admission  # as after an interrupt between leaving and forgetting
    gates.leave(inside)
    assert not gates.try_enter(CallRecord(), KEY, THIRD), "the second caller is inside"


def test_a_gate_is_there_while_somebody_is_at_it(gates: Gates) -> None:
    inside, second, third = come(gates, FIRST), Waiting(gates, SECOND), Waiting(gates, THIRD)
    gates.leave(inside)
    assert second.is_in()
    third.give_up()
    assert gates._gates
    gates.leave(second.record)
    assert not gates._gates


def test_the_last_in_line_that_gives_up_takes_the_gate_away(gates: Gates) -> None:
    inside, second = come(gates, FIRST), Waiting(gates, SECOND)
    gates.leave(inside)
    assert gates._gates, "the gate stays while the second caller is in line"
    second.give_up()
    assert not gates._gates


def test_who_comes_to_a_gate_that_is_being_removed_goes_to_the_next_one(gates: Gates) -> None:
    """Callers may find the gate before the one inside removes it, and come in after that."""
    inside, second = come(gates, FIRST), Waiting(gates, SECOND)
    old = gates._gates.pop(KEY)
    another = come(gates, THIRD)
    gates.leave(inside)
    assert not second.is_in(), "another caller is inside the new gate"
    gates.leave(another)
    assert second.is_in()
    assert gates._gates[KEY] is not old


def test_nobody_overtakes_those_in_line(gates: Gates) -> None:
    inside, second = come(gates, FIRST), Waiting(gates, SECOND)
    gates.leave(inside)
    assert not gates.try_enter(CallRecord(), KEY, THIRD)
    assert second.is_in()


def test_a_call_of_a_signal_handler_does_not_wait_for_the_one_that_it_interrupted_in_line(gates: Gates) -> None:
    """The thread that has that place comes to it no sooner than the handler has returned."""
    inside, second = come(gates, FIRST), Waiting(gates, SECOND)
    gates.leave(inside)
    inner = come(gates, SECOND)
    gates.leave(inner)
    assert second.is_in()


def test_a_place_whose_call_is_abandoned_keeps_nobody(gates: Gates) -> None:
    """Places of a closed loop's task stay where they are, and come in no more."""
    inside, gone, third = come(gates, FIRST), Waiting(gates, SECOND), Waiting(gates, THIRD)
    gates.leave(gone.record)
    gates.leave(inside)
    assert not third.tokens.empty()
    assert third.is_in()


def test_a_gate_is_open_after_an_interrupt_at_any_instruction_of_leaving_it(gates: Gates) -> None:
    for raise_at in itertools.count(1):
        record, other = CallRecord(), CallRecord()
        assert gates.enter(record, KEY, FOREVER)
        try:
            with Strike(raise_at, lambda code: code is Gates.leave.__code__):
                gates.leave(record)
        except Interrupt:
            gates.leave(record)
        else:
            break
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(gates.enter, other, KEY, 0.0).result(), f"after instruction {raise_at}"
            pool.submit(gates.leave, other).result()
    assert raise_at > 10, "the instructions are seen"
