"""Turns in which callers take permits of a semaphore."""

import contextlib
from collections.abc import Callable
from typing import Any

from relock import LockLostError, QuorumError, RelockError
from relock._owner import Owner
from relock.testing._process import Process
from sim.actors import Actor, Interrupted, TaskSemaphore, actor_of
from sim.beliefs import Belief, Call
from sim.calls import Calls
from sim.cast import Cast
from sim.permits import PermitReferee

FOREVER = float("inf")
HELD_MAX = 3  # calls of one caller whose permits it has at the same time
MORE_SECONDS_MAX = 1.0  # for which a caller that has permits waits for more: all may be waiting for each other
USE_PART = 0.1  # of a holder's looks, at which it calls `ensure`, or extends


class PermitTurns:
    """Turns of the threads and tasks of one run.

    Args:
        is_about_to_end: returns whether holders must not stay.
        block: lets the loop of an actor stand still now and then.
    """

    def __init__(
        self,
        referee: PermitReferee,
        cast: Cast,
        calls: Calls,
        is_about_to_end: Callable[[], bool],
        block: Callable[[Actor | None], None],
    ) -> None:
        assert cast.plan.permits is not None
        self._cast = cast
        self._random = cast.world.random
        self._plan = cast.plan
        self._permits = cast.plan.permits
        self._referee = referee
        self._calls = calls
        self._is_about_to_end = is_about_to_end
        self._block = block

    def take(self, process: Process, lock: Any, timeout: float, stay: float) -> bool:
        """Take permits, with `renew` as for `lock`, stay, and release them; return whether the caller got any."""
        renew, held = lock._spec.options.renew, list[Belief]()
        try:
            if not self._take_one(process, held, timeout, renew):
                return False
            while len(held) < HELD_MAX and self._random.random() < self._permits.more:
                process.sleep(self._random.random() * min(stay, 1.0))
                self._take_one(process, held, min(self._random.choice(self._plan.timeouts), MORE_SECONDS_MAX), renew)
            self._stay(process, held, stay)
            return True
        finally:
            if not (process.is_dead or any(belief.is_abandoned for belief in held)):
                self._leave(process, held)

    # Taking ---------------------------------------------------------------------------------------------------------

    def _take_one(self, process: Process, held: list[Belief], timeout: float, renew: bool) -> bool:
        """Make one call, and add a belief to those that the caller has; return whether it got permits."""
        referee = self._referee
        semaphore = self._cast.semaphore(self._cast.door_of(process), renew=renew)
        permits = self._number(semaphore.limit)
        fair = semaphore._spec.options.fair
        call = referee.asked(process, timeout, permits, semaphore.limit, fair=fair)
        self._cast.acquiring[process] += 1
        try:
            with self._calls.call(actor_of(semaphore)):
                permit = self._acquire(semaphore, permits, timeout)
        except Interrupted:
            owns = self._has_others(process, semaphore, held)
            referee.interrupted(call, self._cast.acquiring[process] - 1, owns=owns)
            return False
        except QuorumError as error:
            referee.failed(call, error)
            raise
        finally:
            self._cast.acquiring[process] -= 1
            referee.over(call)
        return self._judge(call, held, permit)

    def _judge(self, call: Call, held: list[Belief], permit: Any) -> bool:
        hold = permit and permit._hold()
        if permit is not None and hold is None:
            self._referee.violate(f"{call.process.name} was told that it has permits, and has no hold")
        if hold is None:
            self._referee.refused(call)
            return False
        held.append(self._referee.granted(permit, hold, call))
        if permit.permits != call.permits or permit.slot != self._slot(held[-1]):
            self._referee.violate(f"{call.process.name} has {permit!r}, and asked for {call.permits}")
        return True

    def _number(self, limit: int) -> int:
        """Return how many permits to ask for: with several masters, one."""
        most = min(self._permits.most, limit)
        return self._random.randint(1, most) if self._plan.masters == 1 else 1

    def _acquire(self, semaphore: Any, permits: int, timeout: float) -> Any:
        take = semaphore.take if isinstance(semaphore, TaskSemaphore) else semaphore.acquire
        limit = -1.0 if timeout == FOREVER else timeout
        return take(permits, timeout=limit) if timeout else take(permits, blocking=False)

    def _slot(self, belief: Belief) -> int | None:
        """Return the slot of a permit; None for several, and once they are lost."""
        return belief.hold.kept if belief.lock.permits == 1 else None

    def _has_others(self, process: Process, semaphore: Any, held: list[Belief]) -> bool:
        """Return whether the caller's client says that the caller has more than it `held`."""
        session, actor = self._cast.client_of(process)._session, actor_of(semaphore)
        who: Owner | None = session.platform.who() if actor is None else actor.who
        known = [belief.hold for belief in held]
        holds = [hold for hold in session.holds.copy().values() if hold.keys == self._referee.keys and not hold.loss]
        liveness = None if who is None or self._plan.named else who.liveness
        return any(hold.liveness is liveness and hold not in known for hold in holds)

    # Staying --------------------------------------------------------------------------------------------------------

    def _stay(self, process: Process, held: list[Belief], stay: float) -> None:
        """Stay, and check the holds. A stay without an end is over when one is lost, or all were renewed for long."""
        until = process.local() + min(stay, 3 * self._plan.longest)
        while (left := until - process.local()) > 0:
            shortest = min(belief.lock.remaining() for belief in held)
            process.sleep(min(left, 0.2 if stay < FOREVER else max(0.001, min(0.2, shortest / 2))))
            for belief in held:
                self._referee.look(belief, 1)
            self._block(actor_of(held[0].lock))
            if self._random.random() < USE_PART:
                self._use(self._random.choice(held))
            if (stay == FOREVER and not all(belief.lock.owned() for belief in held)) or self._is_about_to_end():
                return

    def _use(self, belief: Belief) -> None:
        """Extend a hold, or call `ensure` on it."""
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

    # Leaving --------------------------------------------------------------------------------------------------------

    def _leave(self, process: Process, held: list[Belief]) -> None:
        """Release all permits, in any order."""
        while held:
            belief = held.pop(self._random.randrange(len(held)))
            self._referee.look(belief, 1)
            self._referee.leaves(belief)
            with contextlib.suppress(RelockError, Interrupted), self._calls.call(actor_of(belief.lock)):
                belief.lock.release()
            belief.is_released = True
            hold = belief.lock._hold()
            if hold is not None and hold.count > 0:
                self._referee.violate(f"{process.name} has a permit that it has released")
