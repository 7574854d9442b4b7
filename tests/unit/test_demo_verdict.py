"""The verdict of the demo is bad where the history is: one planted fault for each finding."""

from typing import Any

import pytest
from attrs import evolve

from relock.cli._demo.history import Finding, History, Update, verdict
from relock.cli._demo.ledger import Entry


def update(serial: int, **changes: Any) -> Update:
    moment = float(serial)
    plain = Update("w.0", serial, token=10 + serial, levels=2, entered=moment, left=moment + 0.5)
    return evolve(plain, **changes)


def under() -> History:
    """A history under the lock with nothing wrong in it: three updates, and one of a worker that was killed."""
    updates = [update(0), update(1), update(2)]
    entries = [Entry("w.0", 0, 10), Entry("w.0", 1, 11), Entry("k.0", 0, 12), Entry("w.0", 2, 13)]
    return History(updates, entries, killed={"k.0"}, heir_after=1.6, handover_after=0.01)


def without() -> History:
    """A history without a lock, where one of two updates is lost."""
    return History([update(0), update(1, entered=0.1)], [Entry("w.0", 1, 0)])


def bad(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if not finding.good]


def test_a_good_history_has_a_good_verdict() -> None:
    assert bad(verdict(without(), under(), expected=3)) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda h: h.updates.pop(), "with it, updates made"),
        (lambda h: h.entries.pop(0), "with it, updates lost"),
        (lambda h: h.entries.append(Entry("w.0", 2, 14)), "entries that nobody made"),
        (lambda h: h.killed.clear(), "entries that nobody made"),
        (lambda h: h.updates.__setitem__(1, update(1, entered=0.4)), "overlaps"),
        (lambda h: h.entries.__setitem__(1, Entry("w.0", 1, 10)), "tokens that do not rise"),
        (lambda h: h.updates.__setitem__(1, update(1, levels=1)), "nested holds miscounted"),
        (lambda h: setattr(h, "heir_after", 4.6), "holder killed: the next one had it"),
        (lambda h: setattr(h, "heir_after", None), "holder killed: the next one had it"),
        (lambda h: setattr(h, "handover_after", 1.1), "waiter killed: the one behind it had it"),
    ],
)
def test_each_fault_makes_the_verdict_bad(change: Any, what: str) -> None:
    history = under()
    change(history)
    assert what in bad(verdict(without(), history, expected=3))


def test_a_show_in_which_nothing_was_lost_without_the_lock_shows_nothing() -> None:
    nothing_lost = without()
    nothing_lost.entries = [Entry("w.0", 0, 0), Entry("w.0", 1, 0)]
    assert "without the lock" in bad(verdict(nothing_lost, under(), expected=3))
