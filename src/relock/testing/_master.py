"""A virtual master: a store, its clock, its Pub/Sub, and the scripts that run on it.

Not modelled here: connections, what they know and what they lose; ``EVALSHA`` of a script that was never loaded; which
master a replica follows. The code that carries requests to a master models these.
"""

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from redis.crc import key_slot

from relock._keys import LockKeys
from relock._scripts import Call, Script, load
from relock.testing._arguments import ReplyError
from relock.testing._channels import PLAIN, SHARDED
from relock.testing._engine import ScriptReply, shared_engine
from relock.testing._store import COMMANDS, Snapshot, Status, Store

__all__ = ["Message", "ReplyError", "Snapshot", "Subscriber", "VirtualMaster"]

NO_REPLID = "0" * 40

CROSS_SLOT = "CROSSSLOT Keys in request don't hash to the same slot"

Message = tuple[bytes, bytes, bytes]
"""The kind of a channel, `PLAIN` or `SHARDED`; the channel; and what is published to it."""

Subscriber = Callable[[bytes, bytes], object]
"""Takes a channel and a message."""


class VirtualMaster:
    """Master that exists only in this process.

    Attributes:
        incarnation: its run id; a new one with each restart.
        replid: the replication id of its data: its master's, if it has its master's data.
        replicate: is called after each script, or command outside of one, that has published or written, with what it
            has published; None as long as no replica follows this master.
        refusal_of: says by which error this node of a Cluster refuses keys in a slot, "" if the node takes them; None
            unless this is such a node. A channel is no key: for a channel, there are none.
        leaving: the slots that are moving to another node of the Cluster.
    """

    refusal_of: Callable[[int, Sequence[bytes]], str] | None = None
    leaving: Collection[int] = ()

    def __init__(self, clock_us: Callable[[], int], incarnation: str) -> None:
        self._replicate: Callable[[list[Message]], object] | None = None
        self._clock_us = clock_us
        self._store = Store()
        self._become(incarnation)
        self._engine = shared_engine()
        self._subscribers: dict[tuple[bytes, bytes], list[Subscriber]] = {}

    def _become(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.have_data_of(incarnation, NO_REPLID)

    def have_data_of(self, replid: str, before: str) -> None:
        """Set the replication id of its data, and the one that they had before; `NO_REPLID` if they had none."""
        self.replid, self._replid_before = replid, before
        self._describe()

    def _describe(self) -> None:
        role = "slave" if self.is_replica else "master"
        names = f"master_replid:{self.replid}\r\nmaster_replid2:{self._replid_before}\r\n"
        self._store.replication = f"# Replication\r\nrole:{role}\r\n{names}".encode()

    # Requests -------------------------------------------------------------------------------------------------------

    def run(self, script: Script | str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> ScriptReply:
        """Run a script, or the shipped one of that name; then hand out what it has published.

        Raises:
            ReplyError: it ended with an error; what it wrote and published before that stays. Or its keys are not in
                one slot that this node of a Cluster serves.
        """
        if isinstance(script, str):
            script = load(script)
        slot = self.slot_of(keys)
        self._store.begin(self._clock_us(), slot, is_leaving=slot in self.leaving)
        try:
            return self._engine.run(script, self._store, keys, arguments)
        finally:
            if self._store.published or self._replicate is not None:
                self._deliver()

    def execute(
        self, call: Call, not_after_us: int, incarnation: bytes, guard_ms: int, *, guarded: bool | None = None
    ) -> ScriptReply:
        """Run a call with what a connection adds to it, as `relock._runtime.masters.connections.Connection` does.

        The call names the master's marker if it is `guarded`: by default, if there is a guard.

        Raises:
            ReplyError: the script ended with an error, as in `run`.
        """
        script = call.script
        known = script.connection_argument_count
        keys = _keys_getter(script, known == 3 and guard_ms > 0 if guarded is None else guarded)
        added = (b"%016d" % not_after_us, incarnation, b"%d" % guard_ms)[:known]
        arguments = [*unpack_arguments(call.own), *added, *unpack_arguments(call.rest)]
        return self.run(script, keys(call.keys), arguments)

    def read(self, command: str, *arguments: bytes | int) -> Any:
        """Execute one command outside of any script, even one that writes; return its reply as redis-py gives it.

        Raises:
            ReplyError: the command's error.
        """
        self._store.begin(self._clock_us())
        try:
            reply = getattr(self._store, COMMANDS[command.upper()])(*arguments)
        finally:
            self._deliver()
        if isinstance(reply, tuple):
            return list(reply)
        return reply.word if isinstance(reply, Status) else reply

    def slot_of(self, names: Sequence[bytes], *, are_keys: bool = True) -> int | None:
        """Return the slot of keys, or of sharded channels; None if this is no node of a Cluster.

        Raises:
            ReplyError: they are in several slots, or in one that another node serves, or is about to serve.
        """
        if self.refusal_of is None:
            return None
        slot, *others = {key_slot(name) for name in names}
        refusal = CROSS_SLOT if others else self.refusal_of(slot, names if are_keys else ())
        if refusal:
            raise ReplyError(refusal)
        return slot

    # Pub/Sub --------------------------------------------------------------------------------------------------------

    def subscribe(self, channel: bytes, subscriber: Subscriber, kind: bytes = PLAIN) -> None:
        """Add a subscriber, which PUBLISH counts from now on; it gets each message as soon as the script has ended.

        SPUBLISH counts it if the `kind` of the channel is `SHARDED`.
        """
        self._subscribers.setdefault((kind, channel), []).append(subscriber)
        self._count_listeners(kind, channel)

    def unsubscribe(self, channel: bytes, subscriber: Subscriber, kind: bytes = PLAIN) -> None:
        """Undo a `subscribe`; do nothing if a restart has undone it."""
        subscribers = self._subscribers.get((kind, channel), [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
            self._count_listeners(kind, channel)

    def _count_listeners(self, kind: bytes, channel: bytes) -> None:
        listeners = self._store.shard_listeners if kind == SHARDED else self._store.listeners
        count = len(self._subscribers[kind, channel])
        if count:
            listeners[channel] = count
        else:
            del self._subscribers[kind, channel], listeners[channel]

    def _deliver(self) -> None:
        """Hand out what was published: after the script, as a server does, so that subscribers may ask the master."""
        published = self._store.published
        if self._replicate is not None and (published or self._store.has_written):
            self._replicate(published.copy())
        while published:
            self._hand_out(*published.pop(0))

    def _hand_out(self, kind: bytes, channel: bytes, message: bytes) -> None:
        for subscriber in list(self._subscribers.get((kind, channel), ())):
            subscriber(channel, message)

    # What happens to a master ---------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return what the master holds now, for a restart on old data."""
        return self._store.snapshot()

    def restart(self, incarnation: str, snapshot: Snapshot | None = None) -> None:
        """Restart the master as after a crash: empty, or with what a snapshot held and has not expired since.

        The master loses its subscribers.
        """
        self._become(incarnation)
        self._subscribers.clear()
        self._store.listeners.clear()
        self._store.shard_listeners.clear()
        self.flush()
        if snapshot is not None:
            self._store.load(snapshot)

    @property
    def replicate(self) -> Callable[[list[Message]], object] | None:
        """Function that is called for the replicas, as `VirtualMaster` describes; None while there are none."""
        return self._replicate

    @replicate.setter
    def replicate(self, replicate: Callable[[list[Message]], object] | None) -> None:
        """Set the function when a replica begins to follow the master, or None when none does any more."""
        self._replicate = replicate
        self._store.is_replicated = replicate is not None

    def follow(self, snapshot: Snapshot, messages: Sequence[Message] = ()) -> None:
        """Act as a replica: take over what its master holds, and hand out what its master published."""
        self._store.load(snapshot)
        for message in messages:
            self._hand_out(*message)

    def give_slots(self, slots: Collection[int], other: "VirtualMaster | None") -> None:
        """Let another node have the keys of these slots, as the last step of a migration does; None: drop the keys."""
        self.give_keys(self.keys_in(slots), other)

    def give_keys(self, keys: Sequence[bytes], other: "VirtualMaster | None") -> None:
        """Let another node have these keys, as MIGRATE does; None: drop the keys."""
        taken = self._store.take(keys)
        if other is not None:
            other._store.add(taken, (other._clock_us() - self._clock_us()) // 1000)

    @property
    def is_replica(self) -> bool:
        """True if the master is a replica, which refuses every write."""
        return self._store.is_read_only

    @is_replica.setter
    def is_replica(self, is_replica: bool) -> None:
        """Turn the server into a replica, or into a master, from now on."""
        self._store.is_read_only = is_replica
        self._describe()

    def info(self, *sections: bytes) -> bytes:
        """Return the reply to INFO, or the part of it in these sections."""
        texts = {
            b"server": b"# Server\r\nredis_version:7.4.0\r\nredis_mode:standalone\r\nrun_id:%b\r\n"
            % self.incarnation.encode(),
            b"memory": b"# Memory\r\nmaxmemory_policy:noeviction\r\n",
            b"replication": self._store.replication,
        }
        asked = {section.lower() for section in sections} or set(texts)
        return b"\r\n".join(text for section, text in texts.items() if section in asked)

    def flush(self) -> None:
        """Forget all keys and keep all else, as FLUSHALL does."""
        self._store.clear()

    @property
    def is_full(self) -> bool:
        """True if the master is out of memory: it refuses a script whose first write needs some."""
        return self._store.is_full

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        """Let the master run out of memory, or have some again."""
        self._store.is_full = is_full

    # What it holds --------------------------------------------------------------------------------------------------

    def keys(self) -> list[bytes]:
        """Return the keys that have not expired, in alphabetical order."""
        self._store.begin(self._clock_us())
        return self._store.keys()

    def keys_in(self, slots: Collection[int]) -> list[bytes]:
        """Return the keys of these slots that have not expired, in alphabetical order."""
        return [key for key in self.keys() if key_slot(key) in slots]

    def contents(self, key: bytes) -> Any:
        """Return a key's value: bytes, a dict of a hash, a list of a sorted set's members and scores; or None."""
        self._store.begin(self._clock_us())
        return self._store.contents(key)


def unpack_arguments(packed: bytes) -> list[bytes]:
    """Return the arguments that a `Call` has packed for the wire."""
    arguments, at = [], 0
    while at < len(packed):
        start = packed.index(b"\r\n", at) + 2
        end = start + int(packed[at + 1 : start - 2])
        arguments.append(packed[start:end])
        at = end + 2
    return arguments


_KeysGetter = Callable[[LockKeys], tuple[bytes, ...]]
_getters: dict[tuple[str, bool], _KeysGetter] = {}


def _keys_getter(script: Script, guarded: bool) -> _KeysGetter:
    """Return a function that gives the keys of a script, in the script's order."""
    getter = _getters.get((script.sha, guarded))
    if getter is None:
        names = [parameter.name for parameter in script.keys if guarded or not parameter.optional]
        getter = _getters[script.sha, guarded] = _getter(names)
    return getter


def _getter(names: Sequence[str]) -> _KeysGetter:
    """Return a function that gives a tuple of these keys: `attrgetter` does so only for two or more."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda keys: tuple([getattr(keys, name) for name in names])
