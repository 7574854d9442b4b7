"""Judgement of runs in which callers take several locks: one referee for each lock, and one look at which calls get on.

A caller of `lock_all` has the locks that come before the one for which it waits. So a lock may be free of believers,
and yet wait for nobody's mistake: the rule is about all locks that calls connect. While none of these has a holder that
is inside, some call must get on.
"""

from collections.abc import Iterable

from attrs import define, field

from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._errors import LockLostError
from relock._keys import lock_keys
from relock.testing._process import Process
from relock.testing._world import World
from sim.beliefs import Belief, Call
from sim.idle import HAND_OFF_SECONDS, Wait
from sim.referee import OVERSHOOT_SECONDS, Referee


@define
class SeveralReferee(Referee):
    """Referee of one of several locks."""

    def sibling(self, name: str) -> None:
        """Make the referee of another lock, which shares with this one what is no lock's own."""
        other = type(self)(
            self.world, self.servers, self.plan, violations=self.violations, faults=self.faults,
            sessions=self._sessions, keys=lock_keys("lock", name), family=self.family,
        )  # fmt: skip
        other.clocks = self.clocks
        other.stuck = other.idle.stuck = other.ends.stuck = self.stuck

    def check_timeout(self, call: Call) -> None:
        """Check that an acquire has ended in time: it may have had to try others, and to give some back."""
        late = self.idle.lateness(call)
        if late > OVERSHOOT_SECONDS + 2 * self.plan.node_timeout:
            self.violate(f"{call.process.name} waited {late:.3f} s longer than it wanted to")

    def lost_some(self, call: Call, since: float, error: LockLostError) -> None:
        """Judge an acquire that failed because a lock was lost which its caller has had, at most, `since` then."""
        was_paused = call.process.was_paused_since(since)
        was_forced = any(one.operators or one._forced_at > since for one in self.family.values())
        if since >= self.calm_at and self.plan.renew and not (was_paused or was_forced):
            self.violate(f"{call.process.name} lost some locks while it waited for others: {error}")

    def _check_idle(self, *calls: Call) -> list[Wait]:  # noqa: ARG002
        """Leave this to `Progress`, which knows what else a caller has."""
        return []


@define(eq=False)
class Want:
    """A call that may wait, with the names that its caller has or wants, and the caller's beliefs."""

    process: Process
    called_at: float
    names: frozenset[str]
    beliefs: tuple[Belief, ...]


@define
class Progress:
    """Calls that may wait, and the rule that some of them get on."""

    world: World
    first: Referee
    waiting: dict[Want, None] = field(factory=dict)

    def begins(self, process: Process, names: Iterable[str], beliefs: Iterable[Belief]) -> Want:
        """Note that a call may wait from now on; it ends when it is removed from `waiting`."""
        want = Want(process, self.world.now, frozenset(names), tuple(beliefs))
        self.waiting[want] = None
        return want

    def check(self) -> None:
        """Check that calls get on if all is well, and nobody has, without waiting, what they are waiting for."""
        wants = [want for want in self.waiting if not want.process.is_dead]
        for want in wants if self.first.is_calm else ():
            connected = _connected(want, wants)
            names = frozenset[str]().union(*[one.names for one in connected])
            seconds = self.world.now - self._stands_since(want, connected, names)
            if seconds > self._bound(names):
                self.first.violate(
                    f"{want.process.name} waited for {seconds:.3f} s for some of {sorted(want.names)}, "
                    f"and nobody got on who wants some of {sorted(names)}"
                )
                self.waiting.pop(want)

    def _stands_since(self, want: Want, connected: list[Want], names: frozenset[str]) -> float:
        """Return the moment since which no holder of these names is inside; the present one if there is a holder."""
        since = max([self.first.calm_at, want.called_at, *[one.called_at for one in connected if one.beliefs]])
        waiting = {belief for one in connected for belief in one.beliefs}
        for name in sorted(names):
            referee = self.first.family[name]
            others = [belief for belief in referee.beliefs if belief not in waiting]
            if any(belief.is_believed() for belief in others):
                return self.world.now
            since = max(since, referee.idle.free_since(others))
        return since

    def _bound(self, names: frozenset[str]) -> float:
        """Return how long it may take until a call has got on: each of these names may be handed to it in turn."""
        is_any_dead = any(process.is_dead for process, _ in self.first._sessions)
        return len(names) * (HAND_OFF_SECONDS + is_any_dead * HEARTBEAT_SECONDS)


def _connected(want: Want, wants: list[Want]) -> list[Want]:
    """Return the calls that may wait for each other with `want`: these share names, or others between them do."""
    names, found = set(want.names), [want]
    left = [one for one in wants if one is not want]
    while more := [one for one in left if one.names & names]:
        found += more
        names.update(*[one.names for one in more])
        left = [one for one in left if one not in more]
    return found
