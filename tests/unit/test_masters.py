"""What a master's grants to waiters are worth, by what is known of its clock."""

from typing import Any, cast

import pytest

from relock._core.clocks import Offset
from relock._core.quorum import NEVER
from relock._options import ClientOptions
from relock._runtime import masters
from relock._runtime.masters import Master, MasterListener, Opener
from relock._runtime.nodes import Node
from relock._runtime.platform import THREADS

SERVER, OTHER = b"run:repl", b"other:repl"


class FakeNode:
    """Leads nowhere."""

    address = "a"


def make() -> Master:
    """One of several masters; at our time 10 its clock showed 110, and that is known to the microsecond."""
    made = Master(0, cast("Node", FakeNode()), ClientOptions(restart_guard=30.0), THREADS, MasterListener())
    made.opener = Opener(made)
    made.see_incarnation(SERVER)
    made.offset.see(100.0, 100.0, 10.0)
    return made


def test_a_grant_has_its_time_from_a_sample_of_the_same_server() -> None:
    assert make().granted_at(110_000_000, SERVER, 10.0) == 10.0
    assert make().granted_at(110_000_000, OTHER, 10.0) == NEVER


def test_a_grant_of_a_master_whose_clock_stepped_a_moment_ago_counts_for_nothing() -> None:
    """It may have ended a lease early; a request of our own would count for nothing, too."""
    master = make()
    step = master.offset.see(105.0, 105.0, 10.5)
    master.stepped(step, [b"tended", 115_500_000])
    assert master.granted_at(116_000_000, SERVER, 11.0) == NEVER
    master.trust()
    assert master.granted_at(116_000_000, SERVER, 11.0) == pytest.approx(11.0, abs=0.01)


def test_another_servers_samples_are_gone_before_its_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may be judged between any two steps of a thread that connects."""
    master = make()
    seen: list[float] = []

    def offset(drift_factor: float) -> Any:
        seen.append(master.granted_at(110_000_000, OTHER, 10.0))
        return Offset(drift_factor)

    monkeypatch.setattr(masters, "Offset", offset)
    master.see_incarnation(OTHER)
    assert seen == [NEVER]
    assert master.granted_at(110_000_000, OTHER, 10.0) == NEVER
