"""Over five masters: contenders make progress, a hold is healed, and who may have forgotten has no vote."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.masters import Masters, Urls
from support.processes import Worker
from support.servers import Server, find_servers
from support.until import until

from relock import Client, LockLostError, QuorumError, RelockError

Connect = Callable[..., Client]
TTL = 1.0  # and the guard


@pytest.fixture
def five(server_kind: str) -> Iterator[list[Server]]:
    """Five masters of the test's own, that nobody has looked at."""
    program = find_servers()[server_kind]
    servers = [Server(server_kind, program).start() for _ in range(5)]
    yield servers
    for server in servers:
        server.close()


def urls(servers: list[Server], guard: float = TTL) -> Urls:
    return Urls([server.url for server in servers], guard)


@pytest.fixture
def client(five: list[Server], connect: Connect) -> Client:
    """A client whose masters all have their votes."""
    client = connect(urls(five), ttl=TTL)
    vote(client)
    return client


def vote(client: Client) -> None:
    def all_vote() -> bool:
        with client.lock("warm-up", timeout=10):
            return all(master.vote_in == 0.0 and master.down is None for master in client.statistics().masters)

    until(all_vote, within=20, what="all have their votes")


def mine(server: Server, name: str, owner: str) -> bool:
    """Whether this hold is there; what a rival gets from a minority for a moment is none."""
    return bool(server.cli("HKEYS", f"lock:{{{name}}}") == [owner.encode()])


def present(five: list[Server], name: str) -> list[bool]:
    return [bool(server.cli("EXISTS", f"lock:{{{name}}}")) for server in five]


# Progress -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masters_count", [5])
@pytest.mark.parametrize("fault", [False, True], ids=["all well", "one is killed and restarted"])
def test_fifty_contenders_of_five_processes_make_steady_progress(
    own_server: Masters, start_worker: Callable[..., Worker], name: str, fault: bool
) -> None:
    """They all come at once, so nobody's order is promised; but the lock is never idle for a second."""
    workers = [start_worker("workers.locker", own_server.url) for _ in range(5)]
    for worker in workers:
        assert worker.receive()["event"] == "ready"
    for number in range(50):
        workers[number % 5].send({"do": "acquire", "id": number, "name": name, "hold": 0.02})
    if fault:
        own_server.members[0].restart(empty=True)
    said = [granted(workers[number % 5]) for number in range(50)]
    at = sorted(one["at"] for one in said)
    assert max(later - earlier for earlier, later in itertools.pairwise(at)) < 1.0
    by_time = [one["token"] for one in sorted(said, key=lambda one: one["at"])]
    assert by_time == sorted(set(by_time)), "one after the other, with tokens that rise"


def granted(worker: Worker) -> dict[str, Any]:
    while True:
        said: dict[str, Any] = worker.receive(60.0)
        assert said["event"] not in ("error", "refused", "lost"), said
        if said["event"] == "granted":
            return said


# Healing --------------------------------------------------------------------------------------------------------------


def test_a_hold_survives_a_rolling_restart_without_persistence_of_all_five(
    five: list[Server], client: Client, connect: Connect, name: str
) -> None:
    """Another client tries all the time, and never gets it."""
    lock = client.lock(name)
    lock.acquire()
    token, owner, rival = lock.token, client.info(name).owner or "", connect(urls(five), ttl=TTL)
    over, stolen = threading.Event(), []

    def steal() -> None:
        while not over.is_set():
            try:
                if rival.lock(name).acquire(blocking=False):
                    stolen.append(time.monotonic())
            except RelockError:
                pass  # too few have a vote at this moment

    thief = threading.Thread(target=steal)
    thief.start()
    try:
        for server in five:
            server.kill()
            time.sleep(1.0)  # it stays down
            server.start()
            until(partial(mine, server, name, owner), within=15, what="it has its vote, and the hold back")
    finally:
        over.set()
        thief.join()
    assert [mine(server, name, owner) for server in five] == [True] * 5
    assert stolen == []
    assert lock.owned()
    assert lock.token == token
    lock.release()
    until(lambda: not any(present(five, name)), within=5, what="nothing is left")


def test_what_a_quorum_has_forgotten_is_lost_and_never_put_back(five: list[Server], client: Client, name: str) -> None:
    lock = client.lock(name)
    lock.acquire()
    for server in five[:3]:
        server.cli("DEL", f"lock:{{{name}}}")
    until(lambda: lock.lost, within=3 * TTL, what="it is lost")
    until(lambda: not any(present(five, name)), within=3 * TTL, what="and given up where it was left")
    with pytest.raises(LockLostError):
        lock.release()


def test_a_minority_that_forgot_a_hold_gets_it_back_with_its_count(
    five: list[Server], client: Client, name: str
) -> None:
    lock = client.lock(name)
    lock.acquire()
    lock.acquire()
    for server in five[:2]:
        server.cli("DEL", f"lock:{{{name}}}")
    until(lambda: all(present(five, name)), within=3 * TTL, what="it is there again")
    assert {tuple(server.cli("HVALS", f"lock:{{{name}}}")) for server in five} == {(b"2",)}
    assert lock.owned()


# Restart guard --------------------------------------------------------------------------------------------------------


def forget(server: Server, how: str) -> None:
    """Makes a master forget what it has granted since `prepare`."""
    if how == "flushed":
        server.cli("FLUSHALL")
    else:
        server.restart(empty=how == "restarted empty")


@pytest.mark.parametrize("how", ["restarted empty", "restarted with old data", "flushed"])
@pytest.mark.parametrize("guard", [TTL, 0.0], ids=["guarded", "control: without the guard"])
def test_masters_that_forgot_let_nobody_in_before_the_lease_is_over(
    five: list[Server], connect: Connect, name: str, how: str, guard: float
) -> None:
    """Neither a client that watched them nor one that comes later; without the guard there are two holders."""
    holder = connect(urls(five, guard), ttl=TTL, node_timeout=0.3)
    watcher = connect(urls(five, guard), ttl=TTL, node_timeout=0.3)
    vote(holder)
    vote(watcher)
    for server in five[:3]:
        server.cli("SAVE")  # before anything is held
    lock = holder.lock(name, renew=False)
    lock.acquire()
    for server in five[:3]:
        forget(server, how)
    second = [False, False]
    while lock.owned() and not any(second):
        for number, other in enumerate((watcher, connect(urls(five, guard), ttl=TTL, node_timeout=0.3))):
            try:
                second[number] = other.lock(name).acquire(blocking=False) and lock.owned()
            except QuorumError:
                pass
    assert any(second) == (guard == 0.0)
    if guard:
        assert watcher.lock(name).acquire(timeout=10), "but when it is over, they vote again"
