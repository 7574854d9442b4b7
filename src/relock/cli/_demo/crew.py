"""The workers: a plan for them, and their processes, which the demo starts, hears, kills or ends."""

import contextlib
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from subprocess import Popen
from typing import Any

from attrs import field, frozen

from relock.cli._demo.verdict import History
from relock.cli._signals import signals_put_off

PROGRAM = "import sys; from relock.cli._demo.worker import Workers; Workers(int(sys.argv[1])).obey_all()"


@frozen(kw_only=True)
class Plan:
    """The workers, and the seconds of each part: about 20 in all, 23 with tasks, 26 with several masters."""

    processes: tuple[str, ...] = ("alder", "birch", "cedar", "maple")
    workers: int = 3  # of each process: threads, or tasks
    is_asyncio: bool = False
    limit: int = 2  # of the semaphore
    rounds: int = 20  # of the latch
    ttl: float = 2.0
    locked: bool = True  # False plays the acts without locks and permits: the control of the verdict
    act_seconds: float = 1.0
    stay_seconds: float = 2.5
    pause_seconds: float = 0.7
    patience_seconds: float = 5.0  # the longest wait for an event that should happen at once
    outcome_seconds: float = 20.0  # the longest wait for a lock, for all rounds, for a deadlock, and for a word
    limit_seconds: float = 60.0  # the longest that the demo may take
    urls: tuple[str, ...] = field(default=(), repr=False)  # the masters; they may hold passwords
    prefix: str = "lock"
    name: str = ""  # of the lock, and of the semaphore


class StoryEndedError(Exception):
    """The story can't go on; the error says why."""


class Crew:
    """The processes of the demo, and the messages of their workers by the last call of `hear`."""

    def __init__(self) -> None:
        self.alive: list[str] = []  # the processes that were not killed
        self.history = History()
        self.told: dict[tuple[str, str], Any] = {}  # the latest message of each kind, by kind and process
        self._processes: dict[str, Popen[bytes]] = {}
        self._pipes: dict[str, Connection] = {}

    def start(self, plan: Plan) -> None:
        """Start all processes; each then sends ``ready``. Signals are put off, so that no start is cut in half."""
        # With -P and this path, the processes import what this one imports, and nothing from the current folder.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with signals_put_off():
            for name in plan.processes:
                self._pipes[name], end = Pipe()
                self._pipes[name].send((name, plan))
                command = [sys.executable, "-P", "-c", PROGRAM, str(end.fileno())]
                # Each process has a session of its own: Ctrl-C reaches only the demo, which ends all processes.
                self._processes[name] = Popen(command, env=env, pass_fds=[end.fileno()], start_new_session=True)
                self.alive.append(name)
                end.close()

    def order(self, do: str, *value: object, to: Sequence[str]) -> None:
        """Send an order to processes."""
        for process in to:
            with contextlib.suppress(OSError):  # the process has ended, and `hear` says so
                self._pipes[process].send((do, value))

    def hear(self, seconds: float) -> None:
        """Take in the workers' messages, after `seconds` at most; raise `StoryEndedError` if one can't go on."""
        wait([self._pipes[process] for process in self.alive], seconds)
        for process in self.alive:
            try:
                self._take_in(process)
            except (EOFError, OSError):
                raise StoryEndedError(f"{process} ended with exit code {self._processes[process].wait()}") from None

    def _take_in(self, process: str) -> None:
        while self._pipes[process].poll():
            word, value = self._pipes[process].recv()
            if hasattr(self.history, word):  # updates, reads, victims
                getattr(self.history, word).append(value)
            elif word == "failed":
                raise StoryEndedError(value)
            else:
                self.told[word, process] = value

    def kill(self, process: str) -> None:
        """Kill a process with SIGKILL, and wait until it has surely ended."""
        self._processes[process].kill()
        self._processes[process].wait()
        with contextlib.suppress(EOFError, OSError):  # its last messages may still be in the pipe
            self._take_in(process)
        self.alive.remove(process)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()
