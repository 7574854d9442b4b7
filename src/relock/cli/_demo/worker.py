"""One process of the demo: workers that update the ledger, the same code with a lock and without.

Orders come over a pipe, and the workers' messages go back: pairs of a word and a value. The orders: ``start`` (with the
ledger, and whether to lock), ``stay`` (the next worker inside stays there), ``go_on`` (that worker leaves), ``stop``;
for tasks also ``block`` (the worker that stays blocks its event loop), ``measure`` (for how long the loop has stood
still) and ``cancel`` (the task that has waited longest). The process ends with the pipe.
"""

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attrs import evolve

from relock import AsyncClient, Client
from relock.cli._demo import ledger
from relock.cli._demo.plan import Job
from relock.cli._demo.verdict import Update

THINKING_SECONDS = 0.001
RESTING_SECONDS = 0.002
BEAT_SECONDS = 0.01


class NoLock(nullcontext[Any]):
    """The stand-in for the lock in the act without one."""

    token, hold_count = 0, 0

    def __init__(self) -> None:
        super().__init__(self)


class Workers:
    """The workers of one process; here is what threads and tasks have in common."""

    client: Any  # a Client for threads, an AsyncClient for tasks
    start: Callable[[], None]
    join: Callable[[], None]

    def __init__(self, job: Job, pipe: Connection) -> None:
        self.job, self._pipe = job, pipe
        self.ledger, self.locked = Path(), False
        self.stopping, self.go_on, self.blocking = threading.Event(), threading.Event(), threading.Event()
        self._stays: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._serials = [0] * job.workers
        self._telling = threading.Lock()
        self.options: dict[str, Any] = {"prefix": job.prefix, "ttl": job.ttl, "client_name": job.process}

    def tell(self, word: str, value: object = None) -> None:
        """Send a message to the demo."""
        with self._telling, suppress(OSError):  # the demo has ended, and so does this process
            self._pipe.send((word, value))

    def obey_all(self) -> None:
        """Carry out orders until the pipe ends; then end the process, whatever its workers are doing."""
        self.tell("ready")
        with suppress(EOFError, OSError):
            while True:
                do, value = self._pipe.recv()
                getattr(self, f"do_{do}")(*value)
        os._exit(0)

    def do_start(self, path: Path, locked: bool) -> None:
        """Start all workers."""
        self.ledger, self.locked = path, locked
        self.stopping.clear()
        self.start()

    def do_stay(self) -> None:
        """Let the next worker inside stay there."""
        self._stays.put(None)

    def do_go_on(self) -> None:
        """Let the worker that stays leave."""
        self.go_on.set()

    def do_stop(self) -> None:
        """Stop all workers."""
        self.stopping.set()
        self.go_on.set()
        self.join()
        self.tell("stopped")

    def lock(self) -> Any:
        """Return the lock, or its stand-in: all that differs between the two acts."""
        return self.client.lock(self.job.name) if self.locked else NoLock()

    def enter(self, number: int, token: int | None) -> Update:
        """Begin an update: the worker is inside now."""
        self._serials[number] += 1
        return Update(f"{self.job.process}.{number + 1}", self._serials[number], token or 0, time.monotonic())

    def is_to_stay(self, update: Update) -> bool:
        """Return whether the demo has asked for a worker that stays inside; then the demo is told which one does."""
        try:
            self._stays.get_nowait()
        except queue.Empty:
            return False
        self.go_on.clear()
        self.tell("inside", update)
        return True

    def write(self, text: bytes, update: Update) -> None:
        """Write an update into the ledger."""
        ledger.write(self.ledger, text, ledger.Entry(update.worker, update.serial, update.token))

    def leave(self, update: Update, levels: int, levels_after: int) -> Update:
        """Return the update as it ended; the worker is about to release the lock."""
        return evolve(update, levels=levels, levels_after=levels_after, left=time.monotonic())

    @contextmanager
    def telling_failures(self, number: int) -> Iterator[None]:
        """Tell the demo where a worker can't go on."""
        try:
            yield
        except Exception as error:
            self.tell("failed", f"{self.job.process}.{number + 1}: {type(error).__name__}: {error}")


class Threads(Workers):
    """Workers that are threads."""

    def __init__(self, job: Job, pipe: Connection) -> None:
        super().__init__(job, pipe)
        self.client = Client(list(job.urls), **self.options)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all threads."""
        numbers = range(self.job.workers)
        self._threads = [threading.Thread(target=self._work, args=(i,), daemon=True) for i in numbers]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all threads have ended."""
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        with self.telling_failures(number):
            while not self.stopping.is_set():
                with self.lock() as outer:
                    update = self.enter(number, outer.token)
                    with self.lock() as inner:  # a function that takes the lock may be called with the lock held
                        levels = inner.hold_count
                        text = ledger.read(self.ledger)
                        if self.is_to_stay(update):
                            self.go_on.wait()
                        time.sleep(THINKING_SECONDS)
                        self.write(text, update)
                    update = self.leave(update, levels, outer.hold_count)
                self.tell("updated", update)
                time.sleep(RESTING_SECONDS)


class Tasks(Workers):
    """Workers that are tasks of one event loop. Orders come on another thread, so they reach a blocked loop, too."""

    def __init__(self, job: Job, pipe: Connection) -> None:
        super().__init__(job, pipe)
        self.client = AsyncClient(list(job.urls), **self.options)
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[int, None] = {}  # the numbers of the waiters, in the order in which they began to wait
        self._beat_at = self._cancelled_at = 0.0
        threading.Thread(target=self._loop.run_until_complete, args=(self._beat(),), daemon=True).start()

    async def _beat(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def do_block(self) -> None:
        """Let the worker that stays block its event loop."""
        self.blocking.set()

    def do_measure(self) -> None:
        """Tell for how long the loop has stood still."""
        self.tell("stood", time.monotonic() - self._beat_at)

    def do_cancel(self) -> None:
        """Cancel the task that has waited longest: of this process, it comes first in the queue."""
        self._loop.call_soon_threadsafe(self._cancel_a_waiter)

    def _cancel_a_waiter(self) -> None:
        number = next(iter(self._waiting), None)
        if number is not None:
            self._cancelled_at = time.monotonic()
            self._tasks[number].cancel()

    def start(self) -> None:
        """Start all tasks."""

        async def start() -> None:
            self._tasks = [asyncio.create_task(self._work(number)) for number in range(self.job.workers)]

        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def join(self) -> None:
        """Wait until all tasks have ended."""
        asyncio.run_coroutine_threadsafe(asyncio.wait(self._tasks), self._loop).result()

    async def _work(self, number: int) -> None:
        with self.telling_failures(number):
            while not self.stopping.is_set():
                self._waiting[number] = None
                try:
                    await self._update(number)
                except asyncio.CancelledError:
                    self.tell("cancelled", (self._cancelled_at, time.monotonic() - self._cancelled_at))
                    raise
                finally:
                    self._waiting.pop(number, None)
                await asyncio.sleep(RESTING_SECONDS)

    async def _update(self, number: int) -> None:
        async with self.lock() as outer:
            del self._waiting[number]
            update = self.enter(number, outer.token)
            async with self.lock() as inner:
                levels = inner.hold_count
                text = ledger.read(self.ledger)
                if self.is_to_stay(update):
                    await self._stay()
                await asyncio.sleep(THINKING_SECONDS)
                self.write(text, update)
            update = self.leave(update, levels, outer.hold_count)
        self.tell("updated", update)

    async def _stay(self) -> None:
        while not (self.go_on.is_set() or self.blocking.is_set()):  # another thread sets them
            await asyncio.sleep(THINKING_SECONDS)
        if self.blocking.is_set():
            self.go_on.wait()  # the mistake that is shown: nothing else runs on this loop meanwhile
            self.blocking.clear()


def work(job: Job, pipe: Connection) -> None:
    """Run one process of the demo."""
    logging.getLogger("relock").addHandler(logging.NullHandler())  # the story tells what happens to the masters
    os.setsid()  # Ctrl-C is for the demo, which then ends all processes
    workers = Tasks(job, pipe) if job.is_asyncio else Threads(job, pipe)
    workers.obey_all()
