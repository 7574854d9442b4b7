"""Clients to which no reference is left, and that were not closed."""

import gc
import threading
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import pytest
from support.servers import Server
from support.until import until

from relock import AsyncClient, Client
from relock._runtime.service import Service
from relock._runtime.session import closing

WITHIN = 30.0
UNCLOSED = "unclosed <open relock.Client"
TTL = 6.0  # seconds; a busy machine must not keep the watchdog from renewing in time
T = TypeVar("T")


def connections(servers: Sequence[Server], name: str) -> int:
    return sum(str(server.cli("CLIENT", "LIST")).count(f"relock:{name}-") for server in servers)


def collected(do: Callable[[], T]) -> T:
    """Return the result of `do`, after a garbage collection: an error on the way may have made a cycle."""
    result = do()
    gc.collect()
    return result


def take_and_leave(client: Client, name: str) -> None:
    with client.lock(name):
        pass


def look(client: Client, name: str) -> None:
    client.info(name)


def wait_in_vain(client: Client, name: str) -> None:
    with Client(client._addresses, client_name="other", restart_guard=0) as other, other.lock(name):
        assert not client.lock(name).acquire(timeout=0.2)


def services_of(client: Client, use: Callable[[Client, str], None], name: str) -> list[Service]:
    """Use `client`, and drop it, the caller having no other reference; return its services."""
    use(client, name)
    assert client.statistics().masters[0].connections
    return list(client._session.services())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("use", [take_and_leave, look, wait_in_vain], ids=lambda use: use.__name__)
def test_threads_and_connections_end_with_the_last_reference(
    start_server: Callable[..., Server], name: str, use: Callable[[Client, str], None], count: int
) -> None:
    servers = [start_server() for _ in range(count)]
    urls = [server.url for server in servers]
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        services = collected(lambda: services_of(Client(urls, client_name=name, restart_guard=0), use, name))

    def is_over() -> bool:
        gc.collect()
        return not any(service.running for service in services) and connections(servers, name) == 0

    until(is_over, within=WITHIN, what="threads and connections have ended")


def test_a_hold_whose_owner_lives_is_renewed_and_then_the_session_ends(server: Server, name: str) -> None:
    leaves, has_it = threading.Event(), threading.Event()

    def hold() -> None:
        with pytest.warns(ResourceWarning, match=UNCLOSED):
            assert collected(lambda: Client(server.url, client_name=name, ttl=TTL).lock(name).acquire())
        has_it.set()
        leaves.wait()

    with Client(server.url) as looks:
        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert has_it.wait(WITHIN)
            token, lefts = looks.info(name).token, list[float]()

            def is_renewed() -> bool:
                lefts.append(looks.info(name).ttl)
                return sum(after > before for before, after in pairwise(lefts)) > 1

            until(is_renewed, within=WITHIN, what="the lease was renewed twice")
            assert looks.info(name).token == token
        finally:
            leaves.set()
            thread.join()
        assert looks.lock(name).acquire(timeout=WITHIN)
        until(lambda: not connections([server], name), within=WITHIN, what="the client's connections are closed")


async def test_an_async_client_ends_with_the_last_reference(server: Server, name: str) -> None:
    client = AsyncClient(server.url, client_name=name, on_lost=print)
    async with client.lock(name):
        pass
    services, clients = list(client._session.services()), [client]
    del client
    with pytest.warns(ResourceWarning, match="unclosed <open relock.AsyncClient"):
        collected(clients.clear)
    until(lambda: not any(one.running for one in services), within=WITHIN, what="the threads have ended")


def test_a_lock_keeps_its_client(server: Server, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lock = Client(server.url).lock(name)
        gc.collect()
        with lock:
            gc.collect()
            assert lock.owned()
        closing.close(lock._client._session)
        del lock


def test_a_client_that_was_not_used_or_was_closed_says_nothing(server: Server, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Client(server.url)
        Client(server.url).lock(name)
        with Client(server.url) as client, client.lock(name):
            pass
        del client
