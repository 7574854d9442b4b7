"""Losses: each says its cause by a code, the same to callbacks and to events."""

from collections.abc import Callable
from typing import Any

import pytest

from contract.rigs.rig import Rig, key_of
from relock import Client, LockLostError, Loss, LossCode, Lost

SOON = {"ttl": 0.6, "node_timeout": 0.19}  # options of a client whose leases are to end
Cause = Callable[[Rig, Client, str], None]


def lose(rig: Rig, name: str, held: Any, by: Callable[[], object]) -> None:
    """Have a hold end on the masters, and its owner renew it."""
    by()
    with pytest.raises(LockLostError):
        held.extend()


def delete(rig: Rig, name: str) -> None:
    for master in range(rig.masters):
        rig.ask(master, "DEL", key_of(name))


def deleted(rig: Rig, client: Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    lose(rig, name, lock, lambda: delete(rig, name))


def forced(rig: Rig, client: Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    lose(rig, name, lock, lock.force_release)


def forced_reader(rig: Rig, client: Client, name: str) -> None:
    lock = client.rwlock(name)
    lock.read.acquire()
    lose(rig, name, lock.read, lambda: client.force_release(name))


def forced_permit(rig: Rig, client: Client, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    permit = semaphore.acquire()
    lose(rig, name, permit, lambda: semaphore.force_release(semaphore.info().holders[0].owner))


def deleted_after_a_forced_release(rig: Rig, client: Client, name: str) -> None:
    """The second hold was not there when the first one ended by force."""
    forced(rig, client, name)
    lock = client.lock(name, owner="the next one")
    lock.acquire()
    lose(rig, name, lock, lambda: delete(rig, name))


def found_by_a_release(rig: Rig, client: Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    lock.force_release()
    with pytest.raises(LockLostError):
        lock.release()


def unanswered(rig: Rig, client: Client, name: str) -> None:
    client.lock(name).acquire()
    rig.go_silent()


def not_renewed(rig: Rig, client: Client, name: str) -> None:
    client.lock(name, renew=False).acquire()


def held_too_long(rig: Rig, client: Client, name: str) -> None:
    client.lock(name, max_hold=0.01).acquire()


CAUSES: list[tuple[Cause, dict[str, Any], list[LossCode]]] = [
    (deleted, {}, [LossCode.FORGOTTEN]),
    (forced, {}, [LossCode.FORCED]),
    (forced_reader, {}, [LossCode.FORCED]),
    (forced_permit, {}, [LossCode.FORCED]),
    (deleted_after_a_forced_release, {}, [LossCode.FORCED, LossCode.FORGOTTEN]),
    (found_by_a_release, {}, [LossCode.FORCED]),
    (unanswered, SOON, [LossCode.EXPIRED]),
    (not_renewed, SOON, [LossCode.NOT_RENEWED]),
    (held_too_long, SOON, [LossCode.MAX_HOLD]),
]


@pytest.mark.parametrize(("cause", "options", "codes"), CAUSES, ids=[cause.__name__ for cause, _, _ in CAUSES])
def test_a_loss_says_its_cause_by_a_code(
    rig: Rig, name: str, cause: Cause, options: dict[str, Any], codes: list[LossCode]
) -> None:
    told: list[Loss] = []
    events: list[Any] = []
    client = rig.client(**options, on_lost=told.append, on_event=events.append)
    cause(rig, client, name)
    rig.until(lambda: len(told) == len(codes), "the loss is told")
    assert [loss.code for loss in told] == codes
    rig.until(lambda: sum(isinstance(event, Lost) for event in events) == len(codes), "the event is told")
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(one.code, one.reason) for one in lost] == [(one.code, one.reason) for one in told]
