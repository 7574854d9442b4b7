"""Parts of a URL of masters, which may name several hosts, and its faults in words."""

import re
from urllib.parse import SplitResult, urlsplit


def split_url(url: str) -> SplitResult:
    """Split a URL as `urlsplit` does, even if it has several hosts with commas between them.

    Since 2025, `urlsplit` refuses an IPv6 address after another host: a bracket must begin the host.

    Raises:
        ValueError: this is no URL.
    """
    found = re.fullmatch(r"([^:/?#]+://)([^/?#]*,[^/?#]*)(.*)", url, re.DOTALL) if "," in url else None
    if found is None:
        return urlsplit(url)
    scheme, hosts, rest = found.groups()
    return urlsplit(f"{scheme}host{rest}")._replace(netloc=hosts)


def fault_of(url: str) -> str | None:
    """Return why a URL that can't be understood is wrong; None if that is none of the usual mistakes.

    The words quote nothing, because any part of such a URL may be a part of a password.
    """
    rest = url.partition("://")[2]
    hosts = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if url.lower().startswith("unix:") and not is_path(rest):
        return "the path of a unix socket begins at the root, so there are three slashes: unix:///run/redis.sock"
    if "#" in rest:
        return "there is a # in it; in a password, write %23"
    if "@" in rest and "@" not in re.split("[/?]", rest, maxsplit=1)[0]:
        return "there is a / or a ? before the @; in a password, write %2F and %3F"
    if any(not is_port(host) for host in hosts.split(",")):
        return "a port is a number from 1 to 65535; in a password, write %3A for a colon and %2C for a comma"
    return None


def is_path(rest: str) -> bool:
    """Return whether the text after ``unix://`` names a file; credentials may come before it, a host may not."""
    before, slash, path = rest.partition("?")[0].partition("/")
    return bool(slash and path) and (not before or before.endswith("@"))


def is_port(host: str) -> bool:
    """Return whether a host has no port, or a possible one."""
    port = host.rpartition("]")[2].partition(":")[2]
    return not port or (port.isdecimal() and 1 <= int(port) <= 65535)
