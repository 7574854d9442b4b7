"""New credentials from a provider reach all that use them."""

import asyncio
import gc
from typing import Any

import pytest
from attrs import define, field
from redis.credentials import CredentialProvider
from support.credentials import Given, Provider

from relock._runtime.machine import THREADS
from relock._runtime.net.credentials import Credentials, credentials_of, follow


@define(eq=False)
class Taker:
    """A master, or a user's client with its pool, that notes what it is given."""

    taken: list[Any] = field(factory=list)
    error: Exception | None = None
    platform = THREADS

    def renew(self) -> None:
        self.taken.append("renewed")

    @property
    def connection_pool(self) -> "Taker":
        return self

    def re_auth_callback(self, given: Any) -> None:
        self.taken.append(given)
        if self.error is not None:
            raise self.error


class TakerForTasks(Taker):
    """A user's client for tasks."""

    async def re_auth_callback(self, given: Any) -> None:  # type: ignore[override]
        self.taken.append(given)


class ClusterTaker:
    """A user's client of a cluster; one of its nodes has no pool yet."""

    def __init__(self, *nodes: Any) -> None:
        self.nodes = nodes

    def get_nodes(self) -> tuple[Any, ...]:
        return self.nodes


@define(eq=False)
class Node:
    """A node, as a cluster's client for threads has it."""

    redis_connection: Any = None


FIRST, SECOND = Given("me", "first"), Given("me", "second")


def test_all_that_use_a_provider_take_its_new_credentials() -> None:
    provider, master, client = Provider(FIRST), Taker(), Taker()
    follow(provider, client)
    credentials = credentials_of(provider)
    assert credentials.latest is None
    credentials.takers.add(master)
    provider.give(SECOND)
    assert credentials.latest == ("AUTH", "me", "second")
    assert (master.taken, client.taken) == (["renewed"], [SECOND])


def test_credentials_without_a_user_authenticate_by_the_password_alone() -> None:
    credentials = Credentials(None)
    credentials.take(Given(None, "secret"))
    assert credentials.latest == ("AUTH", "secret")


def test_equal_credentials_that_come_again_are_another_object() -> None:
    """Servers may have refused them because they did not know them yet."""
    credentials = Credentials(None)
    credentials.take(FIRST)
    before = credentials.latest
    credentials.take(FIRST)
    assert credentials.latest == before
    assert credentials.latest is not before


def test_each_client_with_the_same_provider_is_reached_by_its_only_callback() -> None:
    provider, clients = Provider(FIRST), [Taker(), Taker()]
    for client in clients:
        follow(provider, client)
    provider.give(SECOND)
    assert [client.taken for client in clients] == [[SECOND], [SECOND]]


def test_the_pools_of_a_cluster_are_reached() -> None:
    provider, reached, of_tasks = Provider(FIRST), Taker(), TakerForTasks()
    cluster = ClusterTaker(Node(reached), Node(), of_tasks)
    follow(provider, cluster)

    async def give() -> None:
        await provider.give(SECOND)

    asyncio.run(give())
    assert (reached.taken, of_tasks.taken) == ([SECOND], [SECOND])


def test_a_provider_that_does_not_await_its_callback_hears_of_no_error() -> None:
    """Providers may give no more credentials after an error of the callback."""
    provider, broken, master = Provider(FIRST), Taker(error=OSError("no route")), Taker()
    follow(provider, broken)
    credentials_of(provider).takers.add(master)
    provider.give(SECOND)
    assert (master.taken, broken.taken) == (["renewed"], [SECOND])
    assert provider.callback is not None
    provider.callback("no token")
    assert credentials_of(provider).latest == ("AUTH", "me", "second")


@pytest.mark.parametrize("provider", [None, CredentialProvider()], ids=["none", "plain"])
def test_other_providers_are_left_alone(provider: object) -> None:
    follow(provider, Taker())
    assert credentials_of(provider).latest is None


def test_what_is_gone_is_told_nothing_and_kept_by_nothing() -> None:
    provider, client = Provider(FIRST), Taker()
    follow(provider, client)
    taken = client.taken
    del client
    gc.collect()
    provider.give(SECOND)
    assert taken == []
