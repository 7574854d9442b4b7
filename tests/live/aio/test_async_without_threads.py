"""An `AsyncClient` where no thread can be started, as at the end of the interpreter."""

from typing import NoReturn

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT
from support.urls import options_for

from relock import AsyncClient, Client
from relock._runtime.machine import Machine

pytestmark = pytest.mark.every_quorum


class BodyError(Exception):
    """Error that a body raises."""


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("can't create new thread at interpreter shutdown")


@pytest.fixture
def client(server: Deployment) -> AsyncClient:
    """A client before its first use."""
    return AsyncClient(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT}))


def connections_of(client: AsyncClient) -> int:
    return sum(master.connections for master in client.statistics().masters)


async def test_the_first_use_of_a_client(client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop itself opens the connections."""
    monkeypatch.setattr(Machine, "start", refuse)
    async with client, client.lock(name) as lock:
        assert lock.owned()
    assert connections_of(client) == 0


async def test_the_error_of_a_body_is_not_replaced(
    client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        async with client:
            async with client.lock(name):
                pass
            monkeypatch.setattr(Machine, "start", refuse)
            raise BodyError

    with pytest.raises(BodyError) as raised:
        await use()
    assert raised.value.__context__ is None
    assert connections_of(client) == 0


async def test_close_leaves_no_connection_open(client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client.lock(name):
        pass
    assert connections_of(client)
    monkeypatch.setattr(Machine, "start", refuse)
    await client.close()
    assert connections_of(client) == 0


def test_a_client_for_threads_opens_connections_to_several_masters(
    server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "start", refuse)
    options = options_for(server.url, {"node_timeout": NODE_TIMEOUT})
    with Client(server.url, **options) as threads, threads.lock(name, timeout=0) as lock:
        assert lock.owned()
