"""Measures uncontended pairs, interleaved: ``python -m bench [--masters N] [--rounds N] [--json]`` in ``tests``.

Absolute times belong to one machine; ratios of one run can be compared. Two placements are measured, because they
answer different questions: with client and server on one CPU a pair costs the length of its path; on two, most of a
pair is the kernel waking an idle CPU, which stands for a short network. With five masters all servers are on one CPU:
two CPUs have no other.
"""

import argparse
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from support.servers import Server

from bench.aio.pairs import LoopPairs
from bench.contestants import CONTESTANTS, CONTESTANTS_OF_SEVERAL, relock_of_several
from bench.footprint import import_seconds
from bench.goals import Goal, of_pairs
from bench.machine import placed, placements, program_for_servers, servers_started
from bench.peers import ForeignPairs, missing
from bench.quiet import undisturbed
from bench.scripts import server_microseconds
from relock.cli._bench.floor.pairs import Pair
from relock.cli._bench.words import BARE

PAIRS_PER_ROUND = 200
MASTERS = 5
STOPPED = 2
PHASES = 3  # of healthy masters, and as many of stopped ones, in turn
PHASE_SECONDS = 3.0  # longer than what a link to a silent master is kept for
SETTLING_SECONDS = 2.0  # until masters that go on are connected again


Pairs = Pair | ForeignPairs | LoopPairs


def interleave(pairs: Mapping[str, Pairs], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """The time of one pair (us) in each of the rounds, which measure everybody in turn, and what was stolen of each."""
    for pair in pairs.values():
        many(pair, 20)
    played = [undisturbed(partial(_round, pairs)) for _ in range(rounds)]
    return {name: [times_us[name] for times_us, _ in played] for name in pairs}, [stolen for _, stolen in played]


def _round(pairs: Mapping[str, Pairs]) -> dict[str, float]:
    return {name: round(many(pair, PAIRS_PER_ROUND) / PAIRS_PER_ROUND * 1e6, 2) for name, pair in pairs.items()}


def medians(times_us: Mapping[str, list[float]]) -> dict[str, float]:
    """Of each, the median over the rounds."""
    return {name: statistics.median(times) for name, times in times_us.items()}


def many(pair: Pairs, count: int) -> float:
    """How long (s) so many pairs take."""
    if isinstance(pair, ForeignPairs | LoopPairs):
        return pair.many(count)
    begin = time.perf_counter()
    for _ in range(count):
        pair()
    return time.perf_counter() - begin


@contextmanager
def programs_of(pairs: Mapping[str, Any]) -> Iterator[list[int]]:
    """The programs (pids) among them, which are ended when this is left."""
    foreign = [pair for pair in pairs.values() if isinstance(pair, ForeignPairs)]
    try:
        yield [pair.pid for pair in foreign]
    finally:
        for pair in foreign:
            pair.close()


def import_times() -> dict[str, float]:
    """For how long (s) the imports of redis and of relock keep a CPU busy."""
    seconds, _ = undisturbed(partial(import_seconds, "redis", "relock"))
    return seconds


def no_results(rounds: int) -> dict[str, Any]:
    """What the measurements are added to."""
    server = program_for_servers()[0]
    return {"server": server, "rounds": rounds, "pairs_us": {}, "rounds_us": {}, "stolen": {}}


def measure_pairs(pairs: Mapping[str, Pairs], rounds: int, placement: str, results: dict[str, Any]) -> None:
    """Adds the times of pairs at one placement to the results."""
    rounds_us, results["stolen"][placement] = interleave(pairs, rounds)
    results["rounds_us"][placement], results["pairs_us"][placement] = rounds_us, medians(rounds_us)


def measure_one(rounds: int) -> dict[str, Any]:
    """Everything on one server."""
    results = no_results(rounds)
    with servers_started(1) as (server,):
        pairs = {name: make(server.port) for name, make in CONTESTANTS.items()}
        with programs_of(pairs) as programs:
            for placement in placements():
                with placed([server], placement, programs):
                    measure_pairs(pairs, rounds, placement, results)
        results["server_us"], _ = undisturbed(partial(server_microseconds, server.port))
    results["import_seconds"] = import_times()
    return results


def measure_several(rounds: int) -> dict[str, Any]:
    """Everything on several masters."""
    results = {**no_results(rounds), "stopped_us": {}}
    with servers_started(MASTERS) as servers:
        ports = [server.port for server in servers]
        pairs = {name: make(ports) for name, make in CONTESTANTS_OF_SEVERAL.items()}
        with programs_of(pairs) as programs:
            many(pairs["relock"], 1)  # waits for the first votes
            for placement in placements():
                with placed(servers, placement, programs):
                    measure_pairs(pairs, rounds, placement, results)
                    results["stopped_us"][placement] = with_some_stopped(relock_of_several(ports), servers[-STOPPED:])
    return results


def with_some_stopped(pair: Pair, servers: Sequence[Server]) -> dict[str, float]:
    """Of the time of one pair (us), the median with all masters, and the median and more with `servers` stopped.

    The two take turns.
    """
    healthy: list[float] = []
    stopped: list[float] = []
    firsts: list[float] = []
    for _ in range(PHASES):
        (with_all, first, without), _ = undisturbed(partial(_both_ways, pair, servers))
        healthy += with_all
        stopped += without
        firsts.append(first)
    return {
        "healthy": statistics.median(healthy) * 1e6,
        "healthy_p99": statistics.quantiles(healthy, n=100)[-1] * 1e6,
        "stopped": statistics.median(stopped) * 1e6,
        "stopped_p99": statistics.quantiles(stopped, n=100)[-1] * 1e6,
        "stopped_max": max(stopped) * 1e6,
        "first_max": max(firsts) * 1e6,
    }


def _both_ways(pair: Pair, servers: Sequence[Server]) -> tuple[list[float], float, list[float]]:
    """The times (s) of pairs with all masters, of the first one with `servers` stopped, and of those after it.

    The first pair after a change is not counted: it may wait for a master once.
    """
    time.sleep(SETTLING_SECONDS)
    pair()
    healthy = timed(pair)
    for server in servers:
        server.stop()
    try:
        begin = time.perf_counter()
        pair()
        first = time.perf_counter() - begin
        return healthy, first, timed(pair)
    finally:
        for server in servers:
            server.cont()


def timed(pair: Pair) -> list[float]:
    """The times (s) of as many pairs as one phase has room for."""
    seconds = []
    now = time.perf_counter()
    until = now + PHASE_SECONDS
    while now < until:
        begin = now
        pair()
        now = time.perf_counter()
        seconds.append(now - begin)
    return seconds


def show(results: dict[str, Any]) -> None:
    """The times, for one master and for several, and the goals."""
    console = Console()
    if one := results.get("one"):
        show_pairs(console, one, CONTESTANTS, "one master")
        busy = one["server_us"]
        console.print(
            f"The server is busy for {busy['shipped']:.1f} us with relock's pair, "
            f"{busy['floor']:.1f} us with the floor's."
        )
    if several := results.get("several"):
        show_pairs(console, several, CONTESTANTS_OF_SEVERAL, f"{MASTERS} masters")
        show_stopped(console, several)
    show_goals(console, list(of_pairs(results)))


def show_goals(console: Console, goals: Sequence[Goal]) -> None:
    """What was aimed at."""
    table = Table(title="Goals")
    for title in ("ratio", "goal", "measured", "its figures"):
        table.add_column(title, justify="left" if title == "ratio" else "right")
    for goal in goals:
        bound = f"{'<=' if goal.at_most else '>='} {goal.bound:.3g}"
        table.add_row(goal.what, bound, f"{goal.measured:.2f}", goal.figures, style="" if goal.is_met else "bold red")
    console.print(table)


def show_pairs(console: Console, results: dict[str, Any], names: Iterable[str], what: str) -> None:
    """A table of the times of one pair."""
    table = Table(
        title=f"One acquire + release, uncontended, {what} ({results['server']}), us, and as a multiple of bare sockets"
    )
    table.add_column("")
    for placement in results["pairs_us"]:
        table.add_column(f"{placement} CPU", justify="right")
        table.add_column("of bare", justify="right")
    for name in names:
        cells = [name]
        for times in results["pairs_us"].values():
            cells += [f"{times[name]:.0f}", f"{times[name] / times[BARE]:.2f}"]
        table.add_row(*cells)
    console.print(table)


def show_stopped(console: Console, results: dict[str, Any]) -> None:
    """What stopped masters cost, in words."""
    for placement, times in results["stopped_us"].items():
        console.print(
            f"{placement} CPU, {STOPPED} of {MASTERS} masters stopped: median {times['stopped']:.0f} us against "
            f"{times['healthy']:.0f} us with all (99 % within {times['stopped_p99']:.0f} us, at most "
            f"{times['stopped_max'] / 1000:.1f} ms; the first attempt at most {times['first_max'] / 1000:.1f} ms)."
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a lock costs, as ratios.")
    parser.add_argument(
        "--masters",
        type=int,
        choices=(1, MASTERS),
        help="measure only with so many masters (default: with one, then with five)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=25,
        help="how often everybody is measured in turn, 200 pairs each time (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("relock").addHandler(logging.NullHandler())  # stopped masters are meant to be
    for line in missing():
        print(line, file=sys.stderr)
    results: dict[str, Any] = {}
    if options.masters != MASTERS:
        results["one"] = measure_one(options.rounds)
    if options.masters != 1:
        results["several"] = measure_several(options.rounds)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)


if __name__ == "__main__":
    main()
