"""What a server says of itself (INFO), and what that makes of it: read and judged here, and nowhere else."""

from collections.abc import Iterable
from typing import NamedTuple


class ServerInfo(NamedTuple):
    """What relock goes by of INFO's sections server, replication and memory. What is not said there is empty.

    Attributes:
        run_id: the process; a restart gives it another one.
        replication_id: the history of its data set; a failover gives it another one.
        role: ``master`` or ``slave``.
        mode: ``standalone``, ``cluster`` or ``sentinel``.
        product: ``Redis`` or ``Valkey``.
        version: of that product.
        policy: what it does where there is no memory left.
        replicas: how many follow it.
    """

    run_id: str
    replication_id: str
    role: str
    mode: str
    product: str
    version: str
    policy: str
    replicas: int

    @property
    def incarnation(self) -> str:
        """The process and its data set. A server that may have forgotten leases has another one than before."""
        return f"{self.run_id}:{self.replication_id}"

    @property
    def is_replica(self) -> bool:
        """Whether its locks are only copies; not where it does not say what it is."""
        return self.role not in ("", "master")

    @property
    def evicts(self) -> bool:
        """Whether it may drop a lock that is held; not where it does not say."""
        return self.policy not in ("", "noeviction")


def fields_of(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    return dict(line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)


def read_info(text: bytes) -> ServerInfo:
    """What an INFO reply says."""
    fields = fields_of(text)
    replicas = fields.get("connected_slaves", "")
    return ServerInfo(
        run_id=fields.get("run_id", ""),
        replication_id=fields.get("master_replid", ""),
        role=fields.get("role", ""),
        mode=fields.get("redis_mode") or fields.get("server_mode", ""),
        product="Valkey" if "valkey_version" in fields else "Redis",
        version=fields.get("valkey_version") or fields.get("redis_version", ""),
        policy=fields.get("maxmemory_policy", ""),
        replicas=int(replicas) if replicas.isdigit() else 0,
    )


def shared_servers(masters: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The addresses that lead to one server, for each server that has several: it would have as many votes.

    Args:
        masters: the address of each, and what tells its server from another. What is empty is not known.
    """
    by_server: dict[str, list[str]] = {}
    for address, server in masters:
        if server:
            by_server.setdefault(server, []).append(address)
    return [addresses for addresses in by_server.values() if len(addresses) > 1]


def one_server(addresses: list[str]) -> str:
    """What is wrong with these, in words."""
    return f"{' and '.join(addresses)} are the same server: name each master once"
