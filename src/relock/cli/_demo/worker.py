"""Process of the demo: its workers update the ledger, by the same code with a lock and without.

Orders and messages go over a pipe, as pairs of a word and a value; the process ends with the pipe. Orders: ``start``,
with the ledgers and the part of relock that the act is about (none: ""); ``cancel``: the task that has waited longest;
``stop``; ``stay``: the next worker inside stays there, and the others of the process stop.
"""

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import evolve

from relock import AsyncClient, Client, DeadlockError, QuorumError
from relock.cli._demo.crew import Plan
from relock.cli._demo.verdict import NEVER, Entry, Update

THINKING_SECONDS = 0.001
READING_SECONDS = 0.01
RESTING_SECONDS = 0.002
STRAGGLING_SECONDS = 0.02  # the workers arrive at a latch at different moments
STAYING_SECONDS = 3600.0  # the process is killed before
NO_LOCK: Any = nullcontext(SimpleNamespace(token=0, hold_count=0))


class Workers:
    """Workers of one process: threads, or tasks of one event loop. Its name and the plan come first over the pipe."""

    def __init__(self, fileno: int) -> None:
        self._pipe, self._telling = Connection(fileno), threading.Lock()
        plan: Plan
        process, plan = self._pipe.recv()
        self._plan, self._names = plan, [f"{process}.{number + 1}" for number in range(plan.workers)]
        self._serials, self._ledgers, self._inside = count(1), list[Path](), ""
        self._stopping, self._staying = threading.Event(), threading.Semaphore(0)
        self._stay = self._staying.release
        self._working: dict[str, Future[Any]] = {}
        self._waiting: dict[str, None] = {}  # the tasks that wait, the first one first
        options: Any = {"prefix": plan.prefix, "ttl": plan.ttl, "client_name": process}
        self._client: Any = (AsyncClient if plan.is_asyncio else Client)(list(plan.urls), **options)
        pool, loop = ThreadPoolExecutor(plan.workers), asyncio.new_event_loop()
        self._sleep: Callable[[float], Any] = asyncio.sleep if plan.is_asyncio else time.sleep
        # The calls of a thread block, so its coroutine never waits.
        self._begin: Callable[..., Future[Any]] = lambda work: pool.submit(list, work.__await__())
        if plan.is_asyncio:
            # The loop has a thread of its own, so that orders reach the process while the loop is blocked.
            threading.Thread(target=loop.run_forever, daemon=True).start()
            self._begin = lambda work: asyncio.run_coroutine_threadsafe(work, loop)

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
        work = {"latch": self._meet, "deadlock": self._cross}.get(inside, self._take_turns)
        for worker in self._names[:1] if inside == "deadlock" else self._names:
            self._working[worker] = self._begin(work(worker))
            self._working[worker].add_done_callback(partial(self._tell_failure, worker))

    def _tell_failure(self, worker: str, work: Future[Any]) -> None:
        if not work.cancelled() and (error := work.exception()):
            self._tell("failed", f"{worker}: {type(error).__name__}: {error}")

    def _cancel(self) -> None:
        began, work = time.monotonic(), self._working[next(iter(self._waiting))]
        work.cancel()
        wait([work])  # `cancel` returns before the task has ended
        self._tell("cancelled", (began, time.monotonic() - began))

    def _stop(self) -> None:
        self._stopping.set()
        wait(self._working.values())
        self._tell("stopped")

    async def _done(self, call: Any) -> Any:
        """Return the result of a call: a thread has waited for it, a task waits now."""
        return await call if self._plan.is_asyncio else call

    @asynccontextmanager
    async def _within(self, lock: Any) -> AsyncIterator[Any]:
        lock = lock if self._plan.locked else NO_LOCK
        if self._plan.is_asyncio:
            async with lock as held:
                yield held
        else:
            with lock as held:
                yield held

    async def _take_turns(self, worker: str) -> None:
        """Update ledgers until the act ends; of several, each turn updates two, or that of its permit."""
        client, name = self._client, self._plan.name
        reads = self._inside == "rwlock" and worker != self._names[0]
        locks: dict[str, Callable[[list[Path]], Any]] = {
            "": lambda _: NO_LOCK,
            "lock": lambda _: client.lock(name),
            "lock_all": lambda paths: client.lock_all([f"{name}:{path.name}" for path in paths]),
            "rwlock": lambda _: getattr(client.rwlock(name), "read" if reads else "write"),
            "semaphore": lambda _: client.semaphore(name, self._plan.limit),
        }
        while not self._stopping.is_set():
            paths = random.sample(self._ledgers, min(2, len(self._ledgers)))
            await self._turn(worker, locks[self._inside](paths), [] if reads else paths)
            await self._done(self._sleep(RESTING_SECONDS))

    async def _turn(self, worker: str, lock: Any, paths: list[Path]) -> None:
        """Update ledgers inside a lock, and nested in it once more; only read if there are none."""
        self._waiting[worker] = None
        asked = time.monotonic()
        async with self._within(lock) as outer:
            entered = time.monotonic()
            del self._waiting[worker]
            # A function that takes the lock may be called with the lock held; a second permit is another one.
            async with nullcontext(outer) if self._inside == "semaphore" else self._within(lock) as inner:
                entry, slot = Entry(worker, next(self._serials), inner.token or 0), getattr(inner, "slot", 0) or 0
                update = Update(entry, entered, inner.hold_count, slot=slot, asked=asked)
                await self._update(update, [self._ledgers[slot]] if self._inside == "semaphore" else paths)
            update = evolve(update, levels_after=outer.hold_count, left=time.monotonic())
            self._tell("updates" if paths else "reads", update)

    async def _update(self, update: Update, paths: list[Path]) -> None:
        """Read ledgers, think, and write them back; if the demo has asked so, stay inside until a kill."""
        texts = {path: path.read_bytes() for path in paths}
        if self._staying.acquire(blocking=False):
            self._stopping.set()
            self._tell("inside", update)
            if self._inside != "semaphore":
                time.sleep(STAYING_SECONDS)  # in a task this blocks the loop: the mistake that the demo shows
            await self._done(self._sleep(STAYING_SECONDS))
        await self._done(self._sleep(THINKING_SECONDS if paths else READING_SECONDS))
        for path, text in texts.items():
            draft = path.with_name(f"{path.name}.{update.entry.worker}")
            draft.write_bytes(text + "{} {} {}\n".format(*update.entry).encode())
            draft.replace(path)  # at once: a kill leaves a ledger as it was before the update, or after it

    async def _pass(self, worker: str, name: str, parties: int) -> None:
        """Arrive at a latch, and wait for the other parties."""
        latch = self._client.latch(f"{self._plan.name}:{name}", parties, ttl=60.0)  # also if limit_seconds is longer
        for _ in range(10 if self._plan.locked else 0):
            with suppress(QuorumError):  # the masters were slow; another try of this worker is the same arrival
                await self._done(latch.arrive(worker))
                await self._done(latch.wait())
                return

    async def _meet(self, worker: str) -> None:
        """Update the worker's own ledger in each round, and meet the other workers after it."""
        for number in range(self._plan.rounds):
            await self._done(self._sleep(random.uniform(0.0, STRAGGLING_SECONDS)))
            update = Update(Entry(worker, number, 0), NEVER)
            await self._update(update, [path for path in self._ledgers if path.name == worker])
            asked = time.monotonic()
            await self._pass(worker, f"round {number}", len(self._ledgers))
            self._tell("updates", evolve(update, asked=asked, entered=time.monotonic()))

    async def _cross(self, worker: str) -> None:
        """Take two locks one after the other; take both at once after a deadlock."""
        client, names = self._client, [f"{self._plan.name}:{path.name}" for path in self._ledgers]
        async with self._within(client.lock(names[0])):
            await self._pass(worker, "deadlock", 2)  # each process has its first lock
            asked = time.monotonic()
            try:
                await self._turn(worker, client.lock(names[1]), self._ledgers)
                return
            except DeadlockError:
                self._tell("victims", Update(Entry(worker, 0, 0), time.monotonic(), asked=asked))
        await self._turn(worker, client.lock_all(names), self._ledgers)
