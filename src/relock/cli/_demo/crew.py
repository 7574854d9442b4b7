"""The processes of the workers: started, heard, killed, and ended whatever happens."""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from attrs import evolve

from relock.cli._demo.plan import Job
from relock.cli._demo.verdict import History
from relock.cli._demo.worker import work
from relock.cli._signals import signals_put_off


class Crew:
    """The processes of the demo, and what their workers have told by the last call of `hear`.

    Attributes:
        history: the updates of the present act.
        told: the latest message of each other kind, by kind and process.
        killed: when each killed process had surely ended.
        failures: why workers can't go on.
    """

    def __init__(self) -> None:
        self.history = History()
        self.told: dict[tuple[str, str], Any] = {}
        self.killed: dict[str, float] = {}
        self.failures: list[str] = []
        self._processes: dict[str, SpawnProcess] = {}
        self._pipes: dict[str, Connection] = {}

    @property
    def alive(self) -> list[str]:
        """Names of the processes that were not killed."""
        return [process for process in self._processes if process not in self.killed]

    def start(self, jobs: Sequence[Job]) -> None:
        """Start a process for each job; each tells ``ready``. A signal has to wait: half a start could not be ended."""
        with signals_put_off():
            self._start(jobs)

    def _start(self, jobs: Sequence[Job]) -> None:
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # first: up to Python 3.12, its start lets the signal in again
        # Until a process has a session of its own, Ctrl-C reaches it too: it inherits that the signal is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for job in jobs:
                self._pipes[job.process], end = context.Pipe()
                self._processes[job.process] = context.Process(target=work, args=(job, end), daemon=True)
                self._processes[job.process].start()
                end.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def order(self, process: str, do: str, *value: object) -> None:
        """Send an order to a process."""
        with contextlib.suppress(OSError):  # the process has ended, and `hear` says so
            self._pipes[process].send((do, value))

    def begin(self, ledger: object, *, locked: bool) -> None:
        """Begin an act with an empty history, and start all workers."""
        self.history, self.told = History(), {}
        for process in self.alive:
            self.order(process, "start", ledger, locked)

    def hear(self, seconds: float) -> None:
        """Take in the messages of all workers; wait for one, at most `seconds`."""
        pipes = {self._pipes[process]: process for process in self.alive}
        for pipe in wait(list(pipes), seconds):
            process = pipes[pipe]  # type: ignore[index]
            try:
                while self._pipes[process].poll():
                    self._take(process, *self._pipes[process].recv())
            except (EOFError, OSError):
                self._processes[process].join()
                self.failures.append(f"{process} ended with exit code {self._processes[process].exitcode}")

    def _take(self, process: str, word: str, value: Any) -> None:
        if word == "updated":
            self.history.updates.append(value)
        elif word == "failed":
            self.failures.append(value)
        else:
            self.told[word, process] = value

    def all_told(self, word: str) -> bool:
        """Return whether every living process has told `word`."""
        return all((word, process) in self.told for process in self.alive)

    def kill(self, process: str) -> float:
        """Kill a process with SIGKILL; return when it had surely ended. An update that it had begun is kept."""
        self._processes[process].kill()
        self._processes[process].join()
        ended = time.monotonic()
        with contextlib.suppress(EOFError, OSError):  # its last messages
            while self._pipes[process].poll():
                self._take(process, *self._pipes[process].recv())
        self.killed[process] = ended
        self.history.killed.add(process)
        if ("inside", process) in self.told:
            self.history.unfinished.append(evolve(self.told["inside", process], left=ended))
        return ended

    @contextlib.contextmanager
    def ended_after(self) -> Iterator[None]:
        """End all processes after the block."""
        try:
            yield
        finally:
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.join()
