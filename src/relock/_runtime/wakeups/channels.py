"""Sharded channels of one hub: on a Cluster, waiters for a name listen on the node that has the name's slot.

Such a channel is in the slot of the lock's keys. So a script counts on that node exactly the clients that
listen, and a message goes to no other node. There is one subscription to each node, however many names are waited for.

The server ends a subscription to a channel (``sunsubscribe``) when its slot moves. Then the channel is asked for once
more, and the server's refusal names the node that has the slot. A message that was published before the new
subscription was confirmed is lost. So each waiter of that name looks *after* the confirmation.

Each thing is changed in one place:

* Only a subscription's own thread, or its loop, asks for channels and gives them up: in `NodeChannels.settle`. Any
  thread may say that it wants one.
* Only the reader of the subscription confirms a channel. Each connection has its own `NodeChannels`: a late reader of
  the last connection confirms nothing on the next one.
* A waiter registers, and then looks if its channel is confirmed. `NodeChannels` takes an unused channel from the
  confirmed ones, and then looks if a waiter has registered. So at least one of the two sees the other.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from redis import exceptions as redis_errors

from relock._core.effects import Clock, Failure
from relock._core.quorum import NEVER
from relock._keys import LockKeys, lock_keys, name_channel
from relock._runtime.masters.cluster import Cluster
from relock._runtime.masters.master import Master
from relock._runtime.net.failures import words_of
from relock._runtime.net.slots import redirection, slot_of
from relock._runtime.wait_queue import WaitQueue
from relock._runtime.wakeups.waiter import Waiter
from relock._scripts import pack_argument

KEPT_SECONDS = 60.0  # for this long a channel is kept after its last waiter has left
UNUSED_MAX = 1000  # channels without waiters that one hub keeps
SCAN_SECONDS = 5.0  # between two looks for channels to ask for, or to give up


class Waiting(Protocol):
    """Hub, as its channels see it."""

    client: str
    prefix: str
    waiters: dict[bytes, Waiter]
    subscriptions: list[Any]

    def subscription_to(self, master: Master) -> Any:
        """Return a new subscription to a node."""

    def soon(self, do: Callable[[], object]) -> None:
        """Call `do` where subscriptions may be added and stopped: on the hub's loop, or on the calling thread."""


class NodeChannels:
    """Channels on one connection of a node's subscription.

    Args:
        call: has the subscription's own thread, or its loop, call `settle` soon.

    Attributes:
        confirmed: the names whose channels are confirmed, each with the last time at which it was known to be in use.
        subscribe, unsubscribe: the commands, and the first words of their replies.
        is_all: True if the waiters listen on these channels alone, and not on that of their client as well.
    """

    subscribe, unsubscribe = b"ssubscribe", b"sunsubscribe"
    is_all = True

    def __init__(self, names: "HubChannels", node: Master, call: Callable[[], object]) -> None:
        self.confirmed: dict[str, float] = {}
        self._names = names
        self._node = node
        self._call = call
        self._clock: Clock = node.clock
        self._wanted: deque[str] = deque()
        self._asked: deque[tuple[bytes, str]] = deque()  # commands without a reply, in the order of their replies
        self._awaited: set[str] = set()  # names that were asked for, and are not confirmed yet
        self._scans_at = NEVER
        self._most = UNUSED_MAX  # channels; with more, there may be too many unused ones

    def want(self, name: str) -> None:
        """Have the channel of a name asked for; any thread may call this."""
        self._wanted.append(name)
        self._call()

    def anew(self) -> "NodeChannels":
        """Return the channels of the next connection, as this one is lost: it begins with those that are in use."""
        self.confirmed.clear()
        return type(self)(self._names, self._node, self._call)

    def actor(self, act: Callable[..., object]) -> Callable[[Any], object]:
        """Return a function that acts on a reply by `act`, for this connection."""
        return partial(act, channels=self)

    def settle(self, send: Callable[[bytes], object]) -> None:
        """Ask for the channels that are wanted, and give up those that were unused for long."""
        commands: list[bytes] = []
        while self._wanted:
            self._ask_for(self._wanted.popleft(), commands)
        now = self._clock()
        if now >= self._scans_at or len(self.confirmed) + len(self._awaited) > self._most:
            self._scans_at = now + SCAN_SECONDS
            self._scan(now, commands)
        if commands:
            send(b"".join(commands))

    def _ask_for(self, name: str, commands: list[bytes]) -> None:
        if name in self._awaited:  # this look comes first: a reader confirms, and then forgets that it was awaited
            return
        if name in self.confirmed:
            self._names.wake_listeners(name)
            return
        self._awaited.add(name)
        self._add(self.subscribe, name, commands)

    def _scan(self, now: float, commands: list[bytes]) -> None:
        used = self._names.used_at(self._node)
        for name in used:
            if name in self.confirmed:
                self.confirmed[name] = now
            else:
                self._ask_for(name, commands)
        unused = sorted((at, name) for name, at in self.confirmed.copy().items() if name not in used)
        surplus = len(unused) - self._names.unused_max
        old = [name for place, (at, name) in enumerate(unused) if place < surplus or now - at >= KEPT_SECONDS]
        self._give_up(old, now, commands)
        self._most = len(used) + self._names.unused_max

    def _give_up(self, names: Iterable[str], now: float, commands: list[bytes]) -> None:
        for name in names:
            self.confirmed.pop(name, None)  # Mark, then look
        used = self._names.used_at(self._node) if names else ()
        for name in names:
            if name in used:
                self.confirmed[name] = now
                self._names.wake_listeners(name)
            else:
                self._names.forget(name, self)
                self._add(self.unsubscribe, name, commands)

    def _add(self, word: bytes, name: str, commands: list[bytes]) -> None:
        self._asked.append((word, name))  # Note, then send
        commands.append(b"*2\r\n" + pack_argument(word) + pack_argument(self._names.channel_of(name)))

    def hear(self, reply: Any) -> bool:
        """Act on a reply, or on the server's end of a channel, once or twice; return False for any other message."""
        match reply:
            case [bytes(word), bytes(channel), _] if word in (self.subscribe, self.unsubscribe):
                self._changed(word, self._names.name_of(channel))
            case redis_errors.ResponseError():
                return self._refused(words_of(reply))
            case _:
                return False
        return True

    def _changed(self, word: bytes, name: str) -> None:
        is_reply = bool(self._asked) and self._asked[0] == (word, name)
        if word == self.subscribe:
            if is_reply:
                self._confirm(name)
        elif not is_reply and self.confirmed.pop(name, None) is not None:
            self.want(name)  # the slot has moved: the refusal names the node that has it now
        if is_reply:
            self._asked.popleft()

    def _confirm(self, name: str) -> None:
        self.confirmed[name] = self._clock()
        self._awaited.discard(name)
        self._names.confirm(name, self)

    def _refused(self, why: str) -> bool:
        """Act on a refusal; return False if it is the reply to none of the commands."""
        moved, names = redirection(why), self._names
        word, name = self._asked[0] if self._asked else (self.unsubscribe, "")
        keys = lock_keys(names.prefix, name)
        if not name or (moved is not None and moved.slot != slot_of(keys)):
            return moved is not None  # the reply to an end of a channel that the server itself had ended before
        if word == self.subscribe:
            self._awaited.discard(name)
            if names.cluster.sent_on(self._node, Failure(self._node.address, why, sent=False)) is not None:
                names.want(keys)
        self._asked.popleft()
        return True


class HubChannels:
    """Channels of one hub on all nodes of a Cluster, and the subscriptions to these nodes.

    Attributes:
        lock_keys: makes the keys of a lock from the prefix and a name.
    """

    lock_keys: Callable[[str, str], LockKeys] = staticmethod(lock_keys)

    def __init__(self, hub: Waiting, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prefix = hub.prefix
        self._hub = hub
        head, _, tail = name_channel(hub.prefix, "\n", hub.client).partition("\n")
        self._head, self._tail = head.encode(), tail.encode()
        self._nodes: dict[Master, Any] = {}  # the subscription to each node
        self._heard: dict[str, NodeChannels] = {}  # where names were last confirmed, until they are given up
        self._listening: dict[str, WaitQueue] = {}  # callers that wait until a name's channel is confirmed
        self._is_closed = False

    @property
    def is_sharded(self) -> bool | None:
        """True if waiters listen on sharded channels; None before the Cluster has shown if it knows these."""
        return self.cluster.is_sharded

    @property
    def are_used(self) -> bool:
        """True if waiters listen on channels of their names."""
        return bool(self.is_sharded)

    @property
    def unused_max(self) -> int:
        """Number of channels without waiters that are kept on each node."""
        return max(1, UNUSED_MAX // max(1, len(self._nodes)))

    def channel_of(self, name: str) -> bytes:
        """Return the channel of this hub's waiters for a name."""
        return self._head + name.encode() + self._tail

    def name_of(self, channel: bytes) -> str:
        """Return the name of a channel of this hub."""
        return channel[len(self._head) : len(channel) - len(self._tail)].decode(errors="replace")

    def used_at(self, node: Master) -> set[str]:
        """Return the names that are waited for, and that this node serves."""
        keys = {waiter.keys.name: waiter.keys for waiter in self._hub.waiters.copy().values()}
        return {name for name, one in keys.items() if self.cluster.node_of(one) is node}

    # Listening ------------------------------------------------------------------------------------------------------

    def is_heard(self, keys: LockKeys) -> bool:
        """Return whether messages about this name are heard: its channel is confirmed on the node of its slot."""
        subscription = self._subscription_for(keys)
        return subscription is not None and keys.name in subscription.channels.confirmed

    def is_current(self, keys: LockKeys, subscription: object) -> bool:
        """Return whether a subscription leads to the node that has the name's slot."""
        node = self.cluster.node_of(keys)
        return node is not None and self._nodes.get(node) is subscription

    def begin_to_listen(self, keys: LockKeys) -> tuple[WaitQueue, Callable[[], bool]]:
        """Have the name's channel asked for; return the queue in which to wait, and a function that says if it is so.

        The waiter must be registered.
        """
        queue = self._listening.setdefault(keys.name, WaitQueue())
        self.want(keys)
        return queue, partial(self._is_heard_by, queue, keys)

    def _is_heard_by(self, queue: WaitQueue, keys: LockKeys) -> bool:
        self._listening.setdefault(keys.name, queue)  # Mark, then look: a confirmation takes the queue out
        return self.is_heard(keys)

    def want(self, keys: LockKeys) -> None:
        """Have the name's channel asked for on the node of its slot, if that node is known; any thread may call."""
        subscription = self._subscription_for(keys)
        if subscription is None:
            return  # the waiter's own request finds the node
        subscription.ensure()
        channels: NodeChannels = subscription.channels
        if keys.name not in channels.confirmed:
            channels.want(keys.name)
        elif self._heard.get(keys.name) is not channels:
            self.confirm(keys.name, channels)

    def confirm(self, name: str, channels: NodeChannels) -> None:
        """Note that a name's channel is confirmed, and have its waiters look, as messages may have been lost before."""
        is_new, self._heard[name] = name not in self._heard, channels
        self.wake_listeners(name)
        if not is_new:
            for waiter in self._hub.waiters.copy().values():
                if waiter.keys.name == name:
                    waiter.wake()

    def wake_listeners(self, name: str) -> None:
        """Wake the callers that wait until a name's channel is confirmed."""
        queue = self._listening.pop(name, None)
        if queue is not None:
            queue.wake_all()

    def forget(self, name: str, channels: NodeChannels) -> None:
        """Note that a name's channel is given up."""
        if self._heard.get(name) is channels:
            self._heard.pop(name, None)

    # The nodes ------------------------------------------------------------------------------------------------------

    def _subscription_for(self, keys: LockKeys) -> Any:
        """Return the subscription to the node of the name's slot, made if necessary; None if no node is known."""
        node = self.cluster.node_of(keys)
        if node is None:
            return None
        return self._nodes.get(node) or self._add(node)

    def _add(self, node: Master) -> Any:
        made: Any = self._hub.subscription_to(node)
        made.channels = NodeChannels(self, node, made.call)
        kept = self._nodes.setdefault(node, made)
        if kept is made:
            self._hub.subscriptions.append(made)
            if self._is_closed:  # Mark, then look
                made.stop()
        return kept

    def follow(self) -> None:
        """Have every name that is waited for heard on the node of its slot; end subscriptions to nodes without slots.

        Any thread may call this.
        """
        if self.is_sharded:
            self._hub.soon(self._follow)

    def _follow(self) -> None:
        serving = self.cluster.servers
        for node, subscription in self._nodes.copy().items():
            if node not in serving and self._nodes.pop(node, None) is not None:
                self._hub.subscriptions.remove(subscription)
                subscription.stop()
        names = {waiter.keys.name: waiter.keys for waiter in self._hub.waiters.copy().values()}
        for name, channels in self._heard.copy().items():
            if name not in names and name not in channels.confirmed:
                self._heard.pop(name, None)
        for keys in names.values():
            self.want(keys)

    def tidy(self) -> None:
        """Do what `follow` does, and have each subscription give up unused channels; any thread may call this."""
        self.follow()
        for subscription in list(self._nodes.values()):
            subscription.call()

    def close(self) -> None:
        """Have no more subscriptions made."""
        self._is_closed = True
