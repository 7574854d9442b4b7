"""The demo asks its own masters again if they are late, and no longer than it promises."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from relock import QuorumError
from relock.cli._demo.crew import Plan
from relock.cli._demo.story import patiently
from relock.cli._demo.worker import Workers
from relock.cli.demo import unhurried


def test_on_a_busy_machine_leases_are_longer_and_the_stay_inside_is_longer_still() -> None:
    assert unhurried(Plan(), 0.3) == Plan()
    slow = unhurried(Plan(), 12.0)
    assert slow.ttl == 2.4 * Plan().ttl < slow.stay_seconds
    assert (slow.act_seconds, slow.limit_seconds) == (Plan().act_seconds, 2.4 * Plan().limit_seconds)


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


class LateLatch:
    """Latch whose masters are too slow for the first arrival, and for the first look."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def arrive(self, party: str) -> None:
        self.calls.append(party)
        self._be_late(1)

    def wait(self) -> None:
        self.calls.append("wait")
        self._be_late(3)

    def _be_late(self, until: int) -> None:
        if len(self.calls) <= until:
            raise QuorumError("no answer in time")


def test_a_worker_arrives_again_where_the_masters_were_late() -> None:
    latch, workers = LateLatch(), Workers.__new__(Workers)
    workers._plan, workers._client = Plan(), SimpleNamespace(latch=lambda *_, **__: latch)
    passing: Any = workers._pass("alder.1", "round 0", 6)
    asyncio.run(passing)
    assert latch.calls == ["alder.1", "alder.1", "wait", "alder.1", "wait"]
