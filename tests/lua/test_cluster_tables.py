"""Scripts for a Cluster: which channel a waiter is told on, and when the lock is given."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import redis
from attrs import define
from support.script_master import LEASE_MS, SHORT_MS, USUAL, ScriptMaster, real_master
from support.servers import Server

from relock._keys import LockKeys, latch_keys, lock_keys, permit_keys
from relock._scripts import load

KEYS = lock_keys("lock", "a}b")
HOLDER = b"me:0123456789abcdef"
DEAD, YOU, OLD = b"dead:$1@3000", b"you:$1@3000", b"you:1@3000"
MANY = [b"dead%d:$1@3000" % number for number in range(80)]  # more than are told one by one


@define
class Master(ScriptMaster):
    KEYS = KEYS

    def call(self, operation: str, keys: LockKeys = KEYS, **arguments: Any) -> list[Any]:
        script = load(keys.script_name(operation)).on_cluster
        given = {**USUAL, "not_after_us": b"%d" % 2**52, "incarnation": b"run:id", "guard_ms": 0, **arguments}
        ordered = [given[p.name] for p in script.arguments]
        names = [getattr(keys, p.name) for p in script.keys if not p.optional]
        reply = self.redis.eval(script.source, len(names), *names, *ordered)
        return reply.split() if isinstance(reply, bytes) else list(reply)

    def wait(self, *waiters: bytes, keys: LockKeys = KEYS) -> None:
        for place, waiter in enumerate(waiters):
            self.redis.zadd(keys.queue, {waiter: place + 1})
            self.redis.zadd(keys.waiters, {waiter: self.now_us() // 1000 + SHORT_MS})

    def listen_by_name(self, *clients: str) -> None:
        for client in clients:
            subscriber = self.redis.pubsub()
            subscriber.ssubscribe(f"{KEYS.lock.decode()}:client:{client}")
            assert subscriber.get_message(timeout=30)["type"] == "ssubscribe"
            self.subscribers.append(subscriber)

    def words(self) -> list[bytes]:
        """Return the first two words of each message."""
        return [b" ".join(message.split()[:2]) for message in self.told()]

    def release(self) -> list[Any]:
        self.redis.hset(KEYS.lock, HOLDER, 1)
        return self.call("release", owner=HOLDER)[:1]


@pytest.fixture
def master(server: Server) -> Iterator[Master]:
    yield from real_master(Master, server)


@pytest.mark.parametrize(
    ("queue", "listening", "told", "given"),
    [
        ([YOU], "by name", b"grant $1@3000", YOU),
        ([DEAD, YOU], "by name", b"grant $1@3000", YOU),
        ([*MANY, YOU], "by name", b"grant $1@3000", YOU),
        ([*MANY, OLD], "by client", b"wake 1@3000", None),
        ([OLD], "by client", b"wake 1@3000", None),
        ([DEAD, OLD], "by client", b"wake 1@3000", None),
        ([YOU], "by client", None, None),  # it does not listen where its name says
        ([OLD], "by name", None, None),
        ([b"dead:1@3000", YOU], "by name", None, None),  # nobody knows if the first one lives
        ([b"you:$1#1/1", DEAD], "by name", b"wake $1#1/1", None),  # another version's mark: it takes no grants
    ],
)
def test_a_release_tells_the_first_waiter_where_its_name_says(
    master: Master, queue: Sequence[bytes], listening: str, told: bytes | None, given: bytes | None
) -> None:
    master.wait(*queue)
    (master.listen_by_name if listening == "by name" else master.listen)("you")
    assert master.release() == [b"released"]
    assert master.words() == ([] if told is None else [told])
    holders = [holder.partition(b"~")[0] for holder in master.redis.hkeys(KEYS.lock)]
    assert holders == ([] if given is None else [given])
    left = [waiter for waiter in queue if waiter != given]
    assert master.queue() == left, "a waiter that may be alive keeps its place"


@pytest.mark.parametrize(("name", "status"), [("acquire", b"refused"), ("enqueue", b"queued"), ("leave", b"absent")])
def test_a_script_that_finds_a_free_lock_wakes_the_first_that_listens(master: Master, name: str, status: bytes) -> None:
    master.wait(DEAD, YOU)
    master.listen_by_name("you")
    assert master.call(name, owner=b"x:$2", count=1)[0] == status
    assert master.words() == [b"wake $1@3000"]


def test_a_release_ends_the_hold_though_its_message_is_refused(master: Master, server: Server) -> None:
    server.cli("ACL", "SETUSER", "mute", "reset", "on", ">x", "~*", "&*", "+@all", "-spublish")
    master.wait(YOU, b"they:$1@3000")
    master.listen_by_name("you", "they")
    url = server.url.replace("://", "://mute:x@")
    with closing(redis.Redis.from_url(url)) as client:
        assert Master(client).release() == [b"released"]
    assert master.words() == []
    assert master.redis.hkeys(KEYS.lock) == []
    assert master.queue() == [YOU, b"they:$1@3000"]


def test_a_semaphore_gives_a_permit_to_a_waiter_on_the_channel_of_its_name(master: Master) -> None:
    keys, waiter = permit_keys("lock", "a}b"), b"you:$1#1/1@3000"
    master.listen_by_name("you")
    master.call("acquire", keys, owner=b"me:$1#1/1", slot=-1)
    master.wait(waiter, keys=keys)
    assert master.call("release", keys, owner=b"me:$1#1/1")[0] == b"released"
    assert master.words() == [b"grant $1#1/1@3000"]


def test_an_open_latch_wakes_each_waiter_where_it_listens(master: Master) -> None:
    keys = latch_keys("lock", "a}b")
    master.listen_by_name("you")
    master.listen("old")
    for waiter in (b"you:$1!", b"old:1!"):
        master.redis.zadd(keys.waiters, {waiter: master.now_us() // 1000 + SHORT_MS})
    arguments = {"party": b"p", "parties": 1, "ttl_ms": LEASE_MS}
    script = load("latch_arrive").on_cluster
    names = [getattr(keys, p.name) for p in script.keys]
    master.redis.eval(script.source, len(names), *names, *arguments.values(), b"%d" % 2**52)
    assert sorted(master.words()) == [b"wake $1!", b"wake 1!"]


def test_a_question_goes_to_a_client_and_not_to_a_name(master: Master) -> None:
    master.listen("you")
    master.listen_by_name("you")
    reply = master.call("notify", client=b"you", message=b"ask me 1 you:$1")
    assert (reply[0], reply[2]) == (b"told", -1), "a node does not count the subscribers of the others"
    assert master.words() == [b"ask me"]
