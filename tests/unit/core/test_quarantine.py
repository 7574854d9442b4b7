"""Judgement of the clock that has stepped: a master's, or the client's own."""

import pytest

from relock._core.clocks import ClockStep
from relock._core.flows.quarantine import is_own_step, is_undecided


def seen(steps: list[tuple[int, float]]) -> list[ClockStep]:
    """Return steps of these masters by so many seconds."""
    return [ClockStep(1.0, master, seconds, 0) for master, seconds in steps]


@pytest.mark.parametrize(
    ("steps", "own"),
    [
        ([(0, 10.0)], False),
        ([(0, 10.0), (1, 10.2)], False),
        ([(0, 10.0), (1, 10.2), (2, 9.5)], True),
        ([(0, 10.0), (1, 10.2), (2, -9.5)], False),
        ([(0, 10.0), (0, 10.0), (0, 10.0)], False),
        ([(0, 10.0), (1, 30.0), (2, 60.0)], False),
        ([(0, 10.0), (1, 5.0), (2, 5.0), (1, 5.0), (2, 5.0)], True),
        ([(0, 10.0), (0, 5.0), (0, 5.0), (1, 5.0), (2, 5.0), (1, 5.0), (2, 5.0)], False),
    ],
)
def test_a_step_is_our_own_only_if_a_quorum_shows_the_same(steps: list[tuple[int, float]], own: bool) -> None:
    shown = seen(steps)
    assert is_own_step(shown[0], shown, masters=5) == own


@pytest.mark.parametrize(
    ("silent", "stepped", "undecided"),
    [([2], [0, 1], True), ([1, 2], [0, 1], True), ([2], [0], False), ([], [0, 1, 2], False), ([0, 1, 2], [0], True)],
)
def test_a_step_may_yet_be_our_own_while_no_clock_is_known_to_be_steady(
    silent: list[int], stepped: list[int], undecided: bool
) -> None:
    assert is_undecided(set(silent), seen([(master, 10.0) for master in stepped]), masters=3) == undecided


@pytest.mark.parametrize(("seen_at", "own"), [(5.0, True), (4.0, True), (3.9, False)])
def test_a_step_that_was_over_when_the_other_master_showed_none_yet_is_another(seen_at: float, own: bool) -> None:
    """The other master's clock had not stepped when the client asked for a reply at 4.0."""
    steps = [ClockStep(seen_at, 1, 10.0, 0, after=0.0), ClockStep(5.0, 0, 10.0, 0, after=4.0)]
    assert is_own_step(steps[1], steps, masters=3) == own


@pytest.mark.parametrize(("seen_after", "own"), [(9.0, True), (10.1, False)])
def test_what_only_one_master_shows_after_a_step_of_our_own_is_none_of_ours(seen_after: float, own: bool) -> None:
    """Steps may be small beside our own: all three have shown ours, and the others have shown nothing since 10.0."""
    all_show = [ClockStep(10.0, master, 1.5, 0, after=8.0) for master in range(3)]
    later = ClockStep(10.2, 1, 0.13, 0, after=seen_after)
    assert is_own_step(later, [*all_show, later], masters=3) == own
