"""Over five masters: those that may have forgotten leases have no vote until no lease that they forgot can be left."""

from collections.abc import Callable, Iterator

import pytest
from support.masters import Urls
from support.servers import Server, find_servers
from support.until import until

from relock import Client, QuorumError

Connect = Callable[..., Client]
TTL = 1.0  # and the guard


@pytest.fixture
def five(server_kind: str) -> Iterator[list[Server]]:
    """Five masters of the test's own, that nobody has looked at."""
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
        with client.lock("warm-up", timeout=10):
            return all(master.vote_in == 0.0 and master.down is None for master in client.statistics().masters)

    until(all_vote, within=20, what="all have their votes")


def forget(server: Server, how: str) -> None:
    """Makes a master forget what it has granted since `prepare`."""
    if how == "flushed":
        server.cli("FLUSHALL")
    else:
        server.restart(empty=how == "restarted empty")


@pytest.mark.parametrize("how", ["restarted empty", "restarted with old data", "flushed"])
@pytest.mark.parametrize("guard", [TTL, 0.0], ids=["guarded", "control: without the guard"])
def test_masters_that_forgot_let_nobody_in_before_the_lease_is_over(
    five: list[Server], connect: Connect, name: str, how: str, guard: float
) -> None:
    """Neither a client that watched them nor one that comes later; without the guard there are two holders."""
    holder = connect(urls(five, guard), ttl=TTL, node_timeout=0.3)
    watcher = connect(urls(five, guard), ttl=TTL, node_timeout=0.3)
    vote(holder)
    vote(watcher)
    for server in five[:3]:
        server.cli("SAVE")  # before anything is held
    lock = holder.lock(name, renew=False)
    lock.acquire()
    for server in five[:3]:
        forget(server, how)
    second = [False, False]
    while lock.owned() and not any(second):
        for number, other in enumerate((watcher, connect(urls(five, guard), ttl=TTL, node_timeout=0.3))):
            try:
                second[number] = other.lock(name).acquire(blocking=False) and lock.owned()
            except QuorumError:
                pass
    assert any(second) == (guard == 0.0)
    if guard:
        assert watcher.lock(name).acquire(timeout=10), "but when it is over, they vote again"
