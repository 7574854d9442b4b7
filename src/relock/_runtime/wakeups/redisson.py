"""Channels of Redisson that a hub hears: one for each name that is waited for, on the subscription that the hub has.

Redisson publishes 0 on the channel of a lock's key when it unlocks that lock. Then the first waiter of this hub looks;
if it is another one's turn, the look passes that turn on. relock's scripts publish 00 there, which Redisson takes for
the same: see ``lua/_lib/freed_for_redisson.lua``. They wake relock's own waiters otherwise, so a hub ignores it.

A waiter asks for the lock once the channel is confirmed, so it misses no message of a later unlock. A user that has no
right to the channel waits without: then the heartbeats find that a lock of Redisson's is free.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from relock._keys import LATCH, SEMAPHORE, LockKeys, lock_keys, redisson_channel, redisson_keys
from relock._runtime.masters.master import Master
from relock._runtime.wait_queue import WaitQueue
from relock._runtime.wakeups.channels import HubChannels, NodeChannels, Waiting
from relock._runtime.wakeups.waiter import Waiter
from relock._scripts import TOKEN_MAX

UNLOCKED = b"0"
_NOT_SHARED = (SEMAPHORE, LATCH)  # kinds of which Redisson knows nothing
_NO_TICKET = [TOKEN_MAX]  # behind all tickets, which are times as well


class Sharing(Waiting, Protocol):
    """Hub, as its channels of Redisson see it."""

    confirmed: WaitQueue

    def is_confirmed(self) -> bool:
        """Return whether the client's own channel is confirmed."""


class RedissonChannels(NodeChannels):
    """Channels of Redisson on one connection of the subscription to a lone master."""

    subscribe, unsubscribe = b"subscribe", b"unsubscribe"
    is_all = False
    _names: "HubRedisson"

    def actor(self, act: Callable[..., object]) -> Callable[[Any], object]:
        """Return a function that acts on a reply: on one of Redisson's messages here, on any other by `act`."""
        return partial(self._act, partial(act, channels=self))

    def _act(self, act: Callable[[Any], object], reply: Any) -> None:
        match reply:
            case [b"message", bytes(channel), bytes(payload)] if self._names.is_redissons(channel):
                if payload == UNLOCKED:
                    self._names.unlocked(self._names.name_of(channel))
            case _:
                act(reply)

    def _refused(self, why: str) -> bool:
        """Act on a refusal: go on without the channel, as if it were confirmed and silent."""
        if not self._asked:
            return False
        word, name = self._asked.popleft()
        if word == self.subscribe:
            text = f"it refuses a channel of Redisson's ({why}): an unlock there is noticed within 3 s"
            self._node.act(self._node.facts.without_messages(text))
            self._confirm(name)
        return True


class HubRedisson(HubChannels):
    """Channels of Redisson that one hub hears."""

    is_sharded = False
    are_used = True
    _hub: Sharing

    def __init__(self, hub: Sharing, subscription: Any, master: Master) -> None:
        super().__init__(hub, master)  # type: ignore[arg-type]  # it is no `Cluster`: the methods below do without
        self.lock_keys = redisson_keys
        self._head, _, self._tail = redisson_channel(lock_keys(hub.prefix, "\n").lock).partition(b"\n")
        self._subscription = subscription
        self._nodes[master] = subscription
        subscription.channels = RedissonChannels(self, master, subscription.call)

    def is_redissons(self, channel: bytes) -> bool:
        """Return whether a channel is one of Redisson's."""
        return channel.startswith(self._head)

    def used_at(self, node: Master) -> set[str]:  # noqa: ARG002
        """Return the names that are waited for."""
        return {waiter.keys.name for waiter in self._sharing()}

    def _sharing(self) -> list[Waiter]:
        return [one for one in self._hub.waiters.copy().values() if one.keys.kind not in _NOT_SHARED]

    def _subscription_for(self, keys: LockKeys) -> Any:  # noqa: ARG002
        return self._subscription

    def is_heard(self, keys: LockKeys) -> bool:
        """Return whether messages for waiters of this name are heard, those of Redisson's included."""
        if keys.kind in _NOT_SHARED:
            self._subscription.ensure()
            return self._hub.is_confirmed()
        return keys.name in self._subscription.channels.confirmed

    def is_current(self, keys: LockKeys, subscription: object) -> bool:  # noqa: ARG002
        """Return True: there is one master."""
        return True

    def begin_to_listen(self, keys: LockKeys) -> tuple[WaitQueue, Callable[[], bool]]:
        """Have the name's channel asked for, as `HubChannels` does, unless the name is that of another kind."""
        if keys.kind in _NOT_SHARED:
            return self._hub.confirmed, self._hub.is_confirmed
        return super().begin_to_listen(keys)

    def unlocked(self, name: str) -> None:
        """Have the first waiter of a name look, because Redisson has unlocked the lock."""
        waiting = [waiter for waiter in self._sharing() if waiter.keys.name == name]
        if waiting:
            min(waiting, key=lambda waiter: waiter.tickets or _NO_TICKET).wake(self._subscription.index)
