"""Masters whose clock steps lose their vote as soon as a client sees that; a clock that is only wrong costs none."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.clock import Clock
from support.masters import Masters as Group
from support.processes import Worker
from support.proxy import Proxy
from support.quorum import is_everywhere, key_of, takes, takes_in
from support.servers import Server, find_servers
from support.until import pause, until
from support.urls import GUARD_SECONDS, Urls

from relock import Client, LockLostError, QuorumError
from relock.lock import Lock

TTL = 3.0  # a machine that is busy elsewhere for two seconds loses no lock here
Masters = list[tuple[Server, Clock]]


@pytest.fixture
def masters(server_kind: str) -> Iterator[Masters]:
    """Three masters, each with a clock that the test can set."""
    started: Masters = []
    for _ in range(3):
        server = Server(server_kind, find_servers()[server_kind])
        try:
            clock = Clock(server.folder)
        except LookupError as error:
            pytest.skip(str(error))
        server.environment = clock.environment
        started.append((server.start(), clock))
    yield started
    for server, _ in started:
        server.close()


@pytest.fixture
def client(masters: Masters, connect: Callable[..., Client]) -> Client:
    """A client whose masters have their votes."""
    client = connect([server.url for server, _ in masters], ttl=TTL, restart_guard=TTL)
    until(lambda: all(votes_seen(client, "warm-up")), within=20, what="all have their votes")
    return client


def votes(client: Client) -> list[bool]:
    return [master.vote_in == 0.0 for master in client.statistics().masters]


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1.0], ids=["an hour ahead", "an hour back", "a second"])
def test_a_master_whose_clock_steps_has_no_vote_for_its_guard(
    masters: Masters, connect: Callable[..., Client], name: str, step: float
) -> None:
    """The guard is long, so that the test can look at it in several ways before it is over."""
    group = Group([server for server, _ in masters], guard=GUARD_SECONDS).let_vote()
    client = connect(group.url, ttl=9.0)  # a short lease: if a late reply does not show the step, the next renewal does
    until(lambda: votes_seen(client, name) == [True, True, True], within=20, what="all have their votes")
    masters[0][1].set(step)
    with client.lock(name) as lock:
        until(lambda: marker(masters[0][0])["no_vote"], within=20, what="the master's vote is taken, for all clients")
        assert not any(marker(server)["no_vote"] for server, _ in masters[1:])
        assert lock.owned()
        assert client.statistics().clock_steps == 1
        other = connect(group.url)
        until(lambda: votes_seen(other, name) == [False, True, True], within=20, what="who saw no step obeys as well")


def votes_seen(client: Client, name: str) -> list[bool]:
    """Return which masters have a vote, after the others were a quorum; a reply may come after that was certain."""
    with suppress(LockLostError), client.lock(f"{name}-other", timeout=20):  # the lease may be short
        return votes(client)
    return [False]


def marker(server: Server) -> dict[str, Any]:
    """Return the master's marker, with which the master tells whether it has a vote by its own clock."""
    return {"no_vote": no_vote_until_us(server) > now_us(server)}


def no_vote_until_us(server: Server) -> int:
    """Return the time until which the master has no vote, by its own clock."""
    return int(server.cli("HGET", "lock:master", "no_vote_until_us"))


def now_us(server: Server) -> int:
    """Return the time of the master's clock."""
    seconds, micros = server.cli("TIME")
    return int(seconds) * 1_000_000 + int(micros)


def test_a_step_ahead_frees_no_lock_that_is_held(masters: Masters, connect: Callable[..., Client], name: str) -> None:
    """One master stepped past the lease and another is down: the rest of the quorum does not grant."""
    group = Group([server for server, _ in masters], guard=GUARD_SECONDS).let_vote()
    client, watcher = connect(group.url), connect(group.url)
    with watcher.lock("warm-up"):
        pass
    lock = client.lock(name, renew=False)
    lock.acquire()
    assert not watcher.lock(name).acquire(blocking=False)
    masters[1][0].kill()
    masters[0][1].set(100.0)
    with pytest.raises(QuorumError, match="no vote"):
        watcher.lock(name).acquire(timeout=1.0)
    assert masters[0][0].cli("EXISTS", f"lock:{{{name}}}") == 0, "the master has forgotten the lease, and gave no other"


@pytest.mark.parametrize("guard", [TTL, 0.0], ids=["guarded", "control: without the guard"])
def test_a_step_that_anybody_saw_lets_nobody_in_before_the_lease_is_over(
    *, masters: Masters, connect: Callable[..., Client], start_worker: Callable[..., Worker], name: str, guard: float
) -> None:
    """One master lacks the hold, and the clock of another ends it: without the guard that is a quorum for others.

    Neither the client that saw the step gets in, nor a later process, which knows of it by the marker alone.
    """
    servers = Group([server for server, _ in masters])
    ttl = TTL if guard else 30.0  # in the control the lease outlasts the test
    options = {"ttl": ttl, "restart_guard": guard}
    urls = Urls(servers.url, None)
    holder, watcher = connect(urls, **options), connect(urls, **options)
    for client in (holder, watcher):
        until(lambda: all(votes_seen(client, "warm-up")), within=20, what="all have their votes")  # noqa: B023
    late = start_worker("workers.locker", urls, json.dumps(options))  # connects at its first acquire
    assert late.receive()["event"] == "ready"
    lock = holder.lock(name, renew=False)
    assert lock.acquire(timeout=10)
    until(lambda: is_everywhere(servers, name) or not lock.owned(), within=30, what="all have granted")
    servers.members[2].cli("DEL", key_of(name))  # as if the master had been away
    masters[0][1].set(ttl + 10.0)
    stepped_us = now_us(masters[0][0])
    watcher.info(name)
    if guard:
        until(
            lambda: no_vote_until_us(masters[0][0]) > stepped_us, within=20, what="its vote is taken, for all clients"
        )
    second = [False, False]
    while lock.owned() and not any(second):
        second = [took and lock.owned() for took in (takes(watcher, name), takes_in(late, name))]
        pause()
    assert any(second) == (guard == 0.0)
    if guard:
        assert watcher.lock(name).acquire(timeout=30)
        assert takes_in(late, f"{name}-other")


def test_a_step_that_a_quorum_shows_is_our_own_and_nobody_is_accused(
    masters: Masters, client: Client, name: str
) -> None:
    """Steps of a quorum look as if this machine had stood still: the holds end when they do by the masters' time."""
    lock = client.lock(name)
    lock.acquire()
    for _, clock in masters:
        clock.set(3600.0)
    until(lambda: lock.lost, within=20, what="the lease is over on a quorum")

    def is_kept() -> bool:
        """Return whether the hold is kept; it is not if a reply to this very call shows the step of the last master."""
        with suppress(LockLostError), client.lock(f"{name}-more"):
            return True
        return False

    until(is_kept, within=20, what="every step was seen")
    until(lambda: votes_seen(client, name) == [True, True, True], within=20, what="all have their votes")
    assert not any(marker(server)["no_vote"] for server, _ in masters)


def test_a_clock_that_was_always_wrong_costs_no_vote_and_tokens_rise(
    masters: Masters, connect: Callable[..., Client], name: str
) -> None:
    """Clocks differ by more than a lease, so an acquire writes the token to a quorum before it returns."""
    for (_, clock), ahead in zip(masters, (0.0, 600.0, -600.0), strict=True):
        clock.set(ahead)
    group = Group([server for server, _ in masters], guard=GUARD_SECONDS).let_vote()
    client = connect(group.url)
    last = 0
    for turn in range(12):
        down = masters[turn % 3][0]
        if turn:
            down.stop()
        lock = client.lock(name)
        assert lock.acquire(timeout=20)
        token = lock.token
        assert token is not None
        assert token > last
        last = token
        lock.release()
        down.cont()
    until(lambda: all(votes_seen(client, name)), within=20, what="all have their votes still")


# Fencing tokens where clocks differ -----------------------------------------------------------------------------------

AWAY = (2, 1, 0, 2)  # the master that is away when a holder comes: no two majorities in a row are the same


def set_clocks(masters: Masters, *ahead: float) -> Group:
    for (_, clock), seconds in zip(masters, ahead, strict=True):
        clock.set(seconds)
    return Group([server for server, _ in masters])


def take_without(away: Server, lock: Lock) -> int:
    """Take the lock while one master is stopped; return the token."""
    away.stop()
    try:
        assert lock.acquire(timeout=20)
    finally:
        away.cont()
    assert lock.token is not None
    return lock.token


@pytest.mark.parametrize("how", ["released", "by force"])
def test_tokens_rise_when_clocks_differ_by_less_than_the_lease(
    masters: Masters, connect: Callable[..., Client], name: str, how: str
) -> None:
    """Masters that granted another token do not know the highest: the end of the hold tells them."""
    group = set_clocks(masters, 0.0, 10.0, -10.0)
    group.guard = GUARD_SECONDS
    operator, tokens = connect(group.let_vote().url), []
    for away in AWAY:
        lock = connect(group.url).lock(name)
        tokens.append(take_without(group.members[away], lock))
        if how == "released":
            lock.release()
        else:
            assert operator.force_release(name)
    assert tokens == sorted(set(tokens))


def kill_the_holder(group: Group, away: Server, worker: Worker, name: str) -> int:
    away.stop()
    worker.send({"do": "acquire", "id": 1, "name": name})
    said = worker.receive()
    away.cont()
    worker.kill()
    return int(said["token"])


def lose_the_release(group: Group, away: Server, name: str) -> int:
    """Let no master hear of the end, from this client or any other."""
    proxies = [Proxy(member.port) for member in group.members]
    with Client([proxy.url for proxy in proxies], restart_guard=GUARD_SECONDS, node_timeout=0.2) as client:
        lock = client.lock(name)
        token = take_without(away, lock)
        for proxy in proxies:
            proxy.pause()
        lock.release()
    for proxy in proxies:
        proxy.break_all()
        proxy.close()
    return token


def restart_a_granter(group: Group, away: Server, name: str) -> int:
    """Restart one of the masters that granted; once it votes again, it gets the hold and the token."""
    with Client(group.url, restart_guard=GUARD_SECONDS) as client:
        lock = client.lock(name)
        token = take_without(away, lock)
        until(
            lambda: lock.extend() and is_everywhere(group, name),
            within=20,
            what="the others gave the hold to the master that was away",
        )
        next(member for member in group.members if member is not away).restart(empty=True)
        group.let_vote()
        until(lambda: lock.extend() and is_everywhere(group, name), within=30, what="all have the hold again")
    return token


@pytest.mark.parametrize("how", ["holder killed", "release lost", "master restarted"])
def test_tokens_rise_when_clocks_differ_by_more_than_the_lease(
    *, masters: Masters, start_worker: Callable[..., Worker], name: str, how: str
) -> None:
    """Tokens rise whatever becomes of a hold whose lease runs out, and whichever majority gives the next one."""
    group = set_clocks(masters, 0.0, 600.0, -600.0)
    group.guard = GUARD_SECONDS
    group.let_vote()
    workers = [start_worker("workers.locker", group.url) for _ in AWAY if how == "holder killed"]
    for worker in workers:
        assert worker.receive()["event"] == "ready"
    tokens = []
    for away in (group.members[number] for number in AWAY):
        if how == "holder killed":
            tokens.append(kill_the_holder(group, away, workers.pop(), name))
        elif how == "release lost":
            tokens.append(lose_the_release(group, away, name))
        else:
            tokens.append(restart_a_granter(group, away, name))
        for member in group.members:
            member.cli("DEL", key_of(name))  # as if its lease had run out, which changes no token
    assert tokens == sorted(set(tokens))


def test_tokens_rise_when_a_granter_restarts_before_it_is_healed(
    masters: Masters, connect: Callable[..., Client], name: str
) -> None:
    group = set_clocks(masters, 0.0, 600.0, -600.0)
    group.guard = GUARD_SECONDS
    group.let_vote()
    first = connect(group.url).lock(name)
    token = take_without(group.members[2], first)  # the token of the second master, which the first knows, too
    group.members[0].restart(empty=True)
    first.release()
    group.let_vote()  # as if the guard had passed
    second = connect(group.url).lock(name)
    assert take_without(group.members[1], second) > token
