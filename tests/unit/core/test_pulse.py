"""Loops that do not answer stand still, and that is told once."""

from relock._core.pulse import Pulse

LIMIT = 10.0


def test_it_is_asked_again_when_it_has_answered() -> None:
    pulse = Pulse(LIMIT)
    assert pulse.silent_for(1.0) == 0.0
    assert pulse.ask(1.0)
    assert not pulse.ask(2.0)
    assert pulse.silent_for(3.5) == 2.5
    pulse.answer()
    assert pulse.silent_for(4.0) == 0.0
    assert pulse.ask(4.0)


def test_each_stall_is_told_once() -> None:
    pulse = Pulse(LIMIT)
    assert not pulse.must_be_told(100.0, 3.0), "a loop that was not asked is not told of"
    pulse.ask(100.0)
    assert not pulse.must_be_told(102.9, 3.0)
    assert pulse.must_be_told(103.0, 3.0)
    assert not pulse.must_be_told(109.0, 3.0)
    assert pulse.answer(), "the answer shows that the stall was told"
    pulse.ask(110.0)
    assert not pulse.answer()
    pulse.ask(111.0)
    assert pulse.must_be_told(120.0, 3.0)
