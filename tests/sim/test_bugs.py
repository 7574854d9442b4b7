"""The control of the simulator: whichever guard a bug takes away, the same 2,000 seeds find it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sim.bugs import BUGS, Bug

REPOSITORY = Path(__file__).parents[2]
FIRST, END = 1000, 3000


def plant(bug: Bug, folder: Path) -> None:
    """Makes a copy of the shipped files with the bug in it."""
    for part in ("src", "lua"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / bug.file
    text = path.read_text()
    assert text.count(bug.text) == 1, f"{bug.file} has changed: this bug can't be planted any more"
    path.write_text(text.replace(bug.text, bug.instead))


def hunt(folder: Path, seeds: str) -> "subprocess.CompletedProcess[str]":
    """Plays seeds over what is in `folder`, until one finds something."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "sim", "--seeds", seeds, "--first"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(REPOSITORY / "tests")])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_every_planted_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    plant(bug, tmp_path)
    assert FIRST <= bug.seed < END
    done = hunt(tmp_path, str(bug.seed))
    if not done.stdout.startswith("seed "):
        done = hunt(tmp_path, f"{FIRST}-{END}")
    assert done.stdout.startswith("seed "), done.stdout + done.stderr
    assert done.returncode == 1


def test_there_are_enough_planted_bugs() -> None:
    assert len({bug.what for bug in BUGS}) == len(BUGS) >= 25
