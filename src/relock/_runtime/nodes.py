"""From what users pass as ``nodes`` to what opens a connection."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import redis
from attrs import field, frozen
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from relock._errors import ConfigurationError

# Of what a connection of redis-py may be given, these would resend, decode or read behind our back.
_OVERRIDDEN = (
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "health_check_interval",
    "protocol",
    "socket_timeout",
    "socket_connect_timeout",
    "client_name",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "event_dispatcher",
    "himport_registry",
)
_NOT_YET = {
    "redis+sentinel": "Sentinel",
    "redis+cluster": "Cluster",
}


class Wire(Protocol):
    """What relock uses of a connection of redis-py, in whichever version: nothing that resends or reconnects."""

    def connect(self) -> None:
        """Opens the socket and authenticates."""

    def disconnect(self) -> None:
        """Closes the socket."""

    def pack_commands(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[bytes]:
        """Commands as bytes for the wire."""

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:
        """Sends what `pack_commands` made."""

    def send_command(self, *words: str | int | bytes, check_health: bool = True) -> None:
        """Packs and sends one command."""

    def read_response(self, *, disconnect_on_error: bool = True) -> Any:
        """Reads one reply; raises it if it is an error."""

    def can_read(self, timeout: float) -> bool:
        """Whether something is there to be read, within `timeout` seconds."""


@frozen
class Node:
    """One master: how to open a connection to it.

    Attributes:
        address: for people; never holds a password.
    """

    address: str
    connection_class: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(repr=False)

    def connection(self, timeout: float) -> Wire:
        """A connection that is not open yet, and that resends nothing; `timeout` in seconds."""
        wire: Wire = self.connection_class(
            **self.kwargs,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            protocol=2,
        )
        return wire


def parse_nodes(nodes: object) -> tuple[Node, ...]:
    """One `Node` for each master that `nodes` names.

    Raises:
        TypeError: `nodes` is no URL, no redis-py client and no sequence of these.
        ConfigurationError: an empty sequence, an unknown URL scheme, or a way to run Redis that is not supported yet.
    """
    if isinstance(nodes, str | bytes) or not isinstance(nodes, Sequence):
        nodes = [nodes]
    if not nodes:
        raise ConfigurationError(
            "nodes=[]: name at least one master, for example redis://localhost:6379", option="nodes"
        )
    if len(nodes) > 1:
        raise ConfigurationError(
            f"nodes names {len(nodes)} masters: a quorum of several is not supported yet; name one", option="nodes"
        )
    return tuple(_parse_node(node) for node in nodes)


def _parse_node(node: object) -> Node:
    if isinstance(node, str):
        return _node_of_url(node)
    if isinstance(node, redis.Redis):
        return _node_of_client(node)
    if isinstance(node, redis.RedisCluster):
        raise ConfigurationError("nodes: a Redis Cluster is not supported yet", option="nodes")
    raise TypeError(f"nodes must be URLs or redis-py clients, not {type(node).__name__}")


def _node_of_url(url: str) -> Node:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in _NOT_YET:
        raise ConfigurationError(f"nodes: {_NOT_YET[scheme]} ({scheme}://) is not supported yet", option="nodes")
    try:
        return _node(ConnectionPool.from_url(url))
    except ValueError:
        # The text of that error may hold a part of the password, so only the scheme is shown.
        shown = f"a URL that begins with {scheme}://" if scheme else "a URL without a scheme"
        raise ConfigurationError(
            f"nodes: {shown} can't be understood; write redis://host:port/db, rediss://host:port/db or unix:///path, "
            "and a password with its special characters percent-encoded",
            option="nodes",
        ) from None


def _node_of_client(client: redis.Redis) -> Node:
    pool = client.connection_pool
    if pool.connection_class.__module__ == "redis.sentinel":
        raise ConfigurationError("nodes: a client made by Sentinel is not supported yet", option="nodes")
    return _node(pool)


def _node(pool: ConnectionPool) -> Node:
    kwargs = {option: value for option, value in pool.connection_kwargs.items() if option not in _OVERRIDDEN}
    kind = pool.connection_class
    if issubclass(kind, UnixDomainSocketConnection):
        address = f"unix://{kwargs.get('path', '')}"
    else:
        scheme = "rediss" if issubclass(kind, SSLConnection) else "redis"
        address = f"{scheme}://{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    return Node(f"{address}/{kwargs.get('db', 0) or 0}", kind, kwargs)
