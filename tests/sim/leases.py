"""Lengths of leases: the referee judges them in the wider runs (`sim.plan.Wide`), as long as it may.

After a clock was set, a master has forgotten, or an operator has ended a hold, leases may end before their time, and
their owners learn of it later. From then on the referee judges no lease in that run.
"""

from collections.abc import Sequence

from attrs import define, field

from relock._core.hold import Hold
from relock._core.quorum import drift_of
from relock._runtime.masters.master import RETRY_SECONDS_MAX
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.plan import Plan

LOOK_SECONDS = 0.1  # more than the referee takes to see a new deadline
ROUNDING_SECONDS = 1e-3  # a master's answer to PTTL is in whole milliseconds


@define
class Leases:
    """Leases, as the referee knows them.

    Attributes:
        hindered_until: the true time at which the last fault is over.
    """

    world: World
    servers: Sequence[Server]
    plan: Plan
    hindered_until: float = float("-inf")
    _seen: dict[Hold, tuple[float, float]] = field(factory=dict)  # a deadline, and the local time when it was new

    def hindered(self, seconds: float) -> None:
        """Note a fault that lasts for so many seconds."""
        self.hindered_until = max(self.hindered_until, self.world.now + max(0.0, seconds))

    def see(self, process: Process, hold: Hold) -> None:
        """Note the deadline of a hold in which its owner believes."""
        known = self._seen.get(hold)
        if known is None or known[0] != hold.deadline:
            self._seen[hold] = hold.deadline, process.local()

    def lacks(self, hold: Hold, begin: float, ttl: float) -> float:
        """Return the seconds by which a hold ends too early, if its lease lasts `ttl` from the local time `begin`."""
        return begin + ttl - drift_of(ttl, hold.spec.drift_factor) - hold.deadline

    def is_overshot(self, process: Process, hold: Hold) -> bool:
        """Return whether a hold's owner counts on it for longer than a quorum of the masters keeps it."""
        until = process.true(hold.deadline)
        return sum(self._end(server, hold) >= until for server in self.servers) < hold.quorum

    def _end(self, server: Server, hold: Hold) -> float:
        """Return the true time at which a master's lease of a hold ends."""
        if hold.owner not in (server.master.contents(hold.keys.lock) or ()):
            return float("-inf")
        left_ms: int = server.master.read("PTTL", hold.keys.lock)
        return self.world.now + left_ms / 1000 / server.rate + ROUNDING_SECONDS

    def was_left_alone(self, process: Process, hold: Hold) -> bool:
        """Return whether a hold has ended though there was time to renew it, and no fault was in the way.

        After any failure, the watchdog tries again after a tenth of the present lease, and at the latest after a third.
        It may have to open a connection first. The length of that lease counts from when the referee first saw its
        deadline, and the client's own account does not count.
        """
        deadline, seen_at = self._seen.get(hold, (hold.deadline, hold.granted_at))
        wanted = (deadline - seen_at) / 3 + 2 * hold.spec.node_timeout + RETRY_SECONDS_MAX + LOOK_SECONDS
        return self.plan.is_quiet and process.true(deadline) - self.hindered_until > wanted / process.rate
