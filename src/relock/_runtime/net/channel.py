"""Bytes in and out of one connection that redis-py has opened and authenticated.

redis-py's own way costs more than the wire and the server together, so once a connection is open its socket is used
directly. hiredis parses what comes, or a parser in Python where hiredis is not installed.

The socket blocks, and its time limit is the kernel's (SO_RCVTIMEO): a limit of Python's would cost another system call
for each request and each reply. TLS has a limit of Python's: its layer would repeat a call that the kernel's has ended.
After a signal's handler, Python repeats the call, and the kernel's limit begins anew. So a caller that must be back in
time polls first: a poll goes on with the time that is left.
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
DIGITS_MAX = 7  # the length of a list in a master's reply has no more digits

_LONG_LIST = re.compile(rb"[*~>|]\d{8}")


class Channel:
    """Open connection in exclusive use.

    Attributes:
        send: sends whole commands; ``redis.RedisError`` or ``OSError`` where the connection broke, or takes no more.
        fileno: the descriptor to poll.
        ready: returns a true value if something can be received within so many milliseconds.
        take: returns what has come, unparsed; waits for the first bytes, for the connection's timeout at most.
            ``redis.RedisError`` or ``OSError`` where the connection broke, or nothing came in time.
        take_now: as `take`, but never waits: ``BlockingIOError`` if nothing is there. None over TLS, where `fileno`
            does not tell when something is there.
        parse: returns the replies that are complete with what was taken; an error reply is a `redis.ResponseError` in
            the list. The list may be empty: go on waiting. ``redis.RedisError`` where the connection was closed, or
            what was taken is no reply of a master.
        has_part: returns whether `parse` has been given a part of a reply whose rest is yet to be taken.
    """

    send: Callable[[bytes], object]
    fileno: int
    ready: Callable[[float], object]
    take: Callable[[], Any]
    take_now: Callable[[], Any] | None = None
    parse: Callable[[Any], list[Any]]
    has_part: Callable[[], bool] = bool  # False: `parse` keeps no part

    def unwatch(self) -> None:
        """End the watch of an event loop, if one watches; afterwards the socket may be closed."""

    def is_pending(self) -> bool:
        """Return whether bytes were read that `take` has not returned yet, and polling `fileno` does not show."""
        return False

    def receive(self) -> list[Any]:
        """Take and parse what comes; return the complete replies. ``redis.TimeoutError`` if nothing came in time."""
        try:
            taken = self.take()
        except (BlockingIOError, TimeoutError):
            raise redis_errors.TimeoutError("Timeout reading from the master") from None
        return self.parse(taken)

    def wait(self, seconds: float) -> bool:
        """Return whether something can be received within `seconds`."""
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
    """Parser of hiredis, which refuses what no master sends."""

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
    """Refuse a list of more items than any reply has: hiredis makes room for all of them before the first has come.

    Room for two thousand million takes seconds, in which no other thread runs, or all the memory that there is.
    Bytes in a string, a name, say, that look like the beginning of such a list are none.

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
