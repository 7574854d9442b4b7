"""Pages that argue for safety: the tests and planted bugs that they name exist, and each rule has some."""

import ast
import re
from pathlib import Path

import pytest
from sim.bugs import BUGS

REPOSITORY = Path(__file__).resolve().parents[2]
INTERNALS = REPOSITORY / "docs" / "internals"
PAGE = "\n".join((INTERNALS / name).read_text() for name in ("argument.md", "rules.md"))
RULES = range(1, 19)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
BUG = re.compile(r"`bug: ([^`]+)`")


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def section_of(rule: int) -> str:
    """Return the section of one rule."""
    found = re.search(rf"^## Rule {rule}\. .*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, f"the pages say nothing of rule {rule}"
    return found[0]


@pytest.mark.parametrize("file", sorted({file for file, _ in TEST.findall(PAGE)}))
def test_the_tests_that_are_named_exist(file: str) -> None:
    assert {name for named, name in TEST.findall(PAGE) if named == file} <= functions_of(REPOSITORY / file)


def test_each_rule_is_held_by_tests_of_the_usual_run() -> None:
    """A rule could otherwise be broken for as long as no long run is played."""
    for file in {file for file, _ in TEST.findall(PAGE)}:
        left_out = {
            node.name
            for node in ast.parse((REPOSITORY / file).read_text()).body
            if isinstance(node, ast.FunctionDef)
            and any(ast.unparse(mark) == "pytest.mark.long" for mark in node.decorator_list)
        }
        assert not left_out & {name for named, name in TEST.findall(PAGE) if named == file}, file


def test_all_rules_are_looked_at() -> None:
    assert re.findall(r"^## Rule (\d+)\. ", PAGE, re.MULTILINE) == [str(rule) for rule in RULES]


def test_no_test_is_named_in_another_way() -> None:
    """A test that is named in another form would not be looked for."""
    assert len(TEST.findall(PAGE)) == len(re.findall(r"\btest_\w+(?!\w|\.py)", PAGE))


def test_the_planted_bugs_that_are_named_exist() -> None:
    named = {" ".join(bug.split()) for bug in BUG.findall(PAGE)}
    assert named
    assert named <= {bug.what for bug in BUGS}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_and_what_it_rests_on(rule: int) -> None:
    section = section_of(rule)
    assert TEST.search(section)
    assert re.search(r"\bA\d|\*Rests on\*", section)


def test_every_assumption_that_is_named_is_stated() -> None:
    stated = set(re.findall(r"^A(\d+)\. ", PAGE, re.MULTILINE))
    assert stated == {str(number) for number in range(1, len(stated) + 1)}
    assert set(re.findall(r"\bA(\d+)\b", PAGE)) <= stated
