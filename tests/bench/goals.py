"""Goals of a report."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import frozen

from bench.names import AFRESH, FLOOR, FLOORS, KINDS, LOOP_FLOOR, PERMITS, READER, READERS, RELOCK_TASKS, is_peer
from bench.rows import Row, cells, middle, multiple, of, our_way, waited, where
from relock.cli._bench.words import BARE, ONE_HOP, REENTRY, RELOCK, micros, rate

#: What a pair may take, as a multiple of a peer's. "Level" leaves one part in twenty for the run.
PEERS_BOUNDS = {
    "redis-py Lock": 1 / 1.9,
    "rueidislock (Go)": 1.0,
    "redsync (Go)": 1.0,
    "redislock (Go)": 1.05,
    "redis-semaphore (Node)": 1.05,
}
BEHIND_ON_SEVERAL = ("redlock-py", "redsync (Go)", "pottery")  # whose pair over five masters must take longer
PLACES = {"same": "one CPU", "split": "two CPUs", "unpinned": "unpinned"}
FIVE_MASTERS = {"same": (1.35, None), "split": (1.3, 1.2)}  # by placement: the bound, and what is aimed at


@frozen
class Goal:
    """A ratio or a figure: its bound, and the value that was measured."""

    what: str
    bound: float
    measured: float
    at_most: bool = True
    where: str = ""  # of the worst figure, where there are several
    figures: str = ""  # that the ratio is made of
    aim: float | None = None  # a better value than the bound, worth reaching

    @property
    def is_met(self) -> bool:
        """Return whether the goal is met; a goal without a figure is missed."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    @property
    def distance(self) -> tuple[bool, float]:
        """Distance from being met, among goals with one bound; a goal without a figure is farther than any."""
        return math.isnan(self.measured), self.measured if self.at_most else -self.measured


def goals(report: dict[str, Any]) -> list[Goal]:
    """Return all goals, as far as they were measured."""
    rows = report.get("handoffs", [])
    of_one, waiting = of_pairs(report.get("pairs", {})), _readers(report.get("waiting", {}).get("rounds", {}))
    return [*of_one, *_handoffs(rows), *_quorum(rows), *waiting, *of_tasks(report.get("aio", {}))]


def _readers(rounds: dict[str, Any]) -> Iterator[Goal]:
    """Yield the goal of many readers that wait for one writer."""
    if found := rounds.get(READERS):
        seconds = max(one["served_seconds"] for one in found)
        yield Goal("seconds until 1,000 readers have the lock that one writer had", 1.0, seconds)


def _ratio(
    what: str, bound: float, ours: float, theirs: float, written: Callable[[float], str] = micros, **more: Any
) -> Goal:
    return Goal(what, bound, multiple(ours, theirs), figures=f"{written(ours)} / {written(theirs)}", **more)


# Pairs ----------------------------------------------------------------------------------------------------------------


def of_pairs(pairs: dict[str, Any]) -> Iterator[Goal]:
    """Yield the goals of undisturbed pairs, on one master and on several."""
    if one := pairs.get("one"):
        yield from _on_one(one["pairs_us"]["same"])
        seconds, written = one["import_seconds"], lambda value: f"{value * 1e3:,.0f} ms"
        yield _ratio("import relock / import redis", 1.2, seconds["relock"], seconds["redis"], written)
    if several := pairs.get("several"):
        for placement, times in several["pairs_us"].items():
            yield from _on_several(placement, times)
        for placement, times in several["stopped_us"].items():
            hung = f"two of five hung / all well, {{}}, {PLACES[placement]}"
            yield _ratio(hung.format("median"), 1.5, times["stopped"], times["healthy"])
            yield _ratio(hung.format("p99"), 2.0, times["stopped_p99"], times["healthy_p99"])


def _on_one(same: dict[str, float]) -> Iterator[Goal]:
    ours = same[RELOCK]
    yield _ratio(f"acquire + release / {BARE}, one CPU", 1.25, ours, same[BARE])
    yield _ratio(f"re-entry / {BARE}, one CPU", 1.25, same[REENTRY], same[BARE])
    yield _ratio(f"acquire + release / {FLOOR}, one CPU", 1.25, ours, same[FLOOR])
    yield _ratio("a new lock each time / one lock, one CPU", 1.25, same[AFRESH], ours)
    yield from _of_the_family("", "one CPU", same)
    for peer, bound in PEERS_BOUNDS.items():
        if peer in same:
            yield _ratio(f"acquire + release / {peer}, one CPU", bound, ours, same[peer])


def _on_several(placement: str, times: dict[str, float]) -> Iterator[Goal]:
    bound, aim = FIVE_MASTERS[placement]
    what = f"five masters: acquire + release / {{}}, {PLACES[placement]}"
    yield _ratio(what.format(BARE), bound, times[RELOCK], times[BARE], aim=aim)
    yield from _of_the_family("five masters: ", PLACES[placement], times)
    for peer in BEHIND_ON_SEVERAL:
        if peer in times:
            yield _ratio(what.format(peer), 1.0, times[RELOCK], times[peer])


def _of_the_family(masters: str, place: str, times: dict[str, float]) -> Iterator[Goal]:
    """Yield the goals of a reader's pair and of a permit's beside a lock's, for each limit that was measured."""
    for name in (READER, *PERMITS.values()):
        if name in times:
            yield _ratio(f"{masters}{name}: acquire + release / a lock's, {place}", 1.15, times[name], times[RELOCK])


# Hand-offs ------------------------------------------------------------------------------------------------------------


def _handoffs(rows: list[Row]) -> Iterator[Goal]:
    found = [cell for cell in cells(where(rows, masters=1)) if of(cell, ONE_HOP)]
    pinned = [cell for cell in found if cell[0]["placement"] != "unpinned"]
    empty = [cell for cell in pinned if not cell[0]["section_ms"]]
    yield from _worst(_of_the_floor(cell, "hand-off, median", 1.25, "median_us", micros) for cell in pinned)
    rates = ("hand-offs a second", 0.65, "handoffs_per_second", rate)
    yield from _worst(_of_the_floor(cell, *rates, at_most=False, aim=0.75) for cell in empty)
    text = "hand-offs a second / the best peer"
    beside = [_beside_the_best(cell, 1.5, text, f"{_in_words(cell[0])}, {{}}") for cell in empty]
    yield from _worst(goal for found in beside for goal in found)
    yield from _worst(_itself(cell, "Jain's index", 0.99, "jain", at_most=False) for cell in pinned)
    yield from _worst(_itself(cell, "commands a hand-off", 2.1, "commands_per_handoff") for cell in pinned)
    one_ms = [cell for cell in pinned if cell[0]["section_ms"] == 1.0]
    in_use = "the part of the time in which the lock is in use"
    yield from _worst(_itself(cell, in_use, 0.85, "in_use", at_most=False) for cell in one_ms)
    for kind in ("processes", "threads"):
        of_kind = where((row for cell in empty for row in cell), kind=kind)
        few, many = where(of_kind, workers=8), where(of_kind, workers=128)
        if few and many:
            slow, fast = (_figure(cell, our_way(cell), "handoffs_per_second") for cell in (many, few))
            yield _ratio(f"hand-offs a second, 128 {kind} / 8", 0.8, slow, fast, rate, at_most=False)


def _of_the_floor(
    cell: list[Row], what: str, bound: float, figure: str, written: Callable[[float], str], **more: Any
) -> Goal:
    ours, floors = (_figure(cell, name, figure) for name in (our_way(cell), FLOORS[cell[0]["kind"]]))
    return _ratio(f"{what} / bare one hop", bound, ours, floors, written, where=_in_words(cell[0]), **more)


def _beside_the_best(cell: list[Row], bound: float, what: str, where: str = "") -> Iterator[Goal]:
    """Yield the rate beside that of the fastest peer, where one was measured; both texts may name it."""
    peers = [(middle(row, "handoffs_per_second"), row["contestant"]) for row in cell if is_peer(row["contestant"])]
    theirs, best = max((peer for peer in peers if peer[0] > 0), default=(0.0, ""))
    if best:
        ours = _figure(cell, our_way(cell), "handoffs_per_second")
        yield _ratio(what.format(best), bound, ours, theirs, rate, at_most=False, where=where.format(best))


def _itself(cell: list[Row], what: str, bound: float, figure: str, *, at_most: bool = True) -> Goal:
    return Goal(what, bound, _figure(cell, our_way(cell), figure), at_most, _in_words(cell[0]))


def _quorum(rows: list[Row]) -> Iterator[Goal]:
    for cell in cells([row for row in rows if row["masters"] > 1]):
        what = f"{cell[0]['masters']} masters, {_in_words(cell[0])}: hand-offs / {{}}"
        yield from _beside_the_best(cell, 3.0, what)


def _figure(cell: Iterable[Row], contestant: str, figure: str) -> float:
    row = of(cell, contestant)
    return math.nan if row is None else middle(row, figure)


def _worst(found: Iterable[Goal]) -> Iterator[Goal]:
    """Yield the goal that is farthest from being met, of goals for many cells, if there is any."""
    all_of_them = list(found)
    if all_of_them:
        yield max(all_of_them, key=lambda goal: goal.distance)


def _in_words(row: Row) -> str:
    inside = f", {row['section_ms']:g} ms inside" if row["section_ms"] else ""
    return f"{row['workers']} {row['kind']}{inside}"


# Tasks ----------------------------------------------------------------------------------------------------------------


def of_tasks(found: dict[str, Any]) -> Iterator[Goal]:
    """Yield the goals of tasks of an event loop, as far as the tasks were measured."""
    if pairs := found.get("pairs"):
        same = pairs["one"]["pairs_us"]["same"]
        what = "tasks: acquire + release / the same scripts, bare on a loop, one CPU"
        yield _ratio(what, 1.4, same[RELOCK_TASKS], same[LOOP_FLOOR])
    if rows := found.get("handoffs"):
        pinned = cells([row for row in rows if row["placement"] != "unpinned"])
        rates = ("tasks: hand-offs a second", 0.6, "handoffs_per_second", rate)
        yield from _worst(_of_the_floor(cell, *rates, at_most=False) for cell in pinned)
        yield from _worst(_itself(cell, "tasks: Jain's index", 0.99, "jain", at_most=False) for cell in pinned)
        yield from _worst(_itself(cell, "tasks: commands a hand-off", 2.1, "commands_per_handoff") for cell in pinned)
    if waiting := found.get("waiting"):
        for what, (bound, figure) in WAITING.items():
            named = f"{waiting['tasks']:,} tasks wait: {what}"
            yield from _worst(Goal(named, bound, waited(waiting, kind)[figure], where=KINDS[kind]) for kind in OF_LOCKS)


OF_LOCKS = ("lock", "locks")
#: The bound of each figure of tasks that wait.
WAITING = {
    "seconds until all are queued": (3.0, "queued_seconds"),
    "KB for each, with the task itself": (8.0, "kilobytes_each"),
    "connections to the master": (3, "all_connections"),
    "commands a second": (15.0, "calls_per_second"),
    "% of a CPU": (4.0, "cpu_percent"),
    "ms of the slowest script": (5.0, "slowest_ms"),
    "seconds until a half that is cancelled has left the queue": (1.0, "cancelled_seconds"),
    "places left in the end": (0, "left"),
}
