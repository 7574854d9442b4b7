"""The control of the simulator: each safety check that is taken away is found, by the seed that is recorded with it."""

from pathlib import Path

import pytest

from sim import shards
from sim.bugs import BUGS, Bug
from sim.hunt import END, FIRST, REPOSITORY, hunt, plant

SEEDS = (
    range(FIRST, END),
    range(shards.FIRST, shards.FIRST + 100),
    range(shards.SLOW_FIRST, shards.SLOW_FIRST + 200),
)
RAREST = (  # the recorded seeds of all others lie in these ranges
    "a ring counts though no second round has found it",
    "a late request restores the place of a waiter that was given a permit",
)
SAMPLE = (
    "a quorum is one too few",
    "D is the end of the longest lease, not the q-th",
    "a renewal counts from its reply",
    "nothing is undone",
    "anybody may take a lock that is held",
    "newcomers pass the queue",
    "a release does not write the token back",
    "no restart guard",
    "nobody wakes the thread that sends heartbeats",
    "an interrupted wait keeps its place in the queue",
    "permits are counted on each of several masters, not given by their slots",
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_every_bug_can_be_planted(bug: Bug) -> None:
    assert (REPOSITORY / bug.file).read_text().count(bug.text) == 1, f"{bug.file} has changed: carry the text along"
    assert bug.what in RAREST or any(bug.seed in seeds for seeds in SEEDS)


def check_that_its_seed_finds(bug: Bug, folder: Path) -> None:
    plant(bug, folder)
    done = hunt(folder, str(bug.seed))
    assert done.stdout.startswith("seed "), f"look for another seed: python -m sim.hunt {bug.what!r}\n{done.stderr}"
    assert done.returncode == 1


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.what in SAMPLE], ids=lambda bug: bug.what)
def test_some_planted_bugs_are_found(bug: Bug, tmp_path: Path) -> None:
    """One of each kind: a quorum's, a hold's, a queue's, a guard's, a task's. A long run plays all."""
    check_that_its_seed_finds(bug, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)  # without heartbeats, say, a run has thousands of steps
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_every_planted_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    check_that_its_seed_finds(bug, tmp_path)


def test_there_are_enough_planted_bugs() -> None:
    assert {bug.what for bug in BUGS} >= set(SAMPLE)
    assert len({bug.what for bug in BUGS}) == len(BUGS) >= 25
