"""One process of the demo: workers that update the ledger, by the same code with a lock and without.

Orders come over a pipe, and the workers' messages go back: pairs of a word and a value. The process ends with the pipe.
Orders: ``start``, with the ledgers (of several, each turn updates two), and whether to lock; ``stay``: the next worker
inside stays there, and blocks its event loop, if any; ``cancel``: the task that has waited longest; and ``stop``.
"""

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import evolve

from relock import AsyncClient, Client
from relock.cli._demo import ledger
from relock.cli._demo.plan import Plan
from relock.cli._demo.verdict import Update

THINKING_SECONDS = 0.001
RESTING_SECONDS = 0.002
NO_LOCK: Any = nullcontext(SimpleNamespace(token=0, hold_count=0))


class Workers:
    """Workers of one process: threads, or tasks of one event loop. Its name and the plan come first over the pipe."""

    def __init__(self, fileno: int) -> None:
        self._pipe, self._telling = Connection(fileno), threading.Lock()
        plan: Plan
        process, plan = self._pipe.recv()
        self._names = [f"{process}.{number + 1}" for number in range(plan.workers)]
        self._serials = count(1)
        self._ledgers, self._locked = list[Path](), False
        self._stopping, self._staying = threading.Event(), threading.Event()
        self._working: dict[str, Future[None]] = {}
        self._waiting: dict[str, None] = {}  # the tasks that wait, the first one first
        client: type[Client | AsyncClient] = AsyncClient if plan.is_asyncio else Client
        options: Any = {"prefix": plan.prefix, "ttl": plan.ttl, "client_name": process}
        self._client: Any = client(list(plan.urls), **options)
        self._lock = self._client.lock(plan.name)
        self._begin: Callable[[str], Future[None]]
        if plan.is_asyncio:
            loop = asyncio.new_event_loop()
            # The loop has a thread of its own, so that orders reach the process while the loop is blocked.
            threading.Thread(target=loop.run_forever, daemon=True).start()
            self._begin = lambda worker: asyncio.run_coroutine_threadsafe(self._task(worker), loop)
        else:
            pool = ThreadPoolExecutor(plan.workers)
            self._begin = lambda worker: pool.submit(self._thread, worker)

    def obey_all(self) -> None:
        """Carry out orders until the pipe ends; then end the process, whatever its workers are doing."""
        logging.getLogger("relock").addHandler(logging.NullHandler())  # the story tells what happens to the masters
        self._tell("ready")
        with suppress(EOFError, OSError):
            while True:
                do, value = self._pipe.recv()
                getattr(self, f"_{do}")(*value)
        os._exit(0)

    def _tell(self, word: str, value: object = None) -> None:
        with self._telling, suppress(OSError):  # the demo has ended, and so does this process
            self._pipe.send((word, value))

    def _start(self, ledgers: list[Path], locked: bool) -> None:
        self._ledgers, self._locked = ledgers, locked
        self._stopping.clear()
        for worker in self._names:
            self._working[worker] = self._begin(worker)
            self._working[worker].add_done_callback(partial(self._tell_failure, worker))

    def _tell_failure(self, worker: str, work: Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()):
            self._tell("failed", f"{worker}: {type(error).__name__}: {error}")

    def _stay(self) -> None:
        self._staying.set()

    def _cancel(self) -> None:
        """Cancel the task that has waited longest, which is the first of this process in the queue."""
        began, work = time.monotonic(), self._working[next(iter(self._waiting))]
        work.cancel()
        wait([work])  # `cancel` returns before the task has ended
        self._tell("cancelled", (began, time.monotonic() - began))

    def _stop(self) -> None:
        self._stopping.set()
        wait(self._working.values())
        self._tell("stopped")

    def _choose(self) -> tuple[list[Path], Any]:
        """Return the ledgers that a turn updates, and what to enter: the one lock, or the locks of two accounts."""
        paths = random.sample(self._ledgers, min(2, len(self._ledgers)))
        names = [f"{self._lock.name}:{path.name}" for path in paths]
        return paths, NO_LOCK if not self._locked else self._client.lock_all(names) if len(names) > 1 else self._lock

    def _thread(self, worker: str) -> None:
        while not self._stopping.is_set():
            paths, lock = self._choose()
            with lock as outer:
                entered = time.monotonic()
                with lock as inner:  # a function that takes the lock may be called with the lock held
                    update, texts = self._read(worker, entered, inner, paths)
                    time.sleep(THINKING_SECONDS)
                    ledger.write(texts, update.entry)
                update = evolve(update, levels_after=outer.hold_count, left=time.monotonic())
            self._tell("updated", update)
            time.sleep(RESTING_SECONDS)

    async def _task(self, worker: str) -> None:
        while not self._stopping.is_set():
            paths, lock = self._choose()
            self._waiting[worker] = None
            async with lock as outer:
                entered = time.monotonic()
                del self._waiting[worker]
                async with lock as inner:
                    update, texts = self._read(worker, entered, inner, paths)
                    await asyncio.sleep(THINKING_SECONDS)
                    ledger.write(texts, update.entry)
                update = evolve(update, levels_after=outer.hold_count, left=time.monotonic())
            self._tell("updated", update)
            await asyncio.sleep(RESTING_SECONDS)

    def _read(self, worker: str, entered: float, inner: Any, paths: list[Path]) -> tuple[Update, dict[Path, bytes]]:
        """Begin an update, and read the ledgers. If the demo has asked for that, stay until this process is killed."""
        entry = ledger.Entry(worker, next(self._serials), inner.token or 0)
        update = Update(entry, entered, levels=inner.hold_count)
        texts = {path: ledger.read(path) for path in paths}
        if self._staying.is_set():
            self._tell("inside", update)
            threading.Event().wait()  # in a task this blocks the loop: the mistake that the demo shows
        return update, texts
