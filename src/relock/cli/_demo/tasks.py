"""The demo's workers as tasks of one event loop."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from relock import AsyncClient, AsyncLock, RelockError
from relock.cli._demo.history import Update
from relock.cli._demo.job import Job, tell
from relock.cli._demo.workers import RESTING_SECONDS, THINKING_SECONDS, NoLock, Workers, tell_failed, tell_of

BEAT_SECONDS = 0.01


class Tasks(Workers):
    """The tasks of this process. Its loop has the main thread; orders come on another one, and so reach a loop that
    stands still.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._client = AsyncClient(list(job.urls), prefix=job.prefix, ttl=job.ttl, client_name=job.process)
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[int, None] = {}  # who waits, by number, in the order in which they began to
        self._blocking = threading.Event()
        self._cancelled_at = 0.0
        self._beat_at = 0.0

    def run(self, orders: Iterable[dict[str, Any]]) -> None:
        """Obeys all of them."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._beat_while(orders))

    async def _beat_while(self, orders: Iterable[dict[str, Any]]) -> None:
        """Notes again and again that the loop runs."""
        obeying = asyncio.ensure_future(asyncio.to_thread(self._obey_all, orders))
        while not obeying.done():
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)
        obeying.result()

    def _obey_all(self, orders: Iterable[dict[str, Any]]) -> None:
        for order in orders:
            self.obey(order)

    def obey(self, order: dict[str, Any]) -> None:
        """Does what the demo says."""
        if order["do"] == "block":
            self._blocking.set()
        elif order["do"] == "measure":
            tell(did="stood", seconds=time.monotonic() - self._beat_at)
        elif order["do"] == "cancel":
            self._loop.call_soon_threadsafe(self._cancel_a_waiter)
        else:
            super().obey(order)

    def start(self) -> None:
        """Sets all tasks to work."""
        self._on_loop(self._start())

    def join(self) -> None:
        """Waits until all have ended."""
        self._on_loop(self._join())

    def _on_loop(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _start(self) -> None:
        self._tasks = [asyncio.create_task(self._work(i)) for i in range(self._job.workers)]

    async def _join(self) -> None:
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()  # what nobody has thought of is raised here, and ends the process

    def _cancel_a_waiter(self) -> None:
        """The one that has waited longest: it is the first of this process in the queue."""
        number = next(iter(self._waiting), None)
        if number is not None:
            self._cancelled_at = time.monotonic()
            self._tasks[number].cancel()

    def _lock(self) -> AsyncLock | NoLock:
        """The lock of the ledger, or what stands in for it: all that differs between the two acts."""
        return self._client.lock(self._job.name) if self._is_locked else NoLock()

    async def _work(self, number: int) -> None:
        try:
            while not self._stopping.is_set():
                await self._update(number)
                await asyncio.sleep(RESTING_SECONDS)
        except (RelockError, OSError) as error:
            tell_failed(self._name_of(number), error)
        except asyncio.CancelledError:
            ended = time.monotonic()
            self._waiting.pop(number, None)
            tell(did="cancelled", worker=self._name_of(number), at=self._cancelled_at, ended=ended)
            raise

    async def _update(self, number: int) -> None:
        """One update of the ledger, with a nested hold in it; told of only after it was written.

        It reads and writes the small file as threads do: what it awaits in between is enough for others to come in.
        """
        self._waiting[number] = None
        async with self._lock() as outer:
            del self._waiting[number]
            update = self._enter(number, outer.token)
            async with self._lock() as inner:  # as a function does that takes the lock, and is called with it held
                levels = inner.hold_count
                text = self._ledger.read()
                await self._think(update)
                self._ledger.write(text, self._entry(update))
            update = self._leave(update, levels, outer.hold_count)
        tell_of(update)

    async def _think(self, update: Update) -> None:
        """What a program does between reading and writing; much longer, if the demo has asked for that."""
        if not self._is_to_stay(update):
            await asyncio.sleep(THINKING_SECONDS)
            return
        while not (self._go_on.is_set() or self._blocking.is_set()):  # another thread sets them
            await asyncio.sleep(THINKING_SECONDS)
        if self._blocking.is_set():
            tell(did="blocks")
            self._go_on.wait()  # the mistake that is shown: nothing else runs on this loop meanwhile
            self._blocking.clear()
