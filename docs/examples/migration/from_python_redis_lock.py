# mypy: disable-error-code="import-untyped"
"""Both locks at once, while processes with python-redis-lock and processes with relock run side by side."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis
import redis_lock
from relock import Client, Lock


@contextmanager
def both(old: redis.Redis, client: Client, name: str, *, wait: int) -> Iterator[Lock]:
    """Take the lock of python-redis-lock first, then that of relock, each within `wait` seconds."""
    first = redis_lock.Lock(old, name, expire=60, auto_renewal=True)
    if not first.acquire(timeout=wait):
        raise TimeoutError(f"{name} is busy")
    try:
        with client.lock(name, timeout=wait) as held:
            yield held
    finally:
        first.release()
