"""The sampler of `relock top`: which names it looks at and when, in time that the test sets; and the rate of tokens."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.screens import MadeUpMasters, lock

from relock import LockInfo, QuorumError
from relock.cli._states import State
from relock.cli._top.sampler import LOOKS_PER_SECOND, SURVEY_SECONDS, Sampler, next_row


class ManyNames(MadeUpMasters):
    """Masters with so many locks, some of which have a queue, as SCAN tells."""

    def __init__(self, free: int, queued: int = 0) -> None:
        super().__init__()
        self.names = {**{f"free:{n}": False for n in range(free)}, **{f"queued:{n}": True for n in range(queued)}}

    def find(self) -> Iterator[tuple[str, str, bool]]:
        self.scans += 1
        yield from ((name, "lock", is_queue) for name, is_queue in self.names.items())

    def look(self, name: str, kind: str) -> State:
        self.looks.append((name, kind))
        return lock(name, "a:1", 1.0, 10.0, (1.0,) if self.names[name] else ())

    def taken(self) -> list[str]:
        """Return, once, the names of the looks so far."""
        names = [name for name, _ in self.looks]
        self.looks.clear()
        return names


def test_ten_thousand_names_cost_200_looks_a_second_and_a_scan_each_five() -> None:
    masters = ManyNames(free=10_000)
    sampler = Sampler(masters, lambda: masters.now)
    for half in range(41):
        masters.now = half / 2
        sampler.survey()
        known = sampler.round()
    assert (len(masters.looks), LOOKS_PER_SECOND) == (200 * 21, 200)
    assert (masters.scans, SURVEY_SECONDS) == (5, 5.0)
    assert (known.names, len(known.rows), len(set(masters.looks))) == (10_000, 4_200, 4_200)


def test_a_pause_earns_no_more_than_one_second() -> None:
    masters = ManyNames(free=1_000)
    sampler = Sampler(masters, lambda: masters.now)
    sampler.survey()
    for masters.now in (0.0, 60.0):
        sampler.round()
        assert len(masters.taken()) == LOOKS_PER_SECOND


def test_names_with_a_queue_come_first_and_the_others_in_turn() -> None:
    masters = ManyNames(free=500, queued=50)
    sampler = Sampler(masters, lambda: masters.now)
    sampler.survey()
    seen: list[str] = []
    for masters.now in (0.0, 1.0, 2.0, 3.0):
        sampler.round()
        names = masters.taken()
        assert all(name.startswith("queued:") for name in names[:50])
        seen += names[50:]
    assert len(seen) == 600
    assert set(seen[:500]) == {f"free:{n}" for n in range(500)}


def test_a_look_tells_sooner_than_a_scan_who_has_a_queue() -> None:
    masters = ManyNames(free=400)
    sampler = Sampler(masters, lambda: masters.now)
    sampler.survey()
    masters.names["free:3"] = True
    for masters.now in (0.0, 1.0):
        sampler.round()
    masters.taken()
    masters.now = 2.0
    sampler.round()
    assert masters.taken()[0] == "free:3"


def test_only_names_that_match_are_looked_at_and_gone_ones_are_forgotten() -> None:
    masters = ManyNames(free=3, queued=2)
    sampler = Sampler(masters, lambda: masters.now)
    sampler.survey()
    sampler.pattern = "queued:*"
    known = sampler.round()
    assert (known.names, sorted(masters.taken())) == (2, ["queued:0", "queued:1"])
    del masters.names["queued:0"]
    masters.now, sampler.pattern = SURVEY_SECONDS, "*"
    sampler.survey()
    known = sampler.round()
    assert (known.names, len(known.rows), len(sampler._rows)) == (4, 4, 4)


def test_a_round_ends_with_its_time_and_when_the_app_is_closed() -> None:
    masters = ManyNames(free=100)

    def clock() -> float:
        masters.now += 0.1
        return masters.now

    sampler = Sampler(masters, clock)
    sampler.survey()
    sampler.round(1.0)
    assert 2 < len(masters.taken()) < 11
    sampler.closed = True
    sampler.round()
    assert len(masters.taken()) == 1


def test_what_is_known_stays_while_too_few_masters_answer() -> None:
    masters = MadeUpMasters()
    sampler = Sampler(masters, lambda: masters.now)
    sampler.survey()
    assert sampler.round().problem is None
    masters.problem, masters.now = QuorumError("no master answered"), SURVEY_SECONDS
    for step in (sampler.survey, sampler.round):
        step()
        masters.looks.clear()
    known = sampler.round()
    assert (known.problem, len(known.rows), len(masters.looks)) == (masters.problem, 5, 1)
    masters.problem = None
    assert sampler.round().problem is None


class Look(NamedTuple):
    at: float
    token: int
    held_for: float | None


@pytest.mark.parametrize(
    ("looks", "rate"),
    [
        ([Look(0, 1, 0.5)], None),
        ([Look(0, 1, 0.5), Look(1, 1, 1.5)], 0.0),
        ([Look(0, 1, 0.5), Look(1, 2, 0.25)], 4.0),  # a grant 0.25 s ago; what was before is not known
        ([Look(0, 1, 0.5), Look(1, 2, None)], 1.0),  # it is free again
        ([Look(0, 1, 0.5), Look(1, 2, 9.0)], 1.0),  # the clock was set
        ([Look(0, 1, 0.5), Look(1, 2, 0.5), Look(2, 2, 1.5)], 0.9 / 1.45),
    ],
)
def test_the_rate_is_that_of_the_grants_in_the_time_that_looks_have_seen(looks: list[Look], rate: float | None) -> None:
    row = None
    for at, token, held_for in looks:
        row = next_row(row, LockInfo("a", "a:1", 1, 9.0, token, (), held_for=held_for), at)
    assert row is not None
    assert row.facts.get("tokens_per_second") == (rate if rate is None else pytest.approx(rate))


def test_the_rate_is_right_for_grants_at_random_times(seed: int) -> None:
    dice, granted, following, token, row = random.Random(seed), 0.0, 0.0, 0, None
    grants = seen = 0.0
    for second in range(1, 10_000):
        while following <= second:
            granted, token = following, token + 1
            following += dice.expovariate(3.0)
        row = next_row(row, LockInfo("a", "a:1", 1, 9.0, token, (), held_for=second - granted), second)
        grants, seen = grants + row.grants, seen + row.seen
    assert grants / seen == pytest.approx(3.0, rel=0.06)
