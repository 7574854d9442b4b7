"""Who is measured: each makes a function that acquires and releases once, uncontended."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from relock import Client

Pair = Callable[[], None]
FOLDER = Path(__file__).parent
LEASE_SECONDS = 10


def floor(port: int) -> Pair:
    """Two small scripts as packed commands over one connection of redis-py: no lock library can do with less."""
    connection, take, give = _prepared(port)

    def pair() -> None:
        connection.send_packed_command(take)
        connection.read_response()
        connection.send_packed_command(give)
        connection.read_response()

    return pair


def _prepared(port: int) -> tuple[Any, Any, Any]:
    """A connection to a master that knows the small scripts, and their calls as packed commands."""
    connection: Any = redis.Connection(  # type: ignore[no-untyped-call]
        host="127.0.0.1", port=port, socket_timeout=1.0
    )
    connection.connect()
    scripts = [(FOLDER / name).read_bytes() for name in ("take.lua", "give.lua")]
    for script in scripts:
        connection.send_command("SCRIPT", "LOAD", script)
        connection.read_response()
    take_sha, give_sha = (hashlib.sha1(script).hexdigest() for script in scripts)
    take = connection.pack_command("EVALSHA", take_sha, 1, "bench-floor", "me", LEASE_SECONDS * 1000)
    give = connection.pack_command("EVALSHA", give_sha, 1, "bench-floor", "me")
    return connection, take, give


def relock(port: int) -> Pair:
    """This library, with its defaults."""
    lock = Client(f"redis://127.0.0.1:{port}").lock("bench")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def redis_py(port: int) -> Pair:
    """The Lock of redis-py."""
    lock = redis.Redis(port=port).lock("bench-redis-py", timeout=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def python_redis_lock(port: int) -> Pair:
    """python-redis-lock, with a lease and without renewal (with it, each pair starts a thread)."""
    import redis_lock

    lock = redis_lock.Lock(redis.Redis(port=port), "bench", expire=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def pottery(port: int) -> Pair:
    """Pottery's Redlock on one master."""
    from pottery import Redlock

    lock = Redlock(key="bench-pottery", masters={redis.Redis(port=port)}, auto_release_time=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


CONTESTANTS: dict[str, Callable[[int], Pair]] = {
    "floor": floor,
    "relock": relock,
    "redis-py Lock": redis_py,
    "python-redis-lock": python_redis_lock,
    "pottery": pottery,
}


# Several masters ------------------------------------------------------------------------------------------------------


def floor_of_several(ports: Sequence[int]) -> Pair:
    """The small scripts, written to all masters before any reply is read, and then all replies read."""
    prepared = [_prepared(port) for port in ports]

    def pair() -> None:
        for connection, take, _ in prepared:
            connection.send_packed_command(take)
        for connection, _, _ in prepared:
            connection.read_response()
        for connection, _, give in prepared:
            connection.send_packed_command(give)
        for connection, _, _ in prepared:
            connection.read_response()

    return pair


def relock_of_several(ports: Sequence[int]) -> Pair:
    """This library, with the restart guard that several masters have by default: the first pair waits until it is over.

    The lease is that of the others, because the guard is as long.
    """
    lock = Client([f"redis://127.0.0.1:{port}" for port in ports], ttl=LEASE_SECONDS).lock("bench")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def redlock_py(ports: Sequence[int]) -> Pair:
    """The package redlock-py, which asks one master after the other."""
    from redlock import Redlock

    manager = Redlock([{"host": "127.0.0.1", "port": port} for port in ports])

    def pair() -> None:
        manager.unlock(manager.lock("bench-redlock-py", LEASE_SECONDS * 1000))

    return pair


def pottery_of_several(ports: Sequence[int]) -> Pair:
    """Pottery's Redlock, which asks the masters from a pool of threads."""
    from pottery import Redlock

    masters = {redis.Redis(port=port) for port in ports}
    lock = Redlock(key="bench-pottery", masters=masters, auto_release_time=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


CONTESTANTS_OF_SEVERAL: dict[str, Callable[[Sequence[int]], Pair]] = {
    "floor": floor_of_several,
    "relock": relock_of_several,
    "redlock-py": redlock_py,
    "pottery": pottery_of_several,
}
