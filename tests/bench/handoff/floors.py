"""The floors: what bare sockets and the smallest scripts that are right reach. Never changed with the product's own.

Each worker has two sockets, one for its commands and one for the messages to it, and a queue decides who is next.
"""

import socket
from pathlib import Path
from secrets import token_hex
from typing import Any

import hiredis

from relock.cli._bench.work import Job

FOLDER = Path(__file__).parent
LEASE_MS = 10_000


class Wire:
    """A bare socket to a master, read by hiredis."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def call(self, packed: bytes) -> Any:
        """Sends a command; its reply."""
        self._socket.sendall(packed)
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

    def load(self, script: str) -> bytes:
        """Loads a script of this folder; its name."""
        sha: bytes = self.call(packed("SCRIPT", "LOAD", (FOLDER / f"{script}.lua").read_bytes()))
        return sha


def packed(*words: str | bytes | int) -> bytes:
    """A command as bytes."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # it takes more than its stub says
    return command


class OneHop:
    """The release gives the lock to the head of the queue, and the message says so."""

    LEAVE = "grant"

    def __init__(self, port: int, name: str) -> None:
        self._me = f"{name}-{token_hex(8)}"
        self._name = name
        self._commands, self._messages = Wire(port), Wire(port)
        self._messages.call(packed("SUBSCRIBE", self._me))
        self._enter, self._leave = self._packed("enter"), self._packed(self.LEAVE)

    def _packed(self, script: str) -> bytes:
        keys = (self._name, f"{self._name}:queue")
        return packed("EVALSHA", self._commands.load(script), len(keys), *keys, self._me, LEASE_MS)

    def acquire(self) -> int:
        """At once if the lock is free, else when the message comes."""
        if not self._commands.call(self._enter):
            self._messages.receive()
        return 0

    def release(self) -> None:
        """One script."""
        self._commands.call(self._leave)


class TwoHops(OneHop):
    """The release wakes the head of the queue, which then takes the lock."""

    LEAVE = "wake"

    def __init__(self, port: int, name: str) -> None:
        super().__init__(port, name)
        self._claim = self._packed("claim")

    def acquire(self) -> int:
        """At once if the lock is free, else by a script of its own when the message has come."""
        if not self._commands.call(self._enter):
            self._messages.receive()
            while not self._commands.call(self._claim):
                self._messages.receive()
        return 0


class Bare:
    """What the workers of one process share: nothing."""

    def __init__(self, job: Job, kind: type[OneHop]) -> None:
        self._kind, self._name = kind, job.name
        self._port = job.ports[0]

    def locker(self) -> OneHop:
        """One for another worker."""
        return self._kind(self._port, self._name)

    def close(self) -> None:
        """The sockets end with their process."""
