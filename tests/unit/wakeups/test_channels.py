"""Sharded channels on one connection to a node: asked for, confirmed, moved, given up."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as redis_errors

from relock._keys import LockKeys, lock_keys, name_channel
from relock._runtime.net.slots import slot_of
from relock._runtime.wakeups import channels
from relock._runtime.wakeups.channels import KEPT_SECONDS, SCAN_SECONDS, HubChannels, NodeChannels


class FakeWaiter:
    """A waiter that counts how often it must look."""

    def __init__(self, keys: LockKeys) -> None:
        self.keys = keys
        self.looks = 0

    def wake(self) -> None:
        self.looks += 1


class FakeSubscription:
    """A subscription to a node; the test is its thread, and the node."""

    channels: NodeChannels

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.sent: list[bytes] = []
        self.has_stopped = False

    def ensure(self) -> None: ...

    def call(self) -> None:
        self._scene.calls += 1

    def stop(self) -> None:
        self.has_stopped = True

    def said(self) -> list[tuple[str, str]]:
        """Settle, and return the commands that were sent, with the names of their channels."""
        self.channels.settle(self.sent.append)
        words = b"".join(self.sent).split(b"\r\n")
        self.sent.clear()
        return [(words[i].decode(), self._scene.names.name_of(words[i + 2])) for i in range(2, len(words), 5)]

    def hears(self, word: str, name: str) -> None:
        assert self.channels.hear([word.encode(), name_channel("lock", name, "me").encode(), 1])

    def refuses(self, words: str) -> bool:
        return self.channels.hear(redis_errors.ResponseError(words))


class FakeNode:
    """A node of the Cluster."""

    address = "a"

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock


class Scene:
    """A hub on a Cluster of two nodes, the first of which has all slots; the test moves the clock."""

    client, prefix, is_sharded = "me", "lock", True

    def __init__(self) -> None:
        self.now, self.calls = 100.0, 0
        self.nodes: Any = [FakeNode(self.clock), FakeNode(self.clock)]
        self.servers: Any = self.nodes
        self.serving = self.nodes[0]
        self.waiters: dict[bytes, Any] = {}
        self.subscriptions: list[Any] = []
        cluster: Any = self
        self.names = HubChannels(self, cluster)

    def clock(self) -> float:
        return self.now

    # As the hub

    def subscription_to(self, _node: Any) -> Any:
        return FakeSubscription(self)

    def soon(self, do: Callable[[], object]) -> None:
        do()

    # As the Cluster

    def node_of(self, _keys: LockKeys) -> Any:
        return self.serving

    def sent_on(self, _node: Any, failure: Any) -> tuple[Any, bool] | None:
        if not failure.why.startswith("MOVED"):
            return None
        self.serving = self.nodes[1]
        return self.serving, False

    # As the test

    def wait(self, name: str) -> FakeWaiter:
        """Register a waiter, and have its channel asked for."""
        waiter: Any = FakeWaiter(lock_keys("lock", name))
        self.waiters[name.encode()] = waiter
        self.names.begin_to_listen(waiter.keys)
        found: FakeWaiter = waiter
        return found

    def is_heard(self, name: str) -> bool:
        return self.names.is_heard(lock_keys("lock", name))

    def listening(self, name: str = "a") -> FakeSubscription:
        """Let a waiter listen; return the subscription."""
        self.wait(name)
        subscription: FakeSubscription = self.subscriptions[-1]
        assert subscription.said() == [("ssubscribe", name)]
        subscription.hears("ssubscribe", name)
        assert self.is_heard(name)
        return subscription


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_channel_is_asked_for_once_and_heard_once_it_is_confirmed(scene: Scene) -> None:
    waiters = [scene.wait("a"), scene.wait("a")]
    (one,) = scene.subscriptions
    assert one.said() == [("ssubscribe", "a")]
    assert one.said() == []
    assert not scene.is_heard("a")
    one.hears("ssubscribe", "a")
    assert scene.is_heard("a")
    one.hears("ssubscribe", "a")  # an exception has struck the first reader
    assert scene.is_heard("a")
    assert [waiter.looks for waiter in waiters] == [0, 0], "nothing was published before there was a channel"


def test_a_waiter_looks_when_its_channel_is_confirmed_where_the_slot_has_moved(scene: Scene) -> None:
    one = scene.listening()
    (waiter,) = scene.waiters.values()
    one.hears("sunsubscribe", "a")
    assert not scene.is_heard("a")
    assert one.said() == [("ssubscribe", "a")]
    assert one.refuses(f"MOVED {slot_of(lock_keys('lock', 'a'))} b:1")
    other = scene.subscriptions[1]
    assert other.said() == [("ssubscribe", "a")]
    assert waiter.looks == 0, "a message after this look would be lost"
    other.hears("ssubscribe", "a")
    assert scene.is_heard("a")
    assert waiter.looks == 1


def test_after_a_connection_is_lost_the_channels_in_use_are_asked_for_again(scene: Scene) -> None:
    one = scene.listening()
    scene.listening("b")
    del scene.waiters[b"b"]
    (waiter,) = scene.waiters.values()
    late = one.channels
    one.channels = late.anew()
    assert not scene.is_heard("a")
    assert one.said() == [("ssubscribe", "a")]
    late.hear([b"ssubscribe", b"lock:{a}:client:me", 1])
    assert not scene.is_heard("a"), "a late reader of the last connection confirms nothing"
    one.hears("ssubscribe", "a")
    assert (scene.is_heard("a"), waiter.looks) == (True, 1)


def test_a_refused_channel_is_asked_for_again_in_a_while(scene: Scene) -> None:
    scene.wait("a")
    (one,) = scene.subscriptions
    assert one.said() == [("ssubscribe", "a")]
    assert one.refuses("NOPERM no permissions to access a channel")
    assert one.said() == []
    scene.now += SCAN_SECONDS
    assert one.said() == [("ssubscribe", "a")]


def test_a_refusal_that_is_no_reply_is_none(scene: Scene) -> None:
    one = scene.listening()
    assert not one.refuses("ERR what?")
    assert not one.channels.hear([b"message", b"a", b"b"])


def test_an_unused_channel_is_kept_for_a_while_and_then_given_up(scene: Scene) -> None:
    one = scene.listening()
    scene.now += SCAN_SECONDS
    assert one.said() == []
    scene.waiters.clear()
    scene.now += KEPT_SECONDS - 0.001
    assert one.said() == []
    scene.now += SCAN_SECONDS
    assert one.said() == [("sunsubscribe", "a")]
    assert not scene.is_heard("a")


def test_a_channel_that_is_wanted_while_it_is_given_up_is_asked_for_again(scene: Scene) -> None:
    one = scene.listening()
    scene.waiters.clear()
    scene.now += KEPT_SECONDS
    assert one.said() == [("sunsubscribe", "a")]
    waiter = scene.wait("a")
    assert one.said() == [("ssubscribe", "a")]
    one.hears("sunsubscribe", "a")
    assert not scene.is_heard("a")
    one.hears("ssubscribe", "a")
    assert (scene.is_heard("a"), waiter.looks) == (True, 0)


def test_a_waiter_that_comes_at_the_very_moment_keeps_the_channel(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter registers after the first look, and sees the channel still confirmed or already not."""
    one = scene.listening()
    scene.waiters.clear()
    scene.now += KEPT_SECONDS
    used_at, looks = scene.names.used_at, list[bool]()

    def come_late(node: Any) -> set[str]:
        found = used_at(node)
        if not looks:
            scene.wait("a")
        looks.append(scene.is_heard("a"))
        return found

    monkeypatch.setattr(scene.names, "used_at", come_late)
    assert one.said() == []
    assert looks == [True, False], "the channel is out of the confirmed ones before the second look"
    assert scene.is_heard("a")


def test_an_end_of_the_server_s_own_is_no_reply_to_ours(scene: Scene) -> None:
    """The slot moves while the channel is given up: the server ends it, and refuses our command with another's name."""
    one = scene.listening()
    scene.waiters.clear()
    scene.now += KEPT_SECONDS
    assert one.said() == [("sunsubscribe", "a")]
    scene.wait("b")
    assert one.said() == [("ssubscribe", "b")]
    one.hears("sunsubscribe", "a")
    assert one.refuses(f"MOVED {slot_of(lock_keys('lock', 'a'))} b:1")
    one.hears("ssubscribe", "b")
    assert scene.is_heard("b")


def test_of_too_many_unused_channels_the_oldest_are_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "UNUSED_MAX", 2)
    one = scene.listening("a")
    for name in "bcd":
        scene.now += 1
        scene.wait(name)
        one.said()
        one.hears("ssubscribe", name)
    del scene.waiters[b"a"], scene.waiters[b"b"], scene.waiters[b"c"]
    scene.now += SCAN_SECONDS
    assert one.said() == [("sunsubscribe", "a")]
    scene.wait("e")
    assert one.said() == [("ssubscribe", "e")]


def test_a_subscription_to_a_node_without_slots_ends_and_its_names_are_asked_for_elsewhere(scene: Scene) -> None:
    one = scene.listening()
    scene.servers, scene.serving = scene.nodes[1:], scene.nodes[1]
    scene.names.follow()
    assert one.has_stopped
    (other,) = scene.subscriptions
    assert other.said() == [("ssubscribe", "a")]


def test_only_the_subscription_to_the_node_that_has_the_slot_is_current(scene: Scene) -> None:
    """A grant that comes over another one does not count, as the calls go elsewhere."""
    one, keys = scene.listening(), lock_keys("lock", "a")
    assert scene.names.is_current(keys, one)
    scene.serving = scene.nodes[1]
    assert not scene.names.is_current(keys, one)
    assert not scene.is_heard("a")
    scene.serving = None
    assert not scene.names.is_current(keys, one)


def test_after_the_close_no_subscription_begins(scene: Scene) -> None:
    scene.names.close()
    scene.wait("a")
    (one,) = scene.subscriptions
    assert one.has_stopped
