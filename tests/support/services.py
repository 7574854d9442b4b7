"""Services that refuse commands, played by real servers with users that lack rights.

A server's ACL binds scripts as well, so it refuses a command everywhere. Where a service refuses a command only in
scripts, a `Proxy` answers it outside scripts, as a user with all rights.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen

from support.proxy import Fault, Framer, Proxy, Words
from support.servers import Server


@frozen
class Service:
    """Limits of a service.

    Attributes:
        rights: the rules of the ACL for the user of relock, after those that allow everything.
        only_in_scripts: commands that these rules refuse, and the service refuses only in scripts.
        hidden: the name of a field that the replies to these commands lack.
    """

    rights: tuple[str, ...]
    only_in_scripts: tuple[bytes, ...] = ()
    hidden: bytes = b"\0"


class ServiceProxy(Proxy):
    """Proxy that answers some commands as a user with all rights."""

    def __init__(self, server: Server, service: Service) -> None:
        super().__init__(server.port)
        self._port, self._service = server.port, service

    def strike(self, words: Words, kinds: tuple[str, ...]) -> Fault | None:
        """Return the fault that changes the reply to one of the commands; else as `Proxy` does."""
        if "forge" in kinds and words and words[0].upper() in self._service.only_in_scripts:
            return Fault(lambda _: True, "forge", forge=lambda _: self._ask(words))
        return super().strike(words, kinds)

    def _ask(self, words: Words) -> bytes:
        """Return the server's reply to a user with all rights, as it comes over the wire."""
        framer, found = Framer(), list[bytes]()
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(
                b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
            )
            while not found:
                found = framer.feed(connection.recv(65536))
        hidden = self._service.hidden
        return found[0].replace(hidden, b"x" * len(hidden))


@contextmanager
def playing(service: Service, server: Server, user: str) -> Iterator[str]:
    """Let `server` play a service for one of its users; yield the URL of that user."""
    server.cli("ACL", "SETUSER", user, "reset", "on", "nopass", "~*", "&*", "+@all", *service.rights)
    proxy = ServiceProxy(server, service)
    try:
        yield f"redis://{user}:x@127.0.0.1:{proxy.port}/0"
    finally:
        proxy.close()
        server.cli("ACL", "DELUSER", user)
