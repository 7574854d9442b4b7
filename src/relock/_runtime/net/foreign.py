"""Clients other than redis-py's own for threads: some whose settings relock's connections take, and some refused.

A thread opens each connection, even if a loop watches it later. So relock uses only the settings of a client of
``redis.asyncio``, and none of its connections.
"""

import inspect
import sys
from typing import Any, Protocol

from redis.asyncio import connection as for_tasks
from redis.asyncio import sentinel as sentinel_for_tasks
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from relock._errors import ConfigurationError

# redis-py's connections lack these options of valkey-py's, or have their own.
_OF_VALKEY_ALONE = (
    *("parser_class", "lib_name", "lib_version", "command_packer", "client_cache", "cache_enabled", "cache_max_size"),
    *("cache_ttl", "cache_policy", "cache_deny_list", "cache_allow_list"),
)
# redis-py's connections lack these options of redis.asyncio's: some are the client's, some can only be awaited.
_OF_TASKS_ALONE = (
    *("parser_class", "encoder_class", "connection_class", "connection_pool", "max_connections", "response_callbacks"),
    *("orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout"),
)
_RENAMED = {"valkey_connect_func": "redis_connect_func"}
# Masters that merge, by a client for threads and one for tasks.
_OF_SEVERAL_DATABASES = {("redis.multidb.client", "MultiDBClient"), ("redis.asyncio.multidb.client", "MultiDBClient")}
# None asks for no certificate. Any other option that is None has its default, and redis-py may not know the option.
_NONE_MEANS_NONE = "ssl_cert_reqs"

Settings = tuple[type[Any], dict[str, Any]]  # a class of connections, and its arguments


class ValkeyClient(Protocol):
    """Client of valkey-py for threads, described so that type checkers refuse clients whose methods are awaited."""

    @property
    def connection_pool(self) -> object:
        """Pool that makes the client's connections."""

    def close(self) -> None:
        """Close the client's connections."""


def whole_name(kind: type) -> str:
    """Return the name of a class, with its module unless it is built in, to tell it from others of that name."""
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def refuse_unfit(client: object) -> None:
    """Refuse fakeredis, which has no socket to poll, Sentinels without a service, and several active masters.

    Raises:
        TypeError: `client` is one of fakeredis, or makes connections of fakeredis; or `client` is a ``Sentinel`` of
            redis-py or valkey-py, which does not say which of its services is meant.
        ConfigurationError: `client` is a ``MultiDBClient`` for threads or for tasks. Old versions of redis-py lack the
            classes, and new ones import them with a package of their own, so the names tell.
    """
    if any((base.__module__, base.__name__) in _OF_SEVERAL_DATABASES for base in type(client).__mro__):
        raise ConfigurationError(
            "nodes: a MultiDBClient can't be used: its databases are masters that merge what each has granted, and it "
            "changes from one to another, so two owners could have one lock; name one database, or several independent "
            "masters, of which a quorum decides",
            option="nodes",
        )
    if hasattr(client, "master_for"):
        raise TypeError(
            f"nodes: a {whole_name(type(client))} may know several masters, so name one: pass "
            'sentinel.master_for("mymaster"), with the name that the Sentinels have for it'
        )
    pool = getattr(client, "connection_pool", client)
    for kind in (type(client), getattr(pool, "connection_class", object)):
        if any(base.__module__.partition(".")[0] == "fakeredis" for base in kind.__mro__):
            raise TypeError(
                f"nodes: {whole_name(type(client))} can't be used: fakeredis has no sockets to wait at; for tests "
                "without a server use relock.testing.Lab"
            )


def is_valkey_client(client: object) -> bool:
    """Return whether `client` is one of valkey-py, without importing valkey-py."""
    valkey: Any = sys.modules.get("valkey")
    return valkey is not None and isinstance(client, valkey.Valkey)


def settings_of_tasks(pool: Any) -> Settings:
    """Return the settings of connections for threads that are as those which `pool` of ``redis.asyncio`` makes.

    Raises:
        TypeError: its connections are of a class that has no counterpart, or are set up by a function that is awaited.
    """
    return counterpart_of_tasks(pool.connection_class, pool.connection_kwargs)


def counterpart_of_tasks(kind_for_tasks: type, settings: dict[str, Any]) -> Settings:
    """Return settings as `settings_of_tasks` does, from a class of connections and its arguments."""
    kind = _COUNTERPARTS_FOR_TASKS.get(kind_for_tasks)
    provider = settings.get("credential_provider")
    if kind is None or settings.get("redis_connect_func") is not None or _must_be_awaited(provider):
        name = whole_name(kind_for_tasks)
        raise TypeError(
            f"nodes: relock opens connections on threads, but only a task can make or set up the {name} of this client "
            "of redis.asyncio: use a URL or a redis.Redis"
        )
    return kind, {option: value for option, value in settings.items() if option not in _OF_TASKS_ALONE}


def _must_be_awaited(provider: Any) -> bool:
    """Return whether `provider` gives its credentials to tasks alone."""
    if provider is None:
        return False
    get = provider.get_credentials
    return inspect.iscoroutinefunction(get) or getattr(get, "__func__", None) is CredentialProvider.get_credentials


_COUNTERPARTS_FOR_TASKS: dict[type, type[Any]] = {
    for_tasks.Connection: Connection,
    for_tasks.SSLConnection: SSLConnection,
    for_tasks.UnixDomainSocketConnection: UnixDomainSocketConnection,
    sentinel_for_tasks.SentinelManagedConnection: SentinelManagedConnection,
    sentinel_for_tasks.SentinelManagedSSLConnection: SentinelManagedSSLConnection,
}


def settings_of_valkey(pool: Any) -> Settings:
    """Return the settings of connections of redis-py that are as those which `pool` of valkey-py makes.

    Raises:
        TypeError: its connections are of a class that redis-py has no counterpart of.
    """
    kind = _counterparts().get(pool.connection_class)
    if kind is None:
        name = whole_name(pool.connection_class)
        raise TypeError(f"nodes: the client of valkey-py makes connections of {name}, which redis-py lacks: use a URL")
    given = {
        _RENAMED.get(option, option): value
        for option, value in pool.connection_kwargs.items()
        if (value is not None or option == _NONE_MEANS_NONE) and option not in _OF_VALKEY_ALONE
    }
    if issubclass(kind, SSLConnection):
        given.setdefault("ssl_check_hostname", False)  # valkey-py's default; redis-py 6.0 changed its own
    return kind, given


def _counterparts() -> dict[type, type[Connection]]:
    from valkey import connection, sentinel

    return {
        connection.Connection: Connection,
        connection.SSLConnection: SSLConnection,
        connection.UnixDomainSocketConnection: UnixDomainSocketConnection,
        sentinel.SentinelManagedConnection: SentinelManagedConnection,
        sentinel.SentinelManagedSSLConnection: SentinelManagedSSLConnection,
    }
