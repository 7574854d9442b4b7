"""Errors that break a connection."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as redis_errors

from relock._errors import ConfigurationError

NETWORK_ERRORS = (redis_errors.RedisError, OSError)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Turn an error of Python over a malformed reply into `redis.InvalidResponse`, an error of the connection.

    Raises:
        redis.RedisError: instead of a `ValueError`, `TypeError` and the like, raised while a reply was parsed.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise redis_errors.InvalidResponse(f"a reply that no server gives: {error!r:.100}") from error
