"""One question on a connection, and its answer."""

from typing import Any

from redis import exceptions as redis_errors

from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.net.raw_connection import RawConnection


def ask(raw: RawConnection, *words: str | int | bytes) -> Any:
    """Send a command; return the reply.

    Raises:
        redis.RedisError, OSError: the server refuses, or the connection breaks.
    """
    raw.send_command(*words, check_health=False)
    return raw.read_response()


def try_to_ask(raw: RawConnection, *words: str | int | bytes) -> Any:
    """Send a command; return the reply, or the server's refusal as a value. Raise if the connection breaks."""
    try:
        return ask(raw, *words)
    except redis_errors.ConnectionError:
        raise
    except redis_errors.ResponseError as error:
        return error


def close(raw: RawConnection) -> None:
    """Close the connection; ignore an error, because the other side may be gone."""
    try:
        raw.disconnect()
    except NETWORK_ERRORS:
        return
