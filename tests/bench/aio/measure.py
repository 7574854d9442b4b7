"""Measures everything on an event loop."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from bench.__main__ import MASTERS, many, measure_pairs, no_results
from bench.aio.names import RELOCK_TASKS
from bench.aio.pairs import CONTESTANTS, CONTESTANTS_OF_SEVERAL, LoopPairs, Make
from bench.machine import placed, placements, servers_started


def pairs_of_tasks(rounds: int) -> dict[str, Any]:
    """Uncontended pairs on one master and on several."""
    return {"one": _pairs(CONTESTANTS, 1, rounds), "several": _pairs(CONTESTANTS_OF_SEVERAL, MASTERS, rounds)}


def _pairs(contestants: Mapping[str, Make], masters: int, rounds: int) -> dict[str, Any]:
    results = no_results(rounds)
    with servers_started(masters) as servers, ExitStack() as stack:
        ports = [server.port for server in servers]
        pairs = {name: make(ports) for name, make in contestants.items()}
        for one in pairs.values():
            if isinstance(one, LoopPairs):
                stack.callback(one.close)
        many(pairs[RELOCK_TASKS], 1)  # several masters have no vote before their guard is over
        for placement in placements():
            with placed(servers, placement):
                measure_pairs(pairs, rounds, placement, results)
    return results
