"""Clients that are closed in the midst of a run: nothing of theirs may be left on any reachable master."""

import contextlib
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve
from support.hubs import hubs_of

from relock import MasterDown
from relock._keys import lock_keys
from relock._runtime.wakeups.hubs import Hubs
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.actors import ClientOfActors
from sim.beliefs import Belief
from sim.draws import draw
from sim.ends import ABANDONED_SECONDS, LATE_SECONDS, RELEASED_SECONDS, Ends
from sim.idle import HAND_OFF_SECONDS
from sim.leftovers import LOCK_KEY, LOCK_KEYS
from sim.liveness import CLOSING_PART, closing
from sim.plan import LOCK, Plan
from sim.referee import COUNT_SECONDS, Referee
from sim.simulation import Simulation, ViolationError

TTL_SECONDS, NODE_TIMEOUT = 3.0, 0.3
OWNER = b"client-1:1"


class Game:
    """A referee, one master, and a client that is closed."""

    def __init__(self) -> None:
        self.world = World(0)
        self.server = Server(self.world, 0, Conditions(), rate=1.0, offset=0.0)
        self.referee = Referee(self.world, [self.server], draw(Random(0)))
        self.referee.calm_at = 0.0
        self.process = Process(self.world, "client")
        self.session: Any = SimpleNamespace(client_id="client-1", hubs=Hubs())
        self.referee._sessions.append((self.process, cast(Any, self.session)))

    def grant(self, levels: int = 1, owner: bytes = OWNER) -> Belief:
        """Grant the lock to the client."""
        now = self.world.now
        held: Any = SimpleNamespace(
            token=int(1e6 * now) + 1, owner=owner, deadline=now + TTL_SECONDS, ttl=TTL_SECONDS, renew=True, loss="",
            granted_at=now, at_least=0.0, remaining=lambda _now: now + TTL_SECONDS - self.world.now,
            keys=LOCK_KEYS,
        )  # fmt: skip
        self.server.master.read("HSET", LOCK_KEY, owner, levels)
        lock: Any = SimpleNamespace(hold_count=1)
        return self.referee.granted(lock, held, self.referee.called(self.process, 1.0))

    def close(self) -> None:
        self.referee.ends.closes(self.process, self.referee.beliefs)
        self.referee.ends.closed(self.process, self.session)

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)


@pytest.fixture
def game() -> Game:
    return Game()


LEAVINGS: dict[str, Callable[[Game], object]] = {
    "a hold": lambda game: game.server.master.read("HSET", LOCK_KEY, OWNER, 1),
    "a grant": lambda game: game.server.master.read("HSET", LOCK_KEY, OWNER + b"~7", 1),
    "a place": lambda game: game.server.master.read("ZADD", LOCK_KEY + b":queue", 7, OWNER),
}
OTHERS: dict[str, Callable[[Game], object]] = {
    "another's hold": lambda game: game.server.master.read("HSET", LOCK_KEY, b"client-2:1", 1),
    "another's place": lambda game: game.server.master.read("ZADD", LOCK_KEY + b":queue", 7, b"client-2:1"),
}
AWAY: dict[str, Callable[[Game], object]] = {
    "crashed": lambda game: game.server.crash(),
    "stopped": lambda game: game.server.stop(),
    "cut off": lambda game: game.server.unreachable.add("client"),
}


@pytest.mark.parametrize("leave", LEAVINGS.values(), ids=LEAVINGS)
def test_nothing_of_a_client_is_left_when_its_close_returns(game: Game, leave: Callable[[Game], object]) -> None:
    leave(game)
    game.close()
    assert len(game.referee.violations) == 1
    assert "whose client is closed" in game.referee.violations[0]


@pytest.mark.parametrize("leave", LEAVINGS.values(), ids=LEAVINGS)
def test_nothing_of_a_client_arrives_after_its_close_has_returned(game: Game, leave: Callable[[Game], object]) -> None:
    game.close()
    assert game.referee.violations == []
    leave(game)
    game.pass_time(LATE_SECONDS)
    assert len(game.referee.violations) == 1


@pytest.mark.parametrize("leave", OTHERS.values(), ids=OTHERS)
def test_what_others_have_is_none_of_its_business(game: Game, leave: Callable[[Game], object]) -> None:
    leave(game)
    game.close()
    assert game.referee.violations == []


@pytest.mark.parametrize("go_away", AWAY.values(), ids=AWAY)
def test_a_master_that_cannot_be_reached_may_have_something(game: Game, go_away: Callable[[Game], object]) -> None:
    game.grant()
    game.referee.beliefs.clear()
    go_away(game)
    game.close()
    assert game.referee.violations == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_hold_that_a_thread_has_meanwhile_is_left_to_its_lease(game: Game, *, is_late: bool) -> None:
    """Releases of such a hold reach no master, and its count is not written; both may come while `close` runs."""
    if not is_late:
        belief = game.grant(levels=2)
    game.close()
    if is_late:
        belief = game.grant(levels=2)
    game.pass_time(2 * COUNT_SECONDS)
    game.referee.look(belief, 1)
    game.pass_time(TTL_SECONDS)
    game.referee.look(belief, 1)
    game.referee.leaves(belief)
    game.pass_time(ABANDONED_SECONDS - 2 * COUNT_SECONDS - 0.01)
    assert game.referee.violations == []
    game.pass_time(RELEASED_SECONDS)
    assert game.referee.violations == ["master-0 has a hold that client has released"]


@pytest.mark.parametrize(("waiter", "is_wrong"), [(OWNER, False), (b"client-1:2", True)])
def test_the_place_of_such_a_hold_is_left_with_it(game: Game, waiter: bytes, *, is_wrong: bool) -> None:
    game.grant(owner=OWNER + b"~1.7")
    game.server.master.read("ZADD", LOCK_KEY + b":queue", 7, waiter)
    game.close()
    assert bool(game.referee.violations) is is_wrong


def test_a_hold_that_was_released_before_is_left_to_nothing(game: Game) -> None:
    game.referee.leaves(game.grant())
    game.close()
    assert len(game.referee.violations) == 1


@pytest.mark.parametrize("late", [-0.01, 0.01])
def test_others_wait_for_the_lease_of_such_a_hold_and_no_longer(game: Game, late: float) -> None:
    game.grant()
    game.close()
    other = game.referee.called(Process(game.world, "other"), timeout=100.0)
    game.pass_time(TTL_SECONDS + ABANDONED_SECONDS + HAND_OFF_SECONDS + late)
    game.referee._check_idle(other)
    assert bool(game.referee.violations) == (late > 0)


@pytest.mark.parametrize("is_closing", [True, False])
def test_a_waiter_of_a_client_that_is_being_closed_may_be_passed(game: Game, *, is_closing: bool) -> None:
    waiter = SimpleNamespace(owner=OWNER, tickets=[7], keys=lock_keys("lock", LOCK))
    game.session.hubs = hubs_of(SimpleNamespace(waiters={OWNER: waiter}, subscriptions=[]))
    other = game.referee.called(Process(game.world, "other"), timeout=1.0)
    if is_closing:
        game.close()
    held: Any = SimpleNamespace(token=1, owner=b"client-2:1", remaining=lambda _now: 0.0, granted_at=0.0, at_least=0.0)
    game.referee.granted(cast(Any, None), held, other)
    assert bool(game.referee.violations) is not is_closing


# The runs -----------------------------------------------------------------------------------------------------------


def some(wanted: Callable[[Plan], bool]) -> tuple[int, Plan]:
    """Return a seed and a plan that is wanted."""
    plans = ((seed, closing(seed, part=1.0)) for seed in range(100))
    return next((seed, plan) for seed, plan in plans if plan is not None and wanted(plan))


def test_clients_are_closed_in_a_few_runs_in_which_nothing_else_goes_wrong() -> None:
    plans = [plan for seed in range(2000) if (plan := closing(seed)) is not None]
    assert 0.7 * CLOSING_PART <= len(plans) / 2000 <= 1.3 * CLOSING_PART
    assert all(plan.is_calm for plan in plans)


def test_a_minority_of_the_masters_is_slower_in_some_runs() -> None:
    seed, plan = some(lambda plan: plan.masters == 5 and plan.slow > 0)
    delays = [server.conditions.delay for server in Simulation(seed, plan).servers]
    assert delays == [plan.conditions.delay] * 3 + [plan.slow] * 2


@pytest.mark.parametrize(("slow", "is_wrong"), [(0.0, True), (NODE_TIMEOUT / 60, True), (NODE_TIMEOUT / 20, False)])
def test_a_master_that_is_slow_may_seem_silent(game: Game, slow: float, *, is_wrong: bool) -> None:
    conditions = Conditions(delay=0.0001)
    game.referee.plan = evolve(game.referee.plan, conditions=conditions, node_timeout=NODE_TIMEOUT, slow=slow)
    game.referee.told(game.process, MasterDown(None, "master-0", "Timeout connecting to server"))
    assert bool(game.referee.violations) is is_wrong


@pytest.mark.parametrize("threads", [1, 2])
def test_another_client_follows_one_that_was_closed_or_has_ended_with_its_process(threads: int) -> None:
    """The end of a process waits for all of its threads, so it comes only if no other thread has turns left."""
    seed, plan = some(lambda plan: plan.threads == threads)
    simulation = Simulation(seed, plan).run()
    closed, ended = simulation.faults["close"], simulation.faults["exit"]
    assert (closed > 0, ended > 0) == (True, threads == 1)
    assert len(simulation.cast.clients) == plan.clients + closed + ended


def test_what_a_master_gives_to_a_task_while_its_subscription_is_being_opened_is_given_back() -> None:
    """The loop of the task is closed meanwhile, and then its process ends."""
    seed = 4_840_254
    simulation = Simulation(seed, closing(seed, part=1.0)).run()
    assert simulation.faults["exit"] > 0


def test_a_hold_that_a_repeated_request_has_granted_anew_is_no_leftover_while_its_lease_lasts() -> None:
    """The client is closed before the lease ends, and after all is healed: the network repeats nothing any more."""
    Simulation(5_051_381).run()


@pytest.mark.parametrize("delay", [0.0001, 0.1])
def test_the_ends_of_all_clients_are_judged_where_all_is_well_and_answers_come_soon(
    monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    judged: list[Process] = []
    monkeypatch.setattr(Ends, "closed", lambda _ends, process, _session: judged.append(process))
    plan = evolve(draw(Random(0)), kinds=(), conditions=Conditions(delay=delay), node_timeout=0.3)
    simulation = Simulation(0, plan)
    with contextlib.suppress(ViolationError):  # the answers may come too late for that plan
        simulation.run()
    assert set(judged) == set(simulation.cast.processes if simulation.plan.is_prompt else ())


def test_what_tasks_do_is_cancelled_when_their_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    cancelled: list[ClientOfActors] = []
    end_run, cancel_one = ClientOfActors.end_run, ClientOfActors._cancel_one

    async def cancel(self: ClientOfActors, seconds: float) -> None:
        await cancel_one(self, seconds)
        cancelled.append(self)

    def end(self: ClientOfActors) -> None:
        end_run(self)
        ended.append(self._loop.is_closed())

    monkeypatch.setattr(ClientOfActors, "end_run", end)
    monkeypatch.setattr(ClientOfActors, "_cancel_one", cancel)
    for seed in range(4):
        _, plan = some(lambda plan: plan.threads == 1)
        Simulation(seed, evolve(plan, loops=frozenset(range(plan.clients)))).run()
    assert ended == [True] * len(ended)
    assert ended
    assert cancelled
