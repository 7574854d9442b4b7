"""One process of the demo: threads that update the ledger, the same code with a lock and without.

    python -m relock.cli._demo.worker LEDGER URL NAME ROLE THREADS UPDATES

URL is ``none`` for no lock. ROLE is ``work``; ``hold``, which takes the lock and keeps it; or ``wait``, which is the
same for a process that is never to get it. It tells what it did on stdout, a JSON object a line, and ends when its
stdin is closed.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relock import Client
from relock.cli._demo.ledger import Entry, Ledger

TTL_SECONDS = 1.5
_telling = threading.Lock()


@contextlib.contextmanager
def no_lock() -> Iterator[None]:
    """What stands in for a lock where there is none."""
    yield


def tell(**what: Any) -> None:
    """One line for the demo."""
    with _telling:
        print(json.dumps(what), flush=True)


class Worker:
    """The threads of this process."""

    def __init__(self, ledger: Ledger, url: str, name: str, role: str) -> None:
        self._ledger = ledger
        self._client = None if url == "none" else Client(url, ttl=TTL_SECONDS, client_name=f"demo-{role}-{os.getpid()}")
        self._name = name

    def lock(self) -> Any:
        """The lock of the ledger, or what stands in for it."""
        return no_lock() if self._client is None else self._client.lock(self._name)

    def work(self, thread: int, updates: int) -> None:
        """Updates the ledger; tells each update after it was written."""
        worker = f"{os.getpid()}.{thread}"
        for serial in range(updates):
            with self.lock() as outer:
                entered_at = time.monotonic()
                with self.lock() as inner:
                    levels = getattr(inner, "hold_count", 0)
                    token = getattr(outer, "token", 0) or 0
                    self._ledger.append(Entry(worker, serial, token))
                left_at = time.monotonic()
            tell(
                did="update", worker=worker, serial=serial, token=token, levels=levels, entered=entered_at, left=left_at
            )
        tell(did="finished", worker=worker)

    def hold(self) -> None:
        """Takes the lock, writes into the ledger, and keeps the lock until somebody kills this process."""
        with self.lock() as lock:
            self._ledger.append(Entry(f"{os.getpid()}.0", 0, lock.token))
            tell(did="holding", worker=f"{os.getpid()}.0", token=lock.token, entered=time.monotonic())
            threading.Event().wait()


def main() -> None:
    """Starts the threads, and waits for the end of stdin."""
    ledger, url, name, role, threads, updates = sys.argv[1:]
    worker = Worker(Ledger(Path(ledger)), url, name, role)
    for thread in range(int(threads)):
        if role == "work":
            target = threading.Thread(target=worker.work, args=(thread, int(updates)), daemon=True)
        else:
            target = threading.Thread(target=worker.hold, daemon=True)
        target.start()
    sys.stdin.read()
    os._exit(0)  # whatever the threads are in the middle of: the demo is over


if __name__ == "__main__":
    main()
