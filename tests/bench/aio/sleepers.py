"""A process of tasks that wait: ``python -m bench.aio.sleepers nobody|event|lock|locks COUNT URL``.

Its tasks wait for nothing at all (there are none), for an `asyncio.Event`, for one lock, or for `LOCKS` locks, as many
for each. All begin in one turn of the loop. It has a client that has acquired and released once, and says when they
began. On ``cancel`` it cancels every second one, and says when it did; on ``serve`` it says when the others have had
their turn, and how many had one. It ends with its stdin.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from relock import AsyncClient

PREFIX = "sleepers"
LOCKS = 20


def names_of(kind: str) -> list[str]:
    """What the tasks wait for."""
    return [f"{PREFIX}-{number}" for number in range({"lock": 1, "locks": LOCKS}.get(kind, 0))]


class Sleepers:
    """The tasks."""

    def __init__(self, client: AsyncClient, kind: str, count: int) -> None:
        self._client, self._event = client, asyncio.Event()
        self._served = 0
        self._names = names_of(kind)
        self._tasks = [asyncio.create_task(self._wait(number)) for number in range(0 if kind == "nobody" else count)]

    async def _wait(self, number: int) -> None:
        if not self._names:
            await self._event.wait()
            return
        async with self._client.lock(self._names[number % len(self._names)]):
            self._served += 1

    def cancel(self) -> float:
        """Cancels every second task of each lock; when it began to."""
        began, locks = time.monotonic(), len(self._names)
        for number, task in enumerate(self._tasks):
            if number // locks % 2:
                task.cancel()
        return began

    async def serve(self) -> tuple[float, int]:
        """When all that were not cancelled have had their turn, and how many had one."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return time.monotonic(), self._served


async def main() -> None:
    kind, count, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    orders: asyncio.Queue[bytes] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: orders.put_nowait(os.read(0, 1000)))
    async with AsyncClient(url) as client:
        async with client.lock("awake"):
            pass
        began = time.monotonic()
        sleepers = Sleepers(client, kind, count)
        _tell(began)
        while order := (await orders.get()).strip():
            _tell(sleepers.cancel() if b"cancel" in order else await sleepers.serve())


def _tell(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
