"""The verdict of the demo is bad if a count is: one planted fault for each finding."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from relock.cli._demo import verdict
from relock.cli._demo.verdict import NEVER, Entry, Finding, History, Update

TTL = 2.0


def update(serial: int, **changes: Any) -> Update:
    moment = float(serial)
    plain = Update(Entry("w.1", serial, 10 + serial), moment, levels=2, levels_after=1, left=moment + 0.5)
    return evolve(plain, **changes)


def under() -> History:
    """Return three updates under the lock, and an entry of a process that was killed before it could report."""
    return History(
        updates=[update(0), update(1), update(3)],
        reads=[Update(Entry("k.1", 0, 12), 2.0, left=2.9)],
        entries=[Entry("w.1", 0, 10), Entry("w.1", 1, 11), Entry("k.1", 0, 12), Entry("w.1", 3, 13)],
    )


def bad(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if not finding.good]


LOST, ALONE, TOKENS, NESTED = (
    "with the lock, none is lost",
    "with the lock, at most 1 at a time",
    "fencing tokens rise",
    "nested holds are counted",
)


def test_a_good_history_has_a_good_verdict() -> None:
    assert bad(under().of_lock()) == []


def test_an_update_that_a_kill_broke_off_may_be_in_the_ledger_or_not() -> None:
    history = under()
    history.entries = [entry for entry in history.entries if entry.worker != "k.1"]
    assert bad(history.of_lock()) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda h: setattr(h, "entries", h.entries[1:]), LOST),
        (lambda h: setattr(h, "entries", [*h.entries, Entry("w.1", 3, 13)]), LOST),
        (lambda h: h.updates.clear(), LOST),
        (lambda h: h.updates.append(update(1, entered=0.4)), ALONE),
        (lambda h: h.updates.append(update(2, entered=2.5, left=2.6)), ALONE),
        (lambda h: setattr(h, "entries", [h.entries[1], h.entries[0], *h.entries[2:]]), TOKENS),
        (lambda h: setattr(h, "entries", [*h.entries[:3], Entry("w.1", 3, 12)]), TOKENS),
        (lambda h: h.updates.append(update(5, levels=1)), NESTED),
        (lambda h: h.updates.append(update(5, levels_after=2)), NESTED),
    ],
)
def test_each_fault_under_the_lock_makes_the_verdict_bad(change: Callable[[History], object], what: str) -> None:
    history = under()
    change(history)
    assert what in bad(history.of_lock())


def with_permits() -> History:
    """Return updates with two permits; the third update ends as the fourth begins, and the last one by a kill."""
    entries = [Entry("w.1", serial, 10 + serial) for serial in range(4)]
    updates = [update(0), update(1, left=2.4), update(2, left=2.6), update(3, entered=2.6)]
    killed = Update(Entry("k.1", 0, 12), 3.0, left=4.0)
    return History(updates=updates, reads=[killed], entries=[*entries, Entry("k.1", 1, 12)])


PERMITS_LOST, PERMITS = "with the semaphore, none is lost", "with the semaphore, at most 2 at a time"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda _: None, []),
        (lambda h: setattr(h, "entries", h.entries[1:]), [PERMITS_LOST]),
        (lambda h: setattr(h, "entries", [*h.entries, h.entries[0]]), [PERMITS_LOST]),
        (lambda h: h.updates.__setitem__(3, update(3, entered=2.3)), [PERMITS]),
        (lambda h: h.updates.__setitem__(0, update(0, left=2.1)), [PERMITS]),
        (lambda h: h.reads.append(Update(Entry("k.2", 1, 13), 3.0, left=4.0)), [PERMITS]),
        (lambda h: h.__init__(updates=[update(0), update(1)], entries=h.entries[:2]), [PERMITS]),
        (lambda h: [h.updates.clear(), h.reads.clear()], [PERMITS_LOST, PERMITS]),
    ],
)
def test_each_fault_with_permits_makes_the_verdict_bad(change: Callable[[History], object], wrong: list[str]) -> None:
    """More at once than the limit are a fault, and so are fewer: the permits were not all in use."""
    history = with_permits()
    change(history)
    assert bad(history.of_holds("semaphore", 2)) == wrong


def test_a_transfer_that_is_not_in_both_ledgers_is_lost() -> None:
    entries = [Entry("w.1", 0, 10), Entry("w.1", 1, 11)]
    history = History(copies=2, updates=[update(0), update(1)], entries=2 * entries)
    assert bad(history.of_losses("none is lost")) == []
    history.entries = history.entries[1:]
    assert bad(history.of_losses("none is lost")) == ["none is lost"]
    assert bad(History().of_losses("none is lost")) != [], "nothing was transferred"


def test_a_race_that_loses_nothing_shows_nothing() -> None:
    history = History(updates=[update(0), update(1, entered=0.1)], entries=[Entry("w.1", 1, 11)])
    assert bad(history.of_no_lock()) == []
    history.entries = [Entry("w.1", 0, 10), Entry("w.1", 1, 11)]
    assert bad(history.of_no_lock()) != []


def read(serial: int, asked: float, entered: float, left: float) -> Update:
    return Update(Entry("r.1", serial, 0), entered, asked=asked, left=left)


def with_readers() -> History:
    """Return two writes, two reads together between them, and two readers that waited behind the second writer.

    The demo read from 1.5 to 3.0, and saw a writer in the queue at 2.0.
    """
    reads = [read(0, 0.6, 1.6, 2.5), read(1, 0.7, 2.2, 2.4), read(2, 2.5, 3.6, 3.8), read(3, 2.6, 3.7, 3.9)]
    updates = [update(1), update(3, entered=3.1)]
    return History(updates=updates, reads=reads, entries=[update.entry for update in updates])


WRITES_LOST, WRITER_ALONE, TOGETHER, PASSED = (
    "with the read-write lock, none is lost",
    "a writer is alone",
    "readers read together",
    "no reader passes a waiting writer",
)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda _: None, []),
        (lambda h: setattr(h, "entries", h.entries[1:]), [WRITES_LOST]),
        (lambda h: h.__init__(reads=h.reads), [WRITES_LOST, WRITER_ALONE]),
        (lambda h: h.reads.append(read(4, 3.0, 3.2, 3.9)), [WRITER_ALONE]),
        (lambda h: h.reads.append(read(4, 0.0, 0.5, 1.2)), [WRITER_ALONE]),
        (lambda h: h.reads.append(read(4, 0.0, 0.5, 1.8)), [WRITER_ALONE]),
        (lambda h: h.updates.__setitem__(1, update(3, entered=1.4)), [WRITER_ALONE]),
        (lambda h: h.reads.__init__([read(2, 2.5, 3.6, 3.8), read(3, 2.6, 3.8, 3.9)]), [TOGETHER]),
        (lambda h: h.reads.append(read(4, 2.1, 2.6, 2.7)), [PASSED]),
        (lambda h: h.reads.__init__(h.reads[:2]), [PASSED]),
    ],
)
def test_each_fault_of_readers_and_writers_makes_the_verdict_bad(
    change: Callable[[History], object], wrong: list[str]
) -> None:
    history = with_readers()
    change(history)
    assert bad([*history.of_readers(), history.of_queue(awaited=2.0, released=3.0)]) == wrong


def passed(worker: str, number: int, asked: float, entered: float) -> Update:
    return Update(Entry(worker, number, 0), entered, asked=asked)


@pytest.mark.parametrize(
    ("updates", "good"),
    [
        ([passed("a.1", 0, 1.0, 3.1), passed("b.1", 0, 3.0, 3.0)], True),
        ([passed("a.1", 0, 1.0, 3.1), passed("b.1", 0, 3.0, 3.0), passed("a.1", 1, 4.0, 6.0)], True),
        ([passed("a.1", 0, 1.0, 2.9), passed("b.1", 0, 3.0, 3.0)], False),
        ([passed("a.1", 0, 1.0, 3.1), passed("b.1", 0, 3.0, 3.0), passed("c.1", 0, 2.0, 2.9)], False),
        ([passed("a.1", 0, 1.0, 3.1), passed("a.1", 1, 4.0, 5.0)], False),
        ([], False),
    ],
    ids=["all met", "the second round was broken off", "one early", "one more, and early", "never two", "nobody"],
)
def test_who_goes_on_before_all_have_arrived_makes_the_verdict_bad(updates: list[Update], good: bool) -> None:
    """Each worker arrived at the time `asked`; the latch let it pass at the time `entered`."""
    assert bad(History(updates=updates).of_latch(2)) == ([] if good else [LATCH])


def ring() -> History:
    """Return the transfers of two callers; the first one got the error at 3.0, and had both locks afterwards."""
    updates = [Update(Entry("a.1", 1, 5), 3.2, left=3.3), Update(Entry("b.1", 1, 4), 3.0, left=3.1)]
    victim = Update(Entry("a.1", 0, 0), 3.0, asked=0.5)
    return History(copies=2, updates=updates, victims=[victim], entries=2 * [update.entry for update in updates])


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (lambda _: None, True),
        (lambda h: h.victims.clear(), False),
        (lambda h: h.victims.append(h.victims[0]), False),
        (lambda h: h.updates.pop(), False),
        (lambda h: h.updates.__setitem__(1, Update(Entry("b.1", 1, 4), 1.0, left=1.1)), False),
        (lambda h: setattr(h, "entries", h.entries[1:]), False),
        (lambda h: h.__init__(copies=2), False),
    ],
    ids=["found", "not found", "two victims", "one never went on", "one passed the other", "one lost", "nothing"],
)
def test_each_fault_of_a_deadlock_makes_the_verdict_bad(change: Callable[[History], object], good: bool) -> None:
    history = ring()
    change(history)
    assert bad(history.of_deadlock()) == ([] if good else [DEADLOCK])


LATCH, DEADLOCK = "latch: nobody goes on before all have arrived", "deadlock: one victim, and then all go on"
KEPT, BLOCKED = "a long hold is renewed", "a blocked event loop keeps its hold"
HOLDER = "holder killed: its lease ends, the queue goes on"
PERMIT = "holder of a permit killed: its lease ends, the queue goes on"
WAITER = "waiter killed: nobody waits for it"
CANCELLED = "waiter cancelled: it leaves the queue"
OTHERS = "masters killed: the others go on"
VOTES = "masters back, empty: no vote before every lease is over"


@pytest.mark.parametrize(
    ("findings", "wrong"),
    [
        ([verdict.of_long_hold(TTL, 2.5, 0, is_blocked=False)], []),
        ([verdict.of_long_hold(TTL, 1.9, 0, is_blocked=False)], [KEPT]),
        ([verdict.of_long_hold(TTL, 2.5, 1, is_blocked=False)], [KEPT]),
        ([verdict.of_long_hold(TTL, 2.5, 0, is_blocked=True)], []),
        ([verdict.of_long_hold(TTL, 1.9, 0, is_blocked=True)], [BLOCKED]),
        ([verdict.of_killed_holder(1.4, 1.41)], []),
        ([verdict.of_killed_holder(1.4, 1.3)], [HOLDER]),
        ([verdict.of_killed_holder(1.4, 3.5)], [HOLDER]),
        ([verdict.of_killed_holder(0.0, 0.0)], [HOLDER]),
        ([verdict.of_killed_holder(1.4, NEVER)], [HOLDER]),
        ([verdict.of_killed_holder(1.4, 1.3, "holder of a permit")], [PERMIT]),
        ([verdict.of_killed_waiter(3, 0.001)], []),
        ([verdict.of_killed_waiter(3, 2.1)], [WAITER]),
        ([verdict.of_killed_waiter(0, 0.001)], [WAITER]),
        ([verdict.of_killed_waiter(3, NEVER)], [WAITER]),
        ([verdict.of_cancelled_waiter(0.001, 0.005, 0.001)], []),
        ([verdict.of_cancelled_waiter(2.1, 0.005, 0.001)], [CANCELLED]),
        ([verdict.of_cancelled_waiter(0.001, 2.1, 0.001)], [CANCELLED]),
        ([verdict.of_cancelled_waiter(0.001, NEVER, 0.001)], [CANCELLED]),
        ([verdict.of_cancelled_waiter(0.001, 0.005, 2.1)], [CANCELLED]),
        ([verdict.of_cancelled_waiter(0.001, 0.005, NEVER)], [CANCELLED]),
        (verdict.of_masters(TTL, 0.9, [3.1, 3.2], [3.1, 1.2, 1.9], 3.3), []),
        (verdict.of_masters(TTL, 0.9, [3.1, 3.2], [], 1.0), [OTHERS]),
        (verdict.of_masters(TTL, 0.9, [3.1, 3.2], [2.1, 3.0], 3.3), [OTHERS]),
        (verdict.of_masters(TTL, 0.9, [3.1, 3.2], [0.5, 2.6], 3.3), [OTHERS]),
        (verdict.of_masters(TTL, 0.9, [3.1, 3.2], [0.5, 1.1], 3.3), [OTHERS]),
        (verdict.of_masters(TTL, 0.9, [1.9, 3.2], [1.2, 1.9], 3.3), [VOTES]),
        (verdict.of_masters(TTL, 0.9, [3.1, 5.0], [1.2, 2.9], 4.0), [VOTES]),
        (verdict.of_masters(TTL, 0.9, [3.1, NEVER], [1.2, 1.9], 3.3), [VOTES]),
    ],
)
def test_each_fault_makes_the_verdict_bad(findings: list[Finding], wrong: list[str]) -> None:
    assert bad(findings) == wrong
