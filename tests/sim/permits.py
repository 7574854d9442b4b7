"""Judgement of runs in which callers take permits of a semaphore.

The permits that callers believe to have are at most as many as the largest limit that was in force when the latest of
them was granted. Where that is one permit each, no two have the same slot, and tokens rise from one holder of a slot to
the next.

Waiters are served in their order. So a permit may stay free if the first waiter wants several, or has a smaller limit.
If that waiter's client crashes, no message says so. The next heartbeat of another client passes the waiter over if
there is room by its limit (`has_room` in `lua/_lib/pass_on.lua`). Else the waiter keeps those behind it waiting until
its place has ended, and for a heartbeat more.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations

from attrs import define, field

from relock import Permit
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.hold import Hold
from relock._core.lock_spec import ALIVE_MS
from relock._core.quorum import NEVER, quorum_of
from relock._errors import NotOwnedError
from relock._keys import LockKeys, permit_keys
from relock._owner import waiter_name
from relock._runtime.wakeups.waiter import Waiter
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim import leftovers
from sim.actors import TaskLock
from sim.beliefs import Belief, Call
from sim.clocks import Clocks
from sim.idle import HAND_OFF_SECONDS, Idle, Wait
from sim.plan import LOCK
from sim.referee import Referee
from sim.stuck import AT_ONCE_SECONDS

SEMAPHORE_KEYS = permit_keys("lock", LOCK)
DRIFT_PART = 0.01  # of a time, by which a master's clock and the true time may differ after it
LATE_SECONDS = 1.0  # after its call, in which a request of an operator may still reach a master
LONG_SECONDS = 60.0  # for which a release is remembered: longer than any wait is judged
AHEAD_SECONDS = HEARTBEAT_SECONDS + HAND_OFF_SECONDS  # until waiters have heard of another limit


@define(eq=False)
class Override:
    """An operator's limit, by the true time.

    Attributes:
        begins: when it was asked for.
        ends: when it has ended on all masters.
        sure_from: when a quorum had it.
        sure_until: until when a quorum surely has it, unless masters forget, or clocks are set.
    """

    limit: int
    begins: float
    ends: float
    sure_until: float
    sure_from: float = float("inf")


@define
class Limits:
    """The limits that may be in force: those of the callers' code, and those that operators set."""

    world: World
    clocks: Clocks
    overrides: list[Override] = field(factory=list)

    def begins(self, limit: int, seconds: float) -> Override:
        """Note that an operator asks for a limit; 0 s end the overrides before it.

        While an earlier request is under way, it may arrive later than this one, and end sooner.
        """
        now, drift = self.world.now, DRIFT_PART * seconds
        is_alone = all(one.sure_from <= now or one.begins + LATE_SECONDS < now for one in self.overrides)
        for one in self.overrides:
            one.sure_until = min(one.sure_until, now)
        lasts = seconds + drift + LATE_SECONDS if seconds else 0.0
        one = Override(limit, now, now + lasts, now + seconds - drift if is_alone else now)
        self.overrides.append(one)
        return one

    def is_set(self, one: Override) -> None:
        """Note that a quorum of the masters has this limit."""
        one.sure_from = self.world.now

    def within(self, own: int, since: float) -> set[int]:
        """Return the limits that masters may have judged by since then, where the code of a caller names its `own`."""
        now = self.world.now
        found = {one.limit for one in self.overrides if one.begins <= now and since <= one.ends + self.clocks.set_back}
        is_steady = not (self.clocks.steps or self.clocks.has_forgotten)
        is_sure = any(one.sure_from <= since and now < one.sure_until for one in self.overrides)
        return found if is_sure and is_steady else found | {own}


@define
class PermitIdle(Idle):
    """The moments since which permits have been free, and the calls that wait.

    Attributes:
        limits: the limits that may be in force.
    """

    limits: Limits = field(kw_only=True)
    _released: list[tuple[float, int]] = field(factory=list)  # when permits were released, and how many
    _died_at: dict[Process, float] = field(factory=dict)

    def died(self, process: Process, leases: list[float]) -> None:
        """Note that a process has crashed, and when: its waiters may keep others waiting."""
        super().died(process, leases)
        self._died_at[process] = self.world.now

    def released(self, belief: Belief) -> None:
        """Note that a caller is about to release its permits: these are free from now on, or when its client acts."""
        ends_at = max(self.world.now, self.stuck.until(belief.process))
        self._released = [one for one in self._released if one[0] > self.world.now - LONG_SECONDS]
        self._released.append((ends_at, belief.lock.permits))

    def waits(self, calls: Iterable[Call], beliefs: Sequence[Belief], calm_at: float) -> list[Wait]:
        """Return those of these calls that wait for free permits though no other call comes first that must wait."""
        calls = [call for call in calls if not call.process.is_dead]
        since = {call: self._fits_since(call.limit, call.permits, beliefs) for call in calls}
        found = []
        for call in calls:
            ahead = [since[one] for one in calls if one.called_at <= call.called_at + AT_ONCE_SECONDS]
            begin = max(*ahead, calm_at, call.called_at, self.stuck.until(call.process))
            if self.world.now - begin > HAND_OFF_SECONDS:
                begin = max(begin, self._kept_until(call, beliefs))
            if (seconds := self.world.now - begin - HAND_OFF_SECONDS) > 0:
                found.append(Wait(call, begin, seconds))
        return sorted(found, key=lambda one: -one.seconds)

    def _kept_until(self, call: Call, beliefs: Sequence[Belief]) -> float:
        """Return the moment until which waiters that have crashed may keep this call waiting.

        Such a waiter came first, and wanted more permits, or had a smaller limit: this call fitted before it did.
        """
        kept_until = NEVER
        for one in self.waiting:
            came_first = one.called_at <= call.called_at + AT_ONCE_SECONDS
            died_at = self._died_at.get(one.process, NEVER) if one.process.is_dead and came_first else NEVER
            if died_at > NEVER and (one.permits > call.permits or one.limit < call.limit):
                place_ends = died_at + ALIVE_MS / 1000 + self.limits.clocks.set_back + HEARTBEAT_SECONDS
                has_room_at = self._fits_since(one.limit, 1, beliefs)
                kept_until = max(kept_until, died_at + HEARTBEAT_SECONDS, min(has_room_at, place_ends))
        return kept_until

    def _fits_since(self, limit: int, permits: int, beliefs: Sequence[Belief]) -> float:
        """Return the moment since which so many permits are free by a caller's limit; infinity if they are not."""
        room = min(self.limits.within(limit, self.world.now - AHEAD_SECONDS)) - permits
        ends = [(self._end(one), one.lock.permits) for one in beliefs if not one.has_left] + self._released
        since, used = self._free_at, 0
        if sum(process.is_dead for process, _ in self._sessions) > 1:
            since += HEARTBEAT_SECONDS  # as for a lock: no message tells the end of a lease
        for end, count in [(float("inf"), 0), *sorted(ends, reverse=True)]:
            used += count
            if used > room:
                return float("inf") if end > self.world.now else max(since, end)
        return since

    def _end(self, belief: Belief) -> float:
        """Return the true time at which a hold has run out on all masters."""
        if belief.hold.deadline == NEVER:
            return NEVER
        return belief.process.true(belief.hold.deadline) + self._expiry(belief.hold)


@define
class PermitReferee(Referee):
    """Referee of a semaphore.

    Attributes:
        limits: the limits that may be in force.
    """

    keys: LockKeys = SEMAPHORE_KEYS
    limits: Limits = field(init=False)
    _tokens: dict[int, tuple[int, Process]] = field(factory=dict)  # the highest of each slot, and the process with it
    _ended: set[bytes] = field(factory=set)  # the holders whose permits operators end
    _values: dict[bytes, bytes] = field(factory=dict)  # the slot of each owner, as the first master had it
    _served: defaultdict[bytes, set[int]] = field(factory=lambda: defaultdict(set))  # the masters that served a waiter

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for server in self.servers:
            server.tell = self._look_at

    def _look_at(self, server: Server) -> None:
        """Judge the holds of a master on which a script has just run: one owner has a slot, the same on all masters.

        A lone master may grant a repeated request anew, after the lease has ended that the first one had.
        """
        owners: dict[bytes, bytes] = {}
        found = server.master.contents(self.keys.lock) or {}
        for owner in leftovers.holds_on(server, self.keys):
            value = found[owner]
            self._served[waiter_name(owner)].add(server.number)
            if len(self.servers) > 1 and self._values.setdefault(owner, value) != value:
                self.violate(f"{owner.decode()} has slot {value.decode()} on {server.name}, and another one elsewhere")
            if owners.setdefault(value, owner) != owner and not value.startswith(b"-"):
                both = f"{owner.decode()} and {owners[value].decode()}"
                self.violate(f"{server.name} has given slot {value.decode()} to {both}")

    def _make_idle(self) -> Idle:
        self.limits = Limits(self.world, self.clocks)
        around = self.world, self.servers, self.plan, self.stuck, self._sessions
        return PermitIdle(*around, keys=self.keys, limits=self.limits)

    # The events -----------------------------------------------------------------------------------------------------

    def asked(self, process: Process, timeout: float, permits: int, limit: int, *, fair: bool) -> Call:
        """Note that a thread asks for permits; the waiters that are queued by now are ahead of it."""
        call = super().called(process, timeout, fair=fair)
        self.idle.waiting.pop(call, None)
        call = Call(
            process, call.called_at, call.called_at_local, timeout, call.ahead, call.highest, fair, permits, limit
        )
        if timeout:
            self.idle.waiting[call] = None
        return call

    def over(self, call: Call) -> None:
        """Note that a call has ended. If it was not like the others, those behind it may be served only from now on."""
        others = [one for one in self.idle.waiting if one is not call]
        super().over(call)
        if any((one.permits, one.limit) != (call.permits, call.limit) for one in others):
            self.idle.freed(call.process)

    def leaves(self, belief: Belief) -> None:
        """Note that a holder is about to release its permits."""
        assert isinstance(self.idle, PermitIdle)
        belief.is_over = belief.has_left = True
        self.idle.released(belief)
        self.world.note(belief.process.name, f"releases {belief.hold.owner.decode()}")
        if self.is_calm:
            self.ends.released(belief)

    def forced_out(self, owner: bytes) -> list[Belief]:
        """Note that an operator is about to end the permits of `owner`; return the beliefs in these, if renewed."""
        self.check_exclusion()
        self._ended.add(owner)
        found = [one for one in self.beliefs if one.hold.owner == owner]
        for one in found:
            one.may_be_ended = True
        renewed = [one for one in found if one.is_believed() and one.hold.renew]
        for one in found:
            one.is_over = True
            self.idle.freed(one.process)  # its client may hear of this at once, and then no lease says when it ended
        return renewed

    def _was_ended(self, process: Process, hold: Hold) -> bool:  # noqa: ARG002
        return hold.owner in self._ended

    def forked(self, process: Process, lock: Permit) -> None:  # type: ignore[override]
        """Judge a child that was just forked; `lock` is of the child's client."""
        super().forked(process, lock)  # type: ignore[arg-type]
        for belief in self.beliefs:
            if not isinstance(belief.lock, TaskLock):
                permit = belief.lock
                copied = Permit(lock._client, permit._spec, permit._named_owner, permit.permits)
                if copied.owned():
                    self.violate(f"{process.name} has what its parent has")
                with suppress(NotOwnedError):
                    copied.release()
                    self.violate(f"{process.name} has released what its parent has")

    # The rules ------------------------------------------------------------------------------------------------------

    def check_exclusion(self) -> None:
        """Check that callers do not believe in too many permits, and that nobody waits for a free one."""
        self._check_believers(self.believers())
        for call, since, seconds in self.idle.waits(self.idle.waiting, self.beliefs, self.calm_at):
            is_over = self.world.now > self.clocks.leases_last_until(self.plan.longest)
            if is_over and seconds > self.stuck.cost(call, since):
                self.idle.waiting.pop(call)
                self.violate(
                    f"{call.process.name} waited for {self.world.now - since:.3f} s for {call.permits} though so many "
                    f"were free"
                )

    def _check_believers(self, believers: list[Belief]) -> None:
        for one, other in combinations(believers, 2):
            if one.hold.kept == other.hold.kept >= 0 and self._are_rivals([one, other]):
                names = f"{one.process.name} and {other.process.name}"
                self.violate(f"two believe that they have slot {one.hold.kept}: {names}")
        counted = [one for one in believers if not self._is_excused(one, believers)]
        permits = sum(one.lock.permits for one in counted)
        if permits > self._cap(counted):
            names = ", ".join(f"{one.process.name} ({one.lock.permits})" for one in counted)
            self.violate(f"they believe that they have {permits} permits of {self._cap(counted)}: {names}")

    def _cap(self, believers: list[Belief]) -> int:
        """Return how many permits these may have together.

        A lone master has judged the latest of them by all the others. Which one that was is not known if the one with
        the largest token may be a repeated grant. Several masters judge each by its slot.
        """
        if not believers:
            return 0
        if len(self.servers) == 1 and not self.clocks.steps:
            latest = max(believers, key=lambda one: one.hold.token)
            if not latest.is_repeated:
                return latest.cap
        return max(one.cap for one in believers)

    def _is_excused(self, one: Belief, believers: list[Belief]) -> bool:
        """Return whether a client believes in its permits for a reason that relock's promises allow."""
        others = [other for other in believers if other is not one]
        return any(self._is_deceived(one, other) or self._are_apart(one, other) for other in others)

    def _check_grant(self, belief: Belief, call: Call) -> None:
        process, hold = belief.process, belief.hold
        belief.is_repeated = hold.healing_pending
        belief.cap = max(self.limits.within(call.limit, max(call.called_at, process.true(hold.granted_at))))
        if hold.kept >= belief.cap:
            self.violate(f"{process.name} got slot {hold.kept}, and there are {belief.cap}")
        self._check_believers([*self.believers(), belief])
        highest = self._highest_before(belief, call)
        if hold.token <= highest and not self._may_tokens_fall():
            self.violate(f"{process.name} got token {hold.token}, which is not above {highest}")
        self._highest = max(self._highest, hold.token)
        if hold.token > self._tokens.get(hold.kept, (0, process))[0]:
            self._tokens[hold.kept] = hold.token, process

    def _highest_before(self, belief: Belief, call: Call) -> int:
        """Return the largest token that was certainly granted before this one: with several masters, of this slot."""
        at_call = call.highest if len(self.servers) == 1 else 0
        highest, leader = self._tokens.get(belief.hold.kept, (0, None)) if belief.hold.kept >= 0 else (0, None)
        is_late = leader and self.clocks.is_deceived(belief.process, belief.hold, belief.since, leader)
        return at_call if is_late or belief.may_be_ended else max(at_call, highest)

    def _check_idle(self, *calls: Call) -> list[Wait]:
        """Return the calls that have waited for long; `check_exclusion` judges all that wait."""
        return self.idle.waits(calls, self.beliefs, self.calm_at)

    def _is_served(self, waiter: Waiter) -> bool:
        """Return whether a quorum has given permits to this waiter, which may not have heard of that.

        If releases cross on their way to several masters, these may give one waiter different slots. The waiter gives
        them back, and others may be served meanwhile.
        """
        return len(self._served[waiter.owner]) >= quorum_of(len(self.servers))
