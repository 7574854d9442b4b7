"""Both locks at once, while processes with redis-py's lock and processes with relock run side by side."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from relock import Client, Lock


@contextmanager
def both(old: redis.Redis, client: Client, name: str, *, wait: float) -> Iterator[Lock]:
    """Take the lock of redis-py first, then that of relock, each within `wait` seconds."""
    with old.lock(name, timeout=60.0, blocking_timeout=wait), client.lock(name, timeout=wait) as held:
        yield held
