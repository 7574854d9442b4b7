"""The referee: true violations, and events that only look like one."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import define, evolve
from support.hubs import hubs_of

from relock._core.clocks import Offset
from relock._core.master_facts import News, Stepped
from relock._core.quorum import NEVER, quorum_of
from relock._keys import lock_keys
from relock._runtime.wakeups.hubs import Hubs
from relock.testing._conditions import Conditions
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.clocks import Clocks
from sim.draws import draw
from sim.idle import HAND_OFF_SECONDS, Idle
from sim.leftovers import LOCK_KEY
from sim.plan import LOCK, Moves
from sim.referee import Referee

EPOCH_SECONDS = 1_700_000_000.0
LEASE_SECONDS = 1.0


@define
class Held:
    """The part of a hold that the referee looks at."""

    token: int
    seconds: float
    owner: bytes = b"client:1"
    deadline: float = NEVER
    masters: int = 1
    granted_at: float = 0.0
    ttl: float = LEASE_SECONDS

    @property
    def lease_ends(self) -> list[float]:
        return [self.seconds] * self.masters

    @property
    def quorum(self) -> int:
        return quorum_of(self.masters)

    def remaining(self, now: float) -> float:
        return self.seconds - now


@define
class Game:
    """A referee, and clients that get the lock."""

    world: World
    referee: Referee

    def grant(self, name: str, held: Held) -> None:
        process = Process(self.world, name)
        call = self.referee.called(process, timeout=1.0)
        belief = self.referee.granted(cast(Any, None), cast(Any, held), call)
        assert belief.is_believed() == (held.seconds > 0)


@pytest.fixture
def game() -> Game:
    world = World(0)
    return Game(world, Referee(world, servers(world, 1), draw(Random(0))))


def servers(world: World, count: int) -> list[Server]:
    return [Server(world, number, Conditions(), rate=1.0, offset=EPOCH_SECONDS) for number in range(count)]


def test_two_owners_that_believe_are_a_violation(game: Game) -> None:
    game.grant("one", Held(1, 10.0))
    game.grant("two", Held(2, 10.0))
    assert game.referee.violations == ["two holders: one and two"]


def test_a_token_that_falls_is_a_violation(game: Game) -> None:
    first = Held(5, 10.0)
    game.grant("one", first)
    first.seconds = 0.0
    game.grant("two", Held(4, 10.0))
    assert game.referee.violations == ["two got token 4, which is not above 5"]


def test_a_client_that_stood_still_until_its_hold_was_over_may_hear_of_the_grant_late(game: Game) -> None:
    game.grant("one", Held(5, 10.0))
    game.grant("two", Held(4, 0.0))
    assert game.referee.violations == []


@pytest.mark.parametrize(
    ("granted_at", "is_there", "is_wrong"), [(0.5, False, False), (0.5, True, True), (1.5, False, True)]
)
def test_a_client_that_hears_late_of_a_grant_that_an_operator_has_ended_may_believe_in_it(
    game: Game, *, granted_at: float, is_there: bool, is_wrong: bool
) -> None:
    """The operator ended the hold after its grant, and no master has it any more."""
    game.referee.operators = 1
    game.world.run(1.0)
    game.referee.operator_done()
    game.world.run(2.0)
    held = Held(5, 10.0, granted_at=granted_at)
    if is_there:
        game.referee.servers[0].master._store.hset(b"lock:{a}", held.owner, b"1")
    late = Process(game.world, "late")
    game.referee.granted(cast(Any, None), cast(Any, held), game.referee.called(late, timeout=1.0))
    game.grant("two", Held(6, 10.0, owner=b"client:2", granted_at=2.0))
    assert game.referee.violations == (["two holders: late and two"] if is_wrong else [])


@pytest.mark.parametrize("hears", [True, False])
def test_a_waiter_may_be_passed_only_while_its_client_does_not_hear_every_master(game: Game, *, hears: bool) -> None:
    confirmed = [SimpleNamespace(is_confirmed=False) for _ in range(3)]
    for one in confirmed[not hears :]:
        one.is_confirmed = True
    waiter = SimpleNamespace(owner=b"first:1", tickets=[7], keys=lock_keys("lock", LOCK))
    hub = SimpleNamespace(waiters={waiter.owner: waiter}, subscriptions=confirmed)
    game.referee._sessions.append((Process(game.world, "first"), cast(Any, SimpleNamespace(hubs=hubs_of(hub)))))
    game.referee.plan = evolve(game.referee.plan, fair=True)
    game.referee.calm_at = 0.0
    game.grant("second", Held(1, 10.0))
    assert game.referee.violations == (["second passed first:1, which was queued before it came"] if hears else [])


@pytest.mark.parametrize("timeout", [1.0, 100.0])
def test_a_waiter_may_be_passed_while_it_leaves_since_its_time_is_over(game: Game, timeout: float) -> None:
    waiter = SimpleNamespace(owner=b"first:1", tickets=[7], keys=lock_keys("lock", LOCK))
    hub = SimpleNamespace(waiters={waiter.owner: waiter}, subscriptions=[])
    first = Process(game.world, "first")
    game.referee._sessions.append((first, cast(Any, SimpleNamespace(hubs=hubs_of(hub)))))
    game.referee.plan = evolve(game.referee.plan, fair=True)
    game.referee.calm_at = 0.0
    game.referee.called(first, timeout=timeout)
    second = game.referee.called(Process(game.world, "second"), timeout=100.0)
    game.world.run(1.1)
    game.referee.granted(cast(Any, None), cast(Any, Held(1, 10.0)), second)
    passed = "second passed first:1, which was queued before it came"
    assert (passed in game.referee.violations) == (timeout > 1.1)


def test_a_waiter_whose_client_moves_its_subscription_may_be_passed_if_masters_move(game: Game) -> None:
    moving = SimpleNamespace(is_confirmed=False)
    moving.is_confirmed = True
    waiter = SimpleNamespace(owner=b"first:1", tickets=[7], keys=lock_keys("lock", LOCK))
    hub = SimpleNamespace(waiters={waiter.owner: waiter}, subscriptions=[moving])
    game.referee._sessions.append((Process(game.world, "first"), cast(Any, SimpleNamespace(hubs=hubs_of(hub)))))
    game.referee.plan = evolve(game.referee.plan, fair=True, is_guarded=False, moves=Moves(0.1, ("grant",), 1.0))
    game.referee.calm_at = 0.0
    second, third = (game.referee.called(Process(game.world, name), timeout=1.0) for name in ("second", "third"))
    moving.is_confirmed = False
    game.referee.granted(cast(Any, None), cast(Any, Held(1, 0.0)), second)
    assert game.referee.violations == []
    moving.is_confirmed = True
    game.referee.granted(cast(Any, None), cast(Any, Held(2, 0.0)), third)
    assert game.referee.violations == ["third passed first:1, which was queued before it came"]


@pytest.mark.parametrize("seconds", [0.0, -3.0])
def test_a_clock_that_was_set_back_keeps_the_lock_for_longer(game: Game, seconds: float) -> None:
    game.referee.calm_at = 0.0
    for _ in range(3):
        game.referee.clocks.step(0, seconds)
    call = game.referee.called(Process(game.world, "late"), timeout=100.0)
    game.world.run(9.0 + game.referee.plan.longest - 0.1)
    game.referee.granted(cast(Any, None), cast(Any, Held(1, 0.0)), call)
    assert len(game.referee.violations) == (seconds == 0.0)
    game.world.run(9.0 + game.referee.plan.longest + 0.1)
    game.referee.granted(cast(Any, None), cast(Any, Held(2, 0.0)), call)
    assert len(game.referee.violations) == 1 + (seconds == 0.0)


def grant_to_one_that_stood_still(game: Game, seconds: float, token: int) -> None:
    """Grant `token` to a client that asked, and stood still with its clock while another client got token 7."""
    late = Process(game.world, "late")
    call = game.referee.called(late, timeout=1.0)
    late.pause(stops_clock=True)
    game.world.run(seconds)
    game.grant("two", Held(7, 10.0))
    late.resume()
    game.referee.granted(cast(Any, None), cast(Any, Held(token, LEASE_SECONDS)), call)


@pytest.mark.parametrize(
    ("token", "is_known_before", "is_wrong"), [(4, False, False), (4, True, True), (6, True, False)]
)
def test_a_client_that_stood_still_with_its_clock_may_hear_late_of_a_token_that_others_have_passed(
    game: Game, *, token: int, is_known_before: bool, is_wrong: bool
) -> None:
    """Leases of a second are over by the masters' time; the token must be above those from before the call."""
    first = Held(5, 10.0)
    if is_known_before:
        game.grant("one", first)
        first.seconds = 0.0
    grant_to_one_that_stood_still(game, 2.0, token)
    assert game.referee.violations == (["late got token 4, which is not above 5"] if is_wrong else [])


def test_a_client_that_stood_still_for_less_than_its_lease_has_no_excuse(game: Game) -> None:
    grant_to_one_that_stood_still(game, 0.9, 4)
    assert game.referee.violations == ["two holders: two and late", "late got token 4, which is not above 7"]


# Clocks ---------------------------------------------------------------------------------------------------------------


@define
class Knower:
    """The part of a client's master that the referee looks at: whether its clock is known, and how exactly."""

    index: int
    incarnation: bytes
    offset: Offset

    @property
    def facts(self) -> "Knower":
        return self


@define(slots=False)
class Known:
    """The part of a session that the referee looks at."""

    masters: list[Knower]
    count: Callable[[], object] = lambda: None

    @property
    def reports(self) -> "Known":
        """The object that hears of steps."""
        return self

    def hear(self, facts: Knower, news: News) -> None:  # noqa: ARG002
        self.count()


@define
class Two:
    """Two clients: one has a hold of a second, which all masters granted at 0.0; the other one wants the lock."""

    world: World
    clocks: Clocks
    holder: Process
    other: Process
    session: Known
    held: Held

    def is_deceived(self) -> bool:
        return self.clocks.is_deceived(self.holder, cast(Any, self.held), 0.0, self.other)

    def notice(self, master: int, seconds: float = 1.0) -> None:
        """Let the holder's client see the step of a master."""
        now = self.holder.local()
        ahead = self.clocks.servers[master].clock() - now
        self.session.masters[master].offset.see(ahead - 0.001, ahead + 0.001, now)
        self.session.reports.hear(self.session.masters[master], Stepped(seconds, 0))


def two(masters: int, *, other_knows: bool = True) -> Two:
    world = World(0)
    clocks = Clocks(world, servers(world, masters), LEASE_SECONDS)
    sessions = []
    for knows in (True, other_knows):
        known = [
            Knower(number, server.master.incarnation.encode(), Offset(0.01))
            for number, server in enumerate(clocks.servers)
        ]
        for knower in known:
            if knows:
                knower.offset.see(EPOCH_SECONDS - 0.001, EPOCH_SECONDS + 0.001, now=0.0)
        sessions.append(Known(known))
    holder, other = Process(world, "holder"), Process(world, "other")
    for process, session in zip((holder, other), sessions, strict=True):
        clocks.meet(process, cast(Any, session))
    return Two(world, clocks, holder, other, sessions[0], Held(1, LEASE_SECONDS, masters=masters))


def test_a_client_that_knows_clocks_that_keep_time_is_not_deceived() -> None:
    game = two(3)
    game.world.run(0.9)
    assert not game.is_deceived()


def test_a_client_that_stood_still_may_believe_until_it_hears_of_it() -> None:
    game = two(3)
    game.holder.pause(stops_clock=True)
    game.world.run(0.9)
    assert not game.is_deceived(), "its lease still runs"
    game.world.run(2.0)
    assert game.is_deceived()
    game.holder.resume()
    game.world.run(2.1)
    assert game.is_deceived()
    game.notice(0)
    assert game.is_deceived(), "one master of three shows nothing"
    game.notice(1)
    assert not game.is_deceived()


def test_a_client_that_has_seen_a_step_may_believe_until_it_has_counted_it() -> None:
    """Threads may pause between the step's sight and its count."""
    game = two(1)
    believed: list[bool] = []
    game.session.count = lambda: believed.append(game.is_deceived())
    game.clocks.step(0, 5.0)
    game.world.run(0.1)
    game.notice(0)
    assert believed == [True]
    assert not game.is_deceived()


def test_a_client_of_one_master_may_believe_until_it_sees_its_step() -> None:
    game = two(1)
    game.clocks.step(0, -5.0)
    assert not game.is_deceived(), "the lease lasts longer"
    game.clocks.step(0, 5.0)
    assert game.is_deceived()
    game.world.run(0.1)
    game.notice(0)
    assert not game.is_deceived()


def test_a_step_that_an_old_reply_shows_after_another_step_ends_no_excuse() -> None:
    game = two(1)
    game.clocks.step(0, 0.3)
    now = game.holder.local()
    game.session.masters[0].offset.see(EPOCH_SECONDS + 0.299, EPOCH_SECONDS + 0.301, now)
    game.clocks.step(0, 5.0)
    game.world.run(0.1)
    game.session.reports.hear(game.session.masters[0], Stepped(0.3, 0))
    assert game.is_deceived()


@pytest.mark.parametrize(
    ("is_known", "others", "seconds", "pause", "is_wrong"),
    [
        (True, False, 1.5, 0.1, True),
        (False, True, 1.5, 0.1, True),
        (False, False, 1.5, 0.1, False),
        (False, False, 0.1, 0.1, True),
        (False, False, 1.5, 1.5, True),
    ],
    ids=["a quorum was known", "somebody else accuses", "nobody was known", "another step", "much later"],
)
def test_a_client_that_stood_still_before_it_knew_a_quorum_of_clocks_takes_its_own_step_for_the_first_masters(
    *, is_known: bool, others: bool, seconds: float, pause: float, is_wrong: bool
) -> None:
    game = two(3)
    if not is_known:
        for knower in game.session.masters:
            knower.offset = Offset(0.01)
    game.clocks.stands_still(game.holder)
    game.holder.pause(stops_clock=True)
    game.world.run(1.5)
    game.holder.resume()
    game.notice(1, seconds)
    game.world.run(game.world.now + pause)
    server = game.clocks.servers[1]
    server.accused_at, server.accused_by = game.world.now, (game.other if others else game.holder).name
    assert game.clocks.is_accused_wrongly(1) == is_wrong


def test_a_master_may_show_two_of_these_stalls_at_once() -> None:
    game = two(3)
    for knower in game.session.masters:
        knower.offset = Offset(0.01)
    for _ in range(2):
        game.world.run(game.world.now + 0.1)
        game.clocks.stands_still(game.holder)
        game.holder.pause(stops_clock=True)
        game.world.run(game.world.now + 1.5)
        game.holder.resume()
    for master, seconds in enumerate((3.0, 1.5)):
        game.notice(master, seconds)
        server = game.clocks.servers[master]
        server.accused_at, server.accused_by = game.world.now, game.holder.name
        assert not game.clocks.is_accused_wrongly(master)


def set_ahead_for_a_while(game: Two, seconds: float, masters: int) -> None:
    """Set some clocks ahead from 0.2 to 0.3. They stay a tenth of a second ahead, which the holder sees at 0.4."""
    for step in (0.0, seconds, 0.1 - seconds):
        game.world.run(game.world.now + 0.1)
        for master in range(masters):
            game.clocks.step(master, step)
    game.world.run(0.4)
    for master in range(masters):
        game.notice(master, 0.1)
    game.held.seconds -= 0.1


def test_a_client_that_sees_only_the_difference_may_believe_in_what_a_step_and_a_step_back_have_ended() -> None:
    game = two(3)
    set_ahead_for_a_while(game, 3.0, masters=2)
    game.world.run(0.8)
    assert game.is_deceived()
    game.held.seconds = 0.4 + LEASE_SECONDS
    assert not game.is_deceived(), "the masters gave that lease after the step"


@pytest.mark.parametrize(("seconds", "masters"), [(0.6, 2), (3.0, 1)])
def test_a_step_and_a_step_back_excuse_nothing_if_they_ended_no_quorum_of_leases(seconds: float, masters: int) -> None:
    """The holder has just a quorum, so that one master would make the difference."""
    game = two(3)
    game.held.masters = 2
    set_ahead_for_a_while(game, seconds, masters)
    game.world.run(0.8)
    assert not game.is_deceived()


@pytest.mark.parametrize(
    ("set_at", "masters", "is_asked_again", "excused"),
    [(1.5, 2, False, True), (0.9, 2, False, False), (1.5, 1, False, False), (1.5, 2, True, False)],
    ids=["over by then", "not yet over", "a minority", "asked for afterwards"],
)
def test_a_client_that_stood_still_and_sees_less_of_it_because_clocks_were_set_back_may_believe(
    *, set_at: float, masters: int, is_asked_again: bool, excused: bool
) -> None:
    """Clocks stand still from 0.1 to 1.6. By the true time, a hold of a second is over then."""
    game = two(3)
    game.world.run(0.1)
    game.holder.pause(stops_clock=True)
    game.world.run(set_at)
    for master in range(masters):
        game.clocks.step(master, -1.4)
    game.world.run(1.6)
    game.holder.resume()
    game.world.run(1.61)
    for master in range(3):
        game.notice(master, 0.1 if master < masters else 1.5)
    game.held.seconds = game.holder.local() + LEASE_SECONDS if is_asked_again else LEASE_SECONDS - 0.1
    game.world.run(1.7)
    assert game.is_deceived() == excused


@pytest.mark.parametrize(
    ("other_knows", "seconds", "excused"), [(True, 5.0, False), (False, 5.0, True), (True, 0.06, False)]
)
def test_a_minority_that_steps_deceives_only_through_a_client_that_never_saw_it(
    *, other_knows: bool, seconds: float, excused: bool
) -> None:
    """The holder has just a quorum, so that one master makes the difference."""
    game = two(3, other_knows=other_knows)
    game.held.masters = 2
    game.clocks.step(0, seconds)
    game.world.run(0.5)
    assert game.is_deceived() == excused


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_step_too_small_to_be_seen_deceives_for_no_longer_than_its_size(*, stands_still: bool) -> None:
    """Holders whose clock stands still are deceived no longer than others: by that clock, much of the lease is left."""
    game = two(3)
    game.held.masters = 2
    game.clocks.step(0, 0.06)
    game.world.run(0.5)
    if stands_still:
        game.holder.pause(stops_clock=True)
    game.world.run(0.93)
    assert not game.is_deceived()
    game.world.run(0.95)
    assert game.is_deceived()


def late_grant(
    *, seconds: float, token: int, masters: int = 1, other_knows: bool = True, sees_it: bool = False
) -> list[str]:
    """Return the violations if the holder hears late of a hold with `token`, after a master's clock was set ahead.

    Before the holder asked, the other client got token 5. By the time of the grant, the other, which may have known
    that clock, has got 7 and released it. The holder has just a quorum, and may have seen the step.
    """
    game = two(masters, other_knows=other_knows)
    referee = Referee(game.world, game.clocks.servers, draw(Random(0)))
    referee.clocks = game.clocks

    def has_had(token: int) -> None:
        held = Held(token, LEASE_SECONDS)
        referee.granted(cast(Any, None), cast(Any, held), referee.called(game.other, timeout=1.0))
        held.seconds = 0.0

    has_had(5)
    call = referee.called(game.holder, timeout=1.0)
    game.clocks.step(0, seconds)
    has_had(7)
    game.world.run(0.5)
    if sees_it:
        game.notice(0, seconds)
    late = Held(token, LEASE_SECONDS, masters=quorum_of(masters))
    referee.granted(cast(Any, None), cast(Any, late), call)
    return referee.violations


def test_a_client_that_hears_late_of_a_hold_that_a_step_has_ended_may_have_a_token_that_another_has_passed() -> None:
    assert late_grant(seconds=3.0, token=6) == []
    assert late_grant(seconds=3.0, token=6, masters=3, other_knows=False) == []


@pytest.mark.parametrize(
    "case",
    [{"seconds": 0.4}, {"seconds": 3.0, "sees_it": True}, {"seconds": 3.0, "masters": 3}],
    ids=["its lease runs still", "it has seen the step", "a minority, which the other knew"],
)
def test_a_step_that_ended_no_hold_unseen_excuses_no_token(case: dict[str, Any]) -> None:
    assert late_grant(token=6, **case) == ["holder got token 6, which is not above 7"]


def test_a_client_that_hears_late_of_a_hold_has_a_token_above_those_before_it_asked() -> None:
    assert late_grant(seconds=3.0, token=4) == ["holder got token 4, which is not above 5"]


def test_tokens_may_fall_while_a_clock_shows_less_than_before() -> None:
    game = two(3)
    assert not game.clocks.may_tokens_fall()
    game.clocks.step(1, -2.0)
    game.world.run(1.9)
    assert game.clocks.may_tokens_fall()
    game.world.run(2.1)
    assert not game.clocks.may_tokens_fall()
    game.clocks.step(1, 5.0)
    assert not game.clocks.may_tokens_fall()
    game.clocks.has_forgotten = True
    assert game.clocks.may_tokens_fall()


@pytest.mark.parametrize("dead", [1, 2])
def test_nobody_may_look_at_the_end_of_a_dead_holders_lease_where_another_one_has_died(
    game: Game, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    """Leases of the dead may end a moment later on the masters than by their holders' clocks."""
    game.referee.calm_at = 0.0
    holder, other = (Process(game.world, name) for name in ("holder", "other"))
    for process in (holder, other):
        hub = SimpleNamespace(waiters={}, subscriptions=[])
        game.referee._sessions.append((process, cast(Any, SimpleNamespace(hubs=hubs_of(hub), client_id=process.name))))
    held = Held(1, 0.0, deadline=10.0, ttl=9.9)
    game.referee.granted(cast(Any, None), cast(Any, held), game.referee.called(holder, timeout=1.0))
    late = game.referee.called(Process(game.world, "late"), timeout=100.0)
    game.referee.died(holder)
    monkeypatch.setattr(Idle, "_expiry", lambda _self, _hold: 0.05)
    for process in (holder, other)[:dead]:
        process.is_dead = True
    game.world.run(10.05 + HAND_OFF_SECONDS + 0.1)
    game.referee._check_idle(late)
    assert len(game.referee.violations) == (dead == 1)


@pytest.mark.parametrize(("owner", "is_wrong"), [(b"dead:1@3000~ab.7", False), (b"other:1@3000~ab.7", True)])
@pytest.mark.parametrize("given_at", [0.5, 1.01], ids=["before it died", "just after"])
def test_a_hold_that_nobody_lived_to_hear_of_ends_with_its_lease(
    game: Game, owner: bytes, given_at: float, *, is_wrong: bool
) -> None:
    """A releaser has given the lock to a waiter whose process crashed."""
    game.referee.calm_at = 0.0
    dead, master = Process(game.world, "dead"), game.referee.servers[0].master
    hub = SimpleNamespace(waiters={}, subscriptions=[])
    game.referee._sessions.append((dead, cast(Any, SimpleNamespace(hubs=hubs_of(hub), client_id="dead"))))
    late = game.referee.called(Process(game.world, "late"), timeout=100.0)

    def give() -> None:
        master.read("HSET", LOCK_KEY, owner, 1)
        master.read("PEXPIRE", LOCK_KEY, 3000)

    game.world.after(given_at, give)
    game.world.run(1.0)
    game.referee.died(dead)
    game.world.run(given_at + 3.0 + HAND_OFF_SECONDS - 0.1)
    game.referee._check_idle(late)
    assert bool(game.referee.violations) == is_wrong


def test_a_lease_that_its_dead_owner_believed_in_for_longer_than_the_masters_have_it_is_waited_for(game: Game) -> None:
    """Two owners are dead, so perhaps no client looks when the longer lease is over, which is not the shorter one."""
    game.referee.calm_at = 0.0
    dead = Process(game.world, "dead")
    for name in ("dead", "other"):
        process = dead if name == "dead" else Process(game.world, name)
        process.is_dead = True
        session = SimpleNamespace(hubs=Hubs(), client_id=name)
        game.referee._sessions.append((process, cast(Any, session)))
    game.referee.granted(cast(Any, None), cast(Any, Held(1, 0.0)), game.referee.called(dead, timeout=1.0))
    late = game.referee.called(Process(game.world, "late"), timeout=100.0)
    master = game.referee.servers[0].master
    master.read("HSET", LOCK_KEY, b"dead:1", 1)
    master.read("PEXPIRE", LOCK_KEY, 500)
    game.referee.died(dead)
    game.world.run(LEASE_SECONDS + HAND_OFF_SECONDS + 0.2)
    game.referee._check_idle(late)
    assert game.referee.violations == []
