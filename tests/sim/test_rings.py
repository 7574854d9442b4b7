"""Runs in which callers run into deadlocks, and how the referee judges these."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import define, evolve

from relock import DeadlockError
from relock._keys import lock_keys
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.doors import ORDERS_PART, orders
from sim.rings import AT_ONCE_SECONDS, FOUND_SECONDS, Caller, OrdersReferee, Rings
from sim.simulation import Simulation, ViolationError
from sim.special import looped

FOREVER = float("inf")
RING = (("a", "p:x", "q:a"), ("b", "q:y", "p:b"))


@define
class Game:
    """Judge of deadlocks of two callers, when all is well."""

    world: World
    rings: Rings
    p: Caller
    q: Caller

    def wait(
        self, caller: Caller, lock: str, name: str, *held: str, timeout: float = FOREVER, mode: str = "raise"
    ) -> None:
        """Let a caller that has these locks begin to wait for another one."""
        process, key = caller
        holds = [self.hold(caller, one) for one in held]
        session: Any = SimpleNamespace(holds={one.owner: one for one in holds})
        spec = SimpleNamespace(keys=lock_keys("lock", lock), options=SimpleNamespace(deadlock=mode))
        record: Any = SimpleNamespace(spec=spec, owners=[name.encode()], task=None)
        who: Any = SimpleNamespace(key=key, name=None, liveness=None)
        self.rings._noted(process, session, record, (who, 0.0, timeout))

    def hold(self, caller: Caller, lock: str) -> Any:
        owner = f"{caller[0].name}:{lock}".encode()
        return SimpleNamespace(owner=owner, key=caller[1], keys=lock_keys("lock", lock), remaining=lambda _now: 1.0)

    def wait_for_each_other(self, **other: Any) -> None:
        self.wait(self.p, "a", "p:x", "b")
        self.wait(self.q, "b", "q:y", "a", **other)

    def end(self, caller: Caller, cycle: Any = RING) -> list[str]:
        """End the wait of a caller by an error; return the violations so far."""
        error = DeadlockError("", lock={self.p: "a", self.q: "b"}[caller])
        error.cycle = cycle
        self.rings.raised(cast(Any, SimpleNamespace(process=caller[0])), caller, error)
        return self.rings.first.violations

    def pass_time(self, seconds: float) -> list[str]:
        self.world.run(self.world.now + seconds)
        self.rings.check()
        return self.rings.first.violations


@pytest.fixture
def game() -> Game:
    world = World(0)
    plan = orders(0, 1.0)
    assert plan is not None
    first = OrdersReferee(world, [Server(world, 0, Conditions(), rate=1.0, offset=0.0)], plan)
    first.calm_at = 0.0
    return Game(world, Rings(world, first), (Process(world, "p"), 1), (Process(world, "q"), 1))


def test_callers_run_into_deadlocks_in_a_few_runs() -> None:
    plans = [plan for seed in range(2000) if (plan := orders(seed)) is not None]
    assert 0.8 * ORDERS_PART < len(plans) / 2000 < 1.2 * ORDERS_PART
    assert all(plan.orders and plan.several for plan in plans)
    assert any(plan.orders and "report" in plan.orders.modes for plan in plans)
    assert any(plan.conditions.lags for plan in plans)


def test_a_ring_has_a_victim(game: Game) -> None:
    game.wait_for_each_other()
    assert game.end(game.q) == []


def test_a_ring_has_one_victim(game: Game) -> None:
    game.wait_for_each_other()
    assert game.end(game.q) == []
    assert "second victim" in game.end(game.p, RING[::-1])[0]


def test_a_wait_that_had_ended_makes_no_ring(game: Game) -> None:
    game.wait(game.p, "a", "p:x", "b")
    game.pass_time(1.0)
    game.rings.returned(game.p, [])
    game.pass_time(1.0)
    game.wait(game.q, "b", "q:y", "a")
    assert "that was none" in game.end(game.q)[0]


def test_a_hold_that_had_ended_makes_no_ring(game: Game) -> None:
    game.wait(game.p, "a", "p:x", "b")
    hold = next(span.hold for span in game.rings._open if span.hold is not None)
    game.pass_time(1.0)
    game.rings.left(hold)
    game.pass_time(1.0)
    game.wait(game.q, "b", "q:y", "a")
    assert "that was none" in game.end(game.q)[0]


def test_unknown_names_and_other_locks_make_no_ring(game: Game) -> None:
    game.wait_for_each_other()
    for number, cycle in enumerate([(("a", "p:x", "q:a"), ("b", "q:z", "p:b")), (("b", "p:x", "q:a"), RING[1])]):
        assert len([one for one in game.end(game.q, cycle) if "that was none" in one]) == number + 1


@pytest.mark.parametrize("other", [{"mode": "report"}, {"mode": "ignore"}, {"timeout": 0.1}])
def test_a_wait_that_may_not_raise_is_no_victim(game: Game, other: Any) -> None:
    game.wait_for_each_other(**other)
    assert "may not raise" in game.end(game.q)[0]


@pytest.mark.parametrize("other", [{"mode": "ignore"}, {"timeout": 0.1}])
def test_a_ring_that_another_call_may_end_has_no_victim(game: Game, other: Any) -> None:
    game.wait_for_each_other(**other)
    assert "another call may end" in game.end(game.p)[0]


def test_a_ring_must_be_found(game: Game) -> None:
    game.wait_for_each_other()
    longest = game.rings._orders.after + FOUND_SECONDS
    assert game.pass_time(longest - 0.1) == []
    assert "nobody has found it" in game.pass_time(0.2)[0]


def test_a_ring_of_one_client_must_be_found_at_once(game: Game) -> None:
    game.q = game.p[0], 2
    game.wait(game.p, "a", "p:x", "b")
    game.wait(game.q, "b", "p:y", "a")
    assert game.pass_time(AT_ONCE_SECONDS - 0.1) == []
    assert "nobody has found it" in game.pass_time(0.2)[0]


def test_a_ring_that_may_not_raise_may_stand(game: Game) -> None:
    game.wait_for_each_other(mode="report")
    assert game.pass_time(100.0) == []


def test_tasks_and_threads_are_victims() -> None:
    victims = set()
    for seed in range(8):
        plan = orders(seed, 1.0)
        assert plan is not None
        simulation = Simulation(seed, evolve(looped(seed, plan), loops=frozenset({0}), named=False))
        try:
            simulation.run()
        except ViolationError as error:
            pytest.fail(str(error).partition("\n")[0])
        victims |= {
            line.partition("  ")[2].split()[0]
            for line in simulation.world.timeline().splitlines()
            if "is the victim of" in line
        }
    assert {"client-0", "client-1"} <= victims
