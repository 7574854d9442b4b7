"""A TCP proxy that makes a master slow: all bytes arrive later, in their order."""

import heapq
import itertools
import selectors
import socket
import threading
import time
from collections.abc import Callable

Delay = Callable[[], float]


def at_once() -> float:
    """Return no delay."""
    return 0.0


class Slow:
    """Proxy on loopback in front of one server; `requests` and `replies` return the delay (s) of each piece.

    A test may replace these functions at any time, for pieces that come from then on.
    """

    def __init__(self, port: int, *, requests: Delay = at_once, replies: Delay = at_once) -> None:
        self.requests = requests
        self.replies = replies
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop_here, self._stop_there = socket.socketpair()
        self._selector.register(self._stop_there, selectors.EVENT_READ)
        self._twins: dict[socket.socket, tuple[socket.socket, bool]] = {}  # the other end, and whether it is the server
        self._free_at: dict[socket.socket, float] = {}  # when the last piece for this end arrives
        self._coming: list[tuple[float, int, socket.socket, bytes]] = []
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return the URL of the slow server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _run(self) -> None:
        while True:
            timeout = None if not self._coming else max(0.0, self._coming[0][0] - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._stop_there:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            while self._coming and self._coming[0][0] <= time.monotonic():
                _, _, end, data = heapq.heappop(self._coming)
                self._deliver(end, data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port))
        except OSError:
            client.close()
            return
        self._twins[client], self._twins[server] = (server, True), (client, False)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ)

    def _read(self, end: socket.socket) -> None:
        """Take the bytes that have come; the end of a connection is delayed like any bytes."""
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(end)
        other, is_request = self._twins[end]
        due = time.monotonic() + (self.requests() if is_request else self.replies())
        due = self._free_at[other] = max(due, self._free_at.get(other, 0.0))
        heapq.heappush(self._coming, (due, next(self._order), other, data))

    def _deliver(self, end: socket.socket, data: bytes) -> None:
        try:
            if data:
                end.sendall(data)
            else:
                end.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the receiver has gone

    def close(self) -> None:
        """End the proxy."""
        self._stop_here.send(b"x")
        self._thread.join(5.0)
        self._selector.close()
        for end in (self._listener, self._stop_here, self._stop_there, *self._twins):
            end.close()
