"""A master gives its place to another one behind the same address, and open connections stay where they are.

So does a virtual address, DNS or a load balancer in front of a master and its replica: a planned failover breaks
nothing. Each client then finds out by itself that its connections do not lead to the master any more. Its waiters must
not take a lock that the new master has given to another client.
"""

from collections.abc import Callable, Iterator

import pytest
from attrs import define
from support.masters import Masters
from support.proxy import Proxy
from support.room import Crowd, Room
from support.servers import Server, find_servers
from support.until import until

from relock import Client

Connect = Callable[..., Client]
MOVE_SECONDS = 10.0  # within which a waiter that was deaf has had its turn
GUARD = 5.0
TTL = 5.0
PAUSE_MS = 10_000  # for which writes wait on the old master, at most
NO_VOTE = 1.02 * GUARD  # for which the new master grants nothing


@define
class Pair:
    """A master and its replica behind one address."""

    master: Server
    replica: Server
    place: Proxy

    def vote(self, guard: float) -> None:
        """Give the master a vote: with a guard, as if a client had looked at the master long ago."""
        self.in_step()  # a master makes itself a new replication ID when its first replica comes
        if guard:
            Masters([self.master], guard=guard).let_vote()
        self.in_step()

    def in_step(self) -> None:
        """Wait until the replica has all data of the master."""
        offset = self.master.client().info("replication")["master_repl_offset"]

        def has_all() -> bool:
            info = self.replica.client().info("replication")
            return info.get("master_link_status") == "up" and info["slave_repl_offset"] >= offset

        until(has_all, within=30, what="the replica has all that its master has")

    def move(self, how: str) -> None:
        """Make the replica the master, without a loss, and make the address lead there."""
        if how == "FAILOVER":
            self.master.cli("FAILOVER")
        else:
            self.master.cli("CLIENT", "PAUSE", PAUSE_MS, "WRITE")
            self.in_step()
            self.replica.cli("REPLICAOF", "NO", "ONE")
        until(lambda: self.replica.cli("ROLE")[0] == b"master", within=30, what="the replica is the master")
        self.place.lead_new_to(self.replica.port)
        if how == "by hand":
            self.master.cli("REPLICAOF", "127.0.0.1", self.replica.port)
        elif how == "alone":
            self.master.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        if how != "FAILOVER":
            self.master.cli("CLIENT", "UNPAUSE")


@pytest.fixture
def pair(server_kind: str) -> Iterator[Pair]:
    program = find_servers()[server_kind]
    master = Server(server_kind, program, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1").start()
    replica = Server(
        server_kind, program, "--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-sync-delay", "0"
    ).start()
    place = Proxy(master.port)
    yield Pair(master, replica, place)
    place.close()
    for server in (master, replica):
        server.close()


@pytest.mark.every_server
@pytest.mark.parametrize("handoff", ["grant", pytest.param("wake", marks=pytest.mark.long)])
@pytest.mark.parametrize("guard", [0.0, GUARD], ids=["unguarded", "guarded"])
@pytest.mark.parametrize("how", ["FAILOVER", "by hand", "alone"])
def test_after_a_planned_failover_waiters_are_served_in_their_turn_and_alone(
    pair: Pair, connect: Connect, name: str, *, how: str, guard: float, handoff: str
) -> None:
    """No hold is lost, no two are inside at once, and the waiters that listened at the old master are served soon."""
    pair.vote(guard)
    options = {"ttl": TTL, "restart_guard": guard, "handoff": handoff, "node_timeout": 1.0}
    holder, waiting, others = (connect(pair.place.url, **options) for _ in range(3))
    crowd = Crowd(Room(), name)
    held = holder.lock(name)
    assert held.acquire(timeout=20)
    crowd.wait_for_a_turn(waiting, 2, pair.master)
    crowd.come_again(others, 3, pair.master)
    pair.move(how)
    assert held.owned(), "the hold outlives the move"
    held.release()
    late = crowd.late(MOVE_SECONDS + (2 * NO_VOTE if guard else 0.0))
    served = crowd.room.served
    crowd.end()
    assert crowd.room.together == [], "no two threads were inside at once"
    assert crowd.room.lost == [], "no hold was lost"
    assert late == [], f"all waiters were served, among {served} turns"
