"""The names of what the benchmark measures, and the forms of its figures, on a terminal and in the documentation.

A user can lay the table of ``relock bench`` beside the published ones.
"""

import math
from collections.abc import Callable

RELOCK, REENTRY = "relock", "relock, re-entry"
RELOCKS_HOP = "relock, one hop"  # relock hands over in this way by default
BARE, ONE_HOP = "bare sockets", "one hop, bare"
SUMMARY_HEAD = ("relock", BARE, f"relock / {BARE}")
ALONE = "acquire and release, nobody else wants it"
ONE_MORE_LEVEL = "one more level of a lock that is held"
JAIN = "Jain's index of the turns"
NO_HOPS_OF_SEVERAL = (
    "a hand-off over several masters has no bare floor: the masters must agree on the next holder, and the smallest "
    "script that does this is already a distributed lock"
)


def handoffs_among(workers: int, kind: str) -> str:
    """Return the head of the row of these workers' rate."""
    return f"hand-offs among {workers} {kind}"


def _writer(text: str, without: str = "none") -> Callable[[float], str]:
    """Return a function that writes a figure, or `without` where there is none."""
    return lambda value: text.format(value) if math.isfinite(value) else without


micros, rate, index, part = map(_writer, ("{:,.0f} µs", "{:,.0f}/s", "{:.3f}", "{:.0%}"))
ratio = _writer("{:.2f}", without="")
