"""Processes in virtual time: their clocks, their tasks, and how a task waits.

A `Process` is one client's machine: its clock runs at a rate of its own, and it can be paused, as by SIGSTOP or a
suspend, or crash. A `Task` is one of its threads. A `Parking` is one wait of one task; a task waits in no other way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from relock._owner import ThreadOwner, running_loop
from relock.testing._world import Event, World

PREEMPTION_SECONDS = 0.002  # the longest pause that may follow a look at a clock
SWITCH_SECONDS = 50e-6  # the longest time from a wake-up until the thread runs
TIMER_SECONDS = 1e-6  # a timer may fire this much early
NO_TIMER = float("-inf")


class DeadlockError(Exception):
    """A task waits without a timer, and no event will wake it."""


class Process:
    """One client's machine: a clock, and tasks that can be paused or lost.

    Attributes:
        rate: seconds of its clock per second of true time.
        offset: what its clock shows at the true time 0.
        machine: the name of its machine; a forked child has its parent's.
    """

    is_dead: bool
    is_paused: bool
    is_unsteady: bool
    offset: float
    rate: float

    def __init__(self, world: World, name: str, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.machine = name
        self.rate = rate
        self.offset = offset
        self.is_dead = False
        self.is_paused = False
        self.is_unsteady = False  # its clock has stood still or changed its rate: timers must compare with it
        self.tasks: list[Task] = []
        self._resumed_at = float("-inf")
        self._stands_since: float | None = None  # the true time at which its clock stopped, while it stands still
        self._steady_rate = rate
        self.stalls: list[tuple[float, float]] = []  # the end and the length of each stall of its clock
        self.connections: dict[Any, None] = {}  # the order of opening makes each run the same
        self.channels: dict[int, Any] = {}  # its open sockets, by their numbers
        self._backlog: deque[Callable[[], object]] = deque()

    def clock(self) -> float:
        """Return the clock's time. Now and then the caller pauses right after the look; in a dead process it ends."""
        world = self.world
        if self.is_dead and world.in_task():
            raise GreenletExit
        seen = self.offset + self.rate * world.now
        world.looks -= 1
        if not world.looks and world.is_preempted() and not world.is_doomed():
            self.sleep(world.chance() * PREEMPTION_SECONDS)
        return seen

    def local(self, when: float | None = None) -> float:
        """Return what the process's clock shows at a true time, by default now."""
        return self.offset + self.rate * (self.world.now if when is None else when)

    def true(self, local: float) -> float:
        """Return the true time at which the clock shows `local`; infinity while the clock stands still."""
        return (local - self.offset) / self.rate if self.rate else float("inf")

    def set_rate(self, rate: float) -> None:
        """Let the clock run at another rate from now on."""
        self.is_unsteady = True
        self.offset += (self.rate - rate) * self.world.now
        self.rate = rate

    def start(self, target: Callable[[], object], name: str, *, waits_without_timer: bool = True) -> "Task":
        """Start a task. `waits_without_timer`: whether it may wait without a timer, as a background thread does."""
        task = Task(self, target, name, waits_without_timer=waits_without_timer)
        self.tasks.append(task)
        self.later(self._switch_seconds(), task.resume)
        return task

    def later(self, seconds: float, action: Callable[[], object]) -> Event:
        """Do `action` later. A process that is paused then does it when it goes on, a dead one never."""
        return self.world.after(seconds, lambda: self._do(action))

    def put_off(self, action: Callable[[], object]) -> None:
        """Do `action` when the process goes on."""
        self._backlog.append(action)

    def _do(self, action: Callable[[], object]) -> None:
        if self.is_paused:
            self.put_off(action)
        elif not self.is_dead:
            action()

    def pause(self, *, stops_clock: bool = False) -> None:
        """Stop the process as SIGSTOP or a suspend does: nothing happens in it, but its clock goes on.

        `stops_clock`: the clock stands still as well, like that of a virtual machine that is paused.
        """
        self.is_paused = True
        if stops_clock and self._stands_since is None:
            self._stands_since, self._steady_rate = self.world.now, self.rate
            self.set_rate(0.0)

    def resume(self) -> None:
        """Let the process go on, as SIGCONT does."""
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
        """Return whether the process has stood still at some time since the true time `when`."""
        return self.is_paused or self._resumed_at >= when

    def fork(self, name: str) -> "Process":
        """Return a child, on the same machine."""
        child = Process(self.world, name, rate=self.rate, offset=self.offset)
        child.machine = self.machine
        return child

    def stood_still(self, since: float) -> float:
        """Return the seconds of all stops of the clock that have ended after `since`, or last still, each in full."""
        lasting = 0.0 if self._stands_since is None else self.world.now - self._stands_since
        return lasting + sum(seconds for ended_at, seconds in self.stalls if ended_at >= since)

    def stood_still_between(self, since: float, until: float) -> float:
        """Return for how many seconds between these two true times the clock stood still."""
        now = self.world.now
        lasting = [] if self._stands_since is None else [(now, now - self._stands_since)]
        return sum(max(0.0, min(end, until) - max(end - seconds, since)) for end, seconds in [*self.stalls, *lasting])

    def showed(self, when: float) -> float:
        """Return what the clock showed at a true time in the past, if only stops have changed its rate since then."""
        now = self.world.now
        rate = self.rate if self._stands_since is None else self._steady_rate
        return self.local() - rate * (now - when - self.stood_still_between(when, now))

    def crash(self) -> None:
        """Kill the process, as SIGKILL does: it never does anything again, and its connections end."""
        self.is_dead = self.world.has_ended = True
        for raw in list(self.connections):
            raw.let_go()

    def sleep(self, seconds: float) -> None:
        """Make the calling task wait for so many seconds of this process's clock."""
        Parking(self).wait(max(0.0, seconds))

    def _switch_seconds(self) -> float:
        return self.world.chance() * SWITCH_SECONDS

    def end(self) -> None:
        """Free the tasks, when the run is over."""
        self.is_dead = True
        for task in self.tasks:
            task.end()


class Task:
    """Thread of a process."""

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
        self.resume = self.greenlet.switch  # resumes the task where it waits

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
        """Raise `error` where the task waits, as a signal's handler does in a thread. Not to be called from a task."""
        if not self.is_over:
            self.greenlet.throw(error)

    def handle(self, handler: Callable[[], object]) -> None:
        """Run a signal's handler where the task waits, and let it wait on. Not to be called from a task."""
        if not self.is_over:
            self.resume(handler)

    def join(self, timeout: float) -> None:
        """Wait for the end of the task, `timeout` seconds of true time at most."""
        until = self.process.world.now + timeout
        while not self.is_over and self.process.world.now < until:
            self.process.sleep(0.001)

    def end(self) -> None:
        """End the task where it waits, and so free what its stack refers to."""
        if not self.is_over and self.greenlet:
            self.greenlet.throw(GreenletExit)


def current_task() -> Task:
    """Return the task that calls.

    Raises:
        RuntimeError: no task calls.
    """
    try:
        task: Task = getcurrent().task
    except AttributeError:
        raise RuntimeError(
            "virtual clients, and Lab.sleep, can be used only in the functions that Lab.run plays, "
            "and in no real thread that these start: give Lab.run a function for each"
        ) from None
    return task


def _leave_loop() -> tuple[asyncio.AbstractEventLoop | None, "asyncio.Task[Any] | None"]:
    """Take the running loop and its current task off the real thread, which others use, too; return both."""
    loop = running_loop()
    if loop is None:
        return None, None
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio._leave_task(loop, task)
    asyncio._set_running_loop(None)
    return loop, task


def _enter_loop(loop: asyncio.AbstractEventLoop | None, task: "asyncio.Task[Any] | None") -> None:
    """Undo `_leave_loop`. From CPython 3.14 on a thread has one current task, before it had one for each loop."""
    if loop is not None:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio._enter_task(loop, task)


class Parking:
    """One wait of one task: for a wake-up, or for a while."""

    __slots__ = ("_event", "_is_amid", "_is_open", "_process", "_task", "_until", "woken")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._task = current_task()
        self._is_open = True
        self._is_amid = False  # True while a signal's handler interrupts the wait
        self._event: Event | None = None  # the event that makes the task go on
        self._until = NO_TIMER  # the end of the wait on the process's clock
        self.woken = False

    def wait(self, seconds: float | None) -> bool:
        """Wait for `wake`, `seconds` of this process's clock at most; return whether it came."""
        process = self._process
        if process.is_dead:
            raise GreenletExit
        if seconds is not None:
            # A shorter wait may not move the clock: the task would ask without end.
            seconds = max(seconds, TIMER_SECONDS)
            self._until = process.local() + seconds
            self._event = process.world.after(seconds / process.rate, self._go_on)
        elif not self._task.waits_without_timer:
            raise DeadlockError(f"{self._task.name} waits without a timer")
        step = _leave_loop()
        try:
            handler = process.world.switch()
            while handler:
                handler = self._handle(handler)
        finally:
            self._is_open = False  # an interrupt may have ended the wait
            _enter_loop(*step)
        if process.is_dead:
            raise GreenletExit
        return self.woken

    def _handle(self, handler: Callable[[], object]) -> Any:
        """Run a signal's handler; then wait on, unless the wait is over by now. Return the next handler, if any."""
        self._is_amid = True
        handler()
        self._is_amid = False
        return self._process.world.switch() if self._is_open else None

    def wake(self) -> bool:
        """Wake the task; return False if it no longer waits here, or was woken before."""
        if not self._is_open or self.woken:
            return False
        self.woken = True
        if self._event is not None:
            self._event[-1] = None  # this calls the timer off
        world = self._process.world
        self._event = world.after(world.chance() * SWITCH_SECONDS, self._go_on)
        return True

    def _go_on(self) -> None:
        process = self._process
        if process.is_paused:
            process.put_off(self._go_on)
        elif self._is_open and not process.is_dead:
            if process.is_unsteady and not self.woken and (left := self._until - process.local()) > TIMER_SECONDS:
                # The process's clock has not reached the end yet.
                self._event = process.world.after(left / process.rate, self._go_on)
                return
            self._is_open = False
            if not self._is_amid:
                self._task.resume()
