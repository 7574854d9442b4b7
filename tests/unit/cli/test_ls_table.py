"""The table of `relock ls --long`, in terminals of different widths."""

import re

import pytest
from rich.cells import cell_len
from support.screens import lock, owner

from relock import LatchInfo
from relock.cli._states import State
from relock.cli.ls import table

LONG = "nightly:report/of/the/large/customer:20871"
STATES: list[State] = [
    lock("orders:北京", owner("web", 412), 0.4, 29.6, (2.2, 1.9)),
    lock(LONG, owner("worker-7d9f-x2k", 77, "nightly"), 754.0, 25.2, (311.5,)),
    LatchInfo("go", 3, ("a",)),
]


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (60, ["NAME", "HOLDER", "≈FIRST FOR", "WAITERS"]),
        (80, ["NAME", "HOLDER", "≈HELD FOR", "≈FIRST FOR", "TTL LEFT", "WAITERS"]),
        (110, ["NAME", "KIND", "HOLDER", "COUNT", "≈HELD FOR", "≈FIRST FOR", "TTL LEFT", "WAITERS"]),
        (160, ["NAME", "KIND", "HELD FOR", "LEASE", "WAITING", "FIRST FOR", "HOLDER"]),
        (None, ["NAME", "KIND", "HELD FOR", "LEASE", "WAITING", "FIRST FOR", "HOLDER"]),
    ],
)
def test_each_line_fits_and_names_are_whole(width: int | None, headings: list[str]) -> None:
    heading, *lines = table(STATES, width)
    assert re.split("  +", heading) == headings
    assert all(cell_len(line) <= (width or 1000) for line in lines)
    assert "process 412 on web" in lines[0]
    cells = heading.index(headings[1])
    names = "".join(line[:cells].strip() for line in lines[1:])
    assert names == LONG + ("go" if "KIND" in headings else "go (latch)")
