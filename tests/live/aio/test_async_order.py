"""The watch of the order in which locks are taken: tasks, and threads beside them, on a real server."""

import asyncio

import pytest
from support.servers import Server

from relock import AsyncClient, Client
from relock.testing import OrderError, watch_order


async def test_tasks_that_take_two_orders_are_an_error(server: Server) -> None:
    async with AsyncClient(server.url) as client:

        async def first() -> None:
            async with client.lock("a"), client.lock("b"):
                pass

        async def second() -> None:
            async with client.lock_all(["b", "c"]), client.rwlock("a").write:
                pass

        with pytest.raises(OrderError) as caught, watch_order():  # noqa: PT012 - what is watched is awaited
            await asyncio.create_task(first(), name="one")
            await asyncio.create_task(second(), name="two")
        ((edge, back),) = caught.value.cycles
        assert (edge.caller, back.caller) == ("the task 'one'", "the task 'two'")
        assert [frame.rpartition(".")[2] for frame in edge.taken_at + edge.asked_at] == ["first", "first"]


async def test_a_task_that_has_another_one_wait_is_the_owner(server: Server) -> None:
    """A `gather` runs each acquire in a task of its own."""
    async with AsyncClient(server.url) as client:

        @client.synchronized("stock:{article}")
        async def ship(article: str) -> None:
            lock = client.lock("mail")
            await asyncio.gather(lock.acquire())
            await lock.release()

        with watch_order() as watch:
            await ship("tea")
        (edge,) = watch.graph.values()
        assert (edge.held, edge.wanted) == ("stock:#", "mail")
        assert [frame.rpartition(".")[2] for frame in edge.asked_at][-1] == "ship"
        assert edge.asked_at[-1].startswith(f"{__file__}:")


async def test_tasks_do_not_share_what_they_hold(server: Server) -> None:
    async with AsyncClient(server.url) as client:

        async def child() -> None:
            async with client.lock("b"):
                pass

        with watch_order() as watch:
            async with client.lock("a"):
                await asyncio.create_task(child())
        assert not watch.graph


def test_threads_on_a_real_server(server: Server) -> None:
    def work(client: Client) -> None:
        with client.lock("a"), client.lock("b"), client.rwlock("c").read:
            pass

    with Client(server.url) as client, watch_order() as watch:
        work(client)
    assert set(watch.graph) == {("a", "b"), ("a", "c"), ("b", "c")}
