"""`relock bench` as a process, and the floor that it measures."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from relock.cli._bench.floor.floor import floor_of
from relock.cli._bench.words import RELOCK
from relock.cli._bench.work import Job
from support.servers import Server

WITHIN = 90.0
MAIN = ("-m", "relock")


def environment(nodes: str) -> dict[str, str]:
    """Return the environment of a process that uses these masters, with lines wide enough for a table's head."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELOCK_NODES": nodes, "COLUMNS": "120"}


def relock_bench(*words: str, nodes: str, main: Sequence[str] = MAIN) -> "subprocess.CompletedProcess[str]":
    """Run the benchmark with these options, half a second for each measurement."""
    done = subprocess.run(
        [sys.executable, *main, "bench", "--seconds", "0.5", *words],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
        env=environment(nodes),
        cwd="/",
    )
    assert "Traceback" not in done.stderr
    return done


def figures_of(*words: str, nodes: str, main: Sequence[str] = MAIN) -> dict[str, Any]:
    """Return the figures that the command prints for scripts."""
    done = relock_bench("--json", *words, nodes=nodes, main=main)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def leftovers(server: Server) -> dict[bytes, int]:
    """Return the keys of locks, and how long (ms) each will stay; -1 means without end."""
    left = {key: server.cli("PTTL", key) for key in server.cli("KEYS", "lock:{*")}
    return {key: milliseconds for key, milliseconds in left.items() if milliseconds != -2}  # has expired meanwhile


def the_floor_is_all_there(url: str, name: str) -> None:
    """Check that the pairs and the hand-offs of the floor can be measured at one master."""
    with floor_of(Job(RELOCK, (url,), name)) as floor:
        assert floor.missing == []
        assert floor.has_hops
        assert floor.pair is not None
        floor.pair()
