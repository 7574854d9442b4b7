"""Events: each names the hold or the call that it is about, and the log has the same."""

import json
import logging
from functools import partial
from typing import Any

import pytest

from contract.rigs.rig import BRIEF, Rig, all_struck, calls, release_all
from relock import Client, ForceReleased, Granted, LockLostError, NotGranted, QuorumError, Released, Waiting


def door(client: Client, kind: str, name: str) -> Any:
    """Return what a caller of this kind acquires."""
    match kind:
        case "lock":
            return client.lock(name)
        case "read":
            return client.rwlock(name).read
        case _:
            return client.semaphore(name, 1)


@pytest.mark.parametrize("kind", ["lock", "read", "semaphore"])
def test_the_events_of_a_wait_name_it_from_its_beginning_to_the_release(rig: Rig, name: str, kind: str) -> None:
    events: list[Any] = []
    client, others = rig.client(on_event=events.append), rig.client()
    rig.warm_up(client)
    holder = door(others, "semaphore" if kind == "semaphore" else "lock", name)
    held = holder.acquire()
    waiting = door(client, kind, name)

    def hold() -> int:
        got = waiting.acquire()
        token: int = waiting.token if kind != "semaphore" else got.token
        (got if kind == "semaphore" else waiting).release()
        return token

    def told() -> list[Any]:
        return [event for event in events if event.lock == name]

    running = rig.start(hold)
    rig.until(lambda: told() and holder.info().queue, "the caller waits")  # it may be queued, and have no answer yet
    queued = holder.info().queue
    (held if kind == "semaphore" else holder).release()
    token = running.result()
    rig.until(lambda: any(isinstance(event, Released) for event in told()), "the release is told")
    began, granted, released = told()
    assert [type(event) for event in (began, granted, released)] == [Waiting, Granted, Released]
    assert {event.kind for event in (began, granted, released)} == {kind}
    assert (began.owner, began.token) == (queued[0], None)
    assert granted.owner.partition("~")[0] == began.owner
    assert (granted.token, released.token, released.owner) == (token, token, granted.owner)
    seen = client.statistics()
    ends = {"given": seen.handovers, "woken": seen.woken_grants, "polled": seen.polled_grants}
    assert (seen.waits, granted.contended, sum(ends.values())) == (1, True, 1), "its end is counted once"
    assert ends[granted.how] == 1


def test_a_try_that_fails_waits_for_nothing_and_is_named(rig: Rig, name: str) -> None:
    events: list[Any] = []
    client = rig.client(on_event=events.append)
    rig.client().lock(name).acquire()
    assert not client.lock(name).acquire(blocking=False)
    rig.until(lambda: events, "the refusal is told")
    (event,) = events
    assert (type(event), event.lock, event.token) == (NotGranted, name, None)
    assert event.owner.startswith(client._session.client_id)


def test_a_wait_that_is_interrupted_is_told_with_the_exception(rig: Rig, name: str) -> None:
    events: list[Any] = []
    client = rig.client(on_event=events.append)
    rig.warm_up(client)
    rig.client().lock(name).acquire()

    def told() -> list[Any]:
        return [event for event in events if event.lock == name]

    assert rig.interrupt(client.lock(name).acquire, when=lambda: told() and rig.is_queued(name))
    rig.until(lambda: len(told()) == 2, "the end is told")
    began, ended = told()
    assert (type(began), type(ended), ended.owner) == (Waiting, NotGranted, began.owner)
    assert ended.error in ("Interrupted", "CancelledError")
    assert ended.waited > 0


def test_a_wait_for_several_locks_that_ends_in_a_refusal_keeps_its_name(rig: Rig, name: str) -> None:
    events: list[Any] = []
    client = rig.client(on_event=events.append)
    rig.warm_up(client)
    rig.client().lock(name).acquire()
    assert not client.lock_all([f"{name}-a", name]).acquire(timeout=BRIEF)

    def told() -> list[Any]:
        return [event for event in events if event.lock == name]

    rig.until(lambda: any(isinstance(event, NotGranted) for event in told()), "the refusal is told")
    assert [type(event) for event in told()] in ([Waiting, NotGranted], [NotGranted])
    assert told()[-1].owner == told()[0].owner is not None


@pytest.mark.parametrize("several", [False, True], ids=["a lock", "several locks"])
def test_an_acquire_without_a_quorum_is_told_with_the_exception(rig: Rig, name: str, *, several: bool) -> None:
    events: list[Any] = []
    client = rig.client(on_event=events.append, node_timeout=BRIEF, patience=0.0)
    rig.warm_up(client)
    rig.go_silent()
    lock = client.lock_all([name, f"{name}-b"]) if several else client.lock(name)
    with pytest.raises(QuorumError):
        lock.acquire(timeout=20)

    def told() -> list[Any]:
        return [(type(event), event.error) for event in events if event.lock == name and not isinstance(event, Waiting)]

    rig.until(told, "the end is told")
    assert told() == [(NotGranted, "QuorumError")]
    assert client.statistics().refusals == 0


def test_a_record_of_the_log_has_the_fields_of_its_event(rig: Rig, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[Any]:
        records = [vars(record) for record in caplog.records if record.name == "relock.events"]
        return [record["relock"] for record in records if record["relock"].get("lock") == name]

    with caplog.at_level(logging.DEBUG, logger="relock.events"):
        client = rig.client()
        lock = client.lock(name)
        lock.acquire()
        token, (hold,) = lock.token, client._session.holds.of_name(name)
        lock.force_release()
        with pytest.raises(LockLostError):
            lock.extend()
        rig.until(lambda: len(told()) == 3, "all events are logged")
    granted, forced, lost = told()
    about = {"lock": name, "kind": "lock", "owner": hold.owner.decode(), "token": token}
    assert granted == {"event": "Granted", "waited": granted["waited"], **about}
    assert forced == {"event": "ForceReleased", "lock": name, "kind": "lock"}
    assert lost == {"event": "Lost", "code": "forced", "reason": "it was released by force", **about}
    assert json.loads(json.dumps(lost)) == lost


@pytest.mark.parametrize("kind", ["lock", "read", "semaphore"])
def test_a_release_by_force_is_told_by_the_client_that_has_done_it(rig: Rig, name: str, kind: str) -> None:
    events: list[Any] = []
    client, others = rig.client(on_event=events.append), rig.client()
    door(others, kind, name).acquire()
    if kind == "semaphore":
        owner = others.semaphore(name, 1).info().holders[0].owner
        told = ForceReleased(name, kind="semaphore", owner=owner)
        release = partial(client.semaphore(name, 1).force_release, owner)
    else:
        told = ForceReleased(name, kind="lock")
        release = partial(client.force_release, name)
    assert release()
    rig.until_free(name, "the masters beyond the quorum have the release, too")
    assert not release()
    client.lock(f"{name}-later").acquire()
    rig.until(lambda: any(isinstance(event, Granted) for event in events), "all events before are told")
    assert [event for event in events if isinstance(event, ForceReleased)] == [told], "once, not for a free lock"


def test_a_release_that_is_interrupted_is_told(rig: Rig, name: str) -> None:
    """The background ends the hold, so a program that counts holds must see that this one is over."""
    events: list[Any] = []
    client = rig.client(node_timeout=10.0, on_event=events.append)
    rig.warm_up(client)
    lock = client.lock(name)
    rig.take_everywhere(lock, 1)
    rig.until_settled(client)
    faults = [line.hold_reply(calls(name, "release")) for line in rig.lines]
    assert rig.interrupt(lock.release, when=lambda: all_struck(faults))
    release_all(faults)
    rig.until_free(name, "the interrupt")

    def told() -> list[Any]:
        return [event for event in events if event.lock == name]

    rig.until(lambda: isinstance(told()[-1], Released), "the end is told")
    granted = told()[-2]
    assert (type(granted), granted.owner) == (Granted, told()[-1].owner)
