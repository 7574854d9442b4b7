"""Kinds, on a server: the names of locks and of semaphores, and the counts of a client's permits."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from support.servers import Server
from support.until import until

from relock import AsyncClient, Client, ConfigurationError

WITHIN = 90.0


def test_names_are_those_of_a_kind(client: Client) -> None:
    """A lock may have any name, also one that looks like another key."""
    with client.lock("a"), client.lock("b"), client.lock("a}:sem"), client.semaphore("a", 2), client.semaphore("c}", 2):
        assert sorted(client.names()) == ["a", "a}:sem", "b", "c}"], "each once"
        assert sorted(client.names(kind="lock")) == ["a", "a}:sem", "b"]
        assert sorted(client.names(kind="semaphore")) == ["a", "c}"]
        assert list(client.names("a", "semaphore")) == ["a"]


def test_a_semaphore_that_is_only_waited_for_has_a_name(client: Client, server: Server) -> None:
    server.client().zadd("lock:{a}:sem:queue", {"me:1#1/2": 1})
    assert list(client.names(kind="semaphore")) == ["a"]
    assert list(client.names(kind="lock")) == []


def test_tasks_ask_for_the_names_of_a_kind_as_well(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client, client.lock("a"), client.semaphore("b", 2):
            assert [name async for name in client.names(kind="lock")] == ["a"]
            assert [name async for name in client.names(kind="semaphore")] == ["b"]
            with pytest.raises(ConfigurationError):
                await anext(client.names(kind="mutex"))

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["", "Lock", ["lock"]])
def test_there_are_no_other_kinds(client: Client, kind: str) -> None:
    with pytest.raises(ConfigurationError, match="'lock' or 'semaphore' or 'latch', or None") as caught:
        client.names(kind=kind)
    assert caught.value.option == "kind"


def test_statistics_count_permits_and_their_waiters_among_all(client: Client, name: str) -> None:
    semaphore = client.semaphore(name, 1)
    acquires: list[Callable[..., object]] = [client.lock(name).acquire, semaphore.acquire]
    waiters = [threading.Thread(target=acquire, kwargs={"timeout": WITHIN}, daemon=True) for acquire in acquires]
    with client.lock(name), semaphore as permit:
        for waiter in waiters:
            waiter.start()
        until(lambda: client.statistics().waiting == 2, within=WITHIN, what="both wait")
        counts = client.statistics()
        assert (counts.held, counts.held_of_semaphores) == (2, 1)
        assert (counts.waiting, counts.waiting_for_semaphores) == (2, 1)
        assert permit.owned()
    for waiter in waiters:
        waiter.join(WITHIN)
