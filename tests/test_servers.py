"""The kinds of server that must be installed can be started."""

import time
from functools import partial

import pytest
from conftest import SERVERS, expected_servers
from support.clock import Clock
from support.servers import Server
from support.until import until


@pytest.mark.parametrize("kind", expected_servers() or sorted(SERVERS))
def test_the_server_can_be_started(kind: str) -> None:
    assert kind in SERVERS, f"{kind} is expected here and was not found"
    server = Server(kind, SERVERS[kind])
    try:
        server.start()
        assert server.cli("PING")
    finally:
        server.close()


def is_ahead(server: Server, ahead: float) -> bool:
    seconds, _ = server.client().time()
    return abs(seconds - time.time() - ahead) < 60


@pytest.mark.parametrize("kind", expected_servers() or sorted(SERVERS))
def test_the_clock_of_the_server_can_be_set(kind: str) -> None:
    server = Server(kind, SERVERS[kind])
    try:
        clock = Clock(server.folder)
        server.environment = clock.environment
        server.start()
        for ahead in (0, 3600, -3600):
            clock.set(ahead)  # a server reads the clock once for all that one look at its sockets has brought
            until(partial(is_ahead, server, ahead), within=30, what=f"the clock is {ahead} s ahead")
    except LookupError as error:
        pytest.skip(str(error))
    finally:
        server.close()
