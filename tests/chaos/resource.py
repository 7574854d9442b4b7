"""Resource that locks protect: an unguarded counter and marker, and a store that checks fencing tokens."""

import json
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any

DIGITS = 20


class Counter:
    """A number in a file. Writing a read number back loses every update that another worker made meanwhile."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def read(self) -> int:
        """Return the number; 0 if none was written yet."""
        return int(os.pread(self._file, DIGITS, 0) or b"0")

    def write(self, number: int) -> None:
        """Write the number, all or nothing, even if SIGKILL comes."""
        os.pwrite(self._file, b"%0*d" % (DIGITS, number), 0)


class Marker:
    """A file that one holder creates and removes; only one can."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, grant: int) -> int | None:
        """Create the marker; take an existing one over and return its owner, 0 if the owner can't be read."""
        try:
            self._create(grant)
        except FileExistsError:
            other = self.owner()
            mine = self._path.with_name(f"{self._path.name}.{grant}")
            mine.write_text(str(grant))
            os.replace(mine, self._path)
            return other
        return None

    def _create(self, grant: int) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(file, str(grant).encode())
        finally:
            os.close(file)

    def owner(self) -> int:
        """Return the marker's owner; 0 if there is none, or the marker is not written yet."""
        try:
            return int(self._path.read_text() or 0)
        except FileNotFoundError:
            return 0

    def remove(self, grant: int) -> None:
        """Remove the marker, if it is still this holder's."""
        if self.owner() == grant:
            self._path.unlink(missing_ok=True)


class Store:
    """Keeper of the highest token of each lock, which refuses lower ones.

    Its process must not be one that a fault may stop or kill: a write being judged would then block the store for all.
    """

    def __init__(self, path: Path) -> None:
        self._judging = threading.Lock()
        self._highest: dict[str, int] = {}
        self._order = 0
        self.inside: dict[str, str] = {}  # the worker in each lock's section, by accepted writes
        self.entries: dict[str, int] = {}  # of workers into each lock's section
        self.path = path
        self._server = _StoreServer(str(path), _Connection)
        self._server.store = self
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def judge(self, lock: str, token: int, worker: str, phase: str) -> tuple[bool, int]:
        """Return whether a write with this token is accepted, and the write's position among all writes."""
        with self._judging:
            self._order += 1
            accepted = token >= self._highest.get(lock, 0)
            if accepted:
                self._highest[lock] = token
                if phase == "enter":
                    self.inside[lock] = worker
                    self.entries[lock] = self.entries.get(lock, 0) + 1
                else:
                    self.inside.pop(lock, None)
            return accepted, self._order

    def close(self) -> None:
        """End the store."""
        self._server.shutdown()
        self._server.server_close()


class _StoreServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    store: Store


class _Connection(socketserver.StreamRequestHandler):
    """A connection on which each request and each reply is a line."""

    def handle(self) -> None:
        """Answer until the client closes the connection."""
        assert isinstance(self.server, _StoreServer)
        try:
            for line in self.rfile:
                reply = self.server.store.judge(*json.loads(line))
                self.wfile.write(json.dumps(reply).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client was killed


class StoreClient:
    """One thread's connection to the store."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._replies = self._socket.makefile("rb")

    def write(self, *request: Any) -> tuple[bool, int]:
        """Judge a write, as `Store.judge` does."""
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        accepted, order = json.loads(self._replies.readline())
        return accepted, order

    def close(self) -> None:
        """End the connection."""
        self._replies.close()
        self._socket.close()
