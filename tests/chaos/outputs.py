"""The kinds of fault inside a process: output that nothing reads, and names of locks by the hundred."""

import random
import time
from typing import Any

from chaos.faults import choose, stop
from chaos.field import Blow, Field
from chaos.history import clock
from chaos.kinds import kind, lease_bound, poll_bound

UNREAD_SECONDS = (2.0, 5.0)
STOPPED_PART = 1.5  # of a lease: long enough for a loss, which relock logs
NAMES = 300


@kind("output that nobody reads", lease_bound, anchor="begin", whom="holder", is_inside=True, weight=2.0)
def block_output(field: Field, dice: random.Random, blow: Blow) -> None:
    """Hang the log's handler and `on_lost` of a process, after a stop of the process that gives them a loss to tell."""
    process = _tell_one(field, dice, blow, {"block": True}, inside=True)
    if process is None:
        return
    try:
        stop(field, blow, process, STOPPED_PART * field.plan.ttl)
        blow.calm_from = clock()
        time.sleep(dice.uniform(*UNREAD_SECONDS))
    finally:
        field.tell(process, {"block": False})


@kind("hundreds of other names", poll_bound, anchor="begin", whom="waiter", is_inside=True, weight=2.0)
def use_names(field: Field, dice: random.Random, blow: Blow) -> None:
    """Let a process with a waiting thread use more names of locks than its caches hold."""
    if _tell_one(field, dice, blow, {"names": NAMES}, inside=False) is not None:
        time.sleep(dice.uniform(1.0, 2.0))


def _tell_one(field: Field, dice: random.Random, blow: Blow, what: dict[str, Any], *, inside: bool) -> str | None:
    """Tell one process `what`, and return its name; None, also in the blow, if there is no process or it is gone."""
    process = choose(field, dice, blow, inside=inside)
    if process is not None and not field.tell(process, what):
        process = blow.process = None
    return process
