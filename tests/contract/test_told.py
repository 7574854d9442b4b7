"""Loss of a hold that another client ends by force: the owner's callbacks hear of that at once, not with a renewal."""

from collections.abc import Callable
from typing import Any

import pytest

from contract.rigs.rig import Rig, key_of
from relock import Client, Loss, LossCode

LONG = 600.0  # seconds: as a ttl, no renewal comes during a test

Take = Callable[[Client, str, Callable[[Loss], object]], object]
End = Callable[[Client, str], object]


def lock(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.lock(name, on_lost=tell).acquire()


def lock_of_a_name(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.lock(name, owner="job 7", on_lost=tell).acquire()


def lock_without_renewal(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.lock(name, renew=False, on_lost=tell).acquire()


def nested_lock(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.lock(name).acquire()
    client.lock(name, on_lost=tell).acquire()


def reader(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.rwlock(name, on_lost=tell).read.acquire()


def permit(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.semaphore(name, 2, on_lost=tell).acquire()


def several_locks(client: Client, name: str, tell: Callable[[Loss], object]) -> None:
    client.lock_all([f"{name} more", name], on_lost=tell).acquire()


def force(operator: Client, name: str) -> bool:
    return operator.force_release(name)


def force_permit(operator: Client, name: str) -> bool:
    semaphore = operator.semaphore(name, 2)
    (holder,) = semaphore.info().holders
    return semaphore.force_release(holder.owner)


WAYS: list[tuple[Take, End]] = [
    (lock, force),
    (lock_of_a_name, force),
    (lock_without_renewal, force),
    (nested_lock, force),
    (reader, force),
    (permit, force_permit),
    (several_locks, force),
]


def listens(client: Client) -> bool:
    """Return whether one of the client's hubs listens to every master."""
    return any(all(one.is_confirmed for one in hub.subscriptions) for hub in client._session.hubs.all())


@pytest.mark.parametrize(("take", "end"), WAYS, ids=[take.__name__ for take, _ in WAYS])
def test_a_hold_that_another_client_ends_is_lost_at_once(rig: Rig, name: str, take: Take, end: End) -> None:
    told: list[Loss] = []
    client, operator = rig.client(ttl=LONG), rig.client()
    take(client, name, told.append)
    rig.until(lambda: listens(client), "it listens")
    assert end(operator, name)
    rig.until(lambda: told, "the loss is told")
    assert (told[0].lock, told[0].code) == (name, LossCode.FORCED)


def test_the_client_s_own_callback_is_enough(rig: Rig, name: str) -> None:
    told: list[Loss] = []
    client, operator = rig.client(ttl=LONG, on_lost=told.append), rig.client()
    client.lock(name).acquire()
    rig.until(lambda: listens(client), "it listens")
    assert operator.force_release(name)
    rig.until(lambda: told, "the loss is told")


def test_a_client_that_ends_its_own_hold_needs_no_message(rig: Rig, name: str) -> None:
    client = rig.client(ttl=LONG)
    mine = client.lock(name)
    mine.acquire()
    assert not listens(client), "without a callback, nothing is subscribed to"
    assert client.force_release(name)
    rig.until(lambda: mine.lost, "the loss is known")
    assert not listens(client)


def test_a_message_about_a_hold_that_has_not_ended_changes_nothing(rig: Rig, name: str) -> None:
    told: list[Any] = []
    client = rig.client(ttl=LONG, on_lost=told.append)
    mine = client.lock(name, renew=False)
    mine.acquire()
    rig.until(lambda: listens(client), "it listens")
    (owner,) = rig.holders(name)[0] or rig.holders(name)[1]
    left_ms = [rig.ask(master, "PTTL", key_of(name)) for master in range(rig.masters)]
    client._session.reports.ended(name, owner)
    other = client.lock(f"{name} other", owner="of the janitor's next task")
    other.acquire()
    other.force_release()
    rig.until(lambda: told, "the janitor has asked the masters, for one hold after the other")
    assert [loss.lock for loss in told] == [f"{name} other"]
    assert mine.owned()
    for master, most_ms in enumerate(left_ms):
        assert rig.ask(master, "PTTL", key_of(name)) <= most_ms, "the lease has not become longer"
    mine.release()
