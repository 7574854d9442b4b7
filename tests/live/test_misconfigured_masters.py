"""The first call that needs them refuses masters that can be no honest quorum, and names the remedy."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from support.servers import Server, find_servers
from support.until import until

from relock import Client, ConfigurationError, LockLostError, QuorumError, RelockWarning

Connect = Callable[..., Client]
OPTIONS = {"ttl": 6.0, "restart_guard": 6.0}


@pytest.fixture
def servers(server_kind: str) -> Iterator[list[Server]]:
    """Two masters, and a replica of the first."""
    program = find_servers()[server_kind]
    one, two = Server(server_kind, program).start(), Server(server_kind, program).start()
    replica = Server(server_kind, program, "--replicaof", "127.0.0.1", str(one.port)).start()
    yield [one, two, replica]
    for server in (one, two, replica):
        server.close()


def test_the_same_server_under_two_names_is_refused_by_the_first_acquire(
    servers: list[Server], connect: Connect, name: str
) -> None:
    one, two, _ = servers
    twin = one.url.replace("127.0.0.1", "localhost")
    lock = connect([one.url, two.url, twin], **OPTIONS).lock(name)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="are the same server: name each master once") as caught:
            lock.acquire(timeout=20)
    assert f"localhost:{one.port}" in str(caught.value)
    assert f"127.0.0.1:{one.port}" in str(caught.value)
    assert caught.value.option == "nodes"


def test_a_replica_among_the_masters_is_refused_by_the_first_acquire(
    servers: list[Server], connect: Connect, name: str
) -> None:
    one, two, replica = servers
    lock = connect([one.url, two.url, replica.url], **OPTIONS).lock(name)
    with pytest.raises(ConfigurationError, match=f"{replica.port}.* is a replica"):
        lock.acquire(timeout=20)


def test_one_of_three_that_may_evict_is_warned_of_by_the_first_acquire(
    servers: list[Server], connect: Connect, name: str
) -> None:
    one, two, third = servers
    third.cli("REPLICAOF", "NO", "ONE")
    third.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    client = connect([one.url, two.url, third.url], **OPTIONS)

    def look() -> int:
        with suppress(QuorumError):
            client.lock(name).acquire(blocking=False)  # the first look at the masters, which have no votes yet
        return len(caught)

    with pytest.warns(RelockWarning, match=f"{third.port}.* set maxmemory-policy to noeviction") as caught:
        until(look, within=30, what="the warning is given")
    assert len(caught) == 1
    assert [len(master.problems) for master in client.statistics().masters] == [0, 0, 1]


def test_a_master_that_becomes_a_replica_later_is_one_that_is_down(
    servers: list[Server], connect: Connect, server_kind: str, name: str
) -> None:
    """Masters that were right once stop no other: only one vote is lost."""
    one, two, third = servers
    third.cli("REPLICAOF", "NO", "ONE")
    client = connect([one.url, two.url, third.url], **OPTIONS)
    lock = client.lock(name)
    assert lock.acquire(timeout=30)
    third.cli("REPLICAOF", "127.0.0.1", str(two.port))
    for _ in range(20):
        try:
            lock.release()
        except LockLostError:
            pytest.fail("a quorum has it")
        assert lock.acquire(timeout=20)
    states = {master.address: master.down for master in client.statistics().masters}
    assert sum(down is None for down in states.values()) >= 2
