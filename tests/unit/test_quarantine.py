"""Whose clock has stepped."""

import pytest

from relock._core.effects import Failure
from relock._core.flows.quarantine import is_own_step, is_undecided


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
    assert is_own_step(0, 10.0, steps, masters=5) == own


@pytest.mark.parametrize(
    ("silent", "stepped", "undecided"),
    [([2], [0, 1], True), ([1, 2], [0, 1], True), ([2], [0], False), ([], [0, 1, 2], False), ([0, 1, 2], [0], True)],
)
def test_a_step_may_yet_be_our_own_while_no_clock_is_known_to_be_steady(
    silent: list[int], stepped: list[int], undecided: bool
) -> None:
    answers = [(Failure("", "silent") if master in silent else [b"free", 1, 0, []],) for master in range(3)]
    assert is_undecided(answers, [(master, 10.0) for master in stepped]) == undecided
