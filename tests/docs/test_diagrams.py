"""Sequence diagrams of the documentation: read, laid out and drawn."""

import importlib.util
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    f"{page.relative_to(DOCS)}-{number}": text
    for page in sorted(DOCS.rglob("*.md"))
    for number, text in enumerate(re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
}
HEAD = "sequenceDiagram\nparticipant A\nparticipant B as the server\n"


@pytest.fixture(scope="module")
def diagrams() -> Any:
    """The module that draws them."""
    spec = importlib.util.spec_from_file_location("sequence_diagram", DOCS / "_ext/sequence_diagram.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_each_diagram_of_a_page_is_drawn_with_a_title(diagrams: Any, page: str) -> None:
    svg = ElementTree.fromstring(diagrams.draw(diagrams.parse(PAGES[page])))
    title = svg.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text


def test_the_pages_have_diagrams() -> None:
    assert len(PAGES) >= 4


@pytest.mark.parametrize(
    "line",
    [
        "A->B: not this arrow",
        "A->>C: no such participant",
        "loop twice",
        "Note left of A: not this place",
        "activate C",
    ],
)
def test_what_cannot_be_drawn_is_an_error(diagrams: Any, line: str) -> None:
    with pytest.raises(diagrams.DiagramError):
        diagrams.parse(HEAD + line)


def test_another_kind_of_diagram_is_an_error(diagrams: Any) -> None:
    with pytest.raises(diagrams.DiagramError, match="flowchart"):
        diagrams.parse("flowchart LR\nA --> B")


def test_text_fits_between_the_lines_of_its_participants(diagrams: Any) -> None:
    short = diagrams.columns(diagrams.parse(HEAD + "A->>B: hi"))
    long = diagrams.columns(diagrams.parse(HEAD + "A->>B: " + 60 * "m"))
    assert long["B"] - long["A"] >= 60 * diagrams.CHARACTER > short["B"] - short["A"]


def test_everything_lies_within_the_picture(diagrams: Any) -> None:
    text = HEAD + "B->>A: x\nNote over A: " + 50 * "m" + "\nNote over B: " + 50 * "m<br/>" + "\nactivate A"
    svg = ElementTree.fromstring(diagrams.draw(diagrams.parse(text)))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for box in svg.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height


def test_text_is_escaped(diagrams: Any) -> None:
    assert "&lt;ms&gt; &amp; more" in diagrams.draw(diagrams.parse(HEAD + "A->>B: <ms> & more"))
