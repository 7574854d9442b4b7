"""One process of the demo: workers that update the ledger, the same code with a lock and without.

Orders come over a pipe, and the workers' messages go back: pairs of a word and a value. The process ends with the pipe.

* ``start``, with the ledger, and whether to lock;
* ``stay``: the next worker inside stays there, and blocks its event loop, if there is one;
* ``cancel``: the task that has waited longest is cancelled;
* ``stop``.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import evolve

from relock import AsyncClient, Client
from relock.cli._demo import ledger
from relock.cli._demo.plan import Job
from relock.cli._demo.verdict import Update

THINKING_SECONDS = 0.001
RESTING_SECONDS = 0.002
NO_LOCK = nullcontext(SimpleNamespace(token=0, hold_count=0))


class Workers:
    """Workers of one process; this class has what threads and tasks have in common."""

    client: Any  # a Client for threads, an AsyncClient for tasks

    def __init__(self, job: Job, pipe: Connection) -> None:
        self.job, self._pipe = job, pipe
        self._ledger, self._locked = Path(), False
        self.stopping, self._staying = threading.Event(), threading.Event()
        self._serials = [0] * job.plan.workers
        self._telling = threading.Lock()
        self.options: dict[str, Any] = {"prefix": job.prefix, "ttl": job.plan.ttl, "client_name": job.process}

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
                getattr(self, f"_{do}")(*value)
        os._exit(0)

    def _start(self, path: Path, locked: bool) -> None:
        self._ledger, self._locked = path, locked
        self.stopping.clear()
        self.start_all()

    def _stay(self) -> None:
        self._staying.set()

    def _stop(self) -> None:
        self.stopping.set()
        self.join_all()
        self.tell("stopped")

    def start_all(self) -> None:
        """Start all workers."""
        raise NotImplementedError

    def join_all(self) -> None:
        """Wait until all workers have ended."""
        raise NotImplementedError

    def lock(self) -> Any:
        """Return the lock, or its stand-in: all that differs between the two acts."""
        return self.client.lock(self.job.name) if self._locked else NO_LOCK

    def begin(self, number: int, entered: float, inner: Any) -> tuple[Update, bytes]:
        """Begin an update, and read the ledger. If the demo has asked for that, stay until this process is killed."""
        self._serials[number] += 1
        worker = f"{self.job.process}.{number + 1}"
        update = Update(worker, self._serials[number], inner.token or 0, entered, levels=inner.hold_count)
        text = ledger.read(self._ledger)
        if self._staying.is_set():
            self.tell("inside", update)
            threading.Event().wait()  # in a task this is the mistake that is shown: nothing else runs on its loop
        return update, text

    def write(self, text: bytes, update: Update) -> None:
        """Write an update into the ledger."""
        ledger.write(self._ledger, text, ledger.Entry(update.worker, update.serial, update.token))

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

    def start_all(self) -> None:
        """Start all threads."""
        numbers = range(self.job.plan.workers)
        self._threads = [threading.Thread(target=self._work, args=(i,), daemon=True) for i in numbers]
        for thread in self._threads:
            thread.start()

    def join_all(self) -> None:
        """Wait until all threads have ended."""
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        with self.telling_failures(number):
            while not self.stopping.is_set():
                with self.lock() as outer:
                    entered = time.monotonic()
                    with self.lock() as inner:  # a function that takes the lock may be called with the lock held
                        update, text = self.begin(number, entered, inner)
                        time.sleep(THINKING_SECONDS)
                        self.write(text, update)
                    update = evolve(update, levels_after=outer.hold_count, left=time.monotonic())
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
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start_all(self) -> None:
        """Start all tasks."""

        async def start() -> None:
            self._tasks = [asyncio.create_task(self._work(number)) for number in range(self.job.plan.workers)]

        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def join_all(self) -> None:
        """Wait until all tasks have ended."""
        asyncio.run_coroutine_threadsafe(asyncio.wait(self._tasks), self._loop).result()

    def _cancel(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_a_waiter(), self._loop)

    async def _cancel_a_waiter(self) -> None:
        """Cancel the task that has waited longest: of this process, it comes first in the queue."""
        began, task = time.monotonic(), self._tasks[next(iter(self._waiting))]
        task.cancel()
        await asyncio.wait([task])
        self.tell("cancelled", (began, time.monotonic() - began))

    async def _work(self, number: int) -> None:
        with self.telling_failures(number):
            while not self.stopping.is_set():
                self._waiting[number] = None
                try:
                    await self._update(number)
                finally:
                    self._waiting.pop(number, None)
                await asyncio.sleep(RESTING_SECONDS)

    async def _update(self, number: int) -> None:
        async with self.lock() as outer:
            entered = time.monotonic()
            del self._waiting[number]
            async with self.lock() as inner:
                update, text = self.begin(number, entered, inner)
                await asyncio.sleep(THINKING_SECONDS)
                self.write(text, update)
            update = evolve(update, levels_after=outer.hold_count, left=time.monotonic())
        self.tell("updated", update)


def work(job: Job, pipe: Connection) -> None:
    """Run one process of the demo."""
    logging.getLogger("relock").addHandler(logging.NullHandler())  # the story tells what happens to the masters
    os.setsid()  # Ctrl-C is for the demo, which then ends all processes
    workers = Tasks(job, pipe) if job.plan.is_asyncio else Threads(job, pipe)
    workers.obey_all()
