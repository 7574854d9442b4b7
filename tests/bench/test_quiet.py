"""Repetition of measurements that other programs have disturbed."""

from itertools import count

import pytest

from bench.quiet import PLAYS_MAX, Ticks, ticks, undisturbed

STAT = "cpu  5830 12 991 4000 7 0 30 130 9 9\ncpu0 2915 6 495 2000 3 0 15 65 0 0\n"


def played(stolen: list[int]) -> tuple[int, float]:
    """Return the number of the play that counts, if each took a hundred ticks, and so many of them were stolen."""
    moments = [Ticks(0, 0)]
    for taken in stolen:
        moments += [Ticks(moments[-1].stolen + taken, moments[-1].all + 100)] * 2
    looks, numbers = iter(moments), count()
    return undisturbed(lambda: next(numbers), look=lambda: next(looks), pause_seconds=0.0)


def test_the_stolen_time_is_a_part_of_all_the_time_there_was() -> None:
    assert ticks(STAT) == Ticks(stolen=130, all=11_000)


@pytest.mark.parametrize("text", ["", "intr 5 6\n", "cpu  1 2 3 4\n"])
def test_a_kernel_that_counts_no_stolen_time_has_stolen_none(text: str) -> None:
    assert ticks(text) == Ticks(0, 0)
    assert undisturbed(lambda: "found", look=lambda: ticks(text)) == ("found", 0.0)


def test_what_nobody_disturbs_is_played_once() -> None:
    assert played([1]) == (0, 0.01)


def test_what_others_disturb_is_played_again_until_they_do_not() -> None:
    assert played([30, 12, 2]) == (2, 0.02)


def test_where_others_never_leave_the_quietest_counts() -> None:
    assert played([30, 12, 4, *[5] * (PLAYS_MAX - 3)]) == (2, 0.04)
