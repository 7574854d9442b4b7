"""Waiter: one acquire that waits."""

from collections.abc import Callable, Generator
from queue import Empty

from attrs import define, field

from relock._core.effects import Handed
from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._core.quorum import NEVER
from relock._core.turns import TICKETS_KEPT, TURN_SECONDS
from relock._keys import LockKeys
from relock._runtime.wakeups.inbox import Inbox
from relock._runtime.wakeups.reading import LEAD, Reading

GATHER_SECONDS = 0.03  # after the first wake-up, wait this long for a quorum; after the first grant, longer


@define(eq=False, repr=False)
class Waiter:
    """One acquire that waits, with its name, its lock, and the inbox that wakes it."""

    owner: bytes
    keys: LockKeys
    wakes: Inbox  # the master that woke it, or None
    reading: Reading
    pulse: Pulse | None = None  # of the event loop that its task belongs to
    tickets: list[int] = field(factory=list)  # at most one: empty until it is queued, or where it gets another one
    handed: list[Handed] = field(factory=list)  # what releasers have given it, so far
    parks: int = 0  # how often it has gone to sleep
    is_given: bool = False  # since it last woke, a releaser has given it the lock on some master
    is_polling: bool = False  # it leads, and polls: see `Reading`
    is_parked: bool = False  # it may be known to the reading, as one that sleeps
    due_at: float = FOREVER  # since when it must look: it was told then, or its own time was over
    has_left: bool = False  # its place was given up; the janitor alone says so
    missed: int = 0  # how often it was told, and did not look for as long as a turn lasts
    missed_at: float = NEVER  # when it found the last time that it had not

    @property
    def overdue_since(self) -> float:
        """Time since which it must look: it was told then, or its task's loop owes an answer, and hears late.

        A loop that stood still hears what it has missed in several turns: all that came before the first is one miss.
        """
        pulse = self.pulse
        since = self.due_at if pulse is None or pulse.asked_at > self.due_at else pulse.asked_at
        return max(since, self.missed_at)

    def wake(self, master: int | None = None) -> None:
        """Wake the waiter: its turn has come on master number `master`; None: it must look; `LEAD`: it may lead."""
        if master != LEAD:
            self.due_at = min(self.overdue_since, self.reading.clock())  # Tell, then put
        self.wakes.put(master)
        if self.is_polling:
            self.reading.rouse()

    def give(self, grant: Handed) -> None:
        """Note that a releaser has given the waiter the lock on one master, and wake the waiter.

        Where its task's loop owes an answer, and so hears late, the waiter was told when the lock was given.
        """
        self.handed.append(grant)
        self.is_given = True
        now, since = self.reading.clock(), self.overdue_since
        is_late = since < now and grant.begins > NEVER
        self.due_at = min(since, max(grant.begins, self.missed_at) if is_late else now)  # Tell, then put
        self.wakes.put(grant.master)
        if self.is_polling:
            self.reading.rouse()

    def park(self, until: float, quorum: int, gathers: Callable[[], float]) -> None:
        """Sleep until `quorum` masters have woken it, a moment after the first has, or until the clock's `until` (s).

        `gathers` returns how long that moment is (s) if a master has given it the lock. None in `wakes` ends the sleep.
        """
        reading = self.reading
        try:
            if quorum == 1:
                reading.next_for(self, until)
            else:
                gathering = self.gather(until, quorum, gathers)
                until = next(gathering)
                while True:
                    until = gathering.send(reading.next_for(self, until))
        except (Empty, StopIteration):
            pass
        finally:
            reading.leave(self)
        self.woke()

    def gather(self, until: float, quorum: int, gathers: Callable[[], float]) -> Generator[float, int | None, None]:
        """Yield each time until which to wait for an item of `wakes`, be sent it, and end when it is time to look."""
        clock = self.reading.clock
        masters: tuple[int, ...] = ()  # used as a set; a real one would take 200 bytes for as long as this waits
        last, first_at = until, None
        while len(masters) < quorum:
            master = yield until
            if master is None:
                return
            if master not in masters:
                masters += (master,)
            if len(masters) < quorum:
                first_at = clock() if first_at is None else first_at
                until = min(last, first_at + (gathers() if self.is_given else GATHER_SECONDS))

    def woke(self) -> None:
        """Note that the waiter is about to look: several reasons for that are one."""
        while not self.wakes.empty():
            self.wakes.get_nowait()
        self.is_given = False
        now = self.reading.clock()
        if now - self.due_at >= TURN_SECONDS:
            self.missed, self.missed_at = self.missed + 1, now
            if self.missed > TICKETS_KEPT:
                self.tickets.clear()  # first: no heartbeat speaks for it until it is queued with another one
        self.due_at = FOREVER  # last: what has told it until here is what it looks for
