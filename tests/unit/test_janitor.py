"""What the janitor does again, and what not: its tasks, carried out by hand."""

from typing import Any

import pytest

from relock._core.clocks import Step
from relock._core.effects import Failure
from relock._runtime.janitor import Accuse, Janitor
from relock._runtime.platform import THREADS

UNTOLD = Failure("a", "it is being connected", sent=False)


class FakeSession:
    """Three masters, of which the first is accused; what it says of that is written down."""

    prefix, node_timeout, platform = "lock", 0.1, THREADS

    def __init__(self, says: Any) -> None:
        self.masters = (FakeMaster(), FakeMaster(), FakeMaster())
        self.steps = [Step(10.0, 0, 5.0, 0)]
        self.says = says

    def clock(self) -> float:
        return 10.0

    def run_shielded(self, _flow: Any) -> list[Any]:
        return [(self.says,), ([b"absent", 0],), ([b"absent", 0],)]


class FakeMaster:
    """One of them."""

    index, address, incarnation = 0, "a", b"run:repl"


@pytest.mark.parametrize(
    ("says", "again"), [(UNTOLD, True), ([b"quarantined", 0, 1], False), ([b"absent", 0], False)], ids=str
)
def test_a_master_that_could_not_be_told_of_its_step_is_told_again(says: Any, again: bool) -> None:
    session: Any = FakeSession(says)
    janitor = Janitor(session)
    task = Accuse(session.masters[0], 5.0)
    janitor._act(task)
    assert [due.task for due in janitor._due] == ([Accuse(session.masters[0], 5.0, 2 * task.pause)] if again else [])
    for due in janitor._due:
        assert due.at == 10.0 + task.pause


def test_whoever_can_not_be_told_for_long_is_given_up() -> None:
    session: Any = FakeSession(UNTOLD)
    janitor = Janitor(session)
    janitor._act(Accuse(session.masters[0], 5.0, 100.0))
    assert janitor._due == []
