"""Credentials that expire: a provider that streams new ones, and a server that ends the old ones."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from redis import credentials
from redis.credentials import CredentialProvider

from support.servers import Server

StreamingProvider: type[Any] = getattr(credentials, "StreamingCredentialProvider", CredentialProvider)  # from 5.3 on
TURNS = 20


class Given(NamedTuple):
    """Credentials, in the shape of redis-py's tokens."""

    user: str | None
    password: str

    def try_get(self, name: str) -> str | None:
        """Return the user, which redis-py's tokens call ``oid``."""
        return self.user if name == "oid" else None

    def get_value(self) -> str:
        """Return the password."""
        return self.password


class Provider(StreamingProvider):  # type: ignore[misc]
    """Provider with the shape of redis-entraid's: it has one callback for new credentials.

    Attributes:
        callback: the callback that was set last.
        current: the credentials for new connections.
    """

    callback: Callable[[Any], Any] | None = None

    def __init__(self, current: Given) -> None:
        self.current = current

    def get_credentials(self) -> tuple[str, ...]:
        """Return the credentials for a new connection."""
        user, password = self.current
        return (password,) if user is None else (user, password)

    def on_next(self, callback: Callable[[Any], Any]) -> None:
        """Set the callback."""
        self.callback = callback

    def on_error(self, callback: Callable[[Any], Any]) -> None:
        """Ignore the callback."""

    def is_streaming(self) -> bool:
        """Return True."""
        return True

    def give(self, given: Given) -> Any:
        """Give new credentials to the callback, and to new connections; return what the callback returns."""
        self.current = given
        return None if self.callback is None else self.callback(given)


class Rotation:
    """Credentials of one application, which its servers take for a limited time.

    Each password has a user of its own. So a server can tell which connections still use an old one.

    Attributes:
        killed: how many connections still used credentials when these ended.
        provider: gives the credentials.
    """

    def __init__(self, name: str, *servers: Server) -> None:
        self.killed = 0
        self.servers, self._name, self._number = servers, name, 0
        self.provider = Provider(self.next())

    @property
    def user(self) -> str:
        """User of the newest credentials."""
        return f"{self._name}-{self._number}"

    def next(self) -> Given:
        """Have the servers take new credentials, which nobody was given yet; return them."""
        self._number += 1
        given = Given(self.user, f"password-{self._number}")
        for server in self.servers:
            server.cli("ACL", "SETUSER", given.user, "reset", "on", f">{given.password}", "~*", "&*", "+@all")
        return given

    def change(self) -> None:
        """Give new credentials; the old ones stay valid until `end_old`."""
        self.provider.give(self.next())

    def end_old(self) -> None:
        """End all but the newest credentials, and kill the connections that still use them."""
        for server in self.servers:
            for user in server.cli("ACL", "USERS"):
                name = user.decode()
                if name.startswith(f"{self._name}-") and name != self.user:
                    self.killed += server.cli("CLIENT", "KILL", "USER", name)
                    server.cli("ACL", "DELUSER", name)

    def users_of(self, name: str) -> list[str]:
        """Return the users of the connections that have this name, on all servers."""
        return [one["user"] for server in self.servers for one in connections(server, name)]

    def end(self) -> None:
        """End all credentials."""
        self._number = 0
        self.end_old()


def connections(server: Server, name: str) -> list[dict[str, str]]:
    """Return what the server lists of the connections with this name."""
    with server.client(decode_responses=True) as client:
        return [one for one in client.client_list() if one["name"] == name]


def let_pass(seconds: float) -> None:
    """Let time pass, without the time for which the machine stands still."""
    for _ in range(TURNS):
        time.sleep(seconds / TURNS)
