"""Scripts for a lock that is shared with Redisson: what its waiters are told, and when."""

from typing import Any

import pytest
from attrs import define
from support.script_master import LEASE_MS, QUEUE_MS, TOKEN_MS, ScriptMaster, run_virtual

from relock._keys import SCRIPTS_FOR_REDISSON, redisson_channel, redisson_keys
from relock._scripts import load, load_for_redisson
from relock.testing._master import VirtualMaster

KEYS = redisson_keys("lock", "a")
CHANNEL = redisson_channel(KEYS.lock).decode()
FAIR_QUEUE = b"redisson_lock_queue:" + KEYS.lock
THREAD = "8743c9c0-0795-4907-87fd-6c719a6b4586:57"
ME, YOU = b"me:0123456789abcdef", b"you:1@3000"
TOLD = b"00"


@define
class Master(ScriptMaster):
    KEYS = KEYS

    def hold(self, owner: bytes = ME) -> None:
        self.redis.hset(KEYS.lock, owner, 1)
        self.redis.pexpire(KEYS.lock, LEASE_MS)

    def wait(self, waiter: bytes = YOU) -> None:
        self.redis.zadd(KEYS.queue, {waiter: 1})
        self.redis.zadd(KEYS.waiters, {waiter: self.now_us() // 1000 + QUEUE_MS})

    def listen_on(self, *channels: str) -> None:
        for channel in channels:
            subscriber = self.redis.pubsub()
            subscriber.subscribe(channel)
            assert subscriber.get_message(timeout=30)["type"] == "subscribe"
            self.subscribers.append(subscriber)

    def call(self, operation: str, keys: Any = KEYS, **arguments: Any) -> Any:
        return self.run(load(keys.script_name(operation)), arguments, (), guarded=False)[0]

    def release(self, hand: int = 1, fence: int = 0, keys: Any = KEYS) -> Any:
        return self.call("release", keys, owner=ME, fence=fence, token_ms=TOKEN_MS, hand=hand)


@pytest.mark.parametrize("fence", [0, 10**15])
def test_a_release_that_nobody_waits_for_tells_redisson(master: Master, fence: int) -> None:
    master.listen_on(CHANNEL)
    master.hold()
    assert master.release(fence=fence) == b"released"
    assert master.told() == [TOLD]


def test_a_release_tells_the_first_in_redissons_queue(master: Master) -> None:
    master.listen_on(f"{CHANNEL}:{THREAD}", f"{CHANNEL}:other:1")
    master.redis.rpush(FAIR_QUEUE, THREAD, "other:1")
    master.hold()
    assert master.release() == b"released"
    assert master.told() == [TOLD]


def test_a_queue_of_redissons_that_is_no_list_harms_nothing(master: Master) -> None:
    master.listen_on(CHANNEL)
    master.redis.set(FAIR_QUEUE, "x")
    master.hold()
    assert master.release() == b"released"
    assert master.told() == [TOLD]


def test_redisson_is_told_before_a_waiter_is_woken(master: Master) -> None:
    subscriber = master.redis.pubsub()
    subscriber.subscribe(CHANNEL, "lock:client:you")
    assert [subscriber.get_message(timeout=30)["type"] for _ in range(2)] == ["subscribe"] * 2
    master.subscribers.append(subscriber)
    master.hold()
    master.wait()
    assert master.release(hand=0) == b"released"
    assert [message.split()[0] for message in master.told()] == [TOLD, b"wake"]


def test_redisson_is_told_if_no_waiter_listens(master: Master) -> None:
    master.listen_on(CHANNEL)
    master.hold()
    master.wait()
    assert master.release() == b"released"
    assert master.told() == [TOLD]


@pytest.mark.parametrize("operation", ["give_back", "force_release"])
def test_an_attempt_given_back_or_a_forced_end_tells_redisson(master: Master, operation: str) -> None:
    calls: dict[str, dict[str, Any]] = {
        "give_back": {"owner": ME, "ticket": 0, "alive_ms": 7_000, "queue_ms": QUEUE_MS},
        "force_release": {"fence": 0, "lease_ms": LEASE_MS},
    }
    given = calls[operation]
    master.listen_on(CHANNEL)
    assert master.call(operation, **given) == b"absent"
    assert master.told() == []
    master.hold()
    assert master.call(operation, **given) == b"released"
    assert master.told() == [TOLD]


def test_a_release_that_ends_nothing_tells_nobody(master: Master) -> None:
    master.listen_on(CHANNEL)
    assert master.release() == b"absent"
    master.hold(b"8743c9c0-0795-4907-87fd-6c719a6b4586:57")
    assert master.release() == b"absent"
    assert master.told() == []


def test_a_writer_that_leaves_its_own_reader_tells_nobody(master: Master) -> None:
    master.listen_on(CHANNEL)
    master.hold()
    master.hold(b"me:&0123456789abcde0")
    assert master.release() == b"released"
    assert master.told() == []


def test_the_usual_scripts_tell_redisson_nothing() -> None:
    for name in SCRIPTS_FOR_REDISSON:
        assert b"'redisson" not in load(name).source
    assert all(b"'redisson" in script.source for script in load_for_redisson())


@pytest.mark.parametrize("digit", range(8))
def test_one_release_in_eight_gives_the_lock_to_nobody(digit: int) -> None:
    """Otherwise waiters of relock would never leave the lock to one of Redisson's."""
    now = 1_790_000_000_000_000 + digit
    master, told = VirtualMaster(lambda: now, "this"), list[tuple[bytes, bytes]]()
    for channel in (CHANNEL.encode(), b"lock:client:you"):
        master.subscribe(channel, lambda channel, message: told.append((channel, message.split()[0])))
    given = {"not_after_us": now + 10**6}
    acquire = {"count": 1, "lease_ms": LEASE_MS, "fair": 1}
    run_virtual(master, KEYS, "acquire", owner=ME, token_ms=TOKEN_MS, proposal=0, **acquire, **given)
    queueing = {"ticket": 0, "alive_ms": 7_000, "queue_ms": QUEUE_MS}
    assert run_virtual(master, KEYS, "enqueue", owner=YOU, **acquire, **queueing, **given)[0] == b"queued"
    name = KEYS.script_name("release")
    assert run_virtual(master, KEYS, name, owner=ME, fence=0, token_ms=TOKEN_MS, hand=1, **given)[0] == b"released"
    if now % 8:
        assert told == [(b"lock:client:you", b"grant")]
    else:
        assert told == [(CHANNEL.encode(), TOLD), (b"lock:client:you", b"wake")]
