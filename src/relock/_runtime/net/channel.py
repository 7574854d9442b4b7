"""Bytes in and out of one connection that redis-py has opened and authenticated.

redis-py's own way costs more than the wire and the server together, so once a connection is open its socket is used
directly, with hiredis to parse. Where hiredis is not installed, or a connection has no plain socket, the same is done
through redis-py.

The socket blocks, and its limit is the kernel's (SO_RCVTIMEO): a limit of Python's would cost another system call for
each request and each reply. TLS has Python's: its layer takes the kernel's for a call to be made again, without end.
A signal makes the kernel's begin anew, since Python makes the call again when the handler has returned. So what
must be back in time polls first: a poll goes on with the time that is left.
"""

import os
import re
import select
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from redis import exceptions as redis_errors

from relock._runtime.net.raw_connection import RawConnection

try:
    import hiredis
except ImportError:  # the extra is not installed
    hiredis = None  # type: ignore[assignment]

CHUNK_BYTES = 65536
DIGITS_MAX = 7  # of the length of a list: more items than any reply of a master has

_LONG_LIST = re.compile(rb"[*~>|]\d{8}")


class Channel(ABC):
    """One connection, open, and in exclusive use.

    Attributes:
        send: sends whole commands; ``redis.RedisError`` or ``OSError`` where it broke, or takes no more.
        fileno: what to poll.
        ready: whether something can be received within so many milliseconds, as a truth value.
        take: what has come, as it came; waits for the first bytes, for the connection's timeout at most. `parse` makes
            replies of it. ``redis.RedisError`` or ``OSError`` where it broke, or nothing came in time.
        take_now: as `take`, but never waits: ``BlockingIOError`` if nothing is there. None where that can't be had, or
            `fileno` does not tell when something is there.
        has_part: whether `parse` has been given a part of a reply whose rest is yet to be taken.
    """

    send: Callable[[bytes], object]
    fileno: int
    ready: Callable[[float], object]
    take: Callable[[], Any]
    take_now: Callable[[], Any] | None = None
    has_part: Callable[[], bool] = bool  # never

    @abstractmethod
    def parse(self, taken: Any) -> list[Any]:
        """The replies that are complete with what was taken.

        An error reply is a `redis.ResponseError` in the list. The list may be empty: go on waiting.

        Raises:
            redis.RedisError: the connection was closed, or this is no reply of a master.
        """

    def is_pending(self) -> bool:
        """Whether something was read that `take` has not given away, and `fileno` does not tell of."""
        return False

    def receive(self) -> list[Any]:
        """The replies that are complete by now; see `take` and `parse`. ``redis.TimeoutError`` if none came in time."""
        try:
            taken = self.take()
        except (BlockingIOError, TimeoutError):
            raise redis_errors.TimeoutError("Timeout reading from the master") from None
        return self.parse(taken)

    def wait(self, seconds: float) -> bool:
        """Whether something can be received within `seconds`."""
        return bool(self.ready(max(0.0, seconds) * 1000))


class SocketChannel(Channel):
    """Straight to the socket, parsed by hiredis."""

    def __init__(self, raw: RawConnection, sock: socket.socket, timeout: float) -> None:
        self._raw = raw  # keeps the socket open
        self.fileno = sock.fileno()
        limit(sock, timeout)
        reader = hiredis.Reader(replyError=redis_errors.ResponseError)
        poller = select.poll()
        poller.register(self.fileno, select.POLLIN)
        self.ready = poller.poll
        self.send = sock.sendall
        self.take = partial(sock.recv, CHUNK_BYTES)
        if not isinstance(sock, ssl.SSLSocket):
            self.take_now = partial(sock.recv, CHUNK_BYTES, socket.MSG_DONTWAIT)
        self._feed = reader.feed
        self._gets = reader.gets
        self.has_part = reader.has_data

    def parse(self, taken: bytes) -> list[Any]:
        """See `Channel`."""
        data = taken
        if not data:
            raise redis_errors.ConnectionError("the server closed the connection")
        if _LONG_LIST.search(data):
            _check_lengths(data)
        replies: list[Any] = []
        try:
            self._feed(data)
            reply = self._gets()
            while reply is not False:
                replies.append(reply)
                reply = self._gets()
        except hiredis.ProtocolError as error:
            raise redis_errors.InvalidResponse(f"no reply of a master: {error}") from None
        return replies


class PlainChannel(Channel):
    """Through redis-py, which may have read more than it has given away."""

    def __init__(self, raw: RawConnection, sock: socket.socket, timeout: float) -> None:
        self._raw = raw
        self.send = self._send
        self.ready = self._ready
        self.take = self._take
        self.fileno = sock.fileno()
        self._sock = sock
        self._timeout = timeout

    def _send(self, packed: bytes) -> None:
        self._check_open()
        self._raw.send_packed_command([packed], check_health=False)

    def _check_open(self) -> None:
        """Another thread may have closed the connection: redis-py would then open it again, and say nothing.

        Raises:
            redis.ConnectionError: it was closed.
        """
        if getattr(self._raw, "_sock", None) is None:
            raise redis_errors.ConnectionError("the connection was closed")

    def parse(self, taken: list[Any]) -> list[Any]:
        """See `Channel`; redis-py has done so."""
        return taken

    def _take(self) -> list[Any]:
        self._sock.settimeout(self._timeout)  # each `can_read` puts back that of the connection
        replies = [self._read()]
        # The end, or only the beginning of a reply: the next look finds it. What came before it counts.
        with suppress(redis_errors.RedisError, OSError):
            while self.wait(0.0):
                replies.append(self._read())
        return replies

    def _ready(self, milliseconds: float) -> bool:
        self._check_open()
        with _closed_meanwhile():
            return self._raw.can_read(milliseconds / 1000)

    def _read(self) -> Any:
        try:
            with _closed_meanwhile():
                return self._raw.read_response(disconnect_on_error=False)
        except redis_errors.ConnectionError:
            raise
        except redis_errors.ResponseError as error:
            return error


def _check_lengths(data: bytes) -> None:
    """Refuses a list of more items than any reply has: hiredis makes room for all of them before the first has come.

    For two thousand million that takes seconds, in which no other thread runs either, or all the memory that there is.
    What only looks like the beginning of such a list, in a name, say, is none.

    Raises:
        redis.InvalidResponse: there is one.
    """
    start = 0
    while start < len(data):
        end = data.find(b"\r\n", start)
        kind, number = data[start : start + 1], data[start + 1 : end if end >= 0 else None].rstrip(b"\r")
        if kind in (b"*", b"~", b">", b"|") and number.isdigit() and len(number) > DIGITS_MAX:
            raise redis_errors.InvalidResponse(f"a list of {number.decode():.20} items")
        if end < 0:
            return
        start = end + 2
        if kind in (b"$", b"=", b"!") and number.isdigit():
            start += int(number) + 2


@contextmanager
def _closed_meanwhile() -> Iterator[None]:
    """What redis-py's reader trips over when another thread closes the connection is an error of the connection."""
    try:
        yield
    except (AttributeError, ValueError) as error:
        raise redis_errors.ConnectionError("the connection was closed") from error


def open_channel(raw: RawConnection, timeout: float) -> Channel:
    """The channel of a connection that is open and owes nothing; `timeout` in seconds, for each send and receive.

    Raises:
        redis.RedisError, OSError: the connection was closed meanwhile.
    """
    sock: socket.socket | None = getattr(raw, "_sock", None)
    if sock is None:
        raise redis_errors.ConnectionError("the connection was closed")
    if hiredis is None:
        return PlainChannel(raw, sock, timeout)
    return SocketChannel(raw, sock, timeout)


def limit(sock: socket.socket, seconds: float) -> None:
    """No send and no receive takes longer than `seconds`."""
    if os.name != "posix" or isinstance(sock, ssl.SSLSocket):
        sock.settimeout(seconds)
        return
    sock.settimeout(None)
    limit = struct.pack("@ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
