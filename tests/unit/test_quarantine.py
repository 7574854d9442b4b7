"""Whose clock has stepped."""

import pytest

from relock._core.flows.quarantine import is_own_step


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
