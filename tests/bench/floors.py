"""The benchmark's floors for threads and processes; the others are in `relock.cli._bench.floor`.

The floors stay as they are when relock changes, except that relock's own scripts are sent bare.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from relock._keys import LockKeys, lock_keys, permit_keys
from relock._scripts import TOKEN_MAX, Call, Script, load, pack_argument
from relock.cli._bench.floor import sockets
from relock.cli._bench.floor.hops import OneHop
from relock.cli._bench.floor.pairs import Asked, Pair, pair_of, with_small_scripts
from relock.cli._bench.floor.sockets import packed
from relock.cli._bench.work import Job

FOLDER = Path(__file__).parent
LEASE_SECONDS = 10
LEASE_MS = LEASE_SECONDS * 1000
GUARD_MS = 10_200
CLIENT = "bench-0123456789abcdef"
OWNER = f"{CLIENT}:0123456789abcdef0123456789abcdef".encode()
VOID = pack_argument(b"%d" % TOKEN_MAX)
UNGUARDED = VOID + pack_argument(b"") + pack_argument(b"0")


def ports_of(job: Job) -> list[int]:
    """Return the ports of the masters of a job, for libraries that know no URLs."""
    return [urlsplit(url).port or 6379 for url in job.urls]


class BareSocket(sockets.BareSocket):
    """A bare socket to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(self.socket)


def bare(ports: Sequence[int]) -> Pair:
    """Return a pair of the small scripts over bare sockets, done at the quorum: no lock library can do with less."""
    return pair_of([with_small_scripts(BareSocket(port), "bench-bare-floor") for port in ports])


def redis_py(ports: Sequence[int]) -> Pair:
    """Return a pair of the small scripts over one connection of redis-py to each master.

    The pair writes to all masters before it reads any reply.
    """
    prepared = [_prepared(port) for port in ports]

    def pair() -> None:
        for connection, take, _ in prepared:
            connection.send_packed_command(take)
        for connection, _, _ in prepared:
            connection.read_response()
        for connection, _, give in prepared:
            connection.send_packed_command(give)
        for connection, _, _ in prepared:
            connection.read_response()

    return pair


def _prepared(port: int) -> tuple[Any, list[bytes], list[bytes]]:
    """Connect to a master that has the small scripts; return also their calls as packed commands."""
    with closing(BareSocket(port)) as bare:
        asked = with_small_scripts(bare, "bench-floor")
    connection: Any = redis.Connection(  # type: ignore[no-untyped-call]
        host="127.0.0.1", port=port, socket_timeout=1.0
    )
    connection.connect()
    return connection, [asked.take], [asked.give]


class TwoHops(OneHop):
    """The floor of two hops: the release wakes the head of the queue, which then takes the lock."""

    LEAVE = FOLDER / "wake.lua"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._claim = self._packed(FOLDER / "claim.lua")

    def acquire(self) -> None:
        """Take the lock at once if it is free, else by a script of its own after the message."""
        if not self.enter():
            self._messages.receive()
            while not self._commands.call(self._claim):
                self._messages.receive()


# relock's own scripts -------------------------------------------------------------------------------------------------


def keys_of(prefix: str, limit: int = 0) -> LockKeys:
    """Return the keys of a lock, or of a semaphore if there is a limit."""
    return (permit_keys if limit else lock_keys)(prefix, "bench")


def wish(limit: int) -> bytes:
    """Return what an owner's name says of one permit of a semaphore; nothing for a lock, which has no limit."""
    return b"#1/%d" % limit if limit else b""


def call_of(script: Script, keys: LockKeys, **other: bytes | int) -> Call:
    """Return a call of a script with usual arguments, except for `other`."""
    given: dict[str, bytes | int] = {"owner": OWNER, "count": 1, "slot": -1, "fair": 1, "fence": 0, "hand": 1}
    given |= {"lease_ms": LEASE_MS, "token_ms": LEASE_MS + 1000}
    given |= {"proposal": 0, "ticket": 0, "alive_ms": 7_000, "queue_ms": 30_000, **other}
    return script.call(keys, **{name: given[name] for name in script.own_arguments})


def own_pair(
    bare: BareSocket, name: str, folder: Path | None = None, *, guarded: bool = False, limit: int = 0
) -> Callable[[int], tuple[bytes, bytes]]:
    """Return a function that gives the commands of an acquire and a release, by the time (µs) of the last vote.

    With a guard, the guard is over. After a vote of long ago, the server looks up its incarnation. With a limit, the
    pair is of a permit.
    """
    keys, owner = keys_of(name, limit), OWNER + wish(limit)
    acquire, release = (load(keys.script_name(operation), folder) for operation in ("acquire", "release"))
    for script in (acquire, release):
        bare.load(script.source)
    take, give = (call_of(script, keys, owner=owner) for script in (acquire, release))
    info = dict(line.split(":", 1) for line in bare.call(packed("INFO")).decode().splitlines() if ":" in line)
    incarnation = f"{info['run_id']}:{info['master_replid']}"
    if guarded:
        marker = ("incarnation", incarnation, "no_vote_until_us", 0, "guard_ms", GUARD_MS)
        bare.call(packed("HSET", keys.master, *marker))

    def commands(vote_us: int) -> tuple[bytes, bytes]:
        leads_to = f"{incarnation}?{vote_us:016d}" if guarded else incarnation
        known = VOID + pack_argument(leads_to.encode()) + pack_argument(b"%d" % (GUARD_MS if guarded else 0))
        return take.pack(known, guarded=guarded), give.pack(known, guarded=guarded)

    return commands


def with_own_scripts(bare: BareSocket, *, guarded: bool) -> Asked:
    """Return the socket with the scripts as relock's own connections send them, on a socket without a vote."""
    take, give = own_pair(bare, "bench-bare", guarded=guarded)(0)
    return Asked(bare, take, give)


def own_scripts(ports: Sequence[int]) -> Pair:
    """Return a pair of relock's scripts over bare sockets, done at the quorum: no lock with these scripts is faster."""
    return pair_of([with_own_scripts(BareSocket(port), guarded=True) for port in ports])
