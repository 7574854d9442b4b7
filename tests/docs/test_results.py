"""The page of the simulator's results agrees with its results."""

import runpy
from pathlib import Path

from sim import record

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_the_table_is_that_of_the_results() -> None:
    script = runpy.run_path(str(RESULTS / "write_table.py"))
    text = script["PAGE"].read_text()
    runs = record.read(RESULTS / "simulator.json")
    assert runs
    assert script["page_with"](text, script["table"](runs)) == text, "run docs/results/write_table.py"


def test_every_run_was_of_a_commit_and_of_nothing_else() -> None:
    for run in record.read(RESULTS / "simulator.json"):
        assert not run.commit.endswith(record.DIRTY), "the played code is that of its commit"


def test_nothing_is_known_to_be_wrong_with_the_newest_code_that_was_played() -> None:
    """Faults of older code stand in the table, and were mended."""
    runs = record.read(RESULTS / "simulator.json")
    assert [run.violations for run in runs if run.commit == runs[-1].commit and run.violations] == []


def test_the_readme_counts_no_more_runs_than_there_were() -> None:
    readme = " ".join((RESULTS.parents[1] / "README.md").read_text().split())
    assert "more than 2 million runs" in readme
    assert sum(run.last - run.first + 1 for run in record.read(RESULTS / "simulator.json")) > 2_000_000
