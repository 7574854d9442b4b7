"""What the measuring programs stand on: a server of their own, and what the system says of a process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.servers import Server

from bench.machine import servers_started


@contextmanager
def own_server() -> Iterator[Server]:
    """A server that nobody else uses."""
    with servers_started(1) as (server,):
        yield server


def memory_bytes(pid: int) -> int:
    """What a process takes of the machine's memory: pages that it shares with others count in part (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no PSS")


def cpu_seconds(pid: int) -> float:
    """For how long a process has kept a CPU busy, itself and the kernel for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_count(pid: int) -> int:
    """How many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
