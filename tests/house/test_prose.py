"""Docstrings in plain English: each begins with a verb or a noun, and no sentence is long."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "relock"
WORDS_MAX = 30  # of a sentence
NO_BEGINNING = re.compile(
    r"\W*(Another|As|Does|For|From|Has|How|If|In|It|Its|Lets|Of|See|So|Somebody|Something|That|Those|What|When|Where|Whether|"
    r"Which|Who|Whoever|Why)\b"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring of a module, with the line of what it documents."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (found := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), found


def faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the docstrings of a module."""
    for line, found in docstrings(text):
        if first := NO_BEGINNING.match(found):
            yield f"{line}: begins with {first[1]}"
        for sentence in re.split(r"(?<=[.:;!?])\s+", found):
            if len(sentence.split()) > WORDS_MAX:
                yield f"{line}: {len(sentence.split())} words: {sentence[:60]}"


def test_docstrings_begin_with_a_verb_or_a_noun_and_their_sentences_are_short() -> None:
    found = {str(path.relative_to(SOURCE)): [*faults(path.read_text())] for path in sorted(SOURCE.rglob("*.py"))}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_docstring_that_is_not_plain_is_found() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    text = f'"""Module."""\n\ndef a():\n    """Whether it is so."""\n\nclass B:\n    """Class. {long}."""\n'
    assert [*faults(text)] == ["3: begins with Whether", f"6: 31 words: {long[:60]}"]
