"""Programs that play the parts of a job: they get orders, begin at one moment, answer, and are ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from attrs import asdict, frozen

from relock.cli._bench.figures import Figures, Turn, figures
from relock.cli._bench.work import OVERDUE_SECONDS, READY_SECONDS, Job

LEAD_SECONDS = 0.05  # a job begins this long after the order to begin
END_SECONDS = 5.0
WARM_SECONDS, WARM_SECONDS_EACH = 0.1, 0.002  # the least warm-up, and its part for each worker


class CrewFailedError(Exception):
    """A program ended, hung, or reported an error."""


class Program:
    """A process that plays jobs: lines of JSON in on its stdin, and out on its stdout."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self._process = process
        self._in: Any = process.stdin
        self._out: Any = process.stdout

    def send(self, order: object) -> None:
        """Send one line."""
        try:
            os.write(self._in.fileno(), json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            raise CrewFailedError("a program has ended") from None

    def receive(self, within: float) -> dict[str, Any]:
        """Return the answer to an order; raise an error if the program failed, or is silent for `within` seconds."""
        if not wait([self._out], within):
            raise CrewFailedError(f"a program was silent for {within:g} s")
        line = self._out.readline()
        if not line.endswith(b"\n"):
            raise CrewFailedError("a program has ended")
        told: dict[str, Any] = json.loads(line)
        if told.get("failed"):
            raise CrewFailedError(told["failed"])
        return told

    def stop(self) -> None:
        """End the job early: each worker ends with its next turn, and leaves nothing behind."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the program: wait for its own end, which comes at once without a job; then kill it."""
        self._in.close()
        self._out.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the program, which may wait for a lock without end."""
        self._process.kill()
        self.close()


@frozen
class Played:
    """The result of a job."""

    turns: list[Turn]
    figures: Figures  # they cover the time that counts, in which all workers were at work
    looks: tuple[Any, Any]  # the results of `look` at the beginning and the end of that time


def play(
    parts: Sequence[tuple[Program, Job]],
    *,
    seconds: float,
    warm_seconds: float = 0.0,
    look: Callable[[], Any] = lambda: None,
) -> Played:
    """Play a job, of which each program does a part.

    The time that counts begins when all are warm, after `warm_seconds` at least; `look` is called at both its ends.

    Raises:
        CrewFailedError: the job can't be played.
    """
    programs, workers = [program for program, _ in parts], sum(job.processes * job.threads for _, job in parts)
    warm_seconds = max(warm_seconds, WARM_SECONDS + WARM_SECONDS_EACH * workers)
    for program, job in parts:
        program.send(asdict(job))
    for program in programs:
        program.receive(READY_SECONDS + END_SECONDS)
    begin_ns = time.monotonic_ns() + int(LEAD_SECONDS * 1e9)
    until_ns = begin_ns + int((warm_seconds + seconds) * 1e9)
    for program in programs:
        program.send({"begin_ns": begin_ns, "until_ns": until_ns})
    try:
        from_ns, first = _at(begin_ns + int(warm_seconds * 1e9), look)
        to_ns, last = _at(until_ns, look)
    except BaseException:
        for program in programs:
            program.stop()
        for program in programs:
            with suppress(CrewFailedError):
                program.receive(END_SECONDS)
        raise
    told = [program.receive(OVERDUE_SECONDS + END_SECONDS) for program in programs]
    turns = [Turn(*turn) for one in told for turn in one["turns"]]
    return Played(turns, figures(turns, workers, range(from_ns, to_ns), parts[0][1].limit), (first, last))


def _at(moment_ns: int, look: Callable[[], Any]) -> tuple[int, Any]:
    """Wait until `moment_ns`, and call `look`; return the time after the call, and its result."""
    time.sleep(max(0.0, (moment_ns - time.monotonic_ns()) / 1e9))
    seen = look()
    return time.monotonic_ns(), seen


def start(module: str) -> Program:
    """Start a module of Python as a program, out of reach of this terminal's Ctrl-C."""
    # With -P and this path, the program imports what this one imports, and nothing from the current folder.
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return Program(
        subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    )
