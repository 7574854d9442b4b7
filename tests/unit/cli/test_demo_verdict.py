"""The verdict of the demo is bad if a count is: one planted fault for each finding."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from relock.cli._demo import verdict
from relock.cli._demo.ledger import Entry
from relock.cli._demo.verdict import NEVER, Finding, History, Update

TTL = 2.0


def update(serial: int, **changes: Any) -> Update:
    moment = float(serial)
    plain = Update(Entry("w.1", serial, 10 + serial), moment, levels=2, levels_after=1, left=moment + 0.5)
    return evolve(plain, **changes)


def under() -> History:
    """Return three updates under the lock, and an entry of a process that was killed before it could report."""
    return History(
        [update(0), update(1), update(3)],
        [Entry("w.1", 0, 10), Entry("w.1", 1, 11), Entry("k.1", 0, 12), Entry("w.1", 3, 13)],
        killed={"k"},
        unfinished=[Update(Entry("k.1", 0, 12), 2.0, left=2.9)],
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
    assert bad(verdict.of_lock(under())) == []


def test_an_update_that_a_kill_broke_off_may_be_in_the_ledger_or_not() -> None:
    history = under()
    history.entries = [entry for entry in history.entries if entry.worker != "k.1"]
    assert bad(verdict.of_lock(history)) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda h: setattr(h, "entries", h.entries[1:]), LOST),
        (lambda h: setattr(h, "entries", [*h.entries, Entry("w.1", 3, 14)]), LOST),
        (lambda h: h.killed.clear(), LOST),
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
    assert what in bad(verdict.of_lock(history))


def with_permits() -> History:
    """Return updates with two permits; the third update ends as the fourth begins, and the last one by a kill."""
    entries = [Entry("w.1", serial, 10 + serial) for serial in range(4)]
    updates = [update(0), update(1, left=2.4), update(2, left=2.6), update(3, entered=2.6)]
    killed = Update(Entry("k.1", 0, 12), 3.0, left=4.0)
    return History(updates, [*entries, Entry("k.1", 1, 12)], killed={"k"}, unfinished=[killed])


PERMITS_LOST, PERMITS = "with the semaphore, none is lost", "with the semaphore, at most 2 at a time"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda _: None, []),
        (lambda h: setattr(h, "entries", h.entries[1:]), [PERMITS_LOST]),
        (lambda h: setattr(h, "entries", [*h.entries, h.entries[0]]), [PERMITS_LOST]),
        (lambda h: h.killed.clear(), [PERMITS_LOST]),
        (lambda h: h.updates.__setitem__(3, update(3, entered=2.3)), [PERMITS]),
        (lambda h: h.updates.__setitem__(0, update(0, left=2.1)), [PERMITS]),
        (lambda h: h.unfinished.append(Update(Entry("k.2", 1, 13), 3.0, left=4.0)), [PERMITS]),
        (lambda h: h.__init__([update(0), update(1)], h.entries[:2]), [PERMITS]),
        (lambda h: [h.updates.clear(), h.unfinished.clear()], [PERMITS_LOST, PERMITS]),
    ],
)
def test_each_fault_with_permits_makes_the_verdict_bad(change: Callable[[History], object], wrong: list[str]) -> None:
    """More at once than the limit are a fault, and so are fewer: the permits were not all in use."""
    history = with_permits()
    change(history)
    assert bad(verdict.of_holds(history, "semaphore", 2)) == wrong


def test_a_transfer_that_is_not_in_both_ledgers_is_lost() -> None:
    history = History([update(0), update(1)], 2 * [Entry("w.1", 0, 10), Entry("w.1", 1, 11)])
    assert bad(verdict.of_transfers(history)) == []
    history.entries = history.entries[1:]
    assert bad(verdict.of_transfers(history)) == ["two locks at once: no transfer is lost"]
    assert bad(verdict.of_transfers(History())) != [], "nothing was transferred"


def test_a_race_that_loses_nothing_shows_nothing() -> None:
    history = History([update(0), update(1, entered=0.1)], [Entry("w.1", 1, 11)])
    assert bad(verdict.of_no_lock(history)) == []
    history.entries = [Entry("w.1", 0, 10), Entry("w.1", 1, 11)]
    assert bad(verdict.of_no_lock(history)) != []


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
