"""The way of calls through a Cluster: the nodes that are asked, and where calls go that a node does not serve."""

from collections.abc import Sequence

from attrs import define

from relock._core.asking import Part
from relock._core.effects import Answer, Ask, Failure, Reply
from relock._core.flows.release import leave_call
from relock._core.routing import HOPS_MAX, Routed
from relock._keys import lock_keys
from relock._scripts import Call, load

UNTIL = 1.0


@define(eq=False)
class FakeNode:
    """A node."""

    address: str
    index: int = 0
    no_reply_yet: Answer = (Failure("a", "silent", awaited=True),)


A, B = FakeNode("a"), FakeNode("b")
UNSERVED = Failure("a", "CLUSTERDOWN", sent=False)
SENT_ON = {"moved to a": (A, False), "moved to b": (B, False), "ask b": (B, True)}
NODES: dict[str, FakeNode | Failure] = {"at a": A, "also at a": A, "at b": B, "nowhere": UNSERVED}


def node_of(call: Call) -> FakeNode | Failure:
    return NODES[call.keys.name]


def sent_on(node: FakeNode, failure: Failure) -> tuple[FakeNode, bool] | None:
    assert node in (A, B)
    return SENT_ON.get(failure.why)


def routed(*names: str) -> Routed[FakeNode]:
    return Routed(Ask(tuple(leave_call(lock_keys("lock", name), b"me:1") for name in names), UNTIL), node_of, sent_on)


def reply(number: int) -> Reply:
    return [b"left", number]


def moved(node: FakeNode) -> Failure:
    return Failure("a", f"moved to {node.address}", sent=False)


def shown(parts: Sequence[Part[FakeNode]]) -> list[tuple[str, list[str], bool]]:
    """Return the only node of each part, its calls, and whether it is told that it is about to get their slot."""
    return [(node.address, [call.keys.name for call in round_.calls], round_.asking) for ((node,), round_) in parts]


def test_the_calls_of_one_node_are_one_part() -> None:
    way = routed("at a", "at b", "also at a")
    of_a, of_b = parts = way.parts(0.0)
    assert shown(parts) == [("a", ["at a", "also at a"], False), ("b", ["at b"], False)]
    of_a.round.answered(0, (reply(0), reply(2)))
    assert isinstance(way[1], Failure)
    of_b.round.answered(0, (reply(1),))
    assert list(way) == [reply(0), reply(1), reply(2)]
    assert not way.parts(0.0)


def test_a_call_that_no_node_serves_is_not_asked() -> None:
    way = routed("nowhere", "at b")
    assert shown(way.parts(0.0)) == [("b", ["at b"], False)]
    assert way[0] == UNSERVED
    assert len(way) == 2


def test_only_what_a_node_has_sent_on_is_asked_again() -> None:
    way = routed("at a", "also at a")
    (part,) = way.parts(0.0)
    part.round.answered(0, (reply(0), moved(B)))
    (part,) = parts = way.parts(0.5)
    assert shown(parts) == [("b", ["also at a"], False)]
    assert part.round.sent_at == 0.5
    part.round.answered(0, (reply(1),))
    assert list(way) == [reply(0), reply(1)]
    assert not way.parts(0.5)


def test_a_node_that_is_about_to_get_the_slot_is_told_so() -> None:
    way = routed("at a")
    (part,) = way.parts(0.0)
    assert part.round.is_simple
    part.round.answered(0, (Failure("a", "ask b", sent=False),))
    (part,) = parts = way.parts(0.0)
    assert shown(parts) == [("b", ["at a"], True)]
    assert not part.round.is_simple, "the call has a word before it"


def test_a_call_is_sent_on_only_so_often() -> None:
    way = routed("at a")
    for hop in range(HOPS_MAX):
        (part,) = way.parts(0.0)
        part.round.answered(0, (moved((B, A)[hop % 2]),))
    assert not way.parts(0.0)
    assert way[0] == moved((B, A)[(HOPS_MAX - 1) % 2])


def test_a_call_is_sent_on_only_while_there_is_time() -> None:
    way = routed("at a")
    (part,) = way.parts(UNTIL)
    part.round.answered(0, (moved(B),))
    assert not way.parts(UNTIL)


def test_a_call_that_is_sent_nowhere_is_not_sent_on() -> None:
    way = routed("at a")
    (part,) = way.parts(0.0)
    part.round.answered(0, (Failure("a", "TRYAGAIN", sent=False),))
    assert not way.parts(0.0)


def test_what_comes_later_is_seen_too() -> None:
    way = routed("at a")
    (part,) = way.parts(0.0)
    assert not way.parts(0.0)
    part.round.answered(0, (reply(7),))
    assert list(way) == [reply(7)]


def test_the_calls_pass_no_waiter_over_and_end_what_they_are_to_end() -> None:
    """A node's PUBLISH does not count the listeners on other nodes."""
    call = load("release").call(lock_keys("lock", "at a"), owner=b"me:1", fence=0, token_ms=0, hand=1)
    (part,) = Routed(Ask((call,), UNTIL, ends=True), node_of, sent_on).parts(0.0)
    assert part.round.script is call.script.on_cluster is not call.script
    assert part.round.ends
