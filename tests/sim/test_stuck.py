"""Clients that live and cannot act: how the simulator stops them, and how long the referee lets the lock wait."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import define, evolve
from support.hubs import hubs_of

from relock._keys import lock_keys
from relock.testing._conditions import Conditions
from relock.testing._loop import VirtualLoop
from relock.testing._process import Parking, Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.beliefs import Call
from sim.draws import draw
from sim.ends import RELEASED_SECONDS
from sim.idle import HAND_OFF_SECONDS
from sim.leftovers import LOCK_KEY, LOCK_KEYS
from sim.liveness import STUCK_PART, stuck
from sim.plan import LOCK, LONG_HANDLER, LOOP_STUCK, STOP_PROCESS
from sim.referee import OVERSHOOT_SECONDS, Referee
from sim.simulation import Simulation
from sim.stuck import Spell, Stuck

LONG_SECONDS = 100.0
BLOCK_LOOP, STOP_LOOP = LOOP_STUCK


@define
class Game:
    """A referee, and clients that wait for a lock that is free from the beginning."""

    world: World
    referee: Referee

    def call(self, name: str, timeout: float = LONG_SECONDS) -> Call:
        return self.referee.called(Process(self.world, name), timeout)

    def stick(self, call: Call, kind: str, seconds: float = LONG_SECONDS) -> None:
        spell = self.referee.stuck.begin(call, kind, seconds)
        self.world.after(seconds, lambda: self.referee.stuck.end(spell))

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def grant(self, call: Call) -> None:
        """Give the lock to the caller, which releases it at once."""
        held: Any = SimpleNamespace(
            token=int(1e6 * self.world.now) + 1, owner=b"client:1", deadline=self.world.now, ttl=1.0, renew=True,
            granted_at=self.world.now, remaining=lambda _now: 0.0, keys=LOCK_KEYS, at_least=0.0,
        )  # fmt: skip
        self.referee.over(call)
        self.referee.leaves(self.referee.granted(cast(Any, None), held, call))


@pytest.fixture
def game() -> Game:
    world = World(0)
    servers = [Server(world, 0, Conditions(), rate=1.0, offset=0.0)]
    game = Game(world, Referee(world, servers, evolve(draw(Random(0)), fair=True)))
    game.referee.calm_at = 0.0
    return game


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        ([], 0.0),
        ([BLOCK_LOOP], 5.5),
        ([STOP_LOOP], 5.5),
        ([LONG_HANDLER], 5.5),
        ([STOP_PROCESS], 10.0),
        ([BLOCK_LOOP, LONG_HANDLER], 11.0),
    ],
)
def test_a_free_lock_waits_only_so_long_for_those_that_cannot_act(
    game: Game, kinds: list[str], seconds: float, *, is_late: bool
) -> None:
    for number, kind in enumerate(kinds):
        game.stick(game.call(f"stuck-{number}"), kind)
    able = game.call("able")
    game.pass_time(seconds + HAND_OFF_SECONDS + (0.01 if is_late else -0.01))
    game.grant(able)
    assert bool(game.referee.violations) == is_late


def test_one_that_is_stuck_behind_others_costs_them_nothing(game: Game) -> None:
    able = game.call("able")
    game.pass_time(2.0)
    game.stick(game.call("stuck"), BLOCK_LOOP)
    game.pass_time(HAND_OFF_SECONDS)
    game.grant(able)
    assert game.referee.violations == ["able waited for 2.500 s though nobody had it"]


def test_one_that_comes_back_finds_others_in_its_place(game: Game) -> None:
    """Waiters that came later have passed the stuck one meanwhile."""
    back = game.call("back")
    game.stick(back, STOP_PROCESS, seconds=5.0)
    game.pass_time(2.0)
    game.stick(game.call("stuck"), BLOCK_LOOP)
    game.pass_time(3.0 + 5.5)
    game.grant(back)
    assert game.referee.violations == []


def test_one_that_went_on_before_the_lock_was_free_costs_nothing(game: Game) -> None:
    stuck = game.call("stuck")
    game.stick(stuck, BLOCK_LOOP, seconds=1.0)
    game.pass_time(2.0)
    game.referee.over(stuck)
    able = game.call("able")
    game.pass_time(HAND_OFF_SECONDS + 0.01)
    game.grant(able)
    assert len(game.referee.violations) == 1


def test_one_that_is_stuck_costs_no_more_in_all_however_often_the_lock_is_free(game: Game) -> None:
    game.stick(game.call("stuck"), BLOCK_LOOP)
    found = []
    for number in range(3):
        able = game.call(f"able-{number}")
        game.pass_time(3.0)
        game.grant(able)
        found.append(len(game.referee.violations))
    assert found == [0, 0, 1]


def test_whoever_gets_the_lock_another_one_must_not_have_waited_too_long(game: Game) -> None:
    """The waiter that gets the lock could not act until now."""
    came_late = game.call("stuck")
    game.stick(came_late, BLOCK_LOOP, seconds=8.0)
    game.call("able")
    game.pass_time(8.1)
    game.grant(came_late)
    assert game.referee.violations == ["able waited for 8.100 s though nobody had it"]


def test_a_wait_that_ends_in_vain_must_not_have_been_for_what_nobody_had(game: Game) -> None:
    call = game.call("able", timeout=2.0)
    game.pass_time(2.0)
    game.referee.refused(call)
    assert game.referee.violations == ["able waited for 2.000 s though nobody had it"]


@pytest.mark.parametrize("late", [OVERSHOOT_SECONDS - 0.01, OVERSHOOT_SECONDS + 0.01])
def test_a_wait_ends_soon_after_its_thread_can_act(game: Game, late: float) -> None:
    call = game.call("stuck", timeout=1.0)
    game.stick(call, LONG_HANDLER, seconds=5.0)
    game.pass_time(5.0 + late)
    game.referee.check_timeout(call)
    assert bool(game.referee.violations) == (late > OVERSHOOT_SECONDS)


@pytest.mark.parametrize("is_stuck", [True, False])
def test_one_that_cannot_act_may_be_passed(game: Game, *, is_stuck: bool) -> None:
    process = Process(game.world, "first")
    waiter = SimpleNamespace(owner=b"first:1", tickets=[7], keys=lock_keys("lock", LOCK))
    hub = SimpleNamespace(waiters={waiter.owner: waiter}, subscriptions=[])
    game.referee._sessions.append((process, cast(Any, SimpleNamespace(hubs=hubs_of(hub)))))
    first = game.referee.called(process, LONG_SECONDS)
    if is_stuck:
        game.stick(first, BLOCK_LOOP)
    game.grant(game.call("second"))
    assert bool(game.referee.violations) is not is_stuck


def test_what_a_blocked_loop_is_to_release_is_free_when_the_loop_turns(game: Game) -> None:
    holder, other = game.call("holder"), game.call("other")
    game.referee.over(holder)
    game.stick(holder, BLOCK_LOOP, seconds=9.0)
    game.grant(holder)
    game.referee.servers[0].master.read("HSET", LOCK_KEY, b"client:1", 1)
    game.world.after(9.0 + RELEASED_SECONDS - 0.01, game.referee.servers[0].master.flush)
    game.pass_time(9.0 + HAND_OFF_SECONDS - 0.01)
    game.grant(other)
    game.pass_time(RELEASED_SECONDS)
    assert game.referee.violations == []


# The stops ------------------------------------------------------------------------------------------------------------


def test_a_thread_in_a_long_handler_goes_on_when_that_returns(game: Game) -> None:
    """Waits may be over before the handler returns."""
    process, went_on = Process(game.world, "client"), []

    def wait() -> None:
        Parking(process).wait(1.0)
        went_on.append(game.world.now)
        process.sleep(1.0)
        went_on.append(game.world.now)

    task = process.start(wait, "waiter")
    game.world.after(0.5, lambda: task.handle(lambda: process.sleep(5.0)))
    game.world.after(5.8, lambda: task.handle(lambda: process.sleep(0.1)))
    game.pass_time(10.0)
    process.end()
    assert went_on == [pytest.approx(5.5, abs=0.01), pytest.approx(6.5, abs=0.01)]


def test_a_loop_that_is_stopped_does_not_run_until_it_is_run_again(game: Game) -> None:
    process, turned = Process(game.world, "client"), []
    loop = VirtualLoop(process)
    loop.call_soon_threadsafe(loop.stop_for, lambda: process.sleep(5.0))
    for at in (1.0, 4.0, 6.0):
        game.world.after(at, lambda: turned.append((loop.is_running(), game.world.now)))
        game.world.after(at, lambda: loop.call_soon_threadsafe(lambda: turned.append((True, game.world.now))))
    game.pass_time(10.0)
    process.end()
    assert [is_running for is_running, _ in turned] == [False, False, True, True, True, True]
    assert turned[2][1] == pytest.approx(5.0, abs=0.01)


def test_the_task_of_a_loop_that_waits_is_no_current_task_for_others(game: Game) -> None:
    """CPython 3.14 refuses a second current task in one real thread, in which all virtual loops run."""
    process = Process(game.world, "client")
    waiting, other = VirtualLoop(process), VirtualLoop(process)
    seen: list[asyncio.Task[None] | None] = []

    async def wait() -> None:
        process.sleep(5.0)
        seen.append(asyncio.current_task())

    async def look() -> None:
        seen.append(asyncio.current_task(waiting))

    task = waiting.create_task(wait())
    game.world.after(1.0, lambda: other.call_soon_threadsafe(lambda: other.create_task(look())))
    game.pass_time(10.0)
    process.end()
    assert (seen, game.world.errors) == ([None, task], [])


def test_all_threads_of_a_client_that_gets_stuck_wait_and_two_others_can_act(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, seen = Stuck.begin, list[tuple[int, bool, int]]()

    def watch(self: Stuck, call: Call, kind: str, seconds: float) -> Spell:
        waiting = [one for one in simulation.referee.idle.waiting if one.process is call.process]
        seen.append((len(waiting), call.process not in self.now(), len(self.now())))
        return begin(self, call, kind, seconds)

    monkeypatch.setattr(Stuck, "begin", watch)
    for seed in range(10):
        plan = stuck(seed, 1.0)
        assert plan is not None
        seen.clear()
        simulation = Simulation(seed, plan)
        simulation.run()
        assert all(count == plan.threads and is_new for count, is_new, _ in seen)
        assert all(others + 2 < plan.clients for _, _, others in seen)
    assert seen


def test_clients_get_stuck_in_a_few_runs_in_which_nothing_else_goes_wrong() -> None:
    plans = [plan for seed in range(2000) if (plan := stuck(seed)) is not None]
    assert 0.7 * STUCK_PART <= len(plans) / 2000 <= 1.3 * STUCK_PART
    assert all(plan.is_calm for plan in plans)
