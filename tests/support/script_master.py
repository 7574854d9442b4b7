"""One server, fake or real, for tables of single scripts: a state, a call, the reply, the new state."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar, TypeVar

import fakeredis
import redis
from attrs import Factory, define

from relock._keys import LockKeys
from relock._scripts import Script, load
from relock.testing._master import VirtualMaster
from support.replies import as_list
from support.servers import Server

FAR = 2**52  # a not-after time that never comes
LEASE_MS, TOKEN_MS, QUEUE_MS, ALIVE_MS, SHORT_MS = 30_000, 31_000, 20_000, 7_000, 5_000
USUAL: dict[str, Any] = {"lease_ms": LEASE_MS, "token_ms": TOKEN_MS, "fair": 1, "hand": 1, "proposal": 0, "ticket": 0}
USUAL |= {
    "alive_ms": ALIVE_MS,
    "queue_ms": QUEUE_MS,
    "rest_ms": LEASE_MS,
    "fence": 0,
    "limit": 9,
    "not_after_us": FAR,
    "guard_ms": 0,
}
M = TypeVar("M", bound="ScriptMaster")
S = TypeVar("S")
KEY_NAMES = ("permits", "latch", "lock", "queue", "waiters", "token", "leases", "limit", "master")
LIFETIMES_MS = {  # by the words of the headers: the shortest and the longest lifetime in `check_header`
    "none": (-1, -1),
    "lease_ms": (LEASE_MS - SHORT_MS, LEASE_MS),
    "rest_ms": (LEASE_MS - SHORT_MS, LEASE_MS),
    "the latest lease": (1, LEASE_MS + 1),
    "the latest lease, or the lease that a waiter may be given": (1, LEASE_MS + 1),
    "alive_ms": (ALIVE_MS - SHORT_MS, ALIVE_MS),
    "queue_ms": (QUEUE_MS - SHORT_MS, QUEUE_MS),
    "token_ms": (LEASE_MS + 1, TOKEN_MS),
    "ttl_ms": (LEASE_MS - SHORT_MS, LEASE_MS),
    "the lease and what the token is ahead of the clock": (3_001, 2 * LEASE_MS + 1_001),
    "what the waiter's name says: the lease that it may be given": (1, 3_000),
}


@define
class ScriptMaster:
    """One server, and a subscriber for each client that must listen.

    Attributes:
        KEYS: the keys of the lock or the semaphore.
        incarnation: the incarnation that the server tells; fakeredis tells none.
    """

    KEYS: ClassVar[LockKeys]

    redis: Any
    subscribers: list[Any] = Factory(list)
    incarnation: bytes = b"this"

    def now_us(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds) * 1_000_000 + int(micros)

    def run(self, script: Script, given: dict[str, Any], rest: tuple[Any, ...], *, guarded: bool) -> list[Any]:
        """Run a script with these arguments and those of its connection; return the reply as an array."""
        given = {"not_after_us": FAR, "incarnation": self.incarnation, "guard_ms": 0, **given}
        given["not_after_us"] = b"%016d" % given["not_after_us"]
        if guarded:
            given["incarnation"] += given.get("proof", b"?") + b"%016d" % 0  # the last vote on this socket was long ago
        ordered = [given[p.name] for p in script.arguments if p.name != "..."]
        keys = [getattr(self.KEYS, p.name) for p in script.keys if guarded or not p.optional]
        reply = self.redis.eval(script.source, len(keys), *keys, *ordered, *rest)
        found: list[Any] = as_list(reply)
        assert isinstance(reply, bytes) is (found[0] in script.in_words), "the reply has the form that the header names"
        return found

    def listen(self, *clients: str) -> None:
        for client in clients:
            subscriber = self.redis.pubsub()
            subscriber.subscribe(f"lock:client:{client}")
            assert subscriber.get_message(timeout=5)["type"] == "subscribe"
            self.subscribers.append(subscriber)

    def told(self) -> list[bytes]:
        """Return all that was published to the listeners."""
        messages = []
        for subscriber in self.subscribers:
            while (message := subscriber.get_message(timeout=0.05)) is not None:
                messages.append(message["data"])
        return messages

    def queue(self) -> list[bytes]:
        waiting: list[bytes] = self.redis.zrange(self.KEYS.queue, 0, -1)
        assert set(waiting) == set(self.redis.zrange(self.KEYS.waiters, 0, -1)), "queue and waiters have the same names"
        return waiting

    def seen(self) -> dict[str, tuple[Any, int]]:
        """Return the content of each key, and how long (ms) the key lives."""
        content: dict[str, Any] = {}
        for name in KEY_NAMES:
            key = None if name == "lock" and content else getattr(self.KEYS, name, None)
            kind = key and self.redis.type(key)
            if kind == b"hash":
                content[name] = set(self.redis.hgetall(key).items())
            elif kind == b"zset":
                content[name] = set(self.redis.zrange(key, 0, -1))
            elif kind == b"string":
                content[name] = {self.redis.get(key)}
        return {name: (held, self.redis.pttl(getattr(self.KEYS, name))) for name, held in content.items()}


@define
class LeasedMaster(ScriptMaster):
    """A server with holds that have leases of their own: permits of a semaphore, or readers of a lock.

    Attributes:
        DEFAULTS: usual arguments of the scripts.
        is_on_cluster: the scripts are those for a Cluster, where no listeners are counted.
    """

    DEFAULTS: ClassVar[dict[str, Any]]

    is_on_cluster: bool = False

    def hold(self, owner: bytes, value: int = 0, left_ms: int = LEASE_MS) -> None:
        """Put a hold there, and how long (ms) its lease runs from now on."""
        self.redis.hset(self.KEYS.lock, owner, value)
        self.redis.zadd(self.KEYS.leases, {owner: self.now_us() // 1000 + left_ms})
        for key in (self.KEYS.lock, self.KEYS.leases):
            self.redis.pexpire(key, LEASE_MS)

    def wait(self, *waiters: bytes, left_ms: int = 10_000) -> None:
        """Put waiters into the queue, in this order behind those that are there."""
        for waiter in waiters:
            self.redis.zadd(self.KEYS.queue, {waiter: self.redis.zcard(self.KEYS.queue) + 1})
            self.redis.zadd(self.KEYS.waiters, {waiter: self.now_us() // 1000 + left_ms})
        for key in (self.KEYS.queue, self.KEYS.waiters):
            self.redis.pexpire(key, SHORT_MS)

    def call(self, operation: str, *rest: Any, guarded: bool = False, **arguments: Any) -> list[Any]:
        return self.call_script(self.KEYS.script_name(operation), *rest, guarded=guarded, **arguments)

    def call_script(self, name: str, *rest: Any, guarded: bool = False, **arguments: Any) -> list[Any]:
        script = load(name)
        script = script.on_cluster if self.is_on_cluster else script
        found = self.run(script, {**self.DEFAULTS, **arguments}, rest, guarded=guarded)
        assert script.shapes[found[0]] == [*map(type, found)]
        return found

    def holders(self) -> dict[bytes, int]:
        """Return the value of each owner. Each has a lease."""
        found = {owner: int(value) for owner, value in self.redis.hgetall(self.KEYS.lock).items()}
        assert set(found) == set(self.redis.zrange(self.KEYS.leases, 0, -1)), "holds and leases have the same names"
        return found


def run_virtual(master: VirtualMaster, keys: LockKeys, name: str, *rest: Any, **given: Any) -> list[Any]:
    """Run the script of this name on a master of the lab; return the reply as an array."""
    script = load(name)
    made = script.call(keys, *rest, **{argument: given[argument] for argument in script.own_arguments})
    reply = master.execute(made, given["not_after_us"], b"this:repl", 0)
    found: list[Any] = as_list(reply)
    parsed = script.parse_words(reply) if isinstance(reply, bytes) else found
    assert parsed is not None
    return parsed


def check_header(
    master: ScriptMaster, name: str, states: Iterable[S], prepare: Callable[[S], None], call: Callable[[int], object]
) -> None:
    """Check that a script, called in each of these states, writes and publishes what its header says, and no more."""
    header = load(name).header
    written = set()
    says = dict(line.split(None, 1) for line in header["WRITES"] if line != "none")
    master.listen("you", "they")
    for state in states:
        master.redis.flushall()
        prepare(state)
        before = master.seen()
        call(master.now_us() + 1_000_000)
        for kept, (held, left_ms) in master.seen().items():
            was, was_left_ms = before.get(kept, (set(), 0))
            if not held <= was or not -1 < left_ms <= was_left_ms:
                written.add(kept)
                low, high = LIFETIMES_MS[says[kept]]
                assert low <= left_ms <= high, (kept, state)
    assert written == set(says)
    told = {message.split()[0].decode() for message in master.told()}
    assert told == {line.split()[0] for line in header["PUBLISHES"]} - {"none"}


def check_repeats(
    master: ScriptMaster,
    states: Iterable[S],
    prepare: Callable[[S], None],
    call: Callable[[int], object],
    *,
    may_change: Sequence[str],
) -> None:
    """Check that a script that arrives twice changes nothing more, but lifetimes and the keys that `may_change`."""

    def left() -> dict[str, Any]:
        return {key: held for key, (held, _) in master.seen().items() if key not in may_change}

    master.listen("you", "they")
    for state in states:
        master.redis.flushall()
        prepare(state)
        fence = master.now_us() + 1_000_000
        call(fence)
        once = left()
        call(fence)
        assert left() == once, state


def fake_master(make: Callable[..., M]) -> Iterator[M]:
    """Yield a master on fakeredis, of its own, so that no script poisons another test's."""
    with closing(fakeredis.FakeRedis()) as client:
        yield from _made(make(client))


def real_master(make: Callable[..., M], server: Server, *, knows_incarnation: bool = False) -> Iterator[M]:
    """Yield a master on a real server; for scripts that ask for its incarnation, one that knows it."""
    with closing(redis.Redis.from_url(server.url)) as client:
        client.flushall()
        info = client.info()
        incarnation = {"incarnation": f"{info['run_id']}:{info['master_replid']}".encode()} if knows_incarnation else {}
        yield from _made(make(client, **incarnation))


def _made(master: M) -> Iterator[M]:
    yield master
    for subscriber in master.subscribers:
        subscriber.close()
