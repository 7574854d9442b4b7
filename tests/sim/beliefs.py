"""What the referee knows of each hold and of each call: who believes to have it, and who was queued before whom."""

from collections.abc import Iterable

from attrs import define, frozen

from relock._core.hold import Hold
from relock._runtime.session.session import Session
from relock._runtime.wakeups.waiter import Waiter
from relock.lock import Lock
from relock.testing._process import Process


@define(eq=False)
class Belief:
    """One hold, as its owner sees it: from the return of the outermost acquire to the call of the last release."""

    process: Process
    lock: Lock
    hold: Hold
    since: float = 0.0  # when its acquire was called
    is_over: bool = False
    counted_at: float = 0.0  # when its count was changed
    has_left: bool = False  # its owner has released it
    may_be_ended: bool = False  # an operator was about to end whatever hold there is
    was_lost: bool = False  # at some moment its owner would have said so

    def is_believed(self) -> bool:
        """Whether its owner would say now that it has the lock; notes when it would not."""
        if self.is_over or self.process.is_dead:
            return False
        has_it = self.hold.remaining(self.process.local()) > 0
        self.was_lost = self.was_lost or not has_it
        return has_it


@frozen(eq=False)
class Call:
    """One call of acquire: when it came, who had been queued by then, and the largest token that somebody had got."""

    process: Process
    called_at: float
    called_at_local: float
    timeout: float
    ahead: tuple[tuple[Process, Waiter], ...]
    highest: int
    fair: bool = True


def queued(sessions: Iterable[tuple[Process, Session]]) -> tuple[tuple[Process, Waiter], ...]:
    """Those who have a ticket by now, and hear every master.

    One that is not subscribed to yet finds nobody there to wake, and passes the waiter over.
    """
    return tuple(
        (process, waiter)
        for process, session in sessions
        if not process.is_dead and hears_everyone(session)
        for waiter in session.hub.waiters.values()
        if waiter.tickets
    )


def hears_everyone(session: Session) -> bool:
    """Whether it is subscribed to every master."""
    return all(one.is_confirmed for one in session.hub.subscriptions)
