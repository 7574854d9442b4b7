"""Deadlocks within a client, on every driver: one caller gets an error, the others their locks, and nothing is left."""

from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import pytest

from contract.rigs.calls import take
from contract.rigs.rig import SOON, Rig
from contract.rigs.watch import At
from relock import Client, Deadlocked, DeadlockError

LONG = 2 * SOON  # seconds: a timeout that does not end in any test
AFTER = 0.5  # seconds: `deadlock_after` where a wait is to end by its timeout
ENDS = 2.0  # seconds: a timeout that is longer than that
HELP_SECONDS = SOON  # after that time the deadlock is found once more


class Caller:
    """A thread that takes one lock, and waits for another while it has the first.

    Attributes:
        outcome: the result of the acquire of the second lock, or its error; None while it waits.
        levels: the levels of the first lock after that.
    """

    outcome: Any = None
    levels: Any = None

    def __init__(self, rig: Rig, held: Any, wanted: Any, *, timeout: float = LONG, stays: bool = False) -> None:
        self._rig, self._held, self._wanted, self._timeout = rig, held, wanted, timeout
        self._has_first = self._may_wait = False
        self._may_end = not stays
        self._running = rig.start(self._run)
        rig.until(lambda: self._has_first, "the caller has its first lock")

    def _run(self) -> None:
        with self._held:
            self._has_first = True
            self._rig.until(lambda: self._may_wait, "the caller may wait")
            outcome: bool | DeadlockError
            try:
                outcome = self._wanted.acquire(timeout=self._timeout)
            except DeadlockError as error:
                outcome = error
            self.levels = getattr(self._held, "hold_count", None)
            self.outcome = outcome  # last: others wait for this
            self._rig.until(lambda: self._may_end, "the caller may end")
            if self.outcome is True:
                self._wanted.release()

    def ask(self) -> None:
        """Let the thread ask for its second lock."""
        self._may_wait = True

    def wait_for(self, name: str, before: int = 0) -> None:
        """Let the thread wait; return once it is queued for the lock `name`, behind so many others."""
        self.ask()
        self._rig.until(lambda: self._rig.queues_are(name, before + 1), "the caller is queued")

    def until_answered(self) -> None:
        """Wait until the acquire of the second lock has ended."""
        self._rig.until(lambda: self.outcome is not None, "the caller has an answer")

    def end(self) -> None:
        """Let the thread leave its locks, and wait for its end."""
        self._may_end = True
        self._running.result()

    @property
    def got_error(self) -> bool:
        """True if the thread was the victim of a deadlock."""
        return isinstance(self.outcome, DeadlockError)


def outcomes(*callers: Caller) -> list[str]:
    """Wait for the end of each thread; return ``error``, ``lock`` or ``nothing`` for each."""
    for caller in callers:
        caller.end()
    return ["error" if caller.got_error else "lock" if caller.outcome else "nothing" for caller in callers]


def found(client: Client) -> int:
    """Return the number of deadlocks that the client has found."""
    return client.statistics().deadlocks


def leaves_nothing(rig: Rig, client: Client, *names: str) -> None:
    """Check that nothing is left of the locks, nor of the waits for them."""
    for name in names:
        rig.until_free(name, "all callers have ended")
    assert client.statistics().waiting == 0
    assert client._session.waits == {}


def warm(rig: Rig, **options: Any) -> Client:
    """Return a client with open connections, and whose scripts are loaded."""
    client = rig.client(**options)
    rig.warm_up(client)
    return client


def told(events: list[Any]) -> list[Deadlocked]:
    """Return the deadlocks that were told."""
    return [event for event in events if isinstance(event, Deadlocked)]


# Locks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3])
def test_the_last_caller_of_a_ring_gets_an_error_and_the_others_their_locks(length: int, rig: Rig, name: str) -> None:
    events: list[Any] = []
    client = warm(rig, on_event=events.append)
    names = [f"{name}-{i}" for i in range(length)]
    locks = [client.lock(one) for one in names]
    callers = [Caller(rig, locks[i], locks[(i + 1) % length]) for i in range(length)]
    *first, last = callers
    for i, caller in enumerate(first):
        caller.wait_for(names[i + 1])
    assert found(client) == 0
    last.ask()
    assert outcomes(last, *first) == ["error"] + ["lock"] * len(first)
    error = last.outcome
    assert error.lock == names[0]
    assert [lock for lock, _, _ in error.cycle] == names
    waiters, holders = [waiter for _, waiter, _ in error.cycle], [holder for _, _, holder in error.cycle]
    assert len({*waiters, *holders}) == 2 * length
    assert found(client) == 1
    rig.until(lambda: told(events), "the deadlock is told")
    assert [(event.cycle, event.victim) for event in told(events)] == [(error.cycle, waiters[0])]
    leaves_nothing(rig, client, *names)


def test_of_callers_that_come_at_the_same_time_exactly_one_gets_an_error(rig: Rig, name: str) -> None:
    client = warm(rig)
    names = [f"{name}-{i}" for i in range(4)]
    for _ in range(4):
        callers = [Caller(rig, client.lock(names[i]), client.lock(names[i - 1])) for i in range(4)]
        for caller in callers:
            caller.ask()
        assert sorted(outcomes(*callers)) == ["error", "lock", "lock", "lock"]
        leaves_nothing(rig, client, *names)


@pytest.mark.parametrize("sleeps", [False, True], ids=["before its sleep", "in its sleep"])
def test_a_victim_keeps_its_other_lock_and_gives_up_its_place(rig: Rig, name: str, *, sleeps: bool) -> None:
    """The first caller becomes the victim, in its sleep, if the last one's lock only reports."""
    client = warm(rig)
    x, y = f"{name}-x", f"{name}-y"
    first = Caller(rig, client.lock(x), client.lock(y), stays=True)
    last = Caller(rig, client.lock(y), client.lock(x, deadlock="report" if sleeps else "raise"), stays=True)
    first.wait_for(y)
    last.ask()
    victim, other, kept, wanted = (first, last, x, y) if sleeps else (last, first, y, x)
    victim.until_answered()
    assert victim.got_error
    assert victim.outcome.lock == wanted
    rig.until(lambda: rig.queues_are(wanted, 0), "the victim has given up its place")
    rig.until(lambda: rig.queues_are(kept, 1), "the other one waits on")
    assert rig.agree_on(kept, 1)
    assert victim.levels == 1
    assert other.outcome is None
    assert client.statistics().waiting == 1
    assert outcomes(victim, other) == ["error", "lock"]
    leaves_nothing(rig, client, x, y)


def test_a_victims_blocks_unwind(rig: Rig, name: str) -> None:
    """The victim has several levels of its lock, and asks for the other one twice."""
    client = warm(rig)
    held, wanted = client.lock(f"{name}-x"), client.lock(f"{name}-y", timeout=LONG)
    other = Caller(rig, client.lock(wanted.name), client.lock(held.name))

    def work() -> None:
        with held, held:
            other.wait_for(held.name)
            with pytest.raises(DeadlockError), wanted:
                raise AssertionError("the body does not run")
            assert held.hold_count == 2
            assert rig.agree_on(held.name, 2)
            assert other.outcome is None
            with wanted:
                raise AssertionError("the body does not run")

    with pytest.raises(DeadlockError):
        work()
    assert held.hold_count == 0
    assert outcomes(other) == ["lock"]
    assert found(client) == 2, "the second wait was another deadlock"
    leaves_nothing(rig, client, held.name, wanted.name)


def test_a_caller_that_holds_several_locks_is_found_by_any_of_them(rig: Rig, name: str) -> None:
    client = warm(rig)
    a, b, c = (f"{name}-{letter}" for letter in "abc")
    with client.lock(a), client.lock(b), client.lock(f"{name}-d"):
        other = Caller(rig, client.lock(c), client.lock(b))
        other.wait_for(b)
        with pytest.raises(DeadlockError) as caught:
            client.lock(c).acquire(timeout=LONG)
        assert [lock for lock, _, _ in caught.value.cycle] == [c, b]
    assert outcomes(other) == ["lock"]
    leaves_nothing(rig, client, a, b, c)


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deadlock", "count"), [("report", 1), ("ignore", 0)])
@pytest.mark.parametrize("by", ["client", "lock"])
def test_a_deadlock_may_be_told_only_or_ignored(by: str, deadlock: str, count: int, rig: Rig, name: str) -> None:
    """The timeout of the last caller ends the wait, as without deadlocks."""
    events: list[Any] = []
    option: dict[str, Any] = {"deadlock": deadlock}
    of_client, of_lock = (option, {}) if by == "client" else ({}, option)
    client = warm(rig, on_event=events.append, deadlock_after=AFTER, **of_client)
    x, y = f"{name}-x", f"{name}-y"
    first = Caller(rig, client.lock(x), client.lock(y, **of_lock))
    last = Caller(rig, client.lock(y), client.lock(x, **of_lock), timeout=ENDS)
    first.wait_for(y)
    last.ask()
    assert outcomes(last, first) == ["nothing", "lock"]
    assert found(client) == count
    rig.until(lambda: len(told(events)) == count, "the deadlock is told")
    assert [event.victim for event in told(events)] == [None] * count
    leaves_nothing(rig, client, x, y)


@pytest.mark.parametrize("short", ["first", "last"])
def test_a_ring_that_a_short_timeout_breaks_is_no_deadlock(short: str, rig: Rig, name: str) -> None:
    client = warm(rig)
    x, y = f"{name}-x", f"{name}-y"
    brief = client._session.deadlock_after - 0.5
    first = Caller(rig, client.lock(x), client.lock(y), timeout=brief if short == "first" else LONG)
    last = Caller(rig, client.lock(y), client.lock(x), timeout=brief if short == "last" else LONG)
    first.ask()
    rig.until(lambda: first.outcome is not None or rig.is_queued(y), "the first caller is queued")
    last.ask()
    assert outcomes(first, last) == (["nothing", "lock"] if short == "first" else ["lock", "nothing"])
    assert found(client) == 0
    leaves_nothing(rig, client, x, y)


def test_a_ring_of_a_named_owner_is_told_only(rig: Rig, name: str) -> None:
    """One more thread of that owner releases the lock that the first caller waits for."""
    events: list[Any] = []
    client = warm(rig, on_event=events.append)
    x, y = f"{name}-x", f"{name}-y"
    jobs_y = client.lock(y, owner="job")
    take(jobs_y, 1)
    first = Caller(rig, client.lock(x), client.lock(y))
    first.wait_for(y)
    last = Caller(rig, nullcontext(), client.lock(x, owner="job"))
    last.wait_for(x)
    rig.until(lambda: told(events), "the deadlock is told")
    (event,) = told(events)
    assert event.victim is None
    assert [lock for lock, _, _ in event.cycle] == [x, y]
    assert (first.outcome, last.outcome) == (None, None)
    jobs_y.release()
    assert outcomes(first, last) == ["lock", "lock"]
    assert found(client) == 1
    leaves_nothing(rig, client, x, y)


# Other kinds of locks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["reader", "writer"])
def test_a_writer_waits_for_every_reader(last: str, rig: Rig, name: str) -> None:
    """One of two readers waits for the writer's other lock. The writer is queued before the reader, or comes last."""
    client = warm(rig)
    x, both = f"{name}-x", client.rwlock(name)
    idle = Caller(rig, both.read, client.lock(f"{name}-free"))
    reader = Caller(rig, both.read, client.lock(x))
    writer = Caller(rig, client.lock(x), both.write)
    if last == "reader":
        writer.wait_for(name)
        reader.ask()
        assert outcomes(reader) == ["error"]
    else:
        reader.wait_for(x)
        writer.ask()
        assert outcomes(writer, reader) == ["error", "lock"]
    idle.ask()
    assert outcomes(idle) == ["lock"]
    if last == "reader":
        assert outcomes(writer) == ["lock"]
    assert found(client) == 1
    leaves_nothing(rig, client, x, name)


@pytest.mark.parametrize("last", ["reader", "writer"])
def test_a_reader_waits_for_a_writer(last: str, rig: Rig, name: str) -> None:
    client = warm(rig)
    x, both = f"{name}-x", client.rwlock(name)
    writer = Caller(rig, both.write, client.lock(x))
    reader = Caller(rig, client.lock(x), both.read)
    first, victim, wanted = (writer, reader, x) if last == "reader" else (reader, writer, name)
    first.wait_for(wanted)
    victim.ask()
    assert outcomes(victim, first) == ["error", "lock"]
    leaves_nothing(rig, client, x, name)


def test_two_readers_that_wait_for_each_others_locks_as_readers_are_in_no_deadlock(rig: Rig, name: str) -> None:
    client = warm(rig)
    x, y = client.rwlock(f"{name}-x"), client.rwlock(f"{name}-y")
    callers = [Caller(rig, x.read, y.read), Caller(rig, y.read, x.read)]
    for caller in callers:
        caller.ask()
    assert outcomes(*callers) == ["lock", "lock"]
    assert found(client) == 0
    leaves_nothing(rig, client, x.name, y.name)


def test_a_caller_of_several_locks_waits_with_those_that_it_has(rig: Rig, name: str) -> None:
    client = warm(rig)
    a, b = f"{name}-a", f"{name}-b"
    plain = Caller(rig, client.lock(b), client.lock(a))
    several = Caller(rig, nullcontext(), client.lock_all([a, b]))
    several.wait_for(b)
    rig.until(lambda: rig.agree_on(a, 1), "the caller has one of the locks")
    plain.ask()
    assert outcomes(plain, several) == ["error", "lock"]
    leaves_nothing(rig, client, a, b)


def test_a_victim_that_asks_for_several_locks_gives_back_those_that_it_has_of_them(rig: Rig, name: str) -> None:
    client = warm(rig)
    a, b, c = (f"{name}-{letter}" for letter in "abc")
    plain = Caller(rig, client.lock(b), client.lock(c))
    several = Caller(rig, client.lock(c), client.lock_all([a, b]), stays=True)
    plain.wait_for(c)
    several.ask()
    several.until_answered()
    assert several.got_error
    assert several.outcome.lock == b
    rig.until_free(a, "the error")
    assert (several.levels, plain.outcome) == (1, None)
    assert rig.agree_on(c, 1)
    assert outcomes(several, plain) == ["error", "lock"]
    leaves_nothing(rig, client, a, b, c)
    assert client._session.several == {}


def test_a_condition_takes_its_lock_again_without_an_error(rig: Rig, name: str, driver: str) -> None:
    """The other caller of the ring sleeps already, and gets the error."""
    if "aio" in driver:
        pytest.skip("no condition takes a lock for tasks")
    client = warm(rig)
    outer, inner = client.lock(f"{name}-outer"), client.lock(f"{name}-inner")
    with outer, inner:
        saved = inner._release_save()
        other = Caller(rig, client.lock(inner.name), client.lock(outer.name))
        other.wait_for(outer.name)
        inner._acquire_restore(saved)
        assert (inner.hold_count, inner.lost, outer.hold_count) == (1, False, 1)
    assert outcomes(other) == ["error"]
    assert found(client) == 1
    leaves_nothing(rig, client, outer.name, inner.name)


# No deadlock ----------------------------------------------------------------------------------------------------------


def test_a_chain_of_callers_is_no_deadlock(rig: Rig, name: str) -> None:
    client = warm(rig)
    names = [f"{name}-{i}" for i in range(4)]
    locks = [client.lock(one) for one in names]
    chain = [Caller(rig, locks[i], locks[i + 1]) for i in range(3)]
    with locks[3]:
        for i in (1, 0, 2):
            chain[i].wait_for(names[i + 1])
        assert [caller.outcome for caller in chain] == [None] * 3
    assert outcomes(*chain[::-1]) == ["lock"] * 3
    assert found(client) == 0
    leaves_nothing(rig, client, *names)


def test_callers_that_take_locks_in_one_order_are_in_no_deadlock(rig: Rig, name: str) -> None:
    client = warm(rig)
    names = [f"{name}-{letter}" for letter in "abc"]
    done: list[int] = []

    def work(number: int) -> None:
        first, second = [client.lock(one, timeout=LONG) for one in names if one != names[number % 3]]
        for _ in range(4):
            with first, second, client.lock_all(names[2:], timeout=LONG):
                done.append(number)

    for running in [rig.start(partial(work, number)) for number in range(6)]:
        running.result()
    assert len(done) == 24
    assert found(client) == 0
    leaves_nothing(rig, client, *names)


# Moments --------------------------------------------------------------------------------------------------------------


def test_a_victim_that_is_about_to_sleep_gets_its_error(rig: Rig, name: str) -> None:
    """The other caller's wait only reports, and begins at each step that leads to the victim's sleep."""
    client = warm(rig, deadlock_after=HELP_SECONDS)
    for number in count(1):
        x, y = f"{name}-x-{number}", f"{name}-y-{number}"
        with client.lock(x):
            other = Caller(rig, client.lock(y), client.lock(x, deadlock="report"))
            strike = At(number, partial(other.wait_for, x), at_latest=partial(sleeps, rig, client, y))
            begin = rig.clock()
            with rig.watch.each(strike), pytest.raises(DeadlockError):
                client.lock(y).acquire(timeout=LONG)
            assert rig.clock() - begin < HELP_SECONDS, f"the other caller came {strike.where}"
        assert outcomes(other) == ["lock"]
        leaves_nothing(rig, client, x, y)
        if strike.seen < number:
            break
    assert number > 8, "the watch sees the steps"


def sleeps(rig: Rig, client: Client, name: str, what: str) -> bool:
    """Return whether this step is that of a waiter for the lock, before its sleep."""
    leads = what == "before poller.poll" and any(waiter.is_polling for waiter in client._session.hubs.waiters())
    return (leads or what == rig.sleep) and rig.is_queued(name)
