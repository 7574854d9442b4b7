"""What the demo does where the masters do not answer in time: it asks again, and then says so in its verdict."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relock import LockInfo, QuorumError
from relock.cli._demo import leading
from relock.cli._demo.leading import Leader, WorkersFailedError
from relock.cli._demo.plan import DemoPlan

FREE = LockInfo("a", None, 0, 0.0, 0, ())


def leader(info: Callable[[str], LockInfo]) -> Leader:
    """One of a lone master, which `info` asks."""
    crew: Any = SimpleNamespace(failures=[])
    client: Any = SimpleNamespace(info=info)
    stage: Any = None
    return Leader(crew, client, "a", DemoPlan(), stage, Path())


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that goes on while the demo sleeps."""
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    clock.monotonic, clock.sleep = lambda: clock.now, sleep
    monkeypatch.setattr(leading, "time", clock)
    return clock


def test_a_master_that_answers_late_is_asked_again() -> None:
    said: Iterator[LockInfo | QuorumError] = iter([QuorumError("not in time"), QuorumError("not in time"), FREE])

    def info(_: str) -> LockInfo:
        one = next(said)
        if isinstance(one, LockInfo):
            return one
        raise one

    assert leader(info)._info() == FREE


def test_masters_that_do_not_answer_make_the_verdict_bad(time: SimpleNamespace) -> None:
    def info(_: str) -> LockInfo:
        raise QuorumError("down")

    one = leader(info)
    with pytest.raises(WorkersFailedError):
        one._info()
    assert one.crew.failures == ["nobody says who has the lock: down"]
    assert time.now >= DemoPlan().patience_seconds
