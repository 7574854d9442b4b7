"""Janitor: which of its tasks are done again, and which not; the tests carry them out by hand."""

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.hubs import hubs_of
from support.instructions import Interrupt, Strike
from support.until import until

from relock._core.book import Book
from relock._core.clocks import ClockStep, Offset
from relock._core.effects import Ask, Failure
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.hold import FOREVER, Hold
from relock._core.host import Counters
from relock._core.patience import EXPIRY_SECONDS
from relock._core.tasks import Accuse, PassOn, PendingCheck, Sample, Settle, UndoTask
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.background.janitor import BATCH, CHECK_SECONDS, OUTDATED_SECONDS, Janitor
from relock._runtime.machine import THREADS, Machine
from relock._runtime.wakeups.hubs import Hubs
from relock._runtime.wakeups.shared_subscriptions import SharedSubscriptions
from relock._runtime.wakeups.waiter import Waiter
from relock.testing._master import unpack_arguments

UNTOLD = Failure("a", "it is being connected", sent=False)
KEYS = lock_keys("lock", "a")
WAITER = b"me:1"
STEP = ClockStep(10.0, 0, 5.0, 0)
UNDO = UndoTask(KEYS, WAITER, 0, 1.0, not_after=9.0, give_up_at=20.0)


class FakeSession:
    """Three masters, of which the first is accused, and gives the answer of the test."""

    prefix, client_id, node_timeout, platform, closed = "lock", "me", 0.1, THREADS, False

    def __init__(self, says: Any) -> None:
        self.masters = (FakeMaster(0), FakeMaster(1), FakeMaster(2))
        self.steps = [STEP]
        self.says = says
        self.runs = 0
        self.now = 10.0
        self.seconds = 0.0  # of each run

    def clock(self) -> float:
        return self.now

    def ask_shielded(self, _ask: Ask) -> list[Any]:
        self.runs += 1
        self.now += self.seconds
        return [(self.says,), ([b"absent", 0],), ([b"absent", 0],)]

    run_shielded: Any = ask_shielded  # a flow returns the masters' answers


class FakeMaster:
    """One of the three masters."""

    address, incarnation = "a", b"run:repl"

    def __init__(self, index: int) -> None:
        self.index = index
        self.offset = Offset(0.01)
        self.trusted: list[int] = []

    @property
    def facts(self) -> "FakeMaster":
        return self

    def trust(self, shown_us: int) -> None:
        self.trusted.append(shown_us)


@pytest.mark.parametrize(
    ("says", "again"), [(UNTOLD, True), ([b"quarantined", 0, 1], False), ([b"absent", 0], False)], ids=str
)
def test_a_master_that_could_not_be_told_of_its_step_is_told_again(says: Any, again: bool) -> None:
    session: Any = FakeSession(says)
    janitor = Janitor(session)
    task = Accuse(STEP)
    janitor._act(task)
    assert [due.task for due in janitor._due] == ([Accuse(STEP, 2 * task.pause)] if again else [])
    for due in janitor._due:
        assert due.at == 10.0 + task.pause


def test_the_janitor_gives_up_a_master_that_it_can_not_tell_for_long() -> None:
    session: Any = FakeSession(UNTOLD)
    janitor = Janitor(session)
    janitor._act(Accuse(STEP, 100.0))
    assert janitor._due == []


@pytest.mark.parametrize(
    ("told", "waits"),
    [
        ([ClockStep(10.0, 2, -3.0, 0)], True),
        ([ClockStep(9.8, 1, 1.0, 0), ClockStep(10.0, 2, -3.0, 0)], True),
        ([ClockStep(9.9, 1, 1.0, 0), ClockStep(10.0, 2, -3.0, 0)], False),
        ([], False),
    ],
    ids=["not told", "only an earlier one told", "told", "one clock is steady"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_nobody_is_accused_before_a_step_is_told_that_another_thread_has_seen(
    told: list[ClockStep], *, waits: bool, is_first: bool
) -> None:
    """Threads may have seen the same step, which is then our own. The janitor waits for them, but not without end."""
    session: Any = FakeSession([b"quarantined", 0, 1])
    session.steps += told
    session.masters[1].offset.stepped_at = 9.9
    janitor = Janitor(session)
    task = Accuse(STEP, waits=is_first)
    janitor._act(task)
    waited = waits and is_first
    assert session.runs == (1 if waited else 2), "the janitor looks at the clocks, and accuses at most once"
    assert [due.task for due in janitor._due] == ([Accuse(STEP, waits=False)] if waited else [])


@pytest.mark.parametrize("seen_at", [10.0, 14.9])
def test_a_step_of_ours_is_known_as_such_however_long_a_silent_master_was_waited_for(seen_at: float) -> None:
    session: Any = FakeSession(UNTOLD)
    session.steps.append(ClockStep(seen_at, 1, 5.0, 0))
    session.seconds = 10.0
    Janitor(session)._act(Accuse(STEP))
    assert session.runs == 1, "the janitor looks at the clocks, and accuses no master"
    assert session.masters[0].trusted == [STEP.shown_us]


CHECK = PendingCheck(lambda: False, [], 10.0, lambda: UNDO)


def quiet_janitor(session: Any) -> Janitor:
    """Return a janitor without masters or waiters, with the test as its thread."""
    session.masters, session.hubs = (), Hubs()
    janitor = Janitor(session)
    janitor.ensure = lambda: True  # type: ignore[method-assign]
    return janitor


def test_an_interrupt_of_a_thread_that_brings_a_check_holds_nothing_up() -> None:
    """An interrupt between any two instructions: the janitor does later tasks, and the next brings it to the check."""
    with Strike() as strike:
        quiet_janitor(FakeSession(None)).look_later(CHECK)
    for raise_at in range(1, strike.count + 1):
        session: Any = FakeSession([b"quarantined", 0, 1])
        janitor = quiet_janitor(session)
        try:
            with Strike(raise_at):
                janitor.look_later(CHECK)
        except Interrupt:
            pass
        janitor.look_later(CHECK)
        assert not janitor._incoming.empty(), f"the thread is woken after an interrupt at {strike.where}"
        for task in (Sample(), Sample()):
            janitor.hand(task)
            janitor.step()
            session.now += 1.0
        assert session.runs == 2
        assert not janitor._checks


@pytest.mark.parametrize("meanwhile", ["drain", "clock"])
def test_a_check_that_comes_while_the_janitor_looks_at_others_does_not_keep_later_ones_asleep(meanwhile: str) -> None:
    """Janitors may make such a check at once: then none is left to wake for, and the next check must wake them."""
    session: Any = FakeSession(None)
    janitor = quiet_janitor(session)
    janitor.look_later(CHECK)
    janitor.step()
    session.now += 1.0
    came: list[None] = []

    def come() -> float:
        if not came:
            came.append(None)
            janitor.look_later(CHECK)
        return float(session.now)

    pool = SimpleNamespace(drain=come if meanwhile == "drain" else lambda: None)
    session.masters = (SimpleNamespace(servers=[SimpleNamespace(pool=pool)]),)
    session.clock = come if meanwhile == "clock" else session.clock
    janitor._run_checks()
    while not janitor._incoming.empty():
        janitor.step()
    asleep_until = janitor._next_moment()
    janitor.look_later(CHECK)
    wakes_in_time = asleep_until <= session.now + CHECK_SECONDS
    assert wakes_in_time or not janitor._incoming.empty()


def test_a_failure_of_one_kind_of_task_loses_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = FakeSession([b"absent", 0])
    session.hubs = Hubs()
    janitor = Janitor(session)
    passed_on: list[PassOn] = []

    def fail(_tasks: Sequence[UndoTask]) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(janitor._deeds, UndoTask, fail)
    monkeypatch.setitem(janitor._deeds, PassOn, passed_on.extend)
    for task in (Sample(), UNDO, UNDO, PassOn(KEYS, b"b"), PassOn(KEYS, b"c")):
        janitor._later(session.now, task)
    with pytest.raises(ZeroDivisionError):
        janitor._act_on_due(session.now)
    assert session.runs == 1, "tasks before the interrupt were done"
    assert not passed_on
    janitor._act_on_due(session.now)
    assert passed_on == [PassOn(KEYS, b"b"), PassOn(KEYS, b"c")]
    assert session.runs == 1, "tasks before the interrupt are not done again"
    assert not janitor._due


class Full(Machine):
    """A machine on which no other thread can start, at first."""

    def __init__(self) -> None:
        self.is_full = True

    def start(self, target: Callable[[], object], name: str) -> None:
        if self.is_full:
            raise RuntimeError("can't start new thread")
        super().start(target, name)


def test_checks_are_made_though_the_first_came_when_no_thread_could_be_started() -> None:
    """Checks may be the only tasks that ever come for the janitor, and each release may bring one."""
    session: Any = FakeSession([b"quarantined", 0, 1])
    session.masters, session.hubs, session.platform, session.clock = (), Hubs(), Full(), time.monotonic
    janitor = Janitor(session)
    for session.platform.is_full in (True, False):
        janitor.look_later(PendingCheck(lambda: False, [], 0.0, lambda: UNDO))
    try:
        until(lambda: not janitor._checks, within=20, what="both checks are made")
    finally:
        janitor.stop()
        janitor.join(5)


WITHOUT_A_NOTE = SimpleNamespace(options=SimpleNamespace(note=None))


class CountedHold(SimpleNamespace):
    """A hold as the janitor sees it."""

    def __init__(self, count: int, *, counts_until: float, owner: bytes = WAITER) -> None:
        super().__init__(keys=KEYS, owner=owner, count=count, wanted=count, settling=True, counts_until=counts_until)
        self.spec = WITHOUT_A_NOTE

    __hash__ = object.__hash__  # type: ignore[assignment]  # copies of a hold are not equal to it

    def remaining(self, _now: float) -> float:
        return 1.0

    def drop_absent(self, _replies: object) -> None:
        """Do nothing: no master has forgotten the hold."""


class Busy:
    """A hold whose owner asks to settle a count at the moment when the janitor finds that it has settled the last."""

    keys, owner, count, wanted, spec = KEYS, WAITER, 1, 1, WITHOUT_A_NOTE

    def __init__(self, janitor: Janitor) -> None:
        self.janitor = janitor
        self.settling = True

    def remaining(self, _now: float) -> float:
        return 1.0

    @property
    def counts_until(self) -> float:
        if not self.settling:
            self.janitor._incoming.put(Settle(cast("Hold", self)))
        return 9.0


def test_a_count_that_is_to_be_settled_as_the_last_one_is_done_is_settled() -> None:
    session: Any = FakeSession([b"counted", 0])
    janitor = Janitor(session)
    hold = cast("Hold", Busy(janitor))
    janitor._act(Settle(hold))
    assert janitor._incoming.get_nowait() == Settle(hold)


def test_a_count_that_was_written_before_others_were_void_is_written_again_however_late_the_answers_come() -> None:
    """Other counts may have arrived after that one, while its answers were on their way."""
    session: Any = FakeSession([b"counted", 0])
    session.seconds, session.hubs = 0.08, Hubs()
    janitor = Janitor(session)
    hold: Any = CountedHold(1, counts_until=10.05)
    janitor._act(Settle(hold))
    assert session.runs == 1
    act_on_all_due(janitor, session)
    assert session.runs == 2
    assert not janitor._due


def test_a_count_can_be_settled_while_the_last_one_is_only_to_be_written_once_more() -> None:
    """One look is planned at a time, however many counts of the hold are settled meanwhile."""
    session: Any = FakeSession([b"counted", 0])
    session.hubs = Hubs()
    janitor = Janitor(session)
    hold: Any = CountedHold(1, counts_until=10.05)
    for _ in range(2):
        janitor._act(Settle(hold))
        assert not hold.settling, "the hold is not being settled, so a release that misses a master hands its count in"
    assert [due.at for due in janitor._due] == [10.05 + 0.001]
    hold.counts_until = 10.2  # the second count is under way for longer
    session.now = 10.1
    act_on_all_due(janitor, session)
    assert [due.at for due in janitor._due] == [10.2 + 0.001]
    session.now, hold.settling = 10.3, True
    act_on_all_due(janitor, session)
    assert session.runs == 3, "no look writes a count that another task is settling"
    assert not janitor._due


def test_a_count_that_is_to_be_written_again_is_being_settled_from_then_on() -> None:
    """A release that misses a master meanwhile, and the next look, bring no second task."""
    session: Any = FakeSession([b"counted", 0])
    janitor = Janitor(session)
    hold: Any = CountedHold(1, counts_until=10.05)
    hold.settling = False
    for _ in range(2):
        janitor._recheck(hold)
    assert [due.task for due in janitor._due] == [Settle(hold)]


def test_a_close_waits_for_no_second_look_at_a_count() -> None:
    session: Any = FakeSession([b"counted", 0])
    janitor = Janitor(session)
    janitor._is_closing = True
    janitor._act(Settle(cast("Hold", CountedHold(1, counts_until=20.0))))
    assert janitor._due == []


def act_on_all_due(janitor: Janitor, session: FakeSession) -> None:
    """Carry out the tasks that are due, and those that they make due."""
    while janitor._due and janitor._due[0].at <= session.now:
        janitor._act_on_due(session.now)


def _interrupt() -> float:
    raise KeyboardInterrupt


class Waiting:
    """A session with one master and one waiter, which notes the requests."""

    node_timeout, platform, closed = 0.1, THREADS, False

    def __init__(self, *, waits: bool, leaves: bool) -> None:
        self.waiters: Any = {WAITER: SimpleNamespace(owner=WAITER, wake=self.wake)} if waits else {}
        self.hubs = hubs_of(self)
        self.leaves = leaves
        self.counters = Counters()
        self.asked: list[str] = []
        self.rounds = 0
        self.looks = 0

    def clock(self) -> float:
        return 10.0

    @property
    def is_attended(self) -> bool:
        return bool(self.waiters)

    def wake(self) -> None:
        self.looks += 1

    def ask_shielded(self, ask: Ask) -> list[Any]:
        self.rounds += 1
        for call in ask.calls:
            words = unpack_arguments(call.own)[:2]
            self.asked.append(b" ".join([call.script.name.encode(), *words]).decode())
        if self.leaves:
            self.waiters.clear()
        return [([b"released", 0],) * len(ask.calls)]


@pytest.mark.parametrize(
    ("waits", "leaves", "closed", "asked", "looks"),
    [
        (True, False, False, ["give_back me:1~ab.7 7"], 1),
        (False, False, False, ["give_back me:1~ab.7 0"], 0),
        (True, True, False, ["give_back me:1~ab.7 7", "leave me:1"], 0),
        (True, False, True, ["release me:1~ab.7 0"], 0),
    ],
    ids=["it waits", "it has left", "it leaves meanwhile", "its client is closed"],
)
def test_a_waiter_gets_its_place_back_from_an_undo_as_long_as_it_waits(
    *, waits: bool, leaves: bool, closed: bool, asked: list[str], looks: int
) -> None:
    session: Any = Waiting(waits=waits, leaves=leaves)
    session.closed = closed
    janitor = Janitor(session)
    janitor._act(UndoTask(KEYS, b"me:1~ab.7", 0, 1.0, not_after=9.0, give_up_at=20.0, keeps_place=True, ticket=7))
    assert (session.asked, session.looks) == (asked, looks)
    assert [due.task for due in janitor._due] == ([PassOn(KEYS, WAITER)] if leaves else [])


def test_a_grant_that_was_published_before_a_close_is_given_back_before_the_janitor_ends() -> None:
    """Waiters have left, and no thread reads the message once the client is closed."""
    session: Any = Waiting(waits=False, leaves=False)
    janitor, published = Janitor(session), [UNDO]
    session.masters = ()
    session.catch_up = lambda _until: janitor._incoming.put(published.pop()) if published else None
    janitor.stop()
    assert session.asked == ["release me:1 0"]


class Slow(Waiting):
    """A session whose master acts at once, but whose answers take a moment."""

    def __init__(self, seconds: float) -> None:
        super().__init__(waits=False, leaves=False)
        self.now = 10.0
        self.seconds = seconds
        self.sent_at: list[float] = []

    def clock(self) -> float:
        return self.now

    def ask_shielded(self, ask: Ask) -> list[Any]:
        self.sent_at.append(self.now)
        self.now += self.seconds
        return super().ask_shielded(ask)


def test_an_undo_that_was_sent_before_the_not_after_time_is_sent_again_however_late_its_answers_come() -> None:
    """The attempt may have arrived after its undo, while the answers to the undo were on their way."""
    session: Any = Slow(0.08)
    janitor = Janitor(session)
    janitor._act(UndoTask(KEYS, WAITER, 0, 1.0, not_after=10.05, give_up_at=20.0))
    janitor._act_on_due(session.now)
    assert session.sent_at == [10.0, 10.08]
    assert not janitor._due


def test_waiters_that_leave_together_are_taken_out_in_one_round() -> None:
    """Rounds for each waiter, on a slow master, would keep the janitor from the heartbeat for those that stay."""
    session: Any = Waiting(waits=False, leaves=True)
    owners = [b"me:%d" % number for number in range(30)]
    session.waiters = dict.fromkeys(owners, SimpleNamespace(wake=session.wake))
    janitor = Janitor(session)
    janitor._undo(
        [UndoTask(KEYS, b"%b~1.7" % owner, 0, 1.0, 9.0, 20.0, keeps_place=True, ticket=7) for owner in owners]
    )
    assert session.rounds == 2, "one round gives the places back, and one takes the waiters out"
    assert session.asked[30:] == [f"leave {owner.decode()}" for owner in owners]
    janitor._act_on_due(10.1)
    assert session.rounds == 3, "one more round, because a slow master may get the first only now"
    assert session.asked[60:] == session.asked[30:60]


class Burst(Waiting):
    """A session with several masters, of which one is slow in each round; it notes the time of each request."""

    client_id, masters, foregrounds = "me", (SimpleNamespace(facts=SimpleNamespace(vote_at=0.0)),), dict[Any, None]()
    holds, options = Book(), ClientOptions()

    def __init__(self, seconds: float, waiters: Sequence[Waiter] = ()) -> None:
        super().__init__(waits=False, leaves=False)
        self.now = 10.0
        self.seconds = seconds
        self.waiters = {waiter.owner: waiter for waiter in waiters}
        self.beats_at: list[float] = []

    def clock(self) -> float:
        return self.now

    def ask_shielded(self, ask: Ask) -> list[Any]:
        """Answer every request as if there were no other client."""
        started_at = self.now
        self.now += self.seconds
        released = super().ask_shielded(ask)
        name = ask.calls[0].script.name
        if name == "heartbeat":
            self.beats_at.append(started_at)
        replies = {"heartbeat": [b"tended", 0, -1, b"", b""], "count": [b"counted", 0]}
        return [(replies[name],) * len(ask.calls)] if name in replies else released

    def run_shielded(self, flow: Any) -> Any:
        """Play a flow."""
        answers = None
        try:
            while True:
                answers = self.ask_shielded(flow.send(answers))
        except StopIteration as end:
            return end.value


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the threads of janitors: the test does each step by hand."""
    monkeypatch.setattr(Janitor, "ensure", lambda _self: None)


def queued(number: int) -> Waiter:
    waiter = Waiter(b"me:%d" % number, KEYS, SimpleQueue(), SharedSubscriptions(THREADS))
    waiter.tickets[:] = [number]
    return waiter


@pytest.mark.usefixtures("idle")
def test_a_count_that_another_one_has_followed_is_replaced_while_a_master_is_silent() -> None:
    """The janitor's request may reach masters after the owner's newer one: a quorum then has the older count."""
    asked: list[Ask] = []
    session: Any = FakeSession(Failure("redis://a", "it is silent", awaited=True))

    def run(flow: Any) -> Any:
        asked.append(next(flow))
        answers = session.ask_shielded(asked[0])
        is_certain = asked[0].is_certain
        assert is_certain is not None
        assert not is_certain(answers), "an older count waits for all masters"
        hold.wanted = 1
        assert is_certain(answers), "a quorum is enough when another count is right"
        return answers

    session.run_shielded = run
    hold: Any = CountedHold(2, counts_until=9.0)
    janitor = Janitor(session)
    janitor._act(Settle(hold, pause=2.0))
    (due,) = janitor._due
    assert (due.at, due.task) == (session.now + OUTDATED_SECONDS, Settle(hold))


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("make", [lambda owner: UNDO._replace(owner=owner), lambda owner: PassOn(KEYS, owner)])
def test_what_is_handed_in_together_goes_out_together(make: Callable[[bytes], Any]) -> None:
    """Each round waits for a slow master: a thousand rounds would take minutes."""
    session: Any = Burst(0.4)
    janitor = Janitor(session)
    for number in range(1000):
        janitor.hand(make(b"me:%d" % number))
    janitor.step()
    while janitor._due:
        janitor.step()
    assert len({*session.asked}) == 1000
    assert session.rounds == 1000 / BATCH


@pytest.mark.usefixtures("idle")
def test_counts_that_are_to_be_settled_go_out_together() -> None:
    session: Any = Burst(0.4)
    janitor = Janitor(session)
    holds: list[Any] = [CountedHold(1, counts_until=9.0, owner=b"me:%d" % i) for i in range(100)]
    for hold in holds:
        janitor.hand(Settle(hold))
    janitor.step()
    assert session.asked == [f"count me:{i} 1" for i in range(100)]
    assert session.rounds == 1
    assert not any(hold.settling for hold in holds)


@pytest.mark.usefixtures("idle")
def test_the_heartbeat_comes_in_time_however_much_there_is_to_do() -> None:
    """Waiters that queue meanwhile, behind leases that are far from over, do not put the heartbeat off."""
    session: Any = Burst(0.4, [queued(1)])
    janitor = Janitor(session)
    janitor.ensure_beating(session.now + 60)
    for number in range(2000):
        janitor.hand(UNDO._replace(owner=b"me:%d" % number, give_up_at=99.0))
    janitor.step()
    while janitor._due:
        janitor.ensure_beating(session.now + 60)
        janitor.step()
    assert len(session.beats_at) == 3
    gaps = [later - earlier for earlier, later in zip([10.0, *session.beats_at], session.beats_at, strict=False)]
    assert max(gaps) <= HEARTBEAT_SECONDS + 2 * session.seconds


@pytest.mark.usefixtures("idle")
def test_a_heartbeat_that_is_asked_for_while_another_is_sent_comes_when_it_was_asked_for() -> None:
    """The lease before the waiter that asks ends sooner than any that the masters have told of."""
    session: Any = Burst(0.4, [queued(1)])
    janitor = Janitor(session)
    janitor.beat_now()
    ask = session.ask_shielded

    def meanwhile(asked: Ask) -> list[Any]:
        janitor.ensure_beating(session.now + 1.0)
        return list(ask(asked))

    session.ask_shielded = meanwhile
    janitor.step()
    assert session.beats_at == [10.0]
    session.ask_shielded = ask
    session.now = 11.0 + EXPIRY_SECONDS
    assert janitor._next_moment() == session.now
    janitor._act_on_due(session.now)
    assert session.beats_at == [10.0, session.now - session.seconds]


@pytest.mark.usefixtures("idle")
def test_the_first_waiter_after_a_while_gets_no_heartbeat_at_once() -> None:
    """A moment that was set for other waiters, which are gone, does not count."""
    session: Any = Burst(0.0)
    janitor = Janitor(session)
    for _ in range(2):
        session.now += 100.0
        waiter = queued(1)
        session.waiters[waiter.owner] = waiter
        janitor.ensure_beating(session.now + 60.0)
        janitor.step()
        assert janitor._next_moment() == session.now + HEARTBEAT_SECONDS
        session.waiters.clear()
        assert janitor._next_moment() == FOREVER
    assert session.beats_at == []


class Away(Waiting):
    """A session with three masters, of which the last is away until our time 30."""

    def __init__(self) -> None:
        super().__init__(waits=False, leaves=False)
        self.now = 10.0
        self.sent = [0, 0, 0]

    def clock(self) -> float:
        return self.now

    def ask_shielded(self, ask: Ask) -> list[Any]:
        answers: list[Any] = []
        for master in range(3):
            reply: Any = [b"released", 0]
            if master not in (ask.only or range(3)) or (master == 2 and self.now < 30.0):
                reply = UNTOLD
            else:
                self.sent[master] += len(ask.calls)
            answers.append((reply,) * len(ask.calls))
        return answers


def test_an_undo_that_waits_for_one_master_does_not_go_to_the_others_again_and_again() -> None:
    """Every wait that times out meanwhile leaves an undo, and the janitor keeps each for a ttl."""
    session: Any = Away()
    janitor = Janitor(session)
    janitor._act(UndoTask(KEYS, WAITER, 0, 60.0, not_after=10.5, give_up_at=70.0))
    rounds = 0
    while janitor._due:
        rounds += 1
        session.now = janitor._due[0].at
        janitor._act_on_due(session.now)
    assert rounds > 10
    assert session.sent[2] == 1, "the third master gets its request when it is back"
    assert session.sent[0] == session.sent[1] <= 5, (
        "the others get it until no request can arrive any more, and once after that"
    )
    assert session.counters.undos == 1


def test_an_undo_for_a_waiter_of_a_closed_client_puts_the_end_of_the_close_off_by_nothing_else() -> None:
    """Leaving the place again after each try would put the end off, for as long as a master does not answer."""
    session: Any = Away()
    session.closed = True
    janitor = Janitor(session)
    janitor._act(UndoTask(KEYS, b"me:1~ab.7", 0, 60.0, not_after=9.0, give_up_at=70.0, keeps_place=True, ticket=7))
    assert [type(due.task) for due in janitor._due] == [UndoTask]
