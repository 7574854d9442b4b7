# mypy: allow-untyped-calls
"""Actors of dramatiq that run one at a time for each album. Start a worker by: dramatiq dramatiq_albums."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from relock import AcquireTimeoutError, Client

RETRY_MILLISECONDS = 10_000  # between two tries while another worker has the lock

dramatiq.set_broker(RedisBroker(url=os.environ.get("BROKER_URL", "redis://localhost:6379/1")))
client = Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))


@dramatiq.actor
def resize(album: str) -> None:
    """Runs later if another worker has the album."""
    try:
        with client.lock(f"albums:{album}", timeout=0) as held:
            store(album, fence=held.ensure())
    except AcquireTimeoutError as busy:
        raise dramatiq.Retry(str(busy), delay=RETRY_MILLISECONDS) from None


def store(album: str, fence: int) -> None:
    """Stands for your work, which ends by a write that checks the fence."""
