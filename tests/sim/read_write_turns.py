"""Turns in which callers read and write, one inside the other, with downgrades, and with upgrades, which must fail."""

import contextlib
from typing import Any

from relock import LockLostError, NotOwnedError, QuorumError, UpgradeError
from relock.testing._process import PREEMPTION_SECONDS, Process
from sim.actors import Interrupted, actor_of
from sim.asking import FOREVER, take, waiting
from sim.beliefs import Belief
from sim.holders import Held, HolderTurns
from sim.plan import Sides
from sim.read_write import ReadWriteReferee

READ, WRITE = "read", "write"
STEPS_MAX = 4  # of a holder, before it stays


class ReadWriteTurns(HolderTurns):
    """Turns in which a caller has one side of a lock, or both."""

    _referee: ReadWriteReferee

    @property
    def _sides(self) -> Sides:
        assert self._plan.sides is not None
        return self._plan.sides

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
        lock = held.locks[side]
        fair, beside = lock._spec.options.fair, held.beliefs.get(WRITE)
        call = self._referee.asked(held.process, timeout, fair=fair, reads=side == READ, beside=beside)
        belief = take(self._cast, self._calls, self._referee, call, lock)
        if belief is None:
            return False
        held.beliefs[side], held.levels[side] = belief, 1
        return True

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
        side = self._some(held)
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
                lock.acquire(**waiting(timeout))
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

    def _act(self, held: Held) -> None:
        """Use a hold now and then, or do one more step."""
        if self._random.random() < self.use_part:
            self._use(held)
        elif self._random.random() < self._sides.inside / 2:
            self._step(held)

    def _is_over(self, held: Held, stay: float) -> bool:
        has_all = self._has_all(held)  # asked in every stay: a call that is interrupted counts looks at the clock
        return stay == FOREVER and not has_all

    def _some(self, held: Held) -> Any:
        return self._random.choice(sorted(held.beliefs))

    # Leaving --------------------------------------------------------------------------------------------------------

    def _leave(self, held: Held) -> None:
        """Leave all levels of both sides, in any order."""
        while held.beliefs:
            self._leave_one(held)

    def _leave_one(self, held: Held) -> None:
        """Leave one level of a side. A writer that reads as well becomes a reader by its last release."""
        side = self._some(held)
        self._look(held)
        belief = held.beliefs[side]
        if held.levels[side] == 1:
            self._referee.leaves(belief)
        self._release(belief.lock)
        self._referee.counted(belief)
        held.levels[side] -= 1
        if not held.levels[side]:
            self._is_released(held, side, belief.lock)

    def _has_left(self, held: Held, side: str) -> None:
        self._referee.leaves(held.beliefs[side])
        self._is_released(held, side, held.locks[side])
