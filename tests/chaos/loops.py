"""The kinds of fault of event loops: a loop stands still, or ends with tasks that hold locks and wait for them."""

import random
import time

from chaos.faults import choose
from chaos.field import Blow, Field
from chaos.kinds import kind, lease_bound, poll_bound, stuck_bound
from chaos.loop_worker import BEGIN_SECONDS

HELD_LEASES = (1.5, 3.0)  # for how many leases the loop stands still
WAIT_SECONDS = (8.0, 10.0)  # longer than the bound with its slack
FIND_SECONDS = 10.0  # for a loop: half of the processes have none
ENDED_SECONDS = 0.3  # until the next loop has begun


@kind("loop blocked by a holder", poll_bound, whom="holder", is_inside=True, needs_loops=True, weight=2.0)
def block_holder(field: Field, dice: random.Random, blow: Blow) -> None:
    """Let a task that has a lock compute for longer than its lease; renewals go on, so the hold is not lost."""
    seconds = dice.choice(HELD_LEASES) * field.plan.ttl
    if _order(field, dice, blow, {"stand": seconds, "inside": True}, inside=True):
        blow.calm_from = blow.begin
        time.sleep(BEGIN_SECONDS + seconds)


@kind(
    "loop blocked in a wait", stuck_bound, anchor="begin", whom="waiter", is_inside=True, needs_loops=True, mutes=True,
    weight=2.0,
)  # fmt: skip
def block_waiter(field: Field, dice: random.Random, blow: Blow) -> None:
    """Stop a loop whose tasks wait while their turns come. Others must get these turns."""
    seconds = dice.uniform(*WAIT_SECONDS)
    if _order(field, dice, blow, {"stand": seconds}, inside=False):
        time.sleep(seconds)


@kind("loop ended", lease_bound, anchor="begin", whom="holder", is_inside=True, needs_loops=True, weight=2.0)
def end_loop(field: Field, dice: random.Random, blow: Blow) -> None:
    """End ``asyncio.run``: all tasks are cancelled, some release nothing, and the next loop runs."""
    if _order(field, dice, blow, "end loop", inside=True):
        time.sleep(ENDED_SECONDS)


def _order(field: Field, dice: random.Random, blow: Blow, what: object, *, inside: bool) -> bool:
    """Give one process with a loop an order; return False, and clear the blow's process, if there is none."""
    process = choose(field, dice, blow, inside=inside, has_loop=True, within=FIND_SECONDS)
    if process is None or not field.tell(process, what):
        blow.process = None
    return blow.process is not None
