"""A Redis Cluster of real servers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from support.servers import Server, free_port, is_free
from support.until import until

BUS_OFFSET = 10_000  # from a node's port to that of its cluster bus
FORM_SECONDS = 60.0  # nodes that stand still for a second are taken for failed, and known again only later


class ClusterOfServers:
    """A cluster of masters that share the slots evenly, and know each other; `add_replica` adds replicas."""

    def __init__(
        self, kind: str, program: Path, *arguments: str, masters: int = 3, node_timeout_ms: int = 15_000
    ) -> None:
        self._make: Callable[[], Server] = lambda: Server(
            kind,
            program,
            *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"),
            *("--cluster-node-timeout", str(node_timeout_ms), "--repl-diskless-sync-delay", "0"),
            *arguments,
            port=port_with_bus(),
        )
        self.members: list[Server] = []
        try:
            self._start(masters)
        except BaseException:
            self.close()
            raise

    def _start(self, masters: int) -> None:
        for _ in range(masters):
            self.add()
        bounds = [i * REDIS_CLUSTER_HASH_SLOTS // masters for i in range(masters + 1)]
        for i, server in enumerate(self.members):
            server.cli("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            server.cli("CLUSTER", "ADDSLOTS", *range(bounds[i], bounds[i + 1]))
        for server in self.members[1:]:
            server.cli("CLUSTER", "MEET", "127.0.0.1", self.members[0].port)
        until(self._is_formed, within=FORM_SECONDS, what="all nodes know each other and all slots")

    def add(self) -> Server:
        """Start one more server, which knows no other yet."""
        server = self._make()
        self.members.append(server)
        return server.start()

    def add_replica(self, master: Server) -> Server:
        """Start one more server, which follows `master`."""
        replica = self.add()
        replica.cli("CLUSTER", "MEET", "127.0.0.1", master.port)
        until(self._is_formed, within=FORM_SECONDS, what="the replica knows all nodes")
        replica.cli("CLUSTER", "REPLICATE", self.id_of(master))
        until(lambda: self._follows(replica), within=FORM_SECONDS, what="the replica follows its master")
        # Until then Redis ignores the start of a planned failover, and denies its vote.
        until(lambda: self._is_known(replica, master), within=FORM_SECONDS, what="all know whom the replica follows")
        return replica

    def _is_formed(self) -> bool:
        infos = [server.cli("CLUSTER", "INFO").decode() for server in self.members]
        known = f"cluster_known_nodes:{len(self.members)}\r\n"
        all_slots = f"cluster_slots_ok:{REDIS_CLUSTER_HASH_SLOTS}\r\n"
        return all("cluster_state:ok" in info and known in info and all_slots in info for info in infos)

    def _follows(self, replica: Server) -> bool:
        with replica.client() as client:
            return bool(client.info("replication").get("master_link_status") == "up")

    def _is_known(self, replica: Server, master: Server) -> bool:
        line = re.compile(rf"^{self.id_of(replica)} \S+ (myself,)?slave {self.id_of(master)} ", re.MULTILINE)
        return all(line.search(server.cli("CLUSTER", "NODES").decode()) for server in self.members)

    @staticmethod
    def id_of(server: Server) -> str:
        """Return the id by which the nodes know a server."""
        name: str = server.cli("CLUSTER", "MYID").decode()
        return name

    @property
    def url(self) -> str:
        """Return the cluster's URL, with its first node."""
        return self.url_by(self.members[0])

    def url_by(self, *servers: Server) -> str:
        """Return the cluster's URL, with these nodes."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in servers)}"

    def owner(self, name: str) -> Server:
        """Return the node that serves the lock's slot, as the first node says."""
        slot = slot_of(name)
        for first, last, (_, port, *_), *_ in self._raw(self.members[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.members if server.port == port)
        raise AssertionError(f"nobody serves slot {slot}")

    @staticmethod
    def _raw(server: Server, *words: str) -> list[tuple[int, int, list[int]]]:
        """Return a reply unchanged; redis-py would convert it."""
        with server.client() as client:
            client.response_callbacks.clear()
            reply: list[tuple[int, int, list[int]]] = client.execute_command(*words)
            return reply

    # Moving a slot --------------------------------------------------------------------------------------------------

    def begin_to_move(self, slot: int, source: Server, target: Server) -> None:
        """Begin to move a slot: from now on its keys may be at either server."""
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    @staticmethod
    def move_keys(source: Server, target: Server, *keys: str | bytes) -> None:
        """Move these keys, as far as they exist."""
        source.cli("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def move_all_keys(self, slot: int, source: Server, target: Server) -> None:
        """Move all keys of the slot."""
        while keys := source.cli("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.move_keys(source, target, *keys)

    def finish_moving(self, slot: int, source: Server, target: Server) -> None:
        """Tell all masters, one after the other, that the slot belongs to the target."""
        for server in (target, source, *(one for one in self.members if one not in (source, target))):
            server.cli("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def close(self) -> None:
        """End all servers."""
        for server in self.members:
            server.close()


def knows_sharded_channels(cluster: ClusterOfServers) -> bool:
    """Return whether the servers know sharded channels: Redis from 7.0, and every Valkey."""
    with cluster.members[0].client() as client:
        return int(str(client.info("server")["redis_version"]).split(".")[0]) >= 7


def slot_of(name: str) -> int:
    """Return the slot of a lock's keys."""
    return key_slot(f"lock:{{{name}}}".encode())


def names_in(slot: int, prefix: str = "name") -> Iterator[str]:
    """Yield names of locks whose keys are in the slot."""
    number = 0
    while True:
        number += 1
        if slot_of(f"{prefix}-{number}") == slot:
            yield f"{prefix}-{number}"


def port_with_bus() -> int:
    """Return a free port whose cluster bus is free as well."""
    while True:
        port = free_port()
        if is_free(port + BUS_OFFSET):
            return port
