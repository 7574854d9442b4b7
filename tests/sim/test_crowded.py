"""Processes that use more names than their caches hold, and output that nothing reads."""

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relock.testing._master import VirtualMaster
from relock.testing._process import Process
from relock.testing._world import World
from sim.blocked import block, unread
from sim.draws import draw
from sim.simulation import Simulation
from sim.special import BLOCKED_PART, CROSSED_PART, CROWDED_PART, OTHER_NAMES, crossed, crowded

logger = logging.getLogger("relock.anything")
PLAN = draw(Random(0))
TESTS = Path(__file__).parents[1]


@pytest.fixture
def world() -> World:
    return World(0)


@pytest.fixture
def process(world: World) -> Iterator[Process]:
    process = Process(world, "client")
    yield process
    process.end()


def done_by(process: Process, name: str = "writer", *, is_background: bool) -> list[str]:
    """Return the acts of a thread that logs, and then warns."""
    done: list[str] = []

    def write() -> None:
        logger.debug("which is not written at all")
        done.append("begun")
        logger.warning("something")
        done.append("logged")
        warnings.warn("something else", stacklevel=1)
        done.append("warned")

    process.start(write, name, waits_without_timer=is_background)
    process.world.run(process.world.now + 1000.0)
    return done


def test_a_few_runs_are_crowded_and_all_others_stay_as_they_were() -> None:
    plans = [crowded(seed, PLAN) for seed in range(2000)]
    others, blocked = [plan.names for plan in plans if plan.names], sum(plan.is_blocked for plan in plans)
    assert 0.7 * CROWDED_PART < len(others) / len(plans) < 1.3 * CROWDED_PART
    assert 0.7 * BLOCKED_PART < blocked / len(plans) < 1.3 * BLOCKED_PART
    assert set(others) == set(OTHER_NAMES)
    assert sum(plan is PLAN for plan in plans) > (1 - CROWDED_PART - BLOCKED_PART) * 0.95 * len(plans)


def test_hand_offs_cross_each_other_in_a_few_runs_in_which_all_is_well() -> None:
    plans = [plan for seed in range(2000) if (plan := crossed(seed)) is not None]
    assert 0.7 * CROSSED_PART < len(plans) / 2000 < 1.3 * CROSSED_PART
    assert all(plan.is_calm and plan.masters > 1 for plan in plans)


def test_a_background_thread_that_writes_to_unread_output_never_goes_on(process: Process) -> None:
    with unread(process):
        assert done_by(process, is_background=True) == ["begun"]


def test_a_users_thread_or_loop_and_other_processes_go_on(process: Process, world: World) -> None:
    other = Process(world, "other")
    with unread(process):
        assert done_by(process, is_background=False)[-1] == "warned"
        assert done_by(process, "client loop", is_background=True)[-1] == "warned"
        assert done_by(other, is_background=True)[-1] == "warned"
        block(process)  # the caller is no task
    other.end()


def test_most_runs_write_nothing_and_leave_the_log_as_it_was(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    root = logging.getLogger("relock")
    before = root.level, root.propagate, [*root.handlers]
    for whose in (process, None):
        with unread(whose):
            assert done_by(process, is_background=whose is None)[-1] == "warned"
        assert (root.level, root.propagate, root.handlers) == before
    assert caplog.records == []


def test_processes_use_other_locks_in_a_crowded_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(1000) if crowded(seed, PLAN).names)
    run, used = VirtualMaster.run, set()

    def watched(self: VirtualMaster, script: Any, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        used.add(keys[0])
        return run(self, script, keys, arguments)

    monkeypatch.setattr(VirtualMaster, "run", watched)
    Simulation(seed).run()
    assert {b"lock:{a}", b"lock:{other-0}"} <= used


def test_a_process_that_has_played_such_a_run_ends_without_output() -> None:
    """Messages that wait there to be told wait for virtual threads, which have ended."""
    seed = next(seed for seed in range(1000, 2000) if crowded(seed, PLAN).is_blocked)
    code = f"from sim.simulation import Simulation; keep = Simulation({seed}).run()"
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
