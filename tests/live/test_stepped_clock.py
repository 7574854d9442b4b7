"""A master whose clock steps, seen by any client, loses its vote; one whose clock is merely wrong does not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clock import Clock
from support.servers import Server, find_servers
from support.until import until

from relock import Client, QuorumError

TTL = 2.0
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
    masters: Masters, client: Client, connect: Callable[..., Client], name: str, step: float
) -> None:
    masters[0][1].set(step)
    with client.lock(name) as lock:
        until(lambda: marker(masters[0][0])["no_vote"], within=5, what="its vote is taken, for everybody")
        assert not any(marker(server)["no_vote"] for server, _ in masters[1:])
        assert lock.owned()
        other = connect([server.url for server, _ in masters], ttl=TTL, restart_guard=TTL)
        until(lambda: votes_seen(other, name) == [False, True, True], within=5, what="who saw no step obeys as well")


def votes_seen(client: Client, name: str) -> list[bool]:
    """Which masters have a vote, after the others were a quorum; a reply may come after that was certain."""
    with client.lock(f"{name}-other", timeout=5):
        return votes(client)


def marker(server: Server) -> dict[str, Any]:
    """Whether the master's own marker says that it has no vote by its own clock."""
    until_us = int(server.cli("HGET", "lock:master", "no_vote_until_us"))
    seconds, micros = server.cli("TIME")
    return {"no_vote": until_us > int(seconds) * 1_000_000 + int(micros)}


def test_a_step_ahead_frees_no_lock_that_is_held(
    masters: Masters, client: Client, connect: Callable[..., Client], name: str
) -> None:
    """One master stepped past the lease and another is down: what is left of the quorum does not grant."""
    watcher = connect([server.url for server, _ in masters], ttl=TTL, restart_guard=TTL)
    with watcher.lock("warm-up"):
        pass
    lock = client.lock(name, renew=False)
    lock.acquire()
    assert not watcher.lock(name).acquire(blocking=False)
    masters[1][0].kill()
    masters[0][1].set(10.0)
    with pytest.raises(QuorumError, match="no vote"):
        watcher.lock(name).acquire(timeout=0.3)
    assert masters[0][0].cli("EXISTS", f"lock:{{{name}}}") == 0, "it has forgotten the lease, and gave it to nobody"


def test_a_step_that_a_quorum_shows_is_our_own_and_nobody_is_accused(
    masters: Masters, client: Client, name: str
) -> None:
    """As when this machine stood still: the holds end where the masters' time says so."""
    lock = client.lock(name)
    lock.acquire()
    for _, clock in masters:
        clock.set(3600.0)
    until(lambda: lock.lost, within=5, what="its lease is over on every master")
    assert votes(client) == [True, True, True]
    with client.lock(f"{name}-more"):
        assert not any(marker(server)["no_vote"] for server, _ in masters)


def test_a_clock_that_was_always_wrong_costs_no_vote_and_tokens_rise(
    masters: Masters, connect: Callable[..., Client], name: str
) -> None:
    """Clocks that differ by more than a lease: the token is written to a quorum before acquire returns."""
    for (_, clock), ahead in zip(masters, (0.0, 600.0, -600.0), strict=True):
        clock.set(ahead)
    client = connect([server.url for server, _ in masters], ttl=TTL, restart_guard=TTL)
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
    assert all(votes(client))
