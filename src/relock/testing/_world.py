"""Virtual time: what happens, when, and in which order. One seed decides all of it.

A `World` is a queue of events in true time, and nothing else: it takes the next event, sets the clock to its time, and
does it. Code that may wait runs as a task, which is a greenlet: a call that can stop in the middle and go on later.
Instead of waiting, it puts an event into the queue that makes it go on, and hands over to the world, which takes the
next event. So only one task runs at a time, and seconds pass only between two events.

`relock.testing._process` has the tasks, and the processes that they belong to.

Another task can run only where one waits or reads the clock: now and then it must pause for a moment after such a look,
as the operating system stops a thread at any instruction. The world counts the looks at clocks, and chance decides
after which of them there is a pause.
"""

import itertools
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

PREEMPTION = 0.01  # the part of the looks at a clock after which a task pauses


Event = list[Any]
"""Event to come: its time, a number that keeps the order, and the action, or None once the event is called off.

A bare list, because a heap compares lists fast, and most of a run's work is with events.
"""


class World:
    """True time, and all that happens.

    Args:
        seed: decides everything that chance decides.

    Attributes:
        looks: how many looks at a clock remain until one is followed by a pause.
    """

    chance: Callable[[], float]
    has_ended: bool
    now: float

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random: random.Random = random.Random(seed)
        self.chance = self.random.random
        self.now = 0.0  # true time, in seconds
        self.has_ended = False  # True if a task or a process has ended since `run` last looked
        self.log: list[tuple[float, str, str]] = []  # each line: time, process or server, event
        self.errors: list[tuple[str, BaseException]] = []
        self._events: list[Event] = []
        self._order = itertools.count()
        self.looks: int = self._draw_looks()
        self._doomed: tuple[greenlet, BaseException, int] | None = None  # the task, its error, and the looks left
        self._hub = getcurrent()
        self._filenos = itertools.count(1000)

    def at(self, when: float, action: Callable[[], object]) -> Event:
        """Do `action` at the true time `when`, which must not be in the past."""
        event = [when, next(self._order), action]
        heappush(self._events, event)
        return event

    def after(self, seconds: float, action: Callable[[], object]) -> Event:
        """Do `action` in so many seconds of true time."""
        event = [self.now + seconds, next(self._order), action]
        heappush(self._events, event)
        return event

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> None:
        """Let events happen until the true time `until`, or until `is_over()`.

        `is_over` is asked at the beginning, and whenever a task or a process has ended.
        """
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

    def switch(self) -> Any:
        """Hand over from a task to the world, until the task is resumed; return what the resumption brings along."""
        return self._hub.switch()

    def is_preempted(self) -> bool:
        """Count the `looks` anew after the last one; return whether the caller must pause now: only tasks do."""
        self.looks = self._draw_looks() if self._doomed is None else 1
        return self.in_task()

    def doom(self, task: greenlet, error: BaseException, looks: int) -> None:
        """Raise `error` in `task` at its look number `looks` at a clock, unless `spare` comes first."""
        self._doomed = (task, error, looks)
        self.looks = 1

    def spare(self, task: greenlet) -> None:
        """Call off what `doom` has announced for `task`."""
        if self._doomed is not None and self._doomed[0] is task:
            self._doomed = None

    def is_doomed(self) -> bool:
        """Return whether a task is doomed. If it is the caller, count its look, and raise the error at the last one."""
        if self._doomed is None:
            return False
        task, error, looks = self._doomed
        if getcurrent() is task:
            self._doomed = (task, error, looks - 1)
            if looks <= 1:
                self._doomed = None
                raise error
        return True

    def in_task(self) -> bool:
        """Return whether the caller is a task."""
        return getcurrent() is not self._hub

    def _draw_looks(self) -> int:
        """Draw the number of looks at a clock until one is followed by a pause."""
        return 1 + int(self.random.expovariate(PREEMPTION))

    def note(self, who: str, what: str) -> None:
        """Add one line to the timeline of the run."""
        self.log.append((self.now, who, what))

    def fileno(self) -> int:
        """Return a number for a virtual socket."""
        return next(self._filenos)

    def timeline(self) -> str:
        """Return the run, line by line."""
        return "\n".join(f"{when:10.6f}  {who:12} {what}" for when, who, what in self.log)
