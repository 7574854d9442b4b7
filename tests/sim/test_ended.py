"""Event loops that are closed while tasks are pending: the acts of the simulator, and the end of the tasks' holds."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relock.testing._conditions import Conditions
from relock.testing._loop import VirtualLoop
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.beliefs import Belief
from sim.draws import draw
from sim.ends import ABANDONED_SECONDS
from sim.idle import HAND_OFF_SECONDS
from sim.leftovers import LOCK_KEY, LOCK_KEYS
from sim.liveness import ENDED_PART, ended
from sim.referee import Referee
from sim.simulation import Simulation

TTL_SECONDS = 3.0
OWNER = b"client:1"


class Game:
    """A referee, and a client whose task has the lock."""

    def __init__(self) -> None:
        self.world = World(0)
        servers = [Server(self.world, 0, Conditions(), rate=1.0, offset=0.0)]
        self.referee = Referee(self.world, servers, draw(Random(0)))
        self.referee.calm_at = 0.0
        self.master = servers[0].master
        self.process = Process(self.world, "client")
        self.belief = self._grant(self.process, OWNER)

    def _grant(self, process: Process, owner: bytes) -> Belief:
        now = self.world.now
        held: Any = SimpleNamespace(
            token=int(1e6 * now) + 1, owner=owner, deadline=now + TTL_SECONDS, ttl=TTL_SECONDS, renew=True,
            granted_at=now, at_least=0.0, remaining=lambda _now: TTL_SECONDS, keys=LOCK_KEYS,
        )  # fmt: skip
        self.master.read("HSET", LOCK_KEY, owner, 1)
        return self.referee.granted(cast(Any, None), held, self.referee.called(process, 1.0))

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)


@pytest.fixture
def game() -> Game:
    return Game()


@pytest.mark.parametrize("was_leaving", [False, True])
@pytest.mark.parametrize("late", [-0.01, 0.01])
def test_the_hold_of_a_closed_loops_task_ends_within_its_lease(game: Game, late: float, *, was_leaving: bool) -> None:
    """Holds end even if their release had just been called, and perhaps was never sent."""
    if was_leaving:
        game.referee.leaves(game.belief)
    game.referee.ends.abandoned(game.process, game.referee.beliefs)
    game.pass_time(TTL_SECONDS + ABANDONED_SECONDS + late)
    assert bool(game.referee.violations) == (late > 0)


def test_what_a_task_had_released_before_has_nothing_to_do_with_its_loop(game: Game) -> None:
    game.referee.leaves(game.belief)
    game.belief.is_released = True
    game.master.flush()
    game.referee.ends.abandoned(game.process, game.referee.beliefs)
    assert game.belief.is_abandoned is False


@pytest.mark.parametrize("late", [-0.01, 0.01])
def test_others_wait_for_that_lease_and_no_longer(game: Game, late: float) -> None:
    game.referee.ends.abandoned(game.process, game.referee.beliefs)
    other = game.referee.called(Process(game.world, "other"), timeout=100.0)
    game.world.after(TTL_SECONDS, game.master.flush)
    game.pass_time(TTL_SECONDS + ABANDONED_SECONDS + HAND_OFF_SECONDS + late)
    game.referee._check_idle(other)
    assert bool(game.referee.violations) == (late > 0)


def test_a_task_that_never_goes_on_believes_nothing(game: Game) -> None:
    assert game.referee.believers() == [game.belief]
    game.referee.ends.abandoned(game.process, game.referee.beliefs)
    assert game.referee.believers() == []


# The simulator's acts -------------------------------------------------------------------------------------------------


def test_a_loop_is_closed_after_its_turn_and_keeps_its_tasks() -> None:
    world = World(0)
    process = Process(world, "client")
    loop, done = VirtualLoop(process), []
    tasks: list[asyncio.Task[None]] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            done.append("ended")

    def begin() -> None:
        tasks.append(loop.create_task(wait()))
        loop.call_later(0.1, end)

    def end() -> None:
        loop.end(lambda: done.append("closed"))
        loop.call_soon(done.append, "never")

    loop.call_soon_threadsafe(begin)
    world.run(1.0)
    assert done == ["closed"]
    assert loop.is_closed()
    assert not loop.is_running()
    assert not tasks[0].done()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon_threadsafe(print)
    process.end()
    assert done == ["closed", "ended"]


@pytest.mark.parametrize("are_all_done", [True, False])
def test_no_loop_is_closed_in_a_run_that_is_over(monkeypatch: pytest.MonkeyPatch, *, are_all_done: bool) -> None:
    """The next loop would take the lock while the referee looks for leftovers."""
    seed, plan = next((seed, plan) for seed in range(2000) if (plan := ended(seed)) is not None)
    simulation = Simulation(seed, plan)
    monkeypatch.setattr(type(simulation.cast), "are_all_done", lambda _cast: are_all_done)
    simulation.world.run(plan.begins + 1.0)
    simulation.strikes._close_loop()
    assert any(door.is_left for door in simulation.cast.doors.values()) is not are_all_done


def test_loops_are_closed_in_a_few_runs_in_which_nothing_else_goes_wrong() -> None:
    plans = [plan for seed in range(2000) if (plan := ended(seed)) is not None]
    assert 0.7 * ENDED_PART < len(plans) / 2000 < 1.3 * ENDED_PART
    assert all(plan.is_calm for plan in plans)
