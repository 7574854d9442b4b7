"""The end of a session: its waiters leave the queues of all masters that can be reached."""

from types import SimpleNamespace
from typing import Any

import pytest

from relock._core.effects import Answer, Ask, Failure
from relock._keys import lock_keys
from relock._runtime.session.closing import _leave_queues
from relock._runtime.wakeups.waiter import Waiter

LEFT, ABSENT = [[b"left", 1]], [[b"absent", 1]]
CONNECTING: Answer = [Failure("c", "it is being connected", sent=False)]
SILENT: Answer = [Failure("c", "it has not answered", sent=True)]


class Leaving:
    """Session whose only waiter leaves the queues of three masters, which give `rounds` of answers."""

    node_timeout = 1.0

    def __init__(self, *rounds: list[Answer], down: bool = False) -> None:
        self.rounds, self.down, self.asked, self.now = list(rounds), down, 0, 0.0
        self.platform: Any = SimpleNamespace(sleep=self.sleep)
        waiter: Any = SimpleNamespace(keys=lock_keys("lock", "a"), owner=b"me:1")
        self.waiters: list[Waiter] = [waiter]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def is_down(self, master: int) -> bool:
        return self.down and master == 2

    def ask_shielded(self, _ask: Ask) -> list[Answer]:
        self.asked += 1
        return self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]

    def leave(self) -> list[Waiter]:
        session: Any = self
        return _leave_queues(session, self.waiters)


def test_a_master_that_is_being_connected_is_asked_again_and_the_other_answers_stay() -> None:
    session = Leaving([LEFT, LEFT, CONNECTING], [ABSENT, ABSENT, CONNECTING], [ABSENT, ABSENT, LEFT])
    assert session.leave() == []
    assert session.asked == 3


def test_a_waiter_that_one_master_no_longer_has_may_have_the_lock() -> None:
    session = Leaving([LEFT, LEFT, CONNECTING], [ABSENT, ABSENT, ABSENT])
    assert session.leave() == session.waiters


@pytest.mark.parametrize(("third", "down"), [(SILENT, False), (CONNECTING, True), (LEFT, False)])
def test_no_master_is_asked_again_that_was_asked_or_is_down(third: Answer, *, down: bool) -> None:
    session = Leaving([LEFT, LEFT, third], down=down)
    assert session.leave() == []
    assert session.asked == 1


def test_a_master_that_is_not_connected_in_time_is_left_out() -> None:
    session = Leaving([LEFT, LEFT, CONNECTING])
    assert session.leave() == []
    assert session.now == pytest.approx(session.node_timeout, abs=0.02)
