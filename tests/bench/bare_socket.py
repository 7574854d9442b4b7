"""Bare sockets to servers of this machine."""

import socket

from relock.cli._bench.floor import sockets
from relock.cli._bench.floor.sockets import packed

__all__ = ["BareSocket", "packed"]


class BareSocket(sockets.BareSocket):
    """The floor's, to a port of this machine."""

    def __init__(self, port: int) -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(sock)
