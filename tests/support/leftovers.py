"""Leftovers of holds and waiters on masters."""

from collections.abc import Iterable

from redis import Redis

TAILS = ("", ":leases", ":queue", ":waiters")


def are_free(masters: Iterable[Redis], *keys: str) -> bool:
    """Return whether no master has a hold or a waiter of the locks and semaphores with these keys."""
    every = [key + tail for key in keys for tail in TAILS]
    return not any(redis.exists(*every) for redis in masters)
