"""The floor of everything on a loop: one socket that the loop watches, and futures. It is never changed with relock.

There are no streams and no protocols between: the loop says that something has come, hiredis reads it, and whoever is
first in line gets it.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from relock.cli._bench.floor.sockets import CHUNK_BYTES, RefusedError

Take = Callable[[Any], object]


class LoopSocket:
    """A socket to a port of this machine. Replies go to those who asked, in the order in which they did."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self._loop = loop
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._reader = hiredis.Reader()
        self._owed: deque[Take] = deque()
        loop.add_reader(self._socket.fileno(), self._readable)

    def close(self) -> None:
        """Closes it."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def call(self, command: bytes) -> "asyncio.Future[Any]":
        """Sends a command; its reply."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        self.ask(command, reply.set_result)
        return reply

    def ask(self, command: bytes, take: Take) -> None:
        """Sends a command; `take` is called with its reply."""
        self._owed.append(take)
        if self._socket.send(command) != len(command):
            raise BlockingIOError("commands of a benchmark fit into the socket's buffer")

    def _readable(self) -> None:
        data = self._socket.recv(CHUNK_BYTES)
        if not data:
            raise ConnectionError("the master closed the connection")
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise RefusedError(str(reply))
            self._has_come(reply)

    def _has_come(self, reply: Any) -> None:
        self._owed.popleft()(reply)


class LoopMessages(LoopSocket):
    """A subscription: each channel's message goes to whoever waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        super().__init__(loop, port)
        self.waiting: dict[bytes, Take] = {}

    def _has_come(self, reply: Any) -> None:
        kind, channel, message = reply
        if kind == b"message":
            self.waiting.pop(channel)(message)
        else:
            super()._has_come(reply)
