"""Runs over a Cluster with sharded channels: slots move, nodes fail, and a node goes on that has lost its slots.

A range of seeds of its own plays these, from `FIRST` on: they share no chance with other runs. The rules:

* No two owners believe at the same moment that they have the same lock, but as readers, and no more owners than the
  limit that they have a permit. One is excused if it got the lock from a node
  that did not know yet that it had lost the slot. A client that knows the new node gets no hold from the old one.
* A lock that is free while a caller waits for it is given away within `GIVEN_SECONDS`, when all is well. Slots that
  move are no excuse.
* Every call comes to its end; without failures of nodes, no hold is lost, and no call fails that has time.

From `SLOW_FIRST` on, slots move key by key, and meanwhile a script is refused whose keys are not all on one node. The
callers of some processes are tasks there, and some names are those of read-write locks and semaphores.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import combinations
from typing import Any, cast

from attrs import define, field

from relock import QuorumError
from relock._core.patience import BACKOFF_SECONDS_MAX
from relock._errors import LockLostError, NotOwnedError
from relock._keys import LockKeys, lock_keys, permit_keys
from relock._runtime.masters.cluster import Cluster
from relock.testing._conditions import Conditions
from relock.testing._process import Process, Task
from relock.testing._world import World
from sim import leftovers
from sim.actors import ClientOfActors, TaskSemaphore
from sim.beliefs import Belief
from sim.nodes import PORT, ClusterClient, Nodes
from sim.simulation import Simulation, ViolationError, uncollected

FIRST = 6_000_000  # of the seeds that play a Cluster
SLOW_FIRST = 6_500_000  # of those in which slots move key by key
MASTERS = 3
NAMES = ("a", "b", "c", "d", "e", "f")  # in slots of all three nodes
TTL_SECONDS = 2.0
KINDS = (("move",), ("move",), ("move", "fail", "part", "late"), ("late",))  # of what happens to nodes in a run
STAYS = ((0.01, 0.05), (0.1, 0.4), (0.01, 0.4, 1.5), (0.4, 1.0))  # for how long (s) a caller keeps a lock
SLOW_STAYS = ((0.01, 0.4, 1.5), (0.4, 4.0))
LOCK, RWLOCK, SEMAPHORE = "lock", "rwlock", "semaphore"
DOORS = (LOCK, LOCK, RWLOCK, SEMAPHORE)  # what a name stands for, from `SLOW_FIRST` on
PERMITS, READERS_PART = 2, 0.6  # of a semaphore; of the callers of a read-write lock
SLOW_KINDS = (("slow",), ("slow", "move"))  # from `SLOW_FIRST` on
SLOW_SECONDS = (0.2, 1.0)  # in which the keys of a lock move: less than the time from a failed renewal to the deadline
MORE_SECONDS = (1.0, 3.0)  # until the other keys of the slot have moved as well: holds are renewed meanwhile
GIVEN_SECONDS = 0.5  # in which a free lock must be given to a waiter
SETTLING_SECONDS = 6.0  # from the last failure until all is well: leases, heartbeats, and connections
STRIKES_SECONDS = 5.0  # in which something happens to the nodes
STEADY_SECONDS = 60.0  # in which every call must come to its end, when all is well
LOOK_SECONDS = 0.05
LATE_SECONDS = (0.1, 0.5)  # until a node hears that it has lost slots: less than the time between renewals
KEYS = 4  # of a lock, at most, which move one by one
LAG_SECONDS = 0.4  # by which a published message may be late


@define
class Verdicts:
    """Verdicts of the rules.

    Attributes:
        violations: each broken rule.
        faults: how often each kind of fault has struck.
    """

    violations: list[str] = field(factory=list)
    faults: Counter[str] = field(factory=Counter)


class ClusterRun:
    """One run, which chance draws from the seed.

    Attributes:
        grants: how often a caller got a lock.
        referee: what the rules have found.
        world: the world of the run.
    """

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        random = world.random
        self.referee = Verdicts()
        self.grants = 0
        self.is_slow = seed >= SLOW_FIRST
        self.kinds = random.choice(SLOW_KINDS if self.is_slow else KINDS)
        self.fails = not {"move", "slow"}.issuperset(self.kinds)
        lags = random.choice([0.0, 0.3]) if self.fails else 0.0
        self.nodes = Nodes(world, MASTERS, Conditions(delay=0.0004, lags=lags, straggle=LAG_SECONDS))
        self.names: Sequence[str] = random.sample(
            NAMES, random.choice([2, 4, 6] if self.kinds == ("late",) else [1, 1, 2, 4])
        )
        drawn = random.choices(DOORS, k=len(self.names)) if self.is_slow else [LOCK] * len(self.names)
        self.doors = dict(zip(self.names, drawn, strict=True))
        self.stays = random.choice(SLOW_STAYS if self.is_slow else STAYS)
        self.pause = random.choice([0.1, 0.5])
        self.ends = STRIKES_SECONDS + (SETTLING_SECONDS + 2.0 if self.fails else 0.0)  # of the last turns
        self.calm_at = 0.0  # the true time from which all is well
        self._beliefs: list[tuple[str, Belief]] = []
        self._excused: set[Belief] = set()
        self._waiting: Counter[str] = Counter()
        self._free_since: dict[str, float] = {}
        self._known: defaultdict[tuple[Process, str], tuple[int, float]] = defaultdict(lambda: (-1, 0.0))
        self._clients: dict[Process, ClusterClient] = {}
        self._doors: dict[Process, ClientOfActors] = {}
        self._workers: list[Task] = []
        threads = random.choice([1, 1, 1, 2, 3])  # with one, a client that waits learns nothing by other calls
        for number in range(random.choice([2, 3])):
            self._start(f"client-{number}", threads)

    @property
    def faults(self) -> Counter[str]:
        """Count the faults that have struck, by kind."""
        return self.referee.faults

    def _start(self, name: str, threads: int) -> None:
        process = Process(self.world, name, offset=self.world.random.uniform(0.0, 100_000.0))
        client = ClusterClient(process, self.nodes, MASTERS, ttl=TTL_SECONDS, node_timeout=0.3, client_name=name)
        self._clients[process] = client
        if self.is_slow and self.world.random.random() < 0.5:
            self._doors[process] = ClientOfActors(client, process, name)
        door = self._doors.get(process, client)
        for number in range(threads):
            self._workers.append(process.start(partial(self._work, process, door), f"{name}/{number}"))

    # The run --------------------------------------------------------------------------------------------------------

    def run(self) -> "ClusterRun":
        """Play the run to its end.

        Raises:
            ViolationError: a rule was broken; the message has the timeline.
        """
        world = self.world
        with uncollected():
            self._play()
        problems = self.referee.violations + [f"{who}: {error!r}" for who, error in world.errors]
        if problems:
            raise ViolationError(f"seed {world.seed}: {problems[0]}\n{world.timeline()}")
        return self

    def _play(self) -> None:
        world = self.world
        self._strike()
        self._look()
        world.run(self.ends + STEADY_SECONDS, is_over=self._are_all_done)
        if not self._are_all_done():
            self.violate("not everybody has come to an end after all was well")
        for process, client in self._clients.items():
            process.start(self._doors.get(process, client).close, "closing")
        world.run(world.now + 2.0 + TTL_SECONDS)
        for process in self._clients:
            process.end()

    def _are_all_done(self) -> bool:
        return all(worker.is_over for worker in self._workers)

    def violate(self, what: str) -> None:
        """Note a violation."""
        self.referee.violations.append(what)
        self.world.note("referee", what)

    def _strike(self) -> None:
        """Let something happen to the nodes, and again after a while."""
        world, random, nodes = self.world, self.world.random, self.nodes
        if world.now >= STRIKES_SECONDS:
            return
        kind = random.choice(self.kinds)
        masters = sorted(set(nodes.serving))
        number = random.choice(masters)
        if kind == "move":
            has_struck = nodes.move(random.choice(self.names), number)
        elif kind == "slow":
            has_struck = self._move_slowly(random.choice(self.names), number)
        elif kind == "fail":
            has_struck = nodes.fail(number, random.uniform(0.1, 0.5), random.uniform(0.1, 0.5))
        elif kind == "part":
            has_struck = nodes.part(number, random.uniform(*LATE_SECONDS))
        else:  # another slot moves, too: clients that ask for it learn of both
            nodes.move(random.choice(self.names), random.choice(masters))
            has_struck = nodes.move_late(random.choice(self.names), number, random.uniform(*LATE_SECONDS))
        if has_struck:
            self.faults[kind] += 1
            world.note(f"node-{number}", kind)
            if self.fails and kind != "move":
                self.calm_at = world.now + SETTLING_SECONDS
        world.after(random.uniform(0.2, 1.5), self._strike)

    def _move_slowly(self, name: str, target: int) -> bool:
        """Let the slot of a lock move key by key; return whether it is possible."""
        world, nodes = self.world, self.nodes
        seconds = world.random.uniform(*SLOW_SECONDS)
        ends = seconds + world.random.choice([0.0, world.random.uniform(*MORE_SECONDS)])
        if not nodes.begin_to_move(name, target):
            return False
        for _ in range(KEYS):
            world.after(world.random.random() * seconds, partial(nodes.move_key, name))
        world.after(seconds, partial(nodes.move_keys, name))
        world.after(ends, partial(nodes.finish_moving, name))
        # Callers that were refused for a while look again after this longest wait.
        self.calm_at = max(self.calm_at, world.now + ends + BACKOFF_SECONDS_MAX)
        return True

    # The callers ----------------------------------------------------------------------------------------------------

    def _work(self, process: Process, client: "ClusterClient | ClientOfActors") -> None:
        random, world = self.world.random, self.world
        while world.now < self.ends:
            name = random.choice(self.names)
            timeout = random.choice([0.0, 1.0, 20.0, 20.0])
            since, taken = world.now, None
            self._waiting[name] += timeout > GIVEN_SECONDS
            try:
                taken = self._take(client, name, timeout)
            except QuorumError as error:
                if not (self.fails or (self.is_slow and timeout <= max(SLOW_SECONDS))):
                    self.violate(f"{process.name} got no answer: {error}")
            finally:
                self._waiting[name] -= timeout > GIVEN_SECONDS
            if taken is not None:
                self._hold(process, name, taken, since)
            process.sleep(random.random() * self.pause)

    def _take(self, client: "ClusterClient | ClientOfActors", name: str, timeout: float) -> Any:
        """Return the lock, or the permit, that the caller has got; None if another owner has it."""
        kind = self.doors[name]
        if kind == SEMAPHORE:
            semaphore = client.semaphore(name, PERMITS)
            if isinstance(semaphore, TaskSemaphore):
                return semaphore.take(1, timeout=timeout)
            return semaphore.acquire(timeout=timeout)
        lock: Any = client.lock(name)
        if kind == RWLOCK:
            both = client.rwlock(name)
            lock = both.read if self.world.chance() < READERS_PART else both.write
        return lock if lock.acquire(timeout=timeout) else None

    def _hold(self, process: Process, name: str, lock: Any, since: float) -> None:
        belief = Belief(process, lock, lock._hold(), since, shares=lock._spec.is_shared)
        self._begin(name, belief)
        process.sleep(self.world.random.choice(self.stays))
        if belief.hold.loss is not None and not self.fails:
            self.violate(f"{process.name} has lost {name}")
        belief.is_over = True
        with suppress(QuorumError, LockLostError, NotOwnedError) if self.fails else nullcontext():
            lock.release()

    # The rules ------------------------------------------------------------------------------------------------------

    def _begin(self, name: str, belief: Belief) -> None:
        """Judge a new hold: the node that serves the slot has it, or its owner can't know of that node."""
        self.grants += 1
        self.world.note(belief.process.name, f"has {name} as {belief.hold.owner.decode()}")
        if not self.nodes.have_hold(name, self._keys_of(name), belief.hold.owner):
            if not self.fails:
                self.violate(f"{belief.process.name} has {name}, but not on its node")
            self._excused.add(belief)
            serving = self.nodes.serving_node(name).number
            number, known_since = self._known[belief.process, name]  # since the last look, a late node may be believed
            knows_it = number == self._node_known_to(belief.process, name) == serving
            if knows_it and self.world.now - known_since > 2 * LOOK_SECONDS:
                self.violate(f"{belief.process.name} knows the node of {name}, and got {name} from another one")
        self._beliefs.append((name, belief))
        self._check_exclusion()

    def _check_exclusion(self) -> None:
        self._beliefs = [(name, belief) for name, belief in self._beliefs if not belief.is_over]
        valid = [(name, belief) for name, belief in self._beliefs if belief.is_believed()]
        permits = Counter(name for name, _ in valid if self.doors[name] == SEMAPHORE)
        for name, count in permits.items():
            if count > PERMITS:
                self.violate(f"{count} owners have permits of {name}")
        for (name, one), (other, another) in combinations(valid, 2):
            may_both = name in permits or (one.shares and another.shares)
            if name == other and not may_both and not self._excused.intersection((one, another)):
                self.violate(f"{one.process.name} and {another.process.name} both have {name}")

    def _keys_of(self, name: str) -> LockKeys:
        return permit_keys("lock", name) if self.doors[name] == SEMAPHORE else lock_keys("lock", name)

    def _node_known_to(self, process: Process, name: str) -> int:
        """Return the number of the node that a client takes for that of a lock's slot; -1 if it knows none."""
        known = cast("Cluster", self._clients[process]._session.masters[0]).node_of(lock_keys("lock", name))
        return -1 if known is None else known.opener.node.kwargs["port"] - PORT

    def _look(self) -> None:
        """Look at all beliefs, at what the clients know, and at locks that stay free."""
        now = self.world.now
        self._check_exclusion()
        for name in self.names:
            node, keys = self.nodes.serving_node(name), self._keys_of(name)
            for process in self._clients:
                number = self._node_known_to(process, name)
                if self._known[process, name][0] != number:
                    self._known[process, name] = number, now
            most = PERMITS - 1 if self.doors[name] == SEMAPHORE else 0
            is_free = node.is_up and len(leftovers.holds_on(node, keys)) <= most
            since = self._free_since.setdefault(name, now) if is_free and self._waiting[name] else None
            if since is None:
                self._free_since.pop(name, None)
            elif now - max(since, self.calm_at) > GIVEN_SECONDS:
                self.violate(f"{name} has been free for {now - since:.3f} s, and somebody waits")
                self._free_since.pop(name)
        if not self._are_all_done():
            self.world.after(LOOK_SECONDS, self._look)


def run_of(seed: int) -> ClusterRun | Simulation:
    """Return the run of a seed."""
    return ClusterRun(seed) if seed >= FIRST else Simulation(seed)
