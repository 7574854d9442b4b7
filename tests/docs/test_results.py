"""The page about the simulator says what its results say."""

import runpy
from pathlib import Path

from relock.testing import _record

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_the_table_is_that_of_the_results() -> None:
    script = runpy.run_path(str(RESULTS / "write_table.py"))
    text = script["PAGE"].read_text()
    runs = _record.read(RESULTS / "simulator.json")
    assert runs
    assert script["page_with"](text, script["table"](runs)) == text, "run docs/results/write_table.py"


def test_no_run_stands_there_that_nobody_can_repeat() -> None:
    for run in _record.read(RESULTS / "simulator.json"):
        assert not run.commit.endswith(_record.DIRTY), "its commit is not what was played"
        assert run.violations == []
