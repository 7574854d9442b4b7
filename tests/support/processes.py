"""Processes that take part in a test, and exchange lines of JSON with it."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from relock._servers.starting import freeze
from support.spawn import spawn

FOLDER = Path(__file__).parent.parent


class Worker:
    """A Python process that runs a module of the tests: objects in on its stdin, objects out on its stdout."""

    def __init__(self, module: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])}
        self._process = spawn(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, thing: Any) -> None:
        """Write one object to the process's stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(thing) + "\n")
        self._process.stdin.flush()

    def receive(self, within: float = 30.0) -> Any:
        """Return the next object from the process's stdout; fail if it has ended, or prints none for so long."""
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"worker {self.pid} said nothing within {within} s") from None
        assert line is not None, f"worker {self.pid} ended without a word"
        return json.loads(line)

    def look(self) -> Any | None:
        """Return the next object from the process's stdout, or None if there is none yet."""
        return None if self._lines.empty() else self.receive()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Freeze the process (SIGSTOP)."""
        freeze(self.pid)

    def cont(self) -> None:
        """Let the process go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, within: float = 30.0) -> int:
        """Wait until the process has ended; return its exit code."""
        return self._process.wait(within)

    def close(self) -> None:
        """End the process, whatever it does."""
        self.kill()
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
