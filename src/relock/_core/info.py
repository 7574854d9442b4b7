"""Reading of INFO, in which a server describes itself, and of what it refuses; judging of the server by them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

# What follows where a server refuses a command in scripts.
_THEN = {
    "TIME": "relock can't work there, because each script reads the server's clock",
    "INFO": "a restart guard does not notice that a master became a replica, and a master again, on open connections",
    "PUBLISH": "no release tells a waiter, which looks every 2.5 s",
}


class ServerInfo(NamedTuple):
    """Facts that relock uses of INFO's sections server, replication and memory; empty where INFO lacks them.

    Attributes:
        run_id: the process; a restart gives it another one.
        replication_id: the history of its data set; a failover gives it another one.
        role: ``master`` or ``slave``.
        mode: ``standalone``, ``cluster`` or ``sentinel``.
        product: ``Redis`` or ``Valkey``.
        version: of that product.
        policy: ``maxmemory_policy``: what the server does when its memory is full.
        replicas: how many replicas it has.
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
        """Name of the process and its data set, which changes if the server may have forgotten leases."""
        return f"{self.run_id}:{self.replication_id}"

    @property
    def is_replica(self) -> bool:
        """True if the server's locks are only copies; False where INFO does not name its role."""
        return self.role not in ("", "master")

    @property
    def evicts(self) -> bool:
        """True if the server may drop a lock that is held; False where INFO does not name its policy."""
        return self.policy not in ("", "noeviction")


def fields_of(text: bytes) -> dict[str, str]:
    """Return the fields of an INFO reply."""
    return dict(line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)


def read_info(text: bytes) -> ServerInfo:
    """Return the facts of an INFO reply."""
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


def read_refusals(reply: Any) -> dict[str, str] | None:
    """Return the commands that a server refuses in scripts, and its words, by its reply to `probe`.

    Return None for any other reply: the server did not run the script.
    """
    if not isinstance(reply, list) or len(reply) % 2 or not all(isinstance(text, bytes) for text in reply):
        return None
    words = [text.decode(errors="replace") for text in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def refused_in_scripts(command: str, words: str) -> str:
    """Return the text of a problem: a server refuses this command in scripts, in these words."""
    return f"it refuses {command} in scripts ({words}): {_THEN[command]}"


def shared_servers(masters: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return, for each server with several addresses, these addresses: such a server would have several votes.

    Args:
        masters: the address of each master, and an id of its server; an empty id if the server is not known.
    """
    by_server: dict[str, list[str]] = {}
    for address, server in masters:
        if server:
            by_server.setdefault(server, []).append(address)
    return [addresses for addresses in by_server.values() if len(addresses) > 1]


def one_server(addresses: list[str]) -> str:
    """Return the text of the error that `addresses` are all of one server."""
    return f"{' and '.join(addresses)} are the same server: name each master once"
