"""A master that is only one line, over which a test publishes messages."""

import socket
from collections.abc import Sequence
from typing import Any

from redis._parsers import _RESP2Parser
from redis.connection import Connection

from relock._keys import LockKeys, lock_keys
from relock._options import ClientOptions
from relock._runtime.net import channel
from relock._runtime.net.credentials import Credentials
from relock._runtime.wakeups.hub import HubListener

KEYS = lock_keys("lock", "a")
WAITER = b"me:1@3000"
TIMEOUT_SECONDS = 0.2
PONG = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
CONFIRMED = b"$3\r\nrun\r\n$4\r\nrepl\r\n*3\r\n$9\r\nsubscribe\r\n$14\r\nlock:client:me\r\n:1\r\n"


def published(payload: bytes) -> bytes:
    """Return a message for the client, as a server sends it."""
    return b"*3\r\n$7\r\nmessage\r\n$14\r\nlock:client:me\r\n$%d\r\n%b\r\n" % (len(payload), payload)


class Line(Connection):
    """A connection whose other end the test has, and that sends nothing when it opens."""

    def __init__(self, ours: socket.socket) -> None:
        parser = {} if getattr(channel, "hiredis", None) else {"parser_class": _RESP2Parser}
        super().__init__(  # type: ignore[no-untyped-call]
            socket_timeout=TIMEOUT_SECONDS, redis_connect_func=_introduce, protocol=2, **parser
        )
        self._ours = ours

    def _connect(self) -> socket.socket:
        self._ours.settimeout(TIMEOUT_SECONDS)
        return self._ours


class FakeMaster:
    """A master whose connections lead to the test."""

    is_cluster = False
    index = 0
    address = "a"
    vote_at = 0.0
    node_timeout = TIMEOUT_SECONDS
    naming = ()
    options = ClientOptions()
    introduction = (("INFO", "server"), ("INFO", "replication"))

    def __init__(self) -> None:
        self.credentials = Credentials(None)
        ours, self.server = socket.socketpair()
        self.line = Line(ours)

    @property
    def facts(self) -> "FakeMaster":
        return self

    opener = facts

    def end(self) -> None:
        """Close both ends."""
        self.server.close()
        self.line.disconnect()  # type: ignore[no-untyped-call]
        self.line._ours.close()

    def raw_connection(self) -> Any:
        return self.line

    def granted_at(self, _granted_us: int, _incarnation: bytes, arrived_at: float) -> float:
        return arrived_at

    def introduce(self, replies: Sequence[Any]) -> bytes:
        self.incarnation = b":".join(replies)
        return self.incarnation


class Ignores(HubListener):
    """Listener that ignores all events."""

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None: ...

    def unclaimed(self, keys: LockKeys, owner: bytes, token: int) -> None: ...

    def watch_waiters(self) -> None:
        """Ignore the call."""

    def asked(self, message: bytes) -> None: ...

    def ended(self, name: str, owner: bytes) -> None: ...

    def subscribed(self) -> None: ...


def _introduce(line: Any) -> None:
    line._parser.on_connect(line)
