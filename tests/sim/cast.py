"""What takes part in a run: processes, their clients, and the threads that want the lock."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from relock import Client
from relock.lock import Lock
from relock.testing._lab import VirtualClient
from relock.testing._process import Process, Task
from relock.testing._world import World
from sim.blocked import block
from sim.plan import LOCK, Plan
from sim.replication import ReplicatedServer

RATE_ERROR = 0.005  # how wrong a clock's rate is at most: as much as the default drift_factor allows for each


class Cast:
    """All that take part in a run.

    Attributes:
        processes: all of them, also the dead.
        clients: one for each process, in the same order.
        workers: the threads that want the lock.
        acquiring: how many threads of each process wait for an outermost acquire.
    """

    def __init__(self, world: World, servers: Sequence[ReplicatedServer], plan: Plan) -> None:
        self.world = world
        self.servers = servers
        self.plan = plan
        self.processes: list[Process] = []
        self.clients: list[VirtualClient] = []
        self.workers: list[Task] = []
        self.acquiring: Counter[Process] = Counter()

    def make_client(self, name: str) -> tuple[Process, VirtualClient]:
        """A process with a client; chance draws its clock and its options."""
        random, plan = self.world.random, self.plan
        drawn = plan.wide or plan.moves
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
            on_event=partial(_block, process) if plan.is_blocked else None,
        )
        self.processes.append(process)
        self.clients.append(client)
        return process, client

    def lock(self, client: Client, *, renew: bool | None = None) -> Lock:
        """The lock that all threads want, with the options that chance draws for this object."""
        owner, wide = "us" if self.plan.named else None, self.plan.wide
        if wide is None:
            return client.lock(LOCK, renew=renew, owner=owner)
        choice = self.world.random.choice
        return client.lock(
            LOCK,
            ttl=choice(wide.ttls),
            fair=choice(wide.fair),
            renew=None if renew is None else choice(wide.renew),
            owner=owner,
        )

    def client_of(self, process: Process) -> VirtualClient:
        """The client of a process."""
        return self.clients[self.processes.index(process)]

    def are_all_done(self) -> bool:
        """Whether each thread that wanted the lock has come to its end, or died."""
        return all(worker.is_over or worker.process.is_dead for worker in self.workers)


def _block(process: Process, _event: object) -> None:
    """A callback that never returns."""
    block(process)
