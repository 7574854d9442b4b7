"""The page on relock's cost: its figures of each path are those that the tests count."""

from pathlib import Path

import pytest
from live.test_counts import PATHS, Way

PAGE = Path(__file__).parents[2] / "docs/concepts/cost.md"


def row(path: str) -> list[str]:
    """Return the cells of the table's line that begins with `path`, without that first cell."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith(f"| {path} |")]
    assert len(lines) == 1, path
    return lines[0][1:]


def way(name: str) -> Way:
    """Return the path over one master that the tests count under this name."""
    return next(way for way in PATHS if way.name == name and 1 in way.masters)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("acquire + release", ["acquire and release"]),
        ("re-entry; inner release", ["re-entry", "inner release"]),
        ("try-lock that is refused", ["try-lock, refused"]),
    ],
)
def test_the_counts_of_a_path(path: str, names: list[str]) -> None:
    ways = [way(name) for name in names]
    assert row(path) == [
        "; ".join(str(len(way.rounds)) for way in ways),
        "; ".join(str(way.python_calls) for way in ways),
    ]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("wait, hand-off and release, by a client that has waited lately", "wait, hand-off and release"),
        ("the same, with a hold that lasts for more than half a second", "wait, hand-off, and a hold that lasts"),
        ("renewal of 120 holds", "renewal of 120 holds"),
    ],
)
def test_the_round_trips_of_a_path(path: str, name: str) -> None:
    assert row(path)[0] == str(len(way(name).rounds))
