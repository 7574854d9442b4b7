"""The kinds of server that must be installed can be started."""

import time

import pytest
from conftest import SERVERS, expected_servers
from support.clock import Clock
from support.servers import Server


@pytest.mark.parametrize("kind", expected_servers() or sorted(SERVERS))
def test_the_server_can_be_started(kind: str) -> None:
    assert kind in SERVERS, f"{kind} is expected here and was not found"
    server = Server(kind, SERVERS[kind])
    try:
        server.start()
        assert server.cli("PING")
    finally:
        server.close()


@pytest.mark.parametrize("kind", expected_servers() or sorted(SERVERS))
def test_the_clock_of_the_server_can_be_set(kind: str) -> None:
    server = Server(kind, SERVERS[kind])
    try:
        clock = Clock(server.folder)
        server.environment = clock.environment
        server.start()
        for ahead in (0, 3600, -3600):
            clock.set(ahead)
            seconds, _ = server.client().time()
            assert seconds - time.time() == pytest.approx(ahead, abs=60)
    except LookupError as error:
        pytest.skip(str(error))
    finally:
        server.close()
