"""Turns of a run's threads: each takes the lock, stays, and releases it, again and again."""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from relock import Client, LockLostError, QuorumError, RelockError
from relock._runtime.session import closing
from relock.lock import Lock
from relock.testing._lab import VirtualClient
from relock.testing._process import Parking, Process, Task, current_task
from sim.actors import Actor, Interrupted, actor_of
from sim.asking import FOREVER, take
from sim.beliefs import Belief
from sim.calls import Calls
from sim.cast import Cast
from sim.order_turns import OrderTurns
from sim.permit_turns import PermitTurns
from sim.permits import PermitReferee
from sim.plan import Wide
from sim.read_write import ReadWriteReferee
from sim.read_write_turns import ReadWriteTurns
from sim.referee import COUNT_SECONDS, Referee
from sim.several import Progress
from sim.several_turns import SeveralTurns

STEADY_SECONDS = 200.0  # of true time, for all threads to come to an end after the end of all faults
FIRST_LOOKS = 2  # tries before a run begins: at the first one, some connections may not be open yet
FIRST_LOOKS_PAUSE = 0.1  # seconds
BLOCKED_SECONDS_MAX = 0.1
EXIT_PART = 0.5  # of the ends of clients, which are ends of their processes, without a `close`
CLOSED_MAX = 6  # clients that are closed in one run before its end


class VirtualGate:
    """A `threading.RLock` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._owner: Task | None = None
        self._count = 0
        self._waiting: deque[Parking] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, or one more level."""
        task = current_task()
        until = None if timeout < 0 else self._process.local() + timeout
        while self._owner not in (None, task):
            left = None if until is None else until - self._process.local()
            if not blocking or (left is not None and left <= 0):
                return False
            parking = Parking(self._process)
            self._waiting.append(parking)
            try:
                parking.wait(left)
            except BaseException:
                if parking.woken:
                    self._wake_one()  # the interrupted task does not take the gate, so the next one must
                raise
        self._owner = task
        self._count += 1
        return True

    def release(self) -> None:
        """Give back one level."""
        if self._owner is not current_task():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting and not self._waiting.popleft().wake():
            pass


class Turns:
    """Turns of the threads, and the time for which they go on.

    Attributes:
        is_healed: whether all faults are over, so that all threads must come to an end.
    """

    def __init__(self, cast: Cast, referee: Referee, calls: Calls, progress: Progress | None = None) -> None:
        self.is_healed: bool = cast.plan.is_calm
        self._cast = cast
        self._world = cast.world
        self._plan = cast.plan
        self._referee = referee
        self._calls = calls
        self._gates: dict[Process, Any] = {}  # gates at which threads that name one ``owner=`` take turns
        around = cast, calls, lambda: self._is_about_to_end, self._block
        self._take: Callable[[Process, Any, float, float], bool] = self._take_lock
        if progress is not None:
            self._take = (OrderTurns if cast.plan.orders else SeveralTurns)(progress, *around).take
        elif isinstance(referee, PermitReferee):
            self._take = PermitTurns(referee, *around).take
        elif isinstance(referee, ReadWriteReferee):
            self._take = ReadWriteTurns(referee, *around).take

    def start(self, made: tuple[Process, VirtualClient]) -> None:
        """Start the threads of a client that was just made."""
        process, client = made
        self._referee.meet(process, client._session)
        self._gates[process] = VirtualGate(process)
        self._start(process, partial(self._work, process, self._cast.door_of(process)), process.name)

    def go_on(self, process: Process, client: Any, name: str) -> None:
        """Start threads of a client whose first ones have ended."""
        self._start(process, partial(self.take_turns, process, client), name)

    def _start(self, process: Process, work: Callable[[], object], name: str) -> None:
        for number in range(self._plan.threads):
            self._cast.workers.append(process.start(work, f"{name}.{number}", waits_without_timer=False))

    def meet_child(self, process: Process) -> None:
        """Give a forked child gates of its own, if threads of one owner take turns."""
        self._gates[process] = VirtualGate(process)

    def _work(self, process: Process, client: Client) -> None:
        """Do the work of one thread: a few first tries, and then its turns."""
        plan = self._plan
        if plan.begins:
            for _ in range(FIRST_LOOKS):
                with contextlib.suppress(RelockError):
                    self._turn(process, self._cast.lock(client), timeout=0.0, stay=0.0)
                process.sleep(FIRST_LOOKS_PAUSE)
            process.sleep(plan.begins)
        self.take_turns(process, client)

    def take_turns(self, process: Process, client: Client) -> None:
        """Take the turns of one thread, and after the end of all faults a last one, in which it must get the lock."""
        random, plan = self._world.random, self._plan
        for _ in itertools.count() if plan.moves else range(plan.turns):
            process.sleep(random.expovariate(1.0) * plan.pause)
            if self._is_about_to_end:
                break
            if plan.names:
                self._use_others(client, random.randrange(plan.names))
            lock = self._cast.lock(client, renew=plan.renew)
            with contextlib.suppress(RelockError):
                got = self._turn(process, lock, self._timeout(), random.choice(plan.stays))
                if got and plan.closes and random.random() < plan.closes:
                    self._close(process, client)
            if process in self._referee.ends.closing:
                return
        while not self.is_healed:
            process.sleep(0.3)
        lock = self._cast.lock(client)
        while not (process in self._referee.ends.closing or self._is_served(process, lock)):
            process.sleep(0.1)

    def _close(self, process: Process, client: Any) -> None:
        """Close a client, or end its process, and make another one, as a program that is run again and again."""
        ends = self._referee.ends
        if process in ends.closing or len(ends.closing) == CLOSED_MAX:
            return
        session, has_door = self._cast.client_of(process)._session, process in self._cast.doors
        for referee in self._referee.family.values():
            referee.ends.closes(process, referee.beliefs)
        is_exit = self._plan.threads == 1 and self._world.random.random() < EXIT_PART  # an exit waits for other threads
        self._referee.struck(process.name, "exit" if is_exit else "close", 0.0)
        if is_exit:
            if has_door:
                client.end_run()
            closing._finish_for_exit(session)
        else:
            client.close()
        for referee in self._referee.family.values():
            referee.ends.closed(process, session)
        if is_exit:
            process.crash()
        self.start(self._cast.make_client(f"client-{len(self._cast.processes)}", has_loop=has_door))

    def _timeout(self) -> float:
        """Return the seconds for which the next acquire waits."""
        left = self._plan.ends_at - self._world.now
        return left if left > 0 else self._world.random.choice(self._plan.timeouts)

    @property
    def _is_about_to_end(self) -> bool:
        """Return whether only last turns remain."""
        moves = self._plan.moves
        if moves is not None:
            return self._world.now >= self._referee.calm_at + moves.goes_on
        return self.is_healed and not self._plan.is_calm

    def _use_others(self, client: Client, count: int) -> None:
        """Use so many other locks for a moment."""
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
        if not self._plan.named:
            return self._take(process, lock, timeout, stay)
        turns = self._gates[process]
        turns.acquire(timeout=STEADY_SECONDS)
        try:
            return self._take(process, lock, timeout, stay)
        finally:
            turns.release()

    def _take_lock(self, process: Process, lock: Lock, timeout: float, stay: float) -> bool:
        call = self._referee.called(process, timeout, fair=lock._spec.options.fair)
        belief = take(self._cast, self._calls, self._referee, call, lock)
        if belief is not None:
            self._inside(belief, stay)
        return belief is not None

    def _inside(self, belief: Belief, stay: float) -> None:
        random, process, wide = self._world.random, belief.process, self._plan.wide
        levels, most, chance = 1, wide.levels if wide else 2, 0.6 if wide else 0.3
        try:
            for _ in range(most - 1):
                if random.random() >= chance:
                    break
                levels += self._nest(belief)
                self._referee.counted(belief)
                self._referee.look(belief, levels)
                process.sleep(random.random() * min(stay, 1.0))
            self._stay(belief, stay, levels)
        finally:
            if not (process.is_dead or belief.is_abandoned):
                self._leave(belief, levels)

    def _nest(self, belief: Belief) -> int:
        """Take one more level; return how many were added: none if it was interrupted."""
        begin, before = belief.process.local(), belief.hold.ttl
        lock = self._cast.lock(self._cast.door_of(belief.process)) if self._plan.wide else belief.lock
        try:
            with self._calls.call(actor_of(lock)):
                lock.acquire()
        except Interrupted:
            return 0
        if lock._spec.ttl > before:
            self._referee.lengths.lengthened(belief, begin, lock._spec.ttl)
        return 1

    def _use(self, belief: Belief, wide: Wide) -> None:
        """Extend the hold now and then, or call `ensure` on it."""
        random = self._world.random
        while random.random() < wide.extends:  # also twice in a row: then requests for two leases are under way
            self._extend(belief, random.choice((None, *wide.ttls)))
        if random.random() < wide.extends / 2:
            self._ensure(belief, random.choice((0.0, 0.5, 0.9, 1.0)) * random.choice(wide.ttls))

    def _extend(self, belief: Belief, ttl: float | None) -> None:
        begin = belief.process.local()
        try:
            with self._calls.call(actor_of(belief.lock)):
                said = belief.lock.extend(ttl)
        except QuorumError:
            self._referee.lengths.not_extended(belief, begin)
        except (LockLostError, Interrupted):
            pass
        else:
            self._referee.lengths.extended(belief, begin, ttl, said)

    def _ensure(self, belief: Belief, seconds: float) -> None:
        begin = belief.process.local()
        try:
            with self._calls.call(actor_of(belief.lock)):
                belief.lock.ensure(seconds)
        except LockLostError:
            self._referee.lengths.not_sure(belief, seconds)
        except Interrupted:
            pass
        else:
            self._referee.lengths.ensured(belief, begin, seconds)

    def _stay(self, belief: Belief, stay: float, levels: int) -> None:
        """Stay, and check the hold. A stay without an end is over when the hold is lost, or was renewed for long.

        After the end of all faults the holder stays no longer, because others must have their last turns.
        """
        process, lock = belief.process, belief.lock
        until = process.local() + min(stay, 3 * self._plan.longest)
        while (left := until - process.local()) > 0:
            pause = 0.2 if stay < FOREVER else max(0.001, min(0.2, lock.remaining() / 2))
            process.sleep(min(left, pause))
            self._referee.look(belief, levels)
            self._block(actor_of(lock))
            if self._plan.wide:
                self._use(belief, self._plan.wide)
            if (stay == FOREVER and not lock.owned()) or self._is_about_to_end:
                return

    def _block(self, actor: Actor | None) -> None:
        """Let a loop stand still for longer than masters may be silent, and for less than others wait."""
        if actor is not None and 2 * self._plan.node_timeout <= BLOCKED_SECONDS_MAX:
            actor.block(2 * self._plan.node_timeout)

    def _leave(self, belief: Belief, levels: int) -> None:
        for level in range(levels, 0, -1):
            self._referee.look(belief, level)
            if level == 1:
                self._referee.leaves(belief)
            with contextlib.suppress(RelockError, Interrupted), self._calls.call(actor_of(belief.lock)):
                belief.lock.release()
            self._referee.counted(belief)
            belief.is_released = level == 1
            if level > 1 and self._world.random.random() < 0.3:
                belief.process.sleep(2 * COUNT_SECONDS)
