"""One timer for all tasks of a loop that wait for answers: whatever happens to it, each task is woken in its time."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from relock._core.asking import Round
from relock._core.effects import Ask
from relock._core.flows.release import give_back_call
from relock._keys import lock_keys
from relock._runtime.aio.alarms import LATE_SECONDS_MAX, LOOKS_PART, Alarms
from relock._runtime.aio.foreground import Foreground


class Timer:
    """A timer of the loop."""

    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at = at
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A loop whose clock stands still while the machine is suspended, unlike ours."""

    def __init__(self) -> None:
        self.now = 0.0
        self.suspended = 0.0
        self.timers: list[Timer] = []

    def clock(self) -> float:
        return self.now + self.suspended

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.now + seconds, call))
        return self.timers[-1]

    def go_on(self, seconds: float) -> None:
        """Let so much time pass, and then carry out the calls that are due."""
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now and not timer.is_cancelled]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.call()

    def is_closed(self) -> bool:
        return False


class Silent:
    """A way to a master over which nothing comes."""

    def take(self) -> None:
        return None


class Struck(Silent):
    """A way whose reading an exception interrupts."""

    def take(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def futures() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def made(loop: Loop, clock: Callable[[], float]) -> Any:
    """Return the part of a foreground in which its tasks wait for answers, with a node timeout of half a second."""
    fake: Any = loop
    foreground: Any = object.__new__(Foreground)
    foreground.session = SimpleNamespace(node_timeout=0.5)
    foreground._deadlines = Alarms(fake, clock, foreground._overdue)
    foreground.waiting = []
    return foreground


@pytest.fixture
def foreground(loop: Loop) -> Any:
    return made(loop, loop.clock)


def struck_by(strikes: list[BaseException], loop: Loop) -> Any:
    """Return a foreground whose next look at the clock raises the exception in `strikes`."""

    def clock() -> float:
        if strikes:
            raise strikes.pop()
        return loop.clock()

    return made(loop, clock)


def asked(
    futures: asyncio.AbstractEventLoop, loop: Loop, seconds: float, link: type[Silent | Struck] = Silent
) -> Round:
    """Return a round that is asked now, with so much time."""
    ask = Ask((give_back_call(lock_keys("relock", "a"), b"owner"),), loop.clock() + seconds)
    return Round(ask, loop.clock(), [], done=futures.create_future(), carriers=[link()])


def is_over(round_: Round) -> bool:
    """Return whether the round's asker was woken."""
    return not round_.is_awaited


def ask(foreground: Any, round_: Round) -> None:
    """Let a task wait for the round."""
    task = foreground._answers_to(round_)
    task.send(None)
    foreground.waiting.append(task)  # else it would end here


def test_each_is_woken_when_its_time_is_over(futures: asyncio.AbstractEventLoop, loop: Loop, foreground: Any) -> None:
    late, soon = asked(futures, loop, 3.0), asked(futures, loop, 1.0)
    for one in (late, soon):
        ask(foreground, one)
    loop.go_on(1.0)
    loop.go_on(0.001)
    assert (is_over(soon), is_over(late)) == (True, False)
    loop.go_on(2.0)
    loop.go_on(0.01)
    assert is_over(late)


def test_a_loop_that_comes_late_gives_the_masters_as_much_time_more_but_not_more_than_a_node_timeout(
    futures: asyncio.AbstractEventLoop, loop: Loop, foreground: Any
) -> None:
    one = asked(futures, loop, 1.0)
    ask(foreground, one)
    loop.go_on(9.0)
    loop.go_on(0.49)
    assert not is_over(one)
    loop.go_on(0.02)
    assert is_over(one)


def test_what_strikes_while_an_earlier_timer_is_set_leaves_the_one_that_there_was(
    futures: asyncio.AbstractEventLoop, loop: Loop
) -> None:
    strikes: list[BaseException] = []
    foreground = struck_by(strikes, loop)
    struck, other = asked(futures, loop, 1.0), asked(futures, loop, 2.0)
    ask(foreground, other)
    strikes.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ask(foreground, struck)
    loop.go_on(2.0)
    loop.go_on(0.01)
    assert is_over(other)


def test_what_strikes_a_look_itself_leaves_a_timer_for_the_next(futures: asyncio.AbstractEventLoop, loop: Loop) -> None:
    strikes: list[BaseException] = []
    foreground = struck_by(strikes, loop)
    one = asked(futures, loop, 1.0)
    ask(foreground, one)
    strikes.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        loop.go_on(1.0)
    loop.go_on(0.01)
    loop.go_on(0.02)  # a late look, so the masters had as much time more
    assert is_over(one)


def test_what_strikes_one_in_its_turn_does_not_keep_the_others_from_being_woken(
    futures: asyncio.AbstractEventLoop, loop: Loop, foreground: Any
) -> None:
    struck, other = asked(futures, loop, 1.0, Struck), asked(futures, loop, 2.0)
    ask(foreground, struck)
    ask(foreground, other)
    with pytest.raises(KeyboardInterrupt):
        loop.go_on(1.0)
    foreground._deadlines.due.pop(struck)
    loop.go_on(1.0)
    loop.go_on(0.01)
    assert is_over(other)


def test_what_is_asked_after_a_suspend_does_not_wait_for_a_timer_from_before(
    futures: asyncio.AbstractEventLoop, loop: Loop, foreground: Any
) -> None:
    ask(foreground, asked(futures, loop, 5.0))
    loop.suspended = 100.0
    one = asked(futures, loop, 0.1)
    ask(foreground, one)
    for _ in range(3):
        loop.go_on(0.1)
    assert is_over(one)


def put_in(alarms: Alarms[Any], what: object, at: float, now: float) -> None:
    """Put a thing in, and have the timer look by its time."""
    alarms.due[what] = at
    if not now <= alarms.looks_at <= at:
        alarms.look_by(at)


class SlowToLookAt(float):
    """A time whose comparison takes as long as thousands of comparisons."""

    loop: Loop
    seconds: float

    def __le__(self, other: float) -> bool:
        self.loop.now += self.seconds
        return float(self) <= other


class Noted:
    """Alarms that note when each was over; handling one takes so many seconds.

    Attributes:
        over_at: the time at which each alarm was over.
    """

    over_at: dict[str, float]

    def __init__(self, loop: Loop, seconds: float = 0.0) -> None:
        fake: Any = loop
        self.alarms: Alarms[str] = Alarms(fake, loop.clock, self._over)
        self.over_at = {}
        self._loop = loop
        self._seconds = seconds

    def _over(self, what: str, _at: float, _now: float) -> None:
        self.alarms.due.pop(what)
        self._loop.now += self._seconds
        self.over_at[what] = self._loop.now


@pytest.mark.parametrize(
    ("took", "pause"), [(0.001, 0.001 / LOOKS_PART), (LATE_SECONDS_MAX * LOOKS_PART * 3, LATE_SECONDS_MAX)]
)
def test_looks_that_take_long_come_seldom_but_not_too_seldom(loop: Loop, took: float, pause: float) -> None:
    noted = Noted(loop)
    put_in(noted.alarms, "first", 1.0, loop.now)
    second = SlowToLookAt(1.0 + pause / 2)
    second.loop, second.seconds = loop, took
    put_in(noted.alarms, "second", second, loop.now)
    loop.go_on(1.0)
    looked_at = loop.now
    loop.go_on(0.9 * pause)
    assert list(noted.over_at) == ["first"]
    loop.go_on(0.2 * pause)
    assert noted.over_at["second"] - looked_at < 1.1 * pause + 2 * took


def test_a_burst_does_not_put_off_what_is_due_soon_after_it(loop: Loop) -> None:
    """The pause after a look is a part of its time, without the work that bursts bring, which had to be done anyway."""
    noted = Noted(loop, seconds=0.001)
    for i in range(1000):
        put_in(noted.alarms, f"of the burst {i}", 1.0, loop.now)
    put_in(noted.alarms, "soon after", 1.4, loop.now)
    loop.go_on(1.0)
    assert loop.now == pytest.approx(2.0)
    loop.go_on(0.01)
    assert noted.over_at["soon after"] == pytest.approx(2.01, abs=0.01)


def test_nothing_is_left_of_it_once_it_is_closed(
    futures: asyncio.AbstractEventLoop, loop: Loop, foreground: Any
) -> None:
    ask(foreground, asked(futures, loop, 1.0))
    foreground._deadlines.close()
    assert all(timer.is_cancelled for timer in loop.timers)


def test_a_timer_that_was_never_set_is_made_up_for(
    futures: asyncio.AbstractEventLoop, loop: Loop, foreground: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(_seconds: float, _call: object) -> Timer:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_later", strike)
    with pytest.raises(KeyboardInterrupt):
        ask(foreground, asked(futures, loop, 1.0))
    monkeypatch.undo()
    loop.go_on(1.5)
    one = asked(futures, loop, 1.0)
    ask(foreground, one)
    loop.go_on(1.0)
    loop.go_on(0.01)
    assert is_over(one)
