"""Clients with another list of masters and a longer guard: they must take no vote away."""

from random import Random

import pytest
from attrs import evolve

from relock._core.quorum import quorum_of
from relock.testing._conditions import Conditions
from relock.testing._server import Server
from relock.testing._world import World
from sim.cast import STRANGE_SECONDS, Cast
from sim.draws import draw
from sim.leftovers import MASTER_KEY
from sim.liveness import STRANGE_PART, strange
from sim.plan import STRANGER
from sim.referee import Referee
from sim.replication import ReplicatedServer

PLAN = evolve(draw(Random(0)), kinds=(STRANGER,), begins=5.0)
EPOCH_SECONDS = 1_700_000_000.0


def referee_of(world: World, count: int) -> Referee:
    servers = [Server(world, number, Conditions(), rate=1.0, offset=EPOCH_SECONDS) for number in range(count)]
    return Referee(world, servers, PLAN)


@pytest.mark.parametrize(
    ("until", "now", "is_wrong"),
    [(None, 6.0, False), (5.9, 6.0, False), (6.1, 6.0, True), (6.1, 4.9, False)],
    ids=["no marker", "its guard is over", "it has no vote", "before the first votes"],
)
def test_no_master_loses_its_vote_for_a_stranger(until: float | None, now: float, *, is_wrong: bool) -> None:
    world = World(0)
    referee = referee_of(world, 3)
    if until is not None:
        until_us = b"%d" % int(1e6 * (EPOCH_SECONDS + until))
        referee.servers[1].master.read("HSET", MASTER_KEY, b"no_vote_until_us", until_us)
    world.run(now)
    referee.check_votes()
    referee.check_votes()
    assert len(referee.violations) == is_wrong, "a violation is told once"


@pytest.mark.filterwarnings("ignore")  # the warning of an even number of masters
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_stranger_never_has_a_quorum_where_there_is_no_guard_yet(*, is_guarded: bool) -> None:
    world = World(0)
    servers = [ReplicatedServer(world, n, Conditions(), rate=1.0, offset=EPOCH_SECONDS) for n in range(3)]
    cast = Cast(world, servers, evolve(PLAN, is_guarded=is_guarded), referee_of(world, 3))
    has_quorum = set()
    for number in range(20):
        _, client = cast.make_stranger(f"stranger-{number}")
        nodes = [node.connection_class(socket_timeout=1.0).server for node in client._nodes]
        has_quorum.add(sum(server in servers for server in nodes) >= quorum_of(len(nodes)))
        assert client._session.options.ttl in STRANGE_SECONDS
    assert has_quorum == ({True, False} if is_guarded else {False})
    for process in cast.strangers:
        process.end()


def test_strangers_come_in_a_few_runs_in_which_nothing_else_goes_wrong() -> None:
    plans = [plan for seed in range(2000) if (plan := strange(seed)) is not None]
    assert 0.7 * STRANGE_PART <= len(plans) / 2000 <= 1.3 * STRANGE_PART
    assert all(plan.is_calm for plan in plans)
    guards = {strange(seed, 1.0).guard > 0 for seed in range(50)}  # type: ignore[union-attr]
    assert guards == {True, False}
