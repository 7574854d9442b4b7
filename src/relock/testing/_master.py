"""A virtual master: a store, its clock, its Pub/Sub, and the scripts that run on it.

What is not here: connections, and so what they know and lose; ``EVALSHA`` of a script that was never loaded; replicas.
Whoever carries requests to a master models these.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from relock._keys import LockKeys
from relock._scripts import Call, Script, load
from relock.testing._engine import ScriptReply, shared_engine
from relock.testing._store import COMMANDS, ReplyError, Snapshot, Status, Store

__all__ = ["ReplyError", "Snapshot", "Subscriber", "VirtualMaster"]

Subscriber = Callable[[bytes, bytes], object]
"""Takes a channel and a message."""


class VirtualMaster:
    """One master that exists only here.

    Attributes:
        incarnation: its run id; a new one with each restart.
    """

    def __init__(self, clock_us: Callable[[], int], incarnation: str) -> None:
        self._clock_us = clock_us
        self._store = Store()
        self._become(incarnation)
        self._engine = shared_engine()
        self._subscribers: dict[bytes, list[Subscriber]] = {}

    def _become(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._store.replication = f"role:master\r\nmaster_replid:{incarnation}\r\n".encode()

    # Requests -------------------------------------------------------------------------------------------------------

    def run(self, script: Script | str, keys: Sequence[bytes], arguments: Sequence[bytes]) -> ScriptReply:
        """Runs a script, or the shipped one of that name; then hands out what it has published.

        Raises:
            ReplyError: it ended with an error; what it wrote and published before that stays.
        """
        if isinstance(script, str):
            script = load(script)
        self._store.begin(self._clock_us())
        try:
            return self._engine.run(script, self._store, keys, arguments)
        finally:
            if self._store.published:
                self._deliver()

    def execute(
        self, call: Call, void_us: int, incarnation: bytes, guard_ms: int, *, guarded: bool | None = None
    ) -> ScriptReply:
        """Runs a call with what a connection adds to it, as `relock._runtime.links.Link` does.

        It names the master's marker if it is `guarded`: by default, if there is a guard.

        Raises:
            ReplyError: see `run`.
        """
        script = call.script
        known = script.connection_argument_count
        keys = _keys_getter(script, known == 3 and (guard_ms > 0 if guarded is None else guarded))
        added = (b"%d" % void_us, incarnation, b"%d" % guard_ms)[:known]
        arguments = [*unpack_arguments(call.own), *added, *unpack_arguments(call.rest)]
        return self.run(script, keys(call.keys), arguments)

    def read(self, command: str, *arguments: bytes | int) -> Any:
        """One command outside of any script, and its reply as redis-py gives it; it may write as well.

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

    # Pub/Sub --------------------------------------------------------------------------------------------------------

    def subscribe(self, channel: bytes, subscriber: Subscriber) -> None:
        """From now on PUBLISH counts this subscriber; it gets each message as soon as the script has ended."""
        self._subscribers.setdefault(channel, []).append(subscriber)
        self._count_listeners(channel)

    def unsubscribe(self, channel: bytes, subscriber: Subscriber) -> None:
        """Undoes a `subscribe`; does nothing if a restart has done so."""
        subscribers = self._subscribers.get(channel, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
            self._count_listeners(channel)

    def _count_listeners(self, channel: bytes) -> None:
        count = len(self._subscribers[channel])
        if count:
            self._store.listeners[channel] = count
        else:
            del self._subscribers[channel], self._store.listeners[channel]

    def _deliver(self) -> None:
        """After the script, as a server does: so a subscriber may ask the master something itself."""
        published = self._store.published
        while published:
            channel, message = published.pop(0)
            for subscriber in list(self._subscribers.get(channel, ())):
                subscriber(channel, message)

    # What happens to a master ---------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What it holds now, for a restart on old data."""
        return self._store.snapshot()

    def restart(self, incarnation: str, snapshot: Snapshot | None = None) -> None:
        """It crashed and starts again: empty, or with what a snapshot held and has not expired since.

        Nobody is subscribed any more.
        """
        self._become(incarnation)
        self._subscribers.clear()
        self._store.listeners.clear()
        self.flush()
        if snapshot is not None:
            self._store.load(snapshot)

    def flush(self) -> None:
        """FLUSHALL: it holds nothing any more, and is otherwise the same."""
        self._store.clear()

    @property
    def is_full(self) -> bool:
        """Whether it is out of memory: a script whose first write needs some is refused."""
        return self._store.is_full

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        """It runs out of memory, or has some again."""
        self._store.is_full = is_full

    # Looking behind it ----------------------------------------------------------------------------------------------

    def keys(self) -> list[bytes]:
        """The keys that have not expired, in alphabetical order."""
        self._store.begin(self._clock_us())
        return self._store.keys()

    def contents(self, key: bytes) -> Any:
        """A key's value: bytes, a dict of a hash, a list of a sorted set's members with their scores; or None."""
        self._store.begin(self._clock_us())
        return self._store.contents(key)


def unpack_arguments(packed: bytes) -> list[bytes]:
    """The arguments that a `Call` has packed for the wire."""
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
    """What takes the keys of a script, in its order."""
    getter = _getters.get((script.sha, guarded))
    if getter is None:
        names = [parameter.name for parameter in script.keys if guarded or not parameter.optional]
        getter = _getters[script.sha, guarded] = _getter(names)
    return getter


def _getter(names: Sequence[str]) -> _KeysGetter:
    """One or none are not what `attrgetter` makes a tuple of."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda keys: tuple([getattr(keys, name) for name in names])
