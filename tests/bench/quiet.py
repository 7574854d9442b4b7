"""Repeat measurements during which other programs or machines had the CPUs.

The CPUs of a virtual machine belong to a host, which takes them away at times. The kernel counts that time as *stolen*
(``/proc/stat``, in hundredths of a second). With much stolen time, figures say more about the others.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

STOLEN_MAX = 0.02  # of the CPUs' time
PLAYS_MAX = 10
PAUSE_SECONDS = 2.0  # before the next play: other machines take CPUs for some seconds at a time

Found = TypeVar("Found")


class Ticks(NamedTuple):
    """The time of all CPUs since the machine was started."""

    stolen: int
    all: int


def ticks(text: str | None = None) -> Ticks:
    """Return the kernel's counts of now, or of this text of ``/proc/stat``; zeros if the kernel counts nothing."""
    path = Path("/proc/stat")
    if text is None:
        text = path.read_text() if path.exists() else ""
    # user nice system idle iowait irq softirq steal; the columns after these are parts of the first two.
    counted = [int(field) for field in text.partition("\n")[0].split()[1:9]]
    return Ticks(counted[7], sum(counted)) if len(counted) == 8 else Ticks(0, 0)


def undisturbed(
    play: Callable[[], Found], *, look: Callable[[], Ticks] = ticks, pause_seconds: float = PAUSE_SECONDS
) -> tuple[Found, float]:
    """Return the result of `play`, and the part of the CPUs' time that was stolen meanwhile.

    If that part is more than `STOLEN_MAX`, `play` runs again, up to `PLAYS_MAX` times in all; then the quietest run
    counts.
    """
    plays: list[tuple[Found, float]] = []
    while True:
        before = look()
        found = play()
        after = look()
        plays.append((found, (after.stolen - before.stolen) / max(1, after.all - before.all)))
        if plays[-1][1] <= STOLEN_MAX or len(plays) == PLAYS_MAX:
            return min(plays, key=lambda one: one[1])
        time.sleep(pause_seconds)
