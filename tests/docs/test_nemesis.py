"""The nemesis' tables in the documentation are those of its results, and its controls are counted."""

from pathlib import Path

from chaos.controls import CONTROLS
from chaos.page import PAGE, RESULT, page_with, rendered, write
from chaos.results import Run, load, save
from chaos.verdict import Finding


def test_the_tables_say_what_the_results_say() -> None:
    page = PAGE.read_text()
    assert page == page_with(page, rendered(load(RESULT))), "python -m chaos.page, in tests, makes them anew"


def test_another_result_changes_the_tables_and_nothing_else(tmp_path: Path) -> None:
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(PAGE.read_text())
    save(Run("a seed", {3: Finding(acquisitions=12345)}), result)
    write(result, page)
    assert "| acquisitions | 12,345 |" in page.read_text()
    write(RESULT, page)
    assert page.read_text() == PAGE.read_text()


def test_the_number_of_weakened_locks_is_told_right() -> None:
    assert len(CONTROLS) == 18
    root = PAGE.parents[2]
    assert "eighteen weakened locks" in " ".join((root / "README.md").read_text().split())
    assert "eighteen in all" in (root / "docs" / "internals" / "nemesis.md").read_text()
