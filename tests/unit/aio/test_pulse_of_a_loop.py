"""Loops that are asked whether they turn."""

from types import SimpleNamespace
from typing import Any

import pytest

from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._runtime.aio.foreground import Foreground


@pytest.mark.parametrize("has_left", [True, False])
def test_a_loop_hears_what_has_come_before_it_answers_and_has_places_given_back(*, has_left: bool) -> None:
    """Messages of that answer count as told since the question."""
    foreground: Any = object.__new__(Foreground)
    done: list[object] = []
    foreground.pulse = pulse = Pulse(FOREVER)
    pulse.ask(1.0)
    pulse.has_left = has_left
    foreground._hub = SimpleNamespace(tend=lambda: done.append(pulse.asked_at))
    foreground.session = SimpleNamespace(
        watchdog=SimpleNamespace(poke=bool), janitor=SimpleNamespace(beat_now=lambda: done.append("beat"))
    )
    foreground._answer()
    assert done == [1.0, "beat"][: 1 + has_left]
    assert pulse.asked_at == FOREVER
