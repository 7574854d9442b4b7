"""One server, fake or real, for tables of single scripts: a state, a call, the reply, the new state."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, ClassVar, TypeVar

import fakeredis
import redis
from attrs import Factory, define

from relock._keys import LockKeys
from relock._scripts import Script
from support.replies import as_list
from support.servers import Server

FAR = 2**52  # a not-after time that never comes
M = TypeVar("M", bound="ScriptMaster")


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
            given["incarnation"] += b"?%016d" % 0  # the last vote on this socket was long ago
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
