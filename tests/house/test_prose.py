"""Docstrings, comments, messages and pages in plain English: no sentence is long, and some words are not used.

Messages are what errors, warnings, log lines and the command line say. Docstrings begin with a verb or a noun.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SCRIPTS = sorted((ROOT / "lua").rglob("*.lua"))
CODE = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
# Results are made from figures, and a decision is a record of its day.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not {"results", "decisions", "_generated"} & {*page.parts}
    ),
]
NO_PROSE = re.compile(
    r"^(```|:::)[^\n]*\n.*?^\1[^\n]*$|<!--.*?-->|^#[^\n]*$|(?<=\])\([^)]*\)", re.MULTILINE | re.DOTALL
)
WORDS_MAX = 30  # of a sentence
WORDS_OF_A_MESSAGE = 4  # a string of fewer words may be a name
NO_BEGINNING = re.compile(
    r"\W*(After|Also|And|Another|As|At|Before|Between|Both|But|By|Does|Else|Everybody|Everything|For|From|Has|How|However|"
    r"If|In|It|Its|Lets|Many|Neither|Nobody|Nor|Not|Nothing|Now|Of|On|Once|Only|Ours|Over|See|So|Some|Somebody|Something|"
    r"That|Their|They|Those|To|Until|What|Whatever|When|Where|Whether|Which|While|Who|Whoever|Why|With|Within|Without)\b"
)
# A machine or a thread is no person, and the rest are words of riddles and of old books.
NO_WORDS = re.compile(
    r"\b(anybody|comes? by here|counts? for nothing|everybody|for ever|hitherto|is there that|somebody|someone|thereby|"
    r"thereof|wherefore|who|whoever|whom|whomever|whosoever)\b",
    re.IGNORECASE,
)
NAMES = re.compile(r"`[^`]+`|^ +\w+:", re.MULTILINE)  # names are no prose
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring of a module, with the line of its object; also those that follow an assignment."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, DOCUMENTED):
            continue
        if found := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), found
        for statements in pairwise(node.body):
            match statements:
                case (ast.Assign() | ast.AnnAssign()) as before, ast.Expr(ast.Constant(str(found))):
                    yield before.lineno, found


def faults(text: str) -> Iterator[str]:
    """Yield the faults of the docstrings of a module."""
    for line, found in docstrings(text):
        if first := NO_BEGINNING.match(found):
            yield f"{line}: begins with {first[1]}"
        yield from (f"{line}: the word {word!r}" for word in NO_WORDS.findall(NAMES.sub("", found)))
        yield from (f"{line}: {fault}" for fault in long_sentences(found))


def long_sentences(text: str) -> Iterator[str]:
    """Yield the beginning of each sentence that is too long."""
    for sentence in re.split(r"(?<=[.:;!?])[*)]*\s+", text):
        words = sentence.split()
        if len(words) > WORDS_MAX:
            yield f"{len(words)} words: {' '.join(words)[:60]}"


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comment of a module with its line; comments on lines of their own that follow each other are one."""
    own: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, is_own = token.start[0], not token.line[: token.start[1]].strip()
        if own and not (is_own and line == last + 1):
            yield last - len(own) + 1, " ".join(own)
            own = []
        if is_own:
            own.append(token.string.lstrip("#: "))
            last = line
        else:
            yield line, token.string.lstrip("#: ")
    if own:
        yield last - len(own) + 1, " ".join(own)


def comment_faults(text: str) -> Iterator[str]:
    """Yield the faults of the comments of a module."""
    for line, found in comments(text):
        yield from (f"{line}: {fault}" for fault in long_sentences(found))
        yield from (f"{line}: the word {word!r}" for word in NO_WORDS.findall(found))


def is_text(node: ast.AST) -> bool:
    """Return True for a string, an f-string, and a sum with one of these."""
    match node:
        case ast.Constant(str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left, ast.Add(), right):
            return is_text(left) or is_text(right)
    return False


def joined(node: ast.expr, values: list[ast.AST]) -> str:
    """Return what a text says, with one word for each value in it; the values are added to `values`."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(joined(part, values) for part in parts)
        case ast.BinOp(left, _, right) if is_text(node):
            return joined(left, values) + joined(right, values)
    values.append(node)
    return "value"


def messages(text: str) -> Iterator[tuple[int, str]]:
    """Yield each text of a module that is no docstring, no name and no pattern of `re`, with its line."""
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        match pending.pop():
            case ast.Expr(ast.Constant(str())) | ast.Call(ast.Attribute(ast.Name("re"))):
                pass
            case ast.expr() as node if is_text(node):
                found = joined(node, pending)
                if len(found.split()) >= WORDS_OF_A_MESSAGE:
                    yield node.lineno, found
            case node:
                pending += ast.iter_child_nodes(node)


def message_faults(text: str) -> Iterator[str]:
    """Yield the faults of the messages of a module."""
    for line, found in sorted(messages(text)):
        yield from (f"{line}: {fault}" for block in re.split(r"\n\s*\n", found) for fault in long_sentences(block))
        yield from (f"{line}: the word {word!r}" for word in NO_WORDS.findall(NAMES.sub("", found)))


def blocks(page: str) -> Iterator[str]:
    """Yield the paragraphs, the items of lists and the cells of tables of a page, without code and headings."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", NO_PROSE.sub("", page)):
        if block.lstrip().startswith("|"):
            yield from block.replace("\n", " ").split("|")
        else:
            yield re.sub(r"^\s*(?:[*-]|\d+\.) ", "", block)


def test_docstrings_begin_with_a_verb_or_a_noun_and_their_sentences_are_short() -> None:
    found = {str(path.relative_to(ROOT)): [*faults(path.read_text())] for path in CODE}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_comments_have_short_sentences_and_plain_words() -> None:
    found = {str(path.relative_to(ROOT)): [*comment_faults(path.read_text())] for path in CODE}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_messages_have_short_sentences_and_plain_words() -> None:
    found = {str(path.relative_to(ROOT)): [*message_faults(path.read_text())] for path in sorted(SOURCE.rglob("*.py"))}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_message_that_is_not_plain_is_found_and_a_docstring_a_name_and_a_pattern_are_none() -> None:
    half = " ".join(["word"] * (WORDS_MAX // 2))
    text = f"""'A docstring is for everybody.'
raise ValueError(f"{half} {{name}} " "{half}.")
log.warning("it waits: %s" % 1 + f"for {{'a lock that somebody has' if name else 'it'}}")
names = {{"whoever": re.compile("this is for ever")}}
raise ValueError("Short. So is this one.\\n\\nAnd this " + ending)
"""
    assert [*message_faults(text)] == [
        f"2: 31 words: {half} value {half}"[:73],
        "3: the word 'somebody'",
    ]


def test_a_comment_that_is_not_plain_is_found() -> None:
    half = " ".join(["word"] * (WORDS_MAX // 2 + 1))
    text = f"# {half}\n# {half}.\n\na = 1  # Somebody waits\n#: for\n#: ever\n"
    assert [*comment_faults(text)] == [
        f"1: 32 words: {half[:60]}",
        "4: the word 'Somebody'",
        "5: the word 'for ever'",
    ]
    assert [*comments("# a\nb = 1  # c\n# d\n")] == [(1, "a"), (2, "c"), (3, "d")]


def test_a_docstring_that_is_not_plain_is_found() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    text = f'"""M."""\n\ndef a():\n    """Whether it is so."""\n\nclass B:\n    """{long}."""\n\nC = 1\n"""What."""\n'
    assert sorted(faults(text)) == ["3: begins with Whether", f"6: 31 words: {long[:60]}", "9: begins with What"]
    assert [*faults('"""Return `who`.\n\nArgs:\n    who: whom to ask.\n"""')] == ["1: the word 'whom'"]


def page_faults(page: str) -> Iterator[str]:
    """Yield the faults of the prose of a page."""
    for block in blocks(page):
        yield from long_sentences(block)
        yield from (f"the word {word!r}: {block[:60]}" for word in NO_WORDS.findall(NAMES.sub("", block)))


def test_comments_of_scripts_have_plain_words() -> None:
    found = {path.name: NO_WORDS.findall(" ".join(re.findall(r"--(.*)", path.read_text()))) for path in SCRIPTS}
    assert found
    assert {name: words for name, words in found.items() if words} == {}


def test_pages_have_short_sentences_and_plain_words() -> None:
    found = {str(page.relative_to(ROOT)): [*page_faults(page.read_text())] for page in PAGES}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_word_of_a_page_that_is_not_plain_is_found_and_a_name_is_none() -> None:
    assert [*page_faults("# Whoever\n\nSomebody has `who`.\n\n```\nwho\n```\n")] == [
        "the word 'Somebody': Somebody has `who`."
    ]


def test_a_long_sentence_of_a_page_is_found_wherever_it_stands() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    for page in (
        long,
        f"# Head\n\n{long}",
        f"* short\n* {long}",
        f"| a | b |\n|---|---|\n| short | {long} |",
        f"Short. {long}.",
    ):
        assert [fault for block in blocks(page) for fault in long_sentences(block)] == [f"31 words: {long[:60]}"], page
    assert [fault for block in blocks(f"```\n{long}\n```\n\n# {long}") for fault in long_sentences(block)] == []
