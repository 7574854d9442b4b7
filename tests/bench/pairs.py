"""Measure uncontended pairs, of all contestants in turn, round after round.

Absolute times belong to one machine; ratios of one run can be compared. Two placements are measured, because they
answer different questions. With client and server on one CPU a pair costs the length of its path. On two CPUs, most of
a pair is the kernel waking an idle CPU, which stands for a short network. With five masters all servers are on one CPU,
and the client on the other.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from support.servers import Server

from bench.contestants import CONTESTANTS, Pairs
from bench.footprint import import_seconds
from bench.machine import placed, placements, servers_started
from bench.names import LONE
from bench.quiet import undisturbed
from bench.scripts import server_microseconds
from relock.cli._bench.words import RELOCK

PAIRS_PER_ROUND, WARM_PAIRS = 200, 20
MASTERS = 5
STOPPED = 2
PHASES = 3  # of healthy masters, and as many with stopped ones, in turn
PHASE_SECONDS = 3.0  # longer than the time for which a link to a silent master is kept
SETTLING_SECONDS = 2.0  # until masters that were stopped are connected again


def measure(kind: str, rounds: int) -> dict[str, Any]:
    """Return the figures of a thread that is alone, or of tasks, on one master and on several."""
    found = {"one": _measure(kind, 1, rounds), "several": _measure(kind, MASTERS, rounds)}
    if kind == LONE:
        found["one"]["import_seconds"], _ = undisturbed(partial(import_seconds, "redis", "relock"))
    return found


def _measure(kind: str, masters: int, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": rounds, "pairs_us": {}, "rounds_us": {}, "stolen": {}}
    with servers_started(masters) as servers, ExitStack() as stack:
        ports = [server.port for server in servers]
        pairs = {
            name: one.pairs(ports) for name, one in CONTESTANTS.items() if one.has_pairs(masters, kind) and one.pairs
        }
        for one in pairs.values():
            stack.callback(one.close)
            one.many(WARM_PAIRS)  # several masters have no vote before their guard is over
        programs = [one.pid for one in pairs.values() if one.pid is not None]
        for placement in placements():
            with placed(servers, placement, programs):
                rounds_us, found["stolen"][placement] = interleave(pairs, rounds)
                found["rounds_us"][placement] = rounds_us
                found["pairs_us"][placement] = {name: statistics.median(times) for name, times in rounds_us.items()}
                if kind == LONE and masters > 1:
                    stopped = with_some_stopped(pairs[RELOCK], servers[-STOPPED:])
                    found.setdefault("stopped_us", {})[placement] = stopped
        if kind == LONE and masters == 1:
            found["server_us"], _ = undisturbed(partial(server_microseconds, servers[0].port))
    return found


def interleave(pairs: Mapping[str, Pairs], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return the times of one pair (us) by round, and the part of each round's CPU time that was stolen."""
    played = [undisturbed(partial(_round, pairs)) for _ in range(rounds)]
    return {name: [times_us[name] for times_us, _ in played] for name in pairs}, [stolen for _, stolen in played]


def _round(pairs: Mapping[str, Pairs]) -> dict[str, float]:
    return {name: round(pair.many(PAIRS_PER_ROUND) / PAIRS_PER_ROUND * 1e6, 2) for name, pair in pairs.items()}


def with_some_stopped(pair: Pairs, servers: Sequence[Server]) -> dict[str, float]:
    """Return times of one pair (us) with all masters, and with `servers` stopped, in turn."""
    phases = [undisturbed(partial(_both_ways, pair, servers))[0] for _ in range(PHASES)]
    healthy, firsts, stopped = zip(*phases, strict=True)
    found = {"first_max": max(firsts) * 1e6}
    for name, times in (("healthy", healthy), ("stopped", stopped)):
        seconds = [one for phase in times for one in phase]
        found |= {name: statistics.median(seconds) * 1e6, f"{name}_p99": statistics.quantiles(seconds, n=100)[-1] * 1e6}
    return found


def _both_ways(pair: Pairs, servers: Sequence[Server]) -> tuple[list[float], float, list[float]]:
    """Return the times (s) of pairs with all masters, of the first one with `servers` stopped, and of those after it.

    The first pair after a change does not count, because it may wait for a master once.
    """
    time.sleep(SETTLING_SECONDS)
    pair.many(1)
    healthy = _times(pair)
    for server in servers:
        server.stop()
    try:
        first = pair.many(1)
        return healthy, first, _times(pair)
    finally:
        for server in servers:
            server.cont()


def _times(pair: Pairs) -> list[float]:
    """Return the times (s) of as many pairs as one phase has room for."""
    seconds = []
    until = time.monotonic() + PHASE_SECONDS
    while time.monotonic() < until:
        seconds.append(pair.many(1))
    return seconds
