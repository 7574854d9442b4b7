"""Runs in which callers take permits of a semaphore, and how the referee judges them."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, evolve

from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.lock_spec import ALIVE_MS
from relock._core.quorum import NEVER
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.beliefs import Belief, Call
from sim.doors import LIMITED_PART, limited
from sim.draws import draw
from sim.idle import HAND_OFF_SECONDS
from sim.permits import LATE_SECONDS, SEMAPHORE_KEYS, PermitReferee
from sim.plan import OVERRIDE, Permits
from sim.simulation import Simulation

FOREVER = 1000.0
PLAN = evolve(draw(Random(0)), renew=True)


@define
class Game:
    """Referee of a semaphore, when all is well."""

    world: World
    referee: PermitReferee

    def process(self, name: str) -> Process:
        process = Process(self.world, name)
        self.referee._sessions.append((process, SimpleNamespace(client_id=name)))  # type: ignore[arg-type]
        return process

    def ask(self, name: str = "asks", *, permits: int = 1, limit: int = 2) -> Call:
        call = Call(self.process(name), self.world.now, 0.0, FOREVER, (), 0, permits=permits, limit=limit)
        self.referee.idle.waiting[call] = None
        return call

    def grant(
        self,
        slot: int,
        token: int = 1,
        *,
        permits: int = 1,
        limit: int = 2,
        lease: float = FOREVER,
        is_repeated: bool = False,
    ) -> Belief:
        """Let a caller get permits, for so many seconds."""
        call = self.ask(f"has {token}", permits=permits, limit=limit)
        self.referee.over(call)
        now = self.world.now
        hold: Any = SimpleNamespace(
            owner=b"%s:%d" % (call.process.name.encode(), token), deadline=now + lease, ttl=lease, renew=False,
            loss=None, granted_at=now, at_least=0.0, kept=slot, token=token, keys=SEMAPHORE_KEYS, quorum=1,
            lease_ends=[now + lease], healing_pending=is_repeated,
        )  # fmt: skip
        hold.remaining = lambda now: max(0.0, hold.deadline - now)
        return self.referee.granted(SimpleNamespace(permits=permits), hold, call)  # type: ignore[arg-type]

    def crash(self, call: Call) -> None:
        call.process.crash()
        self.referee.died(call.process)

    def pass_time(self, seconds: float) -> list[str]:
        """Let time pass; return the violations so far."""
        self.world.run(self.world.now + seconds)
        self.referee.check_exclusion()
        return self.referee.violations


@pytest.fixture
def game() -> Game:
    world = World(0)
    servers = [Server(world, 0, Conditions(), rate=1.0, offset=0.0)]
    referee = PermitReferee(world, servers, PLAN)
    referee.calm_at = 0.0
    return Game(world, referee)


def test_callers_take_permits_in_some_runs() -> None:
    plans = [plan for seed in range(2000) if (plan := limited(seed)) is not None]
    assert 0.7 * LIMITED_PART < len(plans) / 2000 < 1.3 * LIMITED_PART
    assert {plan.masters for plan in plans} == {1, 3, 5}
    drawn = [plan.permits for plan in plans if plan.permits is not None]
    assert len(drawn) == len(plans)
    assert {limit for permits in drawn for limit in permits.limits} == {1, 2, 3, 4, 5}
    assert any(len(set(permits.limits)) == 2 for permits in drawn)
    assert any(OVERRIDE in plan.kinds for plan in plans)


def test_as_many_believe_as_the_limit_says(game: Game) -> None:
    game.grant(0, 1)
    game.grant(1, 2)
    assert game.pass_time(0.0) == []
    game.grant(2, 3, limit=3)  # by newer code
    assert game.pass_time(0.0) == []
    game.grant(3, 4, limit=3)
    assert any("got slot 3, and there are 3" in one for one in game.referee.violations)
    assert any("believe that they have 4 permits of 3" in one for one in game.referee.violations)


def test_permits_that_are_taken_at_once_all_count(game: Game) -> None:
    game.grant(-1, 1, permits=2, limit=3)
    game.grant(-1, 2, permits=2, limit=3)
    assert any("4 permits of 3" in one for one in game.referee.violations)


def test_two_believers_of_one_slot_are_found(game: Game) -> None:
    game.grant(1, 1)
    game.grant(1, 2)
    assert any("slot 1" in one for one in game.referee.violations)


def test_a_token_is_above_that_of_the_holder_before_in_the_slot(game: Game) -> None:
    one = game.grant(0, 7)
    game.referee.leaves(one)
    game.grant(0, 7)
    assert any("token 7, which is not above 7" in one for one in game.referee.violations)


def test_an_operator_lowers_the_limit_once_a_quorum_has_the_override(game: Game) -> None:
    one = game.referee.limits.begins(1, 10.0)
    game.grant(0, 1)
    game.grant(1, 2)  # it may not have arrived
    game.referee.limits.is_set(one)
    assert game.pass_time(1.0) == []
    game.grant(1, 3)
    assert any("got slot 1, and there are 1" in one for one in game.referee.violations)


def test_of_two_overrides_at_a_time_the_first_may_come_last_and_end_sooner(game: Game) -> None:
    for limit, seconds in ((0, 0.5), (1, 10.0)):
        game.referee.limits.begins(limit, seconds)
    for one in game.referee.limits.overrides:
        game.referee.limits.is_set(one)
    game.world.run(5.0)
    assert game.referee.limits.within(2, 5.0) == {1, 2}


def test_an_operator_raises_the_limit_for_a_time(game: Game) -> None:
    game.referee.limits.begins(3, 5.0)
    assert game.referee.limits.within(2, 0.0) == {2, 3}
    game.world.run(5.1 + LATE_SECONDS)
    assert game.referee.limits.within(2, game.world.now) == {2}


def test_nobody_waits_for_long_beside_a_free_permit(game: Game) -> None:
    game.grant(0, 1)
    game.ask()
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert any("though so many were free" in one for one in game.pass_time(0.1))


def test_the_end_of_a_lease_frees_a_permit_though_another_one_changes_hands(game: Game) -> None:
    game.grant(0, 1, lease=1.0)
    other = game.grant(1, 2)
    game.ask()
    assert game.pass_time(1.2) == []
    game.referee.leaves(other)
    game.grant(1, 3)
    assert game.pass_time(0.35) == []
    assert game.pass_time(0.2) != []


def test_a_permit_that_an_operator_ends_is_free_from_then_on_even_if_its_owner_hears_of_that_at_once(
    game: Game,
) -> None:
    ended = game.grant(0, 1, limit=1)
    game.ask(limit=1)
    assert game.pass_time(10.0) == []
    game.referee.forced_out(ended.hold.owner)
    ended.hold.deadline = NEVER
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert any("though so many were free" in one for one in game.pass_time(0.1))


def test_a_large_request_waits_and_those_behind_it(game: Game) -> None:
    game.grant(0, 1)
    large = game.ask("large", permits=2)
    game.world.run(10.0)
    game.ask("small")
    assert game.pass_time(10.0) == []
    game.referee.over(large)
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert game.pass_time(0.1) != []


@pytest.mark.parametrize(
    ("permits", "limit", "seconds"),
    [(1, 2, ALIVE_MS / 1000 + HEARTBEAT_SECONDS), (2, 3, HEARTBEAT_SECONDS), (1, 3, 0.0), (1, 4, 0.0)],
    ids=["a smaller limit", "more permits", "the same wish", "a larger limit"],
)
def test_a_waiter_that_has_crashed_keeps_those_behind_it_for_so_long(
    game: Game, permits: int, limit: int, seconds: float
) -> None:
    for slot in range(2):
        game.grant(slot, slot + 1, limit=3)
    first = game.ask("first", permits=permits, limit=limit)
    game.ask(limit=3)
    game.crash(first)
    assert game.pass_time(seconds + HAND_OFF_SECONDS) == []
    assert any("though so many were free" in one for one in game.pass_time(0.1))


def test_a_waiter_that_has_crashed_keeps_nobody_waiting_once_there_is_room_by_its_limit(game: Game) -> None:
    holders = [game.grant(slot, slot + 1, limit=3) for slot in range(2)]
    first = game.ask("first", limit=2)
    game.ask(limit=3)
    game.crash(first)
    assert game.pass_time(2 * HEARTBEAT_SECONDS) == []
    game.referee.leaves(holders[1])
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert game.pass_time(0.1) != []


def test_the_end_of_an_override_is_heard_of_by_heartbeats(game: Game) -> None:
    game.referee.limits.begins(0, 5.0)
    game.ask()
    assert game.pass_time(5.0 + HEARTBEAT_SECONDS) == []
    assert game.pass_time(HEARTBEAT_SECONDS) != []


def test_a_master_gives_a_slot_to_one_owner(game: Game) -> None:
    (server,) = game.referee.servers
    for owner in (b"one:1", b"other:2"):
        server.master.read("HSET", SEMAPHORE_KEYS.permits, owner, 0)
        server.master.read("ZADD", SEMAPHORE_KEYS.leases, 10**15, owner)
    game.referee._look_at(server)
    assert any("has given slot 0 to" in one for one in game.referee.violations)


def test_tasks_and_threads_take_permits_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    granted = set()
    original = PermitReferee.granted

    def watched(self: PermitReferee, lock: Any, *others: Any) -> Belief:
        granted.add((type(lock).__name__, lock.permits))
        return original(self, lock, *others)

    monkeypatch.setattr(PermitReferee, "granted", watched)
    permits = Permits((4,), most=2, more=0.3, fair=(True,), handoffs=("grant",))
    plan = evolve(draw(Random(0)), permits=permits, masters=1, clients=2, loops=frozenset({0}), kinds=(), turns=10)
    Simulation(4_532_400, plan).run()
    assert granted == {(kind, count) for kind in ("Permit", "TaskLock") for count in (1, 2)}


def test_runs_with_a_semaphore_find_no_violation() -> None:
    """The seeds of the other tests have some, too."""
    for seed in range(4_532_400, 4_532_410):
        Simulation(seed, limited(seed, 1.0)).run()


def test_a_call_waits_behind_a_waiter_of_older_code_that_has_crashed() -> None:
    """The older code has a limit of 3, and three permits are taken; a limit of 5 would leave two."""
    Simulation(5_010_509).run()


def test_a_grant_that_was_repeated_is_not_taken_for_the_latest() -> None:
    """Older code asked twice, so its token is the largest; newer code got in between its two requests."""
    Simulation(4_930_117).run()


@pytest.mark.parametrize("is_repeated", [False, True])
def test_older_code_gets_in_beside_newer_code_only_if_it_may_have_come_first(game: Game, is_repeated: bool) -> None:
    game.grant(1, 1, limit=3)
    game.grant(0, 2, limit=1, is_repeated=is_repeated)
    assert any("2 permits of 1" in one for one in game.referee.violations) == (not is_repeated)
