"""Nodes of a simulated Cluster: which node serves which slot, and how slots and roles move.

Each place has a master and a standby, as a shard with one replica has. A failover loses no data: the standby has all
that the master had at that moment. Only a master that goes on as one afterwards takes writes that are lost.
"""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from attrs import evolve
from redis.crc import key_slot

from relock import Client
from relock._keys import LockKeys
from relock._runtime.net.node import Node, Seeds
from relock._runtime.net.slots import SLOTS
from relock.testing._conditions import Conditions
from relock.testing._master import NO_REPLID
from relock.testing._network import VirtualConnection
from relock.testing._platform import VirtualPlatform
from relock.testing._process import Process
from relock.testing._server import Peer, Server
from relock.testing._world import World
from sim import leftovers

HOST, PORT = "node", 7000
EPOCH_SECONDS = 1_700_000_000.0
SKEW_SECONDS = 0.05  # by which the clocks of nodes differ from the true time, at most


class ClusterNode(Server):
    """Virtual node of a Cluster.

    Attributes:
        view: the number of the node that serves each slot, as far as this node knows.
        leaving: the slots whose keys are moving to another node, with the number of that node.
        coming: the slots whose keys are moving here.
    """

    def __init__(self, world: World, number: int, conditions: Conditions, offset: float, view: Sequence[int]) -> None:
        super().__init__(world, number, conditions, rate=1.0, offset=offset, name="node")
        self.view = list(view)
        self.leaving: dict[int, int] = {}
        self.coming: set[int] = set()
        self._asking: Peer | None = None  # the connection whose next command may be for a slot that is coming
        self._is_asking = False  # the present command is such a one
        self.master.refusal_of = self.refusal_of
        self.master.leaving = self.leaving

    def refusal_of(self, slot: int, keys: Sequence[bytes]) -> str:
        """Return the error by which this node refuses keys in a slot; "" if the node takes them."""
        is_here = self.view[slot] == self.number
        if not is_here and not (self._is_asking and slot in self.coming):
            return f"MOVED {slot} {HOST}:{PORT + self.view[slot]}"
        missing = set(keys).difference(self.master.keys())
        is_moving = slot in self.leaving or slot in self.coming
        if not is_moving or not missing or (len(keys) == 1 and not is_here):
            return ""
        have_all_left = is_here and missing == set(keys)
        return f"ASK {slot} {HOST}:{PORT + self.leaving[slot]}" if have_all_left else "TRYAGAIN Keys are being moved"

    def _execute(self, raw: Peer, command: Sequence[bytes]) -> Any:
        if command[0] == b"ASKING":
            self._asking = raw
            return b"OK"
        self._is_asking = self._asking is raw
        if self._is_asking:
            self._asking = None
        return super()._execute(raw, command)

    def _look(self, word: bytes, command: Sequence[bytes]) -> Any:
        if word != b"CLUSTER":
            return super()._look(word, command)
        entries, first = [], 0
        for number, slots in groupby(self.view):
            last = first + len(list(slots)) - 1
            entries.append([first, last, [HOST.encode(), PORT + number, b"%040d" % number]])
            first = last + 1
        return entries

    def learn(self, view: Sequence[int]) -> None:
        """Learn which node serves which slot; end the sharded channels of slots that are no longer served here."""
        lost = {slot for slot, (old, new) in enumerate(zip(self.view, view, strict=True)) if old == self.number != new}
        self.view = list(view)
        self.end_channels(lost)

    def promote(self, data: Any) -> None:
        """Become a master with these data, and with a replication id of its own."""
        self.master.follow(data)
        self.master.have_data_of(self._new_incarnation(), NO_REPLID)


class Nodes:
    """Nodes of one Cluster.

    Attributes:
        servers: the masters and, after these, a standby of each.
        serving: the number of the node that serves each slot.
        split: the numbers of nodes that have lost their slots, and do not know it yet.
    """

    def __init__(self, world: World, masters: int, conditions: Conditions) -> None:
        self._world = world
        self._masters = masters
        self.serving = [slot * masters // SLOTS for slot in range(SLOTS)]
        offsets = [EPOCH_SECONDS + world.random.uniform(-SKEW_SECONDS, SKEW_SECONDS) for _ in range(masters)]
        self.servers = [
            ClusterNode(world, number, conditions, offsets[number % masters], self.serving)
            for number in range(2 * masters)
        ]
        self.split: set[int] = set()

    def serving_node(self, name: str) -> ClusterNode:
        """Return the node that serves the slot of a lock."""
        return self.servers[self.serving[key_slot(name.encode())]]

    def _standby_of(self, number: int) -> ClusterNode:
        return self.servers[(number + self._masters) % len(self.servers)]

    def are_all_well(self) -> bool:
        """Return whether all nodes are up, and know all slots."""
        return not self.split and all(one.is_up and one.view == self.serving for one in self.servers)

    def move(self, name: str, target: int) -> bool:
        """Let another node serve the slot of a lock, in one step; return whether it is possible."""
        return self.are_all_well() and self._move(key_slot(name.encode()), target)

    def _move(self, slot: int, target: int) -> bool:
        old, new = self.servers[self.serving[slot]], self.servers[target]
        if old is new or target not in self.serving or slot in old.leaving:
            return False
        old.master.give_slots({slot}, new.master)
        self.serving[slot] = target
        self._tell_all()
        return True

    def begin_to_move(self, name: str, target: int) -> bool:
        """Begin to move the slot of a lock, key by key; return whether it is possible."""
        slot, old, new = key_slot(name.encode()), self.serving_node(name), self.servers[target]
        if not self.are_all_well() or old is new or target not in self.serving or slot in old.leaving:
            return False
        old.leaving[slot] = target
        new.coming.add(slot)
        return True

    def move_key(self, name: str) -> None:
        """Move one of the keys of a lock whose slot is being moved, if any is left."""
        slot, old = key_slot(name.encode()), self.serving_node(name)
        keys = old.master.keys_in({slot})
        if keys:
            old.master.give_keys([self._world.random.choice(keys)], self.servers[old.leaving[slot]].master)

    def move_keys(self, name: str) -> None:
        """Move the other keys of a lock whose slot is being moved."""
        slot, old = key_slot(name.encode()), self.serving_node(name)
        old.master.give_slots({slot}, self.servers[old.leaving[slot]].master)

    def finish_moving(self, name: str) -> None:
        """Move the other keys of a lock whose slot is being moved, and tell all nodes."""
        slot, old = key_slot(name.encode()), self.serving_node(name)
        target = old.leaving.pop(slot)
        self.servers[target].coming.discard(slot)
        self._move(slot, target)

    def have_hold(self, name: str, keys: LockKeys, owner: bytes) -> bool:
        """Return whether the node that serves the slot of a lock has a hold of it, or one to which that slot moves."""
        node = self.serving_node(name)
        moving = [self.servers[target] for slot, target in node.leaving.items() if slot == key_slot(name.encode())]
        return any(owner in leftovers.holds_on(one, keys) for one in (node, *moving))

    def _tell_all(self) -> None:
        """Tell all nodes which of them serves which slot, but for those that are cut off."""
        for server in self.servers:
            if server.number not in self.split:
                server.learn(self.serving)

    def move_late(self, name: str, target: int, seconds: float) -> bool:
        """Let another node serve the slot of a lock; the old one hears of it `seconds` later, and serves it until then.

        A source of a migration does so if the last step of that is lost.
        """
        slot, old = key_slot(name.encode()), self.serving_node(name)
        if not self.are_all_well():
            return False
        data = old.master.snapshot()
        self.split.add(old.number)
        has_moved = self._move(slot, target)
        if has_moved:
            old.master.follow(data)
            self._world.after(seconds, partial(self._give_in, old, {slot}))
        else:
            self.split.discard(old.number)
        return has_moved

    def fail(self, number: int, seconds: float, down: float) -> bool:
        """Crash a master. Its standby takes over `seconds` later, and it is back after `down` more."""
        old = self.servers[number]
        if number not in self.serving or not self.are_all_well():
            return False
        data = old.master.snapshot()
        old.crash()
        self._world.after(seconds, partial(self._take_over, number, data))
        self._world.after(seconds + down, partial(self._come_back, old))
        return True

    def part(self, number: int, seconds: float) -> bool:
        """Let the standby of a master take over, which learns that `seconds` later and goes on as a master until then.

        Meanwhile the old master does not hear what the others do.
        """
        old = self.servers[number]
        if number not in self.serving or not self.are_all_well():
            return False
        self.split.add(number)
        self._take_over(number, old.master.snapshot())
        self._world.after(seconds, partial(self._give_in, old, range(SLOTS)))
        return True

    def _take_over(self, number: int, data: Any) -> None:
        new = self._standby_of(number)
        new.promote(data)
        self.serving = [new.number if one == number else one for one in self.serving]
        self._tell_all()

    def _come_back(self, old: ClusterNode) -> None:
        old.view = list(self.serving)
        old.restart()

    def _give_in(self, old: ClusterNode, slots: Collection[int]) -> None:
        self.split.discard(old.number)
        old.learn(self.serving)
        old.master.give_slots(slots, None)


class ClusterClient(Client):
    """A `relock.Client` of a virtual Cluster."""

    def __init__(self, process: Process, nodes: Nodes, masters: int, **options: Any) -> None:
        self._platform = VirtualPlatform(process)

        def connect(port: int, **options: Any) -> VirtualConnection:
            return VirtualConnection(process, nodes.servers[port - PORT], **options)

        places = [
            (f"redis://{HOST}:{PORT + number}/0", {"host": HOST, "port": PORT + number}) for number in range(masters)
        ]
        seeds = Seeds(tuple(Node(address, connect, kwargs) for address, kwargs in places))
        cluster: Any = evolve(seeds.nodes[0], cluster=seeds)  # only a simulation has nodes of this kind
        super().__init__([cluster], **options)
