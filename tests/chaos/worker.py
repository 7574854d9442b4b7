"""One process of the nemesis' workload: ``python -m chaos.worker JOB``, until ``"stop"`` comes on stdin, or its end.

Its threads take and release locks around the protected resource, and write down every call and every return. A thread
whose hold was lost makes one more write with its old token, like a program that had checked its hold just before: the
store must refuse it.
"""

import itertools
import json
import logging
import os
import random
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from chaos import weakened
from chaos.history import Recorder, clock
from chaos.resource import Counter, Marker, StoreClient
from relock import Client, Lock, LockLostError, Loss, RelockError, RelockWarning, _caches

SAMPLE_SECONDS = 0.04
BACK_OFF_SECONDS = 0.02
LATE_SECONDS = 0.5
LONG_WAIT_SECONDS = 60.0
CROWDED_LOCKS = 4
TOLD_SECONDS = 5.0


@frozen
class Job:
    """What a process must do.

    Attributes:
        crowd: the part of the turns in which a thread takes one of the first few locks; else it takes any.
        think: the longest time (s) between reading the counter and writing it.
        long: how often a hold is a long one that must be renewed.
        nested: how often a hold has a nested one.
        tries: how often an acquire waits for a moment only, or not at all.
        caches: how many entries each cache of relock may have, or None for as many as it likes.
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
    caches: int | None = None
    weakened: str | None = None


class Process:
    """What its threads share."""

    def __init__(self, job: Job) -> None:
        folder = Path(job.folder)
        self.job = job
        self.recorder = Recorder(folder / f"p{job.process}.jsonl", job.process)
        self.client = Client(
            job.urls if len(job.urls) > 1 else job.urls[0],
            ttl=job.ttl,
            restart_guard=job.guard,
            node_timeout=job.node_timeout,
            client_name=f"p{job.process}",
            on_lost=self._lost,
        )
        self.counters = {name: Counter(folder / f"{name}.counter") for name in job.locks}
        self._names = itertools.count()
        self.markers = {name: Marker(folder / f"{name}.marker") for name in job.locks}
        self.stopping = threading.Event()
        self.output = Output()
        self.told: set[tuple[str, int | None]] = set()
        self.found_lost: set[tuple[str, int | None]] = set()

    def _lost(self, loss: Loss) -> None:
        self.recorder.write("lost", lock=loss.lock, token=loss.token, at=clock(), reason=loss.reason)
        self.told.add((loss.lock, loss.token))
        self.output.write()

    def run(self) -> None:
        """Works until it is told to stop."""
        threads = [threading.Thread(target=Turns(self, i).run, daemon=True) for i in range(self.job.threads)]
        for thread in threads:
            thread.start()
        for line in sys.stdin:
            if not self._obey(json.loads(line)):
                break
        self.stopping.set()
        for thread in threads:
            thread.join()
        self.output.read_again()
        self._hear_of_losses()
        self.recorder.write("ended", at=clock())

    def _obey(self, order: Any) -> bool:
        """Does what it is told; returns whether it must go on."""
        match order:
            case {"block": bool(is_blocked)}:
                (self.output.block if is_blocked else self.output.read_again)()
            case {"names": int(count)}:
                threading.Thread(target=self._use_names, args=(count,), daemon=True).start()
            case _:
                return False
        return True

    def _use_names(self, count: int) -> None:
        """Takes and releases so many locks that nobody else wants, each once."""
        for _ in range(count):
            if self.stopping.is_set():
                return
            lock = self.client.lock(f"p{self.job.process}-name-{next(self._names)}")
            with suppress(RelockError):
                if lock.acquire(blocking=False):
                    lock.release()

    def _hear_of_losses(self) -> None:
        """Waits until its callback has been told of all losses; the judge will miss those that do not come."""
        end = clock() + TOLD_SECONDS
        while not self.found_lost <= self.told and clock() < end:
            time.sleep(SAMPLE_SECONDS)


class Output(logging.Handler):
    """A log, and other output of a callback, that nobody reads at times: a thread that writes then waits."""

    def __init__(self) -> None:
        super().__init__()
        self._is_read = threading.Event()
        self._is_read.set()

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        """See `logging.Handler`."""
        self.write()

    def write(self) -> None:
        """Waits until somebody reads."""
        self._is_read.wait()

    def block(self) -> None:
        """Lets nobody read any more."""
        self._is_read.clear()

    def read_again(self) -> None:
        """Lets somebody read again."""
        self._is_read.set()


class Turns:
    """One thread."""

    def __init__(self, process: Process, thread: int) -> None:
        self._process = process
        self._recorder = process.recorder
        self._thread = thread
        self._worker = f"p{process.job.process}.t{thread}"
        self._dice = random.Random(f"{process.job.seed} {thread}")
        self._store = StoreClient(process.job.store)

    def run(self) -> None:
        """Takes turns until it is told to stop."""
        try:
            while not self._process.stopping.is_set():
                self._turn()
        except Exception:
            self._recorder.write("error", at=clock(), what=traceback.format_exc())

    def _turn(self) -> None:
        lock = self._process.client.lock(self._choose())
        number = self._recorder.call(self._thread, lock.name, "acquire", 0)
        try:
            granted = lock.acquire(**self._patience())
        except RelockError as error:
            self._recorder.returned(number, clock(), "failed", why=type(error).__name__)
            time.sleep(BACK_OFF_SECONDS)
            return
        at, token = clock(), lock.token
        if not granted:
            self._recorder.returned(number, at, "refused")
            time.sleep(self._dice.uniform(0.0, BACK_OFF_SECONDS))
            return
        if token is None:  # the hold is lost already
            self._recorder.returned(number, at, "failed", why="lost")
            token = 0
        else:
            self._recorder.returned(number, at, "ok", token=token, count=levels(lock), until=believed(lock))
            self._section(lock, number, token)
        self._release(lock, 1, token)
        self._recorder.write("released", grant=number)

    def _choose(self) -> str:
        """The name of a lock: one that many threads want, or any."""
        job = self._process.job
        return self._dice.choice(job.locks[:CROWDED_LOCKS] if self._dice.random() < job.crowd else job.locks)

    def _patience(self) -> dict[str, Any]:
        """How long this acquire waits."""
        kind = self._dice.random()
        if kind < self._process.job.tries / 2:
            return {"blocking": False}
        if kind < self._process.job.tries:
            return {"timeout": self._dice.uniform(0.0, 0.5)}
        return {"timeout": LONG_WAIT_SECONDS}

    def _release(self, lock: Lock, level: int, token: int) -> None:
        number = self._recorder.call(self._thread, lock.name, "release", level)
        try:
            lock.release()
            self._recorder.returned(number, clock(), "ok", count=levels(lock))
        except LockLostError:
            self._recorder.returned(number, clock(), "failed", why="LockLostError")
            self._process.found_lost.add((lock.name, token))

    # With the lock --------------------------------------------------------------------------------------------------

    def _section(self, lock: Lock, grant: int, token: int) -> None:
        self._write(lock, grant, token, "enter")
        self._mark(lock, grant)
        self._update(lock, grant)
        if self._dice.random() < self._process.job.nested:
            self._nest(lock, grant, token)
        if self._dice.random() < self._process.job.long:
            self._stay(lock, grant, self._dice.uniform(0.3, 2.5) * self._process.job.ttl)
        if not self._see(lock, grant):
            time.sleep(self._dice.uniform(0.0, LATE_SECONDS))  # so that a newer holder has been here
        self._write(lock, grant, token, "leave")
        self._process.markers[lock.name].remove(grant)

    def _see(self, lock: Lock, grant: int) -> bool:
        """Writes down until when it believes in its hold; returns whether it does."""
        at, until = clock(), believed(lock)
        if until is None:
            self._recorder.write("gone", grant=grant, at=at)
        else:
            self._recorder.write("seen", grant=grant, until=until, at=at)
        return until is not None

    def _write(self, lock: Lock, grant: int, token: int, phase: str) -> None:
        called = clock()
        accepted, order = self._store.write(lock.name, token, self._worker, phase)
        self._recorder.write("wrote", worker=self._worker, lock=lock.name, grant=grant, token=token, called=called,
                             at=clock(), accepted=accepted, order=order)  # fmt: skip

    def _mark(self, lock: Lock, grant: int) -> None:
        called = clock()
        other = self._process.markers[lock.name].put(grant)
        if other is not None:
            self._recorder.write("collided", worker=self._worker, lock=lock.name, grant=grant, other=other,
                                 called=called, at=clock())  # fmt: skip

    def _update(self, lock: Lock, grant: int) -> None:
        """Reads, thinks and writes, unless it knows by then that its hold is lost."""
        counter = self._process.counters[lock.name]
        read, read_at = counter.read(), clock()
        time.sleep(self._dice.uniform(0.0, self._process.job.think))
        if not self._see(lock, grant):
            return
        self._recorder.write("updating", worker=self._worker, lock=lock.name, grant=grant, read=read, read_at=read_at,
                             written=read + 1, at=clock())  # fmt: skip
        counter.write(read + 1)
        self._recorder.write("updated", grant=grant, at=clock())

    def _nest(self, lock: Lock, grant: int, grant_token: int) -> None:
        number = self._recorder.call(self._thread, lock.name, "acquire", 1)
        try:
            granted = lock.acquire(timeout=LONG_WAIT_SECONDS)
        except LockLostError:
            self._recorder.returned(number, clock(), "failed", why="LockLostError")
            return
        at, token, count = clock(), lock.token, levels(lock)
        if not granted:
            self._recorder.returned(number, at, "refused")
        elif token is None:
            self._recorder.returned(number, at, "failed", why="lost")
        else:
            self._recorder.returned(number, at, "ok", token=token, count=count)
        if granted:
            self._see(lock, grant)
            self._release(lock, 2, grant_token)

    def _stay(self, lock: Lock, grant: int, seconds: float) -> None:
        """Keeps the lock so long that it must be renewed, or until it is lost."""
        end = clock() + seconds
        while clock() < end and self._see(lock, grant):
            time.sleep(SAMPLE_SECONDS)


def levels(lock: Lock) -> int | None:
    """How many levels the caller has; None once its hold is lost, maybe since the call before this look returned."""
    count = lock.hold_count
    return None if lock.lost else count


def believed(lock: Lock) -> float | None:
    """Until when the caller's hold is surely valid; None if it is not. A little early: it reads the clock first."""
    now = clock()
    left = lock.remaining()
    return now + left if left > 0 else None


def main() -> None:
    """Does the job that its argument says."""
    job = Job(**json.loads(sys.argv[1]))
    warnings.simplefilter("ignore", RelockWarning)
    logging.getLogger("relock").propagate = False
    if job.weakened is not None:
        weakened.GUARDS[job.weakened]()
    if job.caches is not None:
        _caches.COUNT_MAX = job.caches
    process = Process(job)
    logging.getLogger("relock").addHandler(process.output)
    process.run()
    os._exit(0)  # without waiting for background threads: the history is complete


if __name__ == "__main__":
    main()
