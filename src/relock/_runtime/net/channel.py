"""Bytes in and out of one connection that redis-py has opened and authenticated.

redis-py takes more time for a request than the network and the server together, so once a connection is open its socket
is used directly. hiredis parses the replies, or a parser in Python if hiredis is not installed.

The socket blocks, and the kernel limits the time (SO_RCVTIMEO): a limit of Python's would cost another system call for
each request and each reply. For TLS, Python limits the time, because its TLS layer repeats a call that the kernel's
limit has ended. After a signal handler, Python repeats the call, and the kernel's limit begins anew. So a caller that
must return in time polls first: a poll goes on with the time that is left.
"""

import re
import select
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from redis import exceptions as redis_errors

from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.net.resp import Parser

try:
    import hiredis
except ImportError:  # hiredis is an extra
    hiredis = None  # type: ignore[assignment]

CHUNK_BYTES = 65536
DIGITS_MAX = 7  # digits that the length of a list in a master's reply may have

_LONG_LIST = re.compile(rb"[*~>|]\d{8}")


class Channel:
    """Open connection in exclusive use.

    Attributes:
        send: sends whole commands. Raises ``redis.RedisError`` or ``OSError`` if the connection broke or is full.
        fileno: the descriptor to poll.
        ready: returns a true value if bytes can be received within so many milliseconds.
        take: returns received bytes, unparsed; waits for the first ones, for the connection's timeout at most. Raises
            ``redis.RedisError`` or ``OSError`` if the connection broke, or no bytes came in time.
        take_now: as `take`, but raises ``BlockingIOError`` instead of waiting. None over TLS, because polling `fileno`
            does not show when decrypted bytes are ready.
        parse: returns the replies that are complete with these bytes; an error reply is a `redis.ResponseError` in the
            list. The list may be empty: wait for more bytes. Raises ``redis.RedisError`` if the connection was closed,
            or the bytes are no reply of a master.
        has_part: returns whether `parse` has received a part of a reply whose rest is yet to come.
    """

    send: Callable[[bytes], object]
    fileno: int
    ready: Callable[[float], object]
    take: Callable[[], Any]
    take_now: Callable[[], Any] | None = None
    parse: Callable[[Any], list[Any]]
    has_part: Callable[[], bool] = bool  # returns False

    def unwatch(self) -> None:
        """End the watch of an event loop, if one watches; afterwards the socket may be closed."""

    def is_pending(self) -> bool:
        """Return whether `take` has bytes to return that polling `fileno` does not show."""
        return False

    def receive(self) -> list[Any]:
        """Take and parse bytes; return the complete replies. Raise ``redis.TimeoutError`` if none came in time."""
        try:
            taken = self.take()
        except (BlockingIOError, TimeoutError):
            raise redis_errors.TimeoutError("Timeout reading from the master") from None
        return self.parse(taken)

    def wait(self, seconds: float) -> bool:
        """Return whether bytes can be received within `seconds`."""
        return bool(self.ready(max(0.0, seconds) * 1000))


class SocketChannel(Channel):
    """Channel that uses the socket directly."""

    def __init__(self, raw: RawConnection, sock: socket.socket, timeout: float) -> None:
        self._raw = raw  # this reference keeps the socket open
        self.fileno = sock.fileno()
        limit(sock, timeout)
        poller = select.poll()
        poller.register(self.fileno, select.POLLIN)
        self.ready = poller.poll
        self.send = sock.sendall
        self.take = partial(sock.recv, CHUNK_BYTES)
        if not isinstance(sock, ssl.SSLSocket):
            self.take_now = partial(sock.recv, CHUNK_BYTES, socket.MSG_DONTWAIT)
        parser = Parser() if hiredis is None else HiredisParser()
        self.parse, self.has_part = parser.parse, parser.has_part


class HiredisParser:
    """Parser of hiredis, with a check for lists that are longer than a master sends."""

    def __init__(self) -> None:
        reader = hiredis.Reader(replyError=redis_errors.ResponseError)
        self._feed, self._gets, self.has_part = reader.feed, reader.gets, reader.has_data

    def parse(self, data: bytes) -> list[Any]:
        """Return the replies that are complete with `data`, as `Channel` describes."""
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
            raise redis_errors.InvalidResponse(f"this is no reply of a master: {error}") from None
        return replies


def _check_lengths(data: bytes) -> None:
    """Refuse a list of more items than any reply has: hiredis makes room for all items before the first has come.

    Room for two thousand million items takes seconds, in which no other thread runs, or all memory. Bytes inside a
    string (a name, say) may look like the beginning of such a list; they are skipped.

    Raises:
        redis.InvalidResponse: `data` has such a list.
    """
    start = 0
    while start < len(data):
        end = data.find(b"\r\n", start)
        kind, number = data[start : start + 1], data[start + 1 : end if end >= 0 else None].rstrip(b"\r")
        if kind in (b"*", b"~", b">", b"|") and number.isdigit() and len(number) > DIGITS_MAX:
            raise redis_errors.InvalidResponse(f"a list of {number.decode():.20} items is no reply of a master")
        if end < 0:
            return
        start = end + 2
        if kind in (b"$", b"=", b"!") and number.isdigit():
            start += int(number) + 2


def open_channel(raw: RawConnection, timeout: float) -> Channel:
    """Return the channel of an open connection with nothing in flight; `timeout` (s) is for each send and receive.

    Raises:
        redis.RedisError, OSError: the connection was closed meanwhile.
    """
    sock: socket.socket | None = getattr(raw, "_sock", None)
    if sock is None:
        raise redis_errors.ConnectionError("the connection was closed")
    return SocketChannel(raw, sock, timeout)


def limit(sock: socket.socket, seconds: float) -> None:
    """Limit each send and each receive of `sock` to `seconds`."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(seconds)
        return
    sock.settimeout(None)
    limit = struct.pack("@ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
