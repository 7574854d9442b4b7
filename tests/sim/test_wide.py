"""The wider runs: which they are, and how the referee judges the leases in them."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve

from relock._keys import lock_keys
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.beliefs import Belief
from sim.draws import draw
from sim.leases import Leases
from sim.plan import Wide
from sim.referee import Referee
from sim.simulation import Simulation
from sim.special import WIDE_PART, widened

KEYS = lock_keys("lock", "a")
OWNER = b"client:1"
TTL_SECONDS = 3.0
WIDE = Wide(ttls=(TTL_SECONDS,), fair=(True,), renew=(True,), handoffs=("grant",), levels=1, extends=0.1)
QUIET = evolve(draw(Random(0)), kinds=("partition",), conditions=Conditions(), wide=WIDE)


class Held(SimpleNamespace):
    """The part of a hold that the referee looks at."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def hold(deadline: float) -> Any:
    return Held(
        keys=KEYS,
        owner=OWNER,
        deadline=deadline,
        granted_at=0.0,
        quorum=2,
        renew=True,
        loss=None,
        spec=SimpleNamespace(node_timeout=0.05, drift_factor=0.01),
        remaining=lambda now: deadline - now,
    )


def leases_on(world: World, seconds: list[float | None]) -> Leases:
    """Return leases that each master has given for so many seconds; None: it gave none."""
    servers = [Server(world, number, Conditions(), rate=1.0, offset=0.0) for number in range(len(seconds))]
    for server, lease in zip(servers, seconds, strict=True):
        if lease is not None:
            server.master.read("HSET", KEYS.lock, OWNER, b"1")
            server.master.read("PEXPIRE", KEYS.lock, round(1000 * lease))
    return Leases(world, servers, QUIET)


def test_one_run_of_four_is_wider_and_all_others_stay_as_they_were() -> None:
    plans = {seed: draw(Random(seed)) for seed in range(1000)}
    wide = [seed for seed, plan in plans.items() if widened(seed, plan) is not plan]
    assert 0.9 * WIDE_PART < len(wide) / len(plans) < 1.1 * WIDE_PART
    assert all(widened(seed, plans[seed]).wide for seed in wide)


@pytest.mark.parametrize(
    ("kept", "is_overshot"),
    [([3.0, 3.0, 3.0], False), ([3.0, 3.0, None], False), ([3.0, 2.5, 2.5], True), ([3.0, None, None], True)],
)
def test_a_hold_may_count_for_no_longer_than_a_quorum_keeps_it(kept: list[float | None], *, is_overshot: bool) -> None:
    world = World(0)
    assert leases_on(world, kept).is_overshot(Process(world, "one"), hold(2.9)) is is_overshot


@pytest.mark.parametrize(("fault_at", "seconds"), [(None, 0.0), (0.2, 0.3), (0.2, 0.8)])
def test_a_hold_that_could_have_been_renewed_must_not_be_lost(fault_at: float | None, seconds: float) -> None:
    """Faults may end so late that a renewal just fails to come: the last of the cases."""
    world = World(0)
    leases, process, lost = leases_on(world, []), Process(world, "one"), hold(TTL_SECONDS)
    leases.see(process, lost)
    if fault_at is not None:
        world.run(fault_at)
        leases.hindered(seconds)
    world.run(TTL_SECONDS)
    assert leases.was_left_alone(process, lost) is (seconds < 0.5)


def test_a_bad_network_hinders_renewals_until_it_is_healed() -> None:
    """The loss of a hold may be found only afterwards."""
    bad = Conditions(straggles=0.3, straggle=0.5)
    simulation = Simulation(0, evolve(QUIET, kinds=(), conditions=bad, moves=None, names=0))
    simulation.run()
    assert simulation.plan.is_quiet, "a healed network has the plan's quiet conditions"
    assert simulation.referee.leases.hindered_until == simulation.plan.faults + 2.0


@pytest.mark.parametrize(("left", "seconds", "is_wrong"), [(0.0, 0.0, False), (0.5, 1.0, False), (1.0, 0.5, True)])
def test_a_hold_that_is_not_sure_has_less_time_left(left: float, seconds: float, *, is_wrong: bool) -> None:
    """A hold that is over has 0 s left."""
    world = World(0)
    referee = Referee(world, [], QUIET)
    referee.lengths.not_sure(Belief(Process(world, "one"), cast(Any, None), hold(left)), seconds)
    assert bool(referee.violations) is is_wrong


@pytest.mark.parametrize("is_forced", [True, False])
def test_an_extension_must_last_unless_an_operator_was_there(*, is_forced: bool) -> None:
    world = World(0)
    referee = Referee(world, [], QUIET)
    referee.operators = int(is_forced)
    referee.lengths.extended(Belief(Process(world, "one"), cast(Any, None), hold(1.0)), 0.0, TTL_SECONDS, 1.0)
    assert bool(referee.violations) is not is_forced


@pytest.mark.parametrize(("waited", "is_wrong"), [(0.01, True), (0.051, False)])
def test_an_extension_may_fail_when_all_is_well_only_after_the_wait_for_an_answer(
    waited: float, *, is_wrong: bool
) -> None:
    world = World(0)
    referee = Referee(world, [], evolve(QUIET, kinds=()))
    referee.calm_at = 0.0
    world.run(waited)
    referee.lengths.not_extended(Belief(Process(world, "one"), cast(Any, None), hold(1.0)), 0.0)
    assert bool(referee.violations) is is_wrong
