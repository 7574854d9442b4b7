"""Locks by the thousand in one process: none of them depends on their number."""

from collections.abc import Callable
from functools import partial

import pytest

from contract.rigs.rig import Rig, calls
from relock import Client, Lock

NAMES = 10_000  # of other locks: more than any cache by name holds
PATIENT = 20.0  # seconds: a node timeout that is longer than any wait here
HELP_SECONDS = 18.0  # a waiter without a message looks again after that time


def use_other_names(client: Client, name: str) -> None:
    """Use other names, until every cache has dropped `name`."""
    for number in range(NAMES):
        client.lock(f"{name}-other-{number}")


def wait(lock: Lock, served: list[Lock]) -> None:
    with lock:
        served.append(lock)


def test_a_waiter_is_served_in_its_turn_whatever_other_names_its_process_uses(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=PATIENT), rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    rig.warm_up(others)
    holder = others.lock(name, owner="holder")
    rig.take_everywhere(holder, 1)
    served: list[Lock] = []
    waiters = [client.lock(name), others.lock(name, owner="later")]
    waiting = []
    for number, lock in enumerate(waiters, start=1):
        waiting.append(rig.start(partial(wait, lock, served)))
        rig.until(partial(rig.queues_are, name, number), f"number {number} waits")
    use_other_names(client, name)
    holder.release()
    for one in waiting:
        one.result()
    assert served == waiters


@pytest.mark.parametrize("used", ["before", "meanwhile"])
def test_a_lock_that_becomes_free_is_had_within_the_timeout_whatever_other_names_were_used(
    rig: Rig, name: str, used: str
) -> None:
    """A process keeps the object of a lock, and uses others before it waits, or while it waits.

    Heartbeats would repair a grant that is not taken, so none reaches a master.
    """
    client, others = rig.client(node_timeout=PATIENT), rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    rig.warm_up(others)
    lock, holder = client.lock(name), others.lock(name, owner="holder")
    rig.take_everywhere(holder, 1)
    for line in rig.lines:
        line.hold_request(calls(name, "heartbeat"))
    forget: Callable[[], None] = partial(use_other_names, client, name)
    if used == "before":
        forget()
    begin = rig.clock()
    waiting = rig.start(partial(lock.acquire, timeout=HELP_SECONDS))
    rig.until(partial(rig.is_queued, name), "a caller waits")  # a slow master gets its place from a heartbeat
    if used == "meanwhile":
        forget()
    holder.release()
    assert waiting.result()
    assert rig.clock() - begin < HELP_SECONDS, "it took the grant at once"
