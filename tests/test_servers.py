"""The kinds of server that must be here can be started."""

import pytest
from conftest import SERVERS, expected_servers
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
