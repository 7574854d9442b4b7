"""Bytes in and out of one connection that an event loop watches: nothing here waits."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial

from redis import exceptions as redis_errors

from relock._runtime.net.channel import Channel
from relock._runtime.net.raw_connection import RawConnection

CHUNK_BYTES = 2**14  # about thirty replies, or a record of TLS; the loop runs other callbacks between two reads
UNSENT_BYTES_MAX = 2**20  # a master that leaves so much unread counts as silent


class LoopChannel(Channel):
    """Channel of a connection that a thread has opened, from the moment at which an event loop watches it.

    Bytes that the socket does not take at once are kept, and sent when the loop sees that the socket takes more.

    Args:
        opened: the channel of the connection until now, with nothing in flight; or the channel of a closed loop.
        raw: the connection. Its socket does not block from now on.
        failed: called with the error if the connection breaks while the loop sends the kept bytes.
    """

    def __init__(
        self,
        opened: Channel,
        raw: RawConnection,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException], object],
    ) -> None:
        # This reference keeps the socket open. Never refer to another loop's channel: each new loop would add one.
        self._opened: Channel = opened._opened if isinstance(opened, LoopChannel) else opened
        sock: socket.socket = raw._sock  # type: ignore[attr-defined]
        self.parse, self.has_part = opened.parse, opened.has_part
        self._sock = sock
        self._loop = loop
        self._failed = failed
        self._unsent = bytearray()
        self.fileno = sock.fileno()
        self.send = self._send
        self.may_be_pending = isinstance(sock, ssl.SSLSocket)
        self.take = self.take_now = self._take if self.may_be_pending else partial(sock.recv, CHUNK_BYTES)
        self.ready = opened.ready
        sock.setblocking(False)

    def watch(self, readable: Callable[[], object]) -> None:
        """Have the loop call `readable` whenever bytes have come."""
        self._loop.add_reader(self.fileno, readable)

    def unwatch(self) -> None:
        """End the watch; call this before the socket is closed, as another socket may then get its number."""
        if self._sock.fileno() == self.fileno and not self._loop.is_closed():
            self._loop.remove_reader(self.fileno)
            self._loop.remove_writer(self.fileno)

    def _take(self) -> bytes:
        """Receive bytes over TLS; raise ``BlockingIOError`` if none have come, as without TLS."""
        try:
            return self._sock.recv(CHUNK_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError(errno.EAGAIN, "nothing has come") from error

    def is_pending(self) -> bool:
        """Return whether TLS has decrypted bytes that were not taken yet, which the loop can't see."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def _send(self, packed: bytes) -> None:
        if self._unsent:
            self._keep(packed)
            return
        try:
            sent = self._sock.send(packed)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(packed):
            self._keep(packed[sent:])
            self._loop.add_writer(self.fileno, self._send_rest)

    def _keep(self, packed: bytes) -> None:
        if len(self._unsent) + len(packed) > UNSENT_BYTES_MAX:
            raise redis_errors.TimeoutError("the master does not read the requests that it is sent")
        self._unsent += packed

    def _send_rest(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._failed(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self.fileno)
