"""Waits that end at one moment in great number: the referee's judgement, and the acts of the simulator."""

from random import Random

import pytest
from attrs import evolve

from relock import QuorumError
from relock._core.quorum import TOO_LATE
from relock._runtime.aio.link import Link
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._world import World
from sim.cast import AT_ONCE, MAX_CONNECTIONS
from sim.draws import draw
from sim.liveness import MASS_PART, mass
from sim.plan import LOOP_STUCK, PROMPT_TIMES, STRANGER, Plan
from sim.referee import LATE_SECONDS, OVERSHOOT_SECONDS, Referee
from sim.simulation import Simulation
from sim.strikes import SLOW_DELAY, SLOW_SECONDS

NODE_TIMEOUT = 0.1
PLAN = evolve(draw(Random(0)), conditions=Conditions(delay=NODE_TIMEOUT / PROMPT_TIMES), node_timeout=NODE_TIMEOUT)


def plan_of(seed: int) -> Plan:
    plan = mass(seed, 1.0)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("calm_at", "delay", "kinds", "is_wrong"),
    [(1.0, 1.0, (), True), (2.1, 1.0, (), False), (1.0, 1.1, (), False), (1.0, 1.0, (STRANGER,), False)],
    ids=["all is well", "it called before all was well", "answers may take too long", "a larger guard may come"],
)
def test_no_call_fails_for_lack_of_a_quorum_when_all_is_well(
    calm_at: float, delay: float, kinds: tuple[str, ...], *, is_wrong: bool
) -> None:
    """The plan at the beginning decides how long answers may take: later delays of some runs are no excuse."""
    world = World(0)
    conditions = Conditions(delay=delay * NODE_TIMEOUT / PROMPT_TIMES)
    referee = Referee(world, [], evolve(PLAN, conditions=conditions, kinds=kinds))
    referee.calm_at = calm_at
    world.run(2.0)
    call = referee.called(Process(world, "one"), timeout=1.0)
    conditions.delay = 1.0
    referee.failed(call, QuorumError("no quorum"))
    assert bool(referee.violations) is is_wrong


@pytest.mark.parametrize(
    ("why", "stood_still", "is_wrong"), [(TOO_LATE, True, False), (TOO_LATE, False, True), ("it is down", True, True)]
)
def test_a_client_that_stood_still_may_find_that_its_grant_is_over(
    why: str, *, stood_still: bool, is_wrong: bool
) -> None:
    referee = Referee(World(0), [], PLAN)
    referee.calm_at = 0.0
    call = referee.called(Process(referee.world, "one"), timeout=1.0)
    if stood_still:
        referee.stuck.begin(call, LOOP_STUCK[0], 1.0)
    referee.failed(call, QuorumError(why))
    assert bool(referee.violations) is is_wrong


@pytest.mark.parametrize("is_failed", [True, False])
@pytest.mark.parametrize(
    ("ends_at", "late", "is_wrong"),
    [
        (9.0, NODE_TIMEOUT + LATE_SECONDS - 0.01, False),
        (9.0, NODE_TIMEOUT + LATE_SECONDS + 0.01, True),
        (0.0, OVERSHOOT_SECONDS - 0.01, False),
        (0.0, OVERSHOOT_SECONDS + 0.01, True),
    ],
)
def test_each_of_many_waits_ends_a_node_timeout_after_its_own_time_at_the_latest(
    ends_at: float, late: float, *, is_failed: bool, is_wrong: bool
) -> None:
    """Waits end in time, whatever their outcome."""
    world = World(0)
    referee = Referee(world, [], evolve(PLAN, ends_at=ends_at))
    call = referee.called(Process(world, "one"), timeout=1.0)
    world.run(1.0 + late)
    if is_failed:
        referee.failed(call, QuorumError("no quorum"))
    else:
        referee.refused(call)
    assert bool(referee.violations) is is_wrong


@pytest.mark.parametrize("ends", [True, False])
def test_a_client_has_room_for_few_requests_only_where_all_waits_end_at_once(
    monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    plan = plan_of(0)
    simulation = Simulation(0, plan if ends else evolve(plan, ends_at=0.0, kinds=(), threads=1))
    seen, before = set(), Link.in_flight_max
    monkeypatch.setattr(simulation, "_look_again", lambda: seen.add(Link.in_flight_max))
    simulation.run()
    assert seen == {AT_ONCE if ends else before}
    assert before == Link.in_flight_max
    options = {client._session.options.max_connections for client in simulation.cast.clients}
    assert options == {AT_ONCE if ends else MAX_CONNECTIONS}


def test_the_masters_are_slow_around_the_moment_at_which_all_waits_end() -> None:
    plan = plan_of(0)
    usual = plan.conditions.delay
    simulation, delays, ends = Simulation(0, plan), [], []

    def look() -> None:
        waiting = simulation.referee.idle.waiting
        ends.extend([call.called_at + call.timeout for call in waiting if call.timeout < float("inf")])

    simulation.world.at(plan.ends_at - 0.1, look)
    for when in (-0.6, -0.4, 0.4, 0.6):
        simulation.world.at(
            plan.ends_at + when * SLOW_SECONDS, lambda: delays.append(simulation.servers[0].conditions.delay)
        )
    simulation.run()
    assert delays == [usual, SLOW_DELAY, SLOW_DELAY, usual]
    assert len(ends) == plan.clients * plan.threads - 1, "all waits end but the one that has the lock"
    assert ends == pytest.approx([plan.ends_at] * len(ends))


def test_many_waits_end_at_one_moment_in_a_few_runs() -> None:
    plans = [plan for seed in range(2000) if (plan := mass(seed)) is not None]
    assert 0.7 * MASS_PART < len(plans) / 2000 < 1.3 * MASS_PART
    assert all(plan.is_calm for plan in plans)
