"""Measures everything on an event loop."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from attrs import frozen
from chaos.results import commit

from bench.__main__ import MASTERS, many, measure_pairs, no_results
from bench.aio import waiting
from bench.aio.names import RELOCK_TASKS, TASKS
from bench.aio.pairs import CONTESTANTS, CONTESTANTS_OF_SEVERAL, LoopPairs, Make
from bench.handoff import contestants as handoff_contestants
from bench.handoff.measure import Cell, HandoffPlan
from bench.handoff.measure import measure as measure_handoffs
from bench.machine import placed, placements, servers_started
from bench.setting import LIBRARIES_OF_LOOPS, machine, versions

PARTS = ("pairs", "handoffs", "waiting")
WORKERS = (2, 8, 32, 128)
Tell = Callable[[str], None]


@frozen
class AioPlan:
    """What to measure, and for how long."""

    parts: tuple[str, ...] = PARTS
    workers: tuple[int, ...] = WORKERS
    rounds_of_pairs: int = 25
    rounds_of_handoffs: int = 4
    handoff_seconds: float = 0.5
    waiting_tasks: int = waiting.TASKS_COUNT
    rounds_of_waiting: int = 3
    quiet_seconds: float = waiting.QUIET_SECONDS

    @classmethod
    def scaled(cls, scale: float, workers: tuple[int, ...] = WORKERS, parts: tuple[str, ...] = PARTS) -> "AioPlan":
        """So many times as long as usual. How many wait, and how long they are watched, stays."""
        return cls(
            parts=parts,
            workers=workers,
            rounds_of_pairs=max(1, round(25 * scale)),
            rounds_of_handoffs=max(1, round(4 * scale)),
            handoff_seconds=0.5 * scale,
            rounds_of_waiting=max(1, round(3 * scale)),
        )


def measure_tasks(plan: AioPlan, tell: Tell) -> dict[str, Any]:
    """A report of its own: what ran, and the figures of each part."""
    begin = time.monotonic()
    found: dict[str, Any] = {"machine": machine(), "commit": commit(), "versions": versions(LIBRARIES_OF_LOOPS)}
    if "handoffs" in plan.parts:
        found["handoffs"] = _handoffs(plan, tell)
    if "pairs" in plan.parts:
        tell("tasks, alone")
        found["pairs"] = {
            "one": _pairs(CONTESTANTS, 1, plan.rounds_of_pairs),
            "several": _pairs(CONTESTANTS_OF_SEVERAL, MASTERS, plan.rounds_of_pairs),
        }
    if "waiting" in plan.parts:
        tell(f"{plan.waiting_tasks:,} tasks that wait")
        found["waiting"] = waiting.measure(plan.waiting_tasks, plan.quiet_seconds, plan.rounds_of_waiting)
    return {**found, "seconds": round(time.monotonic() - begin)}


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


def _handoffs(plan: AioPlan, tell: Tell) -> list[dict[str, Any]]:
    cells = tuple(Cell(1, placements()[-1], TASKS, count, 0.0) for count in plan.workers)
    everybody = tuple(handoff_contestants.CONTESTANTS)
    return measure_handoffs(HandoffPlan(cells, everybody, plan.rounds_of_handoffs, plan.handoff_seconds), tell)
