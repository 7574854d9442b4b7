"""Search for the present master of a service by asking its Sentinels.

The steps are those of redis.io, "Guidelines for Redis clients with support for Redis Sentinel".
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from redis import exceptions as redis_errors

from relock._core.info import read_info
from relock._runtime.net.raw_connection import RawConnection

SENTINEL_PORT = 26379

Connect = Callable[[float], RawConnection]  # makes a connection to one Sentinel, with a timeout in seconds


class NoMasterError(redis_errors.ConnectionError):
    """No Sentinel names a master that is up.

    Attributes:
        errors: the error of asking each Sentinel; None for a Sentinel that answered and knows the service.
    """

    def __init__(self, text: str, errors: Sequence[BaseException | None]) -> None:
        super().__init__(text)
        self.errors = errors


class Discovery:
    """Search for a service's master: it asks the Sentinels anew for each connection that is opened.

    Attributes:
        service: the name by which the Sentinels know the master.
        sentinels: the address of each Sentinel, for people, and a function that makes a connection to it; the one that
            knew the master last comes first.
        min_other_sentinels: a Sentinel that sees fewer others may be cut off, and its answer is ignored.
        master_host: the host to connect to in place of the one that the Sentinels name; None: use theirs.
    """

    sentinels: tuple[tuple[str, Connect], ...]

    def __init__(
        self,
        service: str,
        sentinels: Sequence[tuple[str, Connect]],
        *,
        min_other_sentinels: int = 0,
        master_host: str | None = None,
    ) -> None:
        self.service = service
        self.sentinels = tuple(sentinels)
        self.min_other_sentinels = min_other_sentinels
        self.master_host = master_host

    def connection_options(self, timeout: float) -> dict[str, Any]:
        """Return the options with which a `redis.sentinel.SentinelManagedConnection` finds the master when it connects.

        Args:
            timeout: seconds to wait for each Sentinel.
        """
        finder = SimpleNamespace(  # stands for redis-py's pool of such connections
            is_master=True,
            check_connection=False,
            service_name=self.service,
            get_master_address=partial(self.find, timeout),
        )
        return {"connection_pool": finder, "redis_connect_func": _check_role}

    def find(self, timeout: float) -> tuple[str, int]:
        """Return host and port of the master.

        Args:
            timeout: seconds to wait for each Sentinel.

        Raises:
            NoMasterError: no Sentinel names a master that is up.
        """
        reasons: list[str] = []
        errors: list[BaseException | None] = []
        for address, connect in self.sentinels:
            try:
                state = self._ask(connect, timeout)
            except (redis_errors.RedisError, OSError) as error:
                reasons.append(f"{address}: {error}")
                errors.append(error)
                continue
            doubt = self._doubt(state)
            if doubt is None:
                others = (sentinel for sentinel in self.sentinels if sentinel[0] != address)
                self.sentinels = ((address, connect), *others)
                return self.master_host or state["ip"], int(state["port"])
            reasons.append(f"{address}: {doubt}")
            errors.append(None)
        raise NoMasterError(f"no Sentinel names a master of {self.service!r} that is up: {'; '.join(reasons)}", errors)

    def _ask(self, connect: Connect, timeout: float) -> dict[str, str]:
        raw = connect(timeout)
        try:
            raw.connect()
            raw.send_command("SENTINEL", "MASTER", self.service, check_health=False)
            words = [word.decode(errors="replace") for word in raw.read_response()]
        finally:
            raw.disconnect()
        return dict(zip(words[::2], words[1::2], strict=True))

    def _doubt(self, state: dict[str, str]) -> str | None:
        """Return why the master that a Sentinel names must not be used, or None if it may be."""
        flags = set(state.get("flags", "").split(","))
        if "master" not in flags or flags & {"s_down", "o_down"}:
            return f"it sees no master that is up ({','.join(sorted(flags))})"
        others = int(state.get("num-other-sentinels", "0"))
        if others < self.min_other_sentinels:
            return f"it sees only {others} other Sentinels, and min_other_sentinels is {self.min_other_sentinels}"
        return None


def _check_role(raw: Any) -> None:
    """Authenticate a new connection, and refuse a replica: a Sentinel may not have heard of a failover yet.

    Raises:
        redis.ConnectionError: the server is a replica. Not a `ConfigurationError`: the failover will soon be over.
    """
    raw.on_connect()
    raw.send_command("INFO", "replication", check_health=False)
    try:
        info = raw.read_response()
    except redis_errors.NoPermissionError:  # relock's own INFO on each new connection reports this
        return
    if read_info(info).is_replica:
        raise redis_errors.ConnectionError("the server that the Sentinels name is a replica: a failover is under way")
