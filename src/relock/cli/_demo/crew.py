"""The workers' processes: started, listened to, killed, and ended whatever happens."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relock.cli._demo.history import History, Update

POLL_SECONDS = 0.005


class Overtime(Exception):  # noqa: N818 - it is no error of the program
    """The demo has taken too long."""


class Crew:
    """All processes of one phase, and the history that they tell."""

    def __init__(self, ledger: Path, url: str, name: str, deadline: float) -> None:
        self.history = History()
        self._finished = 0
        self._threads = 0
        self.holding: list[dict[str, Any]] = []
        self._words = [str(ledger), url, name]
        self._deadline = deadline
        self._processes: list[subprocess.Popen[str]] = []
        self._listening: list[threading.Thread] = []
        self._lock = threading.Lock()

    def is_finished(self) -> bool:
        """Whether every thread that works has made all its updates."""
        return self._finished == self._threads

    @property
    def holder(self) -> "subprocess.Popen[str]":
        """The process that holds the lock and keeps it."""
        (told,) = self.holding
        return next(process for process in self._processes if told["worker"] == f"{process.pid}.0")

    def start(self, role: str, *, threads: int = 1, updates: int = 0) -> "subprocess.Popen[str]":
        """One more process."""
        self._threads += threads if role == "work" else 0
        process = subprocess.Popen(
            [sys.executable, "-m", "relock.cli._demo.worker", *self._words, role, str(threads), str(updates)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo
        )
        self._processes.append(process)
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        self._listening.append(listener)
        listener.start()
        return process

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        if process.stdout is None:
            return
        with process.stdout as lines:
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, told: dict[str, Any]) -> None:
        did = told.pop("did")
        with self._lock:
            if did == "update":
                self.history.updates.append(Update(**told))
            elif did == "finished":
                self._finished += 1
            else:
                self.holding.append(told)

    def kill(self, process: "subprocess.Popen[str]") -> float:
        """SIGKILL; returns the moment."""
        process.kill()
        process.wait()
        self.history.killed.add(f"{process.pid}.0")
        return time.monotonic()

    def until(self, condition: Callable[[], object]) -> None:
        """Waits until `condition` is true.

        Raises:
            Overtime: the demo's time is over first.
        """
        while not condition():
            if time.monotonic() > self._deadline:
                raise Overtime
            time.sleep(POLL_SECONDS)

    def first_entered_after(self, moment: float) -> float | None:
        """When the first update that began after `moment` began."""
        with self._lock:
            return min((update.entered for update in self.history.updates if update.entered > moment), default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for listener in self._listening:
            listener.join(1.0)
