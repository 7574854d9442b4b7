"""Tests of orders.py, each with a server of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import orders
import pytest
from fastapi import HTTPException
from relock.testing import LocalServer


@pytest.fixture(autouse=True)
def _settings(relock_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", relock_server.url)
    monkeypatch.setattr(orders, "WAIT_SECONDS", 60.0)  # however busy the machine is


@asynccontextmanager
async def serving() -> AsyncIterator[httpx.AsyncClient]:
    """The service, without a network."""
    transport = httpx.ASGITransport(orders.app)
    async with orders.lifespan(orders.app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def post() -> httpx.Response:
    """One request, to a service of its own."""
    async with serving() as http:
        return await http.post("/orders/1/ship")


def test_of_many_requests_one_buys_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    bought: list[int] = []

    async def buy_label(order_id: int) -> str:
        bought.append(order_id)
        await asyncio.sleep(0)  # the other requests run
        return f"label {len(bought)}"

    monkeypatch.setattr(orders, "buy_label", buy_label)

    async def scene() -> list[httpx.Response]:
        async with serving() as http:
            return await asyncio.gather(*(http.post("/orders/1/ship") for _ in range(10)))

    assert [response.json() for response in asyncio.run(scene())] == [{"label": "label 1"}] * 10
    assert bought == [1]


def test_a_busy_order_is_a_conflict(relock_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "WAIT_SECONDS", 0.3)
    with relock_server.client().lock("orders:1"):
        response = asyncio.run(post())
    assert response.status_code == 409
    assert response.headers["Retry-After"] == "1"


def test_without_a_server_of_locks_nothing_is_shipped(
    relock_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "WAIT_SECONDS", 0.3)
    relock_server.crash()
    assert asyncio.run(post()).status_code == 503


def test_a_cancelled_request_leaves_nothing(relock_server: LocalServer) -> None:
    locks = relock_server.client()

    async def scene() -> int:
        async with serving() as http:
            request = asyncio.create_task(http.post("/orders/1/ship"))
            while not locks.info("orders:1").queue:
                await asyncio.sleep(0.01)
            request.cancel()
            while locks.info("orders:1").queue:
                await asyncio.sleep(0.01)
            locks.lock("orders:1", owner="another process").release()
            return (await http.post("/orders/1/ship")).status_code

    locks.lock("orders:1", owner="another process").acquire()
    assert asyncio.run(scene()) == 200


def test_a_late_writer_is_refused() -> None:
    database = orders.open_database()
    orders.write_label(database, 1, "of the second holder", fence=2)
    with pytest.raises(HTTPException, match="newer"):
        orders.write_label(database, 1, "of the first one, which was paused", fence=1)
    assert orders.read_label(database, 1) == "of the second holder"
    database.close()
