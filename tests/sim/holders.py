"""Turns in which a caller may have several holds at a time: what these turns have in common."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from attrs import define, field

from relock import LockLostError, QuorumError, RelockError
from relock.testing._process import Process
from sim.actors import Actor, Interrupted, actor_of
from sim.asking import FOREVER
from sim.beliefs import Belief
from sim.calls import Calls
from sim.cast import Cast
from sim.referee import Referee

USE_PART = 0.1  # of a holder's looks, at which it calls `ensure`, or extends


def has_hold(lock: Any) -> bool:
    """Return whether the caller's client says that the caller has this lock or permit, valid or not."""
    hold = lock._hold()
    return hold is not None and hold.count > 0


@define(eq=False)
class Held:
    """Holds of one caller.

    Attributes:
        locks: the caller's object for each name, or for each side of a lock.
        levels: the caller's levels of each name, side or permit.
        beliefs: the caller's belief in each of these.
        taken: the objects by which it took several names, and these names.
    """

    process: Process
    locks: dict[str, Any] = field(factory=dict)
    levels: Counter[Any] = field(factory=Counter)
    beliefs: dict[Any, Belief] = field(factory=dict)
    taken: list[tuple[Any, list[str]]] = field(factory=list)

    def has(self, name: str) -> bool:
        """Return whether the caller's client says that the caller has this name or side, valid or not."""
        return has_hold(self.locks[name])

    @property
    def is_abandoned(self) -> bool:
        """Return whether the caller never goes on."""
        return self.process.is_dead or any(belief.is_abandoned for belief in self.beliefs.values())


class HolderTurns:
    """Turns of the threads and tasks of one run.

    Args:
        is_about_to_end: returns whether holders must not stay.
        block: lets the loop of an actor stand still now and then.
    """

    use_part = USE_PART

    def __init__(
        self,
        referee: Referee,
        cast: Cast,
        calls: Calls,
        is_about_to_end: Callable[[], bool],
        block: Callable[[Actor | None], None],
    ) -> None:
        self._referee = referee
        self._cast = cast
        self._random = cast.world.random
        self._plan = cast.plan
        self._calls = calls
        self._is_about_to_end = is_about_to_end
        self._block = block

    def _judge_of(self, _name: Any) -> Referee:
        """Return the referee of this name, side or permit."""
        return self._referee

    def _stay(self, held: Held, stay: float) -> None:
        """Stay, and check the holds. A stay without an end is over when one is lost, or all were renewed for long."""
        process = held.process
        until = process.local() + min(stay, 3 * self._plan.longest)
        while held.beliefs and (left := until - process.local()) > 0:
            locks = [belief.lock for belief in held.beliefs.values()]
            shortest = min(lock.remaining() for lock in locks)
            process.sleep(min(left, 0.2 if stay < FOREVER else max(0.001, min(0.2, shortest / 2))))
            self._look(held)
            self._block(actor_of(locks[0]))
            self._act(held)
            if self._is_over(held, stay) or self._is_about_to_end():
                return

    def _look(self, held: Held) -> None:
        """Judge all holds of a caller."""
        for name, belief in held.beliefs.items():
            self._judge_of(name).look(belief, held.levels[name])

    def _act(self, held: Held) -> None:
        """Use a hold now and then."""
        if self._random.random() < self.use_part:
            self._use(held)

    def _is_over(self, held: Held, stay: float) -> bool:
        """Return whether a stay without an end is over."""
        return stay == FOREVER and not self._has_all(held)

    def _has_all(self, held: Held) -> bool:
        """Return whether the caller's client says that all its holds are valid."""
        return all(belief.lock.owned() for belief in held.beliefs.values())

    def _use(self, held: Held) -> None:
        """Extend a hold, or call `ensure` on it."""
        belief = held.beliefs[self._some(held)]
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

    def _some(self, held: Held) -> Any:
        """Return one of the names, sides or permits that a caller has."""
        return self._random.choice(list(held.beliefs))

    def _release(self, lock: Any) -> None:
        """Release a lock or a permit, whatever becomes of the call."""
        with contextlib.suppress(RelockError, Interrupted), self._calls.call(actor_of(lock)):
            lock.release()

    def _is_released(self, held: Held, name: Any, lock: Any) -> None:
        """Note that the last level of a name, side or permit was released, and judge what the client says of it."""
        held.beliefs.pop(name).is_released = True
        held.levels[name] = 0
        if has_hold(lock):
            self._referee.violate(f"{held.process.name} has {name}, which it has released")
