"""A release gives the lock to the first waiter: the name of the hold, its lease, and the exceptions."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.heartbeats import heartbeats_put_off, without_any_heartbeat
from support.masters import Deployment
from support.until import until

from relock import Client, ClientClosedError, Lock, ReleaseUnconfirmed
from relock._core import lock_spec
from relock._core.lock_spec import HANDED_LEASE_SECONDS
from relock._runtime.machine import Machine
from relock._runtime.session import closing
from relock._runtime.session.session import Session
from relock._runtime.wakeups import hub
from relock._runtime.wakeups.thread_subscription import ThreadSubscription
from relock._runtime.wakeups.waiter import Waiter

pytestmark = pytest.mark.every_quorum
TTL = 30.0
LONG_HANDED_SECONDS = 20.0  # a lease that is not over while a machine is busy with something else
Connect = Callable[..., Client]


@contextmanager
def waiting(lock: Lock, then: Callable[[Lock], Any]) -> Iterator[list[Any]]:
    """Let a thread wait for `lock`, call `then` while it has the lock, and release it; yield the list of results."""
    found: list[Any] = []

    def wait() -> None:
        with lock:
            found.append(then(lock))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield found
    thread.join(30)
    assert found


def is_queued(server: Deployment, name: str) -> bool:
    """Return whether the waiter is queued on every master: a request that is still under way might take the lock."""
    return all(one.cli("ZCARD", f"lock:{{{name}}}:queue") == 1 for one in server.members)


def ends_of_waits(client: Client) -> tuple[int, int, int]:
    """Return how many grants a releaser gave, a message's receiver asked for, and a waiter found by itself."""
    seen = client.statistics()
    return seen.handovers, seen.woken_grants, seen.polled_grants


def owner_of(lock: Lock) -> str:
    return str(lock.info().owner)


def is_given(owner: str) -> bool:
    """Return whether a releaser gave a hold: its name ends with that of the hold before, an attempt's with a number."""
    return re.fullmatch(r".+~[0-9a-f]{16}\.[0-9]+", owner) is not None


def test_a_release_gives_the_lock_to_the_waiter_and_takes_no_request_of_its_own(
    server: Deployment, connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name shows that the waiter did not ask for the hold. It does ask if the masters' messages come far apart."""
    monkeypatch.setattr(hub, "GATHER_SECONDS", 20.0)
    monkeypatch.setattr(lock_spec, "HANDED_LEASE_SECONDS", LONG_HANDED_SECONDS)
    holder, waiter = connect(server.url), connect(server.url)
    lock = holder.lock(name, ttl=TTL)
    lock.acquire()
    first = lock.token
    with waiting(waiter.lock(name, ttl=TTL), lambda mine: (owner_of(mine), mine.token)) as found:
        until(lambda: is_queued(server, name), within=30, what="a caller waits")
        lock.release()
    ((owner, token),) = found
    assert first is not None
    assert is_given(owner)
    assert token > first
    assert not holder.info(name).held
    assert ends_of_waits(holder) == (0, 0, 0)
    assert ends_of_waits(waiter) == (1, 0, 0)


@pytest.mark.parametrize("renew", [True, False])
def test_the_full_lease_is_there_for_whoever_asks(server: Deployment, connect: Connect, name: str, renew: bool) -> None:
    holder, waiter = connect(server.url), connect(server.url)
    lock = holder.lock(name, ttl=TTL)
    lock.acquire()

    def look(mine: Lock) -> float:
        mine.ensure(TTL / 2)
        return mine.remaining()

    with waiting(waiter.lock(name, ttl=TTL, renew=renew), look) as found:
        until(lambda: is_queued(server, name), within=30, what="a caller waits")
        lock.release()
    assert TTL / 2 < found[0] < TTL


def test_a_hold_outlives_the_short_lease_without_renewal(server: Deployment, connect: Connect, name: str) -> None:
    """The watchdog, or the next read, finds the answer to the extension; no further request asks for it."""
    holder, waiter = connect(server.url), connect(server.url)
    lock = holder.lock(name, ttl=TTL)
    lock.acquire()

    def stay(mine: Lock) -> bool:
        until(lambda: mine.remaining() > HANDED_LEASE_SECONDS, within=30, what="the full lease is confirmed")
        return mine.owned()

    with waiting(waiter.lock(name, ttl=TTL, renew=False), stay) as found:
        until(lambda: is_queued(server, name), within=30, what="a caller waits")
        lock.release()
    assert found == [True]


@pytest.mark.parametrize(("holds", "waits"), [("wake", "grant"), ("grant", "wake"), ("wake", "wake")], ids=str)
def test_with_two_hops_the_waiter_asks(server: Deployment, connect: Connect, name: str, holds: str, waits: str) -> None:
    holder, waiter = connect(server.url, handoff=holds), connect(server.url, handoff=waits)
    lock = holder.lock(name, ttl=TTL)
    lock.acquire()
    with without_any_heartbeat(), waiting(waiter.lock(name, ttl=TTL), owner_of) as found:
        until(lambda: is_queued(server, name), within=30, what="a caller waits")
        lock.release()
    assert not is_given(found[0]), "the waiter has the hold by its own request"
    assert waiter.statistics().waits == 1
    assert ends_of_waits(waiter) == (0, 1, 0)


def test_a_release_of_an_unfair_lock_only_wakes(server: Deployment, connect: Connect, name: str) -> None:
    """Newcomers may come first."""
    holder, waiter = connect(server.url), connect(server.url)
    lock = holder.lock(name, ttl=TTL, fair=False)
    lock.acquire()
    with waiting(waiter.lock(name, ttl=TTL), owner_of) as found:
        until(lambda: is_queued(server, name), within=30, what="a caller waits")
        lock.release()
    assert not is_given(found[0])


def test_what_is_given_to_a_client_that_is_being_closed_is_given_back(
    server: Deployment, connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release comes between the first step of `close` and the step that takes its waiters out of the queue.

    Its message comes after that step, as it may on a slow machine or network.
    """
    monkeypatch.setattr(lock_spec, "HANDED_LEASE_SECONDS", LONG_HANDED_SECONDS)
    # `close` waits for the not-after time of the wait's requests: for a node timeout.
    holder, waiter = connect(server.url), connect(server.url, node_timeout=1.0)
    lock = holder.lock(name, ttl=TTL)
    lock.acquire()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            waiter.lock(name, ttl=TTL).acquire()
        except ClientClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: is_queued(server, name), within=30, what="a caller waits")
    session = waiter._session
    until(
        lambda: session.hub.shared._parked,
        within=30,
        what="the waiter sleeps: else it finds the client closed, and leaves",
    )
    leave_queues, message = closing._leave_queues, session.hub.message
    is_left_and_waits = threading.Event()
    released_at: list[float] = []

    class Waits(Machine):
        @staticmethod
        def sleep(seconds: float) -> None:
            is_left_and_waits.set()
            time.sleep(seconds)

    def release_and_leave(session: Session, waiters: list[Waiter]) -> list[Waiter]:
        if not released_at:
            released_at.append(time.monotonic())
            lock.release()
        return leave_queues(session, waiters)

    def come_late(subscription: ThreadSubscription, payload: bytes) -> None:
        assert is_left_and_waits.wait(10)
        message(subscription, payload)

    monkeypatch.setattr(closing, "GRANTEES_SECONDS", 20.0)  # however late the message is here
    session.platform = Waits()
    monkeypatch.setattr(closing, "_leave_queues", release_and_leave)
    session.hub.message = come_late  # type: ignore[method-assign]
    waiter.close()
    thread.join(30)
    assert errors
    until(lambda: not holder.info(name).held, within=LONG_HANDED_SECONDS, what="the lock is free")
    assert time.monotonic() - released_at[0] < LONG_HANDED_SECONDS, (
        "the hold is given back before its lease could end it"
    )


@pytest.mark.filterwarnings("ignore:.* it refuses PUBLISH in scripts:relock.RelockWarning")
def test_a_release_that_may_tell_nobody_is_confirmed_and_the_waiter_gets_the_lock_by_its_heartbeat(
    server: Deployment, connect: Connect, name: str
) -> None:
    """The user of both clients has no right to publish. Meanwhile no other client gets the lock."""
    events: list[Any] = []
    for one in server.members:
        one.cli("ACL", "SETUSER", "mute", "reset", "on", "nopass", "~*", "&*", "+@all", "-publish")
    urls = [f"redis://mute:x@127.0.0.1:{one.port}" for one in server.members]
    try:
        holder, waiter = connect(urls, on_event=events.append), connect(urls)
        lock = holder.lock(name, ttl=TTL)
        lock.acquire()
        with waiting(waiter.lock(name, ttl=TTL), owner_of) as found, heartbeats_put_off():
            until(lambda: is_queued(server, name), within=30, what="a caller waits")
            lock.release()
            assert all(one.cli("EXISTS", f"lock:{{{name}}}:waiters") for one in server.members)
        assert not is_given(found[0])
        assert ends_of_waits(waiter) == (0, 0, 1)
        assert not any(isinstance(event, ReleaseUnconfirmed) for event in events)
    finally:
        for one in server.members:
            one.cli("ACL", "DELUSER", "mute")
