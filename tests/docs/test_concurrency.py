"""The page on order, and the comments that name its rules."""

import re
from pathlib import Path

import relock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "concurrency.md"
PACKAGE = Path(relock.__file__).parent
NAME = re.compile(r"[A-Z][a-z]+(?: go)?, then [a-z]+")
KEPT = re.compile(r"^Kept in (.+?)\.$", re.MULTILINE | re.DOTALL)


def _rules() -> dict[str, set[str]]:
    """Return the modules that keep each rule, as the page says."""
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    rules = {}
    for section in sections:
        name, _, text = section.partition("\n")
        kept = KEPT.search(text)
        rules[name] = set() if kept is None else set(re.findall(r"`([^`]+)`", kept[1]))
    return rules


def _named() -> dict[str, set[str]]:
    """Return the modules in which comments and docstrings name each rule."""
    named: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for rule in NAME.findall(path.read_text()):
            named.setdefault(rule, set()).add(path.relative_to(PACKAGE).as_posix())
    return named


def test_each_rule_of_order_is_named_where_it_is_kept_and_explained() -> None:
    assert _rules() == _named()


def test_the_names_have_one_form() -> None:
    assert _rules()
    assert all(NAME.fullmatch(rule) for rule in _rules())


def test_no_comment_names_a_rule_in_another_form() -> None:
    forms = re.compile("|".join(re.escape(rule) for rule in _rules()), re.IGNORECASE)
    for path in PACKAGE.rglob("*.py"):
        for written in forms.findall(path.read_text()):
            assert written in _rules(), f"{path}: {written!r}"
