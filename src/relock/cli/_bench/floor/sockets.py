"""Bare sockets to masters, read by hiredis, and the floor's scripts."""

import socket
from importlib.resources import files
from typing import Any, NoReturn

try:
    import hiredis
except ImportError:  # hiredis is an extra
    hiredis = None  # type: ignore[assignment]

HAS_HIREDIS = hiredis is not None
FOLDER = files("relock.cli._bench.floor")
CHUNK_BYTES = 65536


class RefusedError(Exception):
    """A master's error reply, with which nothing can be measured."""


def packed(*words: str | bytes | int) -> bytes:
    """Return a command as bytes."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # it takes more than its stub says
    return command


class BareSocket:
    """One bare socket, which the caller has opened."""

    def __init__(self, sock: socket.socket, owner: object = None) -> None:
        self._socket = sock
        self._owner = owner  # this reference keeps the socket open
        self._reader = hiredis.Reader(replyError=RefusedError)
        self._owed = 0

    def fileno(self) -> int:
        """Return the socket's number, to wait for it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def call(self, command: bytes) -> Any:
        """Send a command; return its reply."""
        self._socket.sendall(command)
        return self.receive()

    def receive(self) -> Any:
        """Return the next reply, or the next message."""
        reply = self._reader.gets()
        while reply is False:
            self._reader.feed(self._socket.recv(CHUNK_BYTES) or _closed())
            reply = self._reader.gets()
        if isinstance(reply, RefusedError):
            raise reply
        return reply

    def load(self, script: bytes) -> bytes:
        """Load a script; return its name."""
        sha: bytes = self.call(packed("SCRIPT", "LOAD", script))
        return sha

    # Without waiting for the reply ----------------------------------------------------------------------------------

    def send(self, command: bytes) -> None:
        """Send a command, whose reply is owed."""
        self._socket.sendall(command)
        self._owed += 1

    def has_answered(self) -> bool:
        """Read the replies that have come; return whether no reply is owed any more.

        Raises:
            RefusedError: a reply is an error.
        """
        self._reader.feed(self._socket.recv(CHUNK_BYTES) or _closed())
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, RefusedError):
                raise reply
            self._owed -= 1
        return self._owed == 0


def _closed() -> NoReturn:
    raise ConnectionError("the master closed the connection")
