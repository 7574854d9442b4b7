"""Turns in which callers take locks in any order, one inside the other, or some of them at once, or as readers."""

from typing import Any

from relock import DeadlockError, RelockError
from relock._keys import READ
from relock._owner import owner_key
from relock.testing._process import Process
from sim.actors import TaskLock, actor_of
from sim.asking import FOREVER
from sim.beliefs import Call
from sim.holders import Held
from sim.plan import Orders
from sim.rings import OrdersReferee, Rings
from sim.several_turns import SeveralTurns

MOST = 3  # locks of a caller
GOES_ON_PART = 0.4  # of the callers that do not get a lock, and keep those that they have
LONG_SECONDS = 14.0  # of a wait that nothing else may end; longer than a ring may stand


class OrderTurns(SeveralTurns):
    """Turns in which a caller may run into a deadlock."""

    _progress: Rings
    again_part = 0.0

    @property
    def _orders(self) -> Orders:
        assert self._plan.orders is not None
        return self._plan.orders

    def _wanted(self, names: tuple[str, ...]) -> list[str]:
        return self._random.sample(names, self._random.randint(2, min(MOST, len(names))))

    def _parts(self, names: list[str]) -> list[list[str]]:
        """Return the names in parts, each of which is taken by one call, in an order that is left to chance."""
        if len(names) > 2 and self._random.random() < self._several.whole:
            return [names[:1], names[1:]] if self._random.random() < 0.5 else [names[:2], names[2:]]
        return [[name] for name in names]

    def _take_part(self, held: Held, fresh: list[str], timeout: float, renew: bool) -> bool:
        """Take these locks; return whether the caller has them now, or goes on without them."""
        mode = self._random.choice(self._orders.modes)
        options: dict[str, Any] = {"renew": renew, "deadlock": mode}
        for name in fresh:
            held.locks[name] = self._cast.lock(self._cast.door_of(held.process), name=name, **options)
        if len(fresh) == 1 and self._random.random() < self._orders.sides:
            rw = self._cast.rwlock_of(self._cast.door_of(held.process), fresh[0], **options)
            held.locks[fresh[0]] = self._random.choice([rw.read, rw.write])
        patience = timeout and self._patience(held, fresh[0], timeout)
        try:
            got = super()._take_part(held, fresh, patience, renew)
            goes_on = held.beliefs and timeout < FOREVER and self._random.random() < GOES_ON_PART
            return got or bool(goes_on)
        finally:
            caller = self._caller(held.process, held.locks[fresh[0]])
            if caller is not None and not held.process.is_dead:
                self._progress.returned(caller, held.beliefs.values())

    def _patience(self, held: Held, name: str, timeout: float) -> float:
        """Return the timeout of a wait: short, longer than others wait, or none if a deadlock is sure to end it."""
        random, after = self._random, self._orders.after
        if random.random() < self._orders.short:
            return random.choice([0.5 * after, after, random.uniform(after, after + 2.0)])
        if not held.beliefs and timeout < FOREVER:
            return timeout
        is_sure = self._orders.modes == ("raise",) and not (self._orders.sides or self._plan.named)
        if is_sure and actor_of(held.locks[name]) is None:
            return FOREVER
        return LONG_SECONDS if not self._plan.named and random.random() < 0.5 else after + 2.0

    def _door(self, held: Held, names: list[str], renew: bool) -> Any:
        if len(names) == 1:
            return held.locks[names[0]]
        mode = held.locks[names[0]]._spec.options.deadlock
        return self._cast.lock_all(self._cast.door_of(held.process), names, renew=renew, deadlock=mode)

    def _called(self, held: Held, name: str, timeout: float) -> Call:
        referee = self._judge_of(name)
        assert isinstance(referee, OrdersReferee)
        reads = held.locks[name]._spec.keys.kind == READ
        return referee.asked(held.process, timeout, fair=False, reads=reads)

    def _failed(self, held: Held, call: Call, name: str, error: RelockError) -> None:
        caller = self._caller(held.process, held.locks[name])
        if isinstance(error, DeadlockError) and caller is not None:
            self._progress.raised(call, caller, error)

    def _caller(self, process: Process, lock: Any) -> Any:
        """Return the caller as the judge knows it; None for an actor that has made no call yet."""
        if isinstance(lock, TaskLock) and not self._plan.named:
            return lock.actor.who and (process, owner_key(lock.actor.who.key))
        return process, owner_key(lock._who().key)
