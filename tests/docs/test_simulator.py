"""The pages tell how often each special kind of run is drawn, and how many runs the tests play."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from sim.doors import limited, orders, reading, several
from sim.liveness import closing, ended, mass, rested, strange, stuck
from sim.plan import Plan
from sim.special import apart, crossed, moved, plan_of, trusted
from sim.test_seeds import USUAL

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "internals" / "simulator.md"
TOLD = re.compile(r"\*\*1 run in (\d+): ([^*]+?)\.?\*\*")
SEEDS = 10_000
# In the order in which a seed draws one.
KINDS = {
    "masters move": moved,
    "hand-offs cross": crossed,
    "holders stay until their holds end": trusted,
    "clocks differ by many leases": apart,
    "waiting clients cannot act": stuck,
    "event loops are closed": ended,
    "clients are closed": closing,
    "strangers come": strange,
    "many waits end at one moment": mass,
    "callers take several locks": several,
    "callers take permits of one semaphore": limited,
    "callers read and write": reading,
    "callers run into deadlocks": orders,
    "the lock rests": rested,
}


def drawn(seed: int, plan: Plan) -> Iterator[str]:
    """Yield the names of the special kinds that the run of a seed is of."""
    yield from [name for name, kind in KINDS.items() if kind(seed) is not None][:1]
    if plan.wide:
        yield "more options"
    if plan.names:
        yield "names overflow the caches"
    if plan.has_notes:
        yield "locks have notes"
    if plan.is_blocked:
        yield "the log of one client is not read"


def test_each_special_kind_of_run_is_as_frequent_as_the_page_says() -> None:
    counts = Counter(name for seed in range(SEEDS) for name in drawn(seed, plan_of(seed, Random(seed))))
    told = {name: int(one_in) for one_in, name in TOLD.findall(PAGE.read_text())}
    assert told.keys() == counts.keys()
    assert {name: one_in for name, one_in in told.items() if not 0.8 < counts[name] * one_in / SEEDS < 1.25} == {}


def test_the_pages_say_how_many_runs_the_tests_play() -> None:
    assert f"The tests play the first {USUAL} of these seeds" in " ".join(PAGE.read_text().split())
    guarantees = (DOCS / "concepts" / "guarantees.md").read_text()
    assert f"Every test run plays {USUAL} runs" in " ".join(guarantees.split())
