"""Replies that are lost, requests that come late: neither harms a hold, and neither leaves an orphan."""

import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.masters import Deployment, ProxyBefore
from support.proxy import calls_script
from support.until import until

from relock import AcquireTimeoutError, Client, QuorumError, ReleaseUnconfirmed
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.pool import Pool

pytestmark = pytest.mark.every_quorum

TTL = 9.0  # seconds: long after all that is to be made good
PATIENT = {"ttl": TTL, "node_timeout": 0.6}


@pytest.fixture
def flaky(proxy: ProxyBefore, connect: Callable[..., Client]) -> Client:
    """A client behind the proxy."""
    client = connect(proxy.url, **PATIENT)

    def is_ready(pool: Pool) -> bool:
        """Return whether a call would be sent at once: on a connection that owes a reply for long, it is not."""
        return bool(pool.idle_connections) and not any(connection.in_flight for connection in pool._idle)

    def is_warm() -> bool:
        with client.lock("warm-up"), client.lock("warm-up"):
            answered = all(master.version and master.down is None for master in client.statistics().masters)
            return answered and all(map(is_ready, client._session.pools))

    until(is_warm, within=30, what="all masters are connected")
    return client


def open_two_each(client: Client) -> None:
    """Open two connections to each master: an owner's renewal asks again where connections are being opened."""
    for master in client._session.masters:
        pool = master.pool
        for connection in [pool.open(), pool.open()]:
            pool.give_back(connection, client._session.clock())
        assert pool.idle_connections == 2


def holds(server: Deployment, name: str) -> list[bytes]:
    found: Any = server.client().hvals(f"lock:{{{name}}}")
    return list(found)


def leases(server: Deployment, name: str) -> list[int]:
    """Return the remaining lease on each master, in ms."""
    return [int(one.cli("PTTL", f"lock:{{{name}}}")) for one in server.members]


def nothing_left(server: Deployment, name: str, within: float = 0.8 * TTL) -> bool:
    """Wait until no master has anything left, which is before a lease would end; true then.

    The outcome of a release that a busy master did not answer in time is unknown: it is carried out, or repeated.
    """
    keys = [f"lock:{{{name}}}{part}" for part in ("", ":queue", ":waiters")]
    until(
        lambda: not any(one.cli("EXISTS", *keys) for one in server.members),
        within=within,
        what="nothing left anywhere",
    )
    return True


@pytest.mark.parametrize("close", [False, True], ids=["silence", "broken connection"])
def test_a_swallowed_grant_is_found_again_by_a_blocking_acquire(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str, close: bool
) -> None:
    fault = faulty.swallow_reply(calls_script("acquire"), close=close)
    lock = flaky.lock(name)
    assert lock.acquire(timeout=20)
    until(fault.struck.is_set, within=20, what="the reply is swallowed")
    assert holds(server, name) == [b"1"]
    lock.release()
    assert nothing_left(server, name)


@pytest.mark.reach("majority", "all")
def test_a_swallowed_grant_of_a_single_try_is_undone(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    fault = faulty.swallow_reply(calls_script("acquire"))
    with pytest.raises(QuorumError):
        flaky.lock(name).acquire(blocking=False)
    until(fault.done.is_set, within=20, what="the reply is swallowed")
    assert nothing_left(server, name), "the grant whose reply was lost is undone"


def test_a_swallowed_enqueue_leaves_one_place(
    flaky: Client, server: Deployment, faulty: ProxyBefore, connect: Callable[..., Client], name: str
) -> None:
    holder = connect(server.url).lock(name)
    holder.acquire()
    faulty.swallow_reply(calls_script("enqueue"))
    taken: list[bool] = []

    def take() -> None:
        lock = flaky.lock(name)
        taken.append(lock.acquire(timeout=20))
        lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    until(lambda: server.client().zcard(f"lock:{{{name}}}:queue") == 1, within=20, what="the waiter queues")
    holder.release()
    thread.join()
    assert taken == [True]
    assert nothing_left(server, name)


def test_a_swallowed_nested_acquire_and_release_leave_the_right_count(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    lock = flaky.lock(name)
    lock.acquire()
    faulty.swallow_reply(calls_script("count"))
    assert lock.acquire()
    assert lock.hold_count == 2
    until(lambda: holds(server, name) == [b"2"], within=20, what="the count is right there too")
    faulty.swallow_reply(calls_script("count"))
    lock.release()
    assert lock.hold_count == 1
    until(lambda: holds(server, name) == [b"1"], within=20, what="the count is right there too")
    lock.release()
    assert nothing_left(server, name)


def test_a_count_that_never_arrived_converges(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    lock = flaky.lock(name)
    lock.acquire()
    fault = faulty.lose_request(calls_script("count"))
    assert lock.acquire()
    until(fault.struck.is_set, within=20, what="the count is lost")
    until(lambda: holds(server, name) == [b"2"], within=20, what="the janitor writes the count")
    lock.release()
    lock.release()
    assert nothing_left(server, name)


@pytest.mark.reach("majority", "all")
def test_a_swallowed_release_is_no_error_and_is_made_good(
    server: Deployment, proxy: ProxyBefore, faulty: ProxyBefore, name: str, connect: Callable[..., Client]
) -> None:
    events: list[Any] = []
    client = connect(proxy.url, **PATIENT, on_event=events.append)
    lock = client.lock(name)
    lock.acquire()
    faulty.swallow_reply(calls_script("release"))
    lock.release()
    assert not lock.owned()
    assert nothing_left(server, name)
    until(lambda: any(isinstance(e, ReleaseUnconfirmed) for e in events), within=20, what="an event says so")
    assert client.statistics().losses == 0


def test_a_release_that_never_arrived_is_repeated(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    lock = flaky.lock(name)
    lock.acquire()
    faulty.lose_request(calls_script("release"))
    lock.release()
    assert nothing_left(server, name), "the janitor repeats the release before the lease ends"


def test_a_swallowed_renewal_is_made_good(
    proxy: ProxyBefore, faulty: ProxyBefore, server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    client = connect(proxy.url, **PATIENT)
    with client.lock(name) as lock:
        fault = faulty.swallow_reply(calls_script("extend"))
        until(fault.done.is_set, within=20, what="the reply is swallowed")
        until(lambda: client.statistics().renewals >= 2, within=20, what="renewals go on")
        assert lock.owned()
        assert holds(server, name) == [b"1"]


@pytest.mark.reach("majority", "all")
def test_a_grant_that_comes_late_creates_nothing(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    fault = faulty.hold_request(calls_script("acquire"))
    lock = flaky.lock(name)
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)
    with flaky.lock(name, timeout=20):  # the next acquire of the same thread
        assert holds(server, name) == [b"1"]
        fault.release()
        until(fault.done.is_set, within=20, what="the late script runs")
        assert holds(server, name) == [b"1"], "the late acquire harms no later hold"
    assert nothing_left(server, name), "the late acquire leaves no orphan"


@pytest.mark.reach("majority", "all")
def test_an_enqueue_that_comes_late_queues_nobody(
    flaky: Client, server: Deployment, faulty: ProxyBefore, connect: Callable[..., Client], name: str
) -> None:
    holder = connect(server.url).lock(name)
    holder.acquire()
    faults: list[Any] = []

    def meets_silence() -> bool:
        """Return whether the last sign of the masters was silence: on a busy machine the timeout may end before."""
        faults.append(faulty.hold_request(calls_script("enqueue")))
        try:
            assert not flaky.lock(name).acquire(timeout=0.3)
        except QuorumError:
            return bool(faults[-1].struck.is_set())
        return False

    until(meets_silence, within=60, what="the call has asked for a place, in vain")
    for fault in faults:
        fault.release()
    held = [fault for fault in faults if fault.struck.is_set()]
    until(lambda: all(fault.done.is_set() for fault in held), within=20, what="the late scripts run")
    until(lambda: server.client().zcard(f"lock:{{{name}}}:queue") == 0, within=20, what="no waiter is queued")
    holder.release()
    with flaky.lock(name, timeout=20):
        pass
    assert nothing_left(server, name)


def test_a_release_that_comes_late_harms_no_later_hold(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    lock = flaky.lock(name)
    lock.acquire()
    fault = faulty.hold_request(calls_script("release"))
    lock.release()
    assert lock.acquire(timeout=20), "the janitor has repeated the release"
    fault.release()
    until(fault.done.is_set, within=20, what="the late script runs")
    assert holds(server, name) == [b"1"]
    lock.release()
    assert nothing_left(server, name)


@pytest.mark.reach("majority", "all")
def test_an_undo_that_comes_late_harms_no_later_hold(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    faulty.swallow_reply(calls_script("acquire"))
    fault = faulty.hold_request(calls_script("release", "give_back"))
    lock = flaky.lock(name)
    with pytest.raises(QuorumError):
        lock.acquire(blocking=False)
    assert lock.acquire(timeout=20)
    until(fault.struck.is_set, within=20, what="the undo is held back")
    fault.release()
    until(fault.done.is_set, within=20, what="the late undo runs")
    assert holds(server, name) == [b"1"]
    lock.release()
    assert nothing_left(server, name)


def test_a_renewal_that_comes_late_harms_no_later_hold(
    proxy: ProxyBefore, faulty: ProxyBefore, server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    client = connect(proxy.url, **PATIENT)
    lock = client.lock(name)
    lock.acquire()
    fault = faulty.hold_request(calls_script("extend"))
    until(fault.struck.is_set, within=20, what="a renewal is held back")
    lock.release()
    assert nothing_left(server, name)
    other = connect(server.url, ttl=30.0).lock(name, renew=False)
    assert other.acquire(timeout=20)
    before = leases(server, name)
    fault.release()
    until(fault.done.is_set, within=20, what="the late renewal runs")
    assert holds(server, name) == [b"1"]
    assert all(now <= then for now, then in zip(leases(server, name), before, strict=True) if then > 0)
    other.release()
    assert nothing_left(server, name)


def test_a_count_that_comes_late_writes_nothing(
    flaky: Client, server: Deployment, faulty: ProxyBefore, name: str
) -> None:
    lock = flaky.lock(name)
    lock.acquire()
    fault = faulty.hold_request(calls_script("count"))
    assert lock.acquire()
    lock.release()
    until(lambda: holds(server, name) == [b"1"], within=20, what="the count converges")
    fault.release()
    until(fault.done.is_set, within=20, what="the late count runs")
    assert holds(server, name) == [b"1"]
    lock.release()
    assert nothing_left(server, name)


@pytest.mark.every_server
def test_script_flush_goes_unnoticed(client: Client, server: Deployment, name: str) -> None:
    stop = threading.Event()

    def flush() -> None:
        redis = server.client()
        while not stop.is_set():
            redis.execute_command("SCRIPT FLUSH")  # type: ignore[no-untyped-call]

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for _ in range(200):
            with client.lock(name), client.lock(name) as lock:
                lock.extend()
    finally:
        stop.set()
        thread.join()
    assert nothing_left(server, name)


@pytest.mark.every_server
def test_a_master_that_is_out_of_memory_refuses_to_grant_and_lets_go(
    client: Client, server: Deployment, name: str
) -> None:
    lock = client.lock(name)
    lock.acquire()
    lock.acquire()
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(QuorumError, match="out of memory"):
            client.lock(f"{name}-other").acquire(blocking=False)
        lock.release()
        lock.extend()
        lock.release()
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")
    assert nothing_left(server, name)


@pytest.mark.parametrize("kind", ["string", "list", "set"])
def test_a_key_of_another_type_reads_as_held_by_somebody_else(
    client: Client, server: Deployment, name: str, kind: str
) -> None:
    key = f"lock:{{{name}}}"
    redis = server.client()
    put: Any = {"string": redis.set, "list": redis.rpush, "set": redis.sadd}[kind]
    put(key, "x")
    lock = client.lock(name)
    assert lock.acquire(blocking=False) is False
    assert lock.acquire(timeout=0.05) is False
    assert lock.locked()
    assert lock.info().owner is None
    assert redis.exists(key)


def test_a_lock_of_set_nx_px_respects_ours(client: Client, server: Deployment, name: str) -> None:
    with client.lock(name):
        assert server.client().set(f"lock:{{{name}}}", "x", nx=True, px=1000) is None


@pytest.mark.reach("majority", "all")
def test_a_black_hole_ends_a_try_after_the_node_timeout(
    flaky: Client, faulty: ProxyBefore, server: Deployment, name: str
) -> None:
    faulty.pause()
    begin = time.monotonic()
    with pytest.raises(QuorumError):
        flaky.lock(name).acquire(blocking=False)
    faulty.resume()
    assert time.monotonic() - begin >= 0.5
    with flaky.lock(name, timeout=20):
        pass
    assert nothing_left(server, name), "nothing is left of the try"


def kill_connections(client: Client, server: Deployment) -> None:
    """Let the servers close a client's connections, and wait until the client can see that."""
    idle = [(master.pool, one) for master in client._session.masters for one in list(master.pool._idle)]
    server.cli("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: all(has_ended(*one) for one in idle), within=20, what="all have ended")


def has_ended(pool: Pool, connection: Connection) -> bool:
    """Return whether the end of the server's side has come, or a thread of relock has closed ours already.

    Then another connection may have the same file descriptor.
    """
    try:
        return connection not in pool._connections or bool(select.select([connection.channel.fileno], [], [], 0.0)[0])
    except OSError:
        return True


def test_a_connection_that_the_server_closed_while_it_was_idle_is_replaced_unnoticed(
    client: Client, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relock._runtime.masters.pool.FRESH_SECONDS", 0.0)
    with client.lock(name):
        pass
    for _ in range(3):
        kill_connections(client, server)
        lock = client.lock(name)
        assert lock.acquire(blocking=False)
        kill_connections(client, server)
        lock.release()
        assert nothing_left(server, name, within=20)  # a lease is 30 s here, and a node timeout 5 s


def test_gates_of_owners_do_not_pile_up(client: Client, name: str) -> None:
    for number in range(50):
        with client.lock(name, owner=f"job-{number}"):
            assert not client.lock(name, owner=f"other-{number}").acquire(blocking=False)
    assert client._session.gates._gates == {}


@pytest.mark.reach("majority", "all")
def test_a_renewal_under_way_counts_only_for_the_lease_that_it_asked_for(
    proxy: ProxyBefore, faulty: ProxyBefore, server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    """The owner asks for a longer lease while the watchdog's renewal for the shorter one is on its way."""
    client = connect(proxy.url, ttl=9.0, node_timeout=3.0)
    open_two_each(client)
    lock = client.lock(name)
    lock.acquire()
    fault = faulty.hold_request(calls_script("extend"))
    until(fault.struck.is_set, within=20, what="a renewal is under way")
    lost = faulty.lose_request(calls_script("extend"))
    with pytest.raises(QuorumError):
        lock.extend(60)
    until(lost.struck.is_set, within=20, what="no master of those has got the longer lease")
    fault.release()
    until(fault.done.is_set, within=20, what="the renewal is answered")
    lease_before = server.client().pttl(f"lock:{{{name}}}") / 1000
    remaining, looked_at = lock.remaining(), time.monotonic()
    # A renewal may come between the two looks at the masters: then the later one has the longer lease.
    lease_after = server.client().pttl(f"lock:{{{name}}}") / 1000 + time.monotonic() - looked_at
    assert remaining <= max(0.0, lease_before + 0.001, lease_after + 0.001)


def test_levels_are_given_back_although_the_master_has_become_a_replica(
    own_server: Deployment, server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    client = connect(own_server.url)
    lock = client.lock(name)
    for _ in range(3):
        lock.acquire()
    own_server.cli("REPLICAOF", "127.0.0.1", str(server.members[0].port))
    own_server.cli("CLIENT", "KILL", "TYPE", "normal")
    for left in (2, 1, 0):
        lock.release()
        assert lock.hold_count == left
    client.close()


def test_a_foreign_lock_with_an_endless_lease_is_waited_for(client: Client, server: Deployment, name: str) -> None:
    server.cli("SET", f"lock:{{{name}}}", "x", "PX", 9_000_000_000_000_000)
    assert client.lock(name).acquire(timeout=0.1) is False


@pytest.mark.parametrize("lease", [(), ("PX", 60_000)], ids=["without end", "a minute"])
def test_a_timeout_says_that_a_key_is_no_hold(
    client: Client, server: Deployment, name: str, lease: tuple[object, ...]
) -> None:
    server.cli("SET", f"lock:{{{name}}}", "x", *lease)
    with (
        pytest.raises(AcquireTimeoutError, match=r"another program had its key.* 0 waited ahead") as caught,
        client.lock(name, timeout=0.1),
    ):
        pytest.fail("the body ran without the lock")
    assert caught.value.holder is None


def test_a_timeout_says_that_it_was_another_waiters_turn(client: Client, server: Deployment, name: str) -> None:
    """The waiter listens and does not react; its deadline is far, so no heartbeat passes it over."""
    key, they = f"lock:{{{name}}}", [member.client() for member in server.members]
    subscribers: list[Any] = [one.pubsub() for one in they]  # type: ignore[no-untyped-call]
    for member, subscriber in zip(server.members, subscribers, strict=True):
        subscriber.subscribe("lock:client:they")
        assert subscriber.get_message(timeout=20)
        member.cli("ZADD", f"{key}:queue", 1, "they:1")
        member.cli("ZADD", f"{key}:waiters", 2**52, "they:1")
    with (
        pytest.raises(AcquireTimeoutError, match=r"it was the turn of others, and 1 waited ahead") as caught,
        client.lock(name, timeout=0.1),
    ):
        pytest.fail("the body ran without the lock")
    assert (caught.value.holder, caught.value.ahead) == (None, 1)
    for one in (*subscribers, *they):
        one.close()
