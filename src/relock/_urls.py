"""URLs that name several hosts: those of Sentinels and of a Cluster."""

import re
from urllib.parse import SplitResult, urlsplit

_HOSTS = re.compile(r"([^:/?#]+://)([^/?#]*,[^/?#]*)(.*)", re.DOTALL)


def split_url(url: str) -> SplitResult:
    """As `urlsplit`, also where several hosts have commas between them.

    The Pythons of 2025 and later refuse an IPv6 address behind another host: a bracket must begin the host.

    Raises:
        ValueError: this is no URL.
    """
    found = _HOSTS.fullmatch(url)
    if found is None:
        return urlsplit(url)
    scheme, hosts, rest = found.groups()
    return urlsplit(f"{scheme}host{rest}")._replace(netloc=hosts)
