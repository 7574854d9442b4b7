"""Clients for random tests."""

import threading
from collections.abc import Iterator

import pytest
from support.servers import Server
from support.until import until

from relock import Client


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Check that a closed client leaves no thread; the thread that starts servers stays."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        names = [one.name for one in threading.enumerate() if one not in before]
        return [name for name in names if name.startswith("relock") and not name.startswith("relock-launcher")]

    until(lambda: not left(), within=20, what="the threads of closed clients have ended")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of `server` with the default options."""
    with Client(server.url) as client:
        yield client
