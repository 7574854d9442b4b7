"""A process of threads or tasks that wait: ``python -m bench.sleepers HOW COUNT LOCKS URL``.

They wait for `LOCKS` locks, as many for each, or for an `Event` if there are none. With ``threads``, they come one
after the other; with ``burst``, at once. With ``permits``, they come like threads, and wait for the only permits of
semaphores; with ``reads``, for the locks as readers. With ``tasks``, they begin in one turn of the loop. The process
has a client that has acquired and released once, tells when the waiting began, and ends with its stdin. In a process of
tasks, ``cancel`` cancels every second task of each lock, and tells when; ``serve`` tells when the others have had their
turn, and how many had one.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from relock import AsyncClient, Client, Lock, Semaphore

PAUSE_SECONDS = 0.005  # from one thread to the next
BURST = "burst"  # the threads begin at once
PERMITS = "permits"  # the threads wait for semaphores
READS = "reads"  # the threads wait as readers


def names_of(locks: int) -> list[str]:
    """Return the names of so many locks."""
    return [f"sleepers-{number}" for number in range(locks)]


def wanted(client: Client, how: str, name: str) -> Lock | Semaphore:
    """Return the lock or the semaphore of this name, as the threads want it."""
    if how == READS:
        return client.rwlock(name).read
    return client.semaphore(name, 1) if how == PERMITS else client.lock(name)


def _tell(what: Any) -> None:
    print(json.dumps(what), flush=True)


def threads(how: str, count: int, locks: int, url: str) -> None:
    """Start the threads, and wait for the end."""
    client, event, names = Client(url), threading.Event(), names_of(locks)
    with client.lock("awake"):
        pass

    def wait(number: int) -> None:
        if names:
            wanted(client, how, names[number % locks]).acquire()
        else:
            event.wait()

    began = time.monotonic()
    for number in range(count):
        threading.Thread(target=wait, args=(number,), daemon=True).start()
        time.sleep(0.0 if how == BURST else PAUSE_SECONDS)
    _tell(began)
    sys.stdin.read()


async def tasks(count: int, locks: int, url: str) -> None:
    """Start the tasks, and follow orders."""
    orders: asyncio.Queue[bytes] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: orders.put_nowait(os.read(0, 1000)))
    async with AsyncClient(url) as client:
        async with client.lock("awake"):
            pass
        began, event = time.monotonic(), asyncio.Event()
        names: list[str | None] = [*names_of(locks)] or [None]
        waiting = [asyncio.create_task(_wait(client, event, names[number % len(names)])) for number in range(count)]
        _tell(began)
        while order := (await orders.get()).strip():
            if b"cancel" in order:
                _tell(_cancel(waiting, locks))
            else:
                served = await asyncio.gather(*waiting, return_exceptions=True)
                _tell((time.monotonic(), served.count(True)))


async def _wait(client: AsyncClient, event: asyncio.Event, name: str | None) -> bool:
    """Wait for a turn with the lock of this name, or for the event."""
    if name is None:
        return await event.wait()
    async with client.lock(name):
        return True


def _cancel(waiting: Sequence[asyncio.Task[bool]], locks: int) -> float:
    """Cancel every second task of each lock; return when this began."""
    began = time.monotonic()
    for number, task in enumerate(waiting):
        if number // locks % 2:
            task.cancel()
    return began


def main() -> None:
    how, count, locks, url = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if how == "tasks":
        asyncio.run(tasks(count, locks, url))
    else:
        threads(how, count, locks, url)


if __name__ == "__main__":
    main()
