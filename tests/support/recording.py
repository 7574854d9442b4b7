"""Recording of the demo, for the README: an SVG whose lines appear one by one, made from the demo's output.

To make it anew: ``relock demo --plain | python -m support.recording``, in ``tests``.
"""

import re
import sys
from html import escape, unescape
from pathlib import Path

RECORDING = Path(__file__).parents[2] / "docs" / "_static" / "demo.svg"
COLUMNS = 112
INDENT = 9 * " "  # of the rest of a line that does not fit
CHARACTER, LINE, MARGIN = 7.25, 18, 14  # sizes (px)
FASTER = 3  # times as fast as the demo
VERDICT_SECONDS = 0.2  # between two lines of the verdict
STYLES = {"ok": "good", "BAD": "bad", "verdict": "good strong"}
STYLE = """text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #d6deeb; white-space: pre; }
.good { fill: #7fdb98; } .bad { fill: #ff6b6b; } .strong { font-weight: bold; } .command { fill: #82aaff; }
@media (prefers-reduced-motion: no-preference) { .line { animation: appear 0.01s both; } }
@keyframes appear { from { opacity: 0; } to { opacity: 1; } }"""


def recording(output: str) -> str:
    """Return the picture of the demo's output; each line appears at the moment that it names."""
    shown = [("command", "$ relock demo", 0.0)]
    at = 0.0
    for line in output.splitlines():
        moment = re.match(r" *(\d+\.\d) s ", line)
        at = float(moment[1]) / FASTER if moment else at + VERDICT_SECONDS
        style = STYLES.get(
            re.split(r"\W", line, maxsplit=1)[0], "strong" if re.match(r" *\d+\.\d s  \d\.", line) else ""
        )
        shown += [(style, part, at) for part in _folded(line)]
    height = LINE * len(shown) + 2 * MARGIN
    width = CHARACTER * COLUMNS + 2 * MARGIN
    size = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n<title>relock demo</title>'
    back = f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0f1c2e"/>'
    lines = [
        f'<text class="line {style}" x="{MARGIN}" y="{MARGIN + LINE * (number + 1) - 5}" '
        f'style="animation-delay: {moment:.2f}s">{escape(text)}</text>'
        for number, (style, text, moment) in enumerate(shown)
    ]
    return "\n".join([head, f"<style>{STYLE}</style>", back, *lines, "</svg>\n"])


def _folded(line: str) -> list[str]:
    """Return the line in parts that fit; parts after the first are indented."""
    parts = []
    while len(line) > COLUMNS:
        cut = line.rindex(" ", 0, COLUMNS)
        parts.append(line[:cut])
        line = INDENT + line[cut:].lstrip()
    return [*parts, line]


def sentences(text: str) -> str:
    """Return the sentences of the demo, without figures and names, which differ from run to run."""
    text = re.sub(r"\b(alder|birch|cedar|maple)\b", "name", re.sub(r"\d[\d,.]*", "0", text))
    return " ".join(text.split())


def recorded() -> list[str]:
    """Return the events and findings in the recording, without their moments and marks."""
    lines = re.findall(r"<text[^>]*>(.*?)</text>", RECORDING.read_text())
    unfolded = "\n".join(map(unescape, lines)).replace(f"\n{INDENT}", " ")
    return re.findall(r"^(?: *[\d.]+ s|ok)  +(.*)", unfolded, re.MULTILINE)


if __name__ == "__main__":
    RECORDING.write_text(recording(sys.stdin.read()))
