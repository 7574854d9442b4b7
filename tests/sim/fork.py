"""Forked children, which find a copy of their parent's client, and share only the sockets with the parent's."""

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import Any

from relock._core.book import Book
from relock._runtime.live_set import LiveSet
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.master import Master
from relock._runtime.net.parse import parse_nodes
from relock._runtime.session.session import Session
from relock._runtime.wakeups.hub import AnyHub
from relock._runtime.wakeups.hubs import Hubs
from relock._runtime.wakeups.shared_subscriptions import SharedSubscriptions
from relock._runtime.wakeups.subscription import Subscription
from relock._runtime.wakeups.thread_subscription import ThreadSubscription
from relock.testing._lab import VirtualClient
from relock.testing._network import VirtualConnection, node_of
from relock.testing._platform import VirtualPlatform
from relock.testing._process import Process
from relock.testing._server import Server


class InheritedConnection:
    """A forked child's copy of a connection. The child may only close it."""

    def __init__(self, raw: VirtualConnection, process: Process) -> None:
        raw.copies += 1
        self._raw = raw
        self._process = process
        process.connections[self] = None

    def disconnect(self) -> None:
        """Close the copy of the socket, and send nothing, because another process opened the connection."""
        if self._process.connections.pop(self, self) is None:
            self._raw.close_copy()

    def let_go(self) -> None:
        """Drop the copy of the socket."""
        self.disconnect()


def in_child(client: VirtualClient, child: Process, servers: Sequence[Server]) -> VirtualClient:
    """Return the copy of a client that a forked process has at its beginning."""
    copied = object.__new__(type(client))  # not by `copy`: a client refuses to be copied
    copied.__dict__.update(client.__dict__)
    copied._platform = platform = VirtualPlatform(child)
    copied._nodes = parse_nodes([node_of(child, servers, number) for number in range(len(servers))])
    copied._session = _session(client._session, platform)
    return copied


def _session(session: Session, platform: VirtualPlatform) -> Session:
    """Return a child's session after the fork: with its book of holds and its connections, but without threads.

    The parts that a child does not change are shared with the parent's.
    """
    own = copy(session)
    child = platform.process
    own.platform, own.clock = platform, platform.clock
    own.holds = Book(session.holds)
    own.hubs = Hubs()
    for hub in session.hubs.all():
        own.hubs.add(_hub(hub, child))
    own.masters = tuple(_master(master, child) for master in session.masters)
    return own


def _hub(hub: AnyHub, child: Process) -> AnyHub:
    own = copy(hub)
    own.waiters = dict(hub.waiters)
    own.shared = SharedSubscriptions(VirtualPlatform(child))
    own.subscriptions = [_subscription(one, own.shared, child) for one in hub.subscriptions]
    return own


def _subscription(subscription: Subscription, reading: SharedSubscriptions, child: Process) -> Subscription:
    own = copy(subscription)
    if isinstance(own, ThreadSubscription):
        own._shared = reading
    own._raw = _raw(subscription._raw, child)
    return own


def _master(master: Master, child: Process) -> Master:
    """Return a child's master, also with the connections that threads of the parent use at this moment."""
    open_: Any = sorted(filter(_is_open, [*master.pool._connections, *master.pool._own_connections]), key=_number)
    connections: Any = dict.fromkeys(_connection(connection, child) for connection in open_)
    own = copy(master)
    own.pool = copy(master.pool)
    own.pool._connections, own.pool._own_connections = connections, LiveSet()
    own.pool._idle, own.pool._own_idle = deque(), deque()
    return own


def _connection(connection: Connection, child: Process) -> Connection:
    own = copy(connection)
    own.raw = _raw(connection.raw, child)
    return own


def _number(connection: Connection) -> int:
    """Return a number that gives connections the same order in every run."""
    raw: Any = connection.raw
    number: int = raw.fileno
    return number


def _is_open(connection: Connection) -> bool:
    raw: Any = connection.raw
    return bool(raw.is_open)


def _raw(raw: Any, child: Process) -> Any:
    """Return a copy of an open socket."""
    return InheritedConnection(raw, child) if raw is not None and raw.is_open else None
