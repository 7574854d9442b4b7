"""Masters that may have forgotten leases have no vote until all these leases must have ended."""

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from attrs import define
from support.masters import Masters
from support.processes import Worker
from support.proxy import Proxy
from support.quorum import is_everywhere, key_of, takes, takes_in, wait_for_votes
from support.servers import Server, find_servers, free_port
from support.until import pause, until
from support.urls import GUARD_SECONDS, Urls

from relock import Client, ConfigurationError, Lock, LockLostError, QuorumError, RelockWarning

Connect = Callable[..., Client]
TTL = 3.0  # and the guard
LONG = 30.0  # without a guard, a lease that outlasts the test
GUARDS = pytest.mark.parametrize("guard", [TTL, 0.0], ids=["guarded", "control: without the guard"])


@pytest.fixture
def five(server_kind: str) -> Iterator[list[Server]]:
    """Five masters of the test's own, which relock has never seen."""
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
        with suppress(LockLostError), client.lock("warm-up", timeout=20):  # the lease may be short
            return all(master.vote_in == 0.0 and master.down is None for master in client.statistics().masters)
        return False

    until(all_vote, within=20, what="all have their votes")


def forget(server: Server, how: str) -> None:
    """Make a master forget its grants since `prepare`."""
    if how == "flushed":
        server.cli("FLUSHALL")
    else:
        server.restart(empty=how == "restarted empty")


@pytest.mark.parametrize("how", ["restarted empty", "restarted with old data", "flushed"])
@GUARDS
def test_masters_that_forgot_let_nobody_in_before_the_lease_is_over(
    five: list[Server], connect: Connect, name: str, how: str, guard: float
) -> None:
    """Clients do not get in, whether they watched the masters or come later; without the guard two hold the lock."""
    options = {"ttl": TTL if guard else LONG, "node_timeout": 0.5}
    holder, watcher = connect(urls(five, guard), **options), connect(urls(five, guard), **options)
    vote(holder)
    vote(watcher)
    for server in five[:3]:
        server.cli("SAVE")  # before any hold
    lock = holder.lock(name, renew=False)
    lock.acquire()
    for server in five[:3]:
        forget(server, how)
    second = [False, False]
    while lock.owned() and not any(second):
        newcomer = connect(urls(five, guard), **options)
        second = [took and lock.owned() for took in (takes(watcher, name), takes(newcomer, name))]
        pause()
    assert any(second) == (guard == 0.0)
    if guard:
        assert watcher.lock(name).acquire(timeout=30), "the masters vote again when the guard is over"


# The first contact ----------------------------------------------------------------------------------------------------


def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}"


def marker(server: Server) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = server.cli("HGETALL", "lock:master")
    return found


def gets(client: Client, name: str) -> None:
    """Take a lock that is free, in far less time than the larger guard."""
    with client.lock(name, timeout=20):
        pass


def markers_that_vote(servers: list[Server], client: Client) -> list[dict[bytes, bytes]]:
    """Return the masters' markers, once the client has asked each master, and each has its vote."""

    def all_vote() -> bool:
        vote(client)
        return all(int(marker(server).get(b"no_vote_until_us", "9" * 17)) < time.time() * 1e6 for server in servers)

    until(all_vote, within=20, what="each master has a marker, and its vote")
    return [marker(server) for server in servers]


def test_a_client_whose_other_masters_do_not_exist_stops_nobody(
    own_server: Server, connect: Connect, name: str
) -> None:
    service = connect(own_server.url)
    mistaken = connect(Urls([own_server.url, nowhere(), nowhere()], None), ttl=600, node_timeout=5.0)
    for _ in range(2):
        with pytest.raises(QuorumError, match="before a quorum of the masters was reached"):
            mistaken.lock(name).acquire(blocking=False)
    assert not own_server.cli("EXISTS", "lock:master")
    for client in (service, connect(own_server.url)):
        assert takes(client, name)


def test_a_first_contact_with_a_quorum_begins_the_guard(five: list[Server], connect: Connect, name: str) -> None:
    """Masters may have forgotten anything; masters that answer later begin the guard as well."""
    for server in five[3:]:
        server.stop()
    client = connect(urls(five, 600.0), ttl=600, node_timeout=5.0)
    with pytest.raises(QuorumError, match="may have forgotten leases"):
        client.lock(name).acquire(blocking=False)
    assert all(marker(server) for server in five[:3])
    for server in five[3:]:
        server.cont()

    def all_have_begun() -> bool:
        with suppress(QuorumError):
            client.lock(name).acquire(blocking=False)
        return all(marker(server) for server in five)

    until(all_have_begun, within=20, what="all have a marker")
    assert {marker(server)[b"set_by"].decode() for server in five} == {client._session.client_id}


@pytest.mark.parametrize("how", ["restarted empty", "flushed"])
def test_a_master_whose_marker_was_seen_is_without_a_vote_at_once_though_no_quorum_is_reached(
    own_server: Server, connect: Connect, name: str, how: str
) -> None:
    service = connect(own_server.url, restart_guard=TTL, ttl=TTL)
    assert service.lock(name).acquire(timeout=20)
    lonely = connect(Urls([own_server.url, nowhere(), nowhere()], TTL), ttl=TTL, node_timeout=0.5)
    with pytest.raises(QuorumError):
        lonely.lock(name).acquire(blocking=False)
    forget(own_server, how)

    def has_begun() -> bool:
        with suppress(QuorumError):
            lonely.lock(name).acquire(blocking=False)
        return bool(marker(own_server))

    until(has_begun, within=20, what="the guard has begun")
    assert marker(own_server)[b"set_by"].decode() == lonely._session.client_id


def test_a_client_with_a_larger_guard_waits_and_the_others_go_on(
    five: list[Server], client: Client, connect: Connect, name: str
) -> None:
    before = markers_that_vote(five, client)
    careful = connect(urls(five, 600.0), ttl=600, node_timeout=5.0)
    with pytest.raises(QuorumError, match="may have forgotten leases"):
        careful.lock(name).acquire(blocking=False)
    gets(client, name)
    gets(connect(urls(five), ttl=TTL), name)
    assert [marker(server) for server in five] == before


def test_a_guard_that_is_found_on_one_master_stops_nobody_on_the_others(
    five: list[Server], client: Client, connect: Connect, name: str
) -> None:
    """Guards may be set by mistake, and a client that opens a connection to that master takes the guard over."""
    before = markers_that_vote(five, client)
    five[0].cli("HSET", "lock:master", "guard_ms", 612_000)
    newcomer = connect(urls(five), ttl=TTL)

    def warns() -> bool:
        """Make a call; one that comes a moment after a thread has found the guard warns."""
        gets(newcomer, name)
        return len(caught) > 0

    with pytest.warns(RelockWarning, match="relock guard --lower") as caught:
        until(warns, within=20, what="the client has taken the guard over, and warns")
    assert newcomer._session.masters[1].facts.guard_ms == 612_000
    gets(newcomer, name)
    assert [marker(server) for server in five[1:]] == before[1:]
    gets(client, name)


# A replica in place of its master -------------------------------------------------------------------------------------


@define
class House:
    """Three masters, and a replica that takes the place of the first: clients reach that place by `urls`."""

    masters: Masters
    replica: Server
    place: Proxy

    @property
    def urls(self) -> Urls:
        return Urls([self.place.url, *self.masters.url[1:]], None)

    def fall_behind(self) -> None:
        """Let the replica hear nothing from its master any more."""
        self.replica.cli("REPLICAOF", "127.0.0.1", free_port())

    def replace(self) -> None:
        """Kill the master, and promote its replica."""
        self.masters.members[0].kill()
        self.replica.cli("REPLICAOF", "NO", "ONE")
        self.place.lead_to(self.replica.port)


@pytest.fixture
def house(server_kind: str) -> Iterator[House]:
    program = find_servers()[server_kind]
    members = [Server(server_kind, program, "--repl-diskless-sync-delay", "0").start() for _ in range(3)]
    replica = Server(server_kind, program, "--replicaof", "127.0.0.1", str(members[0].port)).start()
    place = Proxy(members[0].port)
    yield House(Masters(members), replica, place)
    place.close()
    for server in (*members, replica):
        server.close()


def hold_everywhere(lock: Lock, masters: Masters) -> None:
    """Take a lock that is not renewed until all masters have it: one that got its request late never grants it."""

    def all_grant() -> bool:
        assert lock.acquire(timeout=10)
        with suppress(AssertionError):
            until(lambda: is_everywhere(masters, lock.name) or not lock.owned(), within=1, what="all have granted")
        if is_everywhere(masters, lock.name) and lock.owned():
            return True
        with suppress(LockLostError):
            lock.release()
        return False

    until(all_grant, within=30, what="all have granted the lock at once")


@GUARDS
def test_a_replica_that_replaced_its_master_lets_nobody_in_before_the_lease_is_over(
    house: House, connect: Connect, start_worker: Callable[..., Worker], name: str, guard: float
) -> None:
    """One master lacks the hold, and the replica of another that takes its place; without the guard that is a quorum.

    The replica has the marker of its master, but a lagging data set.
    """
    options = {"ttl": TTL if guard else LONG, "restart_guard": guard, "node_timeout": 0.5}
    holder, watcher = connect(house.urls, **options), connect(house.urls, **options)
    vote(holder)
    vote(watcher)
    until(lambda: house.replica.cli("EXISTS", f"{key_of('warm-up')}:token"), within=20, what="the replica has a copy")
    house.fall_behind()
    late = start_worker("workers.locker", house.urls, json.dumps(options))  # connects at its first acquire
    assert late.receive()["event"] == "ready"
    lock = holder.lock(name, renew=False)
    hold_everywhere(lock, house.masters)
    house.masters.members[2].cli("DEL", key_of(name))  # as if the master had been away
    house.replace()
    assert bool(house.replica.cli("EXISTS", "lock:master")) == bool(guard)
    second = [False, False]
    while lock.owned() and not any(second):
        second = [took and lock.owned() for took in (takes(watcher, name), takes_in(late, name))]
        pause()
    assert any(second) == (guard == 0.0)
    if guard:
        assert watcher.lock(name).acquire(timeout=30), "the replica votes when the guard is over"
        vote(watcher)


# Leases and the guard -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masters_count", [3])
def test_no_lease_above_the_guard_reaches_a_master(server: Masters, connect: Connect, name: str) -> None:
    """Locks, nested acquires and extensions with such a lease are refused: the hold stays as it is."""
    client = connect(server.url, ttl=5.0)
    above = GUARD_SECONDS + 0.1

    with client.lock(name) as lock:
        until(lambda: is_everywhere(server, name), within=30, what="all have granted")
        for refused in (
            lambda: client.lock(name, ttl=above),
            lambda: client.synchronized(name, ttl=above),
            lambda: lock.extend(above),
            lambda: lock.extend(ttl=above),
        ):
            with pytest.raises(ConfigurationError, match=r"ttl=600\.1.*raise restart_guard") as caught:
                refused()
            assert caught.value.option == "ttl"
        assert (lock.hold_count, lock.owned()) == (1, True)
        assert lock.remaining() <= 5.0
        assert max(member.cli("PTTL", key_of(name)) for member in server.members) <= 5000
        assert lock.extend(GUARD_SECONDS) > 5.0, "a lease as long as the guard is allowed"


# A smaller guard ------------------------------------------------------------------------------------------------------

SMALL, LARGE = 0.5, 3.0


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("restarted", [1, 2], ids=["a minority restarts", "a majority restarts"])
@pytest.mark.parametrize("comes", ["before the others", "after them", "after their hold"])
def test_a_client_with_a_smaller_guard_takes_that_of_the_others_also_where_it_is_forgotten(
    *, start_server: Callable[..., Masters], connect: Callable[..., Client], name: str, restarted: int, comes: str
) -> None:
    """A master that restarted empty has forgotten the others' guard, too: clients learn it from the other masters."""
    masters = start_server()
    holder = connect(masters.url, ttl=LARGE, restart_guard=LARGE)
    other = connect(masters.url, ttl=SMALL, restart_guard=SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RelockWarning)  # the client warns of the larger guard
        if comes == "before the others":
            wait_for_votes(other, masters, name)
        wait_for_votes(holder, masters, name)
        if comes != "after their hold":
            wait_for_votes(other, masters, name)
        lock = holder.lock(name, renew=False)
        assert lock.acquire(timeout=10)
        until(lambda: is_everywhere(masters, name), within=30, what="all have granted")
        if restarted == 1:
            masters.members[2].cli("DEL", key_of(name))  # as if the master had been away
        for member in masters.members[:restarted]:
            member.restart(empty=True)
        second = False
        while lock.owned() and not second:
            second = takes(other, name) and lock.owned()
            pause()
        assert not second, f"a second holder, while the first is sure for {lock.remaining():.1f} s more"


# One database of a server ---------------------------------------------------------------------------------------------


GUARDED = {"ttl": LONG, "restart_guard": LONG, "node_timeout": 5.0}


def give_vote(server: Server, database: int, connect: Connect) -> Client:
    """Return a client of this database with a guard of `LONG` that is over, as after `LONG` seconds of use."""
    client = connect(f"redis://127.0.0.1:{server.port}/{database}", **GUARDED)
    with pytest.raises(QuorumError, match="may have forgotten leases"):
        client.lock("warm-up").acquire(timeout=0)
    with server.client(db=database) as plain:
        plain.hset("lock:master", "no_vote_until_us", 0)
    return client


@pytest.mark.parametrize("how", [("FLUSHDB",), ("SWAPDB", 0, 9)], ids=["FLUSHDB", "SWAPDB with an empty database"])
def test_a_database_that_is_empty_begins_the_guard(
    own_server: Server, connect: Connect, name: str, how: tuple[object, ...]
) -> None:
    assert give_vote(own_server, 0, connect).lock(name, renew=False).acquire(timeout=0)
    own_server.cli(*how)
    newcomer = connect(own_server.url, **GUARDED)
    with pytest.raises(QuorumError, match="may have forgotten leases"):
        newcomer.lock(name).acquire(timeout=0)


def test_a_database_that_is_swapped_for_one_with_a_marker_begins_no_guard(
    own_server: Server, connect: Connect, name: str
) -> None:
    """The marker names this server in either database, so two owners have the lock: the page says so."""
    holder = give_vote(own_server, 0, connect).lock(name, renew=False)
    give_vote(own_server, 1, connect)
    assert holder.acquire(timeout=0)
    own_server.cli("SWAPDB", 0, 1)
    newcomer = connect(own_server.url, **GUARDED)
    assert newcomer.lock(name).acquire(timeout=0)
    assert holder.owned()
