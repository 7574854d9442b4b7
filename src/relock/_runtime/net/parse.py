"""Parsing of the argument ``nodes``: URLs and clients become a `Node` for each master."""

import itertools
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection

from relock._errors import ConfigurationError
from relock._runtime.net.credentials import follow
from relock._runtime.net.foreign import (
    Settings,
    ValkeyClient,
    counterpart_of_tasks,
    is_valkey_client,
    refuse_unfit,
    settings_of_tasks,
    settings_of_valkey,
    whole_name,
)
from relock._runtime.net.node import Node, Place, Seeds, host_and_port, normal
from relock._runtime.net.sentinel import SENTINEL_PORT, Discovery
from relock._urls import fault_of, is_path, split_url

# With these options, redis-py's connections would resend, decode or read without relock's knowledge.
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
    "socket_read_size",
    "client_name",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "event_dispatcher",
    "himport_registry",
)
_SENTINEL_SCHEME = "redis+sentinel"
_CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}  # the scheme by which each node is reached
_SERVER_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}  # redis-py's name for each
_TRIAL_SECONDS = 1.0  # the timeout of a connection that is never opened
_HOW_TO_WRITE = (
    "write redis://host:port/db, rediss://host:port/db, unix:///path, redis+sentinel://host:port,host:port/mymaster or "
    "redis+cluster://host:port,host:port, and a password with its special characters percent-encoded; valkey:// and "
    "valkeys:// are redis:// and rediss://"
)

OneNode: TypeAlias = (
    str
    | redis.Redis
    | redis.RedisCluster
    | ConnectionPool
    | redis.asyncio.Redis
    | redis.asyncio.RedisCluster
    | redis.asyncio.ConnectionPool
    | ValkeyClient
)
Nodes: TypeAlias = OneNode | Sequence[OneNode]


def parse_nodes(nodes: object) -> tuple[Node, ...]:
    """Return one `Node` for each master that `nodes` names, in that order.

    Raises:
        TypeError: `nodes` is no URL, no client of redis-py or valkey-py, no pool of redis-py and no sequence of these.
        ConfigurationError: an empty sequence, a URL that can't work, the same server twice, or a cluster and
            something else.
    """
    if isinstance(nodes, str | bytes) or not isinstance(nodes, Sequence):
        nodes = [nodes]
    if not nodes:
        raise ConfigurationError(
            "nodes=[]: name at least one master, for example redis://localhost:6379", option="nodes"
        )
    parsed = tuple(_parse_node(node) for node in nodes)
    if len(parsed) > 1 and any(node.cluster is not None for node in parsed):
        raise ConfigurationError(
            "nodes: a Cluster is one master, and can't be used with others: name it alone", option="nodes"
        )
    _check_distinct(parsed)
    return parsed


def warning_of_number(masters: int) -> str | None:
    """Return a warning that says how many failures an even number of masters tolerates; None for an odd number."""
    if masters % 2:
        return None
    failures = (masters - 1) // 2
    tolerated = "no failure" if failures == 0 else f"{failures} failure{'s' if failures > 1 else ''}"
    return (
        f"{masters} masters tolerate {tolerated}, like {masters - 1}: a quorum is {masters // 2 + 1} of them; "
        "use an odd number"
    )


def _check_distinct(nodes: Sequence[Node]) -> None:
    """Refuse a server that is named twice, and so would have two votes; other aliases show only on connecting."""
    for (i, one), (j, other) in itertools.combinations(enumerate(nodes, 1), 2):
        if one.servers & other.servers:
            raise ConfigurationError(
                f"nodes names the same server twice (entries {i} and {j}: {one.address} and {other.address}), which "
                "would then have two votes; name each master once",
                option="nodes",
            )


def _parse_node(node: object) -> Node:
    if isinstance(node, Node):  # only a simulation passes a `Node`
        return node
    if isinstance(node, str):
        return _node_of_url(node)
    refuse_unfit(node)
    for is_one, read, shown in _CLIENTS:
        if is_one(node):
            made = read(node)
            _try_out(made, f"the {shown}", may_name=True)
            follow(made.kwargs.get("credential_provider"), node)
            return made
    raise TypeError(
        "nodes must be URLs, clients (redis.Redis, redis.RedisCluster, those of redis.asyncio, valkey.Valkey) or a "
        f"ConnectionPool of redis-py, not {whole_name(type(node))}"
    )


def _node_of_url(url: str) -> Node:
    scheme = url.partition("://")[0] if "://" in url else ""
    # Errors of the standard library and of redis-py may quote a part of the password: only the scheme is shown.
    shown = f"a URL that begins with {scheme}://" if scheme else "a URL without a scheme"
    try:
        node = _READERS.get(scheme, _node_of_server_url)(url)
    except ValueError:
        fault = fault_of(url) or "it is no URL of a master"
        raise ConfigurationError(
            f"nodes: {shown} can't be understood: {fault}; {_HOW_TO_WRITE}", option="nodes"
        ) from None
    may_name = "@" not in split_url(url).query  # with an @ in it, the query may be a part of a password
    _try_out(node, shown, may_name=may_name)
    return node


def _node_of_server_url(url: str) -> Node:
    """Return the node of a server's URL; raise `ValueError` for a URL that can't be read.

    This also refuses parts that redis-py would silently ignore: most likely, they belong to a password that is not
    percent-encoded.
    """
    parts = urlsplit(url)
    parse_qsl(parts.query, strict_parsing=True)
    if parts.fragment:
        raise ValueError("a fragment")
    if parts.scheme.lower() == "unix":
        if not is_path(url.partition("://")[2]):
            raise ValueError("no path")
    elif not re.fullmatch(r"/*[0-9]*/*", parts.path) or parts.port == 0:
        raise ValueError("no number of a database, or of a port")
    return _node(*_settings_of_url(url))


def _settings_of_url(url: str) -> Settings:
    """Return redis-py's settings for a URL; TLS checks the host's name in every version, unless the URL says otherwise.

    redis-py does so by itself from 6.0. Before, any server with a certificate of the same authority was accepted.
    """
    kind, given = _settings_of(ConnectionPool.from_url(url))
    if issubclass(kind, SSLConnection) and given.get("ssl_cert_reqs") != "none":
        given.setdefault("ssl_check_hostname", True)
    return kind, given


def _settings_of(pool: ConnectionPool) -> Settings:
    return pool.connection_class, pool.connection_kwargs


def _node_of_sentinel_url(url: str) -> Node:
    """Return the master of a Sentinel URL; raise `ValueError` for a URL that can't be read.

    The URL is ``redis+sentinel://[user:password@]host[:port],…/service[/db]``.
    The credentials are the master's; the Sentinels' own come as ``sentinel_username`` and ``sentinel_password``.
    """
    parts = split_url(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    path = re.fullmatch(r"/([^/]+)(?:/([0-9]+))?", parts.path)
    if path is None or parts.fragment:
        raise ValueError("no service, or something after it")
    query = parse_qsl(parts.query, strict_parsing=True)
    own: dict[str, Any] = {
        name.removeprefix("sentinel_"): value for name, value in query if name in _SENTINEL_CREDENTIALS
    }
    others = urlencode([(name, value) for name, value in query if name not in _SENTINEL_CREDENTIALS])
    _, master = _settings_of_url(f"redis://{credentials}{at}host/{path[2] or 0}?{others}")
    sentinels = [_node_of_sentinel(host, own) for host in hosts.split(",")]
    return _sentinel_node(unquote(path[1]), sentinels, SentinelManagedConnection, master)


def _node_of_valkey_url(url: str) -> Node:
    scheme, _, rest = url.partition("://")
    return _node_of_server_url(f"{_SERVER_SCHEMES[scheme]}://{rest}")


_SENTINEL_CREDENTIALS = ("sentinel_username", "sentinel_password")


def _node_of_sentinel(at: str, credentials: dict[str, Any]) -> Node:
    host, port = _host_and_port(at, SENTINEL_PORT)
    return _node(Connection, {"host": host, "port": port, **credentials})


def _sentinel_node(
    service: str, sentinels: Sequence[Node], kind: type[Connection], given: dict[str, Any], **discovery: Any
) -> Node:
    """Return the master that these Sentinels call `service`; `given` has the options of connections to the master."""
    left_out = (*_OVERRIDDEN, "host", "port", "connection_pool", "redis_connect_func")
    kwargs = {option: value for option, value in given.items() if option not in left_out}
    places = [host_and_port(sentinel.kwargs["host"], sentinel.kwargs["port"]) for sentinel in sentinels]
    database = f"/{kwargs['db']}" if kwargs.get("db") else ""
    connects = [(place, sentinel.raw_connection) for place, sentinel in zip(places, sentinels, strict=True)]
    return Node(
        f"{_SENTINEL_SCHEME}://{','.join(places)}/{service}{database}",
        kind,
        kwargs,
        frozenset(f"{service} of {normal(place)}" for place in places),
        Discovery(service, connects, **discovery),
        client_name=_given_name(given),
    )


def _node_of_cluster_url(url: str) -> Node:
    """Return the node of ``redis+cluster://[user:password@]host[:port],…[/0]``; `ValueError` if that can't be read."""
    parts = split_url(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    parse_qsl(parts.query, strict_parsing=True)
    if parts.path not in ("", "/", "/0") or parts.fragment:
        raise ValueError("a database, or a fragment")
    scheme = _CLUSTER_SCHEMES[parts.scheme.lower()]
    template = _settings_of_url(f"{scheme}://{credentials}{at}host/0?{parts.query}")
    return _cluster_node([_with_place(template, *_host_and_port(host)) for host in hosts.split(",")])


def _host_and_port(at: str, usual_port: int = 6379) -> tuple[str, int]:
    parts = urlsplit(f"//{at}")
    if not parts.hostname or parts.path or parts.port == 0:
        raise ValueError("no host, or no port")
    return parts.hostname, parts.port or usual_port


def _with_place(template: Settings, host: str, port: int) -> Node:
    kind, kwargs = template
    return _node(kind, kwargs | {"host": host, "port": port, "db": 0})


def _cluster_node(seeds: Sequence[Node], remap: Callable[[Place], Place] | None = None) -> Node:
    """Return the node that stands for a cluster with these `seeds`; it connects like the first seed."""
    first = seeds[0]
    scheme = next(own for own, of_nodes in _CLUSTER_SCHEMES.items() if first.address.startswith(f"{of_nodes}://"))
    places = ",".join(host_and_port(seed.kwargs["host"], seed.kwargs["port"]) for seed in seeds)
    servers = frozenset().union(*(seed.servers for seed in seeds))
    return Node(
        f"{scheme}://{places}",
        first.connection_class,
        first.kwargs,
        servers,
        cluster=Seeds(tuple(seeds), remap),
        client_name=first.client_name,
    )


def _node_of_cluster_client(client: redis.RedisCluster) -> Node:
    """Return the cluster of a client of redis-py, with the client's settings for connections."""
    given: Any = client  # redis-py's cluster client has hardly any types
    kind, kwargs = _settings_of(client.get_redis_connection(given.get_default_node()).connection_pool)
    own = ("redis_connect_func", "cache", "cache_config")  # these options serve that client alone
    template = kind, {name: value for name, value in kwargs.items() if name not in own}
    seeds = [_with_place(template, node.host, int(node.port)) for node in given.get_nodes()]
    return _cluster_node(seeds, given.nodes_manager.address_remap)


_READERS: dict[str, Callable[[str], Node]] = {
    _SENTINEL_SCHEME: _node_of_sentinel_url,
    **dict.fromkeys(_CLUSTER_SCHEMES, _node_of_cluster_url),
    **dict.fromkeys(_SERVER_SCHEMES, _node_of_valkey_url),
}


def _node_of_cluster_for_tasks(client: Any) -> Node:
    """Return the cluster of a client of ``redis.asyncio``, which may know only the nodes that its user has named."""
    manager = client.nodes_manager
    kind = manager.connection_kwargs.get("connection_class", redis.asyncio.Connection)
    own: dict[str, Any] = {"redis_connect_func": None}  # the client's own function may set READONLY, for replicas
    template = counterpart_of_tasks(kind, manager.connection_kwargs | own)
    seeds = [_with_place(template, node.host, int(node.port)) for node in manager.startup_nodes.values()]
    return _cluster_node(seeds, getattr(manager, "address_remap", None))


def _node_of_client(client: Any, ours: Callable[[Any], Settings] = _settings_of) -> Node:
    """Return the master of a client or a pool, be it one that `redis.sentinel.Sentinel.master_for` made.

    Args:
        client: the client, of any of the libraries; or its pool.
        ours: returns the settings with which connections of redis-py are as those that the client's pool makes.
    """
    pool = getattr(client, "connection_pool", client)
    if not hasattr(pool, "sentinel_manager"):
        return _node(*ours(pool))
    if not pool.is_master:
        raise ConfigurationError(
            "nodes: the client is for the replicas of a service, and their locks are only copies: use master_for",
            option="nodes",
        )
    manager = pool.sentinel_manager
    return _sentinel_node(
        pool.service_name,
        [_node(*ours(sentinel.connection_pool)) for sentinel in manager.sentinels],
        *ours(pool),
        min_other_sentinels=manager.min_other_sentinels,
        master_host=getattr(manager, "_force_master_ip", None),  # older versions of redis-py lack it
    )


def _is(*kind: type) -> Callable[[object], bool]:
    return lambda client: isinstance(client, kind)


_CLIENTS: tuple[tuple[Callable[[object], bool], Callable[[Any], Node], str], ...] = (
    (_is(redis.Redis, ConnectionPool), _node_of_client, "connection pool of a redis-py client"),
    (_is(redis.RedisCluster), _node_of_cluster_client, "connection pool of a redis-py client"),
    (
        _is(redis.asyncio.Redis, redis.asyncio.ConnectionPool),
        partial(_node_of_client, ours=settings_of_tasks),
        "connection pool of a client of redis.asyncio",
    ),
    (_is(redis.asyncio.RedisCluster), _node_of_cluster_for_tasks, "settings of a cluster's client of redis.asyncio"),
    (is_valkey_client, partial(_node_of_client, ours=settings_of_valkey), "connection pool of a valkey-py client"),
)


def _try_out(node: Node, shown: str, *, may_name: bool) -> None:
    """Make a connection without opening it, to find options which redis-py's connections don't have.

    Raises:
        ConfigurationError: the connection can't be made. The error never quotes a value, and names an option only if
            `may_name` is set.
    """
    try:
        node.raw_connection(_TRIAL_SECONDS)
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None:
            problem = "has an option with a value that can't work"
        else:
            problem = "has an option that redis-py does not know" + (f": {unknown[1]!r}" if may_name else "")
        raise ConfigurationError(
            f"nodes: {shown} {problem}; the options are those of redis-py's connections, and a password must be "
            "percent-encoded",
            option="nodes",
        ) from None


def _node(kind: type[Any], given: dict[str, Any]) -> Node:
    kwargs = {option: value for option, value in given.items() if option not in _OVERRIDDEN}
    if issubclass(kind, UnixDomainSocketConnection):
        path = kwargs.get("path", "")
        address, server = f"unix://{path}", f"unix:{os.path.realpath(path)}"
    else:
        scheme = "rediss" if issubclass(kind, SSLConnection) else "redis"
        at = host_and_port(kwargs.get("host", "localhost"), kwargs.get("port", 6379))
        address, server = f"{scheme}://{at}", normal(at)
    name = _given_name(given)
    return Node(f"{address}/{kwargs.get('db', 0) or 0}", kind, kwargs, frozenset({server}), client_name=name)


def _given_name(kwargs: dict[str, Any]) -> str:
    """Return the option ``client_name``, which relock sets itself: redis-py would take another round trip for it."""
    return str(kwargs.get("client_name") or "")
