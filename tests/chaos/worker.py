"""One process of the nemesis' workload: ``python -m chaos.worker JOB``, until ``"stop"`` comes on stdin, or its end.

Its threads, or the tasks of its event loop, take and release locks around the protected resource, and record every call
and every return. A worker whose hold was lost makes one more write with its old token, like a program that had checked
its hold just before: the store must refuse that write.
"""

import itertools
import json
import logging
import os
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import frozen

from chaos import weakened
from chaos.history import Recorder, clock
from chaos.records import place_of
from chaos.resource import Counter, Marker
from chaos.turns import SAMPLE_SECONDS, ThreadTurns, run_here
from relock import AsyncClient, Client, Loss, RelockError, RelockWarning, _caches

TOLD_SECONDS = 5.0


@frozen
class Job:
    """Job of a process.

    Attributes:
        crowd: the part of the turns in which a thread takes one of the first few locks; else it takes any.
        think: the longest time (s) between reading the counter and writing it.
        long: how often a hold is a long one that must be renewed.
        nested: how often a hold has a nested one.
        tries: how often an acquire waits for a moment only, or not at all.
        several: the part of the turns in which a worker takes two locks at once, by `lock_all`.
        crossed: the part of the holds in which a worker takes another lock as well, by a call of its own.
        limit: the limit of the semaphores that `locks` name; 0 if they name locks.
        reads: the part of the turns in which a worker reads; 0 if there are no readers.
        parties: the number of parties of the latches that workers visit in half of the turns; 0 for no latches.
        caches: the number of entries that each cache of relock may have, or None for relock's own bound.
        has_loop: its workers are tasks of an event loop, instead of threads.
        weakened: the guard that is taken out (see `chaos.weakened`), or None.
    """

    process: int
    threads: int
    seed: str
    urls: list[str]
    ttl: float
    guard: float
    node_timeout: float
    locks: list[str]
    folder: str
    store: str
    crowd: float
    think: float
    long: float
    tries: float
    nested: float = 0.2
    several: float = 0.0
    crossed: float = 0.0
    limit: int = 0
    reads: float = 0.0
    parties: int = 0
    caches: int | None = None
    has_loop: bool = False
    weakened: str | None = None


ClientT = TypeVar("ClientT", Client, AsyncClient)


class Process(ABC, Generic[ClientT]):
    """Common part of the workers of one process."""

    def __init__(self, job: Job) -> None:
        folder = Path(job.folder)
        self.job = job
        self.recorder = Recorder(folder / f"p{job.process}.jsonl", job.process)
        self.client: ClientT = self._connect(
            job.urls if len(job.urls) > 1 else job.urls[0],
            ttl=job.ttl,
            restart_guard=job.guard,
            node_timeout=job.node_timeout,
            client_name=f"p{job.process}",
            on_lost=self._lost,
        )
        slots: Sequence[int | None] = range(job.limit) if job.limit else [None]
        places = [place_of(name, slot) for name in job.locks for slot in slots]
        self.counters = {place: Counter(folder / f"{place}.counter") for place in places}
        self.rounds = Counter(folder / "rounds.counter")  # the number of the latch that all visit now
        self._names = itertools.count()
        self.markers = {place: Marker(folder / f"{place}.marker") for place in places}
        self.stopping = threading.Event()
        self.output = Output()
        self.watched: dict[tuple[str, int], int] = {}  # grants of workers that wait, by lock and token
        self.told: set[tuple[str, int | None]] = set()
        self.found_lost: set[tuple[str, int | None]] = set()

    @abstractmethod
    def _connect(self, nodes: Any, **options: Any) -> ClientT:
        """Make the client of all workers."""

    @abstractmethod
    def start(self) -> Sequence[threading.Thread]:
        """Start the workers; return the threads that end with them."""

    @abstractmethod
    def use_names(self, count: int) -> None:
        """Begin to take and release so many locks that no other worker wants, each once."""

    def _lost(self, loss: Loss) -> None:
        self.recorder.write("lost", lock=loss.lock, token=loss.token, at=clock(), reason=loss.reason)
        self.told.add((loss.lock, loss.token))

    def run(self) -> None:
        """Work until the process is told to stop."""
        threads = self.start()
        threading.Thread(target=self._watch, args=(threads,), daemon=True).start()
        for line in sys.stdin:
            if not self.obey(json.loads(line)):
                break
        self.stopping.set()
        self.end()
        for thread in threads:
            thread.join()
        self.output.read_again()
        self._hear_of_losses()
        self.recorder.write("ended", at=clock())

    def end(self) -> None:
        """Wake the workers, which are to stop, if they need it."""

    def obey(self, order: Any) -> bool:
        """Carry out an order; return whether the process must go on."""
        match order:
            case {"block": bool(is_blocked)}:
                (self.output.block if is_blocked else self.output.read_again)()
            case {"names": int(count)}:
                self.use_names(count)
            case _:
                return False
        return True

    def hold_name(self, lock: str, token: int) -> str:
        """Return the name of a hold on the masters, which a `DeadlockError` would tell; an empty one if it is lost."""
        holds = self.client._session.holds.copy().values()
        return next((one.owner.decode() for one in holds if (one.keys.name, one.token) == (lock, token)), "")

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        """Record until when the holds of workers that wait for another lock are valid, as long as a thread works."""
        session = self.client._session
        while any(thread.is_alive() for thread in threads):
            for hold in session.holds.copy().values() if self.watched else ():
                grant, at, left = (
                    self.watched.get((hold.keys.name, hold.token)),
                    clock(),
                    hold.remaining(session.clock()),
                )
                if grant is not None and left > 0:
                    self.recorder.write("seen", grant=grant, until=at + left, at=at)
            time.sleep(SAMPLE_SECONDS)

    def next_name(self) -> str:
        """Return the name of a lock that no other worker wants."""
        return f"p{self.job.process}-name-{next(self._names)}"

    @property
    def is_told(self) -> bool:
        """Return whether the callback has been told of all losses that workers have found."""
        return self.found_lost <= self.told

    def _hear_of_losses(self) -> None:
        """Wait until the callback has been told of all losses; the verdict misses those that are not told."""
        end = clock() + TOLD_SECONDS
        while not self.is_told and clock() < end:
            time.sleep(SAMPLE_SECONDS)


class ThreadProcess(Process[Client]):
    """A process whose workers are threads."""

    def _connect(self, nodes: Any, **options: Any) -> Client:
        return Client(nodes, **options)

    def _lost(self, loss: Loss) -> None:
        super()._lost(loss)
        self.output.write()  # a loop's callback must not block its loop

    def start(self) -> Sequence[threading.Thread]:
        """Start the workers; return their threads."""
        turns = [ThreadTurns(self, i) for i in range(self.job.threads)]
        threads = [threading.Thread(target=lambda one=one: run_here(one.run()), daemon=True) for one in turns]
        for thread in threads:
            thread.start()
        return threads

    def use_names(self, count: int) -> None:
        """Begin to take and release so many locks, in a thread of their own."""
        threading.Thread(target=self._use_names, args=(count,), daemon=True).start()

    def _use_names(self, count: int) -> None:
        for _ in range(count):
            if self.stopping.is_set():
                return
            lock = self.client.lock(self.next_name())
            with suppress(RelockError):
                if lock.acquire(blocking=False):
                    lock.release()


class Output(logging.Handler):
    """A log, and other output of a callback, that nothing reads at times: a thread that writes then waits."""

    def __init__(self) -> None:
        super().__init__()
        self._is_read = threading.Event()
        self._is_read.set()

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """Handle a record of the log."""
        self.write()

    def write(self) -> None:
        """Wait until the output is read."""
        self._is_read.wait()

    def block(self) -> None:
        """Stop reading the output."""
        self._is_read.clear()

    def read_again(self) -> None:
        """Read the output again."""
        self._is_read.set()


def made(job: Job) -> Process[Any]:
    """Make the process that a job asks for."""
    if not job.has_loop:
        return ThreadProcess(job)
    from chaos.loop_worker import LoopProcess

    return LoopProcess(job)


def main() -> None:
    """Do the job that the argument names."""
    job = Job(**json.loads(sys.argv[1]))
    warnings.simplefilter("ignore", RelockWarning)
    logging.getLogger("relock").propagate = False
    if job.weakened is not None:
        weakened.GUARDS[job.weakened]()
    if job.caches is not None:
        _caches.COUNT_MAX = job.caches
    process = made(job)
    logging.getLogger("relock").addHandler(process.output)
    process.run()
    os._exit(0)  # without waiting for background threads: the history is complete


if __name__ == "__main__":
    main()
