"""Messages as the hub reads them: wake-ups, grants, and messages that only look like one."""

import gc
import weakref
from collections.abc import Callable
from queue import Empty
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relock._core.effects import Handed
from relock._core.hold import Hold
from relock._core.quorum import NEVER
from relock._keys import LockKeys, lock_keys, permit_keys
from relock._options import ClientOptions
from relock._runtime.machine import THREADS
from relock._runtime.masters.master import Master
from relock._runtime.net.credentials import Credentials
from relock._runtime.wakeups.hub import UNREAD_SECONDS, HubListener, ThreadHub
from relock._runtime.wakeups.shared_subscriptions import LEAD, SharedSubscriptions
from relock._runtime.wakeups.waiter import GATHER_SECONDS, Waiter

NOW = 50.0
KEYS = lock_keys("lock", "a b")  # a name may have blanks
WAITER = b"me:1@3000"
FENCE = 210
GRANT = b"grant 1@3000 ab.7 200 100 3000 run:repl a b"


class FakeMaster:
    """A master that knows when it granted a hold."""

    is_cluster = False
    index = 1
    node_timeout = 1.0
    vote_at = 0.0
    trusted_from = NEVER
    incarnation = b"run:repl"
    credentials = Credentials(None)
    options = ClientOptions()

    @property
    def facts(self) -> "FakeMaster":
        return self

    opener = facts

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        assert arrived_at == NOW
        return granted_us / 1e6 if incarnation == b"run:repl" else NEVER


class Told(HubListener):
    """Listener that notes the hub's requests."""

    def __init__(self) -> None:
        self.passed: list[bytes] = []
        self.unclaimed_holds: list[tuple[LockKeys, bytes]] = []
        self.fences: list[int] = []
        self.watched = 0
        self.questions: list[bytes] = []
        self.ends: list[tuple[str, bytes]] = []

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None:  # noqa: ARG002
        self.passed.append(owner)

    def unclaimed(self, keys: LockKeys, owner: bytes, token: int) -> None:
        self.unclaimed_holds.append((keys, owner))
        self.fences.append(token)

    def watch_waiters(self) -> None:
        self.watched += 1

    def asked(self, message: bytes) -> None:
        self.questions.append(message)

    def ended(self, name: str, owner: bytes) -> None:
        self.ends.append((name, owner))

    def subscribed(self) -> None: ...


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def hub(told: Told) -> ThreadHub:
    masters = cast("tuple[Master, ...]", (FakeMaster(), FakeMaster()))
    made = ThreadHub("me", "lock", masters, THREADS, told)
    made._clock = lambda: NOW
    for subscription in made.subscriptions:
        subscription._incarnation = FakeMaster.incarnation
    return made


def test_a_grant_goes_to_its_waiter_with_the_time_at_which_it_was_made(hub: ThreadHub, told: Told) -> None:
    waiter = hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[1], GRANT)
    assert waiter.handed == [Handed(1, b"me:1@3000~ab.7", 200, 100, 3.0, 100 / 1e6)]
    assert waiter.wakes.get_nowait() == 1
    assert told.unclaimed_holds == []


def test_questions_and_answers_of_other_clients_reach_the_listener_as_they_are(hub: ThreadHub, told: Told) -> None:
    waiter = hub.register(WAITER, KEYS)
    messages = [b"ask you you.1 me:1", b"wait me.1 you:1 you:2 7 11 a b", b"ask ", b"wait \xff\n"]
    for message in messages:
        hub.message(hub.subscriptions[0], message)
    assert told.questions == messages
    assert waiter.wakes.empty(), "no waiter looks because of them"


def test_the_listener_hears_which_hold_another_client_has_ended_by_force(hub: ThreadHub, told: Told) -> None:
    for message in (b"ended 1@3000~ab.7 a lock", b"ended 2", b"ended ", b"ended 3 \xff"):
        hub.message(hub.subscriptions[0], message)
    assert told.ends == [("a lock", b"me:1@3000~ab.7"), ("", b"me:2"), ("", b"me:"), ("\ufffd", b"me:3")]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"ask",
        b"ended",
        b"endeds x",
        b"asks you 1 me:1",
        b"Ask you 1 me:1",
        b" ask x",
        b"wait",
        b"waits x",
        b"probe you 1",
        b"\xff",
    ],
)
def test_a_word_that_this_version_does_not_know_is_ignored(hub: ThreadHub, told: Told, message: bytes) -> None:
    waiter = hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[0], message)
    assert (told.questions, told.ends, told.passed, told.unclaimed_holds, waiter.handed) == ([], [], [], [], [])
    assert waiter.wakes.empty()


def test_a_grant_of_another_incarnation_than_that_of_the_subscriptions_socket_has_no_time(hub: ThreadHub) -> None:
    """Replicas pass on their master's messages; such a grant gives nothing to a client that listens there."""
    waiter = hub.register(WAITER, KEYS)
    hub.subscriptions[1]._incarnation = b"replica:repl"
    hub.message(hub.subscriptions[1], GRANT)
    assert [grant.begins for grant in waiter.handed] == [NEVER]


def test_a_grant_over_another_subscription_than_that_of_the_lock_s_node_has_no_time(hub: ThreadHub) -> None:
    """A slot of a Cluster may have moved: then the calls go elsewhere, and the grant is not to be found there."""
    waiter, current = hub.register(WAITER, KEYS), hub.subscriptions[1]
    channels: Any = SimpleNamespace(is_current=lambda keys, subscription: (keys, subscription) != (KEYS, current))
    hub.channels = channels
    hub.message(current, GRANT)
    assert [grant.begins for grant in waiter.handed] == [NEVER]


def test_a_grant_of_an_incarnation_that_is_not_known_has_no_time(hub: ThreadHub) -> None:
    waiter = hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[1], GRANT.replace(b"run:repl", b"-"))
    assert [grant.begins for grant in waiter.handed] == [NEVER]


def test_a_grant_of_a_master_without_a_vote_has_no_time(hub: ThreadHub) -> None:
    waiter = hub.register(WAITER, KEYS)
    FakeMaster.vote_at, before = NOW + 1, FakeMaster.vote_at
    try:
        hub.message(hub.subscriptions[1], GRANT)
    finally:
        FakeMaster.vote_at = before
    assert [grant.begins for grant in waiter.handed] == [NEVER]


def test_a_grant_from_before_a_step_that_was_seen_since_has_no_time(
    hub: ThreadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant may wait here for those of other masters, and its lease may have moved meanwhile."""
    waiter = hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[1], GRANT)
    assert [grant.begins for grant in hub.handed_to(waiter)] == [100 / 1e6]
    monkeypatch.setattr(FakeMaster, "trusted_from", NOW + 0.01)
    assert [grant.begins for grant in hub.handed_to(waiter)] == [NEVER]


def test_a_grant_for_a_waiter_that_has_left_is_given_back(hub: ThreadHub, told: Told) -> None:
    hub.message(hub.subscriptions[1], GRANT)
    assert told.unclaimed_holds == [(KEYS, b"me:1@3000~ab.7")]


def test_a_waiter_that_leaves_gives_back_all_grants_but_the_one_that_it_took(hub: ThreadHub, told: Told) -> None:
    hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[0], GRANT)
    hub.message(hub.subscriptions[1], GRANT.replace(b"ab.7", b"cd.7"))
    hub.forget(WAITER, served=_hold(b"me:1@3000~cd.7"))
    assert told.unclaimed_holds == [(KEYS, b"me:1@3000~ab.7")]
    hub.message(hub.subscriptions[0], GRANT.replace(b"ab.7", b"cd.7"))
    assert told.unclaimed_holds[1:] == [], "a slower master's grant of the same hold is not given back"
    hub.message(hub.subscriptions[0], GRANT)
    assert told.unclaimed_holds[1:] == [(KEYS, b"me:1@3000~ab.7")]


def test_an_interrupt_loses_nothing_that_is_to_be_given_back(
    hub: ThreadHub, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[1], GRANT)
    with monkeypatch.context() as patch:
        patch.setattr(told, "unclaimed", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            hub.forget(WAITER)
    hub.forget(WAITER)
    assert told.unclaimed_holds == [(KEYS, b"me:1@3000~ab.7")]
    assert not hub.waiters


def test_a_waiter_that_is_forgotten_leads_no_more(hub: ThreadHub) -> None:
    """Interrupts may have struck it as it left: no thread would read the shared subscriptions."""
    leader, follower = hub.register(WAITER, KEYS), hub.register(b"me:2", KEYS)
    hub.shared._role["leader"] = leader
    hub.shared._parked |= {leader: None, follower: None}
    leader.is_parked = follower.is_parked = True
    hub.shared._shared[cast("Any", object())] = None
    hub.forget(WAITER)
    assert hub.shared._role == {}
    assert list(hub.shared._parked) == [follower]
    assert follower.wakes.get_nowait() == LEAD


@pytest.mark.parametrize("count", [1, 2])
def test_who_closes_hears_what_slower_masters_give_to_a_waiter_that_was_just_served(told: Told, count: int) -> None:
    """The hub may have no reader for a moment after the last waiter; a lone master has no further grants."""
    masters = cast("tuple[Master, ...]", tuple(FakeMaster() for _ in range(count)))
    hub, asked = ThreadHub("me", "lock", masters, THREADS, told), list[object]()
    hub.register(WAITER, KEYS)
    hub.forget(WAITER, served=_hold(b"me:1@3000~1", late_until=NOW))
    for one in hub.subscriptions:
        one.is_confirmed = True
        one.ask_for_pong = lambda: asked.append("a pong") or True  # type: ignore[method-assign,func-returns-value]
    hub.catch_up(0.0)
    assert len(asked) == (count if count > 1 else 0)


@pytest.mark.parametrize(
    ("left_ago", "asks"), [(1.0 + UNREAD_SECONDS - 0.01, True), (1.0 + UNREAD_SECONDS + 0.01, False)]
)
def test_who_closes_hears_what_may_lie_unread_since_the_last_waiter_left(
    hub: ThreadHub, left_ago: float, asks: bool
) -> None:
    """A request may arrive for a node timeout, and its message lies unread until a subscription's thread looks."""
    asked = list[object]()
    hub.register(WAITER, KEYS)
    hub.forget(WAITER)
    for one in hub.subscriptions:
        one.is_confirmed = True
        one.ask_for_pong = lambda: asked.append("a pong") or True  # type: ignore[method-assign,func-returns-value]
    hub._clock = lambda: NOW + left_ago
    hub.catch_up(0.0)
    assert bool(asked) == asks


def test_who_closes_waits_for_a_subscription_over_which_the_master_may_publish_already(hub: ThreadHub) -> None:
    """Places may have become holds there just before their waiters left."""
    asked, one = list[object](), hub.subscriptions[0]
    hub.register(WAITER, KEYS)
    hub.forget(WAITER)
    one.is_subscribing = True
    one.ask_for_pong = lambda: asked.append("a pong") or True  # type: ignore[method-assign,func-returns-value]
    hub.platform = cast("Any", SimpleNamespace(sleep=lambda _seconds: setattr(one, "is_confirmed", True)))
    hub.catch_up(NOW + 1.0)
    assert asked == ["a pong"]


def test_a_grant_that_comes_after_its_release_may_have_missed_it_is_given_back(hub: ThreadHub, told: Told) -> None:
    """Releasers may wait for slow masters longer than we do; the book tells whether the hold goes on."""
    hub.register(WAITER, KEYS)
    hub.forget(WAITER, served=_hold(b"me:1@3000~ab.7", late_until=NOW - 0.5))
    hub.message(hub.subscriptions[1], GRANT)
    assert told.unclaimed_holds == [(KEYS, b"me:1@3000~ab.7")]


@pytest.mark.parametrize("others", [0, 10_000])
def test_what_ends_a_hold_that_was_released_brings_its_token(hub: ThreadHub, told: Told, others: int) -> None:
    """A master's message is very late, and its release may have told no waiter: the masters must learn the token."""
    hub.register(WAITER, KEYS)
    hold = _hold(b"me:1@3000~ab.7", late_until=NOW - 0.5)
    hub.forget(WAITER, served=hold)
    hub._clock = lambda: NOW + 1.0
    for number in range(others):
        hub.register(b"me:other-%d" % number, KEYS)
        hub.forget(b"me:other-%d" % number, served=_hold(b"me:other-%d~1" % number, late_until=NOW))
    hub._clock = lambda: NOW
    hub.message(hub.subscriptions[1], GRANT)
    assert told.unclaimed_holds == [(KEYS, hold.owner)]
    assert told.fences == [FENCE]


def test_a_very_late_message_ends_no_hold_that_is_held_or_being_released(hub: ThreadHub, told: Told) -> None:
    """Holds are out of the book while their release is under way: if they ended now, they would count as lost."""
    hub.register(WAITER, KEYS)
    hold = _hold(b"me:1@3000~ab.7", late_until=NOW - 0.5, count=1)
    hub.forget(WAITER, served=hold)
    hub.message(hub.subscriptions[1], GRANT)
    assert told.unclaimed_holds == []
    hold.count = 0
    hub.message(hub.subscriptions[1], GRANT)
    assert told.unclaimed_holds == [(KEYS, hold.owner)]


def test_what_ends_a_hold_that_nobody_has_brings_no_token(hub: ThreadHub, told: Told) -> None:
    hub.register(WAITER, KEYS)
    hub.forget(WAITER, served=_hold(b"me:1@3000~ab.7", late_until=NOW - 0.5))
    gc.collect()
    hub.message(hub.subscriptions[1], GRANT)
    hub.message(hub.subscriptions[1], GRANT.replace(b" 1@", b" 2@"))
    assert told.fences == [0, 0]


def test_a_served_waiter_is_known_for_its_time_however_many_others_are_served(hub: ThreadHub, told: Told) -> None:
    hub.register(WAITER, KEYS)
    hub.forget(WAITER, served=_hold(b"me:1@3000~ab.7"))
    for number in range(10_000):
        hub.register(b"me:other-%d" % number, KEYS)
        hub.forget(b"me:other-%d" % number, served=_hold(b"me:other-%d~1" % number))
    hub.message(hub.subscriptions[1], GRANT)
    hub.message(hub.subscriptions[1], b"wake 1@3000 a b")
    assert told.unclaimed_holds == []
    assert told.passed == []


def test_a_served_waiter_is_forgotten_after_its_time(hub: ThreadHub) -> None:
    kept = []
    for number in range(20_000):
        hub._clock = lambda now=NOW + number: now  # type: ignore[misc]
        hub.register(b"me:%d" % number, KEYS)
        hub.forget(b"me:%d" % number, served=_hold(b"me:%d~1" % number, late_until=NOW + number + 10))
        kept.append(len(hub._served))
    assert max(kept) < 3000


def test_a_hold_is_not_kept_for_the_messages_that_may_come(hub: ThreadHub) -> None:
    """Holds refer to their owners' callbacks, and so to every object that these refer to."""
    hub.register(WAITER, KEYS)
    hold = _hold(b"me:1@3000~ab.7")
    kept = weakref.ref(hold)
    hub.forget(WAITER, served=hold)
    del hold
    gc.collect()
    assert kept() is None


class Messages:
    """A waiter's queue in which each message comes at its moment, on a clock of its own."""

    def __init__(self, *moments: tuple[float, Callable[[Waiter], object]]) -> None:
        self.now = 0.0
        self.moments = [*moments]
        self.items: list[int | None] = []
        self.put = self.items.append
        platform = cast("Any", SimpleNamespace(clock=lambda: self.now))
        self.waiter = Waiter(WAITER, KEYS, cast("Any", self), SharedSubscriptions(platform))

    def get(self, timeout: float) -> int | None:
        until = self.now + timeout
        while not self.items:
            if not self.moments or self.moments[0][0] > until:
                self.now = until
                raise Empty
            self.now, come = self.moments.pop(0)
            come(self.waiter)
        return self.items.pop(0)

    def get_nowait(self) -> int | None:
        return self.items.pop(0)

    def empty(self) -> bool:
        return not self.items


def wakes(master: int | None) -> Callable[[Waiter], object]:
    return lambda waiter: waiter.wake(master)


def gives(master: int) -> Callable[[Waiter], object]:
    return lambda waiter: waiter.give(Handed(master, WAITER + b"~ab.7", 200, 100, 3.0, 0.1))


@pytest.mark.parametrize(
    ("messages", "ends"),
    [
        ([(1.0, wakes(0)), (1.02, wakes(1))], 1.02),
        ([(1.0, wakes(0)), (1.04, wakes(1))], 1.0 + GATHER_SECONDS),
        ([(1.0, wakes(0)), (1.02, wakes(0)), (1.025, wakes(None))], 1.025),
        ([(1.0, gives(0)), (1.04, gives(1))], 1.04),
        ([(1.0, gives(0)), (1.04, wakes(1))], 1.04),
        ([(1.0, wakes(0)), (1.02, gives(0)), (1.04, gives(1))], 1.04),
        ([(1.0, gives(0)), (1.2, gives(1))], 1.1),
        ([(9.95, gives(0)), (10.01, gives(1))], 10.0),
        ([], 10.0),
    ],
)
def test_a_waiter_with_the_grant_of_one_master_waits_longer_for_a_quorum(messages: list[Any], ends: float) -> None:
    """Grants of too few masters must be given back; a waiter that was only woken loses nothing if it asks at once."""
    queue = Messages(*messages)
    queue.waiter.park(10.0, 2, lambda: 0.1)
    assert queue.now == pytest.approx(ends)


def test_a_waiter_that_gave_the_lock_back_waits_for_wake_ups_as_before() -> None:
    queue = Messages((1.0, gives(0)), (2.0, wakes(0)), (2.05, wakes(1)))
    for ends in (1.1, 2.0 + GATHER_SECONDS):
        queue.waiter.park(10.0, 2, lambda: 0.1)
        assert queue.now == pytest.approx(ends)


def test_a_lone_master_is_enough_at_once() -> None:
    queue = Messages((1.0, gives(0)))
    queue.waiter.park(10.0, 1, lambda: pytest.fail("a waiter without a grant gathers nothing"))
    assert queue.now == 1.0


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"grant",
        b"grant 1@3000",
        GRANT.replace(b"200", b"-200"),
        GRANT.replace(b"200", b"2e2"),
        GRANT.replace(b"200", b"9" * 17),
        GRANT.replace(b"200", b"0"),
        GRANT.replace(b"200", b"9" * 16),
        GRANT.replace(b" a b", b""),
        GRANT.replace(b"a b", b"\xff"),
        GRANT.upper(),
        b"\0" * 1000,
    ],
)
def test_a_message_that_is_no_grant_changes_nothing(hub: ThreadHub, told: Told, message: bytes) -> None:
    waiter = hub.register(WAITER, KEYS)
    hub.message(hub.subscriptions[1], message)
    assert waiter.handed == []
    assert waiter.wakes.empty()
    assert told.unclaimed_holds == []
    assert told.passed == []


def test_a_grant_goes_to_its_waiter_whatever_other_locks_the_process_has_used_since(hub: ThreadHub, told: Told) -> None:
    waiter = hub.register(WAITER, KEYS)
    for number in range(10_000):
        lock_keys("lock", f"other-{number}")
    hub.message(hub.subscriptions[1], GRANT)
    assert len(waiter.handed) == 1
    assert told.unclaimed_holds == []


def test_a_grant_for_another_lock_is_not_taken(hub: ThreadHub, told: Told) -> None:
    waiter = hub.register(WAITER, lock_keys("lock", "another"))
    hub.message(hub.subscriptions[1], GRANT)
    assert waiter.handed == []
    assert told.unclaimed_holds == [(KEYS, b"me:1@3000~ab.7")]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _hold(owner: bytes, late_until: float = NOW + 0.5, count: int = 0) -> Hold:
    """Return a hold that has been released, unless it has a count."""
    hold = object.__new__(Hold)
    hold.owner, hold.late_until, hold.token, hold.settled = owner, late_until, FENCE, False
    hold.count, hold.loss = count, None
    return hold


@pytest.mark.parametrize(
    ("message", "keys", "owner"),
    [
        (b"grant 1@3000 ab.7 200 100 3000 run:repl a b", KEYS, b"me:1@3000~ab.7"),
        (b"grant 1#1/8@3000 ab.7.2 200 100 3000 run:repl a b", permit_keys("lock", "a b"), b"me:1#1/8@3000~ab.7.2"),
    ],
    ids=["lock", "semaphore"],
)
def test_a_grant_to_nobody_is_given_back_to_the_lock_or_the_semaphore(
    hub: ThreadHub, told: Told, message: bytes, keys: LockKeys, owner: bytes
) -> None:
    """A lock and a semaphore may have the same name: the mark in the waiter's name says which one it is."""
    hub.message(hub.subscriptions[1], message)
    assert told.unclaimed_holds == [(keys, owner)]
