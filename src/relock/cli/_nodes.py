"""Options that name the masters, and the sources of the passwords."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qs, quote

import click
from attrs import frozen

from relock._options import ClientOptions
from relock._runtime.net.node import Node
from relock._runtime.net.parse import parse_nodes
from relock._urls import fault_of, split_url
from relock.client import Client

F = TypeVar("F", bound=Callable[..., Any])

# A comma separates URLs only where another URL follows: the hosts of a Sentinel URL have commas between them too.
_SEPARATOR = re.compile(r",?\s+|,(?=[a-zA-Z][\w+.-]*://)")
_SECRET_FIELDS = ("password", "ssl_password", "sentinel_password")


@frozen
class Where:
    """The masters and the prefix that the options of a command name. Its URLs may hold passwords."""

    urls: tuple[str, ...]
    prefix: str

    def __repr__(self) -> str:
        return f"<{len(self.urls)} masters, prefix {self.prefix!r}>"

    def client(self, **options: Any) -> Client:
        """Return a client of these masters.

        Raises:
            ConfigurationError: they, or the options, can't work.
        """
        return Client(list(self.urls), prefix=self.prefix, **options)

    def nodes(self) -> list[Node]:
        """Return the masters as `relock._doctor` takes them.

        Raises:
            ConfigurationError: a URL can't work.
        """
        return [node for url in self.urls for node in parse_nodes(url)]

    def options(self) -> ClientOptions:
        """Return the options that a client with this prefix has by default."""
        return ClientOptions(prefix=self.prefix)


def node_options(command: F) -> F:
    """Add ``--node`` and ``--prefix``; the command gets a `Where` as ``where``."""

    def gather(ctx: click.Context, _parameter: click.Parameter, prefix: str) -> Where:
        return Where(urls_of(ctx.params.pop("node"), os.environ), prefix)

    prefix_option = click.option(
        "--prefix",
        "where",
        default="lock",
        show_default=True,
        metavar="TEXT",
        callback=gather,
        help="The prefix of the locks' keys, as the programs that use them set it.",
    )
    node_option = click.option(
        "--node",
        metavar="URL",
        multiple=True,
        is_eager=True,  # --node comes before --prefix, which gathers both
        help="A master: redis://HOST:PORT/DB, rediss://, unix://PATH, redis+sentinel://HOST:PORT,HOST:PORT/MASTER or "
        "redis+cluster://HOST:PORT,HOST:PORT; repeat it for a quorum of several. "
        "Default: the URLs in RELOCK_NODES. Passwords come from RELOCK_PASSWORD or the URLs of RELOCK_NODES.",
    )
    return node_option(prefix_option(command))


def json_option(command: F) -> F:
    """Add ``--json``; the command gets ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(command)


def urls_of(given: Sequence[str], environment: "os._Environ[str] | dict[str, str]") -> tuple[str, ...]:
    """Return the URLs from the options, or else from the environment, with the environment's credentials in them."""
    for i, url in enumerate(given, 1):
        _refuse_password(url, i)
    source = "--node" if given else "RELOCK_NODES"
    urls = given or [url for url in _SEPARATOR.split(environment.get("RELOCK_NODES", "").strip()) if url.strip(",")]
    if not urls:
        raise click.UsageError("say where the masters are: --node redis://HOST:PORT/DB, or RELOCK_NODES")
    username, password = environment.get("RELOCK_USERNAME", ""), environment.get("RELOCK_PASSWORD", "")
    return tuple(
        _with_credentials(url.strip(","), f"{source}, URL {i}", username, password) for i, url in enumerate(urls, 1)
    )


def _refuse_password(url: str, number: int) -> None:
    """Refuse a password on a command line, instead of warning of it.

    Every user of the machine can read it there (``ps``), and the shell's history keeps it. A warning would come after
    the fact, each time; a refusal comes once, when the command line is written.
    """
    parts = _split(url, f"--node, URL {number}")
    if parts.password is not None or any(field in parse_qs(parts.query) for field in _SECRET_FIELDS):
        raise click.UsageError(
            f"--node, URL {number}, has a password in it, which every user of this machine can read: "
            "put it into RELOCK_PASSWORD, or the whole URL into RELOCK_NODES"
        )


def _split(url: str, where: str) -> SplitResult:
    """Return the parts of a URL; the error for an unreadable one never quotes it, because it may hold a password."""
    try:
        parts = split_url(url)
        _ = parts.port if "," not in parts.netloc else None
    except ValueError:
        parts = None
    if parts is None or "://" not in url:
        fault = (fault_of(url) if "://" in url else None) or "in a password, / ? # @ : and % must be percent-encoded"
        raise click.UsageError(f"{where}, is no URL like redis://HOST:PORT/DB ({fault})")
    return parts


def _with_credentials(url: str, where: str, username: str, password: str) -> str:
    """Return the URL, with the credentials of the environment if it has no password of its own."""
    parts = _split(url, where)
    # Other secrets in the query are no logins.
    has_own = parts.password is not None or "password" in parse_qs(parts.query)
    if has_own or not (username or password):
        return url
    own_user, _, host = parts.netloc.rpartition("@")
    user = own_user or quote(username, safe="")
    secret = f":{quote(password, safe='')}" if password else ""
    # geturl() would drop the // of a unix:// URL without a host, in some versions of Python.
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{user}{secret}@{host}{parts.path}{query}"
