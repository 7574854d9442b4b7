"""URLs with several hosts work on every Python: newer ones refuse a bracket that does not begin the host."""

import re
from urllib.parse import SplitResult, urlsplit

import click
import pytest

from relock import ConfigurationError, _urls
from relock._runtime.net.parse import parse_nodes
from relock._urls import split_url
from relock.cli._nodes import urls_of


def split_strictly(url: str) -> SplitResult:
    """Split a URL as the Pythons of 2025 and later do."""
    parts = urlsplit(url)
    if "[" in parts.netloc and not parts.netloc.rpartition("@")[2].startswith("["):
        raise ValueError("Invalid IPv6 URL")
    return parts


@pytest.fixture(autouse=True)
def newer_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_urls, "urlsplit", split_strictly)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis+cluster://a:1,b,[::1]:2/0", "redis+cluster://a:1,b:6379,[::1]:2"),
        ("redis+cluster://me:hush@a:1,[::1]:2", "redis+cluster://a:1,[::1]:2"),
        ("redis+sentinel://a:1,b,[::1]:2/mymaster/3", "redis+sentinel://a:1,b:26379,[::1]:2/mymaster/3"),
        ("redis+sentinel://a,[::1]/mymaster?sentinel_password=hush", "redis+sentinel://a:26379,[::1]:26379/mymaster"),
    ],
)
def test_an_ipv6_address_may_stand_behind_another_host(url: str, address: str) -> None:
    (node,) = parse_nodes(url)
    assert node.address == address


def test_the_command_line_gives_such_a_url_its_password() -> None:
    url = "redis+sentinel://a:1,[::1]:2/mymaster/3?x=1"
    with_password = url.replace("//", "//:hush@")
    assert urls_of((url,), {"RELOCK_PASSWORD": "hush"}) == (with_password,)
    assert split_url(with_password).password == "hush"


FAULTS = {
    "unix://": "three slashes",
    "unix:///": "three slashes",
    "unix://hush": "three slashes",
    "unix://hush/redis.sock": "three slashes",
    "unix://?db=1": "three slashes",
    "unix://:hush@?db=1": "three slashes",
    "redis://host:99999/0": "a number from 1 to 65535",
    "redis://host:0/0": "a number from 1 to 65535",
    "redis://:99999hush/0": "a number from 1 to 65535",
    "rediss://host:65536": "a number from 1 to 65535",
    "valkey://host:-1": "a number from 1 to 65535",
    "redis+sentinel://a:1,[::1]:99999/mymaster": "a number from 1 to 65535",
    "redis+cluster://a:1,b:0": "a number from 1 to 65535",
    "redis://:hu#sh@host:6379/0": "write %23",
    "redis+sentinel://:hu#sh@host/mymaster": "write %23",
    "redis+cluster://:hush#@host": "write %23",
    "unix://:hu#sh@/run/redis.sock": "write %23",
    "redis://:hu/sh@host:6379/0": "%2F",
    "redis://:123456/hush@host:6379/0": "%2F",
    "redis://:hu?sh@host:6379/0": "%3F",
}


@pytest.mark.parametrize(("url", "fault"), FAULTS.items())
def test_a_url_that_can_not_work_is_refused_by_its_fault_and_quoted_nowhere(url: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_nodes(url)
    assert fault in str(caught.value)
    assert not re.search("hu|sh@|99999|123456", str(caught.value))


def test_the_command_line_names_the_fault_of_a_url() -> None:
    with pytest.raises(click.UsageError, match="write %23") as caught:
        urls_of((), {"RELOCK_NODES": "redis://:hu#sh@host:6379/0"})
    assert "hu" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock/1"),
        ("unix://me:hush@/run/redis.sock", "unix:///run/redis.sock/0"),
        ("unix:////run/redis.sock", "unix:////run/redis.sock/0"),
        ("redis://host:65535", "redis://host:65535/0"),
        ("redis://:%23hush@[::1]", "redis://[::1]:6379/0"),
    ],
)
def test_a_url_without_a_fault_is_taken(url: str, address: str) -> None:
    (node,) = parse_nodes(url)
    assert node.address == address


@pytest.mark.parametrize(
    "url", ["redis://a:1/0?x=1#y", "redis://me:a,b@[::1]:1/2", "unix:///run/a,b.sock?db=1", "//a,b/c", "a,b", ""]
)
def test_any_other_url_has_the_parts_that_python_gives_it(url: str) -> None:
    assert split_url(url) == urlsplit(url)
