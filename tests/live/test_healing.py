"""Healing over five masters: a minority that forgot a hold gets it back; a hold that a quorum forgot stays lost."""

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support.masters import Masters, Proxies
from support.processes import Worker
from support.proxy import Proxy, calls_script
from support.quorum import is_everywhere, is_nowhere, key_of, owners, replies, wait_for_votes
from support.servers import Server
from support.until import until

from relock import Client, LockLostError, MasterDown, QuorumError, RelockError
from relock.lock import Lock

Connect = Callable[..., Client]

TTL = 4.5  # and the guard, of the masters that a test starts
OPTIONS: dict[str, Any] = {"ttl": TTL, "restart_guard": TTL, "node_timeout": 1.5}
DOWN_SECONDS = 1.0
RACES = 100
PAUSE_SECONDS = 0.01  # between two tries of a thief; a minority that granted one can be healed only then


@pytest.fixture
def masters_count() -> int:
    return 5


@pytest.fixture
def masters(start_server: Callable[..., Masters]) -> Masters:
    """Masters that relock has never seen."""
    return start_server()


@pytest.fixture
def client(masters: Masters, connect: Connect, name: str) -> Client:
    """A client whose masters have their votes."""
    client = connect(masters.url, **OPTIONS)
    wait_for_votes(client, masters, name)
    return client


class Thief:
    """Thief that tries to get a lock all the time, past the queue."""

    def __init__(self, lock: Lock) -> None:
        self.got: list[float] = []
        self.tries = 0
        self._lock = lock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._steal)

    def _steal(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):  # a granting minority is healed only between two tries
            try:
                self.tries += 1
                if self._lock.acquire(blocking=False):
                    self.got.append(time.monotonic())
                    self._lock.release()
            except RelockError:
                pass  # too few masters have a vote at this moment

    def __enter__(self) -> "Thief":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


# A rolling restart ----------------------------------------------------------------------------------------------------


def test_a_hold_and_its_queue_survive_a_rolling_restart_of_all_masters_without_persistence(
    *, masters: Masters, client: Client, connect: Connect, start_worker: Callable[..., Worker], name: str
) -> None:
    """Each of five masters is down for a second and comes back empty: no other client gets in, and no place is lost."""
    lock = client.lock(name)
    assert lock.acquire(timeout=20)
    token = lock.token
    assert token is not None
    waiters = [start_worker("workers.locker", masters.url, json.dumps(OPTIONS)) for _ in range(3)]
    for place, worker in enumerate(waiters, start=1):
        assert worker.receive()["event"] == "ready"
        worker.send({"do": "acquire", "id": place, "name": name, "hold": 0.05})
        until(partial(is_queued, masters, name, place), within=20, what=f"{place} wait on a quorum")
    with Thief(connect(masters.url, **OPTIONS).lock(name, fair=False)) as thief:
        for member in masters.members:
            restart_slowly(member)
            until(lambda: is_everywhere(masters, name), within=90, what="the master has its vote, and the hold back")
            assert lock.owned()
    assert thief.tries > 100
    assert thief.got == []
    assert all(worker.look() is None for worker in waiters)
    assert lock.token == token
    lock.release()
    for worker in waiters:
        said = worker.receive()
        assert (said["event"], said["token"] > token) == ("granted", True)
        token = said["token"]
    until(lambda: is_nowhere(masters, name), within=30, what="nothing is left")


def is_queued(masters: Masters, name: str, count: int) -> bool:
    sizes = replies(masters.members, "ZCARD", f"{key_of(name)}:queue")
    return sizes.count(count) >= masters.quorum


def restart_slowly(member: Server) -> None:
    """Kill a server, and start it again without its data when it has been down for a second."""
    member.kill()
    since = time.monotonic()
    until(lambda: time.monotonic() - since >= DOWN_SECONDS, within=20, what="the master stays down for a second")
    member.restart(empty=True)


def test_a_minority_that_forgot_a_hold_gets_it_back_with_its_count(
    server: Masters, connect: Connect, name: str
) -> None:
    client = connect(server.url)
    wait_for_votes(client, server, name)
    with client.lock(name), client.lock(name) as lock:
        until(lambda: is_everywhere(server, name), within=30, what="all have granted")
        for member in server.members[:2]:
            member.cli("DEL", key_of(name))
        lock.extend()
        until(lambda: is_everywhere(server, name), within=30, what="the hold is there again")
        counts = [[b"2"]] * 5
        until(
            lambda: replies(server.members, "HVALS", key_of(name)) == counts,
            within=30,
            what="the hold has its count again",
        )


# Races with a release -------------------------------------------------------------------------------------------------


def test_healing_that_races_a_release_leaves_nothing(server: Masters, connect: Connect, name: str, seed: int) -> None:
    """Whichever comes first, the healing or the end of the hold: in the end no master has it."""
    dice = random.Random(seed)
    client = connect(server.url)
    names = [f"{name}-{number}" for number in range(RACES)]
    for one in names:
        lock = client.lock(one)
        assert lock.acquire(timeout=20)
        until(partial(is_everywhere, server, one), within=30, what="all have granted")
        for member in dice.sample(server.members, 2):
            member.cli("DEL", key_of(one))
        lock.extend()  # finds the masters without the hold, and lets the background heal them
        moment = time.perf_counter() + dice.uniform(0.0, 0.003)
        while time.perf_counter() < moment:
            pass
        lock.release()
    until(lambda: all(is_nowhere(server, one) for one in names), within=20, what="nothing is left")
    client.close()
    assert all(is_nowhere(server, one) for one in names)


@pytest.mark.parametrize("forgetful", [1, 2])
def test_healing_that_comes_after_the_release_is_undone(
    proxy: Proxies, server: Masters, connect: Connect, name: str, forgetful: int
) -> None:
    """A hold that a minority is given long after its release is removed, before its lease could end."""
    lock = connect(proxy.url).lock(name)
    assert lock.acquire(timeout=20)
    until(lambda: is_everywhere(server, name), within=30, what="all have granted")
    for member in server.members[:forgetful]:
        member.cli("DEL", key_of(name))
    late = [one.hold_request(calls_script("heal")) for one in proxy.members[:forgetful]]
    lock.extend()
    until(lambda: all(one.struck.is_set() for one in late), within=30, what="the healing is on its way")
    lock.release()
    for one in late:
        one.release()
    until(lambda: all(one.done.is_set() for one in late), within=30, what="the healing has arrived")
    until(lambda: is_nowhere(server, name), within=20, what="the grant is undone")


def is_told_down(events: list[Any], member: Proxy) -> bool:
    return any(isinstance(event, MasterDown) and str(member.port) in event.master for event in events)


def test_a_healing_that_is_void_puts_nothing_back(proxy: Proxies, server: Masters, connect: Connect, name: str) -> None:
    """Masters ignore a healing that arrives only after the node timeout."""
    events: list[Any] = []
    client = connect(proxy.url, node_timeout=0.2, on_event=events.append)
    lock = client.lock(name)
    assert lock.acquire(timeout=20)
    until(lambda: is_everywhere(server, name), within=30, what="all have granted")
    late = proxy.members[0].hold_request(calls_script("heal"))
    server.members[0].cli("DEL", key_of(name))
    # The watchdog's next renewal finds it out if this one gets no answer of that master in time.
    with suppress(QuorumError):
        lock.extend()
    until(late.struck.is_set, within=30, what="the healing is on its way")
    until(
        lambda: is_told_down(events, proxy.members[0]),
        within=30,
        what="no call waits for the master, which may be back at once",
    )
    client.close()  # so that the client neither undoes nor repeats it
    late.release()
    until(late.done.is_set, within=30, what="the healing has arrived")
    assert owners(server, name)[0] is None
    assert owners(server, name)[1:] == [owners(server, name)[1]] * 4


# Holds that a quorum forgot -------------------------------------------------------------------------------------------


def delete(masters: Masters, name: str) -> None:
    for member in masters.members[:3]:
        member.cli("DEL", key_of(name))


def force(masters: Masters, name: str) -> None:
    with Client(masters.url, **OPTIONS) as other:
        assert other.lock(name).force_release()
        until(
            lambda: not any(owners(masters, name)[:3]),
            within=30,
            what="slow ones of the first three have ended it, too",
        )


def flush(masters: Masters, name: str) -> None:
    for member in masters.members[:3]:
        member.cli("FLUSHALL")


def restart(masters: Masters, name: str) -> None:
    for member in masters.members[:3]:
        member.restart(empty=True)


@pytest.mark.parametrize("forget", [delete, force, flush, restart])
def test_what_a_quorum_has_forgotten_is_lost_and_never_put_back(
    masters: Masters, client: Client, connect: Connect, name: str, forget: Callable[[Masters, str], Any]
) -> None:
    """Owners learn of the loss, the next one gets the lock, and the old hold never comes back to those masters."""
    lock = client.lock(name)
    assert lock.acquire(timeout=20)
    until(lambda: is_everywhere(masters, name), within=30, what="all have granted")
    (owner,) = set(owners(masters, name))
    seen: list[str | None] = []

    def looked() -> bool:
        seen.extend(owners(masters, name)[:3])
        return True

    forget(masters, name)
    until(lambda: looked() and lock.lost, within=5 * TTL, what="the hold is lost")
    with pytest.raises(LockLostError):
        lock.release()
    other = connect(masters.url, **OPTIONS).lock(name)
    assert other.acquire(timeout=20)
    until(lambda: looked() and is_everywhere(masters, name), within=30, what="the next holder has all masters")
    since = time.monotonic()
    until(lambda: looked() and time.monotonic() - since > TTL, within=20, what="three renewals are over")
    assert owner not in seen
    assert other.owned()
