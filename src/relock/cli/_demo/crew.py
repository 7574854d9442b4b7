"""The workers' processes: started, listened to, killed, and ended whatever happens."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from attrs import asdict, evolve

from relock.cli._demo.history import Cancelled, History, Update
from relock.cli._demo.job import Job

END_SECONDS = 1.0
WORKER = "relock.cli._demo.worker"


class Crew:
    """All processes of the demo, and the history that they tell."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()  # of what follows, which the listening threads change
        self.history = History()
        self.inside: dict[str, Update] = {}  # the updates that stay in the critical section, by process
        self.blocking: set[str] = set()  # the processes whose event loops one of these blocks
        self.stood: dict[str, float] = {}  # for how long an event loop stood still, by process, when it was asked
        self.cancelled: dict[str, Cancelled] = {}  # the waiters that were cancelled
        self.ready: set[str] = set()
        self.stopped: set[str] = set()
        self.failures: list[str] = []
        self.killed: dict[str, float] = {}
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._listeners: list[threading.Thread] = []
        self._is_over = False

    @property
    def alive(self) -> list[str]:
        """The processes that were not killed."""
        return [process for process in self._processes if process not in self.killed]

    @property
    def processes(self) -> list[str]:
        """All processes, in the order in which they were started."""
        return list(self._processes)

    def start(self, processes: Sequence[str], job: Job) -> None:
        """Starts these processes; each is ``ready`` once it has told so."""
        for process in processes:
            self._processes[process] = self._spawn(process)
            self._write(process, asdict(evolve(job, process=process)))
            listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
            self._listeners.append(listener)
            listener.start()

    def _spawn(self, process: str) -> "subprocess.Popen[str]":
        # -P and the path: it imports what this program imports, and nothing from the folder it happens to run in.
        path = os.pathsep.join(folder for folder in sys.path if folder)
        with self._errors_of(process).open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the demo, which then ends everybody
            )

    def _errors_of(self, process: str) -> Path:
        return self._folder / f"{process}.errors"

    def order(self, processes: Sequence[str], **order: Any) -> None:
        """Tells these processes what to do."""
        for process in processes:
            self._write(process, order)

    def _write(self, process: str, thing: dict[str, Any]) -> None:
        pipe = _open(self._processes[process].stdin)
        with contextlib.suppress(BrokenPipeError):  # it has ended; its listener says so
            pipe.write(json.dumps(thing) + "\n")
            pipe.flush()

    def _listen(self, process: str) -> None:
        with _open(self._processes[process].stdout) as lines:
            for line in lines:
                with self.lock:
                    self._hear(process, json.loads(line))
        with self.lock:
            if process not in self.killed and not self._is_over:
                said = self._errors_of(process).read_text(errors="replace").strip().splitlines()
                self.failures.append(f"{process} ended: {said[-1] if said else 'without a word'}")

    def _hear(self, process: str, told: dict[str, Any]) -> None:
        did = told.pop("did")
        if did == "updated":
            self.history.updates.append(Update(**told))
            if process in self.inside and told["worker"] == self.inside[process].worker:
                del self.inside[process]
                self.blocking.discard(process)
        elif did == "inside":
            self.inside[process] = Update(**told)
        elif did == "blocks":
            self.blocking.add(process)
        elif did == "stood":
            self.stood[process] = told["seconds"]
        elif did == "cancelled":
            self.cancelled[told["worker"]] = Cancelled(**told)
        elif did == "failed":
            self.failures.append(told["why"])
        else:
            {"ready": self.ready, "stopped": self.stopped}[did].add(process)

    def begin(self, ledger: Path, *, locked: bool) -> None:
        """Starts an act: a fresh history, and everybody to work."""
        with self.lock:
            self.history = History()
            self.stopped.clear()
            self.cancelled.clear()
        self.order(self.alive, do="start", ledger=str(ledger), locked=locked)

    def kill(self, process: str) -> float:
        """SIGKILL; returns the moment from which it has surely ended. What it was in the middle of is kept."""
        with self.lock:
            self.killed[process] = time.monotonic()
        self._processes[process].kill()
        self._processes[process].wait()
        ended = time.monotonic()
        with self.lock:
            self.killed[process] = ended
            self.history.killed.add(process)
            unfinished = self.inside.pop(process, None)
            if unfinished is not None:
                self.history.unfinished.append(evolve(unfinished, left=ended))
        return ended

    def updates(self) -> list[Update]:
        """The updates of this act that were told of so far."""
        with self.lock:
            return list(self.history.updates)

    def first_after(self, moment: float) -> Update | None:
        """The first update of this act that began after `moment`, of those that were told of."""
        later = [update for update in self.updates() if update.entered > moment]
        return min(later, key=lambda update: update.entered, default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self.lock:
            self._is_over = True
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                _open(process.stdin).close()
        for listener in self._listeners:
            listener.join(END_SECONDS)


def _open(pipe: IO[str] | None) -> IO[str]:
    """The pipe that `subprocess` was asked for, which its type does not promise."""
    if pipe is None:
        raise RuntimeError("the process has no pipe")
    return pipe
