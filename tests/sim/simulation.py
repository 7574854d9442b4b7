"""Runs of the whole system under faults.

One seed makes one run. While faults strike, a thread that asks for the lock may get a `QuorumError`; but the rules that
the referee always applies hold all the time. Then all faults are healed: every thread must come to an end, and nothing
may be left.

This module puts a run together and plays it. `sim.cast` has those that take part, `sim.turns` their actions,
`sim.strikes` the faults, and `sim.referee` the rules.
"""

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from attrs import evolve

from relock import _caches
from relock._core.quorum import quorum_of
from relock._runtime.aio.link import Link
from relock.testing._conditions import Conditions
from relock.testing._lab import VirtualClient
from relock.testing._process import Process
from relock.testing._world import World
from sim.blocked import unread
from sim.calls import Calls
from sim.cast import AT_ONCE, RATE_ERROR, Cast
from sim.given import Given
from sim.moves import Mover
from sim.permits import PermitReferee
from sim.plan import CALM_SECONDS, Moves, Plan
from sim.read_write import ReadWriteReferee
from sim.referee import Referee
from sim.replication import ReplicatedServer
from sim.rings import OrdersReferee, Rings
from sim.several import Progress, SeveralReferee
from sim.special import plan_of
from sim.strikes import Strikes
from sim.turns import STEADY_SECONDS, Turns

UNDO_SECONDS = 0.5  # from the last release until the leftovers of attempts are gone
FORGOTTEN_SECONDS = 60.0  # of true time until masters may have nothing left
EPOCH_SECONDS = 1_700_000_000.0  # roughly what the masters' clocks show
LOOK_SECONDS = 0.05


class ViolationError(AssertionError):
    """Violation of a rule."""


class Simulation:
    """One run.

    Args:
        seed: decides the whole run.
        plan: by default, the one that the seed draws.
        world: another world than the usual one, for this seed.
    """

    cast: Cast
    everywhere: list[ReplicatedServer]
    plan: Plan
    referee: Referee
    servers: list[ReplicatedServer]
    strikes: Strikes
    world: World

    def __init__(self, seed: int, plan: Plan | None = None, world: World | None = None) -> None:
        self.world = world = world or World(seed)
        random = world.random
        self.plan = plan = plan or plan_of(seed, random)
        self._had_repeats = plan.repeats_between  # until all is healed: that changes the conditions of the plan
        self.servers = [
            ReplicatedServer(
                world,
                number,
                self._conditions(number),
                rate=1 + random.uniform(-RATE_ERROR, RATE_ERROR),
                offset=EPOCH_SECONDS + random.uniform(-plan.skew, plan.skew),
            )
            for number in range(plan.masters)
        ]
        self.everywhere = list(self.servers)  # two for each address in runs in which masters move
        self.referee, progress = _judges(world, self.servers, plan)
        self._progress = progress
        self.cast = cast = Cast(world, self.servers, plan, self.referee)
        calls = Calls(world, self.referee)
        turns = Turns(cast, self.referee, calls, progress)
        mover = self._pair_up(plan.moves) if plan.moves is not None else None
        self.strikes = Strikes(cast, self.referee, calls, turns, everywhere=self.everywhere, mover=mover)
        for number in range(plan.clients):
            turns.start(cast.make_client(f"client-{number}", has_loop=number in plan.loops))

    @property
    def faults(self) -> Counter[str]:
        """Count the faults that have struck, by kind."""
        return self.referee.faults

    @property
    def grants(self) -> int:
        """Count the grants of all locks."""
        return sum(referee.grants for referee in self.referee.family.values())

    def _conditions(self, number: int) -> Conditions:
        """Return the network of a master: the last ones, which are a minority, may be slower than the others."""
        is_slow = self.plan.slow and number >= quorum_of(self.plan.masters)
        return evolve(self.plan.conditions, delay=self.plan.slow) if is_slow else self.plan.conditions

    def _pair_up(self, moves: Moves) -> Mover:
        """Put a second server behind each address."""
        world, skew = self.world, self.plan.skew
        standbys = [
            ReplicatedServer(
                world,
                server.number,
                server.conditions,
                rate=server.rate,
                offset=server.offset + world.random.uniform(-skew, skew),
                name="standby",
            )
            for server in self.servers
        ]
        self.everywhere += standbys
        self.referee.given = Given(
            self.referee.keys.lock, self.servers, standbys, self.plan.is_guarded, self.plan.longest
        )
        return Mover(world, self.servers, standbys, moves)

    # The run --------------------------------------------------------------------------------------------------------

    def run(self) -> "Simulation":
        """Play the run to its end.

        Raises:
            ViolationError: a rule was broken; the message has the timeline.
        """
        world, plan = self.world, self.plan
        whose = self.cast.processes[0] if plan.is_blocked else None
        small = _forgetful(is_forgetful=plan.names > 0), _narrow(is_narrow=plan.ends_at > 0)
        with unread(whose), uncollected(), small[0], small[1]:
            self.strikes.schedule()
            self._look_again()
            if plan.is_calm:
                self._calm_from(CALM_SECONDS + plan.longest - plan.ttl)
            else:
                world.run(plan.faults + 2.0)  # the last faults end by themselves
                self.strikes.heal()
                self._calm_from(world.now + plan.settling)
            world.run(world.now + STEADY_SECONDS, is_over=self.cast.are_all_done)
            self._check_the_end()
        self._give_verdict()
        return self

    def _calm_from(self, when: float) -> None:
        for referee in self.referee.family.values():
            referee.calm_at = when

    def _look_again(self) -> None:
        """Let the referee also look of its own accord, so that it sees the beliefs of a process that stands still."""
        for referee in self.referee.family.values():
            referee.check_exclusion()
        self.referee.check_votes()
        if self._progress is not None:
            self._progress.check()
        if not self.cast.are_all_done():
            self.world.after(LOOK_SECONDS, self._look_again)

    def _check_the_end(self) -> None:
        world = self.world
        if not self.cast.are_all_done():
            self.referee.violate(f"not everybody has come to an end {STEADY_SECONDS} s after all was healed")
        elif self.referee.is_calm:
            family = self.referee.family.values()
            left_until = max(referee.idle.left_until for referee in family)
            world.run(max(world.now + UNDO_SECONDS, self.referee.stuck.last_end, left_until))
            for referee in family:
                referee.ends.check_undone()
        for client, process in zip(self.cast.clients, self.cast.processes, strict=True):
            if not process.is_dead:
                process.start(partial(self._close, process, client), "closing")
        world.run(world.now + FORGOTTEN_SECONDS + self.plan.longest - self.plan.ttl)
        self.referee.ends.check_nothing_left()
        self.referee.faults["repeat"] += sum(server.repeated for server in self.everywhere)
        for process in [*self.cast.processes, *self.cast.strangers]:
            process.end()

    def _close(self, process: Process, client: VirtualClient) -> None:
        family = self.referee.family.values()
        for referee in family:
            referee.ends.closes(process, referee.beliefs)
        client.close()
        # A request that was repeated before all was healed may have granted a released hold anew, for one lease.
        may_last = self._had_repeats and self.world.now < self.referee.leases.hindered_until + self.plan.longest
        for referee in family if self.plan.is_calm and self.plan.is_prompt and not may_last else ():
            referee.ends.closed(process, client._session)

    def _give_verdict(self) -> None:
        problems = self.referee.violations + [f"{who}: {error!r}" for who, error in self.world.errors]
        if problems:
            raise ViolationError(f"seed {self.world.seed}: {problems[0]}\n{self.plan}\n{self.world.timeline()}")


def _judges(world: World, servers: Sequence[ReplicatedServer], plan: Plan) -> tuple[Referee, Progress | None]:
    """Return the referee, with those of all locks, and the judge of progress if callers take several locks."""
    if plan.permits is not None:
        return PermitReferee(world, servers, plan), None
    if plan.sides is not None:
        return ReadWriteReferee(world, servers, plan), None
    if plan.several is None:
        return Referee(world, servers, plan), None
    first = (OrdersReferee if plan.orders else SeveralReferee)(world, servers, plan)
    for name in plan.several.names:
        if name != first.keys.name:
            first.sibling(name)
    if not isinstance(first, OrdersReferee):
        return first, Progress(world, first)
    first.rings = Rings(world, first)
    for referee in first.family.values():
        referee.rings = first.rings  # type: ignore[attr-defined]
    return first, first.rings


@contextlib.contextmanager
def _forgetful(*, is_forgetful: bool) -> Iterator[None]:
    """Make the caches as small as they can be, so that a few names are too many for them."""
    before = _caches.COUNT_MAX
    _caches.COUNT_MAX = 1 if is_forgetful else before
    try:
        yield
    finally:
        _caches.COUNT_MAX = before


@contextlib.contextmanager
def _narrow(*, is_narrow: bool) -> Iterator[None]:
    """Leave room for few requests of tasks on a connection, so that a connection is soon full."""
    before = Link.in_flight_max
    Link.in_flight_max = AT_ONCE if is_narrow else before
    try:
        yield
    finally:
        Link.in_flight_max = before


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Stop garbage collection: in a run it takes a tenth of the time, and finds next to nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
