"""Turns in which callers read and write, one inside the other, with downgrades, and with upgrades, which must fail."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from attrs import define, field

from relock import LockLostError, NotOwnedError, QuorumError, RelockError, UpgradeError
from relock.testing._process import PREEMPTION_SECONDS, Process
from sim.actors import Actor, Interrupted, actor_of
from sim.beliefs import Belief
from sim.calls import Calls
from sim.cast import Cast
from sim.read_write import ReadWriteReferee

FOREVER = float("inf")
READ, WRITE = "read", "write"
STEPS_MAX = 4  # of a holder, before it stays
USE_PART = 0.1  # of a holder's looks, at which it calls `ensure`, or extends


@define(eq=False)
class Held:
    """The two sides of a lock, as one caller has them.

    Attributes:
        locks: the caller's object for each side.
        levels: the caller's levels of each side.
    """

    process: Process
    locks: dict[str, Any]
    levels: Counter[str] = field(factory=Counter)
    beliefs: dict[str, Belief] = field(factory=dict)

    def has(self, side: str) -> bool:
        """Return whether the caller's client says that the caller has a hold of this side, valid or not."""
        hold = self.locks[side]._hold()
        return hold is not None and hold.count > 0

    @property
    def is_abandoned(self) -> bool:
        """Return whether the caller never goes on."""
        return self.process.is_dead or any(belief.is_abandoned for belief in self.beliefs.values())


class ReadWriteTurns:
    """Turns of the threads and tasks of one run.

    Args:
        is_about_to_end: returns whether holders must not stay.
        block: lets the loop of an actor stand still now and then.
    """

    def __init__(
        self,
        referee: ReadWriteReferee,
        cast: Cast,
        calls: Calls,
        is_about_to_end: Callable[[], bool],
        block: Callable[[Actor | None], None],
    ) -> None:
        assert cast.plan.sides is not None
        self._cast = cast
        self._random = cast.world.random
        self._plan = cast.plan
        self._sides = cast.plan.sides
        self._referee = referee
        self._calls = calls
        self._is_about_to_end = is_about_to_end
        self._block = block

    def take(self, process: Process, lock: Any, timeout: float, stay: float) -> bool:
        """Take one side, with `renew` as for `lock`, stay, and leave; return whether the caller got it."""
        rw = self._cast.rwlock(self._cast.door_of(process), renew=lock._spec.options.renew)
        held = Held(process, {READ: rw.read, WRITE: rw.write})
        try:
            if not self._take_side(held, READ if self._random.random() < self._sides.reads else WRITE, timeout):
                return False
            for _ in range(STEPS_MAX):
                if not held.beliefs or self._random.random() >= self._sides.inside:
                    break
                self._step(held)
                self._look(held)
                process.sleep(self._random.random() * min(stay, 1.0))
            self._stay(held, stay)
            return True
        finally:
            if not held.is_abandoned:
                self._leave(held)

    # Taking ---------------------------------------------------------------------------------------------------------

    def _take_side(self, held: Held, side: str, timeout: float) -> bool:
        """Take a first level of one side; return whether the caller got it."""
        referee, process, lock = self._referee, held.process, held.locks[side]
        fair, beside = lock._spec.options.fair, held.beliefs.get(WRITE)
        call = referee.asked(process, timeout, fair=fair, reads=side == READ, beside=beside)
        self._cast.acquiring[process] += 1
        try:
            with self._calls.call(actor_of(lock)):
                got = self._acquire(lock, timeout)
        except Interrupted:
            referee.interrupted(call, self._cast.acquiring[process] - 1, owns=lock.owned())
            return False
        except QuorumError as error:
            referee.failed(call, error)
            raise
        finally:
            self._cast.acquiring[process] -= 1
            referee.over(call)
        hold = lock._hold()
        if got and hold is None:
            referee.violate(f"{process.name} was told that it has the lock, and has no hold")
        if not got or hold is None:
            referee.refused(call)
            return False
        held.beliefs[side], held.levels[side] = referee.granted(lock, hold, call), 1
        return True

    def _acquire(self, lock: Any, timeout: float) -> bool:
        got: bool = (
            lock.acquire(timeout=-1 if timeout == FOREVER else timeout) if timeout else lock.acquire(blocking=False)
        )
        return got

    # Steps inside ---------------------------------------------------------------------------------------------------

    def _step(self, held: Held) -> None:
        """Do something with the sides that a caller has."""
        has_both = len(held.beliefs) == 2
        steps = [self._nest, self._leave_one if sum(held.levels.values()) > 1 else self._nest]
        if WRITE in held.beliefs:
            steps += [self._downgrade, self._downgrade]
        if not has_both:
            steps += [self._take_inside, self._take_inside, self._release_other]
        self._random.choice(steps)(held)

    def _nest(self, held: Held) -> None:
        """Take one more level of a side."""
        side = self._some_side(held)
        lock = held.locks[side]
        with contextlib.suppress(Interrupted):
            with self._calls.call(actor_of(lock)):
                lock.acquire()
            held.levels[side] += 1
        self._referee.counted(held.beliefs[side])

    def _take_inside(self, held: Held) -> None:
        """Read inside the caller's own writing, which never waits; or ask to write while reading, which must fail."""
        timeout = self._random.choice(self._plan.timeouts)
        if WRITE in held.beliefs:
            self._take_side(held, READ, 0.0 if self._random.random() < 0.5 else timeout)
            return
        lock, process = held.locks[WRITE], held.process
        asked_at = self._cast.world.now
        try:
            with self._calls.call(actor_of(lock)):
                self._acquire(lock, timeout)
        except UpgradeError:
            seconds = self._cast.world.now - asked_at
            is_late = seconds > 2 * PREEMPTION_SECONDS and not process.was_paused_since(asked_at)
            if is_late and actor_of(lock) is None and not self._plan.named:
                self._referee.violate(f"{process.name} was told late that it can't write while it reads")
        except Interrupted:
            pass
        else:
            self._referee.violate(f"{process.name} was let to ask to write while it reads")

    def _release_other(self, held: Held) -> None:
        """Release the side that the caller does not have."""
        lock = held.locks[READ if WRITE in held.beliefs else WRITE]
        with contextlib.suppress(NotOwnedError, Interrupted), self._calls.call(actor_of(lock)):
            lock.release()
            self._referee.violate(f"{held.process.name} has released a side that it does not have")

    def _downgrade(self, held: Held) -> None:
        """Become a reader."""
        referee, process, writer = self._referee, held.process, held.beliefs[WRITE]
        left = held.locks[WRITE].remaining()  # for which it tries, if masters are silent
        call = referee.asked(process, left, fair=False, reads=True, beside=writer)
        writer.shares = True
        self._cast.acquiring[process] += 1
        try:
            with self._calls.call(actor_of(writer.lock)):
                held.locks[WRITE].downgrade()
        except Interrupted:
            referee.struck(process.name, "interrupted downgrade", 0.0)
        except QuorumError as error:
            referee.failed(call, error)
        except LockLostError:
            pass
        finally:
            self._cast.acquiring[process] -= 1
            referee.over(call)
            if not held.is_abandoned:
                self._sort_out(held, writer, call)

    def _sort_out(self, held: Held, writer: Belief, call: Any) -> None:
        """Judge what a caller has after a downgrade: it is a writer or a reader, unless its hold was lost."""
        referee, lock = self._referee, held.locks[READ]
        hold, was_lost = lock._hold(), not writer.is_believed()
        levels = hold.count if hold is not None else 0
        if held.has(WRITE) and levels != held.levels[READ]:
            referee.violate(f"{held.process.name} is a writer still, and has {levels} levels as a reader")
        for belief in held.beliefs.values():
            referee.counted(belief)
        if held.has(WRITE):
            writer.shares = False
            return
        wanted = held.levels[READ] + held.levels[WRITE]
        if not was_lost and levels != wanted:
            referee.violate(f"{held.process.name} is no writer, and has {levels} levels as a reader, not {wanted}")
        if READ not in held.beliefs and levels:
            held.beliefs[READ] = referee.granted(lock, hold, call)
        if READ in held.beliefs:
            held.levels[READ] = levels
            referee.counted(held.beliefs[READ])
        self._has_left(held, WRITE)

    # Staying --------------------------------------------------------------------------------------------------------

    def _stay(self, held: Held, stay: float) -> None:
        """Stay, and check the holds. A stay without an end is over when one is lost, or was renewed for long."""
        process = held.process
        until = process.local() + min(stay, 3 * self._plan.longest)
        while held.beliefs and (left := until - process.local()) > 0:
            shortest = min(held.locks[side].remaining() for side in held.beliefs)
            process.sleep(min(left, 0.2 if stay < FOREVER else max(0.001, min(0.2, shortest / 2))))
            self._look(held)
            self._block(actor_of(held.locks[READ]))
            if self._random.random() < USE_PART:
                self._use(held)
            elif self._random.random() < self._sides.inside / 2:
                self._step(held)
            is_lost = not all(held.locks[side].owned() for side in held.beliefs)
            if (stay == FOREVER and is_lost) or self._is_about_to_end():
                return

    def _look(self, held: Held) -> None:
        for side, belief in held.beliefs.items():
            self._referee.look(belief, held.levels[side])

    def _use(self, held: Held) -> None:
        """Extend a hold, or call `ensure` on it."""
        belief = held.beliefs[self._some_side(held)]
        begin = belief.process.local()
        try:
            with self._calls.call(actor_of(belief.lock)):
                if self._random.random() < 0.5:
                    belief.lock.ensure()
                    self._referee.lengths.ensured(belief, begin, 0.0)
                else:
                    self._referee.lengths.extended(belief, begin, None, belief.lock.extend())
        except QuorumError:
            self._referee.lengths.not_extended(belief, begin)
        except (LockLostError, Interrupted):
            pass

    def _some_side(self, held: Held) -> str:
        return self._random.choice(sorted(held.beliefs))

    # Leaving --------------------------------------------------------------------------------------------------------

    def _leave(self, held: Held) -> None:
        """Leave all levels of both sides, in any order."""
        while held.beliefs:
            self._leave_one(held)

    def _leave_one(self, held: Held) -> None:
        """Leave one level of a side. A writer that reads as well becomes a reader by its last release."""
        side = self._some_side(held)
        self._look(held)
        belief = held.beliefs[side]
        if held.levels[side] == 1:
            self._referee.leaves(belief)
        with contextlib.suppress(RelockError, Interrupted), self._calls.call(actor_of(belief.lock)):
            belief.lock.release()
        self._referee.counted(belief)
        held.levels[side] -= 1
        if not held.levels[side]:
            self._is_released(held, side)

    def _has_left(self, held: Held, side: str) -> None:
        self._referee.leaves(held.beliefs[side])
        self._is_released(held, side)

    def _is_released(self, held: Held, side: str) -> None:
        belief = held.beliefs.pop(side)
        belief.is_released = True
        held.levels[side] = 0
        if held.has(side):
            self._referee.violate(f"{held.process.name} has a side that it has released")
