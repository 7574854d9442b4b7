"""Sources of the masters and their passwords."""

import click
import pytest

from relock.cli._nodes import Where, urls_of

SECRET = "s3cret"


@pytest.mark.parametrize(
    "text",
    [
        "redis://a:1/0 redis://b:2/0",
        "redis://a:1/0,redis://b:2/0",
        " redis://a:1/0,\n redis://b:2/0, ",
    ],
)
def test_blanks_and_commas_separate_urls(text: str) -> None:
    assert urls_of((), {"RELOCK_NODES": text}) == ("redis://a:1/0", "redis://b:2/0")


@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "redis://a", "REDISS://a:1/0?x=1"])
def test_a_url_without_credentials_stays_as_it_is(url: str) -> None:
    assert urls_of((url,), {}) == (url,)


def test_a_comma_inside_of_a_url_separates_nothing() -> None:
    text = "redis+sentinel://a:26379,b:26379/mymaster"
    assert urls_of((), {"RELOCK_NODES": text}) == (text,)


def test_options_come_before_the_environment() -> None:
    assert urls_of(("redis://a",), {"RELOCK_NODES": "redis://b"}) == ("redis://a",)


@pytest.mark.parametrize(
    ("url", "username", "wanted"),
    [
        ("redis://a:1/0", "", "redis://:p%40%2F@a:1/0"),
        ("redis://a:1/0", "me", "redis://me:p%40%2F@a:1/0"),
        ("redis://you@a:1/0?x=1", "me", "redis://you:p%40%2F@a:1/0?x=1"),
        ("redis://you:own@a:1/0", "me", "redis://you:own@a:1/0"),
        ("redis://a:1/0?password=own", "me", "redis://a:1/0?password=own"),
        ("unix:///run/redis.sock?db=1", "", "unix://:p%40%2F@/run/redis.sock?db=1"),
    ],
)
def test_credentials_of_the_environment_go_where_there_are_none(url: str, username: str, wanted: str) -> None:
    environment = {"RELOCK_NODES": url, "RELOCK_USERNAME": username, "RELOCK_PASSWORD": "p@/"}
    assert urls_of((), environment) == (wanted,)


@pytest.mark.parametrize("url", [f"redis://:{SECRET}@a", f"redis://me:{SECRET}@a:1/0", f"redis://a?password={SECRET}"])
def test_a_password_on_the_command_line_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(click.UsageError, match="RELOCK_PASSWORD") as caught:
        urls_of(("redis://b", url), {})
    assert SECRET not in caught.value.message
    assert "URL 2" in caught.value.message


@pytest.mark.parametrize("url", ["localhost:6379", f"redis://:{SECRET}/x@a", "redis://[::1", f"redis://:{SECRET}#@a"])
def test_what_is_no_url_is_not_repeated(url: str) -> None:
    with pytest.raises(click.UsageError, match="RELOCK_NODES, URL 1, is no URL") as caught:
        urls_of((), {"RELOCK_NODES": url})
    assert SECRET not in caught.value.message


def test_no_master_at_all_is_a_usage_error() -> None:
    with pytest.raises(click.UsageError, match="say where"):
        urls_of((), {"RELOCK_NODES": " , "})


def test_all_masters_are_passed_on() -> None:
    where = Where(urls_of(("redis://a", "redis://b", "unix:///c"), {}), "lock")
    with where.client() as client:
        assert repr(client) == "<open relock.Client of redis://a:6379/0, redis://b:6379/0, unix:///c/0>"


def test_the_password_of_a_sentinel_url_is_that_of_the_master() -> None:
    url = "redis+sentinel://a:1,b:2/mymaster/0"
    environment = {"RELOCK_NODES": f"{url} redis://c", "RELOCK_PASSWORD": "p"}
    assert urls_of((), environment) == ("redis+sentinel://:p@a:1,b:2/mymaster/0", "redis://:p@c")


def test_the_password_of_sentinels_is_refused_on_the_command_line_too() -> None:
    with pytest.raises(click.UsageError, match="RELOCK_NODES") as caught:
        urls_of((f"redis+sentinel://a/m?sentinel_password={SECRET}",), {})
    assert SECRET not in caught.value.message


def test_the_password_of_sentinels_is_not_that_of_the_master() -> None:
    """Passwords of the environment still apply to the master."""
    environment = {"RELOCK_NODES": f"redis+sentinel://a/m?sentinel_password={SECRET}", "RELOCK_PASSWORD": "p"}
    assert urls_of((), environment) == (f"redis+sentinel://:p@a/m?sentinel_password={SECRET}",)


def test_a_repr_shows_no_password() -> None:
    assert SECRET not in repr(Where((f"redis://:{SECRET}@a",), "lock"))
