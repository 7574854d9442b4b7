"""The simulator's node of a Cluster refuses the same scripts as a real one while a slot moves from node to node.

Redis before 7.0 sends a script on whose keys are on two nodes (``ASK``), and the other node refuses it (``TRYAGAIN``).
"""

from collections.abc import Sequence
from typing import Any

import pytest
import redis
from attrs import evolve, frozen
from redis.crc import key_slot
from sim.nodes import ClusterNode, Nodes
from support.cluster import ClusterOfServers, knows_sharded_channels

from relock._scripts import load
from relock.testing._conditions import Conditions
from relock.testing._master import ReplyError
from relock.testing._world import World

TOUCH = "return 1"
READ = "return redis.call('EXISTS', KEYS[1])"
READ_ANOTHER = "return redis.call('EXISTS', KEYS[1] .. ':missing')"
DELETE_AND_READ = "redis.call('DEL', KEYS[1]) return redis.call('EXISTS', KEYS[1])"
WRITE_ANOTHER = "redis.call('SET', KEYS[1] .. ':new', 'x') return 1"
DELETE_TWO = "return redis.call('DEL', KEYS[1], KEYS[2])"


@frozen
class Step:
    """One script that a node is asked to run.

    Attributes:
        node: ``source`` or ``target``; a client that was sent on with ``ASK`` is ``asking`` the target.
        script: the script's source.
        keys: the endings of its keys.
        outcome: what it returns, or the beginning of the error.
    """

    node: str
    script: str
    keys: Sequence[str]
    outcome: object


BEFORE_ANY_KEY_HAS_MOVED = (
    Step("source", TOUCH, ["a"], 1),
    Step("source", TOUCH, ["a", "b"], 1),
    Step("source", TOUCH, ["a", "none"], "TRYAGAIN"),
    Step("source", TOUCH, ["none"], "ASK"),
    Step("source", TOUCH, ["none", "neither"], "ASK"),
    Step("source", READ_ANOTHER, ["a"], "a non local key"),
    Step("source", WRITE_ANOTHER, ["a"], "a non local key"),
    Step("source", DELETE_AND_READ, ["b"], "a non local key"),
    Step("source", TOUCH, ["b"], "ASK"),
    Step("target", TOUCH, ["a"], "MOVED"),
    Step("asking", READ, ["a"], 0),
    Step("asking", TOUCH, ["a", "none"], "TRYAGAIN"),
)
AFTER_ONE_HAS_MOVED = (
    Step("source", TOUCH, ["a"], "ASK"),
    Step("source", TOUCH, ["a", "c"], "TRYAGAIN"),
    Step("target", TOUCH, ["a"], "MOVED"),
    Step("asking", READ, ["a"], 1),
    Step("asking", READ_ANOTHER, ["a"], 0),
    Step("asking", TOUCH, ["a", "c"], "TRYAGAIN"),
)
AT_LAST = (
    Step("source", TOUCH, ["a"], "MOVED"),
    Step("target", DELETE_TWO, ["a", "c"], 2),
)


class Twins:
    """A slot that moves between two real nodes, and one that moves between two virtual ones."""

    def __init__(self, cluster: ClusterOfServers, name: str) -> None:
        self._name = name
        self._slot = key_slot(name.encode())
        self._cluster = cluster
        self._is_old = not knows_sharded_channels(cluster)
        source = cluster.owner(name)
        self._real = {"source": source, "target": next(one for one in cluster.members if one is not source)}
        self._nodes = Nodes(World(0), 3, Conditions())
        node = self._nodes.serving_node(name)
        target = self._nodes.servers[(node.number + 1) % 3]
        self._virtual: dict[str, ClusterNode] = {"source": node, "target": target}
        for ending in ("a", "b", "c"):
            source.cli("SET", self._key(ending), "x")
            node.master.read("SET", self._key(ending).encode(), b"x")

    def _key(self, ending: str) -> str:
        return f"{{{self._name}}}:{ending}"

    def begin(self) -> None:
        self._cluster.begin_to_move(self._slot, self._real["source"], self._real["target"])
        assert self._nodes.begin_to_move(self._name, self._virtual["target"].number)

    def move(self, ending: str) -> None:
        self._cluster.move_keys(self._real["source"], self._real["target"], self._key(ending))
        self._virtual["source"].master.give_keys([self._key(ending).encode()], self._virtual["target"].master)

    def finish(self) -> None:
        self._cluster.move_all_keys(self._slot, self._real["source"], self._real["target"])
        self._cluster.finish_moving(self._slot, self._real["source"], self._real["target"])
        self._nodes.finish_moving(self._name)

    def check(self, step: Step) -> None:
        assert self._said_by_a_virtual_node(step) == step.outcome
        if self._is_old and (step.node, step.outcome) == ("source", "TRYAGAIN"):
            step = evolve(step, outcome="ASK")
        assert self._said_by_a_real_node(step) == step.outcome

    def _said_by_a_real_node(self, step: Step) -> object:
        keys = [self._key(ending) for ending in step.keys]
        node = self._real["target" if step.node == "asking" else step.node]
        with node.client(single_connection_client=True) as client:
            if step.node == "asking":
                client.execute_command("ASKING")
            try:
                return client.execute_command("EVAL", step.script, len(keys), *keys)
            except redis.ResponseError as error:
                return beginning_of(type(error).__name__, error, step)

    def _said_by_a_virtual_node(self, step: Step) -> object:
        node = self._virtual["target" if step.node == "asking" else step.node]
        node._is_asking = step.node == "asking"
        script: Any = evolve(load("release").on_cluster, source=step.script.encode(), sha=step.script)
        try:
            return node.master.run(script, [self._key(ending).encode() for ending in step.keys], [])
        except ReplyError as error:
            return beginning_of("", error, step)


def beginning_of(kind: str, error: Exception, step: Step) -> object:
    """Return the expected outcome if it names the kind of the error, or is in the text; else the whole error."""
    names = {"MovedError": "MOVED", "AskError": "ASK", "TryAgainError": "TRYAGAIN"}
    text = f"{names.get(kind, '')} {error}"
    return step.outcome if str(step.outcome) in text else text


@pytest.mark.every_server
def test_a_virtual_node_refuses_what_a_real_one_refuses_while_a_slot_moves(
    cluster: ClusterOfServers, name: str
) -> None:
    twins = Twins(cluster, name)
    twins.begin()
    for step in BEFORE_ANY_KEY_HAS_MOVED:
        twins.check(step)
    twins.move("a")
    for step in AFTER_ONE_HAS_MOVED:
        twins.check(step)
    twins.finish()
    for step in AT_LAST:
        twins.check(step)
