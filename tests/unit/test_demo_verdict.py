"""The verdict of the demo is bad if the history is: one planted fault for each finding."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from relock.cli._demo.history import (
    History,
    HolderKilled,
    Kept,
    MastersKilled,
    Record,
    Update,
    WaiterCancelled,
    WaiterKilled,
    longest_gap,
    moved,
    verdict,
)
from relock.cli._demo.ledger import Entry

TTL = 2.0


def update(serial: int, **changes: Any) -> Update:
    moment = float(serial)
    plain = Update("w.1", 10 + serial, moment, serial=serial, levels=2, levels_after=1, left=moment + 0.5)
    return evolve(plain, **changes)


def good() -> Record:
    """A record with nothing wrong in it; under the lock three updates, and an entry of a process that was killed."""
    return Record(
        without=History([update(0), update(1, entered=0.1)], [Entry("w.1", 1, 0)]),
        under=History(
            [update(0), update(1), update(3)],
            [Entry("w.1", 0, 10), Entry("w.1", 1, 11), Entry("k.1", 0, 12), Entry("w.1", 3, 13)],
            killed={"k"},
            unfinished=[Update("k.1", 12, 2.0, left=2.9)],
        ),
        kept=Kept(TTL, 2.5, 0),
        holder=HolderKilled(1.4, 1.41),
        waiter=WaiterKilled(3, 0.001),
        masters=MastersKilled(2, 5, TTL, down=0.9, votes=[3.1, 3.2], turns=500, gap=0.1),
        kills_masters=True,
        seconds=11.0,
    )


def good_with_tasks() -> Record:
    """The same, with a holder that blocked its event loop and a waiter that was cancelled."""
    record = good()
    record.is_asyncio = True
    record.kept = Kept(TTL, 2.6, 0, loop_stood=2.5)
    record.cancelled = WaiterCancelled(call=0.0002, place=0.005, moved=0, handoff=0.001)
    return record


def under(change: Callable[[History], object]) -> Callable[[Record], object]:
    def apply(record: Record) -> None:
        assert record.under is not None
        change(record.under)

    return apply


def masters(**changes: Any) -> Callable[[Record], object]:
    def apply(record: Record) -> None:
        assert record.masters is not None
        record.masters = evolve(record.masters, **changes)

    return apply


def bad(record: Record) -> list[str]:
    return [finding.what for finding in verdict(record) if not finding.good]


def test_a_good_record_has_a_good_verdict() -> None:
    assert bad(good()) == []


def test_an_update_that_a_kill_broke_off_may_be_in_the_ledger_or_not() -> None:
    record = good()
    assert record.under is not None
    record.under.entries = [entry for entry in record.under.entries if entry.worker != "k.1"]
    assert bad(record) == []


LOST, ALONE, TOKENS, NESTED = (
    "with the lock, none is lost",
    "one at a time",
    "fencing tokens rise",
    "nested holds are counted",
)
KEPT = "a long hold is renewed"
HOLDER = "holder killed: its lease ends, the queue goes on"
WAITER = "waiter killed: nobody waits for it"
OTHERS = "masters killed: the others go on"
VOTES = "masters back, empty: no vote before every lease is over"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (under(lambda h: setattr(h, "entries", h.entries[1:])), LOST),
        (under(lambda h: setattr(h, "entries", [*h.entries, Entry("w.1", 3, 14)])), LOST),
        (under(lambda h: h.killed.clear()), LOST),
        (under(lambda h: h.updates.clear()), LOST),
        (under(lambda h: h.updates.append(update(1, entered=0.4))), ALONE),
        (under(lambda h: h.updates.append(update(2, entered=2.5))), ALONE),
        (under(lambda h: setattr(h, "entries", [h.entries[1], h.entries[0], *h.entries[2:]])), TOKENS),
        (under(lambda h: setattr(h, "entries", [*h.entries[:3], Entry("w.1", 3, 12)])), TOKENS),
        (under(lambda h: h.updates.append(update(5, levels=1))), NESTED),
        (under(lambda h: h.updates.append(update(5, levels_after=2))), NESTED),
        (lambda r: setattr(r, "under", None), LOST),
        (lambda r: setattr(r, "kept", Kept(TTL, 1.9, 0)), KEPT),
        (lambda r: setattr(r, "kept", Kept(TTL, 2.5, 1)), KEPT),
        (lambda r: setattr(r, "kept", None), KEPT),
        (lambda r: setattr(r, "holder", HolderKilled(1.4, 1.3)), HOLDER),
        (lambda r: setattr(r, "holder", HolderKilled(1.4, 2.5)), HOLDER),
        (lambda r: setattr(r, "holder", HolderKilled(0.0, 0.0)), HOLDER),
        (lambda r: setattr(r, "holder", HolderKilled(1.4, None)), HOLDER),
        (lambda r: setattr(r, "waiter", WaiterKilled(3, 1.1)), WAITER),
        (lambda r: setattr(r, "waiter", WaiterKilled(0, 0.001)), WAITER),
        (lambda r: setattr(r, "waiter", WaiterKilled(3, None)), WAITER),
        (lambda r: setattr(r, "waiter", None), WAITER),
        (masters(turns=0), OTHERS),
        (masters(gap=1.1), OTHERS),
        (masters(votes=[1.9, 3.2]), VOTES),
        (masters(votes=[-5.0, -5.0]), VOTES),
        (masters(votes=[3.2]), VOTES),
        (masters(votes=[3.1, 4.0]), VOTES),
        (lambda r: setattr(r, "masters", None), VOTES),
        (lambda r: r.failures.append("w ended: why"), "no worker failed"),
        (lambda r: setattr(r, "seconds", 20.1), "done in time"),
    ],
)
def test_each_fault_makes_the_verdict_bad(change: Callable[[Record], object], what: str) -> None:
    record = good()
    change(record)
    assert what in bad(record)


BLOCKED = "a blocked event loop keeps its hold"
CANCELLED = "waiter cancelled: it leaves the queue"


def test_a_good_record_of_tasks_has_a_good_verdict() -> None:
    assert bad(good_with_tasks()) == []


def cancelled(**changes: Any) -> Callable[[Record], object]:
    def apply(record: Record) -> None:
        assert record.cancelled is not None
        record.cancelled = evolve(record.cancelled, **changes)

    return apply


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: setattr(r, "kept", Kept(TTL, 2.6, 0, loop_stood=1.9)), BLOCKED),
        (lambda r: setattr(r, "kept", Kept(TTL, 2.6, 0)), BLOCKED),
        (lambda r: setattr(r, "kept", Kept(TTL, 1.9, 0, loop_stood=2.5)), BLOCKED),
        (lambda r: setattr(r, "kept", Kept(TTL, 2.6, 1, loop_stood=2.5)), BLOCKED),
        (lambda r: setattr(r, "kept", None), BLOCKED),
        (cancelled(call=1.1), CANCELLED),
        (cancelled(place=1.1), CANCELLED),
        (cancelled(place=None), CANCELLED),
        (cancelled(moved=1), CANCELLED),
        (cancelled(handoff=1.1), CANCELLED),
        (cancelled(handoff=None), CANCELLED),
        (lambda r: setattr(r, "cancelled", None), CANCELLED),
    ],
)
def test_each_fault_of_tasks_makes_the_verdict_bad(change: Callable[[Record], object], what: str) -> None:
    record = good_with_tasks()
    change(record)
    assert bad(record) == [what]


def test_threads_are_not_judged_by_what_only_tasks_can_do() -> None:
    assert not {BLOCKED, CANCELLED} & {finding.what for finding in verdict(good())}


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [("abc", "bc", 0), ("abc", "bcd", 0), ("abc", "abc", 0), ("abc", "c", 1), ("abc", "cb", 2), ("abc", "ab", 0)],
)
def test_whoever_moves_beside_the_cancelled_waiter_is_counted(before: str, after: str, count: int) -> None:
    assert moved(list(before), list(after)) == count


def test_one_master_is_not_judged_by_what_only_several_have() -> None:
    record = good()
    record.masters, record.kills_masters = None, False
    assert bad(record) == []
    assert not {OTHERS, VOTES} & {finding.what for finding in verdict(record)}


def test_several_masters_may_take_longer() -> None:
    record = good()
    record.seconds, record.seconds_max = 24.0, 25.0
    assert bad(record) == []


@pytest.mark.parametrize(
    ("moments", "longest"),
    [([], 10.0), ([1.0, 3.0, 9.0], 6.0), ([9.0, 3.0, 4.0], 5.0), ([2.0], 8.0), ([-5.0, 20.0], 10.0)],
)
def test_the_longest_gap_counts_from_the_beginning_to_the_end(moments: list[float], longest: float) -> None:
    assert longest_gap(moments, 0.0, 10.0) == longest


def test_a_show_in_which_nothing_was_lost_without_the_lock_shows_nothing() -> None:
    record = good()
    assert record.without is not None
    record.without.entries = [Entry("w.1", 0, 0), Entry("w.1", 1, 0)]
    assert bad(record) == ["without a lock, updates are lost, as expected"]
