"""What was aimed at, and whether it is met: of a report."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import frozen

from bench.contestants import AFRESH, BARE, FLOOR, REENTRY
from bench.handoff.contestants import ONE_HOP, is_peer
from bench.rows import Row, cells, middle, of, our_way, where

#: What a pair may take of a peer's. "Level" leaves one part in twenty for the run.
PEERS_BOUNDS = {
    "redis-py Lock": 1 / 1.9,
    "rueidislock (Go)": 1.0,
    "redsync (Go)": 1.0,
    "redislock (Go)": 1.05,
    "redis-semaphore (Node)": 1.05,
}
PLACES = {"same": "one CPU", "split": "two CPUs", "unpinned": "unpinned"}


@frozen
class Goal:
    """One ratio or figure, what it was to be, and what it is."""

    what: str
    bound: float
    measured: float
    at_most: bool = True
    where: str = ""  # of the worst one, where there are several

    @property
    def is_met(self) -> bool:
        """Whether it is; a figure that is missing is a goal that is missed."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


def goals(report: dict[str, Any]) -> list[Goal]:
    """All of them."""
    return [*_pairs(report["pairs"]), *_handoffs(report["handoffs"]), *_quorum(report["handoffs"])]


def _pairs(pairs: dict[str, Any]) -> Iterator[Goal]:
    one, several = pairs["one"], pairs["several"]
    same = one["pairs_us"]["same"]
    yield Goal(f"acquire + release / {BARE}, one CPU", 1.25, same["relock"] / same[BARE])
    yield Goal(f"re-entry / {BARE}, one CPU", 1.25, same[REENTRY] / same[BARE])
    yield Goal(f"acquire + release / {FLOOR}, one CPU", 1.25, same["relock"] / same[FLOOR])
    yield Goal("a new lock each time / one lock, one CPU", 1.25, same[AFRESH] / same["relock"])
    for peer, bound in PEERS_BOUNDS.items():
        if peer in same:
            yield Goal(f"acquire + release / {peer}, one CPU", bound, same["relock"] / same[peer])
    for placement, times in several["pairs_us"].items():
        yield Goal(
            f"five masters: acquire + release / {BARE}, {PLACES[placement]}", 1.15, times["relock"] / times[BARE]
        )
    for placement, times in several["stopped_us"].items():
        ratio = times["stopped_p99"] / times["healthy_p99"]
        yield Goal(f"two of five hung / all well, p99, {PLACES[placement]}", 2.0, ratio)
    yield Goal("import relock / import redis", 1.2, one["import_ratio"])


def _handoffs(rows: list[Row]) -> Iterator[Goal]:
    one_master = [cell for cell in cells(where(rows, masters=1)) if of(cell, ONE_HOP)]
    ours = our_way(rows)

    def ratio(figure: str) -> Callable[[list[Row]], float]:
        return lambda cell: _figure(cell, ours, figure) / _figure(cell, ONE_HOP, figure)

    pinned = [cell for cell in one_master if cell[0]["placement"] != "unpinned"]
    yield _worst("hand-off, median / bare one hop", 1.25, True, ratio("median_us"), pinned)
    yield _worst("hand-offs a second / bare one hop", 0.75, False, ratio("handoffs_per_second"), pinned)
    yield _worst("Jain's index", 0.99, False, lambda cell: _figure(cell, ours, "jain"), pinned)
    for kind in ("processes", "threads"):
        of_kind = where((row for cell in pinned for row in cell), kind=kind, section_ms=0.0)
        few, many = where(of_kind, workers=8), where(of_kind, workers=128)
        if few and many:
            rate = _figure(many, ours, "handoffs_per_second") / _figure(few, ours, "handoffs_per_second")
            yield Goal(f"hand-offs a second, 128 {kind} / 8", 0.8, rate, at_most=False)
        two = where(of_kind, workers=2)
        if two and many:
            sent = _figure(many, ours, "commands_per_handoff") / _figure(two, ours, "commands_per_handoff")
            yield Goal(f"commands a hand-off, 128 {kind} / 2", 1.1, sent)


def _quorum(rows: list[Row]) -> Iterator[Goal]:
    ours = our_way(rows)
    for cell in cells([row for row in rows if row["masters"] > 1]):
        peers = [(row["contestant"], middle(row, "handoffs_per_second")) for row in cell if is_peer(row["contestant"])]
        best = max(peers, key=lambda peer: (math.isfinite(peer[1]), peer[1]), default=None)
        if best is not None and best[1] > 0:
            what = f"{cell[0]['masters']} masters, {cell[0]['workers']} {cell[0]['kind']}: hand-offs / {best[0]}"
            yield Goal(what, 3.0, _figure(cell, ours, "handoffs_per_second") / best[1], at_most=False)


def _figure(cell: Iterable[Row], contestant: str, figure: str) -> float:
    row = of(cell, contestant)
    return math.nan if row is None else middle(row, figure)


def _worst(
    what: str, bound: float, at_most: bool, measure: Callable[[list[Row]], float], of_cells: Iterable[list[Row]]
) -> Goal:
    """The goal for the cell that is farthest from it; one without a figure is farther than any."""
    found = [Goal(what, bound, measure(cell), at_most, _in_words(cell[0])) for cell in of_cells]
    sign = 1 if at_most else -1
    return max(found, key=lambda goal: (math.isnan(goal.measured), sign * goal.measured))


def _in_words(row: Row) -> str:
    inside = f", {row['section_ms']:g} ms inside" if row["section_ms"] else ""
    return f"{row['workers']} {row['kind']}{inside}"
