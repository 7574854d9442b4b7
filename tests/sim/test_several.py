"""Runs in which callers take several locks, and how the referee judges them."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import define, evolve

from relock import LockLostError
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._keys import lock_keys
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.beliefs import Belief, Call
from sim.doors import LOCKS, SEVERAL_PART, several
from sim.draws import draw
from sim.idle import HAND_OFF_SECONDS
from sim.plan import CLOSE_LOOP, Several
from sim.several import Progress, SeveralReferee, Want
from sim.simulation import Simulation

NAMES = LOCKS[:3]


@define
class Game:
    """Referees of some locks that are free from the beginning, when all is well."""

    world: World
    first: SeveralReferee
    progress: Progress

    def process(self, name: str) -> Process:
        process = Process(self.world, name)
        self.first._sessions.append((process, cast(Any, SimpleNamespace(client_id=name))))
        return process

    def wait(self, process: Process, names: str, *beliefs: Belief) -> Want:
        return self.progress.begins(process, names, beliefs)

    def hold(self, process: Process, name: str) -> Belief:
        deadline, keys = self.world.now + 1000.0, lock_keys("lock", name)
        held: Any = SimpleNamespace(deadline=deadline, ttl=1000.0, keys=keys)
        held.remaining = lambda now: deadline - now
        belief = Belief(process, cast(Any, None), held)
        self.first.family[name].beliefs.append(belief)
        return belief

    def pass_time(self, seconds: float) -> list[str]:
        """Let time pass; return the violations so far."""
        self.world.run(self.world.now + seconds)
        self.progress.check()
        return self.first.violations


@pytest.fixture
def game() -> Game:
    world = World(0)
    servers = [Server(world, 0, Conditions(), rate=1.0, offset=0.0)]
    first = SeveralReferee(world, servers, evolve(draw(Random(0)), renew=True))
    for name in NAMES[1:]:
        first.sibling(name)
    for referee in first.family.values():
        referee.calm_at = 0.0
    return Game(world, first, Progress(world, first))


def test_callers_take_several_locks_in_a_few_runs() -> None:
    plans = [plan for seed in range(2000) if (plan := several(seed)) is not None]
    assert 0.7 * SEVERAL_PART < len(plans) / 2000 < 1.3 * SEVERAL_PART
    assert all(plan.several is not None for plan in plans)
    assert any(CLOSE_LOOP in plan.kinds for plan in plans)
    assert any(plan.closes for plan in plans)
    assert any(plan.kinds == ("interrupt",) for plan in plans)


def test_a_circle_of_callers_is_found(game: Game) -> None:
    one, other = game.process("one"), game.process("other")
    game.wait(one, "ab")
    game.wait(other, "ab")
    assert game.pass_time(2 * HAND_OFF_SECONDS) == []
    assert any("nobody got on" in violation for violation in game.pass_time(0.1))


def test_callers_that_wait_are_not_inside(game: Game) -> None:
    """Two threads have one lock each, by plain locks in opposite orders."""
    one, other = game.process("one"), game.process("other")
    game.wait(one, "ab", game.hold(one, "a"))
    game.wait(other, "ab", game.hold(other, "b"))
    assert game.pass_time(2 * HAND_OFF_SECONDS + 0.1) != []


def test_callers_may_wait_for_a_holder_that_is_inside(game: Game) -> None:
    inside = game.process("inside")
    belief = game.hold(inside, "c")
    game.wait(game.process("one"), "ab")
    game.wait(game.process("other"), "bc")  # may have b, which the first one wants
    assert game.pass_time(100.0) == []
    belief.is_over = belief.has_left = True
    game.first.family["c"].idle.freed(inside)
    assert game.pass_time(3 * HAND_OFF_SECONDS) == []
    assert game.pass_time(0.1) != []


def test_a_holder_of_another_lock_is_no_excuse(game: Game) -> None:
    game.hold(game.process("inside"), "c")
    game.wait(game.process("one"), "ab")
    assert game.pass_time(2 * HAND_OFF_SECONDS + 0.1) != []


def test_a_holder_that_begins_to_wait_was_inside_until_then(game: Game) -> None:
    holder = game.process("holder")
    belief = game.hold(holder, "a")
    game.wait(game.process("one"), "a")
    assert game.pass_time(10.0) == []
    game.wait(holder, "ab", belief)
    assert game.pass_time(2 * HAND_OFF_SECONDS) == []


def test_calls_that_end_or_die_are_not_judged(game: Game) -> None:
    dead = game.process("dead")
    game.wait(dead, "ab")
    game.progress.waiting.pop(game.wait(game.process("one"), "c"))
    dead.crash()
    assert game.pass_time(100.0) == []


def test_a_death_costs_a_heartbeat_for_each_lock(game: Game) -> None:
    game.process("dead").crash()
    game.wait(game.process("one"), "ab")
    assert game.pass_time(2 * (HAND_OFF_SECONDS + HEARTBEAT_SECONDS)) == []
    assert game.pass_time(0.1) != []


def test_nobody_is_judged_before_all_is_well(game: Game) -> None:
    game.wait(game.process("one"), "ab")
    game.first.calm_at = 50.0
    assert game.pass_time(50.0) == []
    assert game.pass_time(2 * HAND_OFF_SECONDS + 0.1) != []


def test_no_lock_is_lost_during_the_wait_for_another(game: Game) -> None:
    process = game.process("one")
    call = Call(process, 0.0, 0.0, 5.0, (), 0)
    game.first.family["b"].operators = 1
    game.first.lost_some(call, 0.0, LockLostError("ended by force"))
    assert game.first.violations == []
    game.first.family["b"].operators = 0
    game.first.lost_some(call, 0.0, LockLostError("expired"))
    assert len(game.first.violations) == 1


def test_referees_share_what_is_no_locks_own(game: Game) -> None:
    one, other = (game.first.family[name] for name in NAMES[:2])
    other.violate("something")
    assert one.violations == ["something"]
    assert one.clocks is other.clocks
    assert one.stuck is other.stuck is other.idle.stuck is other.ends.stuck
    assert one.idle is not other.idle
    assert one.beliefs is not other.beliefs


def test_tasks_and_threads_take_all_locks_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    granted = set()
    original = SeveralReferee.granted

    def watched(self: SeveralReferee, lock: Any, *others: Any) -> Belief:
        granted.add((self.keys.name, type(lock).__name__))
        return original(self, lock, *others)

    monkeypatch.setattr(SeveralReferee, "granted", watched)
    plan = evolve(draw(Random(0)), several=Several(NAMES, whole=0.5, alone=0.5), clients=2, loops=frozenset({0}))
    Simulation(0, evolve(plan, kinds=(), turns=20)).run()
    assert granted == {(name, kind) for name in NAMES for kind in ("Lock", "TaskLock")}
