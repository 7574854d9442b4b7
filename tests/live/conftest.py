"""Clients for the tests against real servers, and further fixtures that several of them use."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.alarms import alarms_on
from support.cluster import ClusterOfServers
from support.ends import leave_to_leases
from support.masters import Deployment, Masters
from support.servers import Server, find_servers
from support.tls import Tls, skipped_without_tls
from support.until import until
from support.urls import options_for

from relock import Client
from relock._options import ClientOptions

GUARD_SECONDS = 120.0  # longer than any lease of the tests that use `three_masters`
NODE_TIMEOUT = 5.0  # seconds, by default in these tests: a busy machine must not look like a silent master


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    """Let clients wait for a master for `NODE_TIMEOUT` by default, or for a third of a short lease."""

    def node_timeout_for(options: ClientOptions, ttl: float) -> float:
        wanted = NODE_TIMEOUT if options.node_timeout is None else options.node_timeout
        return min(wanted, ttl / 3)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ClientOptions, "node_timeout_for", node_timeout_for)
        yield


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Make clients, and close them at the end of the test."""
    made: list[Client] = []

    def connect(url: Any, **options: Any) -> Client:
        client = Client(url, **options_for(url, options))
        made.append(client)
        return client

    yield connect
    for client in made:
        leave_to_leases(client._session)
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client], server: Deployment) -> Client:
    """A client of `server` with the default options."""
    return connect(server.url)


@pytest.fixture
def alarms() -> Iterator[None]:
    """Let SIGUSR1 raise `support.alarms.AlarmError` in the main thread."""
    with alarms_on(signal.SIGUSR1):
        yield


@pytest.fixture
def three_masters(start_server: Callable[..., Server]) -> Masters:
    """Three masters of the test's own, which have votes."""
    return Masters([start_server() for _ in range(3)], guard=GUARD_SECONDS).let_vote()


@pytest.fixture
def pair(start_server: Callable[..., Server]) -> tuple[Server, Server]:
    """A master, and a replica that has caught up with it."""
    master = start_server("--repl-diskless-sync-delay", "0")
    replica = start_server("--replicaof", "127.0.0.1", str(master.port))
    with replica.client() as client:
        until(lambda: client.info("replication")["master_link_status"] == "up", within=20, what="it is a replica")
    return master, replica


@pytest.fixture
def tls(start_server: Callable[..., Server], tmp_path: Path) -> Tls:
    """The TLS port of a server that was started for the test."""
    made = Tls(tmp_path / "tls")
    with skipped_without_tls():
        made.server = start_server(*made.arguments)
    return made


@pytest.fixture(scope="session")
def _clusters() -> Iterator[dict[str, ClusterOfServers]]:
    started: dict[str, ClusterOfServers] = {}
    yield started
    for cluster in started.values():
        cluster.close()


@pytest.fixture
def cluster(server_kind: str, _clusters: dict[str, ClusterOfServers]) -> ClusterOfServers:
    """A cluster of three masters that tests share one after the other."""
    if server_kind not in _clusters:
        _clusters[server_kind] = ClusterOfServers(server_kind, find_servers()[server_kind])
    return _clusters[server_kind]


@pytest.fixture
def own_cluster(server_kind: str) -> Iterator[ClusterOfServers]:
    """Three masters that a test may kill; the others notice within a second or two."""
    cluster = ClusterOfServers(server_kind, find_servers()[server_kind], node_timeout_ms=1000)
    yield cluster
    cluster.close()
