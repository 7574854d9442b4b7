"""Turns in which callers take several locks: by `lock_all`, one inside the other, or both."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from relock import LockLostError, QuorumError, RelockError
from relock.testing._process import Process
from sim.actors import Actor, Interrupted, actor_of
from sim.asking import waiting
from sim.beliefs import Call
from sim.calls import Calls
from sim.cast import Cast
from sim.holders import Held, HolderTurns
from sim.several import Progress, SeveralReferee

AGAIN_PART = 0.6  # of the calls of a caller that has locks, which name some of these as well
BETWEEN_PART = 1.5  # of a lease, for which a caller that has locks waits at most until it takes others


class SeveralTurns(HolderTurns):
    """Turns in which a caller has some locks, by one call or by several."""

    again_part = AGAIN_PART
    use_part = 0.2

    def __init__(
        self,
        progress: Progress,
        cast: Cast,
        calls: Calls,
        is_about_to_end: Callable[[], bool],
        block: Callable[[Actor | None], None],
    ) -> None:
        assert cast.plan.several is not None
        super().__init__(progress.first, cast, calls, is_about_to_end, block)
        self._progress = progress
        self._several = cast.plan.several

    def take(self, process: Process, lock: Any, timeout: float, stay: float) -> bool:
        """Take some locks, with the options of `lock`, stay, and leave them; return whether the caller got all."""
        client, names, renew = self._cast.door_of(process), self._several.names, lock._spec.options.renew
        held = Held(process, {name: self._cast.lock(client, renew=renew, name=name) for name in names})
        wanted = self._wanted(names)
        try:
            for part in self._parts(wanted):
                if held.taken:
                    process.sleep(self._random.random() * min(stay, BETWEEN_PART * self._plan.longest))
                if not self._take_part(held, part, timeout, renew):
                    return False
            self._stay(held, stay)
            return True
        finally:
            if not held.is_abandoned:
                self._leave(held)

    def _wanted(self, names: tuple[str, ...]) -> list[str]:
        return sorted(self._random.sample(names, self._random.randint(1, len(names))))

    def _parts(self, names: list[str]) -> list[list[str]]:
        """Return the names in parts, each of which is taken by one call, in the order of the names."""
        chance, random = self._several, self._random
        if random.random() < chance.whole:
            return [names]
        if random.random() < chance.alone:
            return [[name] for name in names]
        split = random.randint(0, len(names))
        return [part for part in (names[:split], names[split:]) if part]

    # Taking ---------------------------------------------------------------------------------------------------------

    def _take_part(self, held: Held, fresh: list[str], timeout: float, renew: bool) -> bool:
        """Take these locks, perhaps with one more level of others; return whether the caller has them now."""
        process, names = held.process, [*fresh]
        if held.taken and self._random.random() < self.again_part:
            names += self._random.sample(sorted(held.beliefs), self._random.randint(1, len(held.beliefs)))
        door = self._door(held, names, renew)
        calls = {name: self._called(held, name, timeout) for name in fresh}
        want = self._progress.begins(process, [*held.beliefs, *fresh], held.beliefs.values()) if timeout else None
        self._cast.acquiring[process] += 1
        got = False
        try:
            with self._calls.call(actor_of(door)):
                got = door.acquire(**waiting(timeout))
        except Interrupted:
            for name, call in calls.items():
                owns = held.locks[name].owned()
                self._judge_of(name).interrupted(call, self._cast.acquiring[process] - 1, owns=owns)
        except QuorumError as error:
            self._judge_of(fresh[0]).failed(calls[fresh[0]], error)
        except LockLostError as error:
            since = min([belief.since for belief in held.beliefs.values()], default=calls[fresh[0]].called_at)
            self._judge_of(fresh[0]).lost_some(calls[fresh[0]], since, error)
        except RelockError as error:
            self._failed(held, calls[fresh[0]], fresh[0], error)
        else:
            self._judge_of(fresh[0]).check_timeout(calls[fresh[0]])
        finally:
            self._cast.acquiring[process] -= 1
            for name, call in calls.items():
                self._judge_of(name).over(call)
            if want is not None:
                self._progress.waiting.pop(want, None)
        if got:
            self._has_got(held, door, names, calls)
        else:
            self._has_not_got(held, fresh, names)
        return got

    def _called(self, held: Held, name: str, timeout: float) -> Call:
        return self._judge_of(name).called(held.process, timeout, fair=self._plan.fair)

    def _failed(self, held: Held, call: Call, name: str, error: RelockError) -> None:
        """Judge another error of a call for some locks, of which `name` is one: its client is closed."""

    def _door(self, held: Held, names: list[str], renew: bool) -> Any:
        """Return an object that takes these locks; for a single one, it may be a plain lock."""
        if len(names) == 1 and self._random.random() < 0.5:
            return held.locks[names[0]]
        shuffled = self._random.sample(names, len(names))
        return self._cast.lock_all(self._cast.door_of(held.process), shuffled, renew=renew)

    def _has_got(self, held: Held, door: Any, names: list[str], calls: dict[str, Call]) -> None:
        """Judge a call that took all its locks."""
        holds = {name: held.locks[name]._hold() for name in names}
        missing = [name for name in names if not held.has(name)]
        if missing:
            self._referee.violate(f"{held.process.name} was told that it has {names}, and has no hold of {missing}")
            return
        last_grant = max(hold.granted_at for hold in holds.values())
        was_set = self._referee.clocks.steps or held.process.stood_still(0.0)
        if any(hold.deadline <= last_grant for hold in holds.values()) and not was_set:
            self._referee.violate(f"{held.process.name} was told that it has {names}, and never had all at once")
        held.taken.append((door, names))
        for name in names:
            held.levels[name] += 1
            if name in calls:
                held.beliefs[name] = self._judge_of(name).granted(held.locks[name], holds[name], calls[name])
            self._judge_of(name).counted(held.beliefs[name])
        self._look(held)

    def _has_not_got(self, held: Held, fresh: list[str], names: list[str]) -> None:
        """Judge a call that took none of its locks: what the caller had before, it has still, and nothing more.

        If its client is being closed, the thread that closes it gives back what the call had, a moment later.
        """
        for name in fresh:
            self._judge_of(name).idle.freed(held.process)
            if held.has(name) and not held.locks[name]._client._session.closed:
                self._referee.violate(f"{held.process.name} has {name} by a call that did not take all of {names}")
        for name in names:
            if name in held.beliefs:
                self._judge_of(name).counted(held.beliefs[name])
        self._look(held)

    # Staying --------------------------------------------------------------------------------------------------------

    def _look(self, held: Held) -> None:
        """Judge all holds of a caller, and what the objects say by which it took them."""
        super()._look(held)
        for door, names in held.taken:
            self._judge(held, names, f"owned() of {names}", door.owned)

    def _judge(self, held: Held, names: list[str], what: str, ask: Callable[[], bool]) -> None:
        """Judge an answer that says whether the caller has all these locks."""
        beliefs = [held.beliefs[name] for name in names]
        had_all = all(belief.is_believed() for belief in beliefs)
        said = ask()
        has_all = all(belief.is_believed() for belief in beliefs)
        is_wrong = not had_all if said else has_all
        if is_wrong and not any(belief.is_over for belief in beliefs):
            self._referee.violate(f"{held.process.name} was told {said} by {what}")

    def _use(self, held: Held) -> None:
        """Call `ensure` on the holds that one call took, or extend them."""
        door, names = self._random.choice(held.taken)
        called = door.ensure if self._random.random() < 0.5 else door.extend
        with contextlib.suppress(Interrupted, QuorumError):
            self._judge(held, names, f"ensure or extend of {names}", partial(self._confirms, called, door))

    def _confirms(self, called: Callable[[], object], door: Any) -> bool:
        try:
            with self._calls.call(actor_of(door)):
                called()
        except LockLostError:
            return False
        return True

    # Leaving --------------------------------------------------------------------------------------------------------

    def _leave(self, held: Held) -> None:
        """Leave all, the last one that was taken first; each release leaves all its locks, whatever becomes of one."""
        while held.taken:
            self._look(held)
            door, names = held.taken.pop()
            held.levels.subtract(names)
            left = {name: held.beliefs[name] for name in names if not held.levels[name]}
            for name, belief in left.items():
                self._judge_of(name).leaves(belief)
            self._release(door)
            for name in names:
                self._judge_of(name).counted(held.beliefs[name])
                if name in left:
                    self._is_released(held, name, held.locks[name])

    def _judge_of(self, name: str) -> SeveralReferee:
        referee = self._referee.family[name]
        assert isinstance(referee, SeveralReferee)
        return referee
