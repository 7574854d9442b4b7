"""One process of the demo: workers that update the ledger, by the same code with a lock and without.

Orders come over a pipe, and the workers' messages go back: pairs of a word and a value. The process ends with the pipe.
Orders: ``start``, with the ledgers (of several, each turn updates two, or that of its permit), and the method of the
client inside whose block a turn is (none: ""); ``stay``: the next worker inside stays there, with a lock it blocks its
event loop, and the others of the process stop; ``cancel``: the task that has waited longest; and ``stop``.
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
from relock.cli._demo.ledger import Entry
from relock.cli._demo.plan import Plan
from relock.cli._demo.verdict import Update

THINKING_SECONDS = 0.001
RESTING_SECONDS = 0.002
STAYING_SECONDS = 3600.0  # the process is killed before
Texts = dict[Path, bytes]
NO_LOCK: Any = nullcontext(SimpleNamespace(token=0, hold_count=0))


class Workers:
    """Workers of one process: threads, or tasks of one event loop. Its name and the plan come first over the pipe."""

    def __init__(self, fileno: int) -> None:
        self._pipe, self._telling = Connection(fileno), threading.Lock()
        plan: Plan
        process, plan = self._pipe.recv()
        self._names = [f"{process}.{number + 1}" for number in range(plan.workers)]
        self._serials = count(1)
        self._ledgers, self._inside = list[Path](), ""
        self._stopping, self._staying = threading.Event(), threading.Semaphore(0)
        self._working: dict[str, Future[None]] = {}
        self._waiting: dict[str, None] = {}  # the tasks that wait, the first one first
        client: type[Client | AsyncClient] = AsyncClient if plan.is_asyncio else Client
        options: Any = {"prefix": plan.prefix, "ttl": plan.ttl, "client_name": process}
        self._client: Any = client(list(plan.urls), **options)
        lock, permits = self._client.lock(plan.name), self._client.semaphore(plan.name, plan.limit)
        self._holds = {"": NO_LOCK, "lock": lock, "semaphore": permits}
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

    def _start(self, ledgers: list[Path], inside: str) -> None:
        self._ledgers, self._inside = ledgers, inside
        self._stopping.clear()
        for worker in self._names:
            self._working[worker] = self._begin(worker)
            self._working[worker].add_done_callback(partial(self._tell_failure, worker))

    def _tell_failure(self, worker: str, work: Future[None]) -> None:
        if not work.cancelled() and (error := work.exception()):
            self._tell("failed", f"{worker}: {type(error).__name__}: {error}")

    def _stay(self) -> None:
        self._staying.release()

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
        """Return the ledgers that a turn updates, and what to enter: a lock, two accounts' locks, or a semaphore."""
        paths = random.sample(self._ledgers, min(2, len(self._ledgers)))
        if self._inside == "lock_all":
            return paths, self._client.lock_all([f"{self._holds['lock'].name}:{path.name}" for path in paths])
        return paths, self._holds[self._inside]

    def _thread(self, worker: str) -> None:
        while not self._stopping.is_set():
            paths, hold = self._choose()
            with hold as outer:
                entered = time.monotonic()
                # A function that takes the lock may be called with the lock held; a second permit is another one.
                with nullcontext(outer) if self._inside == "semaphore" else hold as inner:
                    update, texts, seconds = self._read(worker, entered, inner, paths)
                    time.sleep(seconds)
                    ledger.write(texts, update.entry)
                self._tell("updated", evolve(update, levels_after=outer.hold_count, left=time.monotonic()))
            time.sleep(RESTING_SECONDS)

    async def _task(self, worker: str) -> None:
        while not self._stopping.is_set():
            paths, hold = self._choose()
            self._waiting[worker] = None
            async with hold as outer:
                entered = time.monotonic()
                del self._waiting[worker]
                async with nullcontext(outer) if self._inside == "semaphore" else hold as inner:
                    update, texts, seconds = self._read(worker, entered, inner, paths)
                    await asyncio.sleep(seconds)
                    ledger.write(texts, update.entry)
                self._tell("updated", evolve(update, levels_after=outer.hold_count, left=time.monotonic()))
            await asyncio.sleep(RESTING_SECONDS)

    def _read(self, worker: str, entered: float, inner: Any, paths: list[Path]) -> tuple[Update, Texts, float]:
        """Begin an update, and read the ledgers; return the seconds to think, until a kill if the demo has asked so."""
        slot = 0
        if self._inside == "semaphore":
            slot = inner.slot or 0  # None if the permit is lost: the end of the block raises an error then
            paths = [self._ledgers[slot]]
        update = Update(Entry(worker, next(self._serials), inner.token or 0), entered, inner.hold_count, slot=slot)
        texts = {path: ledger.read(path) for path in paths}
        if not self._staying.acquire(blocking=False):
            return update, texts, THINKING_SECONDS
        self._stopping.set()
        self._tell("inside", update)
        if self._inside != "semaphore":
            time.sleep(STAYING_SECONDS)  # in a task this blocks the loop: the mistake that the demo shows
        return update, texts, STAYING_SECONDS
