"""Questions about holds that were ended by force, as other clients say: few, and no longer under way than need be."""

from types import SimpleNamespace
from typing import Any

import pytest

from relock._core.book import Book
from relock._core.effects import Ask, Failure
from relock._core.flows.extend import find_out
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import NEVER, Grant
from relock._events import LossCode
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner
from relock._runtime.session.reports import Reports

EXTENDED, ABSENT, SILENT = [b"extended", 0], [b"absent", 0], Failure("c", "silent")
OPTIONS = ClientOptions()


def hold(serial: int = 1) -> Hold:
    """Return a hold of the lock ``a`` on three masters."""
    spec = LockSpec.of(lock_keys("lock", "a"), ("a", "b", "c"), OPTIONS.for_lock(), OPTIONS)
    grant = Grant(7, 9.0, [9.0] * 3, True, [[[b"granted", 0, 7]]] * 3)
    one = Hold(spec, b"me:%d" % serial, Owner(serial, None, None), grant, 1)
    one.deadline = 9.0
    return one


@pytest.mark.parametrize(
    ("answers", "is_certain"),
    [
        ([ABSENT, ABSENT, SILENT], True),
        ([EXTENDED, SILENT, EXTENDED], True),
        ([EXTENDED, ABSENT, SILENT], False),
        ([ABSENT, [b"void", 0], SILENT], False),
        ([SILENT, SILENT, SILENT], False),
    ],
)
def test_a_master_that_hangs_is_waited_for_only_if_its_answer_counts(answers: list[Any], is_certain: bool) -> None:
    """The janitor waits meanwhile, and with it the heartbeats of waiters."""
    ask: Any = next(find_out((hold(),), lambda: 1.0))
    assert ask.is_certain([[answer] for answer in answers]) is is_certain


def test_one_request_asks_for_all_holds_and_is_over_when_each_is_certain() -> None:
    flow = find_out((hold(1), hold(2)), lambda: 1.0)
    ask: Any = next(flow)
    assert len(ask.calls) == 2
    assert not ask.is_certain([[EXTENDED, SILENT], [EXTENDED, EXTENDED], [SILENT, ABSENT]])
    assert ask.is_certain([[EXTENDED, ABSENT], [EXTENDED, SILENT], [SILENT, ABSENT]])


def test_a_hold_that_a_quorum_has_was_not_ended_by_force() -> None:
    """A later loss has a reason of its own."""
    one, gone = hold(1), hold(2)
    one.is_forced = gone.is_forced = True
    flow = find_out((one, gone), lambda: 1.0)
    next(flow)
    with pytest.raises(StopIteration):
        flow.send([[EXTENDED, ABSENT], [EXTENDED, ABSENT], [ABSENT, SILENT]])
    assert (one.deadline, gone.deadline) == (9.0, NEVER)
    assert (one.reason_if_absent, gone.reason_if_absent) == (LossCode.FORGOTTEN, LossCode.FORCED)


class Session:
    """Session whose janitor does its tasks when it is told to, and whose masters do not have the holds any more."""

    def __init__(self) -> None:
        self.closed = False
        self.holds, self.tasks, self.asks = Book(), list[Any](), list[Ask]()
        self.janitor, self.watchdog = SimpleNamespace(hand=self.tasks.append), SimpleNamespace(poke=lambda: None)

    def clock(self) -> float:
        return 1.0

    def run_shielded(self, flow: Any) -> None:
        self.asks.append(next(flow))
        with pytest.raises(StopIteration):
            flow.send([[ABSENT] * len(self.asks[-1].calls)] * 3)

    def work(self) -> None:
        """Do the janitor's tasks."""
        for task in self.tasks:
            task.do()


def test_messages_about_many_holds_cost_one_request() -> None:
    session: Any = Session()
    for serial in (1, 2, 3):
        session.holds["a", serial] = hold(serial)
    reports = Reports(session)
    for _ in range(3):  # masters
        for serial in (1, 2):
            reports.ended("a", b"me:%d" % serial)
    reports.ended("a", b"me:4")
    session.work()
    (ask,) = session.asks
    assert len(ask.calls) == 2
    assert [one.deadline for one in session.holds.values()] == [NEVER, NEVER, 9.0]


def test_a_message_that_comes_once_more_costs_nothing_if_the_hold_is_known_to_have_ended() -> None:
    session: Any = Session()
    session.holds["a", 1] = hold(1)
    for _ in range(3):
        Reports(session).ended("a", b"me:1")
        session.work()
    assert len(session.asks) == 1
