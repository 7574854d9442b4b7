"""Bare sockets to masters, read by hiredis: what the floors are made of."""

import socket
from typing import Any

import hiredis


def packed(*words: str | bytes | int) -> bytes:
    """A command as bytes."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # it takes more than its stub says
    return command


class BareSocket:
    """One bare socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self._owed = 0

    def fileno(self) -> int:
        """The socket's, to wait for it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def call(self, command: bytes) -> Any:
        """Sends a command; its reply."""
        self._socket.sendall(command)
        return self.receive()

    def receive(self) -> Any:
        """The next reply, or the next message."""
        reply = self._reader.gets()
        while reply is False:
            self._reader.feed(self._socket.recv(65536))
            reply = self._reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def load(self, script: bytes) -> bytes:
        """Loads a script; its name."""
        sha: bytes = self.call(packed("SCRIPT", "LOAD", script))
        return sha

    # Without waiting for the reply ----------------------------------------------------------------------------------

    def send(self, command: bytes) -> None:
        """Sends a command, whose reply is owed."""
        self._socket.sendall(command)
        self._owed += 1

    def has_answered(self) -> bool:
        """Takes what has come; whether no reply is owed any more.

        Raises:
            hiredis.ReplyError: one of them is an error, and so nothing that should be measured.
        """
        self._reader.feed(self._socket.recv(65536))
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            self._owed -= 1
        return self._owed == 0
