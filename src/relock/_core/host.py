"""Host of calls: what the calls of one client share, and what follows from the end of a hold. No I/O, no threads.

The session is the host of its client's calls. A test may be another one, with parts of its own.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Protocol

from attrs import define

from relock._core.book import Book, HoldKey, lost_error
from relock._core.call_record import CallRecord
from relock._core.clocks import ClockStep, Offset, propose
from relock._core.effects import Answer, Clock, Undo
from relock._core.hold import Hold
from relock._core.quorum import NEVER, may_be_granted, may_keep_anything
from relock._core.tasks import HEAL_SECONDS, Heal, PendingCheck, Settle, Task, UndoTask
from relock._events import Event, Loss, Lost
from relock._keys import LockKeys

STEPS_KEPT = 64


@define(eq=False, repr=False)
class Counters:
    """Counts of a client. Each is changed by single statements that CPython does not interrupt."""

    grants: int = 0
    refusals: int = 0
    waits: int = 0
    renewals: int = 0
    losses: int = 0


class TaskQueue(Protocol):
    """Janitor, as calls see it: it does in the background what must not keep a caller."""

    def hand(self, task: Task) -> None:
        """Take on a task; return at once."""

    def look_later(self, check: PendingCheck) -> None:
        """Have `check` looked at when all answers should have come; return at once."""


class HoldWatcher(Protocol):
    """Watchdog, as calls see it."""

    def watch(self, hold: Hold) -> None:
        """Have `hold` renewed in time."""


class Waiters(Protocol):
    """Hubs of the client, as calls see them."""

    def forget(self, owner: bytes, *, served: Hold | None = None) -> None:
        """Note that `owner` waits no more; `served` is its hold, if it has had its turn."""


class WaiterRegister(Waiters, Protocol):
    """Hub, as calls see it: who waits.

    Attributes:
        names: the names of the holds to come.
    """

    names: Iterator[bytes]

    @property
    def waiters(self) -> Collection[bytes]:
        """Names of the waiters."""

    def new_name(self, owner: str) -> bytes:
        """Return ``<client>:<owner>.<uuid>``, which names one hold of an ``owner=`` and never another one."""

    def turns_missed(self, owner: bytes) -> int:
        """Return how often the waiter `owner` was told, and did not look for as long as a turn lasts."""


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
        """Take the call of `record` from its gate, and let the next caller in."""


class CallerInfo(Protocol):
    """Platform, as calls see it: facts about the caller of the moment, and chance."""

    def current(self) -> object:
        """Return the caller itself, as gates tell callers apart."""

    def loop(self) -> object | None:
        """Return the event loop that runs the caller, or None."""

    def task(self) -> object | None:
        """Return what that loop runs; None where there is none."""

    def chance(self) -> float:
        """Draw a number from 0 to 1."""


class Host(ABC):
    """Host of the calls of one client.

    Attributes:
        closed: True once no call may wait or ask for anything.
        is_closing: True while the client is being closed, but what is handed to the janitor is still done.
        logs_events: returns whether anybody wants to hear of ordinary events.
        may_be_handed: whether releasers may give a lock to a waiter of this client.
        steps: what was seen of the masters' clocks.
        waited_at: our time at which a caller last began to wait.
    """

    clock: Clock
    gates: CallGates
    hubs: Waiters
    janitor: TaskQueue
    logs_events: Callable[[], bool]
    platform: CallerInfo
    watchdog: HoldWatcher

    def __init__(self, node_timeout: float, clock: Clock) -> None:
        self.clock = clock
        self.node_timeout = node_timeout
        self.holds = Book()
        self.counters = Counters()
        self.steps: deque[ClockStep] = deque(maxlen=STEPS_KEPT)
        self.may_be_handed = True
        self.closed = self.is_closing = False
        self.waited_at = NEVER

    @abstractmethod
    def check_open(self) -> None:
        """Raise `ClientClosedError` once the client was closed."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """Report an event."""

    @abstractmethod
    def tell_loss(self, hold: Hold, loss: Loss) -> None:
        """Have the callbacks that hear of a loss called, in the background."""

    @abstractmethod
    def offsets(self) -> Sequence[Offset]:
        """Return what is known of each master's clock."""

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
        """Raise `LockLostError` if `hold` is lost; report the loss, unless that has been done."""
        now = self.clock()
        if hold.loss is None:
            reason = hold.reason_for_loss(now)
            if reason is None:
                return
            self.lose(hold, reason)
        raise lost_error(hold)

    def lose(self, hold: Hold, reason: str) -> None:
        """End a hold that is over. The first to find that tells the locks' callbacks, the client's, and the log."""
        if not self.holds.has(hold):
            return
        now = self.clock()
        loss = hold.lose(reason, now)
        if loss is None:
            return
        self.counters.losses += 1
        for tell in hold.loss_hooks.copy():
            tell(loss)
        # Act, then tell. Also where the masters have forgotten it: a minority may have it still, or get it yet.
        self.undo(hold.keys, hold.owner, hold.token, hold.ttl, max(now, hold.late_until))
        self.tell_loss(hold, loss)
        self.emit(Lost(loss.lock, reason))

    # What goes to the background ------------------------------------------------------------------------------------

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> None:
        """Have the janitor end whatever `owner` may have on any master."""
        if not self.closed or self.is_closing:
            self.janitor.hand(self.undo_task(keys, owner, token, ttl, not_after))

    def undo_task(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> UndoTask:
        """Return the task of the janitor that ends a hold or a place."""
        return UndoTask(keys, owner, token, ttl, not_after, max(not_after, self.clock()) + ttl)

    def undo_hold(self, hold: Hold) -> UndoTask:
        """Return the task of the janitor that ends a hold which was released."""
        return self.undo_task(hold.keys, hold.owner, hold.token, hold.ttl, hold.undo_after)

    def undo_attempt(self, undo: Undo) -> None:
        """Have the janitor carry out what a flow asks to be undone."""
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
        """Return whether a master may keep what nobody wants; once the client is closed, no waiter stays."""
        return may_be_granted(answers) if keeps_place and not self.closed else may_keep_anything(answers, since_us)

    def _masters_clocks(self) -> list[float]:
        """Return the times (us) that the masters' clocks show now, at the earliest."""
        now = self.clock()
        return [offset.earliest(now) * 1e6 for offset in self.offsets()]

    def settle(self, hold: Hold) -> None:
        """Have the janitor write the count until every master has it, and no other count can arrive late any more."""
        hold.counts_until = self.clock() + self.node_timeout
        if not hold.settling:
            hold.settling = True
            self.janitor.hand(Settle(hold))

    def heal(self, holds: tuple[Hold, ...]) -> None:
        """Give holds that a quorum has just confirmed to the masters that do not have them, in the background."""
        if holds:
            self.janitor.hand(Heal(holds, self.clock() + HEAL_SECONDS))
