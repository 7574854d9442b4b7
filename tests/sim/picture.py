"""Space-time picture of a run, as SVG: time runs down, and each process and each master has a lane.

Long gaps between what is to be seen are folded, so that messages of microseconds and leases of seconds fit on a page.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from statistics import median

from attrs import Factory, define

BEFORE, AFTER = 60, 10  # messages that are shown before and after a violation
TOP, LEFT, RIGHT, LANE, LINE = 90, 84, 40, 128, 11  # sizes (px): margins, the width of a lane, a line of text
STEP, STEP_MIN, FOLD = 7.0, 2.5, 44.0  # px between two moments: the usual, the least and the most
AGAIN = 600  # px after which the names of the lanes stand again
KINDS = ("svg", "dim", "faint", "back", "fault", "violation")
LIGHT = ("1d2733", "6b7784", "d5dbe1", "ffffff", "b35c00", "d0021b")
DARK = ("dce3ea", "8a97a5", "37424e", "12181f", "ffb057", "ff6b6b")
HUES = ("1f6fd1", "178a4c", "b3369b", "a06f00", "0e8c97", "7a4fd0", "a8552a", "5d7a1f")  # of processes
DARK_HUES = ("6aaeff", "5fd38d", "f08ad9", "f0c14a", "5cd6e0", "b79bff", "f0a07a", "b5d36a")
STYLE = """text { font: 9px ui-sans-serif, system-ui, sans-serif; fill: currentColor; }
text { paint-order: stroke; stroke-width: 2.5; }
.left { text-anchor: end; } .name { font-size: 12px; font-weight: 600; text-anchor: middle; }
text.title { text-anchor: start; }
rect, circle, polygon { fill: currentColor; } path, line { fill: none; stroke: currentColor; stroke-width: 1.1; }
line.faint { stroke-width: .5; } line.lane { stroke-width: 2; } line.dim { stroke-dasharray: 1 3; }
.reply path { stroke-dasharray: 4 2; } .published path { stroke-dasharray: 1 2; stroke-width: 2; }
.fault > path { fill: currentColor; } .kept rect { fill-opacity: .4; } .state rect { fill-opacity: .2; }
path.violation { stroke-width: 2; stroke-dasharray: none; } .violation text { font-weight: 600; font-size: 11px; }
g:hover > path { stroke-width: 3; } g:hover > text { font-weight: 700; }
"""


def _colours(kinds: Sequence[str], hues: Sequence[str]) -> str:
    """Return the rules of the colours: each element has a current colour, and each text a rim of the background's."""
    named = dict(zip(KINDS, kinds, strict=True))
    colours = named | {f"p{number}": colour for number, colour in enumerate(hues)}
    rules = [f"{'' if name == 'svg' else '.'}{name} {{ color: #{colour}; }}" for name, colour in colours.items()]
    return " ".join([*rules, f"text {{ stroke: #{named['back']}; }}"])


LEGEND = (
    "Solid line: a request. Dashed: its reply. Dotted: a published message. Cross: lost on the way.",
    "Bar: a hold, as its owner believes; its notches: another D. Pale bar: a hold that a master keeps.",
    "Diamond: a fault, or what a client notices of one; shaded: as long as it lasts. Point at anything for its words.",
)
STYLE += f"{_colours(LIGHT, HUES)}\n@media (prefers-color-scheme: dark) {{ {_colours(DARK, DARK_HUES)} }}"


@define
class Message:
    """Message between two lanes, which is one of the process `whose` connection it is on."""

    sender: str
    receiver: str
    whose: str
    kind: str  # request, reply or published
    sent: float
    arrives: float
    label: str
    title: str
    is_lost: bool = False


@define
class Bar:
    """Time on a lane: a hold as its owner believes (hold), as a master keeps it (kept), or a state of the lane.

    Attributes:
        whose: the process of the owner, which gives the colour.
        until: when a hold or a lease ends by itself, as far as is known.
        ticks: what is to be said of `until` from each moment at which it changed.
    """

    lane: str
    kind: str
    whose: str
    begin: float
    label: str
    title: str
    until: float = float("inf")
    end: float = float("inf")
    ticks: dict[float, str] = Factory(dict)

    def close(self, now: float) -> None:
        """End the bar now, or when it has ended by itself."""
        self.end = min(now, max(self.begin, self.until))
        self.title += f"\n{self.begin:.4f} s to {self.end:.4f} s"


@define
class Mark:
    """Moment at which something happened to a lane, or was found."""

    lane: str
    kind: str  # fault or violation
    when: float
    label: str


@define
class Story:
    """Account of a run, or of a part of it: all that a picture shows."""

    title: str
    processes: list[str] = Factory(list)
    masters: list[str] = Factory(list)
    bars: list[Bar] = Factory(list)
    messages: list[Message] = Factory(list)
    marks: list[Mark] = Factory(list)

    def window(self, since: float | None, until: float | None) -> "Story":
        """Return the part between two moments: by default, that around the first violation, if there is one."""
        found = [mark.when for mark in self.marks if mark.kind == "violation"]
        if since is None and until is None and found:
            before = [one.sent for one in self.messages if one.sent <= found[0]][-BEFORE:]
            after = [one.arrives for one in self.messages if one.sent > found[0]][:AFTER]
            since, until = min(before, default=found[0]), max([found[0], *after])
        begin, end = since or 0.0, float("inf") if until is None else until
        return Story(
            self.title,
            self.processes,
            self.masters,
            [bar for bar in self.bars if bar.begin <= end and bar.end >= begin],
            [one for one in self.messages if one.sent <= end and one.arrives >= begin],
            [mark for mark in self.marks if begin <= mark.when <= end],
        )


class Scale:
    """Places of times on the page: even, but that short gaps between moments are stretched, and long ones folded."""

    def __init__(self, times: Iterable[float]) -> None:
        self.times = sorted({round(time, 7) for time in times}) or [0.0]
        gaps = [after - before for before, after in pairwise(self.times)]
        usual = median(gaps) if gaps else 1.0
        self.places = [float(TOP)]
        self.folds: list[tuple[float, float]] = []  # the place and the length of each gap that is folded
        for gap in gaps:
            height = min(max(STEP * gap / usual, STEP_MIN), FOLD)
            if height == FOLD:
                self.folds.append((self.places[-1] + FOLD / 2, gap))
            self.places.append(self.places[-1] + height)

    def __call__(self, time: float) -> float:
        """Return the place of a time; before the first moment and after the last one, that of these."""
        number = bisect_right(self.times, time) - 1
        if number < 0 or number + 1 >= len(self.times):
            return self.places[max(number, 0)]
        part = (time - self.times[number]) / (self.times[number + 1] - self.times[number])
        return self.places[number] + part * (self.places[number + 1] - self.places[number])


class Room:
    """Room for text beside the lanes: a label that would cover another one is left out, and stays a hover text."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, bool], list[float]] = {}

    def text(self, lane: str, x: float, y: float, text: str, *, left: bool = False) -> str:
        """Return a label on one side of a lane; nothing if another one is there."""
        used = self._used.setdefault((lane, left), [])
        if not text or any(abs(y - one) < LINE - 2 for one in used):
            return ""
        used.append(y)
        return f'<text class="{"left" * left}" x="{x:.0f}" y="{y:.1f}">{escape(text)}</text>'


class Drawing:
    """Drawing of a story: a list of elements for each kind of thing."""

    def __init__(self, story: Story) -> None:
        marks, messages = story.marks, story.messages
        moments = [mark.when for mark in marks] + [time for one in messages for time in (one.sent, one.arrives)]
        first, last = min(moments, default=0.0), max(moments, default=0.0)
        cuts = [time for bar in story.bars for time in (bar.begin, *bar.ticks, bar.end) if first <= time <= last]
        self._scale = Scale([*moments, *cuts])
        self._at = {name: LEFT + LANE * (i + 0.5) for i, name in enumerate([*story.processes, *story.masters])}
        self._hues = {name: f"p{number % len(HUES)}" for number, name in enumerate(story.processes)}
        self._room = Room()
        self.width, self.height = LEFT + LANE * len(self._at) + RIGHT, self._scale.places[-1] + 30

    def background(self) -> Iterator[str]:
        """Yield the lanes, the times and the folds."""
        bottom, right, used = self.height - 8, self.width, 0.0
        for x in self._at.values():
            yield f'<line class="lane faint" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{bottom:.0f}"/>'
        for time, y in zip(self._scale.times, self._scale.places, strict=True):
            if y - used >= 2 * LINE:
                used = y
                yield f'<line class="faint" x1="{LEFT - 12}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                yield f'<text class="dim left" x="{LEFT - 16}" y="{y + 3:.1f}">{time:.4f}</text>'
        for y, seconds in self._scale.folds:
            length = f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"
            yield f'<line class="dim" x1="{LEFT - 12}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="dim left" x="{LEFT - 16}" y="{y + 3:.1f}">≈ {length}</text>'

    def names(self) -> Iterator[str]:
        """Yield the names of the lanes at the top, and again in folds, where they cover nothing."""
        rows = [TOP - 14, *(y + 4 for y, _ in self._scale.folds)]
        for y in [y for i, y in enumerate(rows) if not i or y // AGAIN > rows[i - 1] // AGAIN]:
            for name, x in self._at.items():
                yield f'<text class="name {self._hues.get(name, "")}" x="{x}" y="{y:.0f}">{escape(name)}</text>'

    def bars(self, bars: Iterable[Bar]) -> Iterator[str]:
        """Yield the bars; those of one lane at the same time beside each other."""
        ends: dict[tuple[str, str], list[float]] = {}
        for bar in sorted(bars, key=lambda bar: (bar.kind != "state", bar.begin)):
            columns = ends.setdefault((bar.lane, bar.kind), [])
            column = next((i for i, end in enumerate(columns) if end <= bar.begin), len(columns))
            columns[column : column + 1] = [bar.end]
            yield self._bar(bar, column)

    def _bar(self, bar: Bar, column: int) -> str:
        top, bottom, is_hold = self._scale(bar.begin), self._scale(bar.end), bar.kind == "hold"
        width = 24 if bar.kind == "state" else 8
        x = self._at[bar.lane] + (width + 1) * column * (-1 if is_hold else 1)
        ticks = {max(self._scale(time), top): text for time, text in bar.ticks.items()}  # the last one at each place
        lines = {top: bar.label} | {y + LINE * (y == top): text for y, text in ticks.items()}
        labels = [
            self._room.text(bar.lane, x - 7 if is_hold else x + width / 2 + 3, y + 8, text, left=is_hold)
            for y, text in lines.items()
            if y == top or y + 8 < bottom
        ]
        return "".join([
            f'<g class="{bar.kind} {self._hues.get(bar.whose, "fault")}"><title>{escape(bar.title)}</title>',
            f'<rect x="{x - width / 2:.0f}" y="{top:.1f}" width="{width}" height="{max(bottom - top, 2):.1f}"/>',
            *(f'<path class="back" d="M{x - 4:.0f} {y:.1f}h8"/>' for y in ticks if y > top),
            *labels,
            "</g>",
        ])  # fmt: skip

    def messages(self, messages: Iterable[Message]) -> Iterator[str]:
        """Yield a line for each message, from its sending to its arrival or loss."""
        for one in sorted(messages, key=lambda one: one.arrives):
            begin, end = self._at[one.sender], self._at[one.receiver]
            ahead = 1 if end > begin else -1
            begin, end = begin + 4 * ahead, end - (14 if one.is_lost else 4) * ahead
            top, bottom = self._scale(one.sent), self._scale(one.arrives)
            tip = f'<circle cx="{end}" cy="{bottom:.1f}" r="2"/>'
            if one.is_lost:
                tip = f'<path class="violation" d="M{end - 4} {bottom - 4:.1f}l8 8m0 -8l-8 8"/>'
            label = self._room.text(one.receiver, end - 5 * ahead, bottom - 2, one.label, left=ahead > 0)
            fate = f"lost at {one.arrives:.4f} s" if one.is_lost else f"arrives at {one.arrives:.4f} s"
            title = f"{one.sender} to {one.receiver}, sent at {one.sent:.4f} s, {fate}\n{one.title}"
            yield (
                f'<g class="{one.kind} {self._hues.get(one.whose, "")}"><title>{escape(title)}</title>'
                f'<path d="M{begin} {top:.1f}L{end} {bottom:.1f}"/>{tip}{label}</g>'
            )

    def marks(self, marks: Iterable[Mark]) -> Iterator[str]:
        """Yield a sign for each fault, and a line for each violation."""
        for mark in marks:
            y = self._scale(mark.when)
            lane = max((name for name in self._at if mark.lane.startswith(name)), key=len, default="")
            x = self._at.get(lane, LEFT - 6)
            sign = f'<path d="M{x - 5} {y:.1f}l5 -5l5 5l-5 5z"/>'
            if mark.kind == "violation":
                sign = f'<line x1="{LEFT - 12}" x2="{self.width}" y1="{y:.1f}" y2="{y:.1f}"/>'
                x, y, lane = LEFT, y - 7, "all"
            title, label = escape(f"{mark.label}, {mark.when:.4f} s"), self._room.text(lane, x + 8, y + 3, mark.label)
            yield f'<g class="{mark.kind}"><title>{title}</title>{sign}{label}</g>'


def draw(story: Story) -> str:
    """Return the picture as the text of an SVG file."""
    drawing = Drawing(story)
    width, height = drawing.width, round(drawing.height)
    marks = [*drawing.marks(story.marks)]  # their labels come first if there is little room
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<title>{escape(story.title)}</title>\n<style>{STYLE}</style>",
        '<rect class="back" width="100%" height="100%"/>',
        f'<text class="name title" x="8" y="18">{escape(story.title)}</text>',
        *(f'<text class="dim" x="8" y="{32 + LINE * number}">{line}</text>' for number, line in enumerate(LEGEND)),
        *drawing.background(),
        *drawing.bars(story.bars),
        *drawing.messages(story.messages),
        *marks,
        *drawing.names(),
        "</svg>\n",
    ]
    return "\n".join(parts)
