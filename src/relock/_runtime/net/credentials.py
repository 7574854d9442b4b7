"""New credentials from redis-py's streaming credential providers, such as redis-entraid's.

Such a provider gives the credentials for a new connection, as every provider does, and later passes new ones to a
callback. It has one callback, and redis-py has set that for the pool of the user's client. So relock's callback passes
all credentials on to that pool.
"""

import inspect
import logging
from collections.abc import Generator
from typing import Any
from weakref import WeakValueDictionary

from relock._runtime.live_set import LiveSet

logger = logging.getLogger("relock.masters")

Words = tuple[str | bytes, ...]


class Credentials:
    """Credentials from one provider, for all masters of this process to which they give access.

    Attributes:
        latest: the command that authenticates with the newest ones, each time another object; None before the first
            ones have come to the callback.
        takers: the masters, whose method `renew` is called for new ones.
        clients: clients of the user, to whose pools new ones must be passed on.
    """

    def __init__(self, provider: object) -> None:
        self.latest: Words | None = None
        self.takers: LiveSet[Any] = LiveSet()
        self.clients: LiveSet[Any] = LiveSet()
        self._provider = provider  # keeps it alive, so that no other gets its id

    def take(self, given: Any) -> "_Rest":
        """Take new credentials, as the provider's callback. Raise nothing: a provider may then give no more.

        Args:
            given: a token, as in `redis.auth.token`.

        Returns:
            An awaitable, for a provider that awaits its callback: it serves the user's pools for tasks.
        """
        rest = _Rest([], given)
        try:
            user, password = given.try_get("oid"), given.get_value()
            self.latest = ("AUTH", password) if user is None else ("AUTH", user, password)  # Mark, then look
            for taker in self.takers:
                taker.renew()
            for pool in [pool for client in self.clients for pool in _pools(client)]:
                if inspect.iscoroutinefunction(pool.re_auth_callback):
                    rest.pools.append(pool)
                else:
                    pool.re_auth_callback(given)
        except Exception:
            for taker in self.takers:
                text = "new credentials could not be used everywhere"
                taker.platform.log.warning(logger, text, exc_info=True)
        return rest


class _Rest:
    """Awaitable that passes credentials on to the user's pools for tasks."""

    def __init__(self, pools: list[Any], given: Any) -> None:
        self.pools = pools
        self._given = given

    def __await__(self) -> Generator[Any, Any, None]:
        for pool in self.pools:
            yield from pool.re_auth_callback(self._given).__await__()


_by_provider: WeakValueDictionary[int, Credentials] = WeakValueDictionary()


def credentials_of(provider: object) -> Credentials:
    """Return the credentials from a provider, the same object while that is in use; a new one without a provider."""
    return Credentials(None) if provider is None else _by_provider.setdefault(id(provider), Credentials(provider))


def follow(provider: Any, client: object) -> None:
    """Have `credentials_of` a provider, which `client` has, take the new ones, if the provider streams them."""
    if callable(getattr(provider, "on_next", None)):
        credentials = credentials_of(provider)
        credentials.clients.add(client)
        provider.on_next(credentials.take)


def _pools(client: Any) -> list[Any]:
    """Return the pools of a client of redis-py that take new credentials; the nodes of a cluster's client for tasks."""
    nodes = client.get_nodes() if hasattr(client, "get_nodes") else [client]
    holders = [getattr(node, "redis_connection", None) or node for node in nodes]
    pools = [getattr(holder, "connection_pool", holder) for holder in holders]
    return [pool for pool in pools if hasattr(pool, "re_auth_callback")]
