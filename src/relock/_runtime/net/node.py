"""Masters as users name them, with the settings of connections to them."""

import ipaddress
from collections.abc import Callable
from typing import Any, NamedTuple

from attrs import evolve, frozen
from redis.backoff import NoBackoff
from redis.retry import Retry

from relock._runtime.net.credentials import Credentials, credentials_of
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.sentinel import Discovery

# redis-py keeps a buffer of this size for each connection, though it reads only while a connection is opened.
READ_BYTES = 4096
Place = tuple[str, int]  # a host and its port


@frozen(eq=False, repr=False)
class Node:
    """Master as its user names it, with the settings of connections to it.

    Attributes:
        address: the address for messages, without a password.
        servers: names that tell the master from others; two nodes that share a name are the same master.
        discovery: the search for the master through Sentinels; None for a server with an address of its own.
        cluster: the nodes to ask first for those of a cluster, which is one master; None for a server.
        client_name: the user's name for the connections, which the server lists; empty for none.
    """

    address: str
    connection_class: Callable[..., Any]
    kwargs: dict[str, Any]
    servers: frozenset[str] = frozenset()
    discovery: Discovery | None = None
    cluster: "Seeds | None" = None
    client_name: str = ""

    @property
    def credentials(self) -> Credentials:
        """Credentials of the node's credential provider."""
        return credentials_of(self.kwargs.get("credential_provider"))

    def raw_connection(self, timeout: float) -> RawConnection:
        """Return a new connection that is not open yet, and that resends nothing; `timeout` in seconds."""
        found = {} if self.discovery is None else self.discovery.connection_options(timeout)
        raw: RawConnection = self.connection_class(
            **(self.kwargs | found),
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            socket_read_size=READ_BYTES,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            protocol=2,
        )
        return raw


class Seeds(NamedTuple):
    """Nodes of a cluster that are asked first for all of its nodes.

    Attributes:
        nodes: the nodes that the user, or the user's client, has named.
        remap: maps the place that the cluster names for a node to the place where this client reaches it.
    """

    nodes: tuple[Node, ...]
    remap: Callable[[Place], Place] | None = None

    def node_at(self, host: str, port: int) -> Node:
        """Return the node that the cluster names by this host and port, with the settings of the first seed."""
        if self.remap is not None:
            host, port = self.remap((host, port))
        seed = self.nodes[0]
        scheme = seed.address.partition("://")[0]
        address = f"{scheme}://{host_and_port(host, port)}/0"
        return evolve(seed, address=address, kwargs=seed.kwargs | {"host": host, "port": port})


def host_and_port(host: str, port: int | str) -> str:
    """Return host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def normal(at: str) -> str:
    """Return a host and port in a normal form, in which two can be compared, without asking DNS."""
    host, _, port = at.rpartition(":")
    try:
        host = str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        host = host.lower().removesuffix(".")
    return f"{host}:{port}"
