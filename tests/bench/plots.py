"""The plots of the documentation, as SVG: the same figures give the same files.

They have no background, and colours that can be seen on a white page and on a dark one. A style sheet with two sets of
colours would follow the reader's system, but not the switch on the page.
"""

import math
import re
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.goals import PLACES
from bench.names import is_floor
from bench.rows import Row, contestants, middle, where
from relock.cli._bench.words import BARE

INK = "#787878"
STYLE = {
    "svg.hashsalt": "relock",  # or names in the file would differ from run to run
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
FLOORS = (("0.45", "--"), ("0.55", ":"))
OURS = ("#c0392b", "#cf6c10", "#b35806", "#d6604d")
PEERS = ("#2c7fb8", "#359150", "#9e5cc0", "#a6690f", "#dd1c77", "#0f8a80", "#6272d8", "#5f9ea0")
MARKS = "osD^vPX*"


def draw(report: dict[str, Any], folder: Path) -> None:
    """Draw all plots."""
    folder.mkdir(exist_ok=True)
    rows = where(report["handoffs"], masters=1, section_ms=0.0)
    pinned = [row for row in rows if row["placement"] != "unpinned"]
    with mpl.rc_context(STYLE):  # type: ignore[arg-type,unused-ignore]  # names of later versions are literals
        _save(_alone(report["pairs"]), folder / "alone.svg")
        for name, figure, label, scale in (
            ("rate", "handoffs_per_second", "hand-offs a second", "log"),
            ("latency", "median_us", "median of a hand-off, µs", "log"),
            ("fairness", "jain", "Jain's index of turns", "linear"),
        ):
            _save(_by_workers(pinned, figure, label, scale), folder / f"{name}.svg")


def _save(figure: Figure, path: Path) -> None:
    """Write the figure with one line for each group of the drawing, and without metadata."""
    drawn = StringIO()
    figure.savefig(drawn, format="svg", metadata=NO_METADATA, facecolor="none")
    path.write_text(squeezed(drawn.getvalue()))


def squeezed(svg: str) -> str:
    """Return the same drawing with a line break before each group that has a name, and nowhere else."""
    return re.sub(r"\s*\n\s*", " ", svg).strip().replace(" <g id=", "\n<g id=") + "\n"


def _look_of(names: Sequence[str]) -> Callable[[str], dict[str, Any]]:
    """Return the look of each contestant: floors grey and broken, ours thick."""
    floors = [name for name in names if is_floor(name)]
    ours = [name for name in names if name.startswith("relock")]
    peers = [name for name in names if name not in floors and name not in ours]

    def look(name: str) -> dict[str, Any]:
        if name in floors:
            colour, line = FLOORS[floors.index(name)]
            return {"color": colour, "linestyle": line, "marker": "."}
        if name in ours:
            return {"color": OURS[ours.index(name) % len(OURS)], "linewidth": 2.5, "marker": "o"}
        number = peers.index(name)
        return {"color": PEERS[number % len(PEERS)], "marker": MARKS[number % len(MARKS)], "markersize": 4}

    return look


def _by_workers(rows: Sequence[Row], figure: str, label: str, scale: str) -> Figure:
    """Return a panel for each kind of worker, with a line for each contestant."""
    picture = Figure(figsize=(9, 4.2), layout="constrained")
    names = contestants(rows)
    look = _look_of(names)
    panels: Sequence[Axes] = picture.subplots(1, 2, sharey=True)
    for axes, kind in zip(panels, ("processes", "threads"), strict=True):
        for name in names:
            line = sorted(where(rows, kind=kind, contestant=name), key=lambda row: row["workers"])
            axes.plot([row["workers"] for row in line], [middle(row, figure) for row in line], label=name, **look(name))
        workers = sorted({row["workers"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.set_yscale(scale)
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(f"workers ({kind})")
    panels[0].set_ylabel(label)
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _alone(pairs: dict[str, Any]) -> Figure:
    """Return bars: each contestant's pair as a multiple of bare sockets, on one master and on five."""
    picture = Figure(figsize=(9, 4), layout="constrained")
    panels: Sequence[Axes] = picture.subplots(1, 2)
    parts = (("one master", pairs["one"]), ("five masters", pairs["several"]))
    for axes, (title, found) in zip(panels, parts, strict=True):
        placements = list(found["pairs_us"])
        names = list(found["pairs_us"][placements[0]])[::-1]
        height = 0.8 / len(placements)
        for number, place in enumerate(placements):
            times = found["pairs_us"][place]
            ratios = [times[name] / times[BARE] for name in names]
            spots = [row + (number - (len(placements) - 1) / 2) * height for row in range(len(names))]
            bars = axes.barh(spots, ratios, height, label=PLACES[place], color=(OURS[0], "0.55")[number % 2])
            axes.bar_label(bars, [f"{ratio:.1f}" for ratio in ratios], padding=2, fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(0.8, 2 ** math.ceil(math.log2(max(axes.get_xlim()[1], 2))))
        axes.grid(axis="y", visible=False)
        axes.set_title(title, loc="left")
        axes.set_xlabel("multiple of bare sockets")
    panels[-1].legend(frameon=False, fontsize=9)
    return picture
