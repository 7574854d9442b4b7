"""Watchdog: when it works and when it sleeps, on a clock that only its own sleep moves."""

from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from queue import Empty
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relock._core.effects import Answer, Failure
from relock._core.hold import FOREVER, Hold
from relock._core.host import Counters
from relock._core.lock_spec import LockSpec
from relock._core.pulse import Pulse
from relock._core.quorum import Grant
from relock._errors import ConfigurationError
from relock._events import Event, LoopStalled, LossCode, RenewalFailing
from relock._keys import LockKeys, lock_keys, permit_keys
from relock._options import ClientOptions
from relock._owner import TaskRef, named
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.machine import Machine

TTL_SECONDS = 30.0
DUE_SECONDS = 10.0
EARLY_SECONDS = 1.0


class Desk(Machine):
    """Machine without other threads: a wait for a message moves the clock on, and gets no new message."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = lambda: self.now
        self.queue = lambda: Messages(self)  # type: ignore[assignment, return-value]

    def start(self, target: Callable[[], object], name: str) -> None:
        """Do nothing: the test itself is the thread."""


class Messages(deque[Any]):
    """Messages as in a `queue.SimpleQueue`."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    put = deque.append
    qsize = deque.__len__

    def get(self, timeout: float | None) -> Any:
        if self:
            return self.popleft()
        self._desk.now += timeout or 0.0
        raise Empty


class Holds(list[Hold]):
    """Holds of a session, which note each look at all of them."""

    def __init__(self, book: "Book") -> None:
        super().__init__()
        self._book = book

    def all(self) -> list[Hold]:
        self._book.plans.append(self._book.clock())
        holds = list(self)
        self._book.while_renewals_are_planned()
        return holds

    def has(self, hold: Hold) -> bool:
        return hold in self


class Book:
    """A session with nothing but holds, on one master that renews each."""

    node_timeout = 1.0
    masters = ("a",)

    def __init__(self) -> None:
        self.platform = Desk()
        self.clock = self.platform.clock
        self.holds = Holds(self)
        self.counters = Counters()
        self.foregrounds: dict[Any, None] = {}
        self.plans: list[float] = []
        self.writes: list[tuple[float, int]] = []
        self.sweeps: list[float] = []
        self.sweep_at = FOREVER
        self.renewals: Counter[bytes] = Counter()
        self.watchdog = Watchdog(self)  # type: ignore[arg-type]
        self.while_renewals_are_planned: Callable[[], object] = lambda: None

    def grant(self, ttl: float = TTL_SECONDS) -> Hold:
        name = f"{len(self.holds)}"
        options = ClientOptions(ttl=ttl)
        spec = LockSpec.of(lock_keys("lock", name), ("a",), options.for_lock(), options)
        end = self.clock() + spec.validity
        answers: list[Answer] = [[[b"granted", 0, 7]]]
        hold = Hold(spec, f"me:{name}".encode(), named(name), Grant(7, end, [end], True, answers), 1)
        self.holds.append(hold)
        self.watchdog.watch(hold)
        return hold

    def work_until(self, seconds: float) -> None:
        self.watchdog.watch(self.holds[0])
        while self.clock() < seconds:
            self.watchdog.step()

    # The watchdog's needs of a session

    def sweep(self, now: float) -> float:
        self.sweeps.append(now)
        return self.sweep_at

    def run_on_own(self, flow: Any) -> Any:
        ask = flow.send(None)
        self.writes.append((self.clock(), len(ask.calls)))
        self.renewals.update(call.own for call in ask.calls)
        try:
            flow.send([[[b"extended", 0]] * len(ask.calls)])
        except StopIteration as end:
            return end.value
        raise AssertionError("one write renews them")

    def lose(self, hold: Hold, reason: str) -> None:
        raise AssertionError(f"{hold.keys.name}: {reason}")


class BookOfReplica(Book):
    """A session whose master has become a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def run_on_own(self, flow: Any) -> Any:  # noqa: ARG002
        raise ConfigurationError("it is a replica", option="nodes")

    def emit(self, event: Event) -> None:
        self.events.append(event)


class FakeTask:
    """A task that stays pending."""

    _asyncio_future_blocking = False  # by which asyncio knows a future

    def __init__(self, loop: object) -> None:
        self._loop = loop

    def get_loop(self) -> object:
        return self._loop

    def done(self) -> bool:
        return False


class BookOfTasks(Book):
    """A session where the owner of each hold is a task of one loop; it notes losses and reports."""

    client = b"me"
    is_open = True

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.turns = True
        self.is_closed = False
        self.loop = SimpleNamespace(is_closed=lambda: self.is_closed)
        self.pulse = Pulse(limit)
        self.foregrounds = {self: None}
        self._task = FakeTask(self.loop)
        self.events: list[Event] = []
        self.losses: list[tuple[float, str]] = []

    def grant(self, ttl: float = TTL_SECONDS) -> Hold:
        hold = super().grant(ttl)
        hold.liveness = TaskRef(cast(Any, self._task))
        return hold

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def ask_for_sign_of_life(self) -> None:
        if self.turns:
            self.turn()

    def turn(self) -> None:
        """Let the loop go on."""
        self.turns = True
        if self.pulse.answer():
            self.watchdog.poke()

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def lose(self, hold: Hold, reason: str) -> None:
        self.holds.remove(hold)
        self.losses.append((self.clock(), reason))


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_loop_that_turns_is_never_over_its_limit() -> None:
    book = BookOfTasks(limit=0.05)
    book.grant()
    book.work_until(10 * DUE_SECONDS)
    assert len(book.writes) >= 8
    assert (book.events, book.losses) == ([], [])


def test_the_holds_of_a_loop_that_stands_still_are_renewed_and_that_is_told_once() -> None:
    book = BookOfTasks(limit=FOREVER)
    book.grant()
    book.turns = False
    book.work_until(10 * DUE_SECONDS)
    assert len(book.writes) >= 8
    assert book.losses == []
    (event,) = book.events
    assert isinstance(event, LoopStalled)
    assert event.seconds >= DUE_SECONDS - EARLY_SECONDS
    book.turn()
    book.work_until(12 * DUE_SECONDS)
    book.turns = False
    book.work_until(16 * DUE_SECONDS)
    assert [type(event) for event in book.events] == [LoopStalled] * 2


def test_the_holds_of_a_loop_that_stands_still_for_too_long_are_lost_when_their_leases_end() -> None:
    book = BookOfTasks(limit=1.0)
    book.grant()
    book.turns = False
    book.watchdog.watch(book.holds[0])
    while book.holds:
        book.watchdog.step()
    ((moment, reason),) = book.losses
    assert reason == LossCode.STALLED
    assert moment <= 1.0 + TTL_SECONDS


def stand_still(limit: float, since: float, seconds: float, *, beside: float | None = None) -> BookOfTasks:
    """Play a session with the hold of a task, whose loop stands still once, for so many `seconds`.

    `beside` is the ttl of a thread's hold: the watchdog plans as often as that one needs.
    """
    book = BookOfTasks(limit)
    book.grant()
    if beside is not None:
        Book.grant(book, beside)
    book.work_until(since)
    book.platform.now, book.turns = since, False
    while book.clock() < since + seconds and not book.losses:
        book.watchdog.step()
    book.turn()
    while book.clock() < since + seconds + 2 * TTL_SECONDS and not book.losses:
        book.watchdog.step()
    return book


SINCE = [TTL_SECONDS + tenths * DUE_SECONDS / 10 for tenths in range(11)]  # between two renewals
each_moment = pytest.mark.parametrize("since", SINCE)
alone_or_not = pytest.mark.parametrize("beside", [None, 1.0], ids=["alone", "beside a short lease"])


@each_moment
@alone_or_not
def test_a_stall_is_reported_from_a_third_of_the_ttl_on_and_surely_after_two_leases(
    since: float, beside: float | None
) -> None:
    assert stand_still(FOREVER, since, 0.97 * TTL_SECONDS / 3, beside=beside).events == []
    (event,) = stand_still(FOREVER, since, 2 * TTL_SECONDS, beside=beside).events
    assert isinstance(event, LoopStalled)
    assert TTL_SECONDS / 3 <= event.seconds <= 2 * TTL_SECONDS


@each_moment
@alone_or_not
@pytest.mark.parametrize("limit", [1.0, 45.0, 200.0])
def test_the_holds_of_a_loop_are_lost_within_the_limit_and_two_leases_and_by_no_shorter_stall(
    limit: float, since: float, beside: float | None
) -> None:
    assert stand_still(limit, since, 0.97 * limit, beside=beside).losses == []
    ((moment, reason),) = stand_still(limit, since, limit + 3 * TTL_SECONDS, beside=beside).losses
    assert reason == LossCode.STALLED
    assert since + limit < moment <= since + limit + 2 * TTL_SECONDS


@pytest.mark.parametrize("limit", [1.0, FOREVER])
def test_the_holds_of_a_loop_that_is_closed_are_lost_when_their_leases_end(limit: float) -> None:
    """Tasks of a closed loop may stay pending, and be kept alive."""
    book = BookOfTasks(limit)
    hold = book.grant()
    book.work_until(4 * DUE_SECONDS)
    assert book.losses == []
    book.is_closed, deadline = True, hold.deadline
    while book.holds and book.clock() < 10 * DUE_SECONDS:
        book.watchdog.step()
    ((moment, reason),) = book.losses
    assert reason == LossCode.OWNER_ENDED
    assert moment == pytest.approx(deadline)
    assert book.events == []


def test_what_a_loop_that_is_closed_has_left_is_looked_for_with_each_renewal() -> None:
    """The watchdog asks each loop whether it is open, even one whose tasks hold nothing."""
    book = BookOfTasks(FOREVER)
    looks: list[None] = []

    class Other:
        client = b"other"

        @property
        def is_open(self) -> bool:
            looks.append(None)
            return False

    book.foregrounds = cast(Any, {Other(): None})
    book.grant()
    book.work_until(4 * DUE_SECONDS)
    assert looks


def test_the_holds_of_a_loop_that_turns_again_are_renewed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    book = BookOfTasks(limit=1.0)
    pokes: Any = book.watchdog._pokes
    get: Callable[[float], Any] = pokes.get
    turned_at: list[float] = []

    def turn_and_get(timeout: float) -> Any:
        if book.clock() >= DUE_SECONDS - EARLY_SECONDS and not turned_at:
            assert not book.writes
            book.platform.now += 5.0
            turned_at.append(book.clock())
            book.turn()
        return get(timeout)

    monkeypatch.setattr(pokes, "get", turn_and_get)
    book.grant()
    book.turns = False
    book.work_until(10 * DUE_SECONDS)
    assert book.writes[0][0] == turned_at[0]
    assert book.losses == []


def test_a_hold_is_renewed_after_a_third_of_its_lease(book: Book) -> None:
    book.grant()
    book.work_until(2 * DUE_SECONDS)
    assert [moment for moment, _ in book.writes] == pytest.approx([DUE_SECONDS])


class BookOfSilence(BookOfReplica):
    """A session whose master does not answer."""

    def run_on_own(self, flow: Any) -> Any:
        ask = flow.send(None)
        try:
            flow.send([[Failure("a", "it has not answered", awaited=True)] * len(ask.calls)])
        except StopIteration as end:
            return end.value
        raise AssertionError("one write renews them")


@pytest.mark.parametrize("keys_of", [lock_keys, permit_keys])
def test_a_renewal_that_is_not_answered_is_told_with_the_kind_of_the_hold(
    keys_of: Callable[[str, str], LockKeys],
) -> None:
    book = BookOfSilence()
    book.grant().keys = keys_of("lock", "0")
    book.work_until(DUE_SECONDS + TTL_SECONDS / 10)
    assert {(type(event), event.kind) for event in book.events} == {(RenewalFailing, keys_of("", "").kind)}


@pytest.mark.parametrize("keys_of", [lock_keys, permit_keys])
def test_a_master_that_turns_out_to_be_none_is_told_as_a_renewal_that_fails(
    keys_of: Callable[[str, str], LockKeys],
) -> None:
    book = BookOfReplica()
    book.grant().keys = keys_of("lock", "0")
    book.work_until(DUE_SECONDS + TTL_SECONDS / 10)
    assert [(type(event), event.kind) for event in book.events] == [(RenewalFailing, keys_of("", "").kind)] * 2


def test_many_holds_that_were_granted_at_once_are_renewed_a_few_at_a_time(book: Book) -> None:
    for _ in range(1_000):
        book.grant()
    book.work_until(DUE_SECONDS + 2 * EARLY_SECONDS)
    moments, sizes = zip(*book.writes, strict=True)
    assert set(book.renewals.values()) == {1}
    assert len(book.renewals) == 1_000
    assert max(sizes) == 50
    pauses = [after - before for before, after in pairwise(moments)]
    assert pauses == pytest.approx([EARLY_SECONDS / 20] * 19)
    assert moments[0] == pytest.approx(DUE_SECONDS)


def test_what_is_released_before_its_turn_is_not_renewed(book: Book) -> None:
    for _ in range(100):
        book.grant()
    book.work_until(DUE_SECONDS + EARLY_SECONDS / 4)
    assert sum(size for _, size in book.writes) == 50
    del book.holds[40:60]
    book.work_until(DUE_SECONDS + 2 * EARLY_SECONDS)
    assert [size for _, size in book.writes] == [50, 40]


def test_a_short_lease_is_renewed_in_time_while_many_long_ones_are_due(book: Book) -> None:
    for _ in range(1_000):
        book.grant()
    book.work_until(DUE_SECONDS + EARLY_SECONDS / 4)
    short = book.grant(ttl=0.3)
    book.work_until(DUE_SECONDS + 2 * EARLY_SECONDS)
    assert short.remaining(book.clock()) > 0
    assert set(book.renewals.values()) == {1} | {book.renewals.most_common(1)[0][1]}, "no other hold was renewed twice"


def test_a_grant_while_renewals_are_planned_does_not_cause_another_plan(book: Book) -> None:
    """Plans of many renewals take so long that a busy client gets a new grant every time."""
    book.grant()
    book.while_renewals_are_planned = book.grant
    book.work_until(DUE_SECONDS)
    assert book.plans == [0.0]


def test_a_short_lease_that_is_granted_while_renewals_are_planned_is_renewed_in_time(book: Book) -> None:
    book.grant()
    book.while_renewals_are_planned = lambda: book.grant(ttl=0.3) if len(book.holds) == 1 else None
    book.work_until(1.0)
    assert book.holds[1].remaining(book.clock()) > 0


def test_it_keeps_to_the_moment_that_it_was_woken_for(book: Book) -> None:
    """Otherwise each of many short holds would wake the watchdog."""
    first = book.grant()
    book.work_until(1.0)
    book.holds.remove(first)
    book.grant()
    book.watchdog._sleep(DUE_SECONDS)
    assert len(book.plans) == 1
    assert book.clock() == pytest.approx(DUE_SECONDS)
