"""URLs with several hosts are understood by every Python: newer ones refuse a bracket that does not begin the host."""

from urllib.parse import SplitResult, urlsplit

import pytest

from relock import _urls
from relock._runtime.net.parse import parse_nodes
from relock._urls import split_url
from relock.cli._nodes import urls_of


def split_strictly(url: str) -> SplitResult:
    """As the Pythons of 2025 and later."""
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


@pytest.mark.parametrize(
    "url", ["redis://a:1/0?x=1#y", "redis://me:a,b@[::1]:1/2", "unix:///run/a,b.sock?db=1", "//a,b/c", "a,b", ""]
)
def test_any_other_url_has_the_parts_that_python_gives_it(url: str) -> None:
    assert split_url(url) == urlsplit(url)
