"""What each master says of itself: whether it has a vote, when it gets one, and who holds the lock there.

`relock.Client.statistics` says what one client has seen of its masters. The demo looks at the masters themselves, so
that what it shows and counts does not depend on the client that is being shown.
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from attrs import evolve, frozen

from relock._core.info import read_info
from relock._keys import lock_keys, master_key
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.net.node import Node
from relock._runtime.net.parse import parse_nodes
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import load
from relock._servers.server import LocalServer
from relock.cli._nodes import Where

LOOK_SECONDS = 0.05
TIMEOUT_SECONDS = 0.5
JOIN_SECONDS = 1.0


@frozen
class MasterView:
    """One master at one moment; times in seconds.

    Attributes:
        address: where it is; never holds a password.
        up: whether it answers.
        vote_in: until it has a vote: 0.0 with one; infinity if no script has asked for one yet, or it is down.
        owner: who holds the lock there, as ``<client>:<uuid>``; None for nobody.
        lease: how long the lease runs there; 0.0 for a free lock.
        looked_at: when the look began, on CLOCK_MONOTONIC.
    """

    address: str
    up: bool = False
    vote_in: float = float("inf")
    owner: str | None = None
    lease: float = 0.0
    looked_at: float = 0.0

    @property
    def votes(self) -> bool:
        """Whether it has a vote."""
        return self.up and self.vote_in == 0.0

    @property
    def vote_at(self) -> float:
        """When it has, or will have, its vote; on CLOCK_MONOTONIC, never too late."""
        return self.looked_at + self.vote_in


class Watch:
    """What one master says, asked over a connection of its own."""

    def __init__(self, node: Node, prefix: str, name: str) -> None:
        self.view = MasterView(node.address)
        self.votes_from = 0.0  # since when it has its vote, or from when on it will; never too late
        self._node, self._prefix, self._keys = node, prefix, lock_keys(prefix, name)
        self._script = load("inspect")
        self._raw: RawConnection | None = None
        self._incarnation = b""
        self._asked_at = 0.0

    def ask(self) -> None:
        """Asks it; `hear` takes the answer."""
        self._asked_at = time.monotonic()
        keys = self._keys
        try:
            raw = self._raw or self._connect()
            raw.send_command("HMGET", master_key(self._prefix), "incarnation", "no_vote_until_us", check_health=False)
            raw.send_command("EVALSHA", self._script.sha, 3, keys.lock, keys.queue, keys.token, 1, check_health=False)
        except NETWORK_ERRORS:
            self.close()

    def hear(self) -> None:
        """What it answered, as `view`."""
        view = MasterView(self._node.address, looked_at=self._asked_at)
        if self._raw is not None:
            try:
                view = self._view(self._raw.read_response(), self._raw.read_response())
            except NETWORK_ERRORS:
                self.close()
        if 0.0 < view.vote_in < float("inf"):
            self.votes_from = view.vote_at
        elif view.votes and not self.view.votes:  # whatever its marker has said before
            self.votes_from = min(self.votes_from, view.looked_at)
        self.view = view

    def _view(self, marker: Sequence[Any], seen: Sequence[Any]) -> MasterView:
        view = MasterView(self._node.address, True, self._vote_in(marker, int(seen[1])), looked_at=self._asked_at)
        if seen[0] != b"held":
            return view
        lease = seen[2] / 1000 if seen[2] >= 0 else float("inf")
        return evolve(view, owner=seen[3].decode(errors="replace"), lease=lease)

    def _vote_in(self, marker: Sequence[Any], now_us: int) -> float:
        """As the scripts judge it: a marker of another incarnation is none."""
        incarnation, until_us = marker
        if incarnation != self._incarnation:
            return float("inf")
        return max(0.0, (int(until_us) - now_us) / 1e6)

    def _connect(self) -> RawConnection:
        raw = self._node.raw_connection(TIMEOUT_SECONDS)
        raw.connect()
        self._raw = raw
        for section in ("server", "replication"):
            raw.send_command("INFO", section, check_health=False)
        info = read_info(raw.read_response() + b"\r\n" + raw.read_response())
        self._incarnation = info.incarnation.encode()
        raw.send_command("SCRIPT", "LOAD", self._script.source, check_health=False)
        raw.read_response()
        return raw

    def close(self) -> None:
        """Closes the connection; the next question opens another one."""
        raw, self._raw = self._raw, None
        if raw is not None:
            try:
                raw.disconnect()
            except NETWORK_ERRORS:
                return


class Masters:
    """All masters, looked at again and again while this is entered, all at the same moment.

    Attributes:
        watches: one for each master; none for a lone master, which always has a vote.
        servers: those of them that the demo has started, and may kill.
    """

    def __init__(self, watches: Sequence[Watch] = (), servers: Sequence[LocalServer] = ()) -> None:
        self.watches = watches
        self.servers = servers
        self._mutex = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @classmethod
    def of(cls, where: Where, name: str, servers: Sequence[LocalServer]) -> Self:
        """The masters of `where`, and the holder of the lock `name` there. A lone master always has a vote."""
        nodes = parse_nodes(list(where.urls))
        several = nodes if len(nodes) > 1 else ()
        return cls([Watch(node, where.prefix, name) for node in several], servers if several else ())

    @property
    def count(self) -> int:
        """How many are watched; 0 for one alone."""
        return len(self.watches)

    @property
    def quorum(self) -> int:
        """How many of them are a majority."""
        return self.count // 2 + 1

    @property
    def views(self) -> tuple[MasterView, ...]:
        """What each said when it was last looked at."""
        return tuple(watch.view for watch in self.watches)

    def all_vote(self) -> bool:
        """Whether a quorum is up, and each of those that are up has a vote."""
        up = [view for view in self.views if view.up]
        return len(up) >= self.quorum and all(view.votes for view in up)

    def look(self) -> tuple[MasterView, ...]:
        """What each says now."""
        with self._mutex:
            for watch in self.watches:
                watch.ask()
            for watch in self.watches:
                watch.hear()
            return self.views

    def lease_left(self, is_holder: Callable[[str | None], bool]) -> float:
        """Seconds before which a quorum can't be free of the holder: those that have not heard of it count as free."""
        leases = sorted(view.lease if is_holder(view.owner) else 0.0 for view in self.look())
        return leases[self.quorum - 1]

    def _run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self.look()

    def __enter__(self) -> Self:
        if self.watches:
            self.look()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        if self.watches:
            self._thread.join(JOIN_SECONDS)
        for watch in self.watches:
            watch.close()
