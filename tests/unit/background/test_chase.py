"""Chase: rounds of questions between clients that are joined by a world without servers, in which time stands still."""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relock import Deadlocked, DeadlockError, Event, LossCode
from relock._core.book import Book
from relock._core.call_record import CallRecord
from relock._core.deadlocks import RING_MAX
from relock._core.effects import Answer, Ask, Failure
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.hold import FOREVER, Hold
from relock._core.host import Counters
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Grant
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner, as_reader, client_name, is_reader, named
from relock._rings import ANSWER_SECONDS, Found, ask_twice
from relock._runtime.background.chase import CONFIRM_SECONDS, HOLDERS_MAX, PAUSE_SECONDS, REPEAT_SECONDS, Chase
from relock._runtime.background.janitor import Janitor
from relock._runtime.machine import THREADS
from relock._runtime.session.reports import Reports
from relock._runtime.wakeups.hubs import Hubs
from relock._runtime.wakeups.shared_subscriptions import SharedSubscriptions
from relock._runtime.wakeups.waiter import Waiter
from relock._scripts import Call
from relock.testing._master import unpack_arguments

AFTER = 2.5  # seconds: `deadlock_after`
OPTIONS = ClientOptions()
SILENT = Failure("a", "silent", sent=True)
NOTHING = Found((), ())


class World:
    """Masters that know the holders of each lock, and carry messages between clients when the test lets them.

    Attributes:
        now: the time of all clients.
        holders: the names of the holds of each lock.
        silent: the numbers of the masters that don't answer.
        posts: the messages on their way, each with the client that it is for.
        lost: the beginnings of messages that get lost.
        looked: the locks that clients have looked at.
        said: all messages that were sent, once each, whatever the number of masters.
        asks: all requests, in their order.
    """

    def __init__(self, masters: int = 1) -> None:
        self.masters = masters
        self.now = 100.0
        self.clients: dict[str, Client] = {}
        self.holders: dict[str, list[bytes]] = {}
        self.silent: set[int] = set()
        self.posts: deque[tuple[str, bytes]] = deque()
        self.lost: tuple[bytes, ...] = ()
        self.looked: list[str] = []
        self.said: list[bytes] = []
        self.asks: list[Ask] = []
        self.numbers = itertools.count(1)

    def client(self, name: str, after: float | None = AFTER) -> "Client":
        """Return a new client."""
        self.clients[name] = Client(self, name, after)
        return self.clients[name]

    def ask(self, ask: Ask) -> list[Answer]:
        """Answer as the masters do."""
        self.asks.append(ask)
        for call in ask.calls:
            self._note(call)
        return [
            tuple(SILENT if master in self.silent else self._reply(call) for call in ask.calls)
            for master in range(self.masters)
        ]

    def _note(self, call: Call) -> None:
        if call.script.name == "inspect":
            self.looked.append(call.keys.name)
            return
        client, message = unpack_arguments(call.own)
        self.said.append(message)
        if not message.startswith(self.lost or b"\0"):
            heard = self.masters - len(self.silent)
            self.posts.extend([(client.decode(), message)] * heard)  # each master publishes it

    def _reply(self, call: Call) -> Any:
        holders = self.holders.get(call.keys.name, [])
        if call.script.name == "notify":
            client = unpack_arguments(call.own)[0].decode()
            return [b"told", 1, sum(client in one.names for one in self.clients.values())]
        if not holders:
            return [b"free", 1, 0, []]
        if is_reader(holders[0]):
            return [b"shared", 1, 0, [word for holder in holders for word in (holder, b"1", 1000)], []]
        return [b"held", 1, 1000, holders[0], 1, 0, []]

    def deliver(self) -> None:
        """Carry messages until none is left."""
        while self.posts:
            name, message = self.posts.popleft()
            for client in self.clients.values():
                if name in client.names:
                    client.chase.hear(message)

    def round(self, client: "Client", later: float = 0.0) -> None:
        """Let the client begin a round, if it is due, and carry all messages."""
        self.now += later
        client.chase.begin()
        self.deliver()

    def words(self, first: bytes) -> list[bytes]:
        """Return the messages that begin with this word."""
        return [message for message in self.said if message.startswith(first + b" ")]


class Wait:
    """One call that waits, with its notes and its waiter."""

    def __init__(self, record: CallRecord, waiter: Waiter) -> None:
        self.record, self.waiter, self.owner, self.tickets = record, waiter, waiter.owner, waiter.tickets

    @property
    def error(self) -> DeadlockError | None:
        assert self.record.error is None or not self.waiter.wakes.empty(), "it is woken to get its error"
        return self.record.error


class Client:
    """Session as its chase sees it: callers that hold and wait.

    Attributes:
        names: the names of the client's hubs: those of its threads, and of its event loops.
        planned: the moments at which the chase wants to begin a round.
    """

    prefix, node_timeout = "lock", 0.1

    def __init__(self, world: World, name: str, after: float | None) -> None:
        self.world, self.client_id, self.names = world, name, [name]
        self.options = ClientOptions(deadlock_after=after)
        self.deadlock_after = after or 0.0
        self.closed = False
        self.holds, self.counters = Book(), Counters()
        self.waits: dict[CallRecord, tuple[Owner, float, float]] = {}
        self.rings: deque[frozenset[bytes]] = deque(maxlen=64)
        self.hubs = Hubs()
        self.add_hub(name)
        self.events: list[Event] = []
        self.emit, self.ask_shielded = self.events.append, world.ask
        self.planned: list[float] = []
        session: Any = self
        self.chase = Chase(session, self.planned.append)

    def add_hub(self, name: str) -> None:
        """Add a hub, as for an event loop."""
        hub: Any = SimpleNamespace(client=name, waiters={}, is_attended=False, channels=None)
        self.hubs.add(hub)
        self.names.append(name)

    def clock(self) -> float:
        return self.world.now

    def spec(self, lock: str, **options: Any) -> LockSpec:
        masters = tuple("abcde"[: self.world.masters])
        return LockSpec.of(lock_keys("lock", lock), masters, OPTIONS.for_lock(**options), OPTIONS)

    def new_name(self, who: Owner, hub: str = "") -> bytes:
        reads = b"&" if as_reader(who) is who else b""
        return b"%b:%d%b" % ((hub or self.client_id).encode(), next(self.world.numbers), reads)

    def hold(self, lock: str, who: Owner, hub: str = "") -> Hold:
        """Give the owner a lock."""
        owner, end = self.new_name(who, hub), self.world.now + 1000.0
        grant = Grant(1, end, [end], True, [([b"granted", 1, 1],)])
        hold = self.holds[lock, who.key] = Hold(self.spec(lock), owner, who, grant, 1)
        self.world.holders.setdefault(lock, []).append(owner)
        return hold

    def wait(
        self, lock: str, who: Owner, *, ticket: int | None = 1, timeout: float = FOREVER, hub: str = "", **options: Any
    ) -> Wait:
        """Let the owner wait for a lock from now on; without a ticket, it has no place in the queue yet."""
        record, now = CallRecord(), self.world.now
        record.spec, record.owners = self.spec(lock, **options), [self.new_name(who, hub)]
        self.waits[record] = who, now, now + timeout
        waiter = Waiter(record.owners[0], record.spec.keys, THREADS.queue(), SharedSubscriptions(THREADS))
        waiter.tickets = [] if ticket is None else [ticket]
        self.hub(hub).waiters[waiter.owner] = waiter
        return Wait(record, waiter)

    def hub(self, name: str = "") -> Any:
        return next(hub for hub in self.hubs.all() if hub.client == (name or self.client_id))

    def end(self, wait: Wait) -> None:
        """End a wait."""
        del self.waits[wait.record]
        del self.hub(client_name(wait.owner).decode()).waiters[wait.owner]

    def told(self) -> list[tuple[str | None, str | None]]:
        """Return the lock of each deadlock that was reported, and its victim."""
        return [(event.lock, event.victim) for event in self.events if isinstance(event, Deadlocked)]


THREAD, OTHER, THIRD = (Owner(serial, None, None) for serial in range(3))


def errors(*waits: Wait) -> list[bool]:
    """Return for each wait whether it ends with the error of a deadlock."""
    return [wait.error is not None for wait in waits]


class Ring:
    """Ring of clients, each of which has the lock of its number and waits for that of the next one."""

    def __init__(self, length: int = 2, masters: int = 1, **options: Any) -> None:
        self.world = World(masters)
        self.clients = [self.world.client(f"c{number}") for number in range(length)]
        self.holds = [client.hold(f"x{number}", THREAD) for number, client in enumerate(self.clients)]
        self.waiters = [
            client.wait(f"x{(number + 1) % length}", THREAD, ticket=10 + number, **options)
            for number, client in enumerate(self.clients)
        ]
        self.first, self.last = self.clients[0], self.clients[-1]
        self.world.now += AFTER

    def find(self, client: Client) -> None:
        """Let a client find a ring and confirm it."""
        self.world.round(client)
        self.world.round(client, CONFIRM_SECONDS)


# When a round is due --------------------------------------------------------------------------------------------------


def test_a_round_is_due_when_a_caller_with_another_lock_has_waited_for_long() -> None:
    client = World().client("me")
    client.hold("x", THREAD)
    client.wait("y", THREAD)
    assert client.chase.next_at() == 100.0 + AFTER


def test_the_wait_that_began_first_is_the_first_that_is_due() -> None:
    world = World()
    client = world.client("me")
    for who in (THREAD, OTHER):
        client.hold(f"x{who.key}", who)
        client.wait("y", who)
        world.now += 1.0
    assert client.chase.next_at() == 100.0 + AFTER


def test_without_a_wait_no_round_is_due() -> None:
    client = World().client("me")
    assert client.chase.next_at() == FOREVER
    client.hold("x", THREAD)
    assert client.chase.next_at() == FOREVER


@pytest.mark.parametrize(
    ("holds", "wait"),
    [
        ((), {}),
        ((OTHER,), {}),
        ((THREAD,), {"ticket": None}),
        ((THREAD,), {"timeout": AFTER}),
        ((THREAD,), {"deadlock": "ignore"}),
    ],
    ids=["it holds nothing", "another holds", "it has no place", "it ends by itself", "it is to be ignored"],
)
def test_for_most_waits_no_round_is_ever_due_and_nothing_is_asked(holds: Sequence[Owner], wait: dict[str, Any]) -> None:
    world = World()
    client = world.client("me")
    for who in holds:
        client.hold("x", who)
    client.wait("y", THREAD, **wait)
    assert client.chase.next_at() == FOREVER
    world.round(client, 1_000.0)
    assert (world.looked, world.said) == ([], [])


def test_a_client_with_none_as_its_option_begins_no_round_but_answers() -> None:
    ring = Ring()
    never = ring.first
    never.options, never.deadlock_after = ClientOptions(deadlock_after=None), 0.0
    assert never.chase.next_at() == FOREVER
    ring.world.round(never, 100.0)
    assert (ring.world.looked, ring.world.said) == ([], [])
    ring.find(ring.last)
    assert errors(*ring.waiters) == [False, True]


def test_a_client_with_none_as_its_option_has_no_victim_for_others() -> None:
    """A client that never looks would never end its wait."""
    ring = Ring()
    ring.last.options = ClientOptions(deadlock_after=None)
    ring.find(ring.first)
    assert errors(*ring.waiters) == [True, False]


def test_a_round_that_is_not_due_does_not_begin() -> None:
    ring = Ring()
    ring.world.now = 100.0 + AFTER - 0.001
    ring.world.round(ring.first)
    assert ring.world.looked == []
    ring.world.round(ring.first, 0.001)
    assert ring.world.looked


@pytest.mark.parametrize("since", [number * 0.1 for number in range(40)])
def test_a_round_that_begins_when_it_is_due_asks_whatever_numbers_are_rounded(since: float) -> None:
    world = World()
    client = world.client("me")
    world.now = since
    client.hold("x", THREAD)
    client.wait("y", THREAD)
    world.now = client.chase.next_at()
    world.round(client)
    assert world.looked == ["y"]


def test_the_same_wait_asks_again_after_a_while() -> None:
    ring = Ring()
    ring.world.lost = (b"ask ",)
    ring.world.round(ring.first)
    assert ring.first.chase.next_at() == ring.world.now + REPEAT_SECONDS
    ring.world.round(ring.first, REPEAT_SECONDS - 0.001)
    assert len(ring.world.words(b"ask")) == 1
    ring.world.round(ring.first, 0.001)
    assert len(ring.world.words(b"ask")) == 2


def test_rounds_for_waits_that_become_due_one_after_the_other_pause() -> None:
    world = World()
    client = world.client("me")
    for who in (THREAD, OTHER):
        client.hold(f"x{who.key}", who)
        client.wait(f"y{who.key}", who)
        world.now += PAUSE_SECONDS / 5
    world.now = 100.0 + AFTER
    world.round(client)
    assert world.looked == ["y0"]
    assert client.chase.next_at() == world.now + PAUSE_SECONDS
    world.round(client, PAUSE_SECONDS / 5)
    assert world.looked == ["y0"], "the other wait is old enough by now, and has to wait for the pause"
    world.round(client, PAUSE_SECONDS)
    assert sorted(world.looked) == ["y0", "y0", "y1"]


# The questions of a round ---------------------------------------------------------------------------------------------


def test_a_round_asks_for_waits_that_are_old_enough_only() -> None:
    world = World()
    me, you = world.client("me"), world.client("you")
    you.hold("old", THREAD)
    you.hold("young", OTHER)
    me.hold("x", THREAD)
    me.wait("old", THREAD)
    world.now += AFTER
    me.hold("y", OTHER)
    me.wait("young", OTHER)
    world.round(me)
    assert world.looked == ["old"]
    assert len(world.words(b"ask")) == 1


def test_a_young_wait_is_part_of_an_old_ones_ring() -> None:
    """A caller of this client, which began to wait just now, closes the ring by another client's callers."""
    world = World()
    me, you = world.client("me"), world.client("you")
    for client, lock in ((me, "a"), (you, "b")):
        client.hold(lock, THREAD)
    me.hold("c", OTHER)
    old = me.wait("b", THREAD, ticket=1)
    you_wait = you.wait("c", THREAD, ticket=2)
    world.now += AFTER
    young = me.wait("a", OTHER, ticket=3)
    world.round(me)
    world.round(me, CONFIRM_SECONDS)
    assert errors(old, you_wait, young) == [False, False, True]


def test_each_lock_is_looked_at_once_and_each_hold_asked_for_once() -> None:
    """Two callers wait for one lock, whose holder waits for a third one's lock, as others do."""
    world = World()
    me, you = world.client("me"), world.client("you")
    for who in (THREAD, OTHER, THIRD):
        me.hold(f"mine{who.key}", who)
        me.wait("y", who)
    you.hold("y", THREAD)
    you.wait("z", THREAD)
    you.hold("z", OTHER)
    you.wait("mine0", OTHER)
    world.now += AFTER
    world.round(me)
    assert sorted(world.looked) == ["mine0", "y", "z"]
    asked = [message.split()[3] for message in world.words(b"ask")]
    assert sorted(asked) == sorted([*world.holders["y"], *world.holders["z"]])
    assert len(world.words(b"wait")) == 2


def test_the_question_names_the_round_and_goes_to_the_client_of_the_hold() -> None:
    ring = Ring()
    ring.first.chase.begin()
    (post,) = ring.world.posts
    assert post == ("c1", b"ask c0 c0.1 %b" % ring.holds[1].owner)


def test_the_answer_has_the_wait_its_ticket_and_its_lock() -> None:
    ring = Ring()
    ring.first.chase.begin()
    ring.last.chase.hear(ring.world.posts.popleft()[1])
    (post,) = ring.world.posts
    assert post == ("c0", b"wait c0.1 %b %b 11 11 x0" % (ring.holds[1].owner, ring.waiters[1].owner))


@pytest.mark.parametrize(
    ("who", "options", "flags"),
    [
        (THREAD, {}, b"11"),
        (THREAD, {"deadlock": "report"}, b"10"),
        (named("job"), {}, b"01"),
        (named("job"), {"deadlock": "report"}, b"00"),
    ],
)
def test_the_answer_says_if_the_wait_may_be_the_victim(who: Owner, options: dict[str, Any], flags: bytes) -> None:
    world = World()
    me = world.client("me")
    hold, waiter = me.hold("x", who), me.wait("a lock", who, ticket=7, **options)
    me.chase.hear(b"ask you you.3 " + hold.owner)
    assert world.posts == deque([("you", b"wait you.3 %b %b 7 %b a lock" % (hold.owner, waiter.owner, flags))])


def test_so_many_holders_are_asked_in_a_round_and_no_more() -> None:
    world = World()
    me, you = world.client("me"), world.client("you")
    for number in range(HOLDERS_MAX + 50):
        you.hold("shared", as_reader(Owner(number, None, None)))
    me.hold("x", THREAD)
    me.wait("shared", THREAD)
    world.now += AFTER
    world.round(me)
    assert len(set(world.words(b"ask"))) == len(world.said) == HOLDERS_MAX


def test_a_thread_asks_for_the_tasks_as_well() -> None:
    """An event loop may stand still, and would read no answer."""
    world = World()
    me, you = world.client("me"), world.client("you")
    me.add_hub("me.1")
    for lock, who, hub in (("a", THREAD, "me.1"), ("b", OTHER, "")):
        me.hold(lock, who, hub)
        me.wait("y", who, hub=hub)
    you.hold("y", THREAD)
    world.now += AFTER
    me.chase.begin()
    assert [words.split()[1] for _, words in world.posts] == [b"me"]


def test_a_hub_of_an_event_loop_is_asked_and_answered_by_its_own_name() -> None:
    world = World()
    me, you = world.client("me"), world.client("you")
    me.add_hub("me.1")
    you.add_hub("you.1")
    me.hold("x", THREAD, "me.1")
    waiter = me.wait("y", THREAD, ticket=9, hub="me.1")
    you.hold("y", THREAD, "you.1")
    you.wait("x", THREAD, ticket=8, hub="you.1")
    world.now += AFTER
    me.chase.begin()
    assert [client for client, _ in world.posts] == ["you.1"]
    you.chase.hear(world.posts[0][1])
    assert [client for client, _ in world.posts] == ["you.1", "me.1"]
    world.deliver()
    world.round(me, CONFIRM_SECONDS)
    assert errors(waiter) == [True]


@pytest.mark.parametrize("masters", [1, 3, 5])
def test_a_question_that_several_masters_bring_is_answered_once(masters: int) -> None:
    ring = Ring(masters=masters)
    ring.world.round(ring.first)
    assert len(ring.world.words(b"ask")) == 1
    assert len(ring.world.words(b"wait")) == 1
    ring.world.round(ring.first, CONFIRM_SECONDS)
    assert len(ring.world.words(b"wait")) == 2, "a question of the next round is another one"


# Answers of a client --------------------------------------------------------------------------------------------------


def answers(ring: Ring) -> list[bytes]:
    """Return the answers to another question for the last client's hold."""
    before = len(ring.world.said)
    ring.last.chase.hear(b"ask c0 c0.%d %b" % (next(ring.world.numbers), ring.holds[-1].owner))
    return ring.world.said[before:]


def test_a_client_whose_caller_waits_answers() -> None:
    assert len(answers(Ring())) == 1


def test_a_client_does_not_answer_for_a_caller_that_waits_no_more() -> None:
    ring = Ring()
    ring.last.end(ring.waiters[-1])
    assert answers(ring) == []


def test_a_client_does_not_answer_for_a_wait_that_has_no_place_in_a_queue() -> None:
    ring = Ring()
    ring.waiters[-1].tickets.clear()
    assert answers(ring) == []


def test_a_client_does_not_answer_for_a_wait_that_ends_by_itself() -> None:
    assert answers(Ring(timeout=AFTER)) == []


def test_a_client_does_not_answer_for_a_lost_hold() -> None:
    ring = Ring()
    ring.holds[-1].lose(LossCode.EXPIRED, ring.world.now)
    assert answers(ring) == []


def test_a_client_does_not_answer_for_a_hold_that_is_over() -> None:
    ring = Ring()
    ring.holds[-1].deadline = ring.world.now
    assert answers(ring) == []


def test_a_client_does_not_answer_for_a_hold_that_was_released() -> None:
    ring = Ring()
    ring.last.holds.clear()
    assert answers(ring) == []


@pytest.mark.parametrize("lock", [b"x1", b"a lock", b"a\nb", b"\xc3\xa4"])
def test_a_client_that_is_asked_for_any_answer_says_that_its_caller_does_not_wait(lock: bytes) -> None:
    """The question names the lock of the hold, which may have ended."""
    world = World()
    you = world.client("you")
    hold = you.hold("x1", THREAD)
    for asked in (hold.owner, b"you:77"):
        you.chase.hear(b"ask op op.1 %b %b" % (asked, lock))
        assert world.posts.pop() == ("op", b"wait op.1 %b -" % asked)
    you.wait("y", THREAD, ticket=7)
    you.chase.hear(b"ask op op.2 %b %b" % (hold.owner, lock))
    (told,) = world.words(b"wait")[2:]
    assert told.endswith(b" 7 11 y"), "a wait is told as ever"


def test_a_closed_client_neither_answers_nor_asks_nor_finds() -> None:
    ring = Ring()
    ring.world.round(ring.first)
    assert len(answers(ring)) == 1
    for client in ring.clients:
        client.closed = True
    said, looked = len(ring.world.said), len(ring.world.looked)
    assert answers(ring) == []
    ring.find(ring.first)
    ring.first.chase.hear(b"wait c0.1 %b you:7 1 11 x0" % ring.holds[1].owner)
    assert (len(ring.world.said), len(ring.world.looked)) == (said, looked)
    assert (ring.first.told(), errors(*ring.waiters)) == ([], [False, False])


# What counts as an answer ---------------------------------------------------------------------------------------------


def begun() -> tuple[Ring, bytes]:
    """Return a ring whose first client has asked, and the answer that it waits for, without its first two words."""
    ring = Ring()
    ring.first.chase.begin()
    ring.world.posts.clear()
    return ring, b"%b %b 11 11 x0" % (ring.holds[1].owner, ring.waiters[1].owner)


def looks(ring: Ring, *messages: bytes) -> list[str]:
    """Return the locks that the first client looks at because of these messages."""
    before = len(ring.world.looked)
    for message in messages:
        ring.first.chase.hear(message)
    return ring.world.looked[before:]


def test_an_answer_leads_to_the_next_lock() -> None:
    ring, answer = begun()
    assert looks(ring, b"wait c0.1 " + answer) == ["x0"]


def test_an_answer_of_another_round_or_to_another_client_is_ignored() -> None:
    ring, answer = begun()
    for number in (b"c0.0", b"c0.2", b"c1.1", b"c0", b"1", b"c0.1x"):
        assert looks(ring, b"wait %b %b" % (number, answer)) == []
    ring.world.lost = (b"ask ",)
    ring.world.round(ring.first, REPEAT_SECONDS)
    assert looks(ring, b"wait c0.1 " + answer) == [], "it is late"
    assert looks(ring, b"wait c0.2 " + answer) == ["x0"]


def test_an_answer_for_a_hold_that_was_not_asked_for_is_ignored() -> None:
    ring, _ = begun()
    assert looks(ring, b"wait c0.1 you:99 you:98 11 11 z") == []


def test_the_first_answer_for_a_hold_counts() -> None:
    ring, answer = begun()
    assert looks(ring, b"wait c0.1 " + answer, b"wait c0.1 " + answer) == ["x0"]
    assert looks(ring, b"wait c0.1 %b you:98 11 11 z" % ring.holds[1].owner) == []


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"ask",
        b"ask ",
        b"ask  a b c",
        b"ask a b",
        b"ask a b c ",
        b"ask a b %b\n",
        b"asks a b %b",
        b"wait",
        b"wait c0.1 %b",
        b"wait c0.1 %b -",
        b"wait c0.1 %b - x",
        b"wait c0.1 %b you:1 11 11 ",
        b"wait c0.1 %b you:1 x 11 z",
        b"wait c0.1 %b you:1 -1 11 z",
        b"wait c0.1 %b you:1 12345678901234567 11 z",
        b"wait c0.1 %b you:1 1 1 z",
        b"wait c0.1 %b you:1 1 21 z",
        b"wait c0.1 %b you:1 1 111 z",
        b"waits c0.1 %b you:1 1 11 z",
        b"\xff\xfe\0",
    ],
)
def test_a_message_of_another_form_is_ignored(message: bytes) -> None:
    ring, answer = begun()
    message = message.replace(b"%b", ring.holds[1].owner)
    assert looks(ring, message) == []
    assert list(ring.world.posts) == []
    assert looks(ring, b"wait c0.1 " + answer) == ["x0"], "the answer still counts"


@pytest.mark.parametrize("lock", [b"a lock", b"\xc3\xa4", b"a\nb", b"\xff", b"1 11 x"])
def test_a_lock_may_have_any_name(lock: bytes) -> None:
    ring, _ = begun()
    message = b"wait c0.1 %b %b 11 11 %b" % (ring.holds[1].owner, ring.waiters[1].owner, lock)
    assert looks(ring, message) == [lock.decode(errors="replace")]


# Rings ----------------------------------------------------------------------------------------------------------------


def test_a_ring_that_was_found_once_ends_no_wait_and_is_looked_for_again_at_once() -> None:
    ring = Ring()
    ring.world.round(ring.last)
    assert (errors(*ring.waiters), ring.last.told(), ring.last.counters.deadlocks) == ([False, False], [], 0)
    assert ring.last.planned == [ring.world.now + CONFIRM_SECONDS]


def test_a_round_that_confirms_does_not_begin_before_its_time() -> None:
    ring = Ring()
    ring.world.round(ring.last)
    ring.world.round(ring.last, CONFIRM_SECONDS / 2)
    assert len(ring.world.words(b"ask")) == 1
    assert errors(*ring.waiters) == [False, False]


def test_after_the_round_that_confirms_the_next_one_is_due_in_its_time() -> None:
    ring = Ring(deadlock="report")
    ring.find(ring.last)
    ring.world.round(ring.last, REPEAT_SECONDS - 0.001)
    assert len(ring.world.words(b"ask")) == 2
    ring.world.round(ring.last, 0.001)
    assert len(ring.world.words(b"ask")) == 3


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_ring_that_two_rounds_found_ends_the_wait_with_the_largest_ticket(length: int) -> None:
    ring = Ring(length)
    ring.find(ring.last)
    assert errors(*ring.waiters) == [False] * (length - 1) + [True]
    error, (event,) = ring.waiters[-1].error, ring.last.events
    assert error is not None
    assert isinstance(event, Deadlocked)
    assert (error.lock, error.cycle, event.cycle) == ("x0", event.cycle, error.cycle)
    assert event.victim == ring.waiters[-1].owner.decode()
    holds = [hold.owner.decode() for hold in ring.holds]
    waits = [waiter.owner.decode() for waiter in ring.waiters]
    assert set(error.cycle) == {(f"x{(i + 1) % length}", waits[i], holds[(i + 1) % length]) for i in range(length)}
    assert ring.last.counters.deadlocks == 1


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_client_whose_caller_is_not_the_victim_reports_the_ring_and_does_nothing_else(turn: int) -> None:
    """Each client finds the ring by itself, and all of them choose the same victim."""
    ring = Ring(3)
    ring.waiters[turn].tickets[0] = 99
    for number, client in enumerate(ring.clients):
        if number != turn:
            ring.find(client)
            assert client.told() == [(f"x{(number + 1) % 3}", ring.waiters[turn].owner.decode())]
    assert errors(*ring.waiters) == [False] * 3
    ring.find(ring.clients[turn])
    assert errors(*ring.waiters) == [number == turn for number in range(3)]


def test_of_equal_tickets_all_clients_choose_the_same_victim() -> None:
    ring = Ring(3)
    for waiter in ring.waiters:
        waiter.tickets[0] = 5
    for client in ring.clients:
        ring.find(client)
    assert sum(errors(*ring.waiters)) == 1


def test_a_ring_that_the_next_round_does_not_find_is_none() -> None:
    """The caller that was found to wait has got its lock since, and released all."""
    ring = Ring()
    ring.world.round(ring.last)
    ring.first.end(ring.waiters[0])
    ring.world.round(ring.last, CONFIRM_SECONDS)
    assert (errors(*ring.waiters), ring.last.told()) == ([False, False], [])


@pytest.mark.parametrize("change", ["wait", "hold", "lock"])
def test_a_ring_of_other_calls_or_holds_is_another_ring(change: str) -> None:
    """There may have been a moment without a ring in between."""
    ring = Ring()
    world, first, last = ring.world, ring.first, ring.last
    world.round(last)
    if change in ("wait", "lock"):
        first.end(ring.waiters[0])
        first.wait("x1", THREAD, ticket=3)
    if change == "hold":
        world.holders["x0"].clear()
        first.hold("x0", THREAD)
    if change == "lock":
        world.holders["other"] = world.holders.pop("x0")
    world.round(last, CONFIRM_SECONDS)
    assert (errors(*ring.waiters), last.told()) == ([False, False], [])
    if change != "lock":
        world.round(last, CONFIRM_SECONDS)
        assert errors(*ring.waiters) == [False, True], "the new one is confirmed as well"


def test_a_ring_that_is_found_again_after_a_round_without_it_is_to_be_confirmed_anew() -> None:
    ring = Ring()
    world, last = ring.world, ring.last
    world.round(last)
    world.lost = (b"wait ",)
    world.round(last, CONFIRM_SECONDS)
    world.lost = ()
    world.round(last, REPEAT_SECONDS)
    assert (errors(*ring.waiters), last.told()) == ([False, False], [])
    assert last.planned[-1] == world.now + CONFIRM_SECONDS
    world.round(last, CONFIRM_SECONDS)
    assert errors(*ring.waiters) == [False, True]


@pytest.mark.parametrize("lost", [b"ask ", b"wait "])
def test_a_lost_message_delays_and_no_more(lost: bytes) -> None:
    ring = Ring()
    ring.world.lost = (lost,)
    ring.find(ring.last)
    assert errors(*ring.waiters) == [False, False]
    ring.world.lost = ()
    ring.world.round(ring.last, REPEAT_SECONDS)
    ring.world.round(ring.last, CONFIRM_SECONDS)
    assert errors(*ring.waiters) == [False, True]


def test_a_ring_is_reported_once_however_often_it_is_found() -> None:
    ring = Ring()
    ring.find(ring.first)
    for _ in range(3):
        ring.world.round(ring.first, REPEAT_SECONDS)
    assert len(ring.first.events) == ring.first.counters.deadlocks == 1
    assert len(ring.first.planned) == 1, "it was confirmed"


def test_a_ring_that_has_no_victim_is_reported() -> None:
    ring = Ring(deadlock="report")
    ring.find(ring.last)
    assert ring.last.told() == [("x0", None)]
    assert errors(*ring.waiters) == [False, False]


def test_a_chain_that_ends_at_a_caller_which_does_not_wait_is_no_ring() -> None:
    ring = Ring(3)
    ring.last.end(ring.waiters[-1])
    for _ in range(3):
        ring.world.round(ring.first, REPEAT_SECONDS)
    assert (ring.first.told(), ring.first.planned) == ([], [])


def test_a_ring_that_a_wait_only_leads_to_is_left_to_its_own_clients() -> None:
    ring = Ring()
    outside = ring.world.client("outside")
    outside.hold("y", THREAD)
    waiter = outside.wait("x0", THREAD, ticket=99)
    ring.world.now += AFTER
    ring.find(outside)
    assert (errors(waiter), outside.told()) == ([False], [])


def test_a_wait_without_a_ticket_is_in_no_ring_until_it_has_one() -> None:
    ring = Ring()
    for waiter in ring.waiters:
        waiter.tickets.clear()
        ring.find(ring.first)
        ring.find(ring.last)
        assert errors(*ring.waiters) == [False, False]
        waiter.tickets.append(11)
    ring.world.now += REPEAT_SECONDS
    ring.find(ring.last)
    assert errors(*ring.waiters) == [False, True]


def test_a_writer_and_a_reader_of_two_clients_make_a_ring() -> None:
    """The writer waits for two readers, of which one waits for the writer's other lock."""
    world = World()
    me, you = world.client("me"), world.client("you")
    reads = as_reader(OTHER)
    you.hold("shared", as_reader(THREAD))
    you.hold("shared", reads)
    me.hold("x", THREAD)
    writes, waits = me.wait("shared", THREAD, ticket=1), you.wait("x", OTHER, ticket=2)
    world.now += AFTER
    for client in (me, you):
        world.round(client)
        world.round(client, CONFIRM_SECONDS)
    assert errors(writes, waits) == [False, True]


def test_a_long_ring_is_found_and_a_longer_one_is_not() -> None:
    ring = Ring(RING_MAX)
    ring.find(ring.last)
    assert sum(errors(*ring.waiters)) == 1
    ring = Ring(RING_MAX + 1)
    ring.find(ring.last)
    assert sum(errors(*ring.waiters)) == 0


# Masters --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masters", "silent", "found"), [(1, {0}, False), (3, {0}, True), (3, {0, 1}, False), (5, {0, 3}, True)]
)
def test_a_quorum_of_the_masters_must_answer(masters: int, silent: set[int], *, found: bool) -> None:
    ring = Ring(masters=masters)
    ring.world.silent = silent
    ring.find(ring.last)
    assert errors(*ring.waiters) == [False, found]
    ring.world.silent = set()
    ring.world.now += REPEAT_SECONDS
    ring.find(ring.last)
    assert errors(*ring.waiters) == [False, True], "once they answer, it is found"


def test_a_look_waits_for_a_quorum_and_a_message_for_one_master() -> None:
    ring = Ring(masters=3)
    ring.world.round(ring.first)
    asks = ring.world.asks
    assert [[call.script.name for call in one.calls] for one in asks] == [
        ["inspect"],
        ["notify"],
        ["notify"],
        ["inspect"],
    ]
    told, silent = ([b"told", 1, 1],), (SILENT,)
    for one in asks:
        assert one.until == ring.world.now + ring.first.node_timeout
        assert one.is_certain is not None
        is_look = one.calls[0].script.name == "inspect"
        answered = [one.is_certain([told] * n + [silent] * (3 - n)) for n in range(4)]
        assert answered == [False, not is_look, True, True]


def test_the_masters_may_name_a_holder_that_has_gone() -> None:
    """The holder's client does not answer."""
    ring = Ring()
    ring.world.holders["x1"] = [b"gone:1"]
    ring.find(ring.first)
    assert ring.first.told() == []
    assert ring.first.planned == []


# An operator ----------------------------------------------------------------------------------------------------------


class Operator(Client):
    """Client of an operator's command, which neither holds nor waits.

    Attributes:
        frozen: the clients that hear and do not answer.
        rounds: the rounds that were begun.
        before_second: does something before the first question of the second round comes to the clients.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world, "op", AFTER)
        world.clients["op"] = self
        self.quorum = world.masters // 2 + 1
        self.heard: deque[bytes] = deque()
        self.frozen: set[str] = set()
        self.rounds: list[bytes] = []
        self.before_second: Callable[[], object] = int
        self.chase = SimpleNamespace(hear=self.heard.append)  # type: ignore[assignment]

    def get(self, timeout: float) -> bytes:
        """Return the next answer, as a queue does."""
        assert 0.0 <= timeout <= ANSWER_SECONDS
        self.world.posts = deque(post for post in self.world.posts if post[0] not in self.frozen)
        for _, message in self.world.posts:
            if message.split()[2] not in self.rounds:
                self.rounds.append(message.split()[2])
                if len(self.rounds) == 2:
                    self.before_second()
        self.world.deliver()
        if not self.heard:
            raise Empty
        return self.heard.popleft()

    def look(self, lock: str) -> Found:
        """Return what an operator finds."""
        session, answers = cast("Any", self), cast("Any", self)
        return ask_twice(session, b"op", lock, answers)


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("options", [{}, {"deadlock": "report"}], ids=["raise", "report"])
@pytest.mark.parametrize("length", [2, 3, 5])
def test_an_operator_sees_a_ring_from_each_of_its_locks(length: int, options: dict[str, Any], masters: int) -> None:
    ring = Ring(length, masters, **options)
    operator = Operator(ring.world)
    for first in range(length):
        order = [(first + number) % length for number in range(length)]
        assert operator.look(f"x{first}").silent == ()
        (cycle,) = operator.look(f"x{first}").cycles
        assert cycle == tuple(
            (f"x{one}", ring.waiters[one - 1].owner.decode(), ring.holds[one].owner.decode()) for one in order
        )


def test_an_operator_ends_no_wait_and_nothing_is_reported() -> None:
    ring = Ring()
    assert Operator(ring.world).look("x0").cycles
    assert errors(*ring.waiters) == [False, False]
    assert [client.events for client in ring.clients] == [[], []]
    assert {call.script.name for ask in ring.world.asks for call in ask.calls} == {"inspect", "notify"}


def test_an_operator_sees_a_ring_that_has_no_victim_and_that_no_client_looks_for() -> None:
    ring = Ring(deadlock="report")
    for client in ring.clients:
        client.options = ClientOptions(deadlock_after=None)
    assert len(Operator(ring.world).look("x1").cycles) == 1


def test_an_operator_sees_a_ring_among_the_callers_of_one_client() -> None:
    world = World()
    client = world.client("me")
    for who, mine, wanted in ((THREAD, "a", "b"), (OTHER, "b", "a")):
        client.hold(mine, who)
        client.wait(wanted, who)
    (cycle,) = Operator(world).look("b").cycles
    assert [lock for lock, _, _ in cycle] == ["b", "a"]


def test_an_operator_sees_a_ring_for_which_a_holder_waits_without_being_in_it() -> None:
    ring = Ring()
    behind = ring.world.client("behind")
    behind.hold("z", THREAD)
    behind.wait("x0", THREAD)
    (cycle,) = Operator(ring.world).look("z").cycles
    assert sorted(lock for lock, _, _ in cycle) == ["x0", "x1"]


def test_an_operator_sees_each_of_several_rings() -> None:
    """A writer waits for two readers, each of which waits for it."""
    world = World()
    writer, readers = world.client("writer"), [world.client("one"), world.client("two")]
    writer.hold("x", THREAD)
    for reader in readers:
        reader.hold("shared", as_reader(THREAD))
        reader.wait("x", THREAD)
    writer.wait("shared", THREAD)
    operator = Operator(world)
    assert len(operator.look("shared").cycles) == len(operator.look("x").cycles) == 2


def test_an_operator_sees_no_ring_where_a_holder_does_not_wait() -> None:
    ring = Ring()
    ring.last.end(ring.waiters[-1])
    operator = Operator(ring.world)
    assert operator.look("x0") == operator.look("x1") == NOTHING
    assert len(operator.rounds) == 2, "one for each look"


def test_a_ring_that_is_gone_in_the_second_round_is_none() -> None:
    ring = Ring()
    operator = Operator(ring.world)
    operator.before_second = lambda: ring.last.end(ring.waiters[-1])
    assert operator.look("x0") == NOTHING
    assert len(operator.rounds) == 2


def test_another_ring_in_the_second_round_is_none() -> None:
    """A caller gave up, and waits again."""
    ring = Ring()
    operator = Operator(ring.world)

    def wait_again() -> None:
        ring.last.end(ring.waiters[-1])
        ring.last.wait("x0", THREAD, ticket=99)

    operator.before_second = wait_again
    assert operator.look("x0") == NOTHING
    assert len(operator.look("x0").cycles) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_client_that_listens_and_does_not_answer_is_named(which: int) -> None:
    ring = Ring()
    operator = Operator(ring.world)
    operator.frozen = {f"c{which}"}
    assert operator.look("x0") == Found((), (ring.holds[which].owner.decode(),))


def test_a_ring_is_seen_beside_a_client_that_does_not_answer() -> None:
    world = World()
    me, you, frozen = (world.client(name) for name in ("me", "you", "frozen"))
    me.hold("x", THREAD)
    for client in (you, frozen):
        client.hold("shared", as_reader(THREAD))
    me.wait("shared", THREAD)
    you.wait("x", THREAD)
    operator = Operator(world)
    operator.frozen = {"frozen"}
    found = operator.look("x")
    assert len(found.cycles) == 1
    assert [name.partition(":")[0] for name in found.silent] == ["frozen"]


@pytest.mark.parametrize(
    ("counts", "is_silent"),
    [
        ([0, 0, 0], False),
        ([0, 0, SILENT], False),
        ([0, SILENT, SILENT], True),
        ([0, 0, 1], True),
        ([0, -1, SILENT], True),
    ],
)
def test_a_client_that_listens_to_no_master_does_not_wait_if_a_quorum_says_so(
    counts: list[Any], is_silent: bool
) -> None:
    """A master may be unable to say it."""
    world = World(3)
    world.holders["x"] = [b"gone:1"]
    operator, reply, said = Operator(world), world._reply, iter(counts)

    def answer(call: Call) -> Any:
        if call.script.name != "notify":
            return reply(call)
        count = next(said)
        return SILENT if count is SILENT else [b"told", 1, count]

    world._reply = answer  # type: ignore[method-assign]
    assert operator.look("x") == Found((), ("gone:1",) if is_silent else ())


def test_more_holders_than_an_operator_asks_for_are_named() -> None:
    world = World()
    you = world.client("you")
    for number in range(HOLDERS_MAX + 2):
        you.hold("shared", as_reader(Owner(number, None, None)))
    assert len(Operator(world).look("shared").silent) == 2


def test_an_operator_is_told_why_nothing_is_known_if_too_few_masters_answer() -> None:
    ring = Ring(masters=3)
    ring.world.silent = {0, 1}
    cycles, silent, problem = Operator(ring.world).look("x0")
    assert (cycles, silent) == ((), ())
    assert "'x0'" in problem


# The janitor ----------------------------------------------------------------------------------------------------------


def janitor_of(client: Client) -> Janitor:
    """Return a janitor whose heartbeats are for no waiter; the test calls it by hand."""
    session: Any = client
    session.platform, session.foregrounds = THREADS, {}
    janitor = Janitor(session)
    places: Any = SimpleNamespace(give_up=lambda _: [], keep=lambda _: (FOREVER, []), were_given_up=lambda _: False)
    janitor._places = places
    return janitor


def test_a_heartbeat_plans_the_round_that_is_due_before_the_next_one() -> None:
    ring = Ring()
    ring.world.now = 101.0
    janitor = janitor_of(ring.first)
    janitor._beat()
    (due,) = janitor._due
    assert due.at == 100.0 + AFTER
    ring.world.now = due.at
    janitor._act_on_due(ring.world.now)
    assert len(ring.world.words(b"ask")) == 1


def test_a_heartbeat_leaves_a_later_round_to_the_next_one() -> None:
    ring = Ring()
    ring.world.now = 100.0 + AFTER - HEARTBEAT_SECONDS - 0.001
    janitor = janitor_of(ring.first)
    janitor._beat()
    assert janitor._due == []


def test_a_new_ring_plans_the_round_that_confirms_it() -> None:
    ring = Ring()
    janitor = janitor_of(ring.last)
    ring.last.chase = janitor.chase
    ring.world.round(ring.last)
    (due,) = janitor._due
    assert due.at == ring.world.now + CONFIRM_SECONDS
    ring.world.now = due.at
    janitor._act_on_due(ring.world.now)
    ring.world.deliver()
    assert errors(*ring.waiters) == [False, True]


def test_the_janitor_hears_what_other_clients_ask() -> None:
    """The thread that reads a subscription must not wait for masters."""
    handed: list[Any] = []
    chase = SimpleNamespace(hear=lambda message: handed.append(("heard", message)))
    session: Any = SimpleNamespace(janitor=SimpleNamespace(hand=handed.append, chase=chase))
    Reports(session).asked(b"ask a b c")
    (task,) = handed
    task.do()
    assert handed[1:] == [("heard", b"ask a b c")]
