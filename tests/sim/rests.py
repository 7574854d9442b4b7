"""Rests: the time after a release for which the lock must stay taken."""

from collections.abc import Callable

from attrs import define, field

from relock.testing._process import Process
from relock.testing._world import World
from sim.beliefs import Belief
from sim.idle import Idle

LATE_PART = 0.02  # of `at_least`, by which a rest may be longer, because clocks run at different rates
LATE_SECONDS = 0.2  # by which it may be longer: a release that was interrupted is carried out a moment later


@define
class Rests:
    """Rests of one lock.

    Attributes:
        accuse: is called with each violation.
    """

    world: World
    idle: Idle
    accuse: Callable[[str], None]
    _rests: list[tuple[Belief, float]] = field(factory=list)

    def released(self, belief: Belief) -> None:
        """Note until when the lock rests after a hold that is about to be released."""
        at_least = belief.hold.at_least
        until = belief.process.true(belief.hold.granted_at) + at_least
        if at_least and until > self.world.now:
            self._rests.append((belief, until))
            self.idle.left([until - self.world.now + LATE_PART * at_least + LATE_SECONDS])

    def granted(self, process: Process) -> None:
        """Check that the lock does not rest, as `process` has got it; an acquire returns later than it is granted.

        There may be no rest if the hold was lost, or if the process crashed in its release, which may have reached no
        master.
        """
        self._rests = [one for one in self._rests if one[1] > self.world.now]
        for belief, _ in self._rests:
            if belief.hold.loss is None and (belief.is_released or not belief.process.is_dead):
                self.accuse(f"{process.name} got the lock though it rests after {belief.process.name}")
