# mypy: disable-error-code="import-untyped"
"""Both locks at once, while processes with pottery's lock and processes with relock run side by side."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from pottery import Redlock
from relock import Client, Lock


@contextmanager
def both(masters: set[redis.Redis], client: Client, name: str, *, wait: float) -> Iterator[Lock]:
    """Take the lock of pottery first, then that of relock, each within `wait` seconds."""
    first = Redlock(key=name, masters=masters, auto_release_time=60.0)
    if not first.acquire(timeout=wait):
        raise TimeoutError(f"{name} is busy")
    try:
        with client.lock(name, timeout=wait) as held:
            yield held
    finally:
        first.release()
