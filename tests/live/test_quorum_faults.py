"""Masters that are slow, silent, dead or wrong, among several: the costs, and that nothing is left."""

import contextlib
import functools
import itertools
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from attrs import define, field
from support.ends import leave_to_leases
from support.heartbeats import without_any_heartbeat
from support.masters import Masters, Proxies
from support.proxy import Fault, Match, Proxy, Words, calls_script
from support.quorum import is_everywhere
from support.servers import Server
from support.slow import Delay, Slow, at_once
from support.until import until
from support.urls import Urls

from relock import Client, Event, LockLostError, MasterDown, QuorumError
from relock._core.asking import Round
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.master import Master
from relock._runtime.platform import CLOCK
from relock.lock import Lock

Connect = Callable[..., Client]
Start = Callable[..., Masters]

TTL = 6.0  # of masters that a test starts, and their guard
SLACK = 8.0  # seconds, for a busy machine
HUGE = 20.0  # a node timeout that no call may wait for
UNHURRIED = {"ttl": 3 * HUGE, "node_timeout": HUGE}


@pytest.fixture
def masters_count() -> int:
    return 5


@pytest.fixture
def masters(start_server: Start) -> Masters:
    """Masters of the test's own, which relock has never seen."""
    return start_server()


@pytest.fixture
def slow(server: Masters) -> Iterator[Callable[..., list[Slow]]]:
    """Make proxies that delay, one in front of each master of `server`."""
    made: list[Slow] = []

    def start(requests: Delay = at_once, replies: Delay = at_once) -> list[Slow]:
        these = [Slow(member.port, requests=requests, replies=replies) for member in server.members]
        made.extend(these)
        return these

    yield start
    for one in made:
        one.close()


@pytest.fixture
def eyes(server: Masters) -> Iterator[list[redis.Redis]]:
    """A connection to each master of `server`, to look behind relock's back."""
    clients = [member.client() for member in server.members]
    yield clients
    for one in clients:
        one.close()


def through(proxies: Sequence[Slow | Proxy], server: Masters) -> Urls:
    """Return the masters behind these proxies."""
    return Urls([proxy.url for proxy in proxies], server.guard)


def key_of(name: str) -> str:
    return f"lock:{{{name}}}"


def holders(server: Masters, name: str) -> list[str]:
    """Return each master's entry: nothing, ``hold``, or another type."""
    words = {"none": "nothing", "hash": "hold"}
    kinds = [member.cli("TYPE", key_of(name)).decode() for member in server.members]
    return [words.get(kind, kind) for kind in kinds]


def state(server: Masters, name: str) -> list[Any]:
    """Return the hold on each master, with all parts that a late script could change."""
    return [member.cli("HGETALL", key_of(name)) for member in server.members]


def is_empty(server: Masters, name: str) -> bool:
    """Return whether no master has a hold or a waiter left."""
    keys = [key_of(name) + part for part in ("", ":queue", ":waiters")]
    return not any(member.cli("EXISTS", *keys) for member in server.members)


def are_queued(members: Sequence[Server], name: str, count: int) -> bool:
    """Return whether so many wait, on each of these masters."""
    return all(member.cli("ZCARD", f"{key_of(name)}:queue") == count for member in members)


def wait_for_votes(client: Client, masters: Masters, name: str) -> None:
    """Wait until all masters grant."""

    def all_grant() -> bool:
        with client.lock(f"{name}-votes", timeout=30):
            return holders(masters, f"{name}-votes") == ["hold"] * len(masters.members)

    until(all_grant, within=30, what="all masters have their votes")


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def pair(lock: Lock) -> float:
    """Return the seconds of an acquire and a release."""

    def both() -> None:
        assert lock.acquire(timeout=20)
        lock.release()

    return timed(both)


def warm(client: Client, name: str) -> None:
    """Wait until a connection to every master is open, idle, and has nothing in flight."""

    def all_are_up() -> bool:
        pair(client.lock(f"{name}-warm"))
        time.sleep(0.03)
        for master in client._session.masters:
            master.pool.drain()
        return all(master.pool._idle and not master.pool._idle[-1].in_flight for master in client._session.masters)

    until(all_are_up, within=20, what="all masters are connected")


# Validity ------------------------------------------------------------------------------------------------------------


def test_what_remains_is_never_more_than_a_quorum_keeps(
    *, slow: Callable[..., list[Slow]], server: Masters, eyes: list[redis.Redis], connect: Connect, name: str, seed: int
) -> None:
    """Masters that answer late do not lengthen `remaining()`, which ends before the lease on the q-th last of them."""
    dice = random.Random(seed)
    proxies = slow(requests=lambda: dice.uniform(0.0, 0.04), replies=lambda: dice.uniform(0.06, 0.12))
    client = connect(through(proxies, server), ttl=9.0, node_timeout=3.0)

    def check(lock: Lock) -> None:
        now = CLOCK()
        deadline = now + lock.remaining()
        leases = [one.pttl(key_of(lock.name)) for one in eyes]
        after = CLOCK()
        ends = sorted((after + (lease + 1) / 1000 for lease in leases if lease > 0), reverse=True)
        assert deadline > now
        assert deadline <= ends[server.quorum - 1]

    for number in range(5):
        lock = client.lock(f"{name}-{number}")
        assert lock.acquire(timeout=20)
        check(lock)
        lock.extend()
        check(lock)
        lock.extend(18.0)
        check(lock)
        lock.release()


def test_another_client_gets_the_lock_only_when_nothing_remains(
    slow: Callable[..., list[Slow]], server: Masters, connect: Connect, name: str, seed: int
) -> None:
    """A rival gets the lock at the moment that `remaining()` has named, or later."""
    dice = random.Random(seed)
    proxies = slow(requests=lambda: dice.uniform(0.0, 0.03), replies=lambda: dice.uniform(0.05, 0.15))
    patient = connect(through(proxies, server), ttl=1.5, node_timeout=0.5)
    rival = connect(server.url)
    got: dict[str, float] = {}

    def take(one: str) -> None:
        with rival.lock(one, timeout=20):
            got[one] = CLOCK()

    deadlines, threads = {}, []
    for number in range(6):
        lock = patient.lock(f"{name}-{number}", renew=False)
        assert lock.acquire(timeout=20)
        deadlines[lock.name] = CLOCK() + lock.remaining()
        threads.append(threading.Thread(target=take, args=(lock.name,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert all(got[one] >= deadline for one, deadline in deadlines.items()), (got, deadlines)


def test_partial_renewals_count_for_the_qth_last_lease(server: Masters, connect: Connect, name: str) -> None:
    """Two of five masters renew, then two others: D is the third last of the leases, not the last."""
    proxies = [Proxy(member.port) for member in server.members]
    try:
        lock = connect(through(proxies, server), ttl=60.0, node_timeout=1.5).lock(name, renew=False)

        def all_have_granted() -> bool:
            """Take the lock anew, because a slow master is never given it later; return whether all have it."""
            if lock.owned():
                lock.release()
            assert lock.acquire(timeout=20)
            return holders(server, name) == ["hold"] * 5

        until(all_have_granted, within=60, what="all have granted")
        hold = lock._hold()
        assert hold is not None
        for away, shorter in (((2, 3, 4), True), ((0, 1, 4), False)):
            apart, before = CLOCK(), hold.deadline
            until(lambda: CLOCK() > apart + 0.3, within=5, what="renewals are some time apart")  # noqa: B023
            for number in away:
                proxies[number].pause()
            with pytest.raises(QuorumError):
                lock.extend()
            after = hold.deadline
            for number in away:
                proxies[number].resume()
            if shorter:
                assert after == pytest.approx(before, abs=0.01), (
                    "of two new leases and three old ones, an old one counts"
                )
            else:
                assert after > before + 0.1, "of four new leases and an old one, a new one counts"
            masters = lock._client._session.masters
            until(lambda: not any(one.facts.down for one in masters), within=20, what="all are back")  # noqa: B023
        leases = sorted(int(member.cli("PTTL", key_of(name))) for member in server.members)
        assert lock.remaining() <= leases[2] / 1000 + 0.01
        lock.release()
    finally:
        for proxy in proxies:
            proxy.close()


# All masters at once -------------------------------------------------------------------------------------------------


def test_a_request_is_on_its_way_to_every_master_before_any_reply(
    proxy: Proxies, server: Masters, connect: Connect, name: str
) -> None:
    """All masters have got their request before any may answer."""
    client = connect(proxy.url, **UNHURRIED)
    warm(client, name)
    faults = [one.hold_request(calls_script("acquire")) for one in proxy.members]
    got: list[bool] = []
    lock = client.lock(name, owner="somebody")
    thread = threading.Thread(target=lambda: got.append(lock.acquire(timeout=20)))
    thread.start()
    until(lambda: all(fault.struck.is_set() for fault in faults), within=20, what="all five requests are sent")
    assert not got
    for fault in faults:
        fault.release()
    thread.join()
    assert got == [True]
    lock.release()


def test_five_slow_masters_cost_what_one_costs(
    slow: Callable[..., list[Slow]], server: Masters, connect: Connect, name: str
) -> None:
    """Five masters that take 60 ms each cost about as much as a single one that takes 60 ms, not five times that."""
    proxies = slow(replies=lambda: 0.06)
    five = connect(through(proxies, server), **UNHURRIED)
    one = connect(Urls([proxies[0].url], server.guard), **UNHURRIED)
    warm(five, name)
    pair(one.lock(f"{name}-one"))
    times = [(pair(five.lock(name)), pair(one.lock(f"{name}-one"))) for _ in range(9)]
    all_five, single = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"five slow masters: {all_five / single:.2f} times one slow master")
    assert single >= 2 * 0.06, "both calls have waited for their replies"
    assert all_five <= 3.0 * single


def test_a_grant_waits_for_no_minority(proxy: Proxies, server: Masters, connect: Connect, name: str) -> None:
    """An attempt ends when a quorum has granted, even the first one after two of five masters fell silent."""
    client = connect(proxy.url, **UNHURRIED)
    warm(client, name)
    faults = [one.hold_request(calls_script("acquire")) for one in proxy.members[:2]]
    lock = client.lock(name)
    assert timed(lock.acquire) < HUGE / 2
    assert timed(lock.release) < HUGE / 2
    for fault in faults:
        fault.release()
    until(lambda: is_empty(server, name), within=2 * HUGE, what="late grants are gone, too")


def test_a_refusal_waits_for_no_minority(proxy: Proxies, server: Masters, connect: Connect, name: str) -> None:
    """An attempt ends when no quorum can grant any more, even the first one after two of five fell silent."""
    client = connect(proxy.url, **UNHURRIED)
    warm(client, name)
    other = connect(server.url).lock(name)
    assert other.acquire(timeout=20)
    until(lambda: is_everywhere(server, name), within=30, what="all refuse")
    faults = [one.hold_request(calls_script("acquire")) for one in proxy.members[:2]]
    got: list[bool] = []
    assert timed(lambda: got.append(client.lock(name).acquire(blocking=False))) < HUGE / 2
    assert got == [False]
    for fault in faults:
        fault.release()
    other.release()
    until(lambda: is_empty(server, name), within=2 * HUGE, what="late grants are gone, too")


@pytest.mark.parametrize("masters_count", [9])
def test_a_minority_that_hangs_or_is_dead_costs_nothing(own_server: Masters, connect: Connect, name: str) -> None:
    """No acquire or release waits for two of five masters that are stopped or dead, from the second attempt on."""
    members = own_server.members
    hanging, dead = members[5:7], members[7:9]
    groups = {"healthy": members[:5], "hung": (*members[:3], *hanging), "dead": (*members[:3], *dead)}
    clients = {
        kind: connect(Urls([one.url for one in group], own_server.guard), node_timeout=1.0)
        for kind, group in groups.items()
    }
    locks = {kind: client.lock(f"{name}-{kind}") for kind, client in clients.items()}
    for client in clients.values():
        warm(client, name)
    for member in dead:
        member.kill()
    times: dict[str, list[float]] = {kind: [] for kind in groups}
    second: list[float] = []
    for _ in range(4):
        for member in hanging:
            member.stop()
        try:
            for lock in locks.values():
                pair(lock)
            second.append(pair(locks["hung"]))
            for _ in range(120):
                for kind, lock in locks.items():
                    times[kind].append(pair(lock))
        finally:
            for member in hanging:
                member.cont()
        warm(clients["hung"], name)
    medians = {kind: statistics.median(column) for kind, column in times.items()}
    ratios = {kind: value / medians["healthy"] for kind, value in medians.items()}
    print(f"medians (ms): { {kind: round(value * 1000, 3) for kind, value in medians.items()} }, ratios: {ratios}")
    print(f"second attempts while two hang (ms): {[round(one * 1000, 3) for one in second]}")
    usual = [medians["hung"], medians["dead"], statistics.median_low(second)]
    assert max(usual) <= 0.5, "half of the node timeout: no call waits for a master that hangs or is dead"


def test_late_replies_are_never_taken_for_others(
    *,
    slow: Callable[..., list[Slow]],
    server: Masters,
    eyes: list[redis.Redis],
    connect: Connect,
    name: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replies that come late, on connections that several threads use, are those of their own requests."""
    behind: list[Connection] = []  # those of requests that were sent behind others without a reply
    request = Connection.request

    def counted(connection: Connection, round_: Round) -> None:
        if connection.in_flight:
            behind.append(connection)
        request(connection, round_)

    monkeypatch.setattr(Connection, "request", counted)
    dice = random.Random(seed)
    proxies = slow(replies=lambda: dice.uniform(0.0, 0.01))
    for proxy in proxies[:2]:
        proxy.replies = lambda: dice.choice([0.0, 0.05, dice.uniform(0.0, 0.35)])
    client = connect(through(proxies, server), node_timeout=0.3)
    give_up_at = CLOCK() + 60.0

    def turns() -> Iterator[int]:
        """Yield as many turns as are needed: dice decide how often a connection is used that waits for a reply."""
        for turn in itertools.count():
            if turn >= 12 and (len(behind) > 20 or CLOCK() > give_up_at):
                return
            yield turn

    def counts(one: str) -> list[Any]:
        return [eye.hgetall(key_of(one)) for eye in eyes]

    def work(number: int) -> bool:
        last = dict[str, int]()  # of each lock: a token may be ahead of the clocks, by more at one time than at another
        mine: set[bytes] = set()  # this thread's waits: a slow master may have an earlier one's grant, or its place
        for turn in turns():
            one = f"{name}-{number}-{turn % 2}"
            lock = client.lock(one)
            assert lock.acquire(timeout=20)
            token, owner = lock.token, lock._hold().owner  # type: ignore[union-attr]
            assert token is not None
            assert token > last.get(one, 0)
            last[one] = token
            assert lock.acquire()
            assert lock.hold_count == 2
            # On a busy machine even a fast master may not answer in time; the count is then written again.
            until(lambda: counts(one).count({owner: b"2"}) >= server.quorum, within=20, what="a quorum has the count")  # noqa: B023
            written = counts(one)
            mine.add(owner.partition(b"~")[0])
            assert all(holder.partition(b"~")[0] in mine for hold in written for holder in hold), written
            assert token in [int(eye.get(f"{key_of(one)}:token") or 0) for eye in eyes]
            try:
                info = lock.info()
            except QuorumError:
                pass  # asked once, with a limit that a busy machine may miss: no answer, but no wrong one
            else:
                assert info.owner == owner.decode()
                assert {waiter.encode() for waiter in info.queue} <= mine
            lock.release()
            assert lock.hold_count == 1
            lock.release()
            assert not lock.owned()
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
    assert len(behind) > 20, "requests were sent behind others without a reply"
    assert client.statistics().losses == 0
    names = [f"{name}-{number}-{turn}" for number in range(6) for turn in range(2)]
    until(lambda: all(is_empty(server, one) for one in names), within=20, what="nothing is left")


@define
class Deaf:
    """A master that accepts connections, or does not even that, and never answers."""

    accepts: bool
    accepted: list[float] = field(factory=list)
    _filling: list[socket.socket] = field(factory=list)
    _socket: socket.socket = field(factory=socket.socket)

    def __attrs_post_init__(self) -> None:
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(16 if self.accepts else 0)
        if self.accepts:
            threading.Thread(target=self._accept, daemon=True).start()
            return
        for _ in range(3):  # fills the queue of connections that wait to be accepted
            self._filling.append(socket.socket())
            self._filling[-1].setblocking(False)
            self._filling[-1].connect_ex(self._socket.getsockname())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.accepted.append(time.monotonic())
            self._filling.append(client)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"

    def close(self) -> None:
        if self.accepts:
            self._socket.shutdown(socket.SHUT_RDWR)
        for one in (self._socket, *self._filling):
            one.close()


@pytest.fixture
def deaf() -> Iterator[Callable[[bool], Deaf]]:
    """Return a function that makes masters that never answer."""
    made: list[Deaf] = []

    def make(accepts: bool) -> Deaf:
        made.append(Deaf(accepts))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("masters_count", [2])
@pytest.mark.parametrize("accepts", [True, False], ids=["accepts", "does not accept"])
def test_connecting_is_never_on_the_way_while_a_quorum_is_connected(
    server: Masters, deaf: Callable[[bool], Deaf], connect: Connect, name: str, accepts: bool
) -> None:
    """Masters that can't be connected to delay no call, not even the first acquire."""
    longest = 7.0  # seconds; a close waits for the connection, so the node timeout is not longer than it must be
    client = connect(Urls([*server.url, deaf(accepts).url], server.guard), ttl=60.0, node_timeout=10.0)
    assert pair(client.lock(name)) < longest
    until_when = time.monotonic() + 1.0
    times = []
    while time.monotonic() < until_when:
        times.append(pair(client.lock(name)))
    assert max(times) < longest

    def work(number: int) -> float:
        return max(pair(client.lock(f"{name}-{number}")) for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(4))) < longest, "several threads that need connections are not delayed, either"


@pytest.mark.parametrize("masters_count", [2])
def test_a_silent_master_is_tried_with_growing_pauses(
    server: Masters, deaf: Callable[[bool], Deaf], connect: Connect, name: str
) -> None:
    """Hundreds of acquires connect to a master that does not answer only a few times, later and later."""
    silent = deaf(True)
    client = connect(Urls([*server.url, silent.url], server.guard), node_timeout=0.1)
    count, begin = 0, time.monotonic()
    gaps: list[float] = []
    while time.monotonic() < begin + 3.0 or (not have_grown(gaps) and time.monotonic() < begin + 60.0):
        pair(client.lock(name))
        count += 1
        gaps = [later - before for before, later in itertools.pairwise(silent.accepted)]
    print(f"{count} acquires, connected {len(silent.accepted)} times, with pauses {[round(gap, 2) for gap in gaps]}")
    assert have_grown(gaps)
    assert sum(at < begin + 3.0 for at in silent.accepted) <= 12


def have_grown(gaps: Sequence[float]) -> bool:
    """Return whether some pauses are longer than others; a busy machine lengthens all of them."""
    return len(gaps) >= 3 and max(gaps) > 2 * min(gaps)


@pytest.mark.parametrize("masters_count", [3])
def test_a_master_that_hung_is_in_use_again_within_two_seconds(masters: Masters, connect: Connect, name: str) -> None:
    """A master that was stopped for seconds gets holds again within 2 s of its recovery."""
    client = connect(masters.url, ttl=TTL)
    wait_for_votes(client, masters, name)
    hung = masters.members[1]
    lock = client.lock(name)

    def is_used() -> bool:
        with lock:
            return bool(hung.cli("EXISTS", key_of(name)))

    for seconds in (0.1, 1.5):
        hung.stop()
        until_when = time.monotonic() + seconds
        while time.monotonic() < until_when:
            pair(lock)
        hung.cont()
        waited = until(is_used, within=2.0 + SLACK, what="the master is in use again")
        print(f"in use again after {waited:.3f} s")


@pytest.mark.parametrize("masters_count", [3])
def test_a_try_fails_for_no_want_of_a_connection(own_server: Masters, connect: Connect, name: str) -> None:
    """Threads that try free locks all get them while a quorum answers, even when one master has just begun to hang.

    The exception is a try that finds that master among the two that are connected, while the third is being connected.
    Such a try fails after the node timeout, at most once for each connection that was open.
    """
    client = connect(own_server.url, **UNHURRIED)
    warm(client, name)
    failures: list[Exception] = []

    def work(number: int) -> None:
        for turn in range(15):
            lock = client.lock(f"{name}-{number}-{turn}")
            try:
                assert lock.acquire(blocking=False)
                lock.release()
            except (QuorumError, AssertionError) as error:
                failures.append(error)

    hanging = client._session.masters[2].pool
    connections = hanging.connections
    own_server.members[2].stop()
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    finally:
        own_server.members[2].cont()
    assert len(failures) <= connections, f"{len(failures)} of 90: {failures[0]}"


@pytest.mark.parametrize("masters_count", [3])
def test_a_connection_that_breaks_after_its_answer_costs_no_other_answer(
    slow: Callable[..., list[Slow]], server: Masters, connect: Connect, name: str
) -> None:
    """A master that grants and then goes away is one master less, and the other two are waited for."""
    proxies = slow()
    client = connect(through(proxies, server), **UNHURRIED)
    warm(client, name)
    proxies[1].replies, proxies[2].replies = lambda: 0.2, lambda: 0.4
    first = server.members[0]

    def break_it() -> None:
        until(lambda: first.cli("EXISTS", key_of(name)), within=20, what="the first master has granted")
        time.sleep(0.05)  # its reply is on the way, without delay
        first.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    thread = threading.Thread(target=break_it)
    thread.start()
    lock = client.lock(name)
    assert lock.acquire(blocking=False)
    thread.join()
    proxies[1].replies = proxies[2].replies = at_once
    lock.release()


# Minority and majority -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_everything_works_without_a_minority(masters: Masters, connect: Connect, name: str, fate: str) -> None:
    """Locks are taken, nested, renewed, handed over in order and given back with two of five masters gone."""
    client = connect(masters.url, ttl=TTL)
    others = [connect(masters.url, ttl=TTL) for _ in range(3)]
    wait_for_votes(client, masters, name)
    gone, alive = masters.members[:2], masters.members[2:]
    for member in gone:
        member.kill() if fate == "killed" else member.stop()
    try:
        _exercise(client, others, alive, name)
    finally:
        for member in gone if fate == "stopped" else ():
            member.cont()


def _exercise(client: Client, others: Sequence[Client], alive: Sequence[Server], name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire(timeout=20)
    with lock:
        assert lock.hold_count == 2
        counts = [[b"2"]] * 3
        until(
            lambda: [one.cli("HVALS", key_of(name)) for one in alive] == counts,
            within=20,
            what="the masters count the levels as well",
        )
    assert lock.hold_count == 1
    began = CLOCK()
    renewals = client.statistics().renewals
    until(lambda: CLOCK() - began > 1.5 * TTL, within=20, what="a lease and a half go by")
    assert lock.owned()
    assert client.statistics().renewals > renewals
    assert lock.extend() > TTL / 2

    served: list[tuple[int, float]] = []

    def take(number: int, other: Client) -> None:
        with other.lock(name, timeout=20):
            served.append((number, time.monotonic()))

    threads = []
    for number, other in enumerate(others):
        threads.append(threading.Thread(target=take, args=(number, other)))
        threads[-1].start()
        until(
            functools.partial(are_queued, alive, name, number + 1),
            within=20,
            what=f"waiter {number} is queued",
        )
    with without_any_heartbeat():
        released = time.monotonic()
        lock.release()
        for thread in threads:
            thread.join()
    assert [number for number, _ in served] == [0, 1, 2]
    print(f"handed over after {[round(at - released, 3) for _, at in served]} s")
    assert served[-1][1] - released < 2 * TTL, "no hand-off waited for the end of a lease"
    until(lambda: not client.lock(name).locked(), within=20, what="the lock is free")
    until(lambda: not any(one.cli("EXISTS", key_of(name)) for one in alive), within=20, what="nothing is left")


def test_without_a_majority_nothing_is_granted_and_the_error_says_why(
    masters: Masters, connect: Connect, name: str
) -> None:
    """Acquires with a timeout end in a QuorumError on time, with each failure, if three of five masters are dead."""
    client = connect(masters.url, ttl=TTL)
    wait_for_votes(client, masters, name)
    dead = masters.members[1:4]
    for member in dead:
        member.kill()
    for _ in range(2):
        begin = time.monotonic()
        with pytest.raises(QuorumError) as raised:
            client.lock(name).acquire(timeout=2)
        taken = time.monotonic() - begin
        print(f"QuorumError after {taken:.3f} s: {raised.value}")
        assert 2.0 <= taken <= 2.5 + SLACK
        failures = raised.value.failures
        for member in dead:
            why = failures[member.url]
            assert "refused" in why or "reset" in why or "closed" in why, why
        assert raised.value.needed == 3
    with pytest.raises(QuorumError):
        client.lock(name).acquire(blocking=False)
    alive = (masters.members[0], masters.members[4])
    until(lambda: not any(one.cli("EXISTS", key_of(name)) for one in alive), within=0.9 * TTL, what="nothing is left")


def test_a_majority_that_hangs_takes_nobody_else_down(own_server: Masters, connect: Connect, name: str) -> None:
    """Masters that answer do not count as down, nor are they connected to again and again, while three are silent."""
    down: dict[str, str] = {}

    def observe(event: Event) -> None:
        if isinstance(event, MasterDown):
            down[event.master] = event.why

    client = connect(own_server.url, node_timeout=5.0, on_event=observe)
    warm(client, name)
    for member in own_server.members[:3]:
        member.stop()
    with pytest.raises(QuorumError):
        client.lock(name).acquire(timeout=6.0)
    leave_to_leases(client._session)
    client.close()
    assert set(down) == {member.url for member in own_server.members[:3]}
    assert [why.count("in time") for why in down.values()] == [1, 1, 1], (
        "each silent master's event names the silence, once"
    )
    for member in own_server.members[:3]:
        member.cont()


def test_the_error_counts_the_masters_that_granted_as_answers(own_server: Masters, connect: Connect, name: str) -> None:
    """Masters that answered, though too few, are counted in `answered` and are not among the failures."""
    for member in own_server.members[:3]:
        member.kill()
    fresh = connect(own_server.url, **UNHURRIED)
    with pytest.raises(QuorumError) as raised:
        fresh.lock(name).acquire(blocking=False)
    assert raised.value.answered == 2
    assert set(raised.value.failures) == {member.url for member in own_server.members[:3]}


def test_a_hold_is_lost_when_no_quorum_renews_it(masters: Masters, connect: Connect, name: str) -> None:
    """Holds go on until D with three of five masters dead, and are then reported lost, once."""
    losses: list[tuple[Any, float]] = []
    client = connect(masters.url, ttl=TTL)
    wait_for_votes(client, masters, name)
    lock = client.lock(name, on_lost=lambda loss: losses.append((loss, CLOCK())))
    assert lock.acquire(timeout=20)
    for member in masters.members[:3]:
        member.kill()
    deadline = now = CLOCK()
    while (left := lock.remaining()) > 0:
        deadline = now + left  # not after the end, however late `left` was read
        assert not losses or losses[0][1] >= deadline - 0.001
        time.sleep(0.005)
        now = CLOCK()
    until(lambda: losses, within=20, what="the loss is reported")
    loss, at = losses[0]
    assert at >= deadline - 0.01
    assert (loss.lock, loss.hold_count) == (name, 1)
    assert lock.lost
    with pytest.raises(LockLostError):
        lock.release()
    assert len(losses) == 1
    assert client.statistics().losses == 1


def test_waiters_go_on_in_order_when_the_majority_is_back(masters: Masters, connect: Connect, name: str) -> None:
    """Waiters of three clients are served in their order once dead masters are back, empty, and have their votes."""
    client = connect(masters.url, ttl=TTL)
    others = [connect(masters.url, ttl=TTL) for _ in range(3)]
    wait_for_votes(client, masters, name)
    lock = client.lock(name)
    assert lock.acquire(timeout=20)
    served: list[int] = []
    together: list[int] = []

    def take(number: int, other: Client) -> None:
        one = other.lock(name)
        assert one.acquire(timeout=60)
        together.append(number)
        served.append(number)
        assert together == [number]
        together.remove(number)
        one.release()

    threads = []
    for number, other in enumerate(others):
        threads.append(threading.Thread(target=take, args=(number, other)))
        threads[-1].start()
        until(
            functools.partial(are_queued, masters.members, name, number + 1),
            within=20,
            what=f"waiter {number} is queued",
        )
    dead = masters.members[:3]
    for member in dead:
        member.kill()
    until(lambda: lock.lost or not lock.owned(), within=20, what="the hold is lost")
    assert not served
    for member in dead:
        member.restart()
    for thread in threads:
        thread.join(60)
    assert served == [0, 1, 2]


# Leftovers of a failed attempt ----------------------------------------------------------------------------------------

FATES = ("granted", "refused", "held", "cut", "swallowed", "error")
TRIAL_NODE_TIMEOUT = 0.2
TRIAL_TTL = 30.0


def of_lock(match: Match, name: str) -> Match:
    """Match the requests about one lock only."""
    key = key_of(name).encode()

    def matches(words: Words) -> bool:
        return match(words) and key in words

    return matches


@define
class Trial:
    """One try for one lock, with a fate for each master."""

    server: Masters = field(repr=False)
    proxies: Proxies = field(repr=False)
    name: str
    fates: tuple[str, ...]
    is_late: bool  # whether held requests and replies arrive after the not-after time, or as soon as the try has ended

    def run(self, connect: Connect) -> str | None:
        """Make the try; return what is wrong, or None if nothing is left and the outcome is right."""
        client = connect(self.proxies.url, ttl=TRIAL_TTL, node_timeout=TRIAL_NODE_TIMEOUT)
        try:
            return self._run(client)
        except Exception as error:
            return f"{self}: {error!r}"
        finally:
            client.close()

    def _run(self, client: Client) -> str | None:
        warm(client, self.name)
        asked = [self._count(proxy) for proxy in self.proxies.members]
        late = [fault for fault in map(self._prepare, self.proxies.members, self.server.members, self.fates) if fault]
        began = CLOCK()
        lock = client.lock(self.name)
        try:
            outcome = str(lock.acquire(blocking=False))
        except QuorumError:
            outcome = "QuorumError"
        if outcome == "True":
            lock.release()
        if self.is_late:
            until(lambda: CLOCK() > began + 1.5 * TRIAL_NODE_TIMEOUT, within=20, what="the not-after time is over")
        for fault in late:
            fault.release()
        for fault in late:
            if fault.struck.is_set():
                assert fault.done.wait(20), "the held request or reply arrives"
        try:
            until(self._is_clean, within=TRIAL_TTL / 1.5, what="nothing is left")
        except AssertionError:
            return f"{self}: {outcome}, and {holders(self.server, self.name)} are left"
        may_be_granted = self.fates.count("granted") >= self.server.quorum
        is_asked_again = any(len(requests) > 1 for requests in asked)  # as after a not-after time: a fate strikes once
        return None if may_be_granted or is_asked_again or outcome != "True" else f"{self}: {outcome}"

    def _count(self, proxy: Proxy) -> list[Words]:
        """Return a list to which each request for the lock is added."""
        asks, requests = of_lock(calls_script("acquire"), self.name), list[Words]()

        def note(words: Words) -> bool:
            if asks(words):
                requests.append(words)
            return False

        proxy.hold_reply(note)
        return requests

    def _prepare(self, proxy: Proxy, member: Server, fate: str) -> Fault | None:
        asks = of_lock(calls_script("acquire"), self.name)
        if fate == "refused":
            member.cli("SET", key_of(self.name), "somebody else")
        elif fate == "error":
            member.cli("RPUSH", f"{key_of(self.name)}:token", "no token")  # noticed as wrong after the first write
        elif fate == "swallowed":
            proxy.swallow_reply(asks, mute=True)
        elif fate in ("held", "cut"):
            return proxy.hold_request(asks, close=fate == "cut")
        return None

    def _is_clean(self) -> bool:
        found = holders(self.server, self.name)
        wanted = ["string" if fate == "refused" else "nothing" for fate in self.fates]
        queues = [f"{key_of(self.name)}:{part}" for part in ("queue", "waiters")]
        return found == wanted and not any(member.cli("EXISTS", *queues) for member in self.server.members)


def failed(trials: Sequence[Trial], connect: Connect) -> list[str]:
    """Run all trials, several at a time; return their faults."""
    with ThreadPoolExecutor(8) as pool:
        return [wrong for wrong in pool.map(lambda trial: trial.run(connect), trials) if wrong]


@pytest.mark.parametrize("masters_count", [3])
def test_a_failed_attempt_leaves_nothing_on_three_masters(
    server: Masters, proxy: Proxies, connect: Connect, name: str, seed: int
) -> None:
    """Attempts leave nothing after any mix of grants, refusals, silence, broken connections and errors.

    The masters are alike, so chance decides which master meets which fate.
    """
    dice = random.Random(seed)
    mixes = [tuple(dice.sample(fates, 3)) for fates in itertools.combinations_with_replacement(FATES, 3)]
    trials = [Trial(server, proxy, f"{name}-{'-'.join(fates)}", fates, dice.random() < 0.3) for fates in mixes]
    wrong = failed(trials, connect)
    assert not wrong, f"{len(wrong)} of {len(trials)}:\n" + "\n".join(wrong)


@pytest.mark.long
def test_a_failed_attempt_leaves_nothing_on_five_masters(
    server: Masters, proxy: Proxies, connect: Connect, name: str, seed: int
) -> None:
    """Attempts leave nothing after random mixes over five masters, either."""
    dice = random.Random(seed)
    trials = [
        Trial(server, proxy, f"{name}-{number}", tuple(dice.choices(FATES, k=5)), dice.random() < 0.3)
        for number in range(40)
    ]
    wrong = failed(trials, connect)
    assert not wrong, f"{len(wrong)} of {len(trials)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("fate", ["swallowed", "cut"])
def test_what_a_waiter_was_granted_in_silence_goes_while_it_waits(
    *, server: Masters, proxy: Proxies, connect: Connect, name: str, fate: str
) -> None:
    """Attempts of a waiter leave nothing, either, though the end of the wait does not clear up after them."""
    client = connect(proxy.url, ttl=TRIAL_TTL, node_timeout=TRIAL_NODE_TIMEOUT)
    warm(client, name)
    for member in server.members[:2]:
        member.cli("SET", key_of(name), "somebody else")
    last, match = proxy.members[2], of_lock(calls_script("acquire", "enqueue"), name)
    fault = last.swallow_reply(match, mute=True) if fate == "swallowed" else last.hold_request(match, close=True)
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(client.lock(name).acquire(timeout=2 * TRIAL_TTL)))
    thread.start()
    try:
        until(fault.struck.is_set, within=20, what="the last master grants, or will")
        fault.release()
        until(fault.done.is_set, within=20, what="the master has granted")
        until(lambda: holders(server, name)[2] == "nothing", within=TRIAL_TTL / 3, what="the grant is undone")
        assert not got
    finally:
        for member in server.members[:2]:
            member.cli("DEL", key_of(name))
        thread.join()
    assert got == [True]


@pytest.mark.parametrize("masters_count", [3])
def test_an_attempt_that_fails_for_want_of_memory_leaves_nothing(server: Masters, connect: Connect, name: str) -> None:
    """One master grants, one refuses and one is out of memory: nothing of the attempt stays on the first."""
    client = connect(server.url)
    warm(client, name)
    server.members[1].cli("SET", key_of(name), "somebody else")
    server.members[2].cli("CONFIG", "SET", "maxmemory", "1")
    try:
        assert client.lock(name).acquire(blocking=False) is False
        until(lambda: holders(server, name) == ["nothing", "string", "nothing"], within=20, what="nothing is left")
    finally:
        server.members[2].cli("CONFIG", "SET", "maxmemory", "0")


def take_until_struck(lock: Lock, fault: Fault) -> Lock:
    """Take the lock with the fault at work: on a busy machine, a master that has just been late may not be asked."""

    def take() -> bool:
        assert lock.acquire(timeout=20)
        has_struck = fault.struck.is_set()
        if not has_struck:
            lock.release()
        return has_struck

    until(take, within=60, what="the request to one master is held back")
    return lock


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("close", [False, True], ids=["silent", "broken"])
@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "void"])
def test_an_acquire_that_comes_after_its_release_harms_nobody(
    *, proxy: Proxies, server: Masters, connect: Connect, name: str, close: bool, is_late: bool
) -> None:
    """An acquire that a connection holds back until others have the lock changes none of their holds, and is undone."""
    client = connect(proxy.url, node_timeout=0.3)
    other = connect(server.url)
    for number, one in enumerate(proxy.members):
        warm(client, name)
        fault = one.hold_request(of_lock(calls_script("acquire"), name), close=close)
        lock = take_until_struck(client.lock(name), fault)
        began, token = CLOCK(), lock.token
        lock.release()
        with other.lock(name, timeout=20) as held:
            assert held.token > token  # type: ignore[operator]
            until(lambda: holders(server, name) == ["hold"] * 3, within=30, what="the other has the lock everywhere")
            if is_late:
                until(lambda: CLOCK() > began + 0.4, within=20, what="the request is void")  # noqa: B023
            before = state(server, name)
            fault.release()
            until(fault.done.is_set, within=20, what=f"the acquire arrives at master {number}")
            assert state(server, name) == before
            assert held.extend() > 0
        until(lambda: is_empty(server, name), within=20, what="nothing is left")


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("close", [False, True], ids=["silent", "broken"])
def test_an_acquire_that_comes_when_all_is_over_leaves_nothing(
    proxy: Proxies, server: Masters, connect: Connect, name: str, close: bool
) -> None:
    """An acquire that arrives after its release, while the lock is free, is undone long before its lease ends."""
    client = connect(proxy.url, node_timeout=0.5)
    for one in proxy.members:
        warm(client, name)
        fault = one.hold_request(of_lock(calls_script("acquire"), name), close=close)
        take_until_struck(client.lock(name), fault).release()
        fault.release()
        until(fault.done.is_set, within=20, what="the acquire arrives")
        until(lambda: is_empty(server, name), within=20, what="nothing is left")


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("close", [False, True], ids=["silent", "broken"])
@pytest.mark.parametrize("whose", ["own", "another's"])
def test_a_release_that_comes_after_the_next_acquire_harms_nobody(
    *, proxy: Proxies, server: Masters, connect: Connect, name: str, close: bool, whose: str
) -> None:
    """A release that one connection holds back until the lock is held again ends only the hold that it was sent for."""
    client = connect(proxy.url, node_timeout=3.0)  # longer than a machine stands still
    other = client if whose == "own" else connect(server.url)
    for one in proxy.members:
        warm(client, name)
        fault = one.hold_request(of_lock(calls_script("release"), name), close=close)
        lock = client.lock(name)
        assert lock.acquire(timeout=20)
        lock.release()
        with other.lock(name, timeout=20) as held:
            owner = held._hold().owner  # type: ignore[union-attr]
            fault.release()
            until(fault.done.is_set, within=20, what="the release arrives")
            assert state(server, name).count({owner: b"1"}) >= server.quorum
            assert held.extend() > 0
        until(lambda: is_empty(server, name), within=20, what="nothing is left")


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("close", [False, True], ids=["silent", "broken"])
@pytest.mark.parametrize("whose", ["own", "another's"])
def test_an_undo_that_comes_after_the_next_acquire_harms_nobody(
    *, proxy: Proxies, server: Masters, connect: Connect, name: str, close: bool, whose: str
) -> None:
    """An undo that one connection holds back until the lock is held again ends only its own attempt."""
    client = connect(proxy.url, node_timeout=3.0)  # longer than a machine stands still
    other = client if whose == "own" else connect(server.url)
    for number, one in enumerate(proxy.members):
        warm(client, name)
        for member in server.members[:number] + server.members[number + 1 :]:
            member.cli("SET", key_of(name), "somebody else")
        fault = one.hold_request(of_lock(calls_script("give_back"), name), close=close)
        assert client.lock(name).acquire(blocking=False) is False
        until(fault.struck.is_set, within=20, what="the undo is held back")
        for member in server.members[:number] + server.members[number + 1 :]:
            member.cli("DEL", key_of(name))
        with other.lock(name, timeout=20) as held:
            owner = held._hold().owner  # type: ignore[union-attr]
            fault.release()
            until(fault.done.is_set, within=20, what="the undo arrives")
            assert state(server, name).count({owner: b"1"}) >= server.quorum
            assert held.extend() > 0
        until(lambda: is_empty(server, name), within=20, what="nothing is left")


@pytest.mark.parametrize("masters_count", [3])
def test_only_a_master_without_the_hold_is_given_it_again(
    proxy: Proxies, server: Masters, connect: Connect, name: str
) -> None:
    """The other masters get no such request, so their connections delay nothing."""
    client = connect(proxy.url, **UNHURRIED)
    warm(client, name)
    lock = client.lock(name)
    assert lock.acquire(timeout=20)
    until(lambda: holders(server, name) == ["hold"] * 3, within=30, what="all have the hold")
    server.members[2].cli("DEL", key_of(name))
    faults = [one.hold_request(calls_script("heal")) for one in proxy.members[:2]]
    lock.extend()
    until(lambda: holders(server, name) == ["hold"] * 3, within=30, what="the third has the hold again")
    lock.release()
    until(lambda: is_empty(server, name), within=20, what="the hold is released everywhere")
    assert not any(fault.struck.is_set() for fault in faults)


def take_owing(master: Master, taken: list[Connection]) -> bool:
    """Take a connection with a reply in flight, as another thread may; return whether there was one."""
    for connection in list(master.pool._idle):
        if connection.in_flight:
            master.pool._idle.remove(connection)
            taken.append(connection)
            return True
    return False


@pytest.mark.parametrize("masters_count", [3])
def test_a_place_that_comes_after_the_hold_is_given_up(
    proxy: Proxies, server: Masters, connect: Connect, name: str
) -> None:
    """A waiter's request that arrives when the waiter was served, and others have the lock, leaves nothing in a queue.

    The request travels on another connection than the release, so the release finds no place to remove.
    """
    client = connect(proxy.url, **UNHURRIED, handoff="wake")
    other = connect(server.url).lock(name)
    asks = of_lock(calls_script("enqueue"), name)

    def wait() -> None:
        with client.lock(name, timeout=20):
            pass

    def is_late(one: Proxy, master: Master) -> bool:
        """Play with one master; return False if the janitor had the connection first, to look at clocks for example."""
        warm(client, name)
        assert other.acquire(timeout=20)
        until(lambda: is_everywhere(server, name), within=30, what="all refuse")
        fault = one.hold_request(asks)
        thread = threading.Thread(target=wait)
        thread.start()
        until(fault.struck.is_set, within=30, what="the request is on its way")
        taken: list[Connection] = []
        with contextlib.suppress(AssertionError):
            until(lambda: take_owing(master, taken), within=20, what="the reply is waited for no more")
        if taken:
            master.open_later(None, is_call=True)
            until(lambda: master.pool._idle, within=20, what="there is another connection")
        other.release()
        thread.join()
        assert other.acquire(timeout=20)
        until(lambda: is_everywhere(server, name), within=30, what="others have the lock")
        fault.release()
        until(fault.done.is_set, within=30, what="the request arrives")
        for connection in taken:
            master.pool.give_back(connection, CLOCK())
        until(lambda: are_queued(server.members, name, 0), within=20, what="no waiter is queued")
        other.release()
        return bool(taken)

    with without_any_heartbeat():  # a heartbeat would use that connection, and wait for its answers
        for one, master in zip(proxy.members, client._session.masters, strict=True):
            assert any(is_late(one, master) for _ in range(5))
    until(lambda: is_empty(server, name), within=20, what="nothing is left")
