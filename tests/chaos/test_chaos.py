"""A short run of the nemesis against the lock as it is: ``tox -e chaos`` is the long one."""

import itertools
import os
from pathlib import Path

import pytest

from chaos.nemesis import SHAPES, run, shaped
from chaos.verdict import summary

SECONDS = float(os.environ.get("RELOCK_CHAOS_SECONDS", "0"))
LEFT_OUT = [("unguarded", 5)]  # because of its duration; the long run plays it
EPISODES = [*(pair for pair in itertools.product(SHAPES, [1, 5]) if pair not in LEFT_OUT), ("permits", 3)]

pytestmark = pytest.mark.skipif(not SECONDS, reason="needs RELOCK_CHAOS_SECONDS, such as 30")


@pytest.mark.timeout(240 + SECONDS)
@pytest.mark.parametrize(("shape", "masters"), EPISODES)
def test_no_fault_breaks_a_promise(shape: str, masters: int, seed: int, tmp_path: Path) -> None:
    finding = run(shaped(shape, masters, f"{seed} {shape}", SECONDS), keep=tmp_path)
    print(summary([(f"seed {seed}, {masters} masters", finding)]))
    problems = [*map(str, finding.violations), *finding.late, *finding.errors]
    assert not problems, f"seed {seed}, kept in {finding.kept}:\n" + "\n".join(problems)
    assert finding.acquisitions > 0
    assert finding.struck > 0
    assert not finding.missing, "each fault that this shape begins with struck something"
