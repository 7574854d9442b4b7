"""Host of calls: what the calls of one client share, and the consequences of a lost hold. No I/O, no threads.

The session is the host of its client's calls. Tests have a host of their own.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Protocol

from relock._core.book import Book, HoldKey, lost_error
from relock._core.call_record import CallRecord
from relock._core.clocks import ClockStep, Offset, propose
from relock._core.effects import Answer, Clock, Undo
from relock._core.hold import Hold
from relock._core.quorum import NEVER, may_be_granted, may_keep_anything
from relock._core.tasks import HEAL_SECONDS, Heal, PendingCheck, Settle, Task, UndoTask
from relock._events import Event, How, Loss, LossCode, Lost
from relock._keys import LockKeys
from relock._owner import Owner

STEPS_KEPT = 64


class Counters:
    """Counts of a client. Each is changed by single statements that CPython does not interrupt."""

    def __init__(self) -> None:
        self.grants = self.refusals = self.waits = self.renewals = self.losses = self.deadlocks = 0
        self.handovers = self.woken_grants = self.polled_grants = self.undos = self.clock_steps = 0

    def count_wait(self, *, is_given: bool, is_woken: bool | None) -> How | None:
        """Count a grant by what ended the wait for it; return that. `is_woken` is what `Waiters.was_woken` returns."""
        self.handovers += is_given
        self.woken_grants += is_woken is True and not is_given
        self.polled_grants += is_woken is False and not is_given
        if is_given:
            return "given"
        return None if is_woken is None else "woken" if is_woken else "polled"


class TaskQueue(Protocol):
    """Janitor, as calls see it: does work in the background that must not delay a caller."""

    def hand(self, task: Task) -> None:
        """Take on a task; return at once."""

    def look_later(self, check: PendingCheck) -> None:
        """Have the janitor make the `check` when all answers should have come; return at once."""


class HoldWatcher(Protocol):
    """Watchdog, as calls see it."""

    def watch(self, hold: Hold) -> None:
        """Have `hold` renewed in time."""


class Waiters(Protocol):
    """Hubs of the client, as calls see them."""

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:
        """Note that the waiter `owner` no longer waits; `served` is the hold that it got, if any."""


class AllWaiters(Waiters, Protocol):
    """Waiters of all hubs of the client."""

    def look_again(self, owner: bytes) -> None:
        """Make the waiter `owner` look again, if it waits here."""


class WaiterRegister(Waiters, Protocol):
    """Hub, as calls see it: the callers that wait.

    Attributes:
        awaits_kind: True until a Cluster has shown which channels it knows: the names of waiters say so.
        names: yields a new ``<client>:<uuid>`` for each hold to come.
    """

    awaits_kind: bool
    names: Iterator[bytes]

    @property
    def waiters(self) -> Collection[bytes]:
        """Names of the waiters."""

    def hear_ends(self) -> None:
        """Have the subscriptions made by which other clients say that they have ended holds by force."""

    def new_name(self, owner: str) -> bytes:
        """Return a new ``<client>:<owner>.<uuid>``, the name of one hold of an ``owner=``."""

    def was_woken(self, owner: bytes) -> bool | None:
        """Return whether a master's message ended the last sleep of the waiter `owner`; None if it has not slept."""

    def turns_missed(self, owner: bytes) -> int:
        """Return how many turns the waiter `owner` has missed: it was told, and did not look within a turn."""


class TokenQueue(Protocol):
    """Queue of a caller that waits, with a token for each reason to look; a `queue.SimpleQueue`, for a thread."""

    def put(self, item: None, /) -> None:
        """Add a token."""

    def empty(self) -> bool:
        """Return whether the queue holds no token."""


class CallGates(Protocol):
    """Gates at which the calls of one owner take turns, as calls see them."""

    def try_enter(self, record: CallRecord, key: HoldKey, caller: object) -> bool:
        """Let `caller` in if it need not wait; return whether it is in."""

    def enter(self, record: CallRecord, key: HoldKey, until: float) -> bool:
        """Have the caller wait until `until` at most; return whether it is in."""

    def wait(
        self, record: CallRecord, key: HoldKey, until: float, caller: object, tokens: TokenQueue
    ) -> Generator[float, None, bool]:
        """Yield for how long to wait for a token in `tokens`, again and again; return whether `caller` is in."""

    def leave(self, record: CallRecord) -> None:
        """Take the call of `record` away from its gate, and let the next caller in."""


class CallerInfo(Protocol):
    """Platform, as calls see it: facts about the running caller, and random numbers."""

    def current(self) -> object:
        """Return the calling thread, by which gates tell callers apart."""

    def loop(self) -> object | None:
        """Return the event loop that runs the caller, or None."""

    def task(self) -> object | None:
        """Return the task or callback that this loop runs; None outside a loop."""

    def chance(self) -> float:
        """Draw a number from 0 to 1."""


class Host(ABC):
    """Host of the calls of one client.

    Attributes:
        closed: True once calls may neither wait nor ask for anything.
        deadlock_after: a wait of at most so many seconds is part of no deadlock: it ends by itself.
        is_closing: True while the client is being closed, and the janitor still takes on and does tasks.
        logs_events: returns whether a callback or the log receives ordinary events.
        may_be_handed: whether releasers may give a lock to a waiter of this client.
        rings: the deadlocks that were reported and may still exist, as the names of their waits.
        several: the records of the calls under way that take several locks: they may wait while they hold some.
        steps: the latest steps of masters' clocks.
        tells_losses: the client itself has a callback for the loss of any hold.
        waited_at: our time at which a caller last began to wait, or was about to.
        waits: the waits under way for locks, in the order in which they began: the owner, the begin, and the end of the
            caller's timeout.
    """

    clock: Clock
    gates: CallGates
    hubs: AllWaiters
    janitor: TaskQueue
    logs_events: Callable[[], bool]
    platform: CallerInfo
    watchdog: HoldWatcher

    def __init__(self, node_timeout: float, clock: Clock) -> None:
        self.clock = clock
        self.node_timeout = node_timeout
        self.holds = Book()
        self.counters = Counters()
        self.several: dict[CallRecord, None] = {}
        self.waits: dict[CallRecord, tuple[Owner, float, float]] = {}
        self.rings: set[frozenset[bytes]] = set()
        self.deadlock_after = 0.0
        self.steps: deque[ClockStep] = deque(maxlen=STEPS_KEPT)
        self.may_be_handed = True
        self.closed = self.is_closing = self.tells_losses = False
        self.waited_at = NEVER

    @abstractmethod
    def check_open(self) -> None:
        """Raise `ClientClosedError` once the client was closed."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event."""

    @abstractmethod
    def tell_loss(self, hold: Hold, loss: Loss) -> None:
        """Have the ``on_lost`` callbacks called, in the background."""

    @abstractmethod
    def offsets(self) -> Sequence[Offset]:
        """Return the bounds that are known of each master's clock."""

    @abstractmethod
    def is_down(self, master: int) -> bool:
        """Return whether the master with this number is known to be down."""

    def propose(self) -> int:
        """Return a number that several masters may all give as a token or ticket: a time (us) just above their clocks.

        Return 0 for a lone master, which gives its own numbers, and while no clock is known.
        """
        offsets = self.offsets()
        return 0 if len(offsets) == 1 else propose(offsets, self.clock())

    # Losses ---------------------------------------------------------------------------------------------------------

    def check_valid(self, hold: Hold) -> None:
        """Raise `LockLostError` if `hold` is lost; report the loss, unless that has been done.

        Another caller of the same owner may release the hold meanwhile: that is `NotOwnedError`, and no loss.
        """
        now = self.clock()
        if hold.loss is None:
            code = hold.reason_for_loss(now)
            if code is None:
                return
            self.lose(hold, code)
            if hold.loss is None:
                raise self.holds.not_owned(hold.keys.name, hold)
        raise lost_error(hold)

    def lose(self, hold: Hold, code: LossCode, reason: str | None = None) -> None:
        """End a hold that is over, for a `reason` of the caller's own, or in the usual words of the `code`.

        Only the first call for a hold reports the loss, to the callbacks and the log.
        """
        if not self.holds.has(hold):
            return
        now = self.clock()
        loss = hold.lose(code, now, reason)
        if loss is None:
            return
        self.counters.losses += 1
        for tell in hold.loss_hooks.copy():
            tell(loss)
        # Act, then tell. The undo is needed even for a hold that was forgotten: a minority may have the hold, or get it
        # late. While the owner may rely on the lease, the masters that keep the hold go on: until the leases end, or
        # the owner leaves.
        if now >= hold.told_until:
            self.end_hold(hold)
        self.tell_loss(hold, loss)
        self.emit(Lost(reason=loss.reason, code=loss.code, **hold.told))

    def end_hold(self, hold: Hold) -> None:
        """End in the background what masters still have, or may get, of a hold that is over here."""
        self.hand_undo(self.undo_hold(hold, max(self.clock(), hold.late_until)))

    # What goes to the background ------------------------------------------------------------------------------------

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> None:
        """Have the janitor end whatever `owner` may have on any master."""
        self.hand_undo(self.undo_task(keys, owner, token, ttl, not_after))

    def hand_undo(self, task: UndoTask) -> None:
        """Have the janitor carry out an undo, unless the client was closed."""
        if not self.closed or self.is_closing:
            self.janitor.hand(task)

    def undo_task(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> UndoTask:
        """Return the task of the janitor that ends a hold or a place."""
        return UndoTask(keys, owner, token, ttl, not_after, max(not_after, self.clock()) + ttl)

    def undo_hold(self, hold: Hold, not_after: float | None = None) -> UndoTask:
        """Return the task of the janitor that ends a hold, with its rest; `not_after` is by default what it knows."""
        not_after = hold.undo_after if not_after is None else not_after
        task = self.undo_task(hold.keys, hold.owner, hold.token, hold.ttl, not_after)
        return task._replace(rest_until=hold.rest_until) if hold.at_least else task

    def undo_attempt(self, undo: Undo) -> None:
        """Have the janitor carry out the `Undo` of a flow: at once, or once late answers show that it is needed."""
        if not self.closed or self.is_closing:
            answers = undo.answers
            task = self.undo_task(undo.keys, undo.owner, 0, undo.ttl, undo.until)
            task = task._replace(keeps_place=undo.keeps_place, ticket=undo.ticket or 0)
            if answers is None:
                self.janitor.hand(task)
            else:
                is_left = partial(
                    self._is_left, answers, undo.ended_us or self._masters_clocks(), keeps_place=undo.keeps_place
                )
                self.janitor.look_later(PendingCheck(is_left, answers, undo.until, lambda: task))

    def _is_left(self, answers: Sequence[Answer], since_us: Sequence[float], *, keeps_place: bool) -> bool:
        """Return whether a master may keep an unwanted hold or place; once the client is closed, no place is kept."""
        return may_be_granted(answers) if keeps_place and not self.closed else may_keep_anything(answers, since_us)

    def _masters_clocks(self) -> list[float]:
        """Return the times (us) that the masters' clocks show now, at the earliest."""
        now = self.clock()
        return [offset.earliest(now) * 1e6 for offset in self.offsets()]

    def settle(self, hold: Hold) -> None:
        """Have the janitor write the count until every master has it and no older count can arrive any more."""
        hold.counts_until = self.clock() + self.node_timeout
        if not hold.settling:
            hold.settling = True
            self.janitor.hand(Settle(hold))

    def heal(self, holds: tuple[Hold, ...]) -> None:
        """Have the janitor give `holds`, which a quorum has just confirmed, to the masters that lack them."""
        if holds:
            self.janitor.hand(Heal(holds, self.clock() + HEAL_SECONDS))
