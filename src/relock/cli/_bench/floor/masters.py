"""Masters of a job, on which the floor is measured, and the floor's keys beside the job's lock.

redis-py opens each connection, as it does for relock, so this module needs no code for passwords, TLS, unix sockets,
databases and Sentinels. Then only the socket is used. Of a Cluster, only the node that serves the lock is used.
"""

import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from relock._errors import ConfigurationError
from relock._keys import client_channel, lock_keys
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.net.channel import limit
from relock._runtime.net.node import Node
from relock._runtime.net.parse import parse_nodes
from relock._runtime.net.slots import members, slot_of
from relock.cli._bench.floor.sockets import BareSocket, RefusedError, packed
from relock.cli._bench.work import Job

TIMEOUT_SECONDS = 10.0
FLOOR_ERRORS = (*NETWORK_ERRORS, RefusedError, ConfigurationError)


class FloorKeys(NamedTuple):
    """Keys of the floor on a master, in the slot of the job's lock and below its prefix."""

    pair: bytes  # the key of the pairs
    lock: bytes  # the key of the lock that is handed over
    queue: bytes  # the key of the waiters; it has no time to live, and is gone when nobody waits
    channel: str  # the beginning of the names of the waiters' channels


def floor_keys(job: Job) -> FloorKeys:
    """Return the floor's keys beside the lock of a job."""
    lock, channel = lock_keys(job.prefix, job.name).lock, client_channel(job.prefix, job.name)
    return FloorKeys(lock + b":floor-pair", lock + b":floor", lock + b":floor-queue", channel)


def bare_sockets(job: Job, timeout: float | None = TIMEOUT_SECONDS) -> list[BareSocket]:
    """Open a bare socket to each master of a job; none waits for longer than `timeout` seconds, unless that is None.

    Raises:
        redis.RedisError, OSError: a master can't be reached, or refuses.
        ConfigurationError: the URLs can't work.
    """
    return [_bare_socket(node, timeout) for node in _nodes_of(job)]


def _nodes_of(job: Job) -> Sequence[Node]:
    nodes = parse_nodes(job.urls)
    seeds = nodes[0].cluster
    if seeds is None:
        return nodes
    slot = slot_of(lock_keys(job.prefix, job.name))
    return [
        node for node, ranges in members(seeds, TIMEOUT_SECONDS) if any(one.first <= slot <= one.last for one in ranges)
    ]


def _bare_socket(node: Node, timeout: float | None) -> BareSocket:
    raw = node.raw_connection(TIMEOUT_SECONDS)
    raw.connect()
    sock: socket.socket = raw._sock  # type: ignore[attr-defined]  # of redis-py, see `relock._runtime.net.channel`
    sock.settimeout(None)
    if timeout is not None:
        limit(sock, timeout)
    return BareSocket(sock, raw)


def sweep(job: Job) -> None:
    """Delete what a floor that ended too early has left; locks that can't be deleted are gone after their lease."""
    with suppress(*FLOOR_ERRORS):
        for bare in bare_sockets(job):
            with closing(bare):
                bare.call(packed("DEL", *floor_keys(job)[:3]))
