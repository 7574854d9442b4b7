"""Virtual time: what runs, when, and in which order. One seed decides all of it.

A `World` is a queue of events in true time. Code that would wait for something runs as a task (a greenlet), and hands
over to the world instead of waiting. A `Process` is one client's machine: its clock runs at a rate of its own, and it
can be paused, as by SIGSTOP or a suspend, or crash. `VirtualPlatform` gives a process what `relock._runtime.platform`
gives a real one, so the runtime's own code runs on it unchanged, with its threads as tasks.

Tasks change only where they wait, and where they read the clock: there, now and then, one is made to wait for a moment,
as the operating system does with a thread at any instruction.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from relock._core.effects import Clock
from relock._owner import ThreadOwner, Who
from relock._runtime.machine import Machine
from relock._runtime.net.channel import Channel
from relock._runtime.net.raw_connection import RawConnection

PREEMPTION = 0.01  # of the looks at a clock are followed by a pause
PREEMPTION_SECONDS = 0.002
SWITCH_SECONDS = 50e-6  # until a thread runs that has been woken
TIMER_SECONDS = 1e-6  # by which a timer may be early
NO_TIMER = float("-inf")


class DeadlockError(Exception):
    """A task waits for what nothing will bring: no timer, no message."""


Event = list[Any]
"""Something that will happen: when, a number that keeps the order, and the action, or None once it is called off.

A bare list, because a heap compares lists fast, and events are what a run consists of.
"""


class World:
    """True time, and all that is to happen.

    Args:
        seed: decides everything that chance decides.

    Attributes:
        looks: so many looks at a clock from now on, the next one is that may be followed by a pause.
    """

    chance: Callable[[], float]
    has_ended: bool
    now: float

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random: random.Random = random.Random(seed)
        self.chance = self.random.random
        self.now = 0.0  # true time, in seconds
        self.has_ended = False  # a task or a process, since somebody looked
        self.log: list[tuple[float, str, str]] = []  # when, who, what
        self.errors: list[tuple[str, BaseException]] = []
        self._events: list[Event] = []
        self._order = itertools.count()
        self.looks: int = self._draw_looks()
        self._doomed: tuple[Task, BaseException, int] | None = None  # who, by what, and after how many looks at a clock
        self._hub = getcurrent()
        self._filenos = itertools.count(1000)

    def at(self, when: float, action: Callable[[], object]) -> Event:
        """Has `action` done at the true time `when`, which is not over."""
        event = [when, next(self._order), action]
        heappush(self._events, event)
        return event

    def after(self, seconds: float, action: Callable[[], object]) -> Event:
        """Has `action` done in so many seconds of true time."""
        event = [self.now + seconds, next(self._order), action]
        heappush(self._events, event)
        return event

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> None:
        """Lets time pass until the true time `until`, or until `is_over`, as far as that depends on what has ended."""
        self._hub = getcurrent()
        self.has_ended = True
        events = self._events
        while True:
            if self.has_ended:
                self.has_ended = False
                if is_over is not None and is_over():
                    return
            if not events or events[0][0] > until:
                break
            when, _, action = heappop(events)
            if action is not None:
                self.now = when
                action()
        self.now = until

    def switch(self) -> None:
        """Hands over from a task to the world, until the task is resumed."""
        self._hub.switch()

    def is_preempted(self) -> bool:
        """Whether the caller is made to wait after a look at a clock that is one of these; nobody is but a task."""
        self.looks = self._draw_looks() if self._doomed is None else 1
        return self.in_task()

    def doom(self, task: "Task", error: BaseException, looks: int) -> None:
        """Has `error` raised in `task` when it looks at its clock for so many times, unless it is spared before."""
        self._doomed = (task, error, looks)
        self.looks = 1

    def spare(self, task: "Task") -> None:
        """What `task` was doomed to does not happen any more."""
        if self._doomed is not None and self._doomed[0] is task:
            self._doomed = None

    def is_doomed(self) -> bool:
        """Whether anybody is; the caller's looks are counted, and at the last one the error is raised."""
        if self._doomed is None:
            return False
        task, error, looks = self._doomed
        if getcurrent() is task.greenlet:
            self._doomed = (task, error, looks - 1)
            if looks <= 1:
                self._doomed = None
                raise error
        return True

    def in_task(self) -> bool:
        """Whether the caller is a task."""
        return getcurrent() is not self._hub

    def _draw_looks(self) -> int:
        """After how many looks at a clock the next one is followed by a pause."""
        return 1 + int(self.random.expovariate(PREEMPTION))

    def note(self, who: str, what: str) -> None:
        """One line for the timeline of the run."""
        self.log.append((self.now, who, what))

    def fileno(self) -> int:
        """A number for a virtual socket."""
        return next(self._filenos)

    def timeline(self) -> str:
        """The run, line by line."""
        return "\n".join(f"{when:10.6f}  {who:12} {what}" for when, who, what in self.log)


class Process:
    """One client's machine: a clock, and tasks that can be paused or lost.

    Attributes:
        rate: seconds of its clock per second of true time.
        offset: what its clock shows at the true time 0.
        machine: where it runs; forked children run where their parents do.
    """

    is_dead: bool
    is_paused: bool
    is_unsteady: bool
    offset: float
    platform: "VirtualPlatform"
    rate: float

    def __init__(self, world: World, name: str, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.machine = name
        self.rate = rate
        self.offset = offset
        self.is_dead = False
        self.is_paused = False
        self.is_unsteady = False  # its clock has stood still, or has changed its rate: timers are to look at it
        self.platform = VirtualPlatform(self)
        self.tasks: list[Task] = []
        self._resumed_at = float("-inf")
        self._stands_since: float | None = None  # its clock, at this true time
        self._steady_rate = rate
        self.stalls: list[tuple[float, float]] = []  # when its clock went on again, and for how long it had stood still
        self.connections: dict[
            Any, None
        ] = {}  # in the order in which they were opened: chance is to decide, not an address
        self._backlog: deque[Callable[[], object]] = deque()

    def clock(self) -> float:
        """What its clock shows; sometimes the caller is held up right after the look. A dead process's caller ends."""
        world = self.world
        if self.is_dead and world.in_task():
            raise GreenletExit
        seen = self.offset + self.rate * world.now
        world.looks -= 1
        if not world.looks and world.is_preempted() and not world.is_doomed():
            self.sleep(world.chance() * PREEMPTION_SECONDS)
        return seen

    def local(self, when: float | None = None) -> float:
        """What its clock shows at a true time, by default now."""
        return self.offset + self.rate * (self.world.now if when is None else when)

    def true(self, local: float) -> float:
        """The true time at which its clock shows `local`; nobody knows it while that clock stands still."""
        return (local - self.offset) / self.rate if self.rate else float("inf")

    def set_rate(self, rate: float) -> None:
        """From now on its clock runs at another rate."""
        self.is_unsteady = True
        self.offset += (self.rate - rate) * self.world.now
        self.rate = rate

    def start(self, target: Callable[[], object], name: str, *, waits_without_timer: bool = True) -> "Task":
        """Starts a task. `waits_without_timer`: it may, as a background thread does."""
        task = Task(self, target, name, waits_without_timer=waits_without_timer)
        self.tasks.append(task)
        self.later(self._switch_seconds(), task.resume)
        return task

    def later(self, seconds: float, action: Callable[[], object]) -> Event:
        """Has `action` done in this process; while it is paused that waits, and when it is dead nothing comes of it."""
        return self.world.after(seconds, lambda: self._do(action))

    def put_off(self, action: Callable[[], object]) -> None:
        """Has `action` done when the process goes on."""
        self._backlog.append(action)

    def _do(self, action: Callable[[], object]) -> None:
        if self.is_paused:
            self.put_off(action)
        elif not self.is_dead:
            action()

    def pause(self, *, stops_clock: bool = False) -> None:
        """As SIGSTOP or a suspend: nothing happens in it, while its clock goes on.

        `stops_clock`: as of a virtual machine, whose clock stands still with it.
        """
        self.is_paused = True
        if stops_clock and self._stands_since is None:
            self._stands_since, self._steady_rate = self.world.now, self.rate
            self.set_rate(0.0)

    def resume(self) -> None:
        """As SIGCONT."""
        if self._stands_since is not None:
            self.set_rate(self._steady_rate)
            self.stalls.append((self.world.now, self.world.now - self._stands_since))
            self._stands_since = None
        if self.is_paused:
            self._resumed_at = self.world.now
        self.is_paused = False
        while self._backlog and not self.is_paused:
            self.later(self._switch_seconds(), self._backlog.popleft())

    def was_paused_since(self, when: float) -> bool:
        """Whether it has stood still at some time since the true time `when`."""
        return self.is_paused or self._resumed_at >= when

    def fork(self, name: str) -> "Process":
        """A child, on the same machine."""
        child = Process(self.world, name, rate=self.rate, offset=self.offset)
        child.machine = self.machine
        return child

    def stood_still(self, since: float) -> float:
        """For how many seconds its clock has stood still altogether, counting what has ended after `since`."""
        lasting = 0.0 if self._stands_since is None else self.world.now - self._stands_since
        return lasting + sum(seconds for ended_at, seconds in self.stalls if ended_at >= since)

    def stood_still_between(self, since: float, until: float) -> float:
        """For how many seconds of this time its clock has stood still."""
        now = self.world.now
        lasting = [] if self._stands_since is None else [(now, now - self._stands_since)]
        return sum(max(0.0, min(end, until) - max(end - seconds, since)) for end, seconds in [*self.stalls, *lasting])

    def showed(self, when: float) -> float:
        """What its clock showed at a true time that is over, as far as its rate is still the same."""
        now = self.world.now
        rate = self.rate if self._stands_since is None else self._steady_rate
        return self.local() - rate * (now - when - self.stood_still_between(when, now))

    def crash(self) -> None:
        """As SIGKILL: it never does anything again, and its connections end."""
        self.is_dead = self.world.has_ended = True
        for raw in list(self.connections):
            raw.let_go()

    def sleep(self, seconds: float) -> None:
        """The calling task does nothing for so long."""
        Parking(self).wait(max(0.0, seconds))

    def _switch_seconds(self) -> float:
        return self.world.chance() * SWITCH_SECONDS

    def end(self) -> None:
        """Frees the tasks, when the run is over."""
        self.is_dead = True
        for task in self.tasks:
            task.end()


class Task:
    """A thread of a process."""

    is_over: bool
    owner: ThreadOwner
    resume: Callable[..., Any]

    def __init__(self, process: Process, target: Callable[[], object], name: str, *, waits_without_timer: bool) -> None:
        self.process = process
        self.name = name
        self.waits_without_timer = waits_without_timer
        self.is_over = False
        self.owner = ThreadOwner()
        self._target = target
        self.greenlet: greenlet = greenlet(self._run)
        self.greenlet.task = self
        self.resume = self.greenlet.switch  # goes on where it waits

    def _run(self) -> None:
        try:
            self._target()
        except GreenletExit:
            raise
        except BaseException as error:
            self.process.world.errors.append((self.name, error))
        finally:
            self.is_over = self.process.world.has_ended = True
            self.greenlet.parent = self.process.world._hub

    def interrupt(self, error: BaseException) -> None:
        """Has `error` raised where it waits, as a signal's handler does in a thread; from outside of any task."""
        if not self.is_over:
            self.greenlet.throw(error)

    def join(self, timeout: float) -> None:
        """Waits for its end."""
        until = self.process.world.now + timeout
        while not self.is_over and self.process.world.now < until:
            self.process.sleep(0.001)

    def end(self) -> None:
        """Frees what it has on its stack."""
        if not self.is_over and self.greenlet:
            self.greenlet.throw(GreenletExit)


def current_task() -> Task:
    """The task that calls.

    Raises:
        RuntimeError: it is none.
    """
    try:
        task: Task = getcurrent().task
    except AttributeError:
        raise RuntimeError(
            "virtual clients, and Lab.sleep, can be used only in the functions that Lab.run plays, "
            "and in no real thread that these start: give Lab.run a function for each"
        ) from None
    return task


class Parking:
    """One wait of one task: for a wake-up, or for a while."""

    __slots__ = ("_event", "_is_open", "_process", "_task", "_until", "woken")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._task = current_task()
        self._is_open = True
        self._event: Event | None = None  # what is to make the task go on
        self._until = NO_TIMER  # on the process's clock
        self.woken = False

    def wait(self, seconds: float | None) -> bool:
        """Waits for `wake`, `seconds` of this process's clock at most; returns whether it came."""
        process = self._process
        if process.is_dead:
            raise GreenletExit
        if seconds is not None:
            seconds = max(
                seconds, TIMER_SECONDS
            )  # what is less may not move the clock at all, and be asked for for ever
            self._until = process.local() + seconds
            self._event = process.world.after(seconds / process.rate, self._go_on)
        elif not self._task.waits_without_timer:
            raise DeadlockError(f"{self._task.name} waits without a timer")
        try:
            process.world.switch()
        finally:
            self._is_open = False  # also where the wait ends by an interrupt
        if process.is_dead:
            raise GreenletExit
        return self.woken

    def wake(self) -> bool:
        """What is waited for has come; returns whether anybody waits here still."""
        if not self._is_open or self.woken:
            return False
        self.woken = True
        if self._event is not None:
            self._event[-1] = None  # the timer
        world = self._process.world
        self._event = world.after(world.chance() * SWITCH_SECONDS, self._go_on)
        return True

    def _go_on(self) -> None:
        process = self._process
        if process.is_paused:
            process.put_off(self._go_on)
        elif self._is_open and not process.is_dead:
            if process.is_unsteady and not self.woken and (left := self._until - process.local()) > TIMER_SECONDS:
                self._event = process.world.after(left / process.rate, self._go_on)  # its clock is not there yet
                return
            self._is_open = False
            self._task.resume()


class VirtualQueue:
    """A `queue.SimpleQueue` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._waiting: deque[Parking] = deque()

    def put(self, item: Any) -> None:
        """See `queue.SimpleQueue`."""
        self._items.append(item)
        while self._waiting and not self._waiting.popleft().wake():
            pass

    def get(self, *, timeout: float | None = None) -> Any:
        """See `queue.SimpleQueue`."""
        until = None if timeout is None else self._process.local() + timeout
        while not self._items:
            left = None if until is None else until - self._process.local()
            if left is not None and left <= 0:
                raise Empty
            parking = Parking(self._process)
            self._waiting.append(parking)
            parking.wait(left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """See `queue.SimpleQueue`."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """See `queue.SimpleQueue`."""
        return not self._items

    def qsize(self) -> int:
        """See `queue.SimpleQueue`."""
        return len(self._items)


class VirtualEvent:
    """A `threading.Event` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._waiting: list[Parking] = []

    def set(self) -> None:
        """See `threading.Event`."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for parking in waiting:
            parking.wake()

    def clear(self) -> None:
        """See `threading.Event`."""
        self._is_set = False

    def is_set(self) -> bool:
        """See `threading.Event`."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event`."""
        if not self._is_set:
            parking = Parking(self._process)
            self._waiting.append(parking)
            parking.wait(timeout)
        return self._is_set


class VirtualGate:
    """A `threading.RLock` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._owner: Task | None = None
        self._count = 0
        self._waiting: deque[Parking] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See `threading.RLock`."""
        task = current_task()
        until = None if timeout < 0 else self._process.local() + timeout
        while self._owner not in (None, task):
            left = None if until is None else until - self._process.local()
            if not blocking or (left is not None and left <= 0):
                return False
            parking = Parking(self._process)
            self._waiting.append(parking)
            try:
                parking.wait(left)
            except BaseException:
                if parking.woken:
                    self._wake_one()  # in place of who is interrupted on its way in
                raise
        self._owner = task
        self._count += 1
        return True

    def release(self) -> None:
        """See `threading.RLock`."""
        if self._owner is not current_task():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting and not self._waiting.popleft().wake():
            pass


class VirtualPoller:
    """A `select.poll` for tasks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._channels: dict[int, Any] = {}

    def register(self, fileno: int, events: int) -> None:  # noqa: ARG002
        """See `select.poll`."""
        self._channels[fileno] = self._process.platform.channels[fileno]

    def unregister(self, fileno: int) -> None:
        """See `select.poll`."""
        del self._channels[fileno]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """See `select.poll`."""
        ready = self._ready()
        if not ready and milliseconds > 0:
            parking = Parking(self._process)
            for channel in self._channels.values():
                channel.watch(parking)
            parking.wait(milliseconds / 1000)
            ready = self._ready()
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        return [(fileno, 1) for fileno, channel in self._channels.items() if channel.is_readable()]


class VirtualPlatform(Machine):
    """What a process gives to the runtime."""

    chance: Callable[[], float]
    clock: Clock
    event: Callable[[], Any]
    gate: Callable[[], Any]
    open_channel: Callable[[RawConnection, float], Channel]
    poller: Callable[[], Any]
    queue: Callable[[], SimpleQueue[Any]]
    sleep: Callable[[float], object]
    who: Callable[[], Who]

    def __init__(self, process: Process) -> None:
        world = process.world
        self.process = process
        self.channels: dict[int, Any] = {}
        self.clock = process.clock
        self.queue = lambda: VirtualQueue(process)  # type: ignore[assignment,return-value]
        self.event = lambda: VirtualEvent(process)
        self.gate = lambda: VirtualGate(process)
        self.poller = lambda: VirtualPoller(process)
        self.sleep = process.sleep
        self.chance = world.chance
        self.who = self._who
        self.open_channel = self._open_channel

    def _who(self) -> Who:
        return current_task().owner.who

    def _open_channel(self, connection: RawConnection, timeout: float) -> Channel:
        channel: Channel = connection.open_channel(timeout)  # type: ignore[attr-defined]
        return channel

    def random_hex(self, count: int) -> str:
        """See `Platform`."""
        return f"{self.process.world.random.getrandbits(8 * count):0{2 * count}x}"

    def start(self, target: Callable[[], object], name: str) -> None:
        """See `Platform`."""
        self.process.start(target, f"{self.process.name} {name}")

    def current(self) -> Any:
        """See `Platform`."""
        return current_task()
