"""Service for a pre-forking server. Run it by: gunicorn --preload --workers 2 wsgi_orders:app."""

import os
from collections.abc import Callable, Iterable

from relock import AcquireTimeoutError, Client

WAIT_SECONDS = 2.0  # below gunicorn's --timeout, which kills a worker that takes longer

client = Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))  # made before the fork, used after it


def app(environ: dict[str, str], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Ship the order in the path, one process at a time."""
    order = environ["PATH_INFO"].strip("/")
    try:
        with client.lock(f"orders:{order}", timeout=WAIT_SECONDS) as held:
            ship(order, fence=held.ensure())
    except AcquireTimeoutError:
        start_response("409 Conflict", [("Retry-After", "1")])
        return [b"busy\n"]
    start_response("200 OK", [])
    return [b"shipped\n"]


def ship(order: str, fence: int) -> None:
    """Stands for your work, which ends by a write that checks the fence."""
