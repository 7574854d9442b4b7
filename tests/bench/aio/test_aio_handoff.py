"""Tasks of one process hand a lock over, with each contestant, and no two of them have it at once."""

import pytest
from support.servers import Server

from bench.aio.handoff import SITES
from bench.aio.names import TASKS
from bench.handoff.contestants import CONTESTANTS, WORKERS_OF_LOOP
from bench.handoff.measure import Bench, Cell, HandoffPlan

SECONDS = 0.2
TASK_COUNT = 4
SECTION_SECONDS = 0.001  # in which others may run: tasks of one loop that never wait are alone without any lock


def test_every_contestant_among_tasks_has_a_program() -> None:
    of_loops = {name for name, one in CONTESTANTS.items() if one.program == WORKERS_OF_LOOP}
    assert of_loops == set(SITES)
    assert not [name for name in of_loops if CONTESTANTS[name].takes_part(1, "threads", TASK_COUNT)]


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if CONTESTANTS[name].takes_part(1, TASKS, TASK_COUNT)])
def test_tasks_hand_over_and_exclude_each_other(name: str, server: Server) -> None:
    cell = Cell(1, "unpinned", TASKS, TASK_COUNT, SECTION_SECONDS)
    bench = Bench([server])
    try:
        (row,) = bench.measure(cell, HandoffPlan((cell,), (name,), 1, SECONDS))
    finally:
        bench.close()
    (found,) = row["rounds"]
    assert "failed" not in found
    assert found["handoffs"] > 0
    assert (found["overlaps"], found["out_of_order"]) == (0, 0)
