"""Masters that become a replica of their own replica, and then a master again, while connections stay open.

So operators fail back. The data that come back from the replica may lack a hold, and have a copy of the marker, which
names the incarnation that older sockets still name. Each of these sockets must find out that the server has changed.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import define
from support.masters import Masters
from support.quorum import key_of, takes
from support.servers import Server, find_servers
from support.until import pause, until
from support.urls import Urls

from relock import Client

Connect = Callable[..., Client]
TTL = 4.0  # and the guard
LONG = 60.0  # without a guard, a lease that outlasts the test
QUIET_SECONDS = 0.2
GUARDS = pytest.mark.parametrize("guard", [TTL, 0.0], ids=["guarded", "control: without the guard"])


@define
class House:
    """Masters, each with a replica."""

    masters: list[Server]
    replicas: list[Server]
    guard: float

    @property
    def urls(self) -> Urls:
        return Urls([master.url for master in self.masters], self.guard)

    def vote(self) -> None:
        """Give the masters votes as if clients had looked at them long ago, and let the replicas know that."""
        self._spread("first")  # a master makes itself a new replication ID when its first replica comes
        if self.guard:
            Masters(self.masters, guard=self.guard).let_vote()
        self._spread("second")

    def _spread(self, news: str) -> None:
        for master, replica in zip(self.masters, self.replicas, strict=True):
            master.cli("SET", news, "1")
            until(lambda one=replica: one.cli("EXISTS", news), within=30, what="the replica is in step")  # type: ignore[misc]

    def part(self) -> None:
        """Make the replicas masters of their own, which do not hear of grants from now on."""
        for replica in self.replicas:
            replica.cli("REPLICAOF", "NO", "ONE")

    def fail_back(self, count: int) -> None:
        """Make the first `count` masters follow their replicas, take their data, and become masters again."""
        for master, replica in list(zip(self.masters, self.replicas, strict=True))[:count]:
            master.cli("REPLICAOF", "127.0.0.1", str(replica.port))
            until(lambda one=master: _is_connected(one), within=30, what="the master has followed its replica")  # type: ignore[misc]
            master.cli("REPLICAOF", "NO", "ONE")


def _is_connected(master: Server) -> bool:
    with master.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


@pytest.fixture
def house(server_kind: str, masters_count: int, guard: float) -> Iterator[House]:
    program = find_servers()[server_kind]
    at_once = ("--repl-diskless-sync-delay", "0")
    masters = [Server(server_kind, program, *at_once).start() for _ in range(masters_count)]
    replicas = [
        Server(server_kind, program, *at_once, "--replicaof", "127.0.0.1", str(master.port)).start()
        for master in masters
    ]
    yield House(masters, replicas, guard)
    for server in (*masters, *replicas):
        server.close()


def options_of(guard: float) -> dict[str, Any]:
    return {"ttl": TTL if guard else LONG, "restart_guard": guard, "node_timeout": 0.5}


@GUARDS
@pytest.mark.every_server
@pytest.mark.parametrize("masters_count", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_quiet", [True, False], ids=["quiet", "busy"])
def test_nobody_is_let_in_by_a_socket_from_before(
    house: House, connect: Connect, name: str, guard: float, *, is_quiet: bool
) -> None:
    """Clients that were quiet meanwhile do not get in, nor those that asked all the time; without the guard both do."""
    house.vote()
    holder, other = (connect(list(house.urls), **options_of(guard)) for _ in range(2))
    until(lambda: takes(other, f"{name}-warm-up"), within=20, what="the client is connected, and its masters vote")
    house.part()
    lock = holder.lock(name, renew=False)
    assert lock.acquire(timeout=10)
    assert not takes(other, name)
    second = False
    if is_quiet:
        house.fail_back(2)
        assert sum(bool(master.cli("EXISTS", key_of(name))) for master in house.masters) <= len(house.masters) // 2
        time.sleep(QUIET_SECONDS)
    else:
        second = fail_back_beside(house, lambda: takes(other, name)) and lock.owned()
    while lock.owned() and not second:
        second = takes(other, name) and lock.owned()
        pause()
    assert second == (guard == 0.0)
    if guard:
        assert other.lock(name).acquire(timeout=30), "the masters vote again when the guard is over"


def fail_back_beside(house: House, takes_it: Callable[[], bool]) -> bool:
    """Let the masters fail back while a client asks again and again; return whether it got in meanwhile."""
    thread = threading.Thread(target=house.fail_back, args=(2,))
    thread.start()
    taken = False
    while thread.is_alive():
        taken = takes_it() or taken
    thread.join()
    return taken
