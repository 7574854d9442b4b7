"""Who is measured: each makes a function that acquires and releases once, uncontended."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from relock import Client

Pair = Callable[[], None]
FOLDER = Path(__file__).parent
LEASE_SECONDS = 10


def floor(port: int) -> Pair:
    """Two small scripts as packed commands over one connection of redis-py: no lock library can do with less."""
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

    def pair() -> None:
        connection.send_packed_command(take)
        connection.read_response()
        connection.send_packed_command(give)
        connection.read_response()

    return pair


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
