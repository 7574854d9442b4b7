"""Waiters that cannot act lose their places, and get them back when they look: judged by hand, and by a janitor."""

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define
from support.hubs import hubs_of

from relock._core.book import Book
from relock._core.effects import Ask, Handed
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._core.quorum import NEVER
from relock._core.turns import LOOK_SECONDS, TURN_SECONDS, Turns
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.background.janitor import Janitor
from relock._runtime.machine import THREADS
from relock._runtime.wakeups.shared_subscriptions import LEAD, SharedSubscriptions
from relock._runtime.wakeups.waiter import Waiter
from relock.testing._master import unpack_arguments

KEYS = lock_keys("lock", "a")
GRANT = Handed(0, b"me:1~ab.1", 1, 1, 3.0, 10.0)
TOLD_AT = 10.0
WITHIN = 1e-6


@define(eq=False)
class Loop:
    """A loop that does not turn."""

    pulse: Pulse
    is_open: bool = True

    def ask_for_sign_of_life(self) -> None:
        """Answer nothing."""


@define(eq=False)
class Told:
    """A waiter, as its turn is judged."""

    overdue_since: float = TOLD_AT


def test_a_turn_is_missed_after_the_lease_of_a_hand_over() -> None:
    turns = Turns()
    assert not turns.has_missed(Told(), TOLD_AT + TURN_SECONDS - WITHIN)
    assert turns.has_missed(Told(), TOLD_AT + TURN_SECONDS)
    assert not turns.has_missed(Told(FOREVER), 1e9)


def test_time_for_which_the_process_was_stopped_does_not_count() -> None:
    turns = Turns()
    turns.woke(due=TOLD_AT + 1.0, now=TOLD_AT + 21.0)
    assert not turns.has_missed(Told(), TOLD_AT + 22.9)
    assert turns.has_missed(Told(), TOLD_AT + 23.0)
    assert not turns.has_missed(Told(TOLD_AT + 11.0), TOLD_AT + 23.9), "the message came while the process was stopped"
    assert turns.has_missed(Told(TOLD_AT + 11.0), TOLD_AT + 24.0)


def test_a_thread_that_wakes_a_little_late_was_not_stopped() -> None:
    turns = Turns()
    for second in range(3):
        turns.woke(due=TOLD_AT + second, now=TOLD_AT + second + 0.4)
    assert turns.has_missed(Told(), TOLD_AT + TURN_SECONDS)


def test_the_next_look_comes_when_the_first_that_was_told_has_missed_its_turn() -> None:
    turns = Turns()
    assert turns.next_look([Told(FOREVER), Told(TOLD_AT + 9)], TOLD_AT + 1.0) == FOREVER
    assert turns.next_look([Told(), Told(TOLD_AT + 0.5)], TOLD_AT + 1.0) == TOLD_AT + TURN_SECONDS
    assert turns.next_look([Told()], TOLD_AT + 2.9) == TOLD_AT + 2.9 + LOOK_SECONDS


# A waiter ---------------------------------------------------------------------------------------------------------


class Scene:
    """A client with a janitor that has no thread, and with one master, which tells nothing; the test moves the clock.

    Attributes:
        sent: the name of each script that went out, and its waiters.
    """

    def __init__(self) -> None:
        self.now = TOLD_AT
        self.sent: list[tuple[str, tuple[int, ...]]] = []
        self.waiters: dict[bytes, Waiter] = {}
        self.hubs = hubs_of(self)
        self.foregrounds: dict[Any, None] = {}
        self.meanwhile: Callable[[], object] = bool
        self.shared = SharedSubscriptions(THREADS)
        self.shared.clock = self.clock
        self.janitor = Janitor(self.session())
        self.janitor._beat_at = TOLD_AT

    def session(self) -> Any:
        return SimpleNamespace(
            client_id="me",
            clock=self.clock,
            foregrounds=self.foregrounds,
            holds=Book(),
            hubs=self.hubs,
            masters=(SimpleNamespace(facts=SimpleNamespace(vote_at=0.0)),),
            node_timeout=1.0,
            options=ClientOptions(),
            platform=THREADS,
            ask_shielded=self.ask_shielded,
        )

    def clock(self) -> float:
        return self.now

    def add(self, number: int, pulse: Pulse | None = None) -> Waiter:
        waiter = Waiter(b"me:%d" % number, KEYS, SimpleQueue(), self.shared, pulse)
        waiter.tickets[:] = [number]
        self.waiters[waiter.owner] = waiter
        return waiter

    def add_loop(self) -> Pulse:
        """Return a loop that does not turn."""
        pulse = Pulse(FOREVER)
        self.foregrounds[Loop(pulse)] = None
        return pulse

    @property
    def is_attended(self) -> bool:
        return bool(self.waiters)

    def ask_shielded(self, ask: Ask) -> list[Any]:
        for call in ask.calls:
            words = [word for word in unpack_arguments(call.own + call.rest) if word.startswith(b"me:")]
            self.sent.append((call.script.name, tuple(int(word[3:]) for word in words)))
        self.meanwhile()
        replies = {"heartbeat": [b"tended", 0, -1, b"", b""], "leave": [b"left", 0]}
        return [tuple(replies[call.script.name] for call in ask.calls)]

    def play_until(self, moment: float) -> None:
        """Let the janitor carry out the tasks that are due until then."""
        while True:
            due = self.janitor._next_moment()
            if due > moment:
                self.now = moment
                return
            self.now = max(self.now, due)
            self.janitor._act_on_due(self.now)

    def last(self) -> tuple[str, tuple[int, ...]]:
        return self.sent[-1]

    def left(self) -> list[int]:
        return [number for name, numbers in self.sent if name == "leave" for number in numbers]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(Janitor, "ensure", lambda _self: None)
    return Scene()


def test_a_waiter_that_was_told_and_does_not_look_leaves_and_no_heartbeat_speaks_for_it(scene: Scene) -> None:
    stuck, well = scene.add(1), scene.add(2)
    scene.play_until(TOLD_AT)
    assert scene.sent == [("heartbeat", (1, 2))]
    stuck.wake(0)
    scene.play_until(TOLD_AT + TURN_SECONDS + HEARTBEAT_SECONDS)
    assert scene.left() == [1]
    at = scene.sent.index(("leave", (1,)))
    assert set(scene.sent[at + 1 :]) == {("heartbeat", (2,))}
    assert stuck.has_left
    assert not well.has_left


@pytest.mark.parametrize(
    "tell", [lambda waiter: waiter.wake(), lambda waiter: waiter.wake(0), lambda waiter: waiter.give(GRANT)]
)
def test_the_turn_counts_from_the_first_telling(tell: Callable[[Waiter], None], scene: Scene) -> None:
    waiter = scene.add(1)
    tell(waiter)
    for _ in range(3):
        scene.play_until(scene.now + TURN_SECONDS / 4)
        waiter.wake(0)
    assert scene.left() == []
    scene.play_until(TOLD_AT + TURN_SECONDS)
    assert scene.left() == [1]


def test_a_waiter_that_looks_whenever_it_is_told_keeps_its_place(scene: Scene) -> None:
    waiter = scene.add(1)
    for _ in range(20):
        waiter.wake(0)
        scene.play_until(scene.now + 1.0)
        waiter.woke()
    assert scene.left() == []
    assert waiter.missed == 0


def test_a_thread_that_is_asked_to_lead_was_not_told_of_a_turn(scene: Scene) -> None:
    scene.add(1).wake(LEAD)
    scene.play_until(TOLD_AT + 60.0)
    assert scene.left() == []


def test_a_waiter_comes_back_with_its_ticket_when_it_looks_and_only_once(scene: Scene) -> None:
    waiter = scene.add(1)
    for turn in (1, 2):
        waiter.wake(0)
        scene.play_until(scene.now + 2 * TURN_SECONDS)
        assert scene.left() == [1] * turn
        scene.sent.append(("looks", ()))
        waiter.woke()
        assert waiter.missed == turn
        scene.play_until(scene.now + 2 * HEARTBEAT_SECONDS)
        since = scene.sent[scene.sent.index(("looks", ())) :]
        assert (("heartbeat", (1,)) in since) == (turn == 1), (
            "after the second miss the waiter first asks for another ticket"
        )
        scene.sent = [one for one in scene.sent if one[0] == "leave"]


def test_a_place_that_a_waiter_has_just_come_back_to_is_given_back_at_once(scene: Scene) -> None:
    """The waiter looks, and queues again, before the script arrives that gives up its place."""
    waiter = scene.add(1)
    waiter.wake(0)
    scene.meanwhile = lambda: waiter.woke() if scene.sent[-1][0] == "leave" else None
    scene.play_until(TOLD_AT + TURN_SECONDS)
    assert scene.sent[-2:] == [("leave", (1,)), ("heartbeat", (1,))]


def test_a_waiter_that_has_no_ticket_yet_leaves_as_well(scene: Scene) -> None:
    """The reply that brings the ticket lies unread."""
    waiter = scene.add(1)
    waiter.tickets.clear()
    waiter.give(GRANT)
    scene.play_until(TOLD_AT + TURN_SECONDS)
    assert scene.sent == [("leave", (1,))]


def test_all_waiters_of_a_silent_loop_leave_the_last_ones_first_and_come_back_when_it_turns(scene: Scene) -> None:
    """A script that gives up one place would otherwise tell the next of these waiters."""
    pulse = scene.add_loop()
    for number in (1, 2, 3):
        scene.add(number, pulse)
    thread = scene.add(4)
    scene.play_until(TOLD_AT + TURN_SECONDS - WITHIN)
    assert scene.left() == []
    scene.play_until(TOLD_AT + TURN_SECONDS + WITHIN)
    assert scene.left() == [3, 2, 1]
    assert not thread.has_left
    scene.play_until(scene.now + 2 * HEARTBEAT_SECONDS)
    assert scene.last() == ("heartbeat", (4,))
    assert pulse.answer(), "the loop is told of the lost places, and asks for heartbeats"
    scene.janitor.beat_now()
    scene.play_until(scene.now)
    assert scene.last() == ("heartbeat", (1, 2, 3, 4))
    assert scene.left() == [3, 2, 1]


def test_a_loop_that_answers_keeps_the_places_of_its_tasks(scene: Scene) -> None:
    pulse = scene.add_loop()
    scene.add(1, pulse)
    for _ in range(20):
        scene.play_until(scene.now + TURN_SECONDS - WITHIN)
        pulse.answer()
    assert scene.left() == []


def test_a_task_whose_loop_hears_late_has_missed_its_turn(scene: Scene) -> None:
    """Messages for the loop lie unread while it stands still, and are heard before it answers."""
    pulse = scene.add_loop()
    waiter = scene.add(1, pulse)
    scene.play_until(TOLD_AT + TURN_SECONDS)
    waiter.wake(0)
    pulse.answer()
    waiter.woke()
    assert waiter.missed == 1
    waiter.wake(0)
    waiter.woke()
    assert waiter.missed == 1, "the loop is not late this time"


@pytest.mark.parametrize(("begins", "missed"), [(TOLD_AT + 0.1, 1), (TOLD_AT + 1.0, 0), (NEVER, 0)])
def test_a_grant_that_a_loop_hears_late_was_told_when_it_was_made(scene: Scene, begins: float, missed: int) -> None:
    """The question to the loop may have come long after the grant."""
    pulse = scene.add_loop()
    waiter = scene.add(1, pulse)
    scene.now += 2.0
    pulse.ask(scene.now)
    scene.now = TOLD_AT + TURN_SECONDS + 0.5
    waiter.give(GRANT._replace(begins=begins))
    waiter.woke()
    assert waiter.missed == missed


@pytest.mark.parametrize(
    "tell", [lambda waiter: waiter.wake(1), lambda waiter: waiter.give(GRANT._replace(begins=TOLD_AT + 0.1))]
)
def test_a_turn_that_a_loop_hears_of_master_by_master_is_missed_once(
    scene: Scene, tell: Callable[[Waiter], None]
) -> None:
    """The task looks when it has heard of one master, and sleeps again before it hears of the next."""
    pulse = scene.add_loop()
    waiter = scene.add(1, pulse)
    pulse.ask(scene.now)
    scene.now += TURN_SECONDS + 0.5
    for _ in range(2):
        tell(waiter)
        waiter.woke()
        scene.now += 0.01
    assert waiter.missed == 1
    scene.now += TURN_SECONDS
    tell(waiter)
    waiter.woke()
    assert waiter.missed == 2, "the loop has stood still for another turn"


def test_a_process_that_was_stopped_gives_its_waiters_a_chance_to_look(scene: Scene) -> None:
    waiter = scene.add(1)
    scene.play_until(TOLD_AT)
    waiter.wake(0)
    scene.now += 20.0  # longer than the janitor was to sleep
    scene.janitor._incoming.put(None)
    scene.janitor._places.woke(TOLD_AT + HEARTBEAT_SECONDS, scene.now)
    scene.janitor._act_on_due(scene.now)
    assert scene.left() == []
    scene.play_until(scene.now + TURN_SECONDS)
    assert scene.left() == [1]
