"""The connections of a client as its server lists them: how many, for how long, and under which name."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from support.masters import Deployment
from support.servers import Server
from support.until import until

from relock import Client, QuorumError
from relock._keys import lock_keys
from relock._runtime.masters import pool
from relock._runtime.masters.connections import Connection

BURST = 64
SOON = 30.0  # seconds after which a wait has failed
LONG = 600.0  # seconds: a lease that needs no renewal during a test
TTL = 9.0  # a machine that is busy elsewhere for three seconds loses no lock here


def named(member: Server, client: Client) -> int:
    """Return the number of connections that a client has to a server, counted by their name."""
    with member.client() as plain:
        return [one["name"] for one in plain.client_list()].count(f"relock:{client._session.client_id}")


def has_one(member: Server, client: Client) -> bool:
    return named(member, client) == 1


@contextmanager
def calls_under_way(client: Client, count: int) -> Iterator[None]:
    """Let so many calls to each master have a connection at the same time."""
    taken: list[Connection] = []
    for master in client._session.masters:
        for _ in range(count):
            connection = master.pool.check_out(client._session.clock()) or master.pool.open_for_call()
            assert connection is not None
            taken.append(connection)
    yield
    while taken:
        connection = taken.pop()
        connection.pool.give_back(connection, client._session.clock())


# Connections that no call needs ---------------------------------------------------------------------------------------


@pytest.mark.every_quorum
def test_what_a_burst_has_opened_is_closed_though_nobody_calls_any_more(
    server: Deployment, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "UNUSED_SECONDS", 1.0)
    client = connect(server.url, ttl=LONG, node_timeout=5.0)
    lock = client.lock(name)
    lock.acquire()  # starts the watchdog's thread
    with calls_under_way(client, BURST):
        assert [named(member, client) for member in server.members] == [BURST] * len(server.members)
    for member in server.members:
        until(partial(has_one, member, client), within=SOON, what="the others are closed")
    for state in client.statistics().masters:
        assert (state.connections, state.idle_connections) == (1, 1)
    lock.release()


def test_a_client_without_threads_closes_them_with_its_next_call(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    client = connect(server.url)
    (master,) = client._session.masters
    with calls_under_way(client, BURST):
        pass
    assert named(server, client) == BURST
    for connection in master.pool._idle:  # as if half a minute had gone by
        connection.idle_since -= pool.UNUSED_SECONDS
    master.pool.sweep_at -= pool.UNUSED_SECONDS
    client.info(name)
    until(lambda: named(server, client) == 1, within=SOON, what="the server has seen the ends of the others")
    assert not client._session.watchdog.running
    assert not client._session.janitor.running


# How many there may be ------------------------------------------------------------------------------------------------


@pytest.mark.every_quorum
def test_many_threads_share_as_many_connections_as_there_may_be(
    server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    """Each call needs all masters at once: one that had a connection and waited for the next would block all others."""
    client = connect(server.url, max_connections=1, node_timeout=10.0, ttl=60.0)
    most = [0] * len(server.members)
    is_over = threading.Event()

    def use(number: int) -> None:
        for turn in range(5):
            with client.lock(f"{name}-{number}-{turn}", timeout=60.0):
                pass

    def look() -> None:
        while not is_over.wait(0.005):
            for i, member in enumerate(server.members):
                most[i] = max(most[i], named(member, client))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with ThreadPoolExecutor(24) as pool:
            list(pool.map(use, range(24)))
    finally:
        is_over.set()
        watcher.join()
    assert client.statistics().grants == 24 * 5
    # Beside the connection for calls there are the watchdog's and the janitor's; and a busy server may list a closed
    # one for a moment. Without the bound there would be 24.
    assert all(1 <= count <= 4 for count in most), most
    assert all(len(master.pool._connections) <= 1 for master in client._session.masters)


def test_calls_beyond_the_bound_wait_and_take_no_more(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    client = connect(server.url, max_connections=3, node_timeout=SOON, ttl=3 * SOON)
    with calls_under_way(client, 3), ThreadPoolExecutor(10) as pool:
        looks = [pool.submit(client.info, name) for _ in range(10)]
        until(lambda: len(client._session.masters[0].pool.line.waiting) == 10, within=SOON, what="all of them wait")
        assert named(server, client) == 3
        assert not any(look.done() for look in looks)
        for connection in list(client._session.masters[0].pool._connections):
            connection.close()  # the calls then give closed ones back, and there is room for as many
        assert [look.result(SOON).owner for look in looks] == [None] * 10
        assert named(server, client) <= 3


def test_a_call_that_finds_none_free_says_so_within_its_time(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    client = connect(server.url, max_connections=1, node_timeout=0.2)
    with calls_under_way(client, 1):
        began = time.monotonic()
        with pytest.raises(QuorumError, match="max_connections=1"):
            client.lock(name).acquire(timeout=0.5)
        with pytest.raises(QuorumError, match="max_connections=1"):
            client.info(name)
        assert time.monotonic() - began < SOON
    assert client.lock(name).acquire(timeout=SOON)


def test_a_hold_is_renewed_and_given_back_while_calls_have_all_connections(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    """Releases wait for their time like any call; then the janitor sends them on a connection of its own."""
    client = connect(server.url, max_connections=1, ttl=TTL, node_timeout=0.5)
    lock = client.lock(name)
    lock.acquire()
    with calls_under_way(client, 1):
        before = client.statistics().renewals
        until(lambda: client.statistics().renewals >= before + 2, within=SOON, what="two renewals")
        assert lock.owned()
        lock.release()
        with server.client() as plain:
            until(lambda: not plain.exists(f"lock:{{{name}}}"), within=TTL / 2, what="the lock is released")


def test_what_is_to_be_undone_is_undone_while_calls_have_all_connections(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    client = connect(server.url, max_connections=1, ttl=LONG, node_timeout=5.0)
    with calls_under_way(client, 1), server.client() as plain:
        plain.hset(f"lock:{{{name}}}", "me:left~1", 1)
        client._session.undo(lock_keys("lock", name), b"me:left~1", 0, LONG, client._session.clock())
        until(lambda: not plain.exists(f"lock:{{{name}}}"), within=SOON, what="the grant is undone")


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.every_server
def test_connections_are_named_after_their_client(server: Server, connect: Callable[..., Client], name: str) -> None:
    client, other = connect(server.url, client_name="a client: no. 7\n"), connect(server.url, client_name="other")
    waiting = threading.Thread(target=lambda: client.lock(name).acquire(timeout=SOON))
    held = other.lock(name)
    held.acquire()
    waiting.start()
    until(lambda: other.info(name).queue, within=SOON, what="the caller is queued")
    with server.client() as plain:
        found = [one for one in plain.client_list() if one["name"] == f"relock:{client._session.client_id}"]
    assert client._session.client_id.startswith("a_client__no._7_-")
    assert {one["cmd"].partition("|")[0] for one in found} >= {"subscribe"}, "the subscription has the name, too"
    assert len(found) >= 2
    held.release()
    waiting.join()


def test_a_name_that_the_user_gave_is_kept(server: Server, connect: Callable[..., Client], name: str) -> None:
    with server.client() as plain, server.client(client_name="by-client") as given:
        others = {one["id"] for one in plain.client_list()}
        connect(f"{server.url}?client_name=by-url").info(name)
        connect(given).info(name)
        listed = [one["name"] for one in plain.client_list() if one["id"] not in others]
    assert "by-url" in listed
    assert "by-client" in listed
    assert not [one for one in listed if one.startswith("relock:")]


@pytest.mark.every_server
def test_a_user_without_the_right_to_name_connections_works(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "nameless", "on", ">secret", "~*", "&*", "+@all", "-client")
        try:
            url = f"redis://nameless:secret@127.0.0.1:{server.port}/0"
            client, waiter = connect(url), connect(url)
            lock = client.lock(name)
            lock.acquire()
            waiting = ThreadPoolExecutor(1).submit(waiter.lock(name).acquire, timeout=SOON)
            until(lambda: client.info(name).queue, within=SOON, what="the caller is queued")
            lock.release()
            assert waiting.result(SOON)
            assert list(client.names(name)) == [name]
            assert named(server, client) == 0
        finally:
            client.close()
            waiter.close()
            admin.execute_command("ACL", "DELUSER", "nameless")
