"""What a run says of itself: the machine, and the versions of everything that takes part."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.servers import Server

from bench.aio.loops import HAS_UVLOOP
from bench.build import how_optimised
from bench.machine import servers_started

LIBRARIES = ("redis", "hiredis", "python-redis-lock", "pottery", "redlock-py")
LIBRARIES_OF_LOOPS = ("redis", "hiredis", *(("uvloop",) if HAS_UVLOOP else ()))


def machine() -> dict[str, Any]:
    """What it ran on, in general words, and how busy that was with other things when it began."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": processor,
        "system": platform.system(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Of everything that takes part."""
    with servers_started(1) as (server,):
        return {
            "Python": f"{platform.python_version()} ({how_optimised() or 'not optimised by a profile'})",
            "server": _version_of(server),
            **{library: version(library) for library in libraries},
        }


def _version_of(server: Server) -> str:
    with server.client() as client:
        said = client.info("server")
    return f"Valkey {said['valkey_version']}" if "valkey_version" in said else f"Redis {said['redis_version']}"
