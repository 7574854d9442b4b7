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


class Tasks:
    """The tasks of a process that wait, some of which are cancelled."""

    def __init__(self, client: AsyncClient, count: int, names: list[str]) -> None:
        self._client, self._event, self._names = client, asyncio.Event(), names
        self._served = 0
        self._tasks = [asyncio.create_task(self._wait(number)) for number in range(count)]

    async def _wait(self, number: int) -> None:
        if not self._names:
            await self._event.wait()
            return
        async with self._client.lock(self._names[number % len(self._names)]):
            self._served += 1

    def cancel(self) -> float:
        """Cancel every second task of each lock; return when this began."""
        began, locks = time.monotonic(), len(self._names)
        for number, task in enumerate(self._tasks):
            if number // locks % 2:
                task.cancel()
        return began

    async def serve(self) -> tuple[float, int]:
        """Return when all tasks that were not cancelled have had their turn, and how many had one."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return time.monotonic(), self._served


async def tasks(count: int, locks: int, url: str) -> None:
    """Start the tasks, and follow orders."""
    orders: asyncio.Queue[bytes] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: orders.put_nowait(os.read(0, 1000)))
    async with AsyncClient(url) as client:
        async with client.lock("awake"):
            pass
        began = time.monotonic()
        sleepers = Tasks(client, count, names_of(locks))
        _tell(began)
        while order := (await orders.get()).strip():
            _tell(sleepers.cancel() if b"cancel" in order else await sleepers.serve())


def main() -> None:
    how, count, locks, url = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if how == "tasks":
        asyncio.run(tasks(count, locks, url))
    else:
        threads(how, count, locks, url)


if __name__ == "__main__":
    main()
