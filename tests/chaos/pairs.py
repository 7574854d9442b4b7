"""A master and its replica behind one address: which one follows the other, and where the address leads.

A function here ends connections only if its docstring says so: open ones stay where they are, as behind a virtual
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
READY_SECONDS = 5.0  # for which a move waits for a replica that follows
SETTLE_SECONDS = 30.0  # until a server follows another one: others may keep it busy
FAILOVER_MS = 3000
PAUSE_MS = 10_000  # at most, for which writes wait on the old master
NOWHERE = ("127.0.0.1", "1")
TRIES = 5


def tell(server: Server, *words: object) -> None:
    """Send a command that does no harm twice, again if another fault ends the connection."""
    for number in range(TRIES):
        try:
            server.cli(*words)
            return
        except redis.ConnectionError:
            if number == TRIES - 1:
                raise
            time.sleep(LOOK_SECONDS)


def look(server: Server) -> dict[str, Any]:
    """Return a server's fields on replication; an empty dictionary if the server does not answer."""
    try:
        with server.client() as client:
            info: dict[str, Any] = client.info("replication")
            return info
    except redis.RedisError:
        return {}


def follow(server: Server, master: Server) -> None:
    """Make a server the replica of another one, and wait until it has all its data."""
    tell(server, "REPLICAOF", "127.0.0.1", str(master.port))
    if not wait_until(lambda: is_connected(server, master), SETTLE_SECONDS):
        raise AssertionError(f"a server does not follow its master: {look(server)}")


def is_connected(server: Server, master: Server) -> bool:
    """Return whether the server follows that master, and has the master's data."""
    info = look(server)
    return info.get("master_port") == master.port and info.get("master_link_status") == "up"


def is_master(server: Server) -> bool:
    """Return whether the server is a master."""
    return look(server).get("role") == "master"


@define
class Pair:
    """The servers behind one address: `old`, the master at first, and `new`, its replica."""

    old: Server
    new: Server
    place: Proxy

    def is_ready(self) -> bool:
        """Wait a while for the replica to follow; return whether it does."""
        return wait_until(lambda: is_connected(self.new, self.old), READY_SECONDS)

    def stop_writing(self) -> None:
        """Let writes wait on the old master from now on."""
        tell(self.old, "CLIENT", "PAUSE", PAUSE_MS, "WRITE")

    def is_in_step(self) -> bool:
        """Wait a while for the replica to have all data that its master has by now; return whether it does."""
        offset = look(self.old).get("master_repl_offset", float("inf"))
        return wait_until(lambda: look(self.new).get("slave_repl_offset", -1) >= offset, READY_SECONDS)

    def write_again(self) -> None:
        """Let the waiting writes on the old master go on; a master that is a replica by now refuses them."""
        tell(self.old, "CLIENT", "UNPAUSE")

    def fail_over(self) -> bool:
        """Let the server itself wait for its replica and then follow it, by FAILOVER; return whether that happened."""
        try:
            tell(self.old, "FAILOVER", "TIMEOUT", FAILOVER_MS)
        except redis.ResponseError:
            pass  # the failover is under way, or another fault has parted the two: see which one is the master
        return wait_until(lambda: is_master(self.new), READY_SECONDS + FAILOVER_MS / 1000)

    def cut(self) -> None:
        """Stop replication: the replica stays one, but hears nothing of its master's further writes."""
        tell(self.new, "REPLICAOF", *NOWHERE)

    def promote(self) -> None:
        """Make the replica a master."""
        tell(self.new, "REPLICAOF", "NO", "ONE")

    def demote(self) -> None:
        """Make the old master follow the new one, and so forget its own data."""
        follow(self.old, self.new)

    def take_back(self) -> None:
        """Make the old master, which is a replica now, the master again, and the new one its replica."""
        tell(self.old, "REPLICAOF", "NO", "ONE")
        follow(self.new, self.old)

    def lead(self) -> None:
        """Make the address lead to the new master; open connections stay where they are."""
        self.place.lead_new_to(self.new.port)

    def lead_home(self) -> None:
        """Make the address lead where it led before, because the move failed."""
        self.place.lead_new_to(self.old.port)

    def kill_normal(self) -> None:
        """End all connections to the old master but those that subscribe, as a Sentinel does."""
        tell(self.old, "CLIENT", "KILL", "TYPE", "normal")
