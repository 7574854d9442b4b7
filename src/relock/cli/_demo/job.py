"""What the demo and its workers' processes say to each other: the job, the orders' answers, and what workers are."""

import json
import threading
from typing import Any

from attrs import frozen

_telling = threading.Lock()


@frozen
class Kind:
    """What the workers of a process are, in the words of the story.

    Attributes:
        one: one of them, and `many` of them.
        where: comes between their number and that of the processes.
        statement: how each takes the lock.
        long_hold: what a holder does for longer than its lease.
    """

    one: str
    many: str
    where: str
    statement: str
    long_hold: str


THREADS = Kind("thread", "threads", "in", "with client.lock(name)", "is renewed and stays inside")
TASKS = Kind("task", "tasks", "on the event loops of", "async with client.lock(name)", "blocks its event loop")


@frozen
class Job:
    """What a process is told first. Its URLs may hold passwords.

    Attributes:
        workers: how many it has.
        is_asyncio: whether they are tasks of an event loop, and not threads.
    """

    process: str
    workers: int
    urls: tuple[str, ...]
    prefix: str
    name: str
    ttl: float
    is_asyncio: bool = False


def tell(**what: Any) -> None:
    """One line for the demo."""
    with _telling:
        print(json.dumps(what), flush=True)
