"""Beliefs: whether the owner of each hold believes in the hold, and which waiters were queued before each call."""

from collections.abc import Iterable
from typing import Any

from attrs import define, frozen

from relock._core.hold import Hold
from relock._core.quorum import NEVER
from relock._keys import LockKeys
from relock._runtime.session.session import Session
from relock._runtime.wakeups.hub import AnyHub
from relock._runtime.wakeups.waiter import Waiter
from relock.testing._process import Process


@define(eq=False)
class Belief:
    """A hold as its owner sees it: from the return of the outermost acquire to the call of the last release."""

    process: Process
    lock: Any  # or the permit
    hold: Hold
    since: float = 0.0  # when its acquire was called
    is_over: bool = False
    counted_at: float = 0.0  # when its count was changed
    has_left: bool = False  # its owner has released it
    may_be_ended: bool = False  # an operator was about to end whatever hold there is
    is_released: bool = False  # the call of its last release has returned
    is_abandoned: bool = False  # its owner never goes on
    kept_until: float = NEVER  # the true time until which masters may keep it for such an owner
    was_lost: bool = False  # its owner did not believe in it at some moment
    cap: int = 1  # the largest limit that may have been in force when the permit was granted
    is_repeated: bool = False  # an earlier request may have granted it, and its token is that of a later one
    shares: bool = False  # its owner reads, or is becoming a reader: other readers may have the lock as well

    def is_believed(self) -> bool:
        """Return whether the hold's owner believes now that it has the lock; note when it does not."""
        if self.is_over or self.process.is_dead:
            return False
        has_it = self.hold.remaining(self.process.local()) > 0
        self.was_lost = self.was_lost or not has_it
        return has_it


@frozen(eq=False)
class Call:
    """A call of acquire: its time, the waiters that were queued by then, and the largest token so far.

    It asks for so many `permits` of a semaphore with this `limit`; a lock is like a semaphore with one permit. It
    `reads` if it asks for a lock as a reader; `beside` is the belief of the same owner as the writer, if there is one.
    """

    process: Process
    called_at: float
    called_at_local: float
    timeout: float
    ahead: tuple[tuple[Process, Waiter], ...]
    highest: int
    fair: bool = True
    permits: int = 1
    limit: int = 1
    reads: bool = False
    beside: Belief | None = None


def queued(sessions: Iterable[tuple[Process, Session]], keys: LockKeys) -> tuple[tuple[Process, Waiter], ...]:
    """Return the waiters for a lock, or a semaphore, that have a ticket by now, and whose hub hears every master.

    On a master to which a hub has not subscribed yet, no message reaches its waiters, and they are passed over.
    """
    return tuple(
        (process, waiter)
        for process, session in sessions
        if not process.is_dead
        for hub in session.hubs.all()
        if hears_everyone(hub)
        for waiter in hub.waiters.values()
        if waiter.tickets and waiter.keys == keys
    )


def still_waits(session: Session, waiter: Waiter, *, masters_move: bool) -> bool:
    """Return whether the waiter still waits, and hears every master; another one is passed over."""
    hubs = [hub for hub in session.hubs.all() if hub.waiters.get(waiter.owner) is waiter]
    return any(hears_everyone(hub) or not masters_move for hub in hubs)


def hears_everyone(hub: AnyHub) -> bool:
    """Return whether the client is subscribed to every master."""
    return all(one.is_confirmed for one in hub.subscriptions)
