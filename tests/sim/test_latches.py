"""Latches under faults, in virtual time; and mistakes that the same runs must show."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from relock._core.flows import latch as flows
from relock._latches import LatchHandle
from sim.latches import violations

SEEDS = range(20)
CONTROL_SEEDS = range(400)


def count_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count each call of `arrive` as a party."""
    monkeypatch.setattr(LatchHandle, "_party", lambda _latch, _party, register: next(register.names))


def look_without_a_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe any master that says that the latch is closed."""
    looks = flows.wait, flows.agree
    world = {**flows.__dict__, "quorum_of": lambda _masters: 1}
    for look in looks:
        monkeypatch.setattr(flows, look.__name__, FunctionType(look.__code__, world, None, look.__defaults__))


def add_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the latch when the masters' counts together are enough."""

    def judge(spec: Any, replies: Any, at_most: int) -> int:
        counts: list[int] = [one[2] for one in replies if isinstance(one, list)]
        missing: int = spec.parties - sum(counts)
        return max(0, min(at_most, missing))

    monkeypatch.setattr(flows, "judge_look", judge)


def test_a_latch_keeps_its_promises_under_all_faults() -> None:
    told: list[str] = []
    assert violations(SEEDS, told.append) == 0, told


@pytest.mark.parametrize("mistake", [count_arrivals, look_without_a_quorum, add_the_counts])
def test_a_mistake_shows(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    assert any(violations(range(seed, seed + 1), lambda _: None) for seed in CONTROL_SEEDS)
