"""Turns in which callers take permits of a semaphore."""

from functools import partial
from typing import Any

from relock._owner import Owner
from relock.testing._process import Process
from sim.actors import Interrupted, TaskSemaphore, actor_of
from sim.asking import asking, waiting
from sim.beliefs import Call
from sim.holders import Held, HolderTurns
from sim.permits import PermitReferee
from sim.plan import Permits

HELD_MAX = 3  # calls of one caller whose permits it has at the same time
MORE_SECONDS_MAX = 1.0  # for which a caller that has permits waits for more: all may be waiting for each other


class PermitTurns(HolderTurns):
    """Turns in which a caller has permits, each by a call of its own."""

    _referee: PermitReferee

    @property
    def _permits(self) -> Permits:
        assert self._plan.permits is not None
        return self._plan.permits

    def take(self, process: Process, lock: Any, timeout: float, stay: float) -> bool:
        """Take permits, with `renew` as for `lock`, stay, and release them; return whether the caller got any."""
        renew, held = lock._spec.options.renew, Held(process)
        try:
            if not self._take_one(held, timeout, renew):
                return False
            while len(held.beliefs) < HELD_MAX and self._random.random() < self._permits.more:
                process.sleep(self._random.random() * min(stay, 1.0))
                self._take_one(held, min(self._random.choice(self._plan.timeouts), MORE_SECONDS_MAX), renew)
            self._stay(held, stay)
            return True
        finally:
            if not held.is_abandoned:
                self._leave(held)

    # Taking ---------------------------------------------------------------------------------------------------------

    def _take_one(self, held: Held, timeout: float, renew: bool) -> bool:
        """Make one call, and add a belief to those that the caller has; return whether it got permits."""
        process, referee = held.process, self._referee
        semaphore = self._cast.semaphore(self._cast.door_of(process), renew=renew)
        permits = self._number(semaphore.limit)
        fair = semaphore._spec.options.fair
        call = referee.asked(process, timeout, permits, semaphore.limit, fair=fair)
        owns = partial(self._has_others, held, semaphore)
        take = semaphore.take if isinstance(semaphore, TaskSemaphore) else semaphore.acquire
        try:
            with asking(self._cast, self._calls, referee, call, semaphore, owns=owns):
                permit = take(permits, **waiting(timeout))
        except Interrupted:
            return False
        return self._judge(call, held, permit)

    def _judge(self, call: Call, held: Held, permit: Any) -> bool:
        hold = permit and permit._hold()
        if permit is not None and hold is None:
            self._referee.violate(f"{call.process.name} was told that it has permits, and has no hold")
        if hold is None:
            self._referee.refused(call)
            return False
        held.beliefs[hold.owner], held.levels[hold.owner] = self._referee.granted(permit, hold, call), 1
        slot = hold.kept if permit.permits == 1 else None  # none for several, and once they are lost
        if permit.permits != call.permits or permit.slot != slot:
            self._referee.violate(f"{call.process.name} has {permit!r}, and asked for {call.permits}")
        return True

    def _number(self, limit: int) -> int:
        """Return how many permits to ask for: with several masters, one."""
        most = min(self._permits.most, limit)
        return self._random.randint(1, most) if self._plan.masters == 1 else 1

    def _has_others(self, held: Held, semaphore: Any) -> bool:
        """Return whether the caller's client says that the caller has more than it `held`."""
        session, actor = self._cast.client_of(held.process)._session, actor_of(semaphore)
        who: Owner | None = session.platform.who() if actor is None else actor.who
        known = [belief.hold for belief in held.beliefs.values()]
        holds = [hold for hold in session.holds.copy().values() if hold.keys == self._referee.keys and not hold.loss]
        liveness = None if who is None or self._plan.named else who.liveness
        return any(hold.liveness is liveness and hold not in known for hold in holds)

    # Leaving --------------------------------------------------------------------------------------------------------

    def _leave(self, held: Held) -> None:
        """Release all permits, in any order."""
        while held.beliefs:
            owner = self._some(held)
            belief = held.beliefs[owner]
            self._referee.look(belief, 1)
            self._referee.leaves(belief)
            self._release(belief.lock)
            self._is_released(held, owner, belief.lock)
