"""Sequence diagrams: a part of Mermaid's language, drawn as SVG when the documentation is built.

A code host draws the same text by itself, so a page can be read there, too. Of the language this module knows
``participant``, messages (``->>``, ``-->>`` for an answer, ``-x`` for a lost one), ``Note over``, ``activate`` and
``deactivate``, and ``accTitle``; any other line is an error. Colours come from ``_static/diagram.css``, and with them
the dark mode.
"""

import re
from html import escape
from itertools import pairwise

from attrs import define, field, frozen

# Sizes in pixels.
CHARACTER, LINE, GAP = 6.7, 16, 30
HEAD, STEP, PADDING, BAR, APART = 34, 34, 12, 10, 90

_PARTICIPANT = re.compile(r"participant (\w+)(?: as (.+))?")
_MESSAGE = re.compile(r"(\w+)(->>|-->>|-x)(?!\1:)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")
_ACTIVE = re.compile(r"(activate|deactivate) (\w+)")


class DiagramError(Exception):
    """A line that is not of the part of the language that this module knows."""


@frozen
class Message:
    """An arrow from one participant to another: dashed if it is an answer, with a cross at its end if it is lost."""

    sender: str
    receiver: str
    text: str
    is_answer: bool
    is_lost: bool


@frozen
class Note:
    """A box over the lines of the participants from `first` to `last`."""

    first: str
    last: str
    lines: list[str]


@frozen
class Mark:
    """The beginning or the end of a bar on the line of a participant."""

    who: str
    begins: bool


@define
class Diagram:
    """The participants, by name, with their labels; and what happens, in this order."""

    title: str = ""
    participants: dict[str, str] = field(factory=dict)
    steps: list[Message | Note | Mark] = field(factory=list)


def parse(text: str) -> Diagram:
    """Return the diagram that `text` describes; raise DiagramError for a line that is not understood."""
    first, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    if first != "sequenceDiagram":
        raise DiagramError(f"not a sequenceDiagram: {first}")
    diagram = Diagram()
    for line in lines:
        _take(diagram, line)
    named = {name for step in diagram.steps for name in _names(step)}
    if unknown := named - diagram.participants.keys():
        raise DiagramError(f"no participant: {', '.join(sorted(unknown))}")
    return diagram


def _take(diagram: Diagram, line: str) -> None:
    """Add what one line says to the diagram."""
    if line.startswith("accTitle: "):
        diagram.title = line.removeprefix("accTitle: ")
    elif match := _PARTICIPANT.fullmatch(line):
        diagram.participants[match[1]] = match[2] or match[1]
    elif match := _MESSAGE.fullmatch(line):
        sender, arrow, receiver, text = match.groups()
        diagram.steps.append(Message(sender, receiver, text, is_answer=arrow == "-->>", is_lost=arrow == "-x"))
    elif match := _NOTE.fullmatch(line):
        diagram.steps.append(Note(match[1], match[2] or match[1], match[3].split("<br/>")))
    elif match := _ACTIVE.fullmatch(line):
        diagram.steps.append(Mark(match[2], begins=match[1] == "activate"))
    else:
        raise DiagramError(f"not understood: {line}")


def _names(step: Message | Note | Mark) -> list[str]:
    if isinstance(step, Message):
        return [step.sender, step.receiver]
    return [step.first, step.last] if isinstance(step, Note) else [step.who]


def columns(diagram: Diagram) -> dict[str, float]:
    """Return the middle of each participant's column, so far apart that every text fits between its lines."""
    names = list(diagram.participants)
    need: dict[tuple[int, int], float] = {}
    for i, (one, other) in enumerate(pairwise(names)):
        labels = (_width(diagram.participants[one]) + _width(diagram.participants[other])) / 2
        need[i, i + 1] = max(labels + GAP, APART)
    for step in diagram.steps:
        if isinstance(step, Message):
            first, last = sorted((names.index(step.sender), names.index(step.receiver)))
            need[first, last] = max(need.get((first, last), 0), _width(step.text) + GAP)
        elif isinstance(step, Note):
            first, last = sorted((names.index(step.first), names.index(step.last)))
            half = (max(map(_width, step.lines)) + GAP) / 2
            for near, far in ((first - 1, first), (last, last + 1)) if first == last else ():
                if near >= 0 and far < len(names):
                    need[near, far] = max(need.get((near, far), 0), half + GAP)
            if first != last:
                need[first, last] = max(need.get((first, last), 0), 2 * half - 2 * GAP)
    at = [max(_width(diagram.participants[names[0]]), *_beside(diagram, names[0])) / 2 + PADDING]
    for last in range(1, len(names)):
        at.append(max(at[first] + width for (first, end), width in need.items() if end == last))
    return dict(zip(names, at, strict=True))


def _beside(diagram: Diagram, name: str) -> list[float]:
    """Return twice the room that each note over this participant needs on the side where no other participant is."""
    notes = [step for step in diagram.steps if isinstance(step, Note) and name in (step.first, step.last)]
    alone = [max(map(_width, note.lines)) + GAP for note in notes if note.first == note.last]
    return [0.0, *alone, *(2.0 * GAP for note in notes if note.first != note.last)]


def _width(text: str) -> float:
    return len(text) * CHARACTER + 2 * PADDING


def draw(diagram: Diagram) -> str:
    """Return the diagram as an SVG element."""
    at = columns(diagram)
    parts: list[str] = []
    bars: dict[str, float] = {}
    under: list[str] = []  # bars lie under the arrows
    y = float(HEAD + PADDING)
    for step in diagram.steps:
        if isinstance(step, Mark):
            if step.begins:
                bars[step.who] = y
            else:
                under.append(_bar(at[step.who], bars.pop(step.who), y))
        elif isinstance(step, Note):
            height = LINE * len(step.lines) + PADDING
            parts.append(_note(step, at, y + PADDING, height))
            y += height + PADDING
        else:
            y += STEP
            parts.append(_message(step, at, y))
    under += [_bar(at[who], began, y + PADDING) for who, began in bars.items()]
    last = list(diagram.participants)[-1]
    width = at[last] + max(_width(diagram.participants[last]), *_beside(diagram, last)) / 2 + PADDING
    heads = [_head(label, at[name], y + PADDING) for name, label in diagram.participants.items()]
    lines = [f"<title>{escape(diagram.title)}</title>", *heads, *under, *parts]
    size = f'viewBox="0 0 {width:.0f} {y + 2 * PADDING:.0f}" width="{width:.0f}"'
    return f'<svg class="diagram" role="img" {size} xmlns="http://www.w3.org/2000/svg">{"".join(lines)}</svg>'


def _head(label: str, x: float, bottom: float) -> str:
    width = _width(label)
    box = f'<rect class="head" x="{x - width / 2:.1f}" y="2" width="{width:.1f}" height="{HEAD - 8}" rx="4"/>'
    line = f'<line class="life" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 6}" y2="{bottom:.1f}"/>'
    return line + box + _text(label, x, HEAD / 2 + 3, "label")


def _bar(x: float, top: float, bottom: float) -> str:
    return f'<rect class="bar" x="{x - BAR / 2:.1f}" y="{top:.1f}" width="{BAR}" height="{bottom - top:.1f}"/>'


def _message(message: Message, at: dict[str, float], y: float) -> str:
    begin, end = at[message.sender], at[message.receiver]
    kind = "answer" if message.is_answer else "message"
    to_right = end > begin
    stop = begin + 0.75 * (end - begin) if message.is_lost else end
    line = f'<line class="{kind}" x1="{begin:.1f}" x2="{stop:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    tip = _cross(stop, y) if message.is_lost else _point(stop, y, to_right=to_right)
    return line + tip + _text(message.text, (begin + end) / 2, y - 6, "text")


def _point(x: float, y: float, *, to_right: bool) -> str:
    back = x - 8 if to_right else x + 8
    return f'<path class="point" d="M{x:.1f} {y:.1f} L{back:.1f} {y - 4:.1f} V{y + 4:.1f} Z"/>'


def _cross(x: float, y: float) -> str:
    return f'<path class="lost" d="M{x - 5:.1f} {y - 5:.1f} l10 10 m0 -10 l-10 10"/>'


def _note(note: Note, at: dict[str, float], y: float, height: float) -> str:
    middle = (at[note.first] + at[note.last]) / 2
    width = max(*map(_width, note.lines), abs(at[note.last] - at[note.first]) + 2 * GAP)
    box = f'<rect class="note" x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"/>'
    lines = [_text(line, middle, y + PADDING / 2 + LINE * i + 12, "text") for i, line in enumerate(note.lines)]
    return box + "".join(lines)


def _text(text: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
