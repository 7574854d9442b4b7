"""The processes of the workers: the demo starts them, reads their messages, kills some, and ends all."""

import contextlib
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from subprocess import Popen
from typing import Any

from relock.cli._demo.plan import Plan
from relock.cli._demo.verdict import History
from relock.cli._signals import signals_put_off

PROGRAM = "import sys; from relock.cli._demo.worker import Workers; Workers(int(sys.argv[1])).obey_all()"


class StoryEndedError(Exception):
    """The story can't go on; the error says why."""


class Crew:
    """The processes of the demo, and the messages of their workers by the last call of `hear`."""

    def __init__(self) -> None:
        self.killed: set[str] = set()
        self.history = History(killed=self.killed)
        self.told: dict[tuple[str, str], Any] = {}  # the latest message of each kind, by kind and process
        self._processes: dict[str, Popen[bytes]] = {}
        self._pipes: dict[str, Connection] = {}

    @property
    def alive(self) -> list[str]:
        """Names of the processes that were not killed."""
        return [process for process in self._processes if process not in self.killed]

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
            if word == "updated":
                self.history.updates.append(value)
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
        self.killed.add(process)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()
