"""One process of the demo: threads that update the ledger, the same code with a lock and without.

    python -m relock.cli._demo.worker

It takes orders on stdin and tells what it did on stdout, a JSON object a line each. The first line is its `Job`
(on stdin, because a URL may hold a password, and arguments can be read by everybody). Orders: ``start`` (with the
ledger, and whether under the lock), ``stay`` (the next one inside stays there, in the middle of its update),
``go_on`` (it leaves), ``stop``. It ends when its stdin is closed.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import frozen

from relock import Client, Lock, RelockError
from relock.cli._demo.ledger import Entry, Ledger

THINKING_SECONDS = 0.001
RESTING_SECONDS = 0.002
_telling = threading.Lock()


@frozen
class Job:
    """What a process is told first. Its URLs may hold passwords."""

    process: str
    threads: int
    urls: tuple[str, ...]
    prefix: str
    name: str
    ttl: float


class NoLock:
    """What stands in for a lock where there is none."""

    token = 0
    hold_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


def tell(**what: Any) -> None:
    """One line for the demo."""
    with _telling:
        print(json.dumps(what), flush=True)


class Worker:
    """The threads of this process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._client = Client(list(job.urls), prefix=job.prefix, ttl=job.ttl, client_name=job.process)
        self._ledger = Ledger(Path(os.devnull))
        self._is_locked = False
        self._threads: list[threading.Thread] = []
        self._serials = [0] * job.threads
        self._stopping = threading.Event()
        self._stays: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._go_on = threading.Event()

    def obey(self, order: dict[str, Any]) -> None:
        """Does what the demo says."""
        if order["do"] == "start":
            self._start(Ledger(Path(order["ledger"])), is_locked=order["locked"])
        elif order["do"] == "stay":
            self._stays.put(None)
        elif order["do"] == "go_on":
            self._go_on.set()
        elif order["do"] == "stop":
            self._stop()

    def _start(self, ledger: Ledger, *, is_locked: bool) -> None:
        self._ledger, self._is_locked = ledger, is_locked
        self._stopping.clear()
        self._threads = [threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(self._job.threads)]
        for thread in self._threads:
            thread.start()

    def _stop(self) -> None:
        self._stopping.set()
        self._go_on.set()
        for thread in self._threads:
            thread.join()
        tell(did="stopped")

    def _lock(self) -> Lock | NoLock:
        """The lock of the ledger, or what stands in for it: all that differs between the two acts."""
        return self._client.lock(self._job.name) if self._is_locked else NoLock()

    def _work(self, thread: int) -> None:
        worker = f"{self._job.process}.{thread + 1}"
        try:
            while not self._stopping.is_set():
                self._serials[thread] += 1
                self._update(worker, self._serials[thread])
                time.sleep(RESTING_SECONDS)
        except (RelockError, OSError) as error:
            tell(did="failed", why=f"{worker}: {type(error).__name__}: {error}")

    def _update(self, worker: str, serial: int) -> None:
        """One update of the ledger, with a nested hold in it; told of only after it was written."""
        with self._lock() as outer:
            entered = time.monotonic()
            token = outer.token or 0
            with self._lock() as inner:  # as a function does that takes the lock, and is called with the lock held
                levels = inner.hold_count
                self._ledger.append(Entry(worker, serial, token), lambda: self._think(worker, token, entered))
            levels_after = outer.hold_count
            left = time.monotonic()
        tell(did="updated", worker=worker, serial=serial, token=token, levels=levels, levels_after=levels_after,
             entered=entered, left=left)  # fmt: skip

    def _think(self, worker: str, token: int, entered: float) -> None:
        """What a program does between reading and writing; much longer, if the demo has asked for that."""
        try:
            self._stays.get_nowait()
        except queue.Empty:
            time.sleep(THINKING_SECONDS)
            return
        self._go_on.clear()
        tell(did="inside", worker=worker, token=token, entered=entered)
        self._go_on.wait()


def main() -> None:
    """Obeys until the end of stdin."""
    job = json.loads(sys.stdin.readline())
    worker = Worker(Job(**job))
    tell(did="ready")
    for line in sys.stdin:
        worker.obey(json.loads(line))
    os._exit(0)  # whatever the threads are in the middle of: the demo is over


if __name__ == "__main__":
    main()
