"""The scripts of wire version 2 and these on one master: neither can tell whose hold, queue or token it finds.

`wire2` has the scripts of commit d1eaed6, the last of version 2 that is kept, with their fragments where that commit
put them in. Each client sends its own; so they meet only in what they store and publish.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import redis
from attrs import define, field
from support.replies import as_list
from support.servers import Server

from relock._keys import lock_keys
from relock._scripts import load

pytestmark = pytest.mark.every_server

KEYS = lock_keys("lock", "a")
LEASE_MS, GUARD_MS = 30_000, 500
FAR = b"%016d" % 2**52
# The uuid of a hold; its last 16 characters are in the name of the hold that it makes room for.
ME = b"me:0123456789abcdef0123"
YOU, THEY = b"you:1@3000", b"they:1@3000"
OLD, NEW = 2, 3
BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [(OLD, NEW), (NEW, OLD)], ids=["2 then 3", "3 then 2"])
OLD_NAMES = {"heartbeat": "tend"}  # scripts that are the same but for their names
TURNS = list(itertools.product([OLD, NEW], repeat=3))


@cache
def signature(version: int, name: str) -> tuple[str, list[str], list[str]]:
    """A script's text, and the names of its keys and arguments; those of version 2 are read without our loader."""
    if version == NEW:
        script = load(name)
        return script.source.decode(), [key.name for key in script.keys], [one.name for one in script.arguments]
    file = Path(__file__).parent / "wire2" / f"{OLD_NAMES.get(name, name)}.lua"
    head, _, body = file.read_text().partition("\n\n")
    lines = [line.removeprefix("--").strip() for line in head.splitlines()]
    keys, arguments, returns = (lines.index(title) for title in ("KEYS", "ARGV", "RETURNS"))
    return (
        body,
        [line.split()[0] for line in lines[keys + 1 : arguments]],
        [line.split()[0] for line in lines[arguments + 1 : returns]],
    )


@define
class Master:
    """One server with clients of both versions, and those who listen there."""

    redis: Any
    incarnation: str
    subscribers: list[Any] = field(factory=list)

    def call(self, version: int, name: str, owner: bytes, *rest: Any, guarded: bool = False, **other: Any) -> list[Any]:
        source, keys, arguments = signature(version, name)
        socket = f"{self.incarnation}?{0:016d}" if guarded and version == NEW else self.incarnation
        given = {"owner": owner, "client": owner.partition(b":")[0], "count": 1, "fair": 1, "fence": 0, "hand": 1}
        given |= {"lease_ms": LEASE_MS, "token_ms": LEASE_MS + 1_000, "alive_ms": 7_000, "queue_ms": 30_000}
        given |= {"proposal": 0, "ticket": 0, "not_after_us": FAR, "incarnation": socket, "guard_ms": GUARD_MS, **other}
        named = [getattr(KEYS, key) for key in keys if guarded or key != "master"]
        given["void_us"] = given["not_after_us"]
        ordered = [given[argument] for argument in arguments if argument != "..."]
        found: list[Any] = as_list(self.redis.eval(source, len(named), *named, *ordered, *rest))
        return found

    def acquire(self, version: int, owner: bytes = ME, **other: Any) -> list[Any]:
        return self.call(version, "acquire", owner, **other)

    def enqueue(self, version: int, owner: bytes, **other: Any) -> list[Any]:
        return self.call(version, "enqueue", owner, **other)

    def release(self, version: int, owner: bytes = ME, **other: Any) -> list[Any]:
        return self.call(version, "release", owner, **other)

    def listen(self, *clients: str) -> None:
        for client in clients:
            subscriber = self.redis.pubsub()
            subscriber.subscribe(f"lock:client:{client}")
            assert subscriber.get_message(timeout=5)["type"] == "subscribe"
            self.subscribers.append(subscriber)

    def told(self) -> list[bytes]:
        messages = []
        for subscriber in self.subscribers:
            while (message := subscriber.get_message(timeout=0.05)) is not None:
                messages.append(message["data"])
        return messages

    def holders(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.redis.hgetall(KEYS.lock)
        return found


@pytest.fixture
def master(server: Server) -> Iterator[Master]:
    with closing(redis.Redis.from_url(server.url)) as client:
        client.flushall()
        info = client.info()
        made = Master(client, f"{info['run_id']}:{info['master_replid']}")
        yield made
        for subscriber in made.subscribers:
            subscriber.close()


@BOTH_WAYS
def test_a_hold_of_the_other_version_is_respected(master: Master, first: int, second: int) -> None:
    assert master.acquire(first)[0] == b"granted"
    status, _, left_ms, _, holder = master.acquire(second, YOU)
    assert (status, holder) == (b"refused", ME)
    assert 0 < left_ms <= LEASE_MS
    assert master.enqueue(second, YOU)[4] == ME
    for name in ("count", "extend", "release"):
        assert master.call(second, name, THEY)[0] == b"absent"
    assert master.holders() == {ME: b"1"}


@BOTH_WAYS
def test_a_hold_of_the_other_version_is_repeated_counted_renewed_and_released(
    master: Master, first: int, second: int
) -> None:
    """As by a client that was upgraded in between, and goes on under the same name."""
    token = master.acquire(first, lease_ms=5_000, token_ms=6_000)[2]
    assert master.acquire(second, lease_ms=5_000, token_ms=6_000)[2] == token
    assert master.call(second, "count", ME, count=2, lease_ms=0)[0] == b"counted"
    assert master.holders() == {ME: b"2"}
    assert master.call(second, "extend", ME)[0] == b"extended"
    assert 5_000 < master.redis.pttl(KEYS.lock) < master.redis.pttl(KEYS.token)
    assert master.release(second)[0] == b"released"
    assert master.release(first)[0] == b"absent"
    assert not master.redis.exists(KEYS.lock)


@pytest.mark.parametrize(("holder", "waiter", "last"), TURNS)
def test_a_release_hands_over_to_a_waiter_of_whichever_version(
    master: Master, holder: int, waiter: int, last: int
) -> None:
    """Three clients, one after the other; the second is renewed and released under the name that it was given."""
    master.listen("you", "they")
    token = master.acquire(holder)[2]
    first = master.enqueue(waiter, YOU)
    second = master.enqueue(last, THEY)
    assert [first[0], second[0], second[3]] == [b"queued", b"queued", 1]
    for version, grantee in ((holder, YOU), (waiter, THEY)):
        (owner,) = master.holders()
        assert master.call(version, "extend", owner, lease_ms=3_000, token_ms=4_000)[0] == b"extended"
        assert master.release(version, owner)[0] == b"released"
        (message,) = master.told()
        kind, uuid, tail, given, _, lease_ms, server, name = message.split()
        assert (kind, uuid, lease_ms, server, name) == (
            *(b"grant", grantee.partition(b":")[2], b"3000"),
            *(master.incarnation.encode(), b"a"),
        )
        assert master.holders() == {grantee + b"~" + tail: b"1"}
        assert int(given) > token
        token = int(given)
    assert master.release(last, next(iter(master.holders())))[0] == b"released"
    assert not master.redis.exists(KEYS.lock, KEYS.queue, KEYS.waiters)


@BOTH_WAYS
def test_a_newcomer_wakes_the_first_waiter_of_the_other_version_and_does_not_pass_it(
    master: Master, first: int, second: int
) -> None:
    master.listen("you")
    master.acquire(first)
    master.enqueue(first, YOU)
    master.redis.delete(KEYS.lock)  # the lease is over, which nobody publishes
    assert master.acquire(second, THEY)[0] == b"refused"
    assert master.enqueue(second, THEY)[0] == b"queued"
    assert set(master.told()) == {b"wake 1@3000 a"}
    assert master.call(first, "heartbeat", YOU, 1, YOU)[3] == YOU
    assert master.enqueue(first, YOU)[0] == b"granted"


@BOTH_WAYS
def test_a_release_that_hands_nothing_over_wakes_a_waiter_of_the_other_version(
    master: Master, first: int, second: int
) -> None:
    master.listen("you")
    master.acquire(first)
    master.enqueue(second, YOU)
    assert master.release(first, hand=0)[0] == b"released"
    assert master.told() == [b"wake 1@3000 a"]
    assert master.enqueue(second, YOU)[0] == b"granted"


@pytest.mark.parametrize("versions", [[OLD, NEW] * 3, [NEW, NEW, OLD, OLD, NEW]], ids=["in turn", "twice each"])
def test_tokens_rise_over_both(master: Master, versions: Sequence[int]) -> None:
    """Also above one that is ahead of the clock, which a release of the other version has written back."""
    ahead = 2 * 10**15
    tokens = []
    for turn, version in enumerate(versions):
        tokens.append(master.acquire(version)[2])
        master.release(version, fence=ahead if turn == 1 else 0)
    assert tokens == sorted(set(tokens))
    assert tokens[2] == ahead + 1


@BOTH_WAYS
def test_a_guard_that_one_has_begun_counts_for_the_other(master: Master, first: int, second: int) -> None:
    status, now_us, until_us = master.acquire(first, guarded=True)
    assert (status, until_us) == (b"no_vote", now_us + GUARD_MS * 1000)
    assert master.acquire(second, guarded=True)[2] == until_us
    master.redis.hset(KEYS.master, "no_vote_until_us", now_us)
    for version in (second, first):
        assert master.acquire(version, guarded=True)[0] == b"granted"
        assert master.release(version, guarded=True)[0] == b"released"
