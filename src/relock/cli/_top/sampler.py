"""Sampler of ``relock top``: which names are looked at and when, and how often their tokens change."""

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from attrs import frozen

from relock import LockInfo, QuorumError, SemaphoreInfo
from relock._doctor.findings import Examination
from relock._keys import glob_filter
from relock.cli._states import State, facts_of
from relock.cli._top.masters import Masters

LOOKS_PER_SECOND = 200  # at most
SURVEY_SECONDS = 5.0  # from the end of a SCAN to the next one, at least
MEMORY = 0.9  # weight of earlier looks in a rate, beside that of the last one

Name = tuple[str, str]  # with the kind


@frozen
class Row:
    """Last look at a name.

    Attributes:
        state: what was found.
        at: the sampler's time of the look.
        facts: the state for JSON.
        grants: number of new tokens that the looks have found, the last looks with most weight.
        seen: seconds for which no grant can have escaped the looks, with the same weights.
    """

    state: State
    at: float
    facts: dict[str, Any]
    grants: float = 0.0
    seen: float = 0.0


def next_row(before: Row | None, state: State, now: float) -> Row:
    """Return the row of a look, with the rate of tokens since the look `before`.

    A token is a time and no count, so a look tells only of the last grant. But it tells since when nothing was granted:
    each look sees back to the last grant, or to the look before. The rate is that of the grants in the time that was
    seen. It is right for grants at random times, and up to twice too high for regular ones.
    """
    facts = facts_of(state)
    if isinstance(state, SemaphoreInfo):
        facts["permits"] = state.used
    if not isinstance(state, LockInfo):
        return Row(state, now, facts)
    facts["hold_count"] = state.hold_count
    if before is None or not isinstance(before.state, LockInfo):
        return Row(state, now, facts)
    since = now - before.at
    is_new = state.token not in (None, before.state.token)
    back = min(since, state.held_for) if is_new and state.held_for is not None else since
    grants, seen = MEMORY * before.grants + is_new, MEMORY * before.seen + back
    return Row(state, now, {**facts, "tokens_per_second": grants / seen if seen else None}, grants, seen)


@frozen
class Snapshot:
    """Knowledge of the sampler at one time.

    Attributes:
        masters: the facts about each master.
        names: how many names are in use, and match the pattern.
        rows: the last look at each of these, as far as there was one.
        problem: the error if too few masters answered at last; else None.
    """

    masters: Sequence[Examination] = ()
    names: int = 0
    rows: Sequence[Row] = ()
    problem: QuorumError | None = None


class Sampler:
    """Choice of the names to look at. One thread may survey while another one looks.

    Attributes:
        pattern: glob; other names are neither looked at nor shown.
        closed: True ends a round early.
    """

    def __init__(self, masters: Masters, clock: Callable[[], float]) -> None:
        self.pattern = "*"
        self.closed = False
        self._masters, self._clock = masters, clock
        self._known: Sequence[Examination] = ()
        self._names: Mapping[Name, bool] = {}  # and whether the name has a queue
        self._surveyed_at = self._asked_at = -math.inf
        self._rows: dict[Name, Row] = {}
        self._problem: QuorumError | None = None
        self._allowance = 0.0

    def survey(self) -> None:
        """Find the names in use by SCAN, and examine the masters; nothing if the last survey was short ago."""
        if self._clock() < self._surveyed_at + SURVEY_SECONDS:
            return
        self._known = self._masters.examine()
        found: dict[Name, bool] = {}
        try:
            for name, kind, is_queue in self._masters.find():
                found[name, kind] = found.get((name, kind), False) or is_queue
            self._names, self._problem = found, None
        except QuorumError as error:
            self._problem = error
        self._surveyed_at = self._clock()

    def round(self, seconds: float = math.inf) -> Snapshot:
        """Look at the names whose turn it is, for so many seconds at most; return what is known then."""
        until, matches = self._clock() + seconds, glob_filter(self.pattern)
        wanted = [one for one in self._names if matches(one[0])]
        try:
            for one in self._due(wanted):
                self._allowance -= 1
                state = self._masters.look(*one)
                self._rows[one] = next_row(self._rows.get(one), state, self._clock())
                self._problem = None
                if self.closed or self._clock() >= until:
                    break
        except QuorumError as error:
            self._problem = error
        self._rows = {one: row for one, row in self._rows.items() if one in self._names}
        rows = [self._rows[one] for one in wanted if one in self._rows]
        return Snapshot(self._known, len(wanted), rows, self._problem)

    def _due(self, wanted: Sequence[Name]) -> list[Name]:
        """Return the names to look at now: first those with a queue, and of these the one that has waited longest."""
        now = self._clock()
        earned = LOOKS_PER_SECOND * (now - self._asked_at)
        self._allowance, self._asked_at = min(LOOKS_PER_SECOND, self._allowance + earned), now
        return nsmallest(int(self._allowance), wanted, key=self._turn)

    def _turn(self, one: Name) -> tuple[bool, float]:
        row = self._rows.get(one)
        if row is None:
            return not self._names.get(one, False), -math.inf
        is_queued = row.facts.get("queue") if row.at >= self._surveyed_at else self._names.get(one, False)
        return not is_queued, row.at
