# mypy: disable-error-code="import-untyped", allow-untyped-decorators
"""Celery tasks that run one at a time for each feed. Start a worker by: celery -A celery_feeds worker."""

import os

from celery import Celery, Task
from celery.exceptions import Ignore
from relock import AcquireTimeoutError, Client

RETRY_SECONDS = 10.0  # between two tries while another task has the lock

app = Celery("feeds", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/1"))
client = Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))  # sends nothing; each process has its own copy


@app.task(bind=True, max_retries=None, acks_late=True, reject_on_worker_lost=True)
def import_feed(self: Task, feed: str) -> None:
    """Runs later if another task has the feed."""
    try:
        with client.lock(f"feeds:{feed}", timeout=0) as held:
            store(feed, fence=held.ensure())
    except AcquireTimeoutError as busy:
        raise self.retry(exc=busy, countdown=RETRY_SECONDS) from None


@app.task
def refresh_feed(feed: str) -> None:
    """Does nothing if another task has the feed: that one brings it up to date."""
    try:
        with client.lock(f"feeds:{feed}", timeout=0) as held:
            store(feed, fence=held.ensure())
    except AcquireTimeoutError:
        raise Ignore from None


@app.task(soft_time_limit=60)
def drop_feed(feed: str) -> None:
    """Waits for its turn, and is interrupted when the soft time limit ends, in the wait or in the block."""
    with client.lock(f"feeds:{feed}") as held:
        store(feed, fence=held.ensure())


def store(feed: str, fence: int) -> None:
    """Stands for your work, which ends by a write that checks the fence."""
