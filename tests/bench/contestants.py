"""Contestants: uncontended pairs, and workers that hand a lock over."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import redis
from attrs import frozen

from bench import floors, names
from bench.floors import LEASE_SECONDS, TwoHops, ports_of
from bench.loop_floors import loop_hops, own_scripts
from bench.machine import HAS_UVLOOP
from bench.names import LONE, PROCESSES, TASKS, THREADS
from bench.peers import ForeignPairs, Peer, Toolchain, built
from bench.tasks import LoopPairs, on_loop, redis_py_site, relock_site
from relock import Client, Lock, Permit, Semaphore
from relock.cli._bench.floor import hops
from relock.cli._bench.floor.pairs import Pair
from relock.cli._bench.words import BARE, ONE_HOP, REENTRY, RELOCK, RELOCKS_HOP
from relock.cli._bench.work import Job, Locker
from relock.cli._bench.worker import site

SCRIPTS = frozenset({"evalsha", "eval"})
OF_RELOCK = SCRIPTS | {"ping", "subscribe"}
SETS = SCRIPTS | {"set"}
WORKERS, WORKERS_OF_LOOP = "bench.worker", "bench.task_worker"  # the programs
PROGRAMS_MAX = 32  # of another language at a time: each program takes time to start


class ThreadPairs:
    """Uncontended pairs in this thread."""

    pid = None

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def many(self, count: int) -> float:
        """Return the time (s) of so many pairs."""
        pair = self._pair
        begin = time.perf_counter()
        for _ in range(count):
            pair()
        return time.perf_counter() - begin

    def close(self) -> None:
        """Leave the sockets to the end of this process."""


Pairs = ThreadPairs | LoopPairs | ForeignPairs


@frozen
class Contestant:
    """One way to have a lock.

    Attributes:
        pairs: makes uncontended pairs at the masters of these ports; None if the pairs are not measured.
        enter: the beginning of a process whose workers hand the lock over: an `Enter` of `relock.cli._bench.work`, or a
            site of `bench.tasks` in a program for tasks. None if the workers are of another language, or not measured.
        sends: the commands that the clients send; they are counted. Commands of scripts are not.
        masters: the numbers of masters that the lock works with.
        kinds: the kinds of workers for which hand-offs are measured; of tasks also for pairs.
        polls: True if the waiters poll, so that measuring takes longer.
        toolchain: the other language.
        program: the module of Python whose processes are workers.
        limit: how many workers may have it at a time; fewer workers hand nothing over.
    """

    pairs: Callable[[Sequence[int]], Pairs] | None = None
    enter: Callable[[Job], Any] | None = None
    sends: frozenset[str] = SCRIPTS
    masters: tuple[int, ...] = (1, 3, 5)
    kinds: tuple[str, ...] = (LONE, THREADS, PROCESSES)
    polls: bool = False
    toolchain: Toolchain | None = None
    program: str = WORKERS
    limit: int = 1

    def has_pairs(self, masters: int, kind: str) -> bool:
        """Return True if its pairs are measured with so many masters, for this kind of workers."""
        return self.pairs is not None and masters in self.masters and kind in self.kinds

    def hands_over(self, masters: int, kind: str, workers: int) -> bool:
        """Return True if its hand-offs are measured under these conditions."""
        is_able = self.enter is not None or (self.toolchain is not None and workers <= PROGRAMS_MAX)
        return is_able and workers > self.limit and masters in self.masters and kind in self.kinds


# relock ---------------------------------------------------------------------------------------------------------------


def _pairs(pair_of: Callable[[Sequence[int]], Pair]) -> Callable[[Sequence[int]], Pairs]:
    return lambda ports: ThreadPairs(pair_of(ports))


def _pair(lock: Any) -> Pair:
    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _client(ports: Sequence[int]) -> Client:
    """Return a client with the defaults; over several masters with the lease and the guard of the other contestants."""
    urls = [f"redis://127.0.0.1:{port}" for port in ports]
    return Client(urls[0]) if len(urls) == 1 else Client(urls, ttl=LEASE_SECONDS)


def _ours(lock_of: Callable[[Client], Any]) -> Callable[[Sequence[int]], Pairs]:
    """Return a function that makes pairs of a lock; over several masters the first waits for the end of the guard."""
    return _pairs(lambda ports: _pair(lock_of(_client(ports))))


def _afresh(ports: Sequence[int]) -> Pair:
    """Return a pair as most programs make it: with a new lock each time, of a name that is used once."""
    client, numbers = _client(ports), itertools.count()

    def pair() -> None:
        with client.lock(f"bench:{next(numbers)}"):
            pass

    return pair


def _usual(client: Client) -> Lock:
    return client.lock("bench")


def _held(client: Client) -> Lock:
    """Return a lock that is held, of which a pair takes one more level."""
    lock = client.lock("bench-reentry")
    lock.acquire()
    return lock


def _at_once(number: int, client: Client) -> Any:
    return client.lock_all(f"bench-{number}-{i}" for i in range(number))


class _OnePermit:
    """Semaphore as one worker's lock: the worker has one permit of it at a time."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._permit: Permit | None = None

    @property
    def token(self) -> int | None:
        """Return the only permit's fencing token, by which the order of hand-offs is judged; each slot has an order."""
        return None if self._permit is None or self._semaphore.limit > 1 else self._permit.token

    def acquire(self) -> None:
        self._permit = self._semaphore.acquire()

    def release(self) -> None:
        assert self._permit is not None
        self._permit.release()


def _permit(limit: int, client: Client) -> _OnePermit:
    return _OnePermit(client.semaphore(f"bench-{limit}", limit))


@contextmanager
def _permit_site(job: Job) -> Iterator[Callable[[], Locker]]:
    """Open the client of the workers of one process, which hand over the permits of a semaphore."""
    with Client(list(job.urls), prefix=job.prefix, ttl=job.ttl) as client:

        def locker() -> Locker:
            semaphore = client.semaphore(job.name, job.limit)
            with semaphore:  # the first acquire connects
                return _OnePermit(semaphore)

        yield locker


# Peers ----------------------------------------------------------------------------------------------------------------

Clients = list["redis.Redis"]  # one for each master
Make = Callable[[Clients, str], Any]  # a lock of another library


def _python_redis_lock(clients: Clients, name: str) -> Any:
    """Return a lock without renewal; a lock with renewal starts a thread for each pair."""
    import redis_lock

    return redis_lock.Lock(clients[0], name, expire=LEASE_SECONDS)


def _pottery(clients: Clients, name: str) -> Any:
    from pottery import Redlock

    return Redlock(key=name, masters=set(clients), auto_release_time=LEASE_SECONDS)


class _RedlockPy:
    """The lock of redlock-py, which gives up after some tries: a worker asks again until it has the lock."""

    def __init__(self, clients: Clients, name: str) -> None:
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


def _clients(ports: Sequence[int]) -> Clients:
    return [redis.Redis(port=port, max_connections=1000) for port in ports]


@contextmanager
def _peer_site(make: Make, job: Job) -> Iterator[Callable[[], Locker]]:
    """Open the clients of redis-py that the workers of a process share."""
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in _clients(ports_of(job))]

        def locker() -> Locker:
            for client in clients:
                client.ping()
            lock = make(clients, job.name)

            def acquire() -> None:
                if not lock.acquire():
                    raise RuntimeError("did not get the lock")

            return SimpleNamespace(acquire=acquire, release=lock.release)

        yield locker


def _peer(make: Make, **more: Any) -> Contestant:
    """Return another library of Python."""
    return Contestant(
        lambda ports: ThreadPairs(_pair(make(_clients(ports), "bench-peer"))),
        partial(_peer_site, make),
        **{"sends": SETS, "polls": True, **more},
    )


def _foreign(name: str, peer: Peer) -> Contestant:
    """Return a library of another language."""
    return Contestant(
        lambda ports: ForeignPairs(name, ports),
        sends=peer.sends,
        masters=peer.masters,
        kinds=peer.kinds,
        polls=True,
        toolchain=peer.toolchain,
    )


# All of them ----------------------------------------------------------------------------------------------------------


def _on_loops() -> dict[str, Contestant]:
    """Return the floor of pairs and this library on every kind of loop, first on asyncio's own."""
    tasks: Any = {"kinds": (TASKS,), "program": WORKERS_OF_LOOP}
    found = {
        names.LOOP_FLOOR: Contestant(on_loop(own_scripts), kinds=(TASKS,)),
        names.LOOP_HOP: Contestant(None, loop_hops, masters=(1,), **tasks),
        names.RELOCK_TASKS: Contestant(on_loop(relock_site), relock_site, OF_RELOCK, **tasks),
    }
    if HAS_UVLOOP:
        from uvloop import new_event_loop

        found[names.on_uvloop(names.LOOP_FLOOR)] = Contestant(on_loop(own_scripts, new_event_loop), kinds=(TASKS,))
        found[names.on_uvloop(names.RELOCK_TASKS)] = Contestant(on_loop(relock_site, new_event_loop), kinds=(TASKS,))
    found[names.THREADS_HOP] = Contestant(None, hops.site, masters=(1,), kinds=(TASKS,))
    found[names.RELOCK_THREADS] = Contestant(_ours(_usual), site, OF_RELOCK, kinds=(TASKS,))
    one_master: Any = {"masters": (1,), "polls": True, **tasks}
    found[names.REDIS_PY_TASKS] = Contestant(on_loop(redis_py_site), redis_py_site, SETS, **one_master)
    return found


#: In the order of the tables.
CONTESTANTS: dict[str, Contestant] = {
    BARE: Contestant(_pairs(floors.bare), kinds=(LONE, TASKS)),
    names.FLOOR: Contestant(_pairs(floors.redis_py)),
    names.OWN_SCRIPTS: Contestant(_pairs(floors.own_scripts), masters=(3, 5)),
    ONE_HOP: Contestant(None, hops.site, masters=(1,)),
    names.TWO_HOPS: Contestant(None, lambda job: hops.site(job, TwoHops), masters=(1,)),
    RELOCK: Contestant(_ours(_usual)),
    REENTRY: Contestant(_ours(_held), masters=(1,)),
    names.AFRESH: Contestant(_pairs(_afresh), masters=(1,)),
    **{name: Contestant(_ours(partial(_at_once, number)), masters=(1, 5)) for number, name in names.AT_ONCE.items()},
    names.READER: Contestant(_ours(lambda client: client.rwlock("bench-read").read), masters=(1, 5)),
    **{name: Contestant(_ours(partial(_permit, limit)), masters=(1, 5)) for limit, name in names.PERMITS.items()},
    RELOCKS_HOP: Contestant(None, lambda job: site(job, handoff="grant"), OF_RELOCK),
    "relock, two hops": Contestant(None, lambda job: site(job, handoff="wake"), OF_RELOCK),
    **{name: Contestant(None, _permit_site, OF_RELOCK, limit=limit) for limit, name in names.PERMITS_HOPS.items()},
    "python-redis-lock": _peer(_python_redis_lock, sends=SETS | {"blpop"}, masters=(1,), polls=False),
    "redis-py Lock": _peer(lambda clients, name: clients[0].lock(name, timeout=LEASE_SECONDS), masters=(1,)),
    "redlock-py": _peer(_RedlockPy, masters=(3, 5)),
    "pottery": _peer(_pottery),
    **{name: _foreign(name, peer) for name, peer in built().items()},
    **_on_loops(),
}


def enter(job: Job) -> Any:
    """Return the site that a process of Python begins a job with."""
    begin = CONTESTANTS[job.contestant].enter
    if begin is None:
        raise LookupError(f"{job.contestant} is no contestant in Python")
    return begin(job)
