"""Who is measured: each makes a function that acquires and releases once, uncontended."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import redis

from bench.bare_socket import BareSocket, packed
from bench.peers import ForeignPairs, built
from relock import Client
from relock._keys import lock_keys
from relock._scripts import load, pack_argument
from relock.cli._bench.floor.pairs import Asked, Pair, pair_at_the_quorum, pair_of_one, with_small_scripts
from relock.cli._bench.floor.sockets import FOLDER
from relock.cli._bench.words import BARE, REENTRY, RELOCK

FLOOR, AFRESH = "redis-py connections", "relock, a new lock each time"
LEASE_SECONDS = 10
OWNER = b"bench-0123456789abcdef:0123456789abcdef0123456789abcdef"
VOID_US, GUARD_MS = b"9999999999999999", b"10000"


def _with_small_scripts(port: int) -> Asked:
    return with_small_scripts(BareSocket(port), "bench-bare-floor")


def bare(port: int) -> Pair:
    """The small scripts over a bare socket."""
    return pair_of_one(_with_small_scripts(port))


def floor(port: int) -> Pair:
    """Two small scripts as packed commands over one connection of redis-py: what a library that uses it can reach."""
    connection, take, give = _prepared(port)

    def pair() -> None:
        connection.send_packed_command(take)
        connection.read_response()
        connection.send_packed_command(give)
        connection.read_response()

    return pair


def _prepared(port: int) -> tuple[Any, Any, Any]:
    """A connection to a master that knows the small scripts, and their calls as packed commands."""
    connection: Any = redis.Connection(  # type: ignore[no-untyped-call]
        host="127.0.0.1", port=port, socket_timeout=1.0
    )
    connection.connect()
    scripts = [(FOLDER / name).read_bytes() for name in ("take.lua", "give.lua")]
    for script in scripts:
        connection.send_command("SCRIPT", "LOAD", script)
        connection.read_response()
    take_sha, give_sha = (hashlib.sha1(script).hexdigest() for script in scripts)
    take = connection.pack_command("EVALSHA", take_sha, 1, "bench-floor", "me", LEASE_SECONDS * 1000)
    give = connection.pack_command("EVALSHA", give_sha, 1, "bench-floor", "me")
    return connection, take, give


def relock(port: int) -> Pair:
    """This library, with its defaults."""
    lock = Client(f"redis://127.0.0.1:{port}").lock("bench")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def reentry(port: int) -> Pair:
    """One more level of a lock of this library that is held."""
    lock = Client(f"redis://127.0.0.1:{port}").lock("bench-reentry")
    lock.acquire()

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def afresh(port: int) -> Pair:
    """This library as most programs use it: a new lock each time, of a name that comes once."""
    client, numbers = Client(f"redis://127.0.0.1:{port}"), itertools.count()

    def pair() -> None:
        with client.lock(f"bench:{next(numbers)}"):
            pass

    return pair


def redis_py(port: int) -> Pair:
    """The Lock of redis-py."""
    lock = redis.Redis(port=port).lock("bench-redis-py", timeout=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def python_redis_lock(port: int) -> Pair:
    """python-redis-lock, with a lease and without renewal (with it, each pair starts a thread)."""
    import redis_lock

    lock = redis_lock.Lock(redis.Redis(port=port), "bench", expire=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def pottery(port: int) -> Pair:
    """Pottery's Redlock on one master."""
    from pottery import Redlock

    lock = Redlock(key="bench-pottery", masters={redis.Redis(port=port)}, auto_release_time=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _foreign(name: str) -> Callable[[int], ForeignPairs]:
    return lambda port: ForeignPairs(name, [port])


CONTESTANTS: dict[str, Callable[[int], Pair | ForeignPairs]] = {
    BARE: bare,
    FLOOR: floor,
    RELOCK: relock,
    REENTRY: reentry,
    AFRESH: afresh,
    "redis-py Lock": redis_py,
    "python-redis-lock": python_redis_lock,
    "pottery": pottery,
    **{name: _foreign(name) for name in built()},
}


# Several masters ------------------------------------------------------------------------------------------------------


def floor_of_several(ports: Sequence[int]) -> Pair:
    """The small scripts, written to all masters before any reply is read, and then all replies read."""
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


def with_own_scripts(port: int, *, guarded: bool = True) -> Asked:
    """This library's, as its own connections send them.

    With a guard it is one that is over, and the socket says of no vote: the server looks what it is.
    """
    bare = BareSocket(port)
    acquire, release = load("acquire"), load("release")
    keys = lock_keys("bench-bare", "bench" if guarded else "alone")
    for script in (acquire, release):
        bare.load(script.source)
    info = dict(line.split(":", 1) for line in bare.call(packed("INFO")).decode().splitlines() if ":" in line)
    incarnation = f"{info['run_id']}:{info['master_replid']}"
    if guarded:
        marker = ("incarnation", incarnation, "no_vote_until_us", 0, "guard_ms", GUARD_MS)
        bare.call(packed("HSET", keys.master, *marker))
    socket = f"{incarnation}?{0:016d}" if guarded else incarnation
    known = b"".join(map(pack_argument, (VOID_US, socket.encode(), GUARD_MS if guarded else b"0")))
    lease_ms = LEASE_SECONDS * 1000
    take = acquire.call(keys, owner=OWNER, count=1, lease_ms=lease_ms, token_ms=lease_ms + 1000, fair=1, proposal=0)
    give = release.call(keys, owner=OWNER, fence=0, token_ms=lease_ms + 1000, hand=1)
    return Asked(bare, take.pack(known, guarded=guarded), give.pack(known, guarded=guarded))


def bare_of_several(ports: Sequence[int]) -> Pair:
    """The small scripts over bare sockets, done at the quorum: no lock library can do with less."""
    return pair_at_the_quorum([_with_small_scripts(port) for port in ports])


def scripts_of_several(ports: Sequence[int]) -> Pair:
    """This library's two scripts over bare sockets, done at the quorum: no lock that uses them can do with less."""
    return pair_at_the_quorum([with_own_scripts(port) for port in ports])


def relock_of_several(ports: Sequence[int]) -> Pair:
    """This library, with the restart guard that several masters have by default: the first pair waits until it is over.

    The lease is that of the others, because the guard is as long.
    """
    lock = Client([f"redis://127.0.0.1:{port}" for port in ports], ttl=LEASE_SECONDS).lock("bench")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def redlock_py(ports: Sequence[int]) -> Pair:
    """The package redlock-py, which asks one master after the other."""
    from redlock import Redlock

    manager = Redlock([{"host": "127.0.0.1", "port": port} for port in ports])

    def pair() -> None:
        manager.unlock(manager.lock("bench-redlock-py", LEASE_SECONDS * 1000))

    return pair


def pottery_of_several(ports: Sequence[int]) -> Pair:
    """Pottery's Redlock, which asks the masters from a pool of threads."""
    from pottery import Redlock

    masters = {redis.Redis(port=port) for port in ports}
    lock = Redlock(key="bench-pottery", masters=masters, auto_release_time=LEASE_SECONDS)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _foreign_of_several(name: str) -> Callable[[Sequence[int]], ForeignPairs]:
    return lambda ports: ForeignPairs(name, ports)


CONTESTANTS_OF_SEVERAL: dict[str, Callable[[Sequence[int]], Pair | ForeignPairs]] = {
    BARE: bare_of_several,
    FLOOR: floor_of_several,
    "relock's scripts, bare": scripts_of_several,
    RELOCK: relock_of_several,
    "redlock-py": redlock_py,
    "pottery": pottery_of_several,
    **{name: _foreign_of_several(name) for name, peer in built().items() if 5 in peer.masters},
}
