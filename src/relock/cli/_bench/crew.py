"""Programs that play a job together: told what to do, started at one moment, listened to, and ended."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from relock.cli._bench.figures import Turn, Window
from relock.cli._bench.work import OVERDUE_SECONDS, READY_SECONDS, Job

LEAD_SECONDS = 0.05  # from the word to begin until the beginning
END_SECONDS = 5.0


class CrewFailedError(Exception):
    """A program ended, or hung, or told of an error."""


class Program:
    """A process that plays jobs: lines of JSON in on its stdin, and out on its stdout."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self._process = process
        self._in: Any = process.stdin
        self._out: Any = process.stdout
        self._text = b""

    def send(self, line: str) -> None:
        """Send one line."""
        try:
            os.write(self._in.fileno(), f"{line}\n".encode())
        except BrokenPipeError:
            raise CrewFailedError("a program has ended") from None

    def receive(self, within: float) -> dict[str, Any]:
        """Return the next line; raise an error if there is none in so many seconds."""
        deadline = time.monotonic() + within
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._out.fileno(), 1 << 20) if ready else b""
            if not more:
                raise CrewFailedError("a program has ended" if ready else f"a program was silent for {within:g} s")
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def stop(self) -> None:
        """End the job early: each worker ends with its next turn, and leaves nothing behind."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the program: in peace, when it has no job, else by force."""
        self._in.close()
        self._out.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End the program by force: it may wait for a lock for ever."""
        self._process.kill()
        self.close()


@frozen
class Part:
    """The part of a job that one program does."""

    program: Program
    job: Job


@frozen
class Played:
    """The result of a job."""

    turns: list[Turn]
    window: Window
    looks: tuple[Any, Any]  # at both ends of the window


def play(
    parts: Sequence[Part], *, warm_seconds: float, seconds: float, look: Callable[[], Any] = lambda: None
) -> Played:
    """Play a job; call `look` at both ends of the time that counts, which begins after `warm_seconds`.

    Raises:
        CrewFailedError: the job can't be played.
    """
    for part in parts:
        part.program.send(part.job.line())
    for part in parts:
        if not part.program.receive(READY_SECONDS + END_SECONDS)["ready"]:
            part.program.send(json.dumps({"begin_ns": 0, "until_ns": 0}))
            _turns(part)
    begin_ns = time.monotonic_ns() + int(LEAD_SECONDS * 1e9)
    until_ns = begin_ns + int((warm_seconds + seconds) * 1e9)
    for part in parts:
        part.program.send(json.dumps({"begin_ns": begin_ns, "until_ns": until_ns}))
    try:
        from_ns, first = _at(begin_ns + int(warm_seconds * 1e9), look)
        to_ns, last = _at(until_ns, look)
    except BaseException:
        _call_off(parts)
        raise
    turns = [turn for part in parts for turn in _turns(part)]
    return Played(turns, Window(from_ns, to_ns), (first, last))


def _at(moment_ns: int, look: Callable[[], Any]) -> tuple[int, Any]:
    """Wait for that moment and call `look`; return when that was, and what `look` returned."""
    time.sleep(max(0.0, (moment_ns - time.monotonic_ns()) / 1e9))
    seen = look()
    return time.monotonic_ns(), seen


def _call_off(parts: Sequence[Part]) -> None:
    """Let each worker end by itself, if it can."""
    for part in parts:
        part.program.stop()
    for part in parts:
        with contextlib.suppress(CrewFailedError):
            part.program.receive(END_SECONDS)


def _turns(part: Part) -> list[Turn]:
    told = part.program.receive(OVERDUE_SECONDS + END_SECONDS)
    if told["failed"]:
        raise CrewFailedError(told["failed"])
    return [Turn(*turn) for turn in told["turns"]]


def start(module: str) -> Program:
    """Start a module of Python as a program, out of reach of this terminal's Ctrl-C."""
    # -P and the path: it imports what this program imports, and nothing from the folder it happens to run in.
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
