"""Runs in which callers read and write, and how the referee judges them."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, evolve

from relock._owner import ReadKey
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.beliefs import Belief, Call
from sim.doors import READING_PART, reading
from sim.draws import draw
from sim.idle import HAND_OFF_SECONDS
from sim.leftovers import LOCK_KEYS, may_be_beside
from sim.plan import Sides
from sim.read_write import READ_KEYS, ReadWriteReferee
from sim.read_write_turns import ReadWriteTurns
from sim.simulation import Simulation

FOREVER = 1000.0
PLAN = evolve(draw(Random(0)), renew=True)


@define
class Game:
    """Referee of a read-write lock, when all is well."""

    world: World
    referee: ReadWriteReferee

    def ask(self, name: str = "asks", *, reads: bool, beside: Belief | None = None) -> Call:
        process = Process(self.world, name)
        self.referee._sessions.append((process, SimpleNamespace(client_id=name, hubs=SimpleNamespace(all=list))))  # type: ignore[arg-type]
        return self.referee.asked(process, FOREVER, fair=True, reads=reads, beside=beside)

    def grant(
        self, token: int, *, reads: bool, call: Call | None = None, lease: float = FOREVER, owner: int | None = None
    ) -> Belief:
        """Let a caller get the lock, for so many seconds; `owner` is a thread of the caller's client."""
        call = call or self.ask(f"has {token}", reads=reads)
        self.referee.over(call)
        now, caller = self.world.now, owner or token
        hold: Any = SimpleNamespace(
            owner=b"%s:%d" % (call.process.name.encode(), token), deadline=now + lease, ttl=lease, renew=False,
            loss=None, granted_at=now, at_least=0.0, token=token, quorum=1, lease_ends=[now + lease],
            keys=READ_KEYS if reads else LOCK_KEYS, key=ReadKey(caller) if reads else caller,
        )  # fmt: skip
        hold.remaining = lambda now: max(0.0, hold.deadline - now)
        return self.referee.granted(None, hold, call)  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> list[str]:
        """Let time pass; return the violations so far."""
        self.world.run(self.world.now + seconds)
        self.referee.check_exclusion()
        return self.referee.violations


@pytest.fixture
def game() -> Game:
    world = World(0)
    servers = [Server(world, 0, Conditions(), rate=1.0, offset=0.0)]
    referee = ReadWriteReferee(world, servers, PLAN)
    referee.calm_at = 0.0
    return Game(world, referee)


def test_callers_read_and_write_in_some_runs() -> None:
    plans = [plan for seed in range(2000) if (plan := reading(seed)) is not None]
    assert 0.7 * READING_PART < len(plans) / 2000 < 1.3 * READING_PART
    assert {plan.masters for plan in plans} == {1, 3, 5}
    drawn = [plan.sides for plan in plans if plan.sides is not None]
    assert len(drawn) == len(plans)
    assert any(len(sides.renew) == 2 for sides in drawn)


def test_readers_believe_together_and_a_writer_alone(game: Game) -> None:
    game.grant(1, reads=True)
    game.grant(2, reads=True)
    assert game.pass_time(0.0) == []
    game.grant(3, reads=False)
    assert "two holders: has 1 and has 3" in game.referee.violations


def test_a_writer_may_read_as_well_and_nobody_else(game: Game) -> None:
    writer = game.grant(1, reads=False)
    own = game.ask("has 1", reads=True, beside=writer)
    game.grant(2, reads=True, call=evolve(own, process=writer.process), owner=1)
    assert game.pass_time(0.0) == []
    game.grant(3, reads=True)
    assert "two holders: has 1 and has 3" in game.referee.violations


def test_a_writer_is_a_reader_from_the_call_of_a_downgrade_on(game: Game) -> None:
    game.grant(1, reads=False).shares = True
    game.grant(2, reads=True)
    assert game.pass_time(0.0) == []
    game.grant(3, reads=False)
    assert game.referee.violations


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (False, False)])
def test_a_token_is_above_that_of_the_holder_before(game: Game, *, before: bool, after: bool) -> None:
    one = game.grant(7, reads=before)
    game.referee.leaves(one)
    game.grant(7, reads=after)
    assert any("token 7, which is not above 7" in one for one in game.referee.violations)


def test_tokens_of_readers_mean_nothing_between_readers(game: Game) -> None:
    game.grant(7, reads=True)
    game.grant(6, reads=True)
    assert game.pass_time(0.0) == []


def test_nobody_waits_for_long_for_a_lock_that_is_free(game: Game) -> None:
    game.ask(reads=False)
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert any("though it could write" in one for one in game.pass_time(0.1))


def test_a_reader_does_not_wait_for_readers_and_a_writer_does(game: Game) -> None:
    game.grant(1, reads=True, lease=10.0)
    game.ask("writes", reads=False)
    assert game.pass_time(10.0) == []
    game.grant(2, reads=True)
    game.ask("reads", reads=True)
    assert any("reads waited" in one for one in game.pass_time(2 * HAND_OFF_SECONDS)) is False


def test_a_writer_that_waits_keeps_out_the_readers_behind_it(game: Game) -> None:
    game.grant(1, reads=True)
    writer = game.ask("writes", reads=False)
    game.world.run(1.0)
    game.ask("reads", reads=True)
    assert game.pass_time(10.0) == []
    game.referee.over(writer)
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert any("though it could read" in one for one in game.pass_time(0.1))


def test_a_writer_waits_for_the_last_reader(game: Game) -> None:
    one, other = game.grant(1, reads=True), game.grant(2, reads=True)
    game.ask("writes", reads=False)
    game.referee.leaves(one)
    assert game.pass_time(1.0) == []
    game.referee.leaves(other)
    assert game.pass_time(HAND_OFF_SECONDS) == []
    assert any("though it could write" in one for one in game.pass_time(0.1))


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (b"me:1&", b"you:1&", True),
        (b"me:1@3000", b"you:1&", False),
        (b"me:1@3000", b"me:2&1", True),
        (b"me:2&1~1.7", b"me:1~3.5", True),
        (b"me:1@3000", b"me:2&3", False),
        (b"me:1", b"you:2&1", False),
        (b"me:1", b"me:2", False),
    ],
)
def test_names_say_who_may_have_a_lock_together(one: bytes, other: bytes, *, may: bool) -> None:
    assert may_be_beside(one, other) is may_be_beside(other, one) is may


def test_a_master_gives_the_lock_to_a_writer_alone(game: Game) -> None:
    (server,) = game.referee.servers
    for owner in (b"one:1&", b"other:2&"):
        server.master.read("HSET", LOCK_KEYS.lock, owner, 1)
        server.master.read("ZADD", LOCK_KEYS.leases, 10**15, owner)
    game.referee._look_at(server)
    assert game.referee.violations == []
    server.master.read("HSET", LOCK_KEYS.lock, b"writes:1", 1)
    game.referee._look_at(server)
    assert any("has given the lock to" in one for one in game.referee.violations)


def test_tasks_and_threads_take_every_step_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    granted, steps = set(), set()
    original = ReadWriteReferee.granted

    def watched(self: ReadWriteReferee, lock: Any, *others: Any) -> Belief:
        belief = original(self, lock, *others)
        granted.add((type(lock).__name__, belief.shares))
        return belief

    monkeypatch.setattr(ReadWriteReferee, "granted", watched)
    for name in ("_nest", "_take_inside", "_downgrade", "_release_other", "_leave_one"):

        def taken(self: Any, held: Any, step: Any = getattr(ReadWriteTurns, name)) -> None:  # noqa: B008
            steps.add(step.__name__)
            step(self, held)

        monkeypatch.setattr(ReadWriteTurns, name, taken)
    sides = Sides(reads=0.5, inside=0.7, fair=(True,), renew=(True,), handoffs=("grant",))
    plan = evolve(draw(Random(0)), sides=sides, masters=1, clients=2, loops=frozenset({0}), kinds=(), turns=20)
    Simulation(4_540_000, plan).run()
    assert granted == {("ReadLock", True), ("WriteLock", False), ("TaskLock", True), ("TaskLock", False)}
    assert len(steps) == 5


def test_runs_in_which_callers_read_and_write_find_no_violation() -> None:
    """The seeds of the other tests have some, too."""
    for seed in range(4_540_000, 4_540_010):
        Simulation(seed, reading(seed, 1.0)).run()
