"""Plans of the pages about migration: at each step, processes of the old and the new kind exclude each other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis
from support.servers import Server
from support.until import until
from workers.recipes import NODE_TIMEOUT, load

from relock import Client, Lock, LockLostError

LEASE = 60  # seconds, of the old lock
WITHIN = 60


class Old:
    """Lock of the library that is left, as a process takes it that knows no other."""

    example: str
    wait: float = 0.1  # seconds, of a try

    def __init__(self, server: Server, name: str) -> None:
        self.redis: redis.Redis = server.client()
        self.name = name
        self.lock = self.make()

    def make(self) -> Any:
        raise NotImplementedError

    def masters(self) -> Any:
        """Return what the example takes as its servers."""
        return self.redis

    def get(self) -> bool:
        """Return whether the lock could be taken at once."""
        return bool(self.lock.acquire(blocking=False))


class RedisPy(Old):
    example = "from_redis_py"

    def make(self) -> Any:
        return self.redis.lock(self.name, timeout=LEASE)


class PythonRedisLock(Old):
    example = "from_python_redis_lock"
    wait = 1  # whole seconds only

    def make(self) -> Any:
        redis_lock = pytest.importorskip("redis_lock", reason="it comes with the extra test")
        return redis_lock.Lock(self.redis, self.name, expire=LEASE)


class Pottery(Old):
    example = "from_pottery"

    def make(self) -> Any:
        pottery = pytest.importorskip("pottery", reason="it comes with the extra test")
        return pottery.Redlock(key=self.name, masters={self.redis}, auto_release_time=LEASE)

    def masters(self) -> Any:
        return {self.redis}


@pytest.fixture(params=[RedisPy, PythonRedisLock, Pottery], ids=lambda made: made.example)
def old(request: pytest.FixtureRequest, server: Server, name: str) -> Iterator[Old]:
    made = request.param(server, name)
    yield made
    made.redis.close()


@pytest.fixture
def both(old: Old, server: Server) -> Iterator[Callable[..., AbstractContextManager[Any]]]:
    """Take both locks, as a process of the second step does."""
    example = load(f"migration/{old.example}")
    with Client(server.url, node_timeout=NODE_TIMEOUT) as client:
        yield lambda wait: example.both(old.masters(), client, old.name, wait=wait)


@pytest.fixture
def new(server: Server, name: str) -> Iterator[Lock]:
    """Lock of a process of the third step, which knows no other."""
    with Client(server.url, node_timeout=NODE_TIMEOUT) as client:
        yield client.lock(name)


def test_processes_of_two_steps_that_follow_each_other_exclude_each_other(
    old: Old, both: Callable[..., AbstractContextManager[Any]], new: Lock
) -> None:
    with both(WITHIN) as held:
        held.ensure()
        assert not old.get()
        assert not new.acquire(blocking=False)

    assert old.get()
    with pytest.raises((redis.exceptions.LockError, TimeoutError)), both(old.wait):
        pytest.fail("a process of the first step is inside")
    assert not new.locked()
    old.lock.release()

    entered = threading.Event()

    def enter() -> None:
        with both(WITHIN):
            entered.set()

    second = threading.Thread(target=enter, daemon=True)
    with new:
        second.start()
        until(lambda: new.info().queue, within=WITHIN, what="a process of the second step waits")
        assert not old.get(), "it has the old lock while it waits for the new one"
        assert not entered.is_set()
    assert entered.wait(WITHIN)
    second.join(WITHIN)
    assert old.get(), "it has released the old one"
    old.lock.release()
    assert not new.locked()


def test_reset_all_of_python_redis_lock_ends_holds_of_relock(server: Server, new: Lock) -> None:
    redis_lock = pytest.importorskip("redis_lock", reason="it comes with the extra test")
    new.acquire()
    with server.client() as old:
        redis_lock.reset_all(old)
    with pytest.raises(LockLostError):
        new.extend()
    with pytest.raises(LockLostError):
        new.release()


def test_a_hold_of_redisson_on_the_same_key_is_respected(server: Server, name: str, new: Lock) -> None:
    """Redisson's RLock is a hash, as relock's: a client's UUID and a thread's number are its field."""
    key, java = f"lock:{{{name}}}", "3d7b5d71-2a1c-4a3e-9d6b-0d2f7c1b8a55:42"
    server.cli("HSET", key, java, 1)
    server.cli("PEXPIRE", key, 30_000)
    assert not new.acquire(blocking=False)
    assert new.info().owner == java
    server.cli("DEL", key)
    with new:
        assert server.cli("TYPE", key) == b"hash", "Redisson looks for its own field in it"
        assert not server.cli("HEXISTS", key, java)
