"""Sequence diagrams of the documentation: read, laid out and drawn."""

import importlib.util
import re
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    f"{page.relative_to(DOCS)}-{number}": text
    for page in sorted(DOCS.rglob("*.md"))
    for number, text in enumerate(re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
}
HEAD = "sequenceDiagram\nparticipant A\nparticipant B as the server\n"
THREE = f"{HEAD}participant C\n"
LONG = 60 * "m"
CROWDED = {
    "long labels": f"sequenceDiagram\nparticipant A as {LONG}\nparticipant B as {LONG}\nA->>B: x",
    "a long message": f"{THREE}A->>B: {LONG}",
    "a long message past another": f"{THREE}A->>C: {LONG}",
    "a long note at the left": f"{THREE}Note over A: {LONG}",
    "a long note in the middle": f"{THREE}Note over B: {LONG}",
    "a long note at the right": f"{THREE}Note over C: x<br/>{LONG}",
    "a long note over two": f"{THREE}Note over A,B: {LONG}\nNote over B,C: {LONG}",
    "a short note over two": f"{THREE}Note over A,B: x\nNote over B,C: x",
    "many lines": f"{THREE}Note over A: x<br/>x<br/>x\nactivate A\nA->>B: x\nNote over B: x\nactivate C",
}
SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """Edges of a rectangle."""

    left: float
    top: float
    right: float
    bottom: float


def boxes(svg: ElementTree.Element, kind: str) -> list[Box]:
    """Return the rectangles of a kind in a drawing."""
    found = [rect.attrib for rect in svg.iter(f"{SVG}rect") if rect.attrib["class"] == kind]
    at = [[float(rect[name]) for name in ("x", "y", "width", "height")] for rect in found]
    return [Box(x, y, x + width, y + height) for x, y, width, height in at]


@pytest.fixture(scope="module")
def diagrams() -> Any:
    """The module that draws the diagrams."""
    spec = importlib.util.spec_from_file_location("sequence_diagram", DOCS / "_ext/sequence_diagram.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_each_diagram_of_a_page_is_drawn_with_a_title(diagrams: Any, page: str) -> None:
    svg = ElementTree.fromstring(diagrams.draw(diagrams.parse(PAGES[page])))
    title = svg.find(f"{SVG}title")
    assert title is not None
    assert title.text


def test_the_pages_have_diagrams() -> None:
    assert len(PAGES) >= 4


@pytest.mark.parametrize(
    "line",
    [
        "A->B: not this arrow",
        "A->>C: no such participant",
        "A->>A: to itself",
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


@pytest.fixture(params=[*PAGES.values(), *CROWDED.values()], ids=[*PAGES, *CROWDED])
def diagram(diagrams: Any, request: pytest.FixtureRequest) -> Any:
    """Each diagram of a page, and some that are crowded."""
    return diagrams.parse(request.param)


@pytest.fixture
def svg(diagrams: Any, diagram: Any) -> ElementTree.Element:
    """The drawing of the diagram."""
    return ElementTree.fromstring(diagrams.draw(diagram))


def test_everything_lies_within_the_picture(svg: ElementTree.Element) -> None:
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for box in (*boxes(svg, "head"), *boxes(svg, "note"), *boxes(svg, "bar")):
        assert 0 <= box.left < box.right <= width
        assert 0 <= box.top < box.bottom <= height


def test_boxes_do_not_overlap(svg: ElementTree.Element) -> None:
    for one, other in combinations([*boxes(svg, "head"), *boxes(svg, "note")], 2):
        is_beside = one.right <= other.left or other.right <= one.left
        assert is_beside or one.bottom <= other.top or other.bottom <= one.top


def test_text_fits_between_the_lines_of_its_participants(diagrams: Any, diagram: Any) -> None:
    at = diagrams.columns(diagram)
    for step in diagram.steps:
        if isinstance(step, diagrams.Message):
            assert abs(at[step.sender] - at[step.receiver]) >= len(step.text) * diagrams.CHARACTER


def test_a_note_holds_its_text_and_covers_the_lines_of_its_participants_alone(
    diagrams: Any, diagram: Any, svg: ElementTree.Element
) -> None:
    at = diagrams.columns(diagram)
    notes = [step for step in diagram.steps if isinstance(step, diagrams.Note)]
    for note, box in zip(notes, boxes(svg, "note"), strict=True):
        first, last = sorted((at[note.first], at[note.last]))
        assert {x for x in at.values() if box.left <= x <= box.right} == {x for x in at.values() if first <= x <= last}
        assert box.right - box.left >= max(map(len, note.lines)) * diagrams.CHARACTER
        assert box.bottom - box.top >= len(note.lines) * diagrams.LINE


def test_text_is_escaped(diagrams: Any) -> None:
    assert "&lt;ms&gt; &amp; more" in diagrams.draw(diagrams.parse(HEAD + "A->>B: <ms> & more"))
