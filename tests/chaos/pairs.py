"""A master and its replica behind one address: who follows whom, and where the address leads.

Nothing here ends a connection unless it says so: those that are open stay where they are, as they do behind a virtual
address, DNS or a load balancer.
"""

import time
from typing import Any

import redis
from attrs import define
from support.proxy import Proxy
from support.servers import Server

from chaos.waiting import LOOK_SECONDS, wait_until

REPLICATION = (
    *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
    *("--repl-ping-replica-period", "1"),  # so that a broken connection is noticed
)
READY_SECONDS = 5.0  # how long a move waits for a replica that follows
SETTLE_SECONDS = 30.0  # by when a server follows another one: others may keep it busy meanwhile
FAILOVER_MS = 3000
PAUSE_MS = 10_000  # for so long nothing is written on the old master, at most
NOWHERE = ("127.0.0.1", "1")
TRIES = 5


def tell(server: Server, *words: object) -> None:
    """A command that may be sent twice: another fault may end the connection that brings it."""
    for number in range(TRIES):
        try:
            server.cli(*words)
            return
        except redis.ConnectionError:
            if number == TRIES - 1:
                raise
            time.sleep(LOOK_SECONDS)


def look(server: Server) -> dict[str, Any]:
    """What a server says of its replication; nothing where it does not answer."""
    try:
        with server.client() as client:
            info: dict[str, Any] = client.info("replication")
            return info
    except redis.RedisError:
        return {}


def follow(server: Server, master: Server) -> None:
    """Makes a server the replica of another one, and waits until it has all its data."""
    tell(server, "REPLICAOF", "127.0.0.1", str(master.port))
    if not wait_until(lambda: is_connected(server, master), SETTLE_SECONDS):
        raise AssertionError(f"a server does not follow its master: {look(server)}")


def is_connected(server: Server, master: Server) -> bool:
    """Whether it follows that master, and has its data."""
    info = look(server)
    return info.get("master_port") == master.port and info.get("master_link_status") == "up"


def is_master(server: Server) -> bool:
    """Whether it is one."""
    return look(server).get("role") == "master"


@define
class Pair:
    """What stands behind one address: `old`, the master at first, and `new`, its replica."""

    old: Server
    new: Server
    place: Proxy

    def is_ready(self) -> bool:
        """Whether the replica follows, waiting for that for a while."""
        return wait_until(lambda: is_connected(self.new, self.old), READY_SECONDS)

    def stop_writing(self) -> None:
        """Nothing is written on the old master from now on."""
        tell(self.old, "CLIENT", "PAUSE", PAUSE_MS, "WRITE")

    def is_in_step(self) -> bool:
        """Whether the replica has all that its master has by now, waiting for that for a while."""
        offset = look(self.old).get("master_repl_offset", float("inf"))
        return wait_until(lambda: look(self.new).get("slave_repl_offset", -1) >= offset, READY_SECONDS)

    def write_again(self) -> None:
        """What waited on the old master goes on, or is refused by what that is now."""
        tell(self.old, "CLIENT", "UNPAUSE")

    def fail_over(self) -> bool:
        """FAILOVER: the server itself waits for its replica, and follows it; whether that came to be."""
        try:
            tell(self.old, "FAILOVER", "TIMEOUT", FAILOVER_MS)
        except redis.ResponseError:
            pass  # it is under way, or another fault has parted the two: who is the master now says which
        return wait_until(lambda: is_master(self.new), READY_SECONDS + FAILOVER_MS / 1000)

    def cut(self) -> None:
        """The replica hears nothing more of what its master writes, and stays a replica."""
        tell(self.new, "REPLICAOF", *NOWHERE)

    def promote(self) -> None:
        """The replica is a master."""
        tell(self.new, "REPLICAOF", "NO", "ONE")

    def demote(self) -> None:
        """The old master follows the new one, and what it had beside that is gone."""
        follow(self.old, self.new)

    def take_back(self) -> None:
        """The old one, which follows, is the master again, and the new one its replica."""
        tell(self.old, "REPLICAOF", "NO", "ONE")
        follow(self.new, self.old)

    def lead(self) -> None:
        """The address leads to the new master; connections that are open stay where they are."""
        self.place.lead_new_to(self.new.port)

    def lead_home(self) -> None:
        """The address leads where it led, as nothing came of the move."""
        self.place.lead_new_to(self.old.port)

    def kill_normal(self) -> None:
        """Ends all connections to the old master but those that subscribe, as a Sentinel does."""
        tell(self.old, "CLIENT", "KILL", "TYPE", "normal")
