"""`Client.names`: the glob matches the name itself, and does so as the server's own globs do."""

import enum
import random
from collections.abc import Callable

import pytest
from support.servers import Server

from relock import Client, ConfigurationError
from relock._keys import glob_filter

LETTERS = "ab}{-^*?[]\\é"
ROUNDS = 300


def test_a_name_that_goes_on_after_a_brace_is_another_name(client: Client) -> None:
    with client.lock("a"), client.lock("a}b"), client.lock("a}:queue"):
        assert list(client.names("a")) == ["a"]
        assert list(client.names("a}b")) == ["a}b"]
        assert sorted(client.names("a*")) == ["a", "a}:queue", "a}b"]


@pytest.mark.parametrize("pattern", ["a\\", "[a", "[^b", "[ab"])
def test_a_glob_that_ends_too_early_matches_what_it_would_match_on_the_server(
    client: Client, server: Server, pattern: str
) -> None:
    names = ["a", "b", "c", "a\\", "[a"]
    for name in names:
        server.cli("SET", name, "1")
        server.client().hset(f"lock:{{{name}}}", "somebody:1", "1")
    wanted = {key.decode() for key in server.cli("KEYS", pattern)}
    assert set(client.names(pattern)) == wanted


def test_a_pattern_without_a_utf8_form_is_refused(client: Client) -> None:
    with pytest.raises(ConfigurationError) as caught:
        client.names("\ud800")
    assert caught.value.option == "pattern"


@pytest.mark.every_server
def test_the_filter_agrees_with_the_server(server: Server) -> None:
    """Random globs over random names select as KEYS does."""
    dice = random.Random(1)
    text: Callable[[int], str] = lambda most: "".join(dice.choices(LETTERS, k=dice.randint(1, most)))  # noqa: E731
    names = {text(4) for _ in range(200)}
    with server.client(decode_responses=True) as redis_client:
        redis_client.mset(dict.fromkeys(names, "1"))
        for _ in range(ROUNDS):
            pattern = text(6)
            matches = glob_filter(pattern)
            assert {name for name in names if matches(name)} == set(redis_client.keys(pattern)), pattern


class Named(str, enum.Enum):  # noqa: UP042 - the f-string of a StrEnum is its value
    """A str whose f-string is not its value."""

    ORDERS = "orders"
    APP = "app"


def test_a_str_enum_names_the_lock_that_its_value_names(
    connect: Callable[..., Client], server: Server, client: Client
) -> None:
    """Two processes that name a lock in these two ways must have one lock."""
    with client.lock(Named.ORDERS):
        assert b"lock:{orders}" in server.client().keys("*")
        assert not connect(server.url).lock("orders").acquire(blocking=False)
        assert client.info(Named.ORDERS).held
        assert list(client.names(Named.ORDERS)) == ["orders"]


def test_a_str_enum_as_the_prefix_is_its_value(connect: Callable[..., Client], server: Server) -> None:
    with connect(server.url, prefix=Named.APP).lock("orders"):
        assert not connect(server.url, prefix="app").lock("orders").acquire(blocking=False)
