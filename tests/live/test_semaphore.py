"""Permits of a semaphore on real servers: interrupts, kills, forks, silent masters, clusters, and how many calls."""

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.alarms import interrupt_request
from support.cluster import ClusterOfServers
from support.costs import check_costs, learn_scripts
from support.instructions import Interrupt, Strike, points, strike_clean_up
from support.leftovers import are_free
from support.masters import Deployment, Masters, disable, forget, silenced
from support.processes import Worker
from support.servers import Server
from support.until import pause, until

from relock import Client, LockLostError, Loss, NotOwnedError, Permit, QuorumError, Semaphore

Connect = Callable[..., Client]
TTL = 30.0  # seconds: leftovers must still be there when a test looks for them
# No request comes too late on a busy machine, so none is repeated; no lease is renewed while a test counts.
UNHURRIED = {"ttl": 120.0, "node_timeout": 40.0}

every_quorum = pytest.mark.every_quorum


def key_of(name: str) -> str:
    return f"lock:{{{name}}}:sem"


def is_free(masters: list[Redis], name: str) -> bool:
    return are_free(masters, key_of(name))


def got(semaphore: Semaphore, permits: int = 1, **options: Any) -> Permit:
    permit = semaphore.acquire(permits, **{"timeout": 60, **options})
    assert permit is not None
    return permit


def warm_up(client: Client) -> None:
    """Open connections and load scripts, so that every run takes the same way."""
    with client.semaphore("warm", 2), client.semaphore("warm", 2):
        pass


# Interrupts -----------------------------------------------------------------------------------------------------------


class Caller:
    """Caller of one semaphore, which makes one call.

    Attributes:
        permits: what the caller knows that it has.
    """

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self.permits: list[Permit] = []

    def take(self) -> None:
        permit = self._semaphore.acquire()
        assert permit is not None
        self.permits.append(permit)

    def release(self) -> None:
        self.permits[-1].release()

    def use(self) -> None:
        with self._semaphore:
            pass


#: The call, and whether the caller has a permit before it.
ACTIONS: dict[str, tuple[Callable[[Caller], None], bool]] = {
    "acquire": (Caller.take, False),
    "release": (Caller.release, True),
    "with": (Caller.use, False),
}
DOORS = {"Semaphore.acquire", "Semaphore.__enter__", "Semaphore.__exit__"}
each_action = pytest.mark.parametrize("kind", ACTIONS)
BETWEEN_MAX = 8  # instructions of a door before its call begins, and after the call has ended


def play(semaphore: Semaphore, kind: str, strike: Strike) -> Caller:
    """Make the call, and raise in it."""
    do, has_permit = ACTIONS[kind]
    caller = Caller(semaphore)
    if has_permit:
        caller.take()
    with strike, contextlib.suppress(Interrupt):
        do(caller)
    return caller


def end_all(client: Client) -> int:
    """Release what the client has, also what no caller knows of; return the number of these permits."""
    held = client._session.holds.copy()
    for hold in held.values():
        client._session.end_hold(hold)
    client._session.holds.clear()
    return len(held)


@every_quorum
@pytest.mark.parametrize("owner", [None, "job"])
@each_action
def test_an_exception_at_any_instruction_leaves_a_permit_with_the_caller_or_none(
    connect: Connect, server: Deployment, name: str, *, kind: str, owner: str | None, seed: int
) -> None:
    client = connect(server.url, ttl=TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]

    def semaphore_of(number: object) -> Semaphore:
        return client.semaphore(f"{name}-{number}", 2, owner=owner)

    counted = Strike()
    for strike in (Strike(), counted):  # the first run fills caches
        play(semaphore_of("count"), kind, strike)
        end_all(client)
    assert counted.count > 300, "relock's instructions are seen"
    left, without_caller = [], []
    for point in points(counted.count, seed, 300 if len(masters) == 1 else 60):
        semaphore, strike = semaphore_of(point), Strike(raise_at=point)
        caller = play(semaphore, kind, strike)
        known = sum(permit.owned() for permit in caller.permits)
        if end_all(client) != known:
            without_caller.append(strike.where)
        else:
            assert not semaphore._entered, f"after an interrupt in {strike.where}"
        left.append((semaphore.name, strike.where))
    for one, where in left:
        until(partial(is_free, masters, one), within=TTL / 2, what=f"nothing left after an interrupt in {where}")
    assert len(without_caller) < BETWEEN_MAX, without_caller
    assert {where.partition(":")[0] for where in without_caller} <= DOORS
    assert client.statistics().held == 0


@every_quorum
def test_an_exception_in_a_wait_leaves_nothing(connect: Connect, server: Deployment, name: str, seed: int) -> None:
    client = connect(server.url, ttl=TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]
    semaphore, holder = client.semaphore(name, 2), client.semaphore(name, 2, owner="holder")
    permits = [got(holder), got(holder)]

    def wait(strike: Strike) -> None:
        with strike, contextlib.suppress(Interrupt):
            assert semaphore.acquire(timeout=0.05) is None

    counted = Strike()
    for strike in (Strike(), counted):
        wait(strike)
    for point in points(counted.count, seed, 60 if len(masters) == 1 else 20):
        wait(strike := Strike(raise_at=point))
        what = f"nothing left after an interrupt in {strike.where}"
        until(lambda: not any(redis.zcard(f"{key_of(name)}:queue") for redis in masters), within=10.0, what=what)
    statistics = client.statistics()
    assert (statistics.held, statistics.waiting) == (2, 0)
    for permit in permits:
        permit.release()
    until(lambda: is_free(masters, name), within=10.0, what="all is free")


@every_quorum
@each_action
def test_an_exception_while_another_one_is_cleaned_up_after_changes_nothing_about_what_is_done(
    connect: Connect, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch, *, kind: str, seed: int
) -> None:
    """The first exception strikes in the middle of the call, the second in the clean-up."""
    client = connect(server.url, ttl=TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]
    method = "undo_release" if kind == "release" else "undo_acquire"

    def play_both(number: object, first: int | None, second: Strike) -> Semaphore:
        semaphore = client.semaphore(f"{name}-{number}", 2, owner="job")
        strike_clean_up(monkeypatch, method, second, lambda: play(semaphore, kind, Strike(raise_at=first)))
        return semaphore

    play(client.semaphore(f"{name}-first", 2, owner="job"), kind, counted := Strike())
    end_all(client)
    first = counted.count // (4 if kind == "with" else 2)
    play_both("count", first, second := Strike())
    assert second.count > 40, "the clean-up is seen"
    left = []
    for point in points(second.count, seed, 40 if len(masters) == 1 else 12):
        semaphore = play_both(point, first, strike := Strike(raise_at=point))
        assert client.statistics().held == 0, f"after a second interrupt in {strike.where}"
        assert not semaphore._entered
        left.append((semaphore.name, strike.where))
    for one, where in left:
        until(partial(is_free, masters, one), within=10.0, what=f"nothing left after a second interrupt in {where}")


def test_a_signal_between_request_and_replies_undoes_the_grant(own_server: Deployment, name: str, alarms: None) -> None:
    """The server is stopped, so the request is under way when the signal comes; it runs once the server goes on."""
    with Client(own_server.url, ttl=TTL, node_timeout=2.0) as client:
        warm_up(client)
        semaphore = client.semaphore(name, 1)
        interrupt_request(own_server, semaphore.acquire)
        masters = [one.client() for one in own_server.members]
        until(lambda: is_free(masters, name), within=20.0, what="the grant is undone")
        got(semaphore).release()


# Processes ------------------------------------------------------------------------------------------------------------


@every_quorum
def test_permits_of_a_process_that_was_killed_come_back_with_their_leases(
    connect: Connect, start_worker: Callable[..., Worker], server: Deployment, name: str
) -> None:
    """One process is killed while it has both permits, and another one while it waits."""
    client = connect(server.url)
    semaphore = client.semaphore(name, 2)
    holder, waiter = (start_worker("workers.locker", server.url, '{"ttl": 4.5}') for _ in range(2))
    for worker, ids in ((holder, (1, 2)), (waiter, (1,))):
        assert worker.receive()["event"] == "ready"
        for number in ids:
            worker.send({"do": "acquire", "id": number, "name": name, "limit": 2})
            if worker is holder:
                assert worker.receive()["event"] == "granted"
    until(lambda: semaphore.info().queue, within=30, what="the other process waits")
    assert semaphore.info().used == 2
    holder.kill()
    waiter.kill()
    permits = [got(semaphore), got(semaphore)]
    assert {permit.slot for permit in permits} == {0, 1}
    for permit in permits:
        permit.release()
    masters = [one.client() for one in server.members]
    until(lambda: is_free(masters, name), within=60, what="all is free")


@every_quorum
def test_a_forked_child_owns_no_permit_and_works_as_a_fresh_client(
    connect: Connect, server: Deployment, name: str
) -> None:
    semaphore = connect(server.url).semaphore(name, 2)
    with semaphore as permit:
        token = permit.token
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with contextlib.suppress(NotOwnedError):
                    permit.release()
                    os._exit(2)
                is_none = not permit.owned() and permit.slot is None and permit.token is None
                with semaphore as own:
                    is_full = semaphore.acquire(timeout=0) is None
                    code = 0 if is_none and is_full and own.owned() else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert permit.ensure() == token
        assert semaphore.info().used == 1


@every_quorum
def test_permits_are_renewed_and_a_loss_is_told_once(connect: Connect, server: Deployment, name: str) -> None:
    told: list[Loss] = []
    client, operator = connect(server.url, ttl=6.0), connect(server.url)
    semaphore = client.semaphore(name, 2, on_lost=told.append)
    first, second = got(semaphore), got(semaphore)
    until(lambda: client.statistics().renewals >= 4, within=30, what="two renewals of each")
    (owner,) = [one.owner for one in operator.semaphore(name, 2).info().holders if one.slot == first.slot]
    assert operator.semaphore(name, 2).force_release(owner)
    until(lambda: client.statistics().losses == 1, within=20, what="the watchdog finds the loss")
    until(lambda: told, within=10, what="the loss is told")
    assert (first.lost, second.owned()) == (True, True)
    assert repr(first).startswith(f"<lost relock.semaphore.Permit object name={name!r} permits=1 slot=")
    assert repr(second).startswith("<held relock.semaphore.Permit object")
    with pytest.raises(LockLostError):
        first.release()
    second.release()
    with semaphore:
        pass
    assert [loss.lock for loss in told] == [name]


# Masters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["down", "hung"])
def test_a_quorum_is_enough(how: str, three_masters: Masters, connect: Connect, name: str) -> None:
    client, others = (connect(three_masters.url, ttl=TTL, node_timeout=5.0) for _ in range(2))
    warm_up(client)
    warm_up(others)
    victim = three_masters.members[1]
    disable(victim, how)
    semaphore = client.semaphore(name, 2, timeout=20)
    for _ in range(3):
        with semaphore as first, others.semaphore(name, 2, timeout=20) as second:
            assert {first.slot, second.slot} == {0, 1}
            first.ensure()
            assert semaphore.info().used == 2
            assert semaphore.acquire(timeout=0) is None
    if how == "hung":
        victim.cont()
        masters = [one.client() for one in three_masters.members]
        until(lambda: is_free(masters, name), within=TTL / 2, what="nothing is left on the master that was hung")


def test_without_a_quorum_nothing_is_left(three_masters: Masters, connect: Connect, name: str) -> None:
    client = connect(three_masters.url, ttl=TTL, node_timeout=0.5)
    warm_up(client)
    masters = [one.client() for one in three_masters.members]
    with silenced(three_masters.members[1:]):
        with pytest.raises(QuorumError):
            client.semaphore(name, 2).acquire(timeout=0)
        assert client.statistics().held == 0
    until(lambda: is_free(masters, name), within=TTL / 2, what="nothing is left")
    got(client.semaphore(name, 2)).release()


def test_a_master_that_was_flushed_gets_the_permits_again_by_their_renewals(
    three_masters: Masters, connect: Connect, name: str
) -> None:
    """The master has no vote for a while, and learns which slots are taken."""
    client = connect(three_masters.url, **UNHURRIED)
    warm_up(client)
    masters = [one.client() for one in three_masters.members]
    semaphore, first = client.semaphore(name, 2), masters[0]
    permits = [got(semaphore), got(semaphore)]

    def renewed_everywhere() -> bool:
        """Renew both permits; report whether each master has both of them."""
        assert all(permit.extend() > 0 for permit in permits)
        return all(one.hlen(key_of(name)) == len(permits) for one in masters)

    until(renewed_everywhere, within=30, what="each master has both")
    before = first.hgetall(key_of(name))
    first.delete(key_of(name), f"{key_of(name)}:leases")
    until(renewed_everywhere, within=30, what="the renewals give them back")
    assert first.hgetall(key_of(name)) == before
    assert all(permit.owned() for permit in permits)
    assert semaphore.acquire(timeout=0) is None
    for permit in permits:
        permit.release()
    until(lambda: is_free(masters, name), within=30, what="nothing is left")


@pytest.mark.parametrize("how", ["restarted", "flushed"])
def test_masters_that_forgot_let_nobody_into_a_slot_before_its_lease_is_over(
    how: str, start_server: Callable[..., Any], connect: Connect, name: str
) -> None:
    guard = 6.0
    masters = Masters([start_server() for _ in range(3)], guard=guard).let_vote()
    holder, others = (connect(masters.url, ttl=guard, node_timeout=1.0) for _ in range(2))
    warm_up(holder)
    warm_up(others)
    permit = got(holder.semaphore(name, 1, renew=False))
    forget(masters.members[:2], how)
    second: Permit | None = None
    while permit.owned() and second is None:
        with contextlib.suppress(QuorumError):
            second = others.semaphore(name, 1).acquire(timeout=0)
        assert second is None or not permit.owned()
        pause()
    got(others.semaphore(name, 1)).release()


def test_permits_that_a_lone_master_forgot_are_lost(own_server: Server, connect: Connect, name: str) -> None:
    client = connect(own_server.url, ttl=6.0)
    semaphore = client.semaphore(name, 2)
    permits = [got(semaphore), got(semaphore)]
    own_server.client().flushall()
    until(lambda: client.statistics().losses == 2, within=20, what="the watchdog finds the losses")
    for permit in permits:
        with pytest.raises(LockLostError):
            permit.release()
    assert {got(semaphore).slot, got(semaphore).slot} == {0, 1}


def test_a_permit_is_on_the_replica_when_acquire_returns(
    pair: tuple[Server, Server], connect: Connect, name: str
) -> None:
    master, replica = pair
    client = connect(master.url, min_replicas=1, replica_timeout=0.5, ttl=60.0)
    semaphore = client.semaphore(name, 2, timeout=20)
    for _ in range(3):
        with semaphore, semaphore:
            assert replica.cli("HLEN", key_of(name)) == 2
    replica.stop()
    with pytest.raises(QuorumError, match="0 of 1 replicas"):
        semaphore.acquire(timeout=0.5)
    until(lambda: is_free([master.client()], name), within=30, what="nothing is left before the lease ends")
    replica.cont()


# A Cluster ------------------------------------------------------------------------------------------------------------


def test_a_semaphore_is_on_the_node_that_has_its_slot(cluster: ClusterOfServers, connect: Connect, name: str) -> None:
    client, other = connect(cluster.url), connect(cluster.url)
    for number in range(6):
        semaphore, others = (one.semaphore(f"{name}-{number}", 3, owner="job") for one in (client, other))
        node = cluster.owner(semaphore.name)
        with semaphore as first, others as second:
            assert sorted(node.cli("HVALS", key_of(semaphore.name))) == [b"0", b"1"]
            assert {first.slot, second.slot} == {0, 1}
            assert others.acquire(2, timeout=0) is None
            with others:
                waiting = threading.Thread(target=lambda semaphore=semaphore: got(semaphore).release())
                waiting.start()
                until(lambda others=others: others.info().queue, within=20, what="it waits")  # type: ignore[misc]
            waiting.join()
            assert first.extend() > 0
            assert others.info().used == 2
        assert node.cli("EXISTS", key_of(semaphore.name)) == 0
        others.override(0, 60)
        assert semaphore.acquire(timeout=0) is None
        others.override(0, 0)
        three = got(semaphore, 3)
        assert others.force_release(others.info().holders[0].owner)
        with pytest.raises(LockLostError):
            three.extend()


# Costs ----------------------------------------------------------------------------------------------------------------


def test_a_call_costs_one_script_and_no_more(own_server: Server, connect: Connect, name: str) -> None:
    """Counted by the server itself."""
    learn_scripts(own_server)
    client = connect(own_server.url, **UNHURRIED)
    warm_up(client)
    semaphore, permits = client.semaphore(name, 3), list[Permit]()
    deeds: list[tuple[Callable[[], object], int]] = [
        (lambda: permits.append(got(semaphore)), 1),
        (lambda: permits.append(got(semaphore, 2)), 1),
        (lambda: semaphore.acquire(timeout=0), 1),
        (lambda: permits[0].ensure(1.0), 0),
        (lambda: permits[0].extend(120.0), 1),
        (semaphore.info, 1),
        (lambda: semaphore.override(5, 60), 1),
        (lambda: semaphore.override(5, 0), 1),
        (lambda: permits.pop().release(), 1),
        (lambda: permits.pop().release(), 1),
    ]
    check_costs(own_server, deeds)


def test_a_caller_asks_several_masters_once_where_all_is_free(
    three_masters: Masters, connect: Connect, name: str
) -> None:
    """The first slot is a guess, and each guess is right: an acquire and a release are two scripts on each master.

    A master whose connection is late may get fewer, as a quorum does without it.
    """
    learn_scripts(three_masters)
    client, turns = connect(three_masters.url, **UNHURRIED), 10
    for number in range(turns):
        got(client.semaphore(f"{name}-{number}", 100)).release()

    def scripts() -> list[int]:
        return [one.calls().get("evalsha", 0) for one in three_masters.members]

    until(lambda: sum(scripts()) >= 2 * 2 * turns, within=30, what="a quorum has carried out all")
    assert max(scripts()) <= 2 * turns


def test_a_release_wakes_no_herd(own_server: Server, connect: Connect, name: str) -> None:
    """Twenty callers wait; each release costs a few scripts, however many wait."""
    client, waiters = 20, list[threading.Thread]()
    others = connect(own_server.url, **UNHURRIED)
    holders = [got(connect(own_server.url, **UNHURRIED).semaphore(name, 2)) for _ in range(2)]
    semaphore = others.semaphore(name, 2)
    served: list[Permit] = []
    for number in range(client):
        thread = threading.Thread(target=lambda: served.append(got(semaphore)))
        thread.start()
        waiters.append(thread)
        until(lambda number=number: len(semaphore.info().queue) == number + 1, within=30, what="it waits")  # type: ignore[misc]
    scripts = []
    for number in range(client):
        permit = holders.pop() if holders else served[number - 2]
        before = own_server.calls()["evalsha"]
        permit.release()
        until(lambda number=number: len(served) == number + 1, within=30, what="the next one is served")  # type: ignore[misc]
        scripts.append(own_server.calls()["evalsha"] - before)
    for thread in waiters:
        thread.join()
    # A heartbeat of each client, or a full lease for a short one, may fall into any of these.
    assert sorted(scripts)[client // 2] <= 4, scripts
    for permit in served[-2:]:
        permit.release()
