"""What the benchmark calls what it measures, and how it writes figures, on a terminal and in the documentation.

So a user can lay what ``relock bench`` shows beside the published tables.
"""

import math
from collections.abc import Sequence

RELOCK, REENTRY = "relock", "relock, re-entry"
RELOCKS_HOP = "relock, one hop"  # as it hands over by default
BARE, ONE_HOP = "bare sockets", "one hop, bare"
SUMMARY_HEAD = ("relock", BARE, f"relock / {BARE}")
ALONE = "acquire and release, nobody else wants it"
ONE_MORE_LEVEL = "one more level of a lock that is held"
NO_HOPS_OF_SEVERAL = (
    "a hand-off over several masters has no bare floor: the masters must agree on who is next, and the smallest script "
    "that sees to that would be a lock of its own"
)


def handoffs_among(workers: int, kind: str) -> str:
    """The row of these workers' rate."""
    return f"hand-offs among {workers} {kind}"


def speed_of(kind: str) -> str:
    """The title of a table with cells of `speed`."""
    return f"{kind}: median in µs, hand-offs a second (each: of the bare one hop)"


def manner_of(kind: str) -> str:
    """The title of a table with cells of `manner`."""
    return f"{kind}: 99 % in µs, Jain's index"


def micros(value: float) -> str:
    """A time."""
    return f"{value:,.0f} µs" if math.isfinite(value) else "none"


def rate(value: float) -> str:
    """Hand-offs a second."""
    return f"{value:,.0f}/s" if math.isfinite(value) else "none"


def ratio(value: float) -> str:
    """A multiple of the floor's; nothing where there is no floor."""
    return f"{value:.2f}" if math.isfinite(value) else ""


def speed(median_us: float, per_second: float, of_floor: Sequence[float]) -> str:
    """A hand-off's median and the rate, each with its multiple of the floor's, where there is one."""
    if math.isnan(median_us):
        return "no hand-off"
    cells = []
    for value, multiple in zip((median_us, per_second), of_floor, strict=True):
        cells.append(f"{value:,.0f}" + (f" ({multiple:.2f})" if math.isfinite(multiple) else ""))
    return ", ".join(cells)


def manner(p99_us: float, jain: float, commands: float = math.nan, in_use: float = math.nan) -> str:
    """How even hand-offs are; also the commands of each and the part of the time in use, where these are known."""
    if math.isnan(p99_us):
        return ""
    cells = [f"{p99_us:,.0f}", f"{jain:.3f}"]
    cells += [f"{commands:.1f}"] if math.isfinite(commands) else []
    cells += [f"{in_use:.0%} in use"] if math.isfinite(in_use) else []
    return ", ".join(cells)
