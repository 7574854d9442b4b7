"""Who is measured, and what each worker of theirs does."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import redis
from attrs import frozen

from bench.aio.names import LOOP_HOP, REDIS_PY_TASKS, RELOCK_TASKS, RELOCK_THREADS, TASKS, THREADS_HOP
from bench.handoff.floors import TwoHops
from bench.peers import Toolchain, built
from bench.rows import Row, of
from relock._options import ClientOptions
from relock.cli._bench.floor.hops import Site as FloorSite
from relock.cli._bench.site import Site as RelockSite
from relock.cli._bench.words import ONE_HOP, RELOCKS_HOP
from relock.cli._bench.work import Enter, Job, Locker, Site

LEASE_SECONDS = 10
TWO_HOPS = "two hops, bare"
SCRIPTS = frozenset({"evalsha", "eval"})
OF_RELOCK = SCRIPTS | {"ping", "subscribe"}
WORKERS = "bench.handoff.worker"  # the program whose processes and threads are workers
WORKERS_OF_LOOP = "bench.aio.worker"  # the one whose tasks are
PROGRAMS_MAX = 32  # of another language at a time: each takes its time to start


@frozen
class Contestant:
    """One way to hand a lock over."""

    enter: Enter | None  # what a process of Python begins with whose workers are threads
    sends: frozenset[str]  # the commands that its clients send, which their scripts do not: these are counted
    masters: tuple[int, ...] = (1,)  # with how many it works
    polls: bool = False  # so that it takes longer to measure
    toolchain: Toolchain | None = None  # of another language
    kinds: tuple[str, ...] = ("threads", "processes")  # of workers beside whom it is measured
    program: str = WORKERS

    def takes_part(self, masters: int, kind: str, workers: int) -> bool:
        """Whether it is measured under these conditions: another language with processes only, and not too many."""
        is_able = self.toolchain is None or (kind == "processes" and workers <= PROGRAMS_MAX)
        return masters in self.masters and kind in self.kinds and is_able


# relock ---------------------------------------------------------------------------------------------------------------


def relock_ways() -> dict[str, dict[str, str]]:
    """The options of the client for each of its ways to hand over, where there is a choice; else there are two hops."""
    if "handoff" in attrs.fields_dict(ClientOptions):
        return {RELOCKS_HOP: {"handoff": "grant"}, "relock, two hops": {"handoff": "wake"}}
    return {"relock, two hops": {}}


def _relock(options: dict[str, str]) -> Enter:
    return lambda job: RelockSite(job, **options)


# Peers ----------------------------------------------------------------------------------------------------------------


class _Blocking(Protocol):
    def acquire(self) -> Any: ...

    def release(self) -> Any: ...


class PeerSite:
    """Clients of redis-py that the workers of a process share, one for each master."""

    def __init__(self, job: Job, make: Callable[[list["redis.Redis"], str], _Blocking]) -> None:
        self._clients = [redis.Redis(port=port, max_connections=1000) for port in job.ports]
        self._make, self._name = make, job.name

    def locker(self) -> Locker:
        for client in self._clients:
            client.ping()
        return PeerLocker(self._make(self._clients, self._name))

    def close(self) -> None:
        for client in self._clients:
            client.close()


class PeerLocker:
    def __init__(self, lock: _Blocking) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self) -> int:
        if not self._lock.acquire():
            raise RuntimeError("did not get the lock")
        return 0

    release: Callable[[], None]


def _redis_py(clients: list["redis.Redis"], name: str) -> _Blocking:
    lock: _Blocking = clients[0].lock(name, timeout=LEASE_SECONDS)
    return lock


def _python_redis_lock(clients: list["redis.Redis"], name: str) -> _Blocking:
    import redis_lock

    lock: _Blocking = redis_lock.Lock(clients[0], name, expire=LEASE_SECONDS)
    return lock


def _pottery(clients: list["redis.Redis"], name: str) -> _Blocking:
    from pottery import Redlock

    lock: _Blocking = Redlock(key=name, masters=set(clients), auto_release_time=LEASE_SECONDS)
    return lock


class _RedlockPy:
    """redlock-py gives up after some tries; whoever wants the lock asks again."""

    def __init__(self, clients: list["redis.Redis"], name: str) -> None:
        from redlock import Redlock

        ports = [client.connection_pool.connection_kwargs["port"] for client in clients]
        self._manager = Redlock([{"host": "127.0.0.1", "port": port} for port in ports])
        self._name = name
        self._held: Any = False

    def acquire(self) -> bool:
        while not (held := self._manager.lock(self._name, LEASE_SECONDS * 1000)):
            pass
        self._held = held
        return True

    def release(self) -> None:
        self._manager.unlock(self._held)


def _peer(make: Callable[[list["redis.Redis"], str], _Blocking]) -> Enter:
    return lambda job: PeerSite(job, make)


CONTESTANTS: dict[str, Contestant] = {
    ONE_HOP: Contestant(FloorSite, SCRIPTS),
    TWO_HOPS: Contestant(lambda job: FloorSite(job, TwoHops), SCRIPTS),
    **{way: Contestant(_relock(options), OF_RELOCK, masters=(1, 3, 5)) for way, options in relock_ways().items()},
    "python-redis-lock": Contestant(_peer(_python_redis_lock), SCRIPTS | {"set", "blpop"}),
    "redis-py Lock": Contestant(_peer(_redis_py), SCRIPTS | {"set"}, polls=True),
    "pottery": Contestant(_peer(_pottery), SCRIPTS | {"set"}, masters=(1, 3, 5), polls=True),
    "redlock-py": Contestant(_peer(_RedlockPy), SCRIPTS | {"set"}, masters=(3, 5), polls=True),
    **{
        name: Contestant(None, peer.sends, peer.masters, polls=True, toolchain=peer.toolchain)
        for name, peer in built().items()
    },
    # Tasks of one process, and beside them the threads of one
    LOOP_HOP: Contestant(None, SCRIPTS, kinds=(TASKS,), program=WORKERS_OF_LOOP),
    RELOCK_TASKS: Contestant(None, OF_RELOCK, kinds=(TASKS,), program=WORKERS_OF_LOOP),
    THREADS_HOP: Contestant(FloorSite, SCRIPTS, kinds=(TASKS,)),
    RELOCK_THREADS: Contestant(_relock({}), OF_RELOCK, kinds=(TASKS,)),
    REDIS_PY_TASKS: Contestant(None, SCRIPTS | {"set"}, kinds=(TASKS,), polls=True, program=WORKERS_OF_LOOP),
}
#: What others are multiples of.
FLOORS = {"threads": ONE_HOP, "processes": ONE_HOP, TASKS: LOOP_HOP}


def enter(job: Job) -> Site:
    """What a process of Python begins a job with."""
    begin = CONTESTANTS[job.contestant].enter
    if begin is None:
        raise LookupError(f"{job.contestant} is no contestant in Python")
    return begin(job)


def floor_of(cell: Sequence[Row]) -> Row | None:
    """The row of the floor under these conditions, if it was measured."""
    return of(cell, FLOORS[cell[0]["kind"]]) if cell else None


def is_floor(contestant: str) -> bool:
    """Whether it is bare sockets."""
    return contestant in (ONE_HOP, TWO_HOPS, LOOP_HOP, THREADS_HOP)


def is_peer(contestant: str) -> bool:
    """Whether it is neither a floor nor relock."""
    return not is_floor(contestant) and not contestant.startswith("relock")
