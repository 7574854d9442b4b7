"""The time for which the lock is free though a call waits for it: when all is well, it must be short."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from attrs import define, field

from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.hold import Hold
from relock._core.lock_spec import HANDED_LEASE_SECONDS
from relock._core.quorum import NEVER
from relock._keys import LockKeys
from relock._runtime.session.session import Session
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim import leftovers
from sim.beliefs import Belief, Call
from sim.plan import Plan
from sim.stuck import Stuck

EXPIRY_SECONDS = 0.1  # more than the time from D until the leases have ended on all masters
EXPIRY_PART = 0.02  # of a long lease, which is added to that
HAND_OFF_SECONDS = 0.5  # from the end of a hold to the next grant, when all is well and a thread waits
UNHEARD_SECONDS = 0.05  # for which releasers may give the lock to a process that has just crashed


class Wait(NamedTuple):
    """A call that waits though the lock is free.

    Attributes:
        since: the true time from which on the call could have got the lock.
        seconds: the seconds for which it waits longer than when all is well.
    """

    call: Call
    since: float
    seconds: float


@define
class Idle:
    """The moment since which the lock has been free, and the calls that wait.

    Attributes:
        stuck: the clients that cannot act, for each of which the lock may wait.
        waiting: the calls that are under way, except single tries.
        left_until: the true time at which the last lease of an owner ends that never goes on.
    """

    world: World
    servers: Sequence[Server]
    plan: Plan
    stuck: Stuck
    _sessions: list[tuple[Process, Session]]
    waiting: dict[Call, None] = field(factory=dict)
    _free_at: float = 0.0
    left_until: float = NEVER
    keys: LockKeys = leftovers.LOCK_KEYS

    def freed(self, process: Process) -> None:
        """Note that a thread of this process has lost the lock: from now on, or from when the process can show it."""
        self._free_at = max(self._free_at, self.world.now, self.stuck.until(process))

    def died(self, process: Process, leases: list[float]) -> None:
        """Note that a process has crashed: its holds end with their `leases` (s), as do those of its waiters."""
        self.left(leases)
        for seconds in (0.0, UNHEARD_SECONDS):
            self.world.after(seconds, partial(self._died, process))

    def _died(self, process: Process) -> None:
        left = leftovers.given_to(process, self.servers, self._sessions, self.keys)
        longest = max(self.plan.longest, HANDED_LEASE_SECONDS) + EXPIRY_SECONDS
        self.left([min(seconds, longest) for seconds in left])

    def left(self, leases: list[float]) -> None:
        """Note leases that no client ends, by the seconds that are left of them."""
        if leases:
            self.left_until = max(self.left_until, self.world.now + max(leases))
            self._free_at = max(self._free_at, self.left_until)

    def waits(self, calls: Iterable[Call], beliefs: Sequence[Belief], calm_at: float) -> list[Wait]:
        """Return those of these calls that wait for a free lock though they could act, the longest wait first."""
        free_since = max(self.free_since(beliefs), calm_at)
        begins = [
            (call, max(call.called_at, free_since, self.stuck.until(call.process)))
            for call in calls
            if not call.process.is_dead
        ]
        waits = [Wait(call, begin, self.world.now - begin - HAND_OFF_SECONDS) for call, begin in begins]
        return sorted([one for one in waits if one.seconds > 0], key=lambda one: -one.seconds)

    def are_leaving(self) -> set[Process]:
        """Return the processes with a wait that is past its time: such a wait gives up its place before it ends."""
        return {call.process for call in self.waiting if self.lateness(call) > 0}

    def lateness(self, call: Call) -> float:
        """Return for how many seconds a call could act after its time was over, without ending; 0 for a pause."""
        process, stuck = call.process, self.stuck
        was_stopped = process.was_paused_since(call.called_at) and not stuck.was(process, call.called_at)
        if call.timeout == float("inf") or was_stopped:
            return 0.0
        return process.local() - max(call.called_at_local + call.timeout, process.local(stuck.until(process)))

    def free_since(self, beliefs: Sequence[Belief]) -> float:
        """Return the moment since which the lock has been free, and a process could know that."""
        left_until = self.left_until
        for belief in beliefs:
            if not belief.has_left and belief.hold.deadline != NEVER:  # the hold may have run out on the masters
                ends_at = belief.process.true(belief.hold.deadline) + self._expiry(belief.hold)
                self._free_at = max(self._free_at, ends_at)
                if belief.process.is_dead:
                    left_until = max(left_until, ends_at)
        free_at = self._free_at
        if free_at == left_until and sum(process.is_dead for process, _ in self._sessions) > 1:
            # No message tells the end of a lease, and the first waiter, which would then look, may be dead, too.
            free_at += HEARTBEAT_SECONDS
        return free_at

    def _expiry(self, hold: Hold) -> float:
        """Return the longest time from D until a hold's leases have ended on all masters."""
        return EXPIRY_SECONDS + (EXPIRY_PART * hold.ttl if self.plan.wide else 0.0)
