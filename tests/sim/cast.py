"""Cast of a run: processes, their clients, and the threads that want the lock."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from relock.testing._conditions import Conditions
from relock.testing._lab import VirtualClient
from relock.testing._process import Process, Task
from relock.testing._server import Server
from relock.testing._world import World
from sim.actors import ClientOfActors
from sim.blocked import block
from sim.plan import LOCK, Plan
from sim.referee import Referee
from sim.replication import ReplicatedServer

AT_ONCE = 2  # requests of a client for which there is room, in runs in which all waits end at one moment
DEADLOCK_SECONDS = 2.5  # of a wait, after which clients look for deadlocks: the default
MAX_CONNECTIONS = 64  # in other runs: the default
STRANGE_SECONDS = (10.0, 30.0, 600.0)  # the lease and the guard of a stranger
RATE_ERROR = 0.005  # at most, of a clock's rate: as much as the default drift_factor allows for each


class Cast:
    """The processes, clients and threads that take part in a run.

    Attributes:
        processes: all processes, also the dead.
        clients: one for each process, in the same order.
        doors: the objects from which workers take their locks, in processes that run a loop.
        workers: the threads that want the lock.
        strangers: processes that want other locks.
        acquiring: how many threads of each process wait for an outermost acquire.
    """

    def __init__(self, world: World, servers: Sequence[ReplicatedServer], plan: Plan, referee: Referee) -> None:
        self.world = world
        self._referee = referee
        self.servers = servers
        self.plan = plan
        self.processes: list[Process] = []
        self.clients: list[VirtualClient] = []
        self.doors: dict[Process, ClientOfActors] = {}
        self.workers: list[Task] = []
        self.strangers: list[Process] = []
        self.acquiring: Counter[Process] = Counter()
        self._notes = (f"note {number}" for number in count(1))

    def make_client(self, name: str, *, has_loop: bool = False) -> tuple[Process, VirtualClient]:
        """Return a process with a client; chance draws its clock and its options."""
        random, plan = self.world.random, self.plan
        drawn = plan.wide or plan.moves or plan.permits or plan.sides
        rate, offset = 1 + random.uniform(-RATE_ERROR, RATE_ERROR), random.uniform(0.0, 100_000.0)
        process = Process(self.world, name, rate=rate, offset=offset)
        client = VirtualClient(
            process,
            self.servers,
            ttl=plan.ttl,
            restart_guard=plan.guard,
            node_timeout=plan.node_timeout,
            fair=plan.fair,
            handoff=random.choice(drawn.handoffs) if drawn is not None else "grant",
            client_name=name,
            max_connections=AT_ONCE if plan.ends_at else MAX_CONNECTIONS,
            on_event=self._on_event(process, is_told=has_loop or plan.orders is not None),
            deadlock_after=plan.orders.after if plan.orders else DEADLOCK_SECONDS,
        )
        self.processes.append(process)
        self.clients.append(client)
        if has_loop:
            limit = max(plan.permits.limits) if plan.permits else None
            self.doors[process] = ClientOfActors(client, process, name, limit=limit, reads=plan.sides is not None)
        return process, client

    def make_stranger(self, name: str) -> tuple[Process, VirtualClient]:
        """Return a process with a client that knows some of the masters, others that do not exist, and a long guard.

        If there is no guard yet, most of its masters do not exist: a client with a quorum may begin a guard.
        """
        random = self.world.random
        process = Process(self.world, name, offset=random.uniform(0.0, 100_000.0))
        known = random.sample(list(self.servers), random.randint(1, len(self.servers)))
        most = len(known) + 1
        missing = [
            Server(self.world, number, Conditions(), rate=1.0, offset=0.0, name="missing")
            for number in range(random.choice([0, 1, most]) if self.plan.guard else most)
        ]
        for server in missing:
            server.is_up = False
        servers, seconds = random.sample([*known, *missing], len(known) + len(missing)), random.choice(STRANGE_SECONDS)
        client = VirtualClient(
            process, servers, ttl=seconds, restart_guard=seconds, node_timeout=self.plan.node_timeout, client_name=name
        )
        self.strangers.append(process)
        return process, client

    def _on_event(self, process: Process, *, is_told: bool) -> Callable[[object], None] | None:
        if self.plan.is_blocked:
            return partial(_block, process)
        return partial(self._referee.told, process) if is_told else None

    def door_of(self, process: Process) -> Any:
        """Return the object that the workers of a process use as their `Client`."""
        return self.doors.get(process) or self.client_of(process)

    @property
    def _owner(self) -> str | None:
        return "us" if self.plan.named else None

    def lock_all(self, client: Any, names: list[str], **options: Any) -> Any:
        """Return several locks as one."""
        return client.lock_all(names, owner=self._owner, note=self._note, **options)

    def semaphore(self, client: Any, *, renew: bool | None) -> Any:
        """Return the semaphore of the run, with the limit and the options that chance draws for this object."""
        choice, permits = self.world.random.choice, self.plan.permits
        assert permits is not None
        limit, fair = choice(permits.limits), choice(permits.fair)
        return client.semaphore(LOCK, limit, renew=renew, fair=fair, owner=self._owner)

    def rwlock(self, client: Any, *, renew: bool | None = None) -> Any:
        """Return the read-write lock of the run, with the options that chance draws for this object."""
        assert self.plan.sides is not None
        choice, sides = self.world.random.choice, self.plan.sides
        fair, renew = choice(sides.fair), renew and choice(sides.renew)
        return client.rwlock(LOCK, renew=renew, fair=fair, owner=self._owner, note=self._note)

    def rwlock_of(self, client: Any, name: str, **options: Any) -> Any:
        """Return the read-write lock of this name."""
        return client.rwlock(name, owner=self._owner, note=self._note, **options)

    def lock(self, client: Any, *, renew: bool | None = None, name: str = LOCK, **options: Any) -> Any:
        """Return the lock that all threads want, with the options that chance draws for this object."""
        owner, wide = self._owner, self.plan.wide
        if self.plan.at_least:
            options["at_least"] = self.plan.at_least
        if wide is None:
            return client.lock(name, renew=renew, owner=owner, note=self._note, **options)
        choice = self.world.random.choice
        return client.lock(
            LOCK,
            ttl=choice(wide.ttls),
            fair=choice(wide.fair),
            renew=None if renew is None else choice(wide.renew),
            owner=owner,
            note=self._note,
        )

    @property
    def _note(self) -> str | None:
        """Note of the next object of a lock: another one for each."""
        return next(self._notes) if self.plan.has_notes else None

    def client_of(self, process: Process) -> VirtualClient:
        """Return the client of a process."""
        return self.clients[self.processes.index(process)]

    def are_all_done(self) -> bool:
        """Return whether each thread that wanted the lock has come to its end, or died."""
        return all(worker.is_over or worker.process.is_dead for worker in self.workers)


def _block(process: Process, _event: object) -> None:
    """Block, as a callback that never returns."""
    block(process)
