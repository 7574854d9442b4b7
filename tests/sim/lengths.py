"""Judge of what owners ask and are told of their leases: extensions, and how long a hold is sure to last."""

from typing import TYPE_CHECKING

from sim.beliefs import Belief
from sim.leases import ROUNDING_SECONDS

if TYPE_CHECKING:
    from sim.referee import Referee


class Lengths:
    """Judge of the lengths of leases, for the referee of one lock."""

    def __init__(self, referee: "Referee") -> None:
        self._referee = referee

    def lengthened(self, belief: Belief, begin: float, ttl: float) -> None:
        """Judge a lock with a longer lease that took one more level, from the local time `begin` on."""
        waited = self._waited_in_vain(belief, begin)
        if self._referee.is_calm and not waited and belief.is_believed() and self._referee.is_undisturbed(belief):
            self._check_length(belief, begin, ttl)

    def extended(self, belief: Belief, begin: float, ttl: float | None, said: float) -> None:
        """Judge an extension of a hold, from the local time `begin` on; the answer was that `said` seconds remain."""
        if self._referee.is_undisturbed(belief):
            self._check_length(belief, begin, belief.hold.ttl if ttl is None else ttl)
        if said > belief.hold.deadline - begin and self._referee.is_undisturbed(belief):
            self._referee.violate(f"{belief.process.name} was told that {said:.3f} s remain, which is more than do")

    def not_extended(self, belief: Belief, begin: float) -> None:
        """Judge an extension that failed: no quorum has answered since the local time `begin`."""
        if self._referee.is_calm and not self._waited_in_vain(belief, begin):
            self._referee.violate(f"{belief.process.name} could not extend its hold though all is well")

    def ensured(self, belief: Belief, begin: float, seconds: float) -> None:
        """Judge the answer, after the local time `begin`, that a hold is valid for so long."""
        if belief.hold.deadline - begin < seconds and self._referee.is_undisturbed(belief):
            self._referee.violate(
                f"{belief.process.name} was told that its hold is sure for {seconds:.3f} s, which it is not"
            )

    def not_sure(self, belief: Belief, seconds: float) -> None:
        """Judge the answer that a hold is not valid for so long."""
        if belief.hold.remaining(belief.process.local()) >= max(seconds, ROUNDING_SECONDS):
            self._referee.violate(
                f"{belief.process.name} was told that its hold is not sure for {seconds:.3f} s, which it is"
            )

    def _waited_in_vain(self, belief: Belief, begin: float) -> bool:
        """Return whether a request of the local time `begin` has waited for an answer as long as relock ever does.

        Even when all is well, about one answer in a million takes longer than that.
        """
        return belief.process.local() - begin >= belief.hold.spec.node_timeout - ROUNDING_SECONDS

    def _check_length(self, belief: Belief, begin: float, ttl: float) -> None:
        if (lacks := self._referee.leases.lacks(belief.hold, begin, ttl)) > 0:
            self._referee.violate(
                f"{belief.process.name} asked for a lease of {ttl} s, and has it for {lacks:.3f} s less"
            )
