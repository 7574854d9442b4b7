"""Measures what relock takes before it does anything: ``python -m bench.footprint`` in ``tests``.

How much longer ``import relock`` keeps a CPU busy than ``import redis``, which it imports; how many bytes a lock object
takes, with its name and all that it has to itself, before it is used, afterwards, and while it is held.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

from bench.ground import own_server
from relock import Client, Lock

IMPORTS = 15
LOCKS = 10_000
NAME = "orders:{:06}"


def import_seconds(*modules: str) -> dict[str, float]:
    """For how long each import keeps a CPU busy, in fresh interpreters that find it compiled; the medians."""
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for round_ in range(IMPORTS + 1):
        for module, times in seconds.items():
            code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
            command = [sys.executable, "-c", code]
            shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            if round_:  # the first one compiles
                times.append(float(shown))
    return {module: statistics.median(times) for module, times in seconds.items()}


def lock_bytes(url: str, count: int) -> dict[str, float]:
    """How many bytes a lock object takes, out of so many, by Python's own account."""
    grown: dict[str, float] = {}
    with Client(url) as client:
        with client.lock("warm-up"):
            pass
        locks: list[Lock] = []
        names = [NAME.format(number) for number in range(count)]
        steps: dict[str, Callable[[], None]] = {
            "made": lambda: locks.extend(client.lock(name) for name in names),
            "used": lambda: use(locks),
            "held": lambda: hold(locks),
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


def use(locks: list[Lock]) -> None:
    """Acquires and releases each."""
    for lock in locks:
        with lock:
            pass


def hold(locks: list[Lock]) -> None:
    """Acquires each."""
    for lock in locks:
        lock.acquire()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description="What relock takes beforehand.")
    parser.add_argument("--locks", type=int, default=LOCKS, help="of how many locks (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    seconds = import_seconds("redis", "relock", "redis, attrs")
    with own_server() as server:
        grown = lock_bytes(server.url, options.locks)
    if options.json:
        print(json.dumps({"import_seconds": seconds, "lock_bytes": grown}, indent=2))
        return
    for module in ("relock", "redis, attrs"):
        print(f"import {module}: {seconds[module] / seconds['redis']:.2f} times import redis")
    for state, count in grown.items():
        print(f"a lock that is {state}: {count:.0f} bytes")


if __name__ == "__main__":
    main()
