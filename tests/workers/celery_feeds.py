"""Worker of Celery with the tasks of the recipe. Its pool forks, so the client is made before the fork."""

import os
from typing import Any

import billiard.pool
from celery import signals

from relock import Client
from workers.recipes import NODE_TIMEOUT, load, server, work

TTL = 5.0  # seconds
billiard.pool.LOST_WORKER_TIMEOUT = 0.1  # seconds after which a process that was killed is given up; by default 10

example = load("recipes/celery_feeds")
example.client = Client(os.environ["REDIS_URL"], ttl=TTL, node_timeout=min(NODE_TIMEOUT, TTL / 3))
example.RETRY_SECONDS = 0.2
example.store = work
app = example.app


def tell_process(task_id: str, **_: Any) -> None:
    """Tell which process runs a task."""
    with server() as told:
        told.rpush(f"began:{task_id}", os.getpid())


def tell(task_id: str, state: str, **_: Any) -> None:
    """Tell how a run of a task ended."""
    with server() as told:
        told.rpush(f"ended:{task_id}", state)


signals.task_prerun.connect(tell_process)
signals.task_postrun.connect(tell)
