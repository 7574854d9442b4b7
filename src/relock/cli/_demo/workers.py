"""What threads and tasks have in common: the orders they obey, and what they tell of their turns."""

import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import asdict, evolve

from relock.cli._demo.history import Update
from relock.cli._demo.job import Job, tell
from relock.cli._demo.ledger import Entry, Ledger

THINKING_SECONDS = 0.001
RESTING_SECONDS = 0.002


class NoLock:
    """What stands in for a lock where there is none, for threads and for tasks."""

    token = 0
    hold_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class Workers(ABC):
    """The workers of this process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ledger = Ledger(Path(os.devnull))
        self._is_locked = False
        self._serials = [0] * job.workers
        self._stopping = threading.Event()
        self._stays: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._go_on = threading.Event()

    @abstractmethod
    def run(self, orders: Iterable[dict[str, Any]]) -> None:
        """Obeys all of them."""

    @abstractmethod
    def start(self) -> None:
        """Sets all workers to work."""

    @abstractmethod
    def join(self) -> None:
        """Waits until all have ended."""

    def obey(self, order: dict[str, Any]) -> None:
        """Does what the demo says."""
        if order["do"] == "start":
            self._ledger, self._is_locked = Ledger(Path(order["ledger"])), order["locked"]
            self._stopping.clear()
            self.start()
        elif order["do"] == "stay":
            self._stays.put(None)
        elif order["do"] == "go_on":
            self._go_on.set()
        elif order["do"] == "stop":
            self._stopping.set()
            self._go_on.set()
            self.join()
            tell(did="stopped")

    def _name_of(self, number: int) -> str:
        return f"{self._job.process}.{number + 1}"

    def _enter(self, number: int, token: int | None) -> Update:
        """The update that a worker begins: it is inside now."""
        self._serials[number] += 1
        return Update(self._name_of(number), token or 0, time.monotonic(), serial=self._serials[number])

    def _is_to_stay(self, update: Update) -> bool:
        """Whether the demo has asked for one that stays inside. Then this is the one, and the demo is told."""
        try:
            self._stays.get_nowait()
        except queue.Empty:
            return False
        self._go_on.clear()
        tell(did="inside", **asdict(update))
        return True

    @staticmethod
    def _leave(update: Update, levels: int, levels_after: int) -> Update:
        """The update that has been written; its worker is about to give the lock back, and then tells of it."""
        return evolve(update, levels=levels, levels_after=levels_after, left=time.monotonic())

    @staticmethod
    def _entry(update: Update) -> Entry:
        return Entry(update.worker, update.serial, update.token)


def tell_of(update: Update) -> None:
    """Tells the demo of an update, after it was written and the lock given back."""
    tell(did="updated", **asdict(update))


def tell_failed(worker: str, error: Exception) -> None:
    """Tells the demo that a worker can't go on."""
    tell(did="failed", why=f"{worker}: {type(error).__name__}: {error}")
