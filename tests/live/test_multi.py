"""Several locks as one, on real servers: interrupts, kills, forks, silent masters, and how many calls it makes."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis import Redis
from support.alarms import AlarmError, interrupt_request
from support.costs import check_costs, learn_scripts
from support.instructions import Interrupt, Strike, points, strike_clean_up
from support.leftovers import are_free
from support.masters import Deployment, Masters, disable, silenced
from support.processes import Worker
from support.servers import Server
from support.until import until

from relock import Client, LockLostError, Loss, MultiLock, NotOwnedError, QuorumError

Connect = Callable[..., Client]
TTL = 30.0  # seconds: leftovers must still be there when a test looks for them
NESTED_TTL = 18.0  # if a master lost the outer acquire, a test waits for a third of this

every_quorum = pytest.mark.every_quorum


def names_of(name: str, count: int = 3) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def is_free(masters: list[Redis], name: str) -> bool:
    return are_free(masters, f"lock:{{{name}}}")


def all_free(masters: list[Redis], lock: MultiLock) -> bool:
    return are_free(masters, *(f"lock:{{{name}}}" for name in lock.names))


def same_counts(masters: list[Redis], lock: MultiLock, levels: int) -> bool:
    """Return whether each lock has so many levels on every master."""
    return all(redis.hvals(f"lock:{{{name}}}") == [b"%d" % levels] for redis in masters for name in lock.names)


def levels_of(client: Client, lock: MultiLock) -> list[int]:
    return [client.lock(name, owner=lock._spec.options.owner).hold_count for name in lock.names]


def warm_up(client: Client) -> None:
    """Open connections and load scripts, so that every run takes the same way."""
    with client.lock_all(["warm", "up"]), client.lock_all(["warm", "up"]):
        pass


# Interrupts -----------------------------------------------------------------------------------------------------------


def use(lock: MultiLock) -> None:
    with lock:
        pass


#: The call; the levels before it; the levels that an interrupt leaves.
ACTIONS: dict[str, tuple[Callable[[MultiLock], object], int, int]] = {
    "acquire": (MultiLock.acquire, 0, 0),
    "nested acquire": (MultiLock.acquire, 1, 1),
    "release": (MultiLock.release, 1, 0),
    "nested release": (MultiLock.release, 2, 1),
    "with": (use, 0, 0),
}
each_action = pytest.mark.parametrize("kind", ACTIONS)


def play(lock: MultiLock, kind: str, strike: Strike) -> None:
    """Take the levels before the call, make the call, and raise in it."""
    action, levels, _ = ACTIONS[kind]
    for _ in range(levels):
        lock.acquire()
    with strike, contextlib.suppress(Interrupt):
        action(lock)


def leave(client: Client, lock: MultiLock) -> None:
    while any(levels_of(client, lock)):
        lock.release()


@every_quorum
@pytest.mark.parametrize("owner", [None, "job"])
@each_action
def test_an_exception_at_any_instruction_leaves_all_with_the_caller_or_undone(
    connect: Connect, server: Deployment, name: str, *, kind: str, owner: str | None, seed: int
) -> None:
    client = connect(server.url, ttl=NESTED_TTL if "nested" in kind else TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]

    def lock_of(number: object) -> MultiLock:
        return client.lock_all(names_of(f"{name}-{number}"), owner=owner)

    counted = Strike()
    for strike in (Strike(), counted):  # the first run fills caches
        play(lock_of("count"), kind, strike)
        leave(client, lock_of("count"))
    assert counted.count > 500, "relock's instructions are seen"
    left, with_caller = [], 0
    for point in points(counted.count, seed, 200 if len(masters) == 1 else 60):
        lock, strike = lock_of(point), Strike(raise_at=point)
        play(lock, kind, strike)
        levels = levels_of(client, lock)
        assert len(set(levels)) == 1, f"{levels} levels after an interrupt in {strike.where}"
        with_caller += levels[0] != ACTIONS[kind][2] and bool(strike.where)
        if levels[0]:
            what = f"the same counts here and there after an interrupt in {strike.where}"
            until(partial(same_counts, masters, lock, levels[0]), within=25.0, what=what)
            leave(client, lock)
        left.append((lock, strike.where))
    for lock, where in left:
        until(
            partial(all_free, masters, lock), within=NESTED_TTL / 2, what=f"nothing left after an interrupt in {where}"
        )
    assert client.statistics().held == 0, "no hold without an owner is renewed"
    assert not client._session.several
    assert with_caller < 10, "only instructions of the door, before the call begins and after it is done, change that"


@every_quorum
def test_an_exception_in_a_wait_leaves_nothing(connect: Connect, server: Deployment, name: str, seed: int) -> None:
    """The second lock is taken, so the caller has the first one while it waits."""
    client = connect(server.url, ttl=TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]
    lock = client.lock_all(names_of(name))
    holder = client.lock(lock.names[1], owner="holder")
    holder.acquire()

    def wait(strike: Strike) -> None:
        with strike, contextlib.suppress(Interrupt):
            assert not lock.acquire(timeout=0.05)

    counted = Strike()
    for strike in (Strike(), counted):
        wait(strike)
    for point in points(counted.count, seed, 60 if len(masters) == 1 else 20):
        wait(strike := Strike(raise_at=point))
        assert levels_of(client, lock) == [0, 0, 0]
        until(
            lambda: (
                not any(redis.zcard(f"lock:{{{lock.names[1]}}}:queue") for redis in masters)
                and is_free(masters, lock.names[0])
                and is_free(masters, lock.names[2])
            ),
            within=10.0,
            what=f"nothing left after an interrupt in {strike.where}",
        )
    statistics = client.statistics()
    assert (statistics.held, statistics.waiting) == (1, 0)
    holder.release()
    until(lambda: all_free(masters, lock), within=10.0, what="all is free")


@every_quorum
@pytest.mark.parametrize("owner", [None, "job"])
@each_action
def test_an_exception_while_another_one_is_cleaned_up_after_changes_nothing_about_what_is_done(
    connect: Connect,
    server: Deployment,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: str,
    owner: str | None,
    seed: int,
) -> None:
    """The first exception strikes in the middle of the call, the second in the clean-up."""
    client = connect(server.url, ttl=TTL)
    warm_up(client)
    masters = [one.client() for one in server.members]
    method = "undo_release" if "release" in kind else "undo_acquire"

    def play_both(number: object, first: int | None, second: Strike) -> MultiLock:
        lock = client.lock_all(names_of(f"{name}-{number}"), owner=owner)
        strike_clean_up(monkeypatch, method, second, lambda: play(lock, kind, Strike(raise_at=first)))
        return lock

    play(client.lock_all(names_of(f"{name}-first"), owner=owner), kind, counted := Strike())
    leave(client, client.lock_all(names_of(f"{name}-first"), owner=owner))
    first = counted.count // (4 if kind == "with" else 2)
    leave(client, play_both("count", first, second := Strike()))
    assert second.count > 40, "the clean-up is seen"
    left = []
    for point in points(second.count, seed, 40 if len(masters) == 1 else 12):
        lock = play_both(point, first, strike := Strike(raise_at=point))
        levels = ACTIONS[kind][2]
        assert levels_of(client, lock) == [levels] * 3, f"after a second interrupt in {strike.where}"
        if levels:
            # A master that lost the acquire with its connection has the hold from the first renewal on.
            until(partial(same_counts, masters, lock, levels), within=25.0, what="the counts")
            leave(client, lock)
        left.append((lock, strike.where))
    for lock, where in left:
        until(partial(all_free, masters, lock), within=10.0, what=f"nothing left after a second interrupt in {where}")
    assert not client._session.holds.all()
    assert not client._session.gates._gates
    assert not client._session.several


def test_a_signal_between_request_and_replies_undoes_every_grant(
    own_server: Deployment, name: str, alarms: None
) -> None:
    """The server is stopped, so the batch is under way when the signal comes; it runs once the server goes on."""
    with Client(own_server.url, ttl=TTL, node_timeout=2.0) as client:
        warm_up(client)
        lock = client.lock_all(names_of(name))
        interrupt_request(own_server, lock.acquire)
        assert levels_of(client, lock) == [0, 0, 0]
        masters = [one.client() for one in own_server.members]
        until(lambda: all_free(masters, lock), within=20.0, what="the grants are undone")
        with client.lock_all(lock.names, timeout=20):
            assert same_counts(masters, lock, 1)


@every_quorum
def test_a_signal_ends_a_wait_and_gives_back_the_locks_before(
    connect: Connect, server: Deployment, name: str, alarms: None
) -> None:
    client = connect(server.url, ttl=TTL)
    masters = [one.client() for one in server.members]
    lock = client.lock_all(names_of(name))
    holder = client.lock(lock.names[1], owner="holder")
    holder.acquire()

    def interrupt() -> None:
        until(lambda: client.statistics().waiting == 1, within=20, what="the main thread waits")
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(AlarmError):  # noqa: PT012
        thread.start()
        lock.acquire()
    thread.join()
    assert levels_of(client, lock) == [0, 0, 0]
    holder.release()
    until(lambda: all_free(masters, lock), within=10.0, what="all is free")


# Processes ------------------------------------------------------------------------------------------------------------


@every_quorum
def test_locks_of_a_process_that_was_killed_come_back_with_their_leases(
    connect: Connect, start_worker: Callable[..., Worker], server: Deployment, name: str
) -> None:
    """One process is killed while it has all locks, and another one while it waits and has the first."""
    client = connect(server.url)
    a, b, c = names_of(name)
    holder, waiter = (start_worker("workers.locker", server.url, '{"ttl": 4.5}') for _ in range(2))
    for worker, names in ((holder, [b, c]), (waiter, [a, b, c])):
        assert worker.receive()["event"] == "ready"
        worker.send({"do": "acquire", "id": 1, "names": names})
        if worker is holder:
            assert worker.receive()["event"] == "granted"
    until(lambda: client.info(b).queue, within=30, what="the other process waits")
    assert client.info(a).held
    holder.kill()
    waiter.kill()
    with client.lock_all([a, b, c], timeout=60) as lock:
        assert lock.owned()
    until(lambda: not lock.locked(), within=30, what="all is free")


@every_quorum
def test_a_forked_child_owns_none_and_works_as_a_fresh_client(connect: Connect, server: Deployment, name: str) -> None:
    client = connect(server.url)
    with client.lock_all(names_of(name)) as lock:
        tokens = lock.tokens
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with contextlib.suppress(NotOwnedError):
                    lock.release()
                    os._exit(2)
                is_none = not lock.owned() and lock.hold_count == 0 and set(lock.tokens.values()) == {None}
                is_refused = not lock.acquire(blocking=False)
                with client.lock_all(names_of(f"{name}-child")) as own:
                    code = 0 if is_none and is_refused and own.owned() else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.tokens == tokens
        lock.ensure()


@every_quorum
def test_all_locks_are_renewed(connect: Connect, server: Deployment, name: str) -> None:
    client = connect(server.url, ttl=6.0)
    with client.lock_all(names_of(name)) as lock:
        tokens = lock.tokens
        until(lambda: client.statistics().renewals >= 6, within=30, what="two renewals of each")
        assert lock.ensure() == tokens
    assert client.statistics().losses == 0


@every_quorum
def test_a_loss_is_told_once_and_the_others_are_held_until_they_are_left(
    connect: Connect, server: Deployment, name: str
) -> None:
    told: list[Loss] = []
    client, operator = connect(server.url, ttl=6.0), connect(server.url)
    lock = client.lock_all(names_of(name), on_lost=told.append)
    lock.acquire()
    for one in lock.names[1:]:
        operator.force_release(one)
    until(lambda: client.statistics().losses == 2, within=20, what="the watchdog finds the losses")
    until(lambda: told, within=10, what="a loss is told")
    assert (lock.owned(), lock.lost, client.lock(lock.names[0]).owned()) == (False, True, True)
    renewals = client.statistics().renewals
    until(lambda: client.statistics().renewals > renewals, within=20, what="the other one is renewed")
    with pytest.raises(LockLostError):
        lock.release()
    with client.lock_all(lock.names, on_lost=told.append, timeout=20):
        pass
    (loss,) = told
    assert loss.lock in lock.names[1:]


# Masters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["down", "hung"])
def test_a_quorum_is_enough(how: str, three_masters: Masters, connect: Connect, name: str) -> None:
    client, others = (connect(three_masters.url, ttl=TTL, node_timeout=5.0) for _ in range(2))
    warm_up(client)
    warm_up(others)
    victim = three_masters.members[1]
    disable(victim, how)
    lock = client.lock_all(names_of(name), timeout=20)
    for _ in range(3):
        with lock:
            lock.ensure()
            with lock:
                assert lock.hold_count == 2
            assert not others.lock_all(lock.names[1:]).acquire(blocking=False)
    if how == "hung":
        victim.cont()
        masters = [one.client() for one in three_masters.members]
        until(lambda: all_free(masters, lock), within=TTL / 2, what="nothing is left on the master that was hung")


def test_without_a_quorum_nothing_is_left(three_masters: Masters, connect: Connect, name: str) -> None:
    client = connect(three_masters.url, ttl=TTL, node_timeout=0.5)
    warm_up(client)
    masters = [one.client() for one in three_masters.members]
    lock = client.lock_all(names_of(name))
    with silenced(three_masters.members[1:]):
        with pytest.raises(QuorumError) as caught:
            lock.acquire(timeout=0)
        assert caught.value.lock == lock.names[0]
        assert levels_of(client, lock) == [0, 0, 0]
    until(lambda: all_free(masters, lock), within=TTL / 2, what="nothing is left")
    with client.lock_all(lock.names, timeout=20):
        pass


def test_each_grant_is_on_the_replica_when_acquire_returns(
    pair: tuple[Server, Server], connect: Connect, name: str
) -> None:
    master, replica = pair
    client = connect(master.url, min_replicas=1, replica_timeout=0.5, ttl=60.0)
    for _ in range(3):
        with client.lock_all(names_of(name), timeout=20) as lock:
            assert replica.cli("EXISTS", *(f"lock:{{{one}}}" for one in lock.names)) == 3
    replica.stop()
    with pytest.raises(QuorumError, match="0 of 1 replicas"):
        lock.acquire(timeout=0.5)
    until(lambda: all_free([master.client()], lock), within=30, what="nothing is left before the leases end")
    replica.cont()


# Costs ----------------------------------------------------------------------------------------------------------------


def test_each_lock_costs_one_script_for_each_call_and_no_more(own_server: Server, connect: Connect, name: str) -> None:
    """Counted by the server itself."""
    learn_scripts(own_server)
    client = connect(own_server.url, ttl=120.0)
    warm_up(client)
    lock = client.lock_all(names_of(name, 10))
    deeds: list[tuple[Callable[[], object], int]] = [
        (lock.acquire, 10),
        (lock.acquire, 10),
        (lock.ensure, 0),
        (lock.extend, 10),
        (lock.info, 10),
        (lock.release, 10),
        (lock.release, 10),
    ]
    check_costs(own_server, deeds)


def test_a_caller_that_waits_sends_no_more_than_it_must(own_server: Server, connect: Connect, name: str) -> None:
    """Ten locks, of which the second is taken: a round, eight given back, a wait, and the eight again."""
    client, other = connect(own_server.url, ttl=120.0), connect(own_server.url, ttl=120.0)
    warm_up(client)
    warm_up(other)
    lock = client.lock_all(names_of(name, 10), owner="job")
    holder = other.lock(lock.names[1])
    asked: list[tuple[str, int]] = []
    fan_out: Any = client._session.fan_out
    ask_masters = fan_out.ask

    def note(ask: Any, **options: Any) -> Any:
        if not client._session.janitor.is_caller():
            asked.append((ask.calls[0].script.name, len(ask.calls)))
        return ask_masters(ask, **options)

    with holder:
        fan_out.ask = note
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        until(lambda: other.info(lock.names[1]).queue, within=20, what="the caller waits")
    thread.join()
    assert lock.owned()
    looks = [one for one in asked if one not in (("acquire", 1), ("enqueue", 1), ("heartbeat", 1))]
    assert looks == [("acquire", 10), ("release", 8), ("acquire", 8)]
    lock.release()
