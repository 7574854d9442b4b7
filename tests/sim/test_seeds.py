"""The unchanged code under 100 seeds, and in a long run under 2,000: relock keeps its promises under all faults."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.simulation import Simulation, ViolationError

CHUNK = 50
USUAL, END = 100, 2000
TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(1200)  # no run waits, so this takes long only on a busy machine
@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[] if first < USUAL else pytest.mark.long) for first in range(0, END, CHUNK)],
)
def test_no_seed_finds_a_violation(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        try:
            Simulation(seed).run()
        except ViolationError as error:
            bad.append(str(error).partition("\n")[0])
    assert bad == []


def test_a_seed_plays_the_same_run_in_every_process() -> None:
    """Runs are the same even if Python orders its sets differently; in this one, a heartbeat tells of two turns."""
    first, second = (timeline(2005, str(hash_seed)) for hash_seed in (1, 2))
    assert first == second
    assert "has it as" in first


def timeline(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--seeds", str(seed)],
        cwd=TESTS,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_violation_names_its_seed_and_tells_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(0)
    monkeypatch.setattr(simulation.referee, "_highest", 1 << 62)
    with pytest.raises(ViolationError, match=r"seed 0: client-\d got token") as caught:
        simulation.run()
    assert "has it as" in str(caught.value)
