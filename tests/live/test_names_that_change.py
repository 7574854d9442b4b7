"""Servers whose name changes while they run, that have none, or that the address left, as callers see them."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.proxy import Proxy, calls_script
from support.quorum import key_of
from support.room import Crowd, Room
from support.servers import Server, find_servers
from support.until import until

from relock import Client, ClientClosedError, QuorumError

Connect = Callable[..., Client]
WATCHED_SECONDS = 4.0
SUBSCRIBES_MAX = 5  # that may have a reason within that time, on a busy machine
CONNECTIONS_MAX = 80
TTL = 10.0


@pytest.fixture
def start(server_kind: str) -> Iterator[Callable[..., Server]]:
    """Start a server, or a replica."""
    program = find_servers()[server_kind]
    started: list[Server] = []

    def start_one(*arguments: str, of: Server | None = None) -> Server:
        source = () if of is None else ("--replicaof", "127.0.0.1", str(of.port))
        started.append(Server(server_kind, program, "--repl-diskless-sync-delay", "0", *source, *arguments).start())
        if of is not None:
            until(lambda: is_connected(started[-1]), within=30, what="the replica is in step")
        return started[-1]

    yield start_one
    for server in started:
        server.close()


def is_connected(server: Server) -> bool:
    with server.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


def subscribes(server: Server) -> int:
    return int(server.calls().get("subscribe", 0))


def hand_over_again_and_again(releaser: Client, waiter: Client, name: str, server: Server) -> int:
    """Hand the lock from `releaser`, which never waits, to `waiter` each time; return the number of subscriptions."""
    ours, theirs = releaser.lock(name), waiter.lock(name)

    def take_a_turn() -> None:
        with theirs:
            pass

    before, end = subscribes(server), time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < end:
        assert ours.acquire(timeout=10)
        thread = threading.Thread(target=take_a_turn)
        thread.start()
        until(lambda: server.cli("ZCARD", f"{key_of(name)}:queue"), within=20, what="a caller waits")
        ours.release()
        thread.join()
    return subscribes(server) - before


def test_a_subscription_stays_though_a_releaser_knows_the_server_by_an_older_name(
    start: Callable[..., Server], connect: Connect, name: str
) -> None:
    """The first replica of a master gives it another replication id; clients connected before go on with the old."""
    master = start()
    releaser = connect(master.url)
    with releaser.lock("warm-up"):
        pass
    start(of=master)
    waiter = connect(master.url)
    assert hand_over_again_and_again(releaser, waiter, name, master) <= SUBSCRIBES_MAX


def test_a_subscription_stays_though_a_releaser_may_not_ask_for_the_servers_name(
    start: Callable[..., Server], connect: Connect, name: str
) -> None:
    master = start()
    master.cli("ACL", "SETUSER", "nameless", "on", ">p", "~*", "&*", "+@all", "-info")
    releaser = connect(master.url.replace("redis://", "redis://nameless:p@"))
    warm_up = releaser.lock("warm-up")
    with pytest.warns(UserWarning, match="refuses INFO"):
        warm_up.acquire(timeout=10)
    warm_up.release()
    waiter = connect(master.url)
    assert hand_over_again_and_again(releaser, waiter, name, master) <= SUBSCRIBES_MAX


@pytest.mark.parametrize("what", ["acquire", "release"])
def test_no_call_fails_because_a_master_gets_its_first_replica(
    start: Callable[..., Server], connect: Connect, name: str, what: str
) -> None:
    """The same server answers; only its replication id is another one."""
    events: list[Any] = []
    master = start()
    place = Proxy(master.port)
    try:
        client = connect(place.url, on_event=events.append, ttl=180.0, node_timeout=60.0)  # a replica takes its time
        lock, others = client.lock(name, owner="one"), client.lock(f"{name}-other")
        if what == "release":
            assert lock.acquire(timeout=10)
        else:
            assert others.acquire(timeout=10)  # connects the client
            others.release()
        fault = place.hold_reply(calls_script(what))
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(outcome_of(lock, what)))
        thread.start()
        until(lambda: fault.has_begun, within=30, what="the master has answered")
        start(of=master)
        assert others.acquire(timeout=10)  # on a new connection, which learns the new name
        others.release()
        fault.release()
        thread.join(60)
        assert results == [True if what == "acquire" else None]
        assert [event for event in events if type(event).__name__ == "ReleaseUnconfirmed"] == []
    finally:
        place.close()


def outcome_of(lock: Any, what: str) -> Any:
    try:
        return getattr(lock, what)(*[False] * (what == "acquire"))
    except QuorumError as error:
        return error


def wait(lock: Any) -> None:
    with suppress(QuorumError, ClientClosedError):
        lock.acquire(timeout=60)


class Alternating(Proxy):
    """Proxy that leads each connection to the next of its servers."""

    def lead_in_turn(self, *ports: int) -> None:
        self._turns = itertools.cycle(ports)
        self.connections = 0

    @property
    def _server_port(self) -> int:
        self.connections = getattr(self, "connections", 0) + 1
        turns = getattr(self, "_turns", None)
        return self._first if turns is None else next(turns)

    @_server_port.setter
    def _server_port(self, port: int) -> None:
        self._first = port


def test_an_address_that_shows_two_names_in_turn_makes_no_storm_of_connections(
    start: Callable[..., Server], connect: Connect, name: str
) -> None:
    """A proxy for many servers does that, and DNS while it changes: relock must not flood the servers then."""
    one, other = start(), start()
    for server in (one, other):
        server.cli("SET", key_of(name), "somebody else's", "PX", 60_000)
    place = Alternating(one.port)
    try:
        client = connect(place.url, node_timeout=1.0)
        threads = [threading.Thread(target=wait, args=(client.lock(name),), daemon=True) for _ in range(10)]
        for thread in threads:
            thread.start()
        until(lambda: one.cli("ZCARD", f"{key_of(name)}:queue") == len(threads), within=20, what="all wait")
        place.lead_in_turn(one.port, other.port)
        place.break_all()
        time.sleep(WATCHED_SECONDS)
        assert place.connections <= CONNECTIONS_MAX
        client.close()
        for thread in threads:
            thread.join(20)
    finally:
        place.close()


def test_a_try_without_waiting_is_not_told_of_a_hold_that_only_a_demoted_master_has(
    start: Callable[..., Server], connect: Connect, name: str
) -> None:
    """`False` means that another owner has the lock. A demoted master that is cut off keeps a copy for a lease."""
    master = start()
    replica = start(of=master)
    place = Proxy(master.port)
    try:
        holder, other = (connect(place.url, ttl=60.0, node_timeout=3.0) for _ in range(2))
        held, tried = holder.lock(name), other.lock(name)
        assert held.acquire(timeout=10)
        assert not tried.acquire(blocking=False)
        until(lambda: replica.cli("EXISTS", key_of(name)), within=30, what="the replica has the hold, too")
        master.cli("REPLICAOF", "127.0.0.1", "1")  # where no server is: a wrong address or a firewall, for example
        replica.cli("REPLICAOF", "NO", "ONE")
        place.lead_new_to(replica.port)
        held.release()
        until(lambda: not replica.cli("EXISTS", key_of(name)), within=30, what="the hold is released on the new master")
        until(lambda: takes(tried), within=20, what="who tries again and again gets the lock")
    finally:
        place.close()


def takes(lock: Any) -> bool:
    try:
        return bool(lock.acquire(blocking=False))
    except QuorumError:
        return False


@pytest.mark.filterwarnings("ignore::relock.RelockWarning")
def test_where_no_server_has_a_name_waiters_follow_a_master_that_has_moved_all_the_same(
    start: Callable[..., Server], connect: Connect, name: str
) -> None:
    """INFO is refused, the old master goes on alone, and calls go to the new one: their old connections end."""
    master = start()
    replica = start(of=master)
    for server in (master, replica):
        server.cli("ACL", "SETUSER", "nameless", "on", ">p", "~*", "&*", "+@all", "-info")
    place = Proxy(master.port)
    url = place.url.replace("redis://", "redis://nameless:p@")
    holder, waiting, others = (connect(url, ttl=TTL, node_timeout=1.0) for _ in range(3))
    crowd = Crowd(Room(), name)
    held = holder.lock(name)
    assert held.acquire(timeout=10)
    crowd.wait_for_a_turn(waiting, 2, master)
    crowd.come_again(others, 3, master)
    replica.cli("REPLICAOF", "NO", "ONE")
    place.lead_new_to(replica.port)
    master.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    try:
        held.release()
        late = crowd.late(10.0)
        served = crowd.room.served
        crowd.end()
        assert late == [], f"all waiters were served, among {served} turns"
    finally:
        place.close()
