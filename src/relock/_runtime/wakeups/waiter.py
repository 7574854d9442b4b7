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
from relock._runtime.wakeups.shared_subscriptions import LEAD, SharedSubscriptions

GATHER_SECONDS = 0.03  # after the first wake-up, wait this long for a quorum; after the first grant, longer


@define(eq=False, repr=False)
class Waiter:
    """One acquire that waits, with its name, its lock, and the inbox that wakes it."""

    owner: bytes
    keys: LockKeys
    wakes: Inbox  # the numbers of masters that woke it, and None for other reasons to look
    shared: SharedSubscriptions
    pulse: Pulse | None = None  # of its task's event loop; None for a thread
    tickets: list[int] = field(factory=list)  # at most one: empty before the waiter is queued, first or anew
    handed: list[Handed] = field(factory=list)  # the grants of releasers, so far
    parks: int = 0  # how often the waiter has gone to sleep
    is_given: bool = False  # since it last woke, a releaser has given it the lock on some master
    is_told: bool = False  # since it last woke, a master's message has come for it
    is_woken: bool = False  # a master's message had come for it when it last woke
    is_polling: bool = False  # its thread leads, and polls: see `SharedSubscriptions`
    is_parked: bool = False  # it may be among the sleepers of `shared`
    due_at: float = FOREVER  # since when the waiter must look: a message came, or its own timeout was over
    has_left: bool = False  # its place was given up; only the janitor sets this
    missed: int = 0  # the number of missed turns
    missed_at: float = NEVER  # when the waiter last looked too late

    @property
    def overdue_since(self) -> float:
        """Time since which the waiter must look: a message came then, or its task's loop owes an answer since then.

        A loop that stood still reads the messages of that time in several turns. All of them together count as one
        missed turn.
        """
        pulse = self.pulse
        since = self.due_at if pulse is None or pulse.asked_at > self.due_at else pulse.asked_at
        return max(since, self.missed_at)

    def wake(self, master: int | None = None) -> None:
        """Wake the waiter: its turn has come on master number `master`; None: it must look; `LEAD`: it may lead."""
        if master != LEAD:
            self.is_told |= master is not None
            self.due_at = min(self.overdue_since, self.shared.clock())  # Tell, then put
        self.wakes.put(master)
        if self.is_polling:
            self.shared.rouse()

    def give(self, grant: Handed) -> None:
        """Note that a releaser has given the waiter the lock on one master, and wake the waiter.

        If the task's loop owes an answer, it reads messages late: the time of the grant then counts as that of the
        message.
        """
        self.handed.append(grant)
        self.is_given = self.is_told = True
        now, since = self.shared.clock(), self.overdue_since
        is_late = since < now and grant.begins > NEVER
        self.due_at = min(since, max(grant.begins, self.missed_at) if is_late else now)  # Tell, then put
        self.wakes.put(grant.master)
        if self.is_polling:
            self.shared.rouse()

    def park(self, until: float, quorum: int, gathers: Callable[[], float]) -> None:
        """Sleep until `quorum` masters have woken the waiter, or a moment after the first; until `until` at most.

        `gathers` returns how long that moment is (s) if a master has given the lock. None in `wakes` ends the sleep.
        """
        shared = self.shared
        try:
            if quorum == 1:
                shared.next_for(self, until)
            else:
                gathering = self.gather(until, quorum, gathers)
                until = next(gathering)
                while True:
                    until = gathering.send(shared.next_for(self, until))
        except (Empty, StopIteration):
            pass
        finally:
            shared.leave(self)
        self.woke()

    def gather(self, until: float, quorum: int, gathers: Callable[[], float]) -> Generator[float, int | None, None]:
        """Yield each time until which to wait for an item of `wakes`, be sent it, and end when it is time to look."""
        clock = self.shared.clock
        masters: tuple[int, ...] = ()  # used as a set; a real one would take 200 bytes during the whole wait
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
        """Note that the waiter is about to look, and drop the reasons for it: one look answers all of them."""
        while not self.wakes.empty():
            self.wakes.get_nowait()
        self.is_woken, self.is_told, self.is_given = self.is_told, False, False
        now = self.shared.clock()
        if now - self.due_at >= TURN_SECONDS:
            self.missed, self.missed_at = self.missed + 1, now
            if self.missed > TICKETS_KEPT:
                self.tickets.clear()  # first: no heartbeat may restore its place until it has another ticket
        self.due_at = FOREVER  # last: the look that follows covers every message until here
