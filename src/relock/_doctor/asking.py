"""One question on a connection, and its answer."""

from typing import Any

from redis import exceptions as redis_errors

from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.net.wire import Wire


def ask(wire: Wire, *words: str | int | bytes) -> Any:
    """The reply.

    Raises:
        redis.RedisError, OSError: the server refuses, or the connection breaks.
    """
    wire.send_command(*words, check_health=False)
    return wire.read_response()


def try_to_ask(wire: Wire, *words: str | int | bytes) -> Any:
    """The reply, or the server's refusal as a value; a connection that breaks is raised."""
    try:
        return ask(wire, *words)
    except redis_errors.ConnectionError:
        raise
    except redis_errors.ResponseError as error:
        return error


def close(wire: Wire) -> None:
    """Closes it; that the other side is gone is no matter any more."""
    try:
        wire.disconnect()
    except NETWORK_ERRORS:
        return
