"""Clients for the tests against real servers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.masters import Deployment, options_for

from relock import Client

NODE_TIMEOUT = 5.0  # seconds, where a test says nothing of it: that the machine is busy is no silence of a master


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Makes clients that are closed with the test."""
    made: list[Client] = []

    def connect(url: Any, **options: Any) -> Client:
        if not {"ttl", "node_timeout"} & options.keys():
            options["node_timeout"] = NODE_TIMEOUT
        client = Client(url, **options_for(url, options))
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client], server: Deployment) -> Client:
    """A client of `server` with the default options."""
    return connect(server.url)
