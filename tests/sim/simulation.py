"""Runs of the whole system under faults.

One seed makes one run. While faults strike, whoever wants the lock may meet a `QuorumError`; but what the referee holds
for always holds all the time. Then everything is healed, everybody must come to an end, and nothing may be left.
"""

import contextlib
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from relock import Client, LockLostError, QuorumError, RelockError, _caches
from relock.lock import Lock
from relock.testing._lab import VirtualClient
from relock.testing._platform import VirtualGate
from relock.testing._process import Process, Task, current_task
from relock.testing._world import World
from sim.blocked import block, unread
from sim.fork import in_child
from sim.given import Given
from sim.moves import Mover
from sim.plan import CALM_SECONDS, FORGETTING, LOCK, MOVING, Moves, Plan, Wide
from sim.referee import COUNT_SECONDS, LOCK_KEY, Belief, Referee
from sim.replication import ReplicatedServer
from sim.special import plan_of

STEADY_SECONDS = 200.0  # of true time, for everybody to come to an end when all is healed
UNDO_SECONDS = 0.5  # after the last release, until nothing is left of any attempt either
FORGOTTEN_SECONDS = 60.0  # of true time after which nothing may be left on a master
EPOCH_SECONDS = 1_700_000_000.0  # about what the masters' clocks show
LOOK_SECONDS = 0.05
FIRST_LOOKS = 2  # before a run begins: at the first one not all connections may be there yet
FIRST_LOOKS_PAUSE = 0.1  # seconds
RATE_ERROR = 0.005  # as much as the default drift_factor allows for each clock
FOREVER = float("inf")
STEPS = (0.06, 0.1, 0.3, 0.9, 3.0)  # seconds by which a clock is set, ahead or back; the last is beyond a lease
RUN_OFF_SECONDS = 0.01  # by which a clock that runs off is wrong more and more,
RUN_OFF_STEPS = (10, 60)  # so many times
FORKS_MAX = 2  # in one run
INTERRUPT_LOOKS = 12  # at a clock, of which one is the last before an interrupt


class Interrupted(BaseException):
    """What a signal's handler raises in a thread."""


class ViolationError(AssertionError):
    """Something that must hold did not."""


class Simulation:
    """One run.

    Args:
        seed: decides all of it.
        plan: instead of the one that the seed draws.
    """

    everywhere: list[ReplicatedServer]
    is_healed: bool
    plan: Plan
    referee: Referee
    servers: list[ReplicatedServer]
    world: World

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.world = world = World(seed)
        random = world.random
        self.plan = plan = plan or plan_of(seed, random)
        self.servers = [
            ReplicatedServer(
                world,
                number,
                plan.conditions,
                rate=1 + random.uniform(-RATE_ERROR, RATE_ERROR),
                offset=EPOCH_SECONDS + random.uniform(-plan.skew, plan.skew),
            )
            for number in range(plan.masters)
        ]
        self.everywhere = list(self.servers)  # in runs in which masters move, two for each address
        self.referee = Referee(world, self.servers, plan)
        self.processes: list[Process] = []
        self.clients: list[VirtualClient] = []
        self.workers: list[Task] = []  # the threads that want the lock
        self.faults: Counter[str] = Counter()  # those that struck
        self.is_healed = plan.is_calm
        self._calling: dict[Task, None] = {}  # threads inside a call of relock's that may be interrupted
        self._to_interrupt = 0  # of the next calls
        self._acquiring: Counter[Process] = Counter()  # how many of their threads wait for an outermost acquire
        self._others: dict[str, Callable[[], None]] = {
            "force release": self._force_release,
            "step": self._step,
            "step several": self._step_several,
            "run off": self._run_off,
            "change rate": self._change_rate,
            "interrupt": self._interrupt,
            "fork": self._fork,
        }
        self._newborn: set[Process] = set()  # forked children that have done nothing yet
        self._turns: dict[Process, Any] = {}  # what threads that name one ``owner=`` take turns by
        if plan.moves is not None:
            self._mover = self._pair_up(plan.moves)
        for number in range(plan.clients):
            self._start_client(f"client-{number}")

    def _pair_up(self, moves: Moves) -> Mover:
        """Behind each address there is another server."""
        world, skew = self.world, self.plan.skew
        standbys = [
            ReplicatedServer(
                world,
                server.number,
                server.conditions,
                rate=server.rate,
                offset=server.offset + world.random.uniform(-skew, skew),
                name="standby",
            )
            for server in self.servers
        ]
        self.everywhere += standbys
        self.referee.given = Given(LOCK_KEY, self.servers, standbys, moves.is_guarded, self.plan.longest)
        for kind in MOVING:
            self._others[kind] = partial(self._move, kind)
        self._others["stall replica"] = self._stall_replica
        return Mover(world, self.servers, standbys, moves)

    # Who takes part -------------------------------------------------------------------------------------------------

    def _start_client(self, name: str) -> None:
        process, client = self._make_client(name)
        self.referee.meet(process, client.session)
        self._turns[process] = VirtualGate(process)
        for number in range(self.plan.threads):
            work = partial(self._work, process, client)
            self.workers.append(process.start(work, f"{name}.{number}", waits_without_timer=False))

    def _make_client(self, name: str) -> tuple[Process, VirtualClient]:
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

    def _work(self, process: Process, client: Client) -> None:
        """One thread: takes turns, and a last one when all is healed, in which it must be served."""
        plan = self.plan
        if plan.begins:
            for _ in range(FIRST_LOOKS):
                with contextlib.suppress(RelockError):
                    self._turn(process, self._lock(client), timeout=0.0, stay=0.0)
                process.sleep(FIRST_LOOKS_PAUSE)
            process.sleep(plan.begins)
        self._take_turns(process, client)

    def _lock(self, client: Client, *, renew: bool | None = None) -> Lock:
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

    def _take_turns(self, process: Process, client: Client) -> None:
        random, plan = self.world.random, self.plan
        for _ in itertools.count() if plan.moves else range(plan.turns):
            process.sleep(random.expovariate(1.0) * plan.pause)
            if self._is_about_to_end:
                break
            if plan.names:
                self._use_others(client, random.randrange(plan.names))
            lock = self._lock(client, renew=plan.renew)
            with contextlib.suppress(RelockError):
                self._turn(process, lock, random.choice(plan.timeouts), random.choice(plan.stays))
        while not self.is_healed:
            process.sleep(0.3)
        lock = self._lock(client)
        while not self._is_served(process, lock):
            process.sleep(0.1)

    @property
    def _is_about_to_end(self) -> bool:
        """Whether the rest of the run is for the last turns."""
        moves = self.plan.moves
        if moves is not None:
            return self.world.now >= self.referee.calm_at + moves.goes_on
        return self.is_healed and not self.plan.is_calm

    def _use_others(self, client: Client, count: int) -> None:
        """Uses so many other locks for a moment."""
        for number in range(count):
            with contextlib.suppress(RelockError):
                other = client.lock(f"other-{number}")
                if other.acquire(blocking=False):
                    other.release()

    def _is_served(self, process: Process, lock: Lock) -> bool:
        try:
            return self._turn(process, lock, FOREVER, 0.001)
        except RelockError:
            return False

    def _turn(self, process: Process, lock: Lock, timeout: float, stay: float) -> bool:
        if not self.plan.named:
            return self._take(process, lock, timeout, stay)
        turns = self._turns[process]
        turns.acquire(timeout=STEADY_SECONDS)
        try:
            return self._take(process, lock, timeout, stay)
        finally:
            turns.release()

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """A call of relock's, in which the thread may be interrupted once."""
        task = current_task()
        if self._to_interrupt:
            self._to_interrupt -= 1
            self.world.doom(task.greenlet, Interrupted(), self.world.random.randint(1, INTERRUPT_LOOKS))
        else:
            self._calling[task] = None
        try:
            yield
        except Interrupted:
            self._note_fault(task.name, "interrupt", 0.0)
            raise
        finally:
            self._calling.pop(task, None)
            self.world.spare(task.greenlet)

    def _take(self, process: Process, lock: Lock, timeout: float, stay: float) -> bool:
        referee = self.referee
        call = referee.called(process, timeout, fair=lock._options.fair)
        self._acquiring[process] += 1
        try:
            with self._call():
                limit = -1 if timeout == FOREVER else timeout
                got = lock.acquire(timeout=limit) if timeout else lock.acquire(blocking=False)
        except Interrupted:
            referee.interrupted(call, lock, self._acquiring[process] - 1)
            return False
        finally:
            self._acquiring[process] -= 1
        hold = lock._hold()
        if not got or hold is None:
            referee.refused(call)
            return False
        belief = referee.granted(lock, hold, call)
        self._inside(belief, stay)
        return True

    def _inside(self, belief: Belief, stay: float) -> None:
        random, process, wide = self.world.random, belief.process, self.plan.wide
        levels, most, chance = 1, wide.levels if wide else 2, 0.6 if wide else 0.3
        try:
            for _ in range(most - 1):
                if random.random() >= chance:
                    break
                levels += self._nest(belief)
                self.referee.counted(belief)
                self.referee.look(belief, levels)
                process.sleep(random.random() * min(stay, 1.0))
            self._stay(belief, stay, levels)
        finally:
            if not process.is_dead:
                self._leave(belief, levels)

    def _nest(self, belief: Belief) -> int:
        """One more level, unless it is interrupted; returns how many it has become."""
        begin, before = belief.process.local(), belief.hold.ttl
        lock = self._lock(self.clients[self.processes.index(belief.process)]) if self.plan.wide else belief.lock
        try:
            with self._call():
                lock.acquire()
        except Interrupted:
            return 0
        if lock._spec.ttl > before:
            self.referee.lengthened(belief, begin, lock._spec.ttl)
        return 1

    def _use(self, belief: Belief, wide: Wide) -> None:
        """Now and then a holder extends its hold, or makes sure of it."""
        random = self.world.random
        while random.random() < wide.extends:  # also twice at once: requests for leases of both lengths are under way
            self._extend(belief, random.choice((None, *wide.ttls)))
        if random.random() < wide.extends / 2:
            self._ensure(belief, random.choice((0.0, 0.5, 0.9, 1.0)) * random.choice(wide.ttls))

    def _extend(self, belief: Belief, ttl: float | None) -> None:
        begin = belief.process.local()
        try:
            with self._call():
                said = belief.lock.extend(ttl)
        except QuorumError:
            self.referee.not_extended(belief, begin)
        except (LockLostError, Interrupted):
            pass
        else:
            self.referee.extended(belief, begin, ttl, said)

    def _ensure(self, belief: Belief, seconds: float) -> None:
        begin = belief.process.local()
        try:
            with self._call():
                belief.lock.ensure(seconds)
        except LockLostError:
            self.referee.not_sure(belief, seconds)
        except Interrupted:
            pass
        else:
            self.referee.ensured(belief, begin, seconds)

    def _stay(self, belief: Belief, stay: float, levels: int) -> None:
        """Stays, and looks after the hold; until it is lost, or renewed for long enough, if it is to be for ever.

        When all is healed it stays no longer: others are to have their last turns.
        """
        process, lock = belief.process, belief.lock
        until = process.local() + min(stay, 3 * self.plan.longest)
        while (left := until - process.local()) > 0:
            pause = 0.2 if stay < FOREVER else max(0.001, min(0.2, lock.remaining() / 2))
            process.sleep(min(left, pause))
            self.referee.look(belief, levels)
            if self.plan.wide:
                self._use(belief, self.plan.wide)
            if (stay == FOREVER and not lock.owned()) or self._is_about_to_end:
                return

    def _leave(self, belief: Belief, levels: int) -> None:
        for level in range(levels, 0, -1):
            self.referee.look(belief, level)
            if level == 1:
                self.referee.leaves(belief)
            with contextlib.suppress(RelockError, Interrupted), self._call():
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
        seconds = random.choice(self.plan.lasting)
        if kind in ("crash client", "pause client", "isolate client", "stop clock"):
            self._strike_client(kind, random.choice(self.processes), seconds)
        elif kind in self._others:
            self._others[kind]()
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
            self.referee.died(process)
        elif kind == "pause client":
            process.pause()
            world.after(seconds, process.resume)
        elif kind == "stop clock":
            for one in [one for one in self.processes if one.machine == process.machine and not one.is_dead]:
                self.referee.clocks.stands_still(one)
                one.pause(stops_clock=True)
                world.after(seconds, one.resume)
        else:
            for server in self.everywhere:
                self._part(server, process, seconds)

    def _strike_server(self, kind: str, server: ReplicatedServer, seconds: float) -> None:
        world = self.world
        if not server.is_up or server.is_stopped:
            return
        self._note_fault(server.name, kind, seconds)
        self.referee.clocks.has_forgotten |= kind in FORGETTING
        if kind == "stop":
            server.stop()
            world.after(seconds, server.go_on)
        elif kind == "partition":
            self._part(server, world.random.choice(self.processes), seconds)
        elif kind == "drop client":
            server.drop(world.random.choice(self.processes))
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
             "kill normal": server.kill_normal, "forget scripts": server.forget_scripts}[kind]()  # fmt: skip

    def _part(self, server: ReplicatedServer, process: Process, seconds: float) -> None:
        """Nothing arrives between the two for a while; what was under way then is lost."""
        server.unreachable.add(process.name)
        self.world.after(seconds, partial(server.reach, process))

    def _restart(self, server: ReplicatedServer, snapshot: Any) -> None:
        if not server.is_up:
            server.restart(snapshot)

    def _move(self, kind: str) -> None:
        """Another server becomes a master."""
        count = len(self.servers)
        for number in range(count) if kind == "fail all back" else [self.world.random.randrange(count)]:
            if self._mover.strike(kind, number):
                self._note_fault(self.servers[number].name, kind, 0.0)
                self.referee.clocks.has_forgotten = True

    def _stall_replica(self) -> None:
        """For a while nothing comes to a replica."""
        number, seconds = self.world.random.randrange(len(self.servers)), self.world.random.choice(self.plan.lasting)
        if self._mover.stall(number, seconds):
            self._note_fault(self.servers[number].name, "stall replica", seconds)

    def _step(self) -> None:
        """Somebody sets the clock of one master."""
        self._set_clocks("step", [self.world.random.randrange(len(self.servers))])

    def _step_several(self) -> None:
        """Those of several, at the same moment and by as much."""
        count = len(self.servers)
        self._set_clocks("step several", self.world.random.sample(range(count), self.world.random.randint(1, count)))

    def _set_clocks(self, kind: str, numbers: list[int]) -> None:
        random = self.world.random
        seconds = random.choice(STEPS) * random.choice([1, -1])
        for number in numbers:
            self._note_fault(self.servers[number].name, kind, seconds)
            self.referee.stepped(number, seconds)

    def _run_off(self) -> None:
        """For a while a master's clock runs twice as fast, or hardly at all."""
        random = self.world.random
        number, seconds = random.randrange(len(self.servers)), RUN_OFF_SECONDS * random.choice([1.0, -0.9])
        count = random.randint(*RUN_OFF_STEPS)
        self._note_fault(self.servers[number].name, "run off", count * seconds)
        for times in range(count):
            self.world.after(times * RUN_OFF_SECONDS, partial(self.referee.clocks.step, number, seconds))

    def _change_rate(self) -> None:
        """Some clock goes on at another rate, as wrong as is allowed at most."""
        random = self.world.random
        running = [process for process in self.processes if not process.is_dead and not process.is_paused]
        clocks: list[ReplicatedServer | Process] = [*self.servers, *running]
        whose = random.choice(clocks)
        rate = 1 + random.uniform(-RATE_ERROR, RATE_ERROR)
        whose.set_rate(rate)
        self._note_fault(whose.name, "change rate", rate)

    def _interrupt(self) -> None:
        """A call of relock's is ended by an exception: where it waits, or the next one at some look at the clock."""
        tasks = [task for task in self._calling if not task.process.is_paused and not task.process.is_dead]
        if tasks and self.world.chance() < 0.5:
            task = self.world.random.choice(tasks)
            self._calling.pop(task)
            task.interrupt(Interrupted())
        else:
            self._to_interrupt += 1

    def _fork(self) -> None:
        """A process forks, in whatever one of its threads does just then; the child has that thread alone."""
        random = self.world.random
        parents = [
            worker
            for worker in self.workers
            if not (worker.is_over or worker.process.is_dead or worker.process in self._newborn)
        ]
        if not parents or self.faults["fork"] == FORKS_MAX:
            return
        holding = {belief.process for belief in self.referee.believers()}
        parent = random.choice([worker for worker in parents if worker.process in holding] or parents)
        process = parent.process
        if process.is_paused:
            return
        child = process.fork(f"{process.name}-child-{self.faults['fork']}")
        client = in_child(self.clients[self.processes.index(process)], child, self.servers)
        self.processes.append(child)
        self.clients.append(client)
        self._turns[child] = VirtualGate(child)
        self._newborn.add(child)
        task = child.start(partial(self._begin_anew, child, client), child.name, waits_without_timer=False)
        task.owner = parent.owner  # it is the same thread
        self.workers.append(task)
        self._note_fault(process.name, "fork", 0.0)

    def _begin_anew(self, process: Process, client: VirtualClient) -> None:
        """What a forked child does."""
        client._after_fork()  # with the fork itself: nothing of the child runs before
        self._newborn.discard(process)
        self.referee.meet(process, client.session)
        self.referee.forked(process, self._lock(client))
        self._take_turns(process, client)

    def _force_release(self) -> None:
        """An operator does it: from a process of its own."""
        world, referee = self.world, self.referee
        process, client = self._make_client("operator")

        found = referee.forced()

        def over() -> None:
            referee.operator_done()
            if self.plan.is_calm and done:
                world.after(self.plan.longest / 2, partial(referee.check_forced, found))

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
        self.referee.leases.hindered(seconds)
        self.world.note(whom, f"{kind} {seconds}")

    def _heal(self) -> None:
        """Everything works again, from now on."""
        world = self.world
        world.note("world", "all is healed")
        for server in self.everywhere:
            self._restart(server, None)
            server.go_on()
            server.master.is_full = False
            for process in self.processes:
                server.reach(process)
            conditions = server.conditions
            conditions.straggles = conditions.cuts = conditions.drops = conditions.lags = conditions.repeats = 0.0
        if self.plan.moves is not None:
            self._mover.heal()
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
        whose = self.processes[0] if plan.is_blocked else None
        with unread(whose), _uncollected(), _forgetful(is_forgetful=plan.names > 0):
            self._schedule_faults()
            self._look_again()
            if plan.is_calm:
                self.referee.calm_at = CALM_SECONDS + plan.longest - plan.ttl
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
        self.referee.check_votes()
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
        world.run(world.now + FORGOTTEN_SECONDS + self.plan.longest - self.plan.ttl)
        self.referee.check_nothing_left()
        self.faults["repeat"] += sum(server.repeated for server in self.everywhere)
        for process in self.processes:
            process.end()

    def _give_verdict(self) -> None:
        problems = self.referee.violations + [f"{who}: {error!r}" for who, error in self.world.errors]
        if problems:
            raise ViolationError(f"seed {self.world.seed}: {problems[0]}\n{self.plan}\n{self.world.timeline()}")


def _block(process: Process, _event: object) -> None:
    """A callback that never returns."""
    block(process)


@contextlib.contextmanager
def _forgetful(*, is_forgetful: bool) -> Iterator[None]:
    """Caches are as small as they can be, so that a few names are more than they hold."""
    before = _caches.COUNT_MAX
    _caches.COUNT_MAX = 1 if is_forgetful else before
    try:
        yield
    finally:
        _caches.COUNT_MAX = before


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
