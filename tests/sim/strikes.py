"""Strikes of a run: faults of masters, of the network, of clients and of clocks; and the end of all faults."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from relock import RelockError
from relock.testing._lab import VirtualClient
from relock.testing._process import Process
from sim.actors import ClientOfActors
from sim.beliefs import Call
from sim.calls import Calls
from sim.cast import RATE_ERROR, Cast
from sim.fork import in_child
from sim.moves import Mover
from sim.operators import Operators
from sim.plan import (
    CLOSE_LOOP,
    FORGETTING,
    GET_STUCK,
    LONG_HANDLER,
    LOOP_STUCK,
    MOVING,
    OVERRIDE,
    SLOW_DOWN,
    STOP_PROCESS,
    STRANGER,
)
from sim.referee import Referee
from sim.replication import ReplicatedServer
from sim.stuck import COSTS
from sim.turns import Turns

STEPS = (0.06, 0.1, 0.3, 0.9, 3.0)  # seconds by which a clock is set, ahead or back; the last is beyond a lease
RUN_OFF_SECONDS = 0.01  # a clock that runs off steps by this much each time
RUN_OFF_STEPS = (10, 60)  # of steps
SLOW_SECONDS = 6.0  # for which the way to the masters is slow
SLOW_DELAY = 0.05  # of a message then, on average
FORKS_MAX = 2  # in one run
LAST_LOOP_PART = 0.3  # of the loops that are closed, after which no other loop of the process follows
CLOSED_SECONDS = 10.0  # until the places of tasks with a closed loop are given up


class Strikes:
    """The faults of one run.

    Args:
        everywhere: all servers, also those that are no masters now.
        mover: moves the masters, in runs in which they move.
    """

    def __init__(
        self,
        cast: Cast,
        referee: Referee,
        calls: Calls,
        turns: Turns,
        *,
        everywhere: Sequence[ReplicatedServer],
        mover: Mover | None,
    ) -> None:
        self._cast = cast
        self._world = cast.world
        self._plan = cast.plan
        self._servers = cast.servers
        self._referee = referee
        self._turns = turns
        self._everywhere = everywhere
        self._mover = mover
        self._newborn: set[Process] = set()  # forked children that have done nothing yet
        operators = Operators(cast, referee)
        self._others: dict[str, Callable[[], None]] = {
            "force release": operators.force_release,
            "step": self._step,
            "step several": self._step_several,
            "run off": self._run_off,
            "change rate": self._change_rate,
            "interrupt": calls.interrupt,
            GET_STUCK: self._get_stuck,
            STOP_PROCESS: self._stop_process,
            CLOSE_LOOP: self._close_loop,
            STRANGER: self._send_stranger,
            "fork": self.fork,
            OVERRIDE: operators.override,
        }
        if mover is not None:
            self._others["stall replica"] = partial(self._stall_replica, mover)
            self._others |= {kind: partial(self._move, mover, kind) for kind in MOVING}

    def schedule(self) -> None:
        """Schedule all strikes."""
        world, plan = self._world, self._plan
        if plan.ends_at:
            world.at(plan.ends_at - SLOW_SECONDS / 2, self._slow_down)
            return
        when = world.random.expovariate(1.0) * plan.fault_pause
        while plan.kinds and when < plan.faults:
            world.at(when, partial(self._strike, world.random.choice(plan.kinds)))
            when += world.random.expovariate(1.0) * plan.fault_pause

    def _slow_down(self) -> None:
        """Make the way to all masters slow for a while."""
        self._referee.struck("network", SLOW_DOWN, SLOW_SECONDS)
        conditions = self._plan.conditions
        self._world.after(SLOW_SECONDS, partial(setattr, conditions, "delay", conditions.delay))
        conditions.delay = SLOW_DELAY

    def _strike(self, kind: str) -> None:
        random = self._world.random
        seconds = random.choice(self._plan.lasting)
        if kind in ("crash client", "pause client", "isolate client", "stop clock"):
            self._strike_client(kind, random.choice(self._cast.processes), seconds)
        elif kind in self._others:
            self._others[kind]()
        elif kind == "flush a quorum":
            for server in random.sample(self._servers, len(self._servers) // 2 + 1):
                self._strike_server("flush", server, seconds)
        else:
            self._strike_server(kind, random.choice(self._servers), seconds)

    def _strike_client(self, kind: str, process: Process, seconds: float) -> None:
        world = self._world
        if process.is_dead or process.is_paused:
            return
        self._referee.struck(process.name, kind, seconds)
        if kind == "crash client":
            process.crash()
            for referee in self._referee.family.values():
                referee.died(process)
        elif kind == "pause client":
            process.pause()
            world.after(seconds, process.resume)
        elif kind == "stop clock":
            for one in [one for one in self._cast.processes if one.machine == process.machine and not one.is_dead]:
                self._referee.clocks.stands_still(one)
                one.pause(stops_clock=True)
                world.after(seconds, one.resume)
        else:
            for server in self._everywhere:
                self._part(server, process, seconds)

    def _waiting(self) -> list[Call]:
        """Return calls whose clients may get stuck: all threads of the client wait, and two other clients can act."""
        stuck, first, count = self._referee.stuck.now(), dict[Process, Call](), Counter[Process]()
        if len(stuck) + 2 >= self._plan.clients:
            return []
        for call in self._referee.idle.waiting:  # the oldest comes first
            first.setdefault(call.process, call)
            count[call.process] += 1
        least = self._plan.threads
        return [call for process, call in first.items() if process not in stuck and count[process] >= least]

    def _get_stuck(self) -> None:
        """Keep a client that waits from acting: its loop stands still, or its first thread is in a long handler."""
        waiting = self._waiting()
        if not waiting:
            return
        random, referee = self._world.random, self._referee
        call = random.choice(waiting)
        process = call.process
        door, seconds = self._cast.doors.get(process), random.choice(self._plan.lasting)
        kind = LONG_HANDLER if door is None else random.choice(LOOP_STUCK)
        spell = referee.stuck.begin(call, kind, seconds)
        referee.struck(process.name, kind, seconds)

        def stand_still() -> None:
            process.sleep(seconds)
            referee.stuck.end(spell)
            self._world.note(process.name, "goes on")

        if door is not None:
            door.stand_still(stand_still, is_stopped=kind != LOOP_STUCK[0])
        else:
            next(worker for worker in self._cast.workers if worker.process is process).handle(stand_still)

    def _stop_process(self) -> None:
        """Stop a whole process that waits."""
        waiting = self._waiting()
        if not waiting:
            return
        call, seconds = self._world.random.choice(waiting), self._world.random.choice(self._plan.lasting)
        process, referee = call.process, self._referee
        spell = referee.stuck.begin(call, STOP_PROCESS, seconds)
        referee.struck(process.name, STOP_PROCESS, seconds)
        process.pause()

        def go_on() -> None:
            referee.stuck.end(spell)
            process.resume()

        self._world.after(seconds, go_on)

    def _close_loop(self) -> None:
        """Close a loop whose tasks have the lock, or wait for it, and keep the tasks. Another loop may follow."""
        doors = {process: door for process, door in self._cast.doors.items() if not (process.is_dead or door.is_left)}
        holding = [process for process in self._believing() if process in doors]
        if not doors or self._world.now < self._plan.begins or self._cast.are_all_done():
            return  # when a run is over, the next loop would take the lock anew
        process, is_last = self._world.random.choice(holding or list(doors)), self._world.chance() < LAST_LOOP_PART
        door = doors[process]
        door.close_loop(partial(self._loop_closed, process, door, is_last=is_last))

    def _loop_closed(self, process: Process, door: ClientOfActors, *, is_last: bool) -> None:
        referee = self._referee
        referee.struck(process.name, CLOSE_LOOP, 0.0)
        for one in referee.family.values():
            one.ends.abandoned(process, one.beliefs)
            if self._plan.several:  # its tasks may have had any of the locks before they had all
                one.idle.left([COSTS[CLOSE_LOOP]])
        for call in referee.idle.waiting.copy():
            if call.process is process:
                referee.stuck.begin(call, CLOSE_LOOP, CLOSED_SECONDS)
        for worker in [worker for worker in self._cast.workers if worker.process is process]:
            worker.end()
        if not is_last:
            door.begin_anew()
            self._turns.go_on(process, door, f"{process.name}-again")

    def _believing(self) -> list[Process]:
        """Return the process of each belief."""
        return [belief.process for referee in self._referee.family.values() for belief in referee.believers()]

    def _strike_server(self, kind: str, server: ReplicatedServer, seconds: float) -> None:
        world = self._world
        if not server.is_up or server.is_stopped:
            return
        self._referee.struck(server.name, kind, seconds)
        self._referee.clocks.has_forgotten |= kind in FORGETTING
        if kind == "stop":
            server.stop()
            world.after(seconds, server.go_on)
        elif kind == "partition":
            self._part(server, world.random.choice(self._cast.processes), seconds)
        elif kind == "drop client":
            server.drop(world.random.choice(self._cast.processes))
        elif kind == "lose a quorum":
            process = world.random.choice(self._cast.processes)
            for other in world.random.sample(self._servers, len(self._servers) // 2 + 1):
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
        """Let nothing arrive between the two for a while; messages that were under way are lost."""
        server.unreachable.add(process.name)
        self._world.after(seconds, partial(server.reach, process))

    def _restart(self, server: ReplicatedServer, snapshot: Any) -> None:
        if not server.is_up:
            server.restart(snapshot)

    def _move(self, mover: Mover, kind: str) -> None:
        """Move a master, or those of all addresses."""
        count = len(self._servers)
        for number in range(count) if kind == "fail all back" else [self._world.random.randrange(count)]:
            if mover.strike(kind, number):
                self._referee.struck(self._servers[number].name, kind, 0.0)
                self._referee.clocks.has_forgotten = True

    def _stall_replica(self, mover: Mover) -> None:
        """Let nothing come to a replica for a while."""
        number, seconds = (
            self._world.random.randrange(len(self._servers)),
            self._world.random.choice(self._plan.lasting),
        )
        if mover.stall(number, seconds):
            self._referee.struck(self._servers[number].name, "stall replica", seconds)

    def _step(self) -> None:
        """Set the clock of one master."""
        self._set_clocks("step", [self._world.random.randrange(len(self._servers))])

    def _step_several(self) -> None:
        """Set the clocks of several masters, at the same moment and by as much."""
        count = len(self._servers)
        self._set_clocks("step several", self._world.random.sample(range(count), self._world.random.randint(1, count)))

    def _set_clocks(self, kind: str, numbers: list[int]) -> None:
        random = self._world.random
        seconds = random.choice(STEPS) * random.choice([1, -1])
        for number in numbers:
            self._referee.struck(self._servers[number].name, kind, seconds)
            self._referee.stepped(number, seconds)

    def _run_off(self) -> None:
        """Let a master's clock run twice as fast for a while, or hardly at all."""
        random = self._world.random
        number, seconds = random.randrange(len(self._servers)), RUN_OFF_SECONDS * random.choice([1.0, -0.9])
        count = random.randint(*RUN_OFF_STEPS)
        self._referee.struck(self._servers[number].name, "run off", count * seconds)
        for times in range(count):
            self._world.after(times * RUN_OFF_SECONDS, partial(self._referee.clocks.step, number, seconds))

    def _change_rate(self) -> None:
        """Change the rate of some clock, within the allowed drift."""
        random = self._world.random
        running = [process for process in self._cast.processes if not process.is_dead and not process.is_paused]
        clocks: list[ReplicatedServer | Process] = [*self._servers, *running]
        whose = random.choice(clocks)
        rate = 1 + random.uniform(-RATE_ERROR, RATE_ERROR)
        whose.set_rate(rate)
        self._referee.struck(whose.name, "change rate", rate)

    def fork(self) -> None:
        """Fork a process, whatever the chosen thread does at that moment. The child has only that thread."""
        random = self._world.random
        parents = [
            worker
            for worker in self._cast.workers
            if not (worker.is_over or worker.process.is_dead or worker.process in self._newborn)
            and worker.process not in self._cast.doors
        ]
        if not parents or self._referee.faults["fork"] == FORKS_MAX:
            return
        holding = set(self._believing())
        parent = random.choice([worker for worker in parents if worker.process in holding] or parents)
        process = parent.process
        if process.is_paused:
            return
        child = process.fork(f"{process.name}-child-{self._referee.faults['fork']}")
        client = in_child(self._cast.client_of(process), child, self._servers)
        self._cast.processes.append(child)
        self._cast.clients.append(client)
        self._turns.meet_child(child)
        self._newborn.add(child)
        task = child.start(partial(self._begin_anew, child, client), child.name, waits_without_timer=False)
        task.owner = parent.owner  # the child's thread is the parent's
        self._cast.workers.append(task)
        self._referee.struck(process.name, "fork", 0.0)

    def _begin_anew(self, process: Process, client: VirtualClient) -> None:
        """Do the work of a forked child."""
        client._after_fork()  # as os.fork does before any other code of the child
        self._newborn.discard(process)
        self._referee.meet(process, client._session)
        for name, referee in self._referee.family.items():
            referee.forked(process, self._cast.lock(client, name=name))
        self._turns.take_turns(process, client)

    def _send_stranger(self) -> None:
        """Let a program with a long guard try another lock, on some of the masters and others that do not exist."""
        world, plan = self._world, self._plan
        if world.now < plan.begins:
            return
        process, client = self._cast.make_stranger(f"stranger-{self._referee.faults[STRANGER]}")
        self._referee.struck(process.name, STRANGER, 0.0)

        def work() -> None:
            with contextlib.suppress(RelockError):
                client.lock("other").acquire(timeout=world.random.choice(plan.timeouts))
            client.close()

        process.start(work, process.name)

    def heal(self) -> None:
        """Make everything work again, from now on."""
        world = self._world
        world.note("world", "all is healed")
        if not self._plan.is_quiet:  # the conditions of a quiet network hold from here on
            self._referee.leases.hindered(0.0)
        for server in self._everywhere:
            self._restart(server, None)
            server.go_on()
            server.master.is_full = False
            for process in self._cast.processes:
                server.reach(process)
            conditions = server.conditions
            conditions.straggles = conditions.cuts = conditions.drops = conditions.lags = conditions.repeats = 0.0
        if self._mover is not None:
            self._mover.heal()
        for process in self._cast.processes:
            process.resume()
        self._turns.is_healed = True
