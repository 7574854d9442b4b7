"""Measure what relock takes before its first use: ``python -m bench.footprint`` in ``tests``.

The figures are how much longer ``import relock`` keeps a CPU busy than ``import redis``, which it imports, and how many
bytes a lock object takes with its name: before its first use, afterwards, and while the lock is held.
"""

import gc
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

from bench.machine import servers_started
from relock import Client, Lock

IMPORTS = 15
LOCKS = 10_000


def import_seconds(*modules: str) -> dict[str, float]:
    """Return the median CPU time of each import, in fresh interpreters that find the modules compiled."""
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for round_ in range(IMPORTS + 1):
        for module, times in seconds.items():
            code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
            command = [sys.executable, "-c", code]
            shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            if round_:  # the first round compiles
                times.append(float(shown))
    return {module: statistics.median(times) for module, times in seconds.items()}


def lock_bytes(url: str, count: int) -> dict[str, float]:
    """Return how many bytes a lock object takes, by Python's own account of so many."""
    grown: dict[str, float] = {}
    with Client(url) as client:
        with client.lock("warm-up"):
            pass
        locks: list[Lock] = []
        names = [f"orders:{number:06}" for number in range(count)]

        def use() -> None:
            for lock in locks:
                with lock:
                    pass

        def hold() -> None:
            for lock in locks:
                lock.acquire()

        steps: dict[str, Callable[[], None]] = {
            "made": lambda: locks.extend(client.lock(name) for name in names),
            "used": use,
            "held": hold,
        }
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for step, do in steps.items():
                do()
                gc.collect()
                grown[step] = (tracemalloc.get_traced_memory()[0] - before) / count
        finally:
            tracemalloc.stop()
        for lock in locks:
            lock.release()
    return grown


def main() -> None:
    seconds = import_seconds("redis", "relock", "redis, attrs")
    for module in ("relock", "redis, attrs"):
        print(f"import {module}: {seconds[module] / seconds['redis']:.2f} times import redis")
    with servers_started(1) as (server,):
        for state, count in lock_bytes(server.url, LOCKS).items():
            print(f"a lock that is {state}: {count:.0f} bytes")


if __name__ == "__main__":
    main()
