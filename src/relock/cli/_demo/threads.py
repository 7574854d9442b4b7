"""The demo's workers as threads."""

import threading
import time
from collections.abc import Iterable
from typing import Any

from relock import Client, Lock, RelockError
from relock.cli._demo.history import Update
from relock.cli._demo.job import Job
from relock.cli._demo.workers import RESTING_SECONDS, THINKING_SECONDS, NoLock, Workers, tell_failed, tell_of


class Threads(Workers):
    """The threads of this process."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._client = Client(list(job.urls), prefix=job.prefix, ttl=job.ttl, client_name=job.process)
        self._threads: list[threading.Thread] = []

    def run(self, orders: Iterable[dict[str, Any]]) -> None:
        """Obeys all of them."""
        for order in orders:
            self.obey(order)

    def start(self) -> None:
        """Sets all threads to work."""
        self._threads = [threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(self._job.workers)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Waits until all have ended."""
        for thread in self._threads:
            thread.join()

    def _lock(self) -> Lock | NoLock:
        """The lock of the ledger, or what stands in for it: all that differs between the two acts."""
        return self._client.lock(self._job.name) if self._is_locked else NoLock()

    def _work(self, number: int) -> None:
        try:
            while not self._stopping.is_set():
                self._update(number)
                time.sleep(RESTING_SECONDS)
        except (RelockError, OSError) as error:
            tell_failed(self._name_of(number), error)

    def _update(self, number: int) -> None:
        """One update of the ledger, with a nested hold in it; told of only after it was written."""
        with self._lock() as outer:
            update = self._enter(number, outer.token)
            with self._lock() as inner:  # as a function does that takes the lock, and is called with the lock held
                levels = inner.hold_count
                text = self._ledger.read()
                self._think(update)
                self._ledger.write(text, self._entry(update))
            update = self._leave(update, levels, outer.hold_count)
        tell_of(update)

    def _think(self, update: Update) -> None:
        """What a program does between reading and writing; much longer, if the demo has asked for that."""
        if self._is_to_stay(update):
            self._go_on.wait()
        else:
            time.sleep(THINKING_SECONDS)
