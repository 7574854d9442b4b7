"""The page on order, and the comments that name its rules."""

import re
from pathlib import Path

import relock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "concurrency.md"
NAME = re.compile(r"[A-Z][a-z]+(?: go)?, then [a-z]+")


def _rules() -> set[str]:
    return set(re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE))


def _named() -> set[str]:
    """The rules that comments of the package name."""
    named = set()
    for path in Path(relock.__file__).parent.rglob("*.py"):
        for line in path.read_text().splitlines():
            _, is_comment, comment = line.partition("# ")
            named.update(NAME.findall(comment) if is_comment else [])
    return named


def test_each_rule_of_order_is_named_where_it_is_kept_and_explained() -> None:
    assert _rules() == _named()


def test_the_names_have_one_form() -> None:
    assert _rules()
    assert all(NAME.fullmatch(rule) for rule in _rules())
