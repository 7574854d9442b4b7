"""Runs of the whole system under faults.

One seed makes one run. While faults strike, whoever wants the lock may meet a `QuorumError`; but what the referee holds
for always holds all the time. Then everything is healed, everybody must come to an end, and nothing may be left.
"""

import contextlib
import gc
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from relock import Client, RelockError
from relock.lock import Lock
from relock.testing._lab import VirtualClient
from relock.testing._network import Server
from relock.testing._plan import CALM_SECONDS, Plan, draw
from relock.testing._referee import COUNT_SECONDS, Belief, Referee
from relock.testing._world import Process, Task, World

STEADY_SECONDS = 200.0  # of true time, for everybody to come to an end when all is healed
UNDO_SECONDS = 0.5  # after the last release, until nothing is left of any attempt either
FORGOTTEN_SECONDS = 60.0  # of true time after which nothing may be left on a master
EPOCH_SECONDS = 1_700_000_000.0  # about what the masters' clocks show
LOOK_SECONDS = 0.05
RATE_ERROR = 0.005  # as much as the default drift_factor allows for each clock
FOREVER = float("inf")
LOCK = "a"


class ViolationError(AssertionError):
    """Something that must hold did not."""


class Simulation:
    """One run.

    Args:
        seed: decides all of it.
        plan: instead of the one that the seed draws.
    """

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.world = world = World(seed)
        random = world.random
        self.plan = plan = plan or draw(random)
        self.servers = [
            Server(
                world,
                number,
                plan.conditions,
                rate=1 + random.uniform(-RATE_ERROR, RATE_ERROR),
                offset=EPOCH_SECONDS + random.uniform(-plan.skew, plan.skew),
            )
            for number in range(plan.masters)
        ]
        self.referee = Referee(world, self.servers, plan)
        self.processes: list[Process] = []
        self.clients: list[VirtualClient] = []
        self.workers: list[Task] = []  # the threads that want the lock
        self.faults: Counter[str] = Counter()  # those that struck
        self.is_healed = plan.is_calm
        for number in range(plan.clients):
            self._start_client(f"client-{number}")

    # Who takes part -------------------------------------------------------------------------------------------------

    def _start_client(self, name: str) -> None:
        process, client = self._make_client(name)
        self.referee.meet(process, client.session.hub.waiters)
        for number in range(self.plan.threads):
            work = partial(self._work, process, client)
            self.workers.append(process.start(work, f"{name}.{number}", waits_without_timer=False))

    def _make_client(self, name: str) -> tuple[Process, VirtualClient]:
        random, plan = self.world.random, self.plan
        rate, offset = 1 + random.uniform(-RATE_ERROR, RATE_ERROR), random.uniform(0.0, 100_000.0)
        process = Process(self.world, name, rate=rate, offset=offset)
        client = VirtualClient(
            process,
            self.servers,
            ttl=plan.ttl,
            restart_guard=plan.ttl,
            node_timeout=plan.node_timeout,
            fair=plan.fair,
            client_name=name,
        )
        self.processes.append(process)
        self.clients.append(client)
        return process, client

    def _work(self, process: Process, client: Client) -> None:
        """One thread: takes turns, and a last one when all is healed, in which it must be served."""
        random, plan = self.world.random, self.plan
        if plan.begins:
            with contextlib.suppress(RelockError):
                self._turn(process, client.lock(LOCK), timeout=0.0, stay=0.0)
            process.sleep(plan.begins)
        for _ in range(plan.turns):
            process.sleep(random.expovariate(1.0) * plan.pause)
            if self.is_healed and not plan.is_calm:
                break  # the rest of the run is for the last turns
            lock = client.lock(LOCK, renew=plan.renew)
            with contextlib.suppress(RelockError):
                self._turn(process, lock, random.choice(plan.timeouts), random.choice(plan.stays))
        while not self.is_healed:
            process.sleep(0.3)
        lock = client.lock(LOCK)
        while not self._is_served(process, lock):
            process.sleep(0.1)

    def _is_served(self, process: Process, lock: Lock) -> bool:
        try:
            return self._turn(process, lock, FOREVER, 0.001)
        except RelockError:
            return False

    def _turn(self, process: Process, lock: Lock, timeout: float, stay: float) -> bool:
        referee = self.referee
        call = referee.called(process, timeout)
        got = lock.acquire(timeout=-1 if timeout == FOREVER else timeout) if timeout else lock.acquire(blocking=False)
        hold = lock._hold()
        if not got or hold is None:
            referee.refused(call)
            return False
        belief = referee.granted(lock, hold, call)
        self._inside(belief, stay)
        return True

    def _inside(self, belief: Belief, stay: float) -> None:
        random, lock, process = self.world.random, belief.lock, belief.process
        levels = 1
        try:
            if random.random() < 0.3:
                lock.acquire()
                levels += 1
                self.referee.counted(belief)
                self.referee.look(belief, levels)
                process.sleep(random.random() * min(stay, 1.0))
            self._stay(belief, stay, levels)
        finally:
            if not process.is_dead:
                self._leave(belief, levels)

    def _stay(self, belief: Belief, stay: float, levels: int) -> None:
        """Stays, and looks after the hold; until it is lost, or renewed for long enough, if it is to be for ever."""
        process, lock = belief.process, belief.lock
        until = process.local() + min(stay, 3 * self.plan.ttl)
        while (left := until - process.local()) > 0:
            pause = 0.2 if stay < FOREVER else max(0.001, min(0.2, lock.remaining() / 2))
            process.sleep(min(left, pause))
            self.referee.look(belief, levels)
            if stay == FOREVER and not lock.owned():
                return

    def _leave(self, belief: Belief, levels: int) -> None:
        for level in range(levels, 0, -1):
            self.referee.look(belief, level)
            if level == 1:
                self.referee.leaves(belief)
            with contextlib.suppress(RelockError):
                belief.lock.release()
            self.referee.counted(belief)
            if level > 1 and self.world.random.random() < 0.3:
                belief.process.sleep(2 * COUNT_SECONDS)

    # Faults ---------------------------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        world, plan = self.world, self.plan
        when = world.random.expovariate(1.0) * plan.fault_pause
        while plan.kinds and when < plan.faults:
            world.at(when, partial(self._strike, world.random.choice(plan.kinds)))
            when += world.random.expovariate(1.0) * plan.fault_pause

    def _strike(self, kind: str) -> None:
        random = self.world.random
        seconds = random.choice([0.01, 0.2, 0.8, 1.5])
        if kind in ("crash client", "pause client", "isolate client"):
            self._strike_client(kind, random.choice(self.processes), seconds)
        elif kind == "force release":
            self._force_release()
        elif kind == "flush a quorum":
            for server in random.sample(self.servers, len(self.servers) // 2 + 1):
                self._strike_server("flush", server, seconds)
        else:
            self._strike_server(kind, random.choice(self.servers), seconds)

    def _strike_client(self, kind: str, process: Process, seconds: float) -> None:
        world = self.world
        if process.is_dead or process.is_paused:
            return
        self._note_fault(process.name, kind, seconds)
        if kind == "crash client":
            process.crash()
            self.referee.died(process, self.plan.ttl)
        elif kind == "pause client":
            process.pause()
            world.after(seconds, process.resume)
        else:
            for server in self.servers:
                self._part(server, process, seconds)

    def _strike_server(self, kind: str, server: Server, seconds: float) -> None:
        world = self.world
        if not server.is_up or server.is_stopped:
            return
        self._note_fault(server.name, kind, seconds)
        if kind == "stop":
            server.stop()
            world.after(seconds, server.go_on)
        elif kind == "partition":
            self._part(server, world.random.choice(self.processes), seconds)
        elif kind == "lose a quorum":
            process = world.random.choice(self.processes)
            for other in world.random.sample(self.servers, len(self.servers) // 2 + 1):
                self._part(other, process, seconds)
        elif kind == "fill up":
            server.master.is_full = True
            world.after(seconds, partial(setattr, server.master, "is_full", False))
        elif kind == "crash":
            server.crash()
            world.after(seconds, partial(self._restart, server, None))
        elif kind == "restart old":
            snapshot = server.master.snapshot()
            world.after(seconds, server.crash)
            world.after(seconds + 0.05, partial(self._restart, server, snapshot))
        else:
            {"flush": server.master.flush, "kill connections": server.kill_connections,
             "forget scripts": server.forget_scripts}[kind]()  # fmt: skip

    def _part(self, server: Server, process: Process, seconds: float) -> None:
        """Nothing arrives between the two for a while; what was under way then is lost."""
        server.unreachable.add(process.name)
        self.world.after(seconds, partial(server.reach, process))

    def _restart(self, server: Server, snapshot: Any) -> None:
        if not server.is_up:
            server.restart(snapshot)

    def _force_release(self) -> None:
        """An operator does it: from a process of its own."""
        world, referee = self.world, self.referee
        process, client = self._make_client("operator")

        found = referee.forced()

        def over() -> None:
            referee.check_exclusion()
            referee.operators -= 1
            if self.plan.is_calm and done:
                world.after(self.plan.ttl / 2, partial(referee.check_forced, found))

        def force() -> None:
            with contextlib.suppress(RelockError):
                done.append(client.force_release(LOCK))
            client.close()
            world.after(2 * self.plan.node_timeout, over)  # what is still under way is void by then

        done: list[bool] = []
        referee.operators += 1
        process.start(force, "operator")
        self._note_fault("operator", "force release", 0.0)

    def _note_fault(self, whom: str, kind: str, seconds: float) -> None:
        self.faults[kind] += 1
        self.world.note(whom, f"{kind} {seconds}")

    def _heal(self) -> None:
        """Everything works again, from now on."""
        world = self.world
        world.note("world", "all is healed")
        for server in self.servers:
            self._restart(server, None)
            server.go_on()
            server.master.is_full = False
            for process in self.processes:
                server.reach(process)
            server.conditions.straggles = server.conditions.cuts = server.conditions.drops = 0.0
        for process in self.processes:
            process.resume()
        self.is_healed = True

    # The run --------------------------------------------------------------------------------------------------------

    def run(self) -> "Simulation":
        """Plays it to its end.

        Raises:
            ViolationError: something that must hold did not; the message has the timeline.
        """
        world, plan = self.world, self.plan
        with warnings.catch_warnings(), _quiet(), _uncollected():
            warnings.simplefilter("ignore")
            self._schedule_faults()
            self._look_again()
            if plan.is_calm:
                self.referee.calm_at = CALM_SECONDS
            else:
                world.run(plan.faults + 2.0)  # what was struck last comes back by itself
                self._heal()
                self.referee.calm_at = world.now + plan.settling
            world.run(world.now + STEADY_SECONDS, is_over=self._are_all_done)
            self._check_the_end()
        self._give_verdict()
        return self

    def _look_again(self) -> None:
        """The referee looks by himself, too: at what a process believes that stands still."""
        self.referee.check_exclusion()
        if not self._are_all_done():
            self.world.after(LOOK_SECONDS, self._look_again)

    def _are_all_done(self) -> bool:
        return all(worker.is_over or worker.process.is_dead for worker in self.workers)

    def _check_the_end(self) -> None:
        world = self.world
        if not self._are_all_done():
            self.referee.violate(f"not everybody has come to an end {STEADY_SECONDS} s after all was healed")
        elif self.referee.is_calm:
            world.run(world.now + UNDO_SECONDS)
            self.referee.check_undone()
        for client, process in zip(self.clients, self.processes, strict=True):
            if not process.is_dead:
                process.start(client.close, "closing")
        world.run(world.now + FORGOTTEN_SECONDS)
        self.referee.check_nothing_left()
        for process in self.processes:
            process.end()

    def _give_verdict(self) -> None:
        problems = self.referee.violations + [f"{who}: {error!r}" for who, error in self.world.errors]
        if problems:
            raise ViolationError(f"seed {self.world.seed}: {problems[0]}\n{self.plan}\n{self.world.timeline()}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nobody wants to read the log of a virtual night."""
    logger = logging.getLogger("relock")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Looking for garbage in the middle of a run takes a tenth of its time, and finds next to nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
