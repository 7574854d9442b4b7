"""What a server says when a connection is opened, judged: numbers, and the marker that other clients have left."""

from typing import Any

from redis import exceptions as redis_errors

from relock._errors import ConfigurationError
from relock._runtime.masters.known import NAMELESS, MasterState, as_guard_ms


def numbers_of(reply: Any, count: int) -> list[int]:
    """So many numbers that were asked for.

    Raises:
        redis.RedisError: an error, or something else.
    """
    if isinstance(reply, BaseException):
        raise reply
    if isinstance(reply, list) and len(reply) == count and all(isinstance(n, bytes) and n.isdigit() for n in reply):
        return [int(number) for number in reply]
    raise redis_errors.InvalidResponse(f"not {count} numbers: {reply!r:.100}")


def guard_of_others(master: MasterState, marker: Any, incarnation: bytes, guard_ms: int) -> int | None:
    """The guard (ms) that the marker of other clients names; None where there is no marker.

    Where another program has written the marker, that is the caller's own guard: the scripts take such a marker for
    one that is missing, and begin that guard.

    Raises:
        redis.RedisError: the reply is an error, or no field.
        ConfigurationError: others use a guard, and this client can't.
    """
    if marker == [None]:
        return None
    found_ms = _guard_of(marker)
    if found_ms != 0 and incarnation == NAMELESS:
        raise ConfigurationError(
            f"{master.address} refuses INFO, and other clients use a restart guard there: allow the command",
            option="restart_guard",
        )
    if found_ms is None and guard_ms == 0:
        raise ConfigurationError(
            f"{master.address}: another program has written to {master.marker}, so that it is not known how long a "
            "guard other clients have: set theirs, or delete that key when no lease is left",
            option="restart_guard",
        )
    return guard_ms if found_ms is None else found_ms


def _guard_of(marker: Any) -> int | None:
    """The guard (ms) that a marker names; None where that can be no guard.

    Raises:
        redis.RedisError: it is an error, or no field.
    """
    if isinstance(marker, BaseException):
        raise marker
    if isinstance(marker, list) and len(marker) == 1 and isinstance(marker[0], bytes):
        return as_guard_ms(marker[0])
    raise redis_errors.InvalidResponse(f"no field of the marker: {marker!r:.100}")
