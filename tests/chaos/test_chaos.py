"""A short run of the nemesis against the lock as it is: ``tox -e chaos`` is the long one."""

import os
from pathlib import Path

import pytest

from chaos.nemesis import SHAPES, run, shaped
from chaos.verdict import summary

SECONDS = float(os.environ.get("RELOCK_CHAOS_SECONDS", "0"))
# Five masters have what one has, and more; one master has no minority that may fail. The long run plays both with all.
MASTERS = {"crowded": [1, 5], "permits": [1, 3], "moving": [1, 5], "unguarded": [1]}
EPISODES = [(shape, masters) for shape in SHAPES for masters in MASTERS.get(shape, [5])]

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
