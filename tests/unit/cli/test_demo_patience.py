"""The demo asks its own masters again if they are late, and no longer than it promises."""

import pytest

from relock import QuorumError
from relock.cli._demo.story import patiently


class Late:
    """Masters that answer at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> str:
        self.looks += 1
        if self.looks < 3:
            raise QuorumError("no answer in time")
        return "free"


def test_masters_that_are_late_are_asked_again() -> None:
    assert patiently(Late().look, 60.0) == "free"


def test_without_patience_the_first_silence_is_told() -> None:
    late = Late()
    with pytest.raises(QuorumError):
        patiently(late.look, -1.0)
    assert late.looks == 1
