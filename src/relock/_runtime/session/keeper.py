"""Common part of a session: the book of holds, and what goes to the background.

The book of holds is a dict, whose single operations are atomic, because an interrupt may strike between any two
instructions of a caller.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from attrs import define

from relock._core.book import Book, lost_error
from relock._core.call_record import Enter
from relock._core.clocks import ClockStep
from relock._core.effects import Answer, Park, Undo
from relock._core.hold import Hold
from relock._core.quorum import NEVER, may_be_granted, may_keep_anything
from relock._errors import ClientClosedError, RelockError
from relock._events import Event, Granted, Lost, MasterBack, NotGranted, Released
from relock._keys import LockKeys
from relock._options import ClientOptions, default_client_name
from relock._owner import readable
from relock._runtime.background import tasks
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.session_view import ForegroundView
from relock._runtime.background.telling import Teller, warn_at_once, warn_caller
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.driver import Driver
from relock._runtime.masters.master import Master
from relock._runtime.platform import Platform
from relock._runtime.service import Service
from relock._runtime.session.gates import Gates
from relock._runtime.session.loops import text_of_wait
from relock._runtime.wakeups.hub import Hub
from relock._runtime.wakeups.waiter import Waiter

logger = logging.getLogger(__name__)
event_logger = logging.getLogger("relock.events")

UNSAID_MAX = 100  # warnings that wait for a caller


@define(eq=False, repr=False)
class Counters:
    """Counts of a session. Each is changed by single statements that CPython does not interrupt."""

    grants: int = 0
    refusals: int = 0
    waits: int = 0
    renewals: int = 0
    losses: int = 0


class Keeper(Driver):
    """Keeper of the book of holds, which hands to the background what must not keep a caller.

    Attributes:
        foregrounds: the drivers of flows on event loops.
        holds: the book of holds.
        hears: returns whether anybody wants to hear of events of this level of the log.
        steps: what was seen of the masters' clocks.
        unsaid: what callers must be warned of.
        waited_at: our time at which a caller last began to wait.
        may_be_handed: whether releasers may give a lock to a waiter of this client.
        is_closing: True while the session is closed, but what is handed to the janitor is still done.
        is_ending: True while that is so because the interpreter ends.
    """

    client_id: str
    closed: bool
    connection_name: str
    counters: Counters
    events: Teller
    foregrounds: set[ForegroundView]
    gates: Gates
    has_warned_of_loops: bool
    hears: Callable[[int], bool]
    holds: Book
    hub: Hub
    is_closing: bool
    is_ending: bool
    janitor: Janitor
    losses: Teller
    may_be_handed: bool
    node_timeout: float
    names: Iterator[bytes]
    owner_head: bytes
    prefix: str
    steps: deque[ClockStep]
    unsaid: deque[str]
    waited_at: float
    watchdog: Watchdog

    def __init__(self, masters: tuple[Master, ...], options: ClientOptions, platform: Platform) -> None:
        super().__init__(masters, platform)
        self.options = options
        self.prefix = options.prefix
        self.client_id = f"{readable(options.client_name or default_client_name())}-{platform.random_hex(8)}"
        self.connection_name = f"relock:{self.client_id}"
        self.owner_head = f"{self.client_id}:".encode()
        self._serials = itertools.count(1)
        self.draw_names()
        self.node_timeout = options.node_timeout_for(options.ttl)
        self.holds = Book()
        self.foregrounds = set()
        self.gates = Gates(platform)
        self.counters = Counters()
        self.losses = Teller(platform, "relock-losses")
        self.events = Teller(platform, "relock-events")
        self.hears = event_logger.isEnabledFor if options.on_event is None else bool
        self.unsaid = deque(maxlen=UNSAID_MAX)
        self.steps = deque(maxlen=64)
        self.may_be_handed = True
        self.closed = False
        self.is_closing = self.is_ending = False
        self.waited_at = NEVER
        self.has_warned_of_loops = False

    def draw_names(self) -> None:
        """Draw the beginning of the names that this client's holds have from now on.

        This is done afresh whenever a connection is opened: a copy of a virtual machine's memory has to open its own,
        and its holds then have other names than those of the original.
        """
        head = self.owner_head + self.platform.random_hex(4).encode()
        self.names = map((head + b"%08x").__mod__, self._serials)

    def new_name(self, owner: str) -> bytes:
        """Return ``<client>:<owner>.<uuid>``, which names one hold of an ``owner=`` and never another one."""
        name, head = next(self.names), self.owner_head
        return b"%b%b.%b" % (head, readable(owner).encode(), name[len(head) :])

    # What the driver leaves to it -----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise `ClientClosedError` once the client was closed.

        While the interpreter ends, a thread that calls is a daemon. It ends silently, by `SystemExit`, as do all daemon
        threads a moment later.
        """
        if self.closed:
            if self.is_ending and self.platform.loop() is None:
                raise SystemExit
            raise ClientClosedError("the client is closed: make a new one")

    def begin_park(self, waiter: Waiter, park: Park) -> None:
        """Note that `waiter` is about to sleep; if it has a ticket, heartbeats are due from now on."""
        if not waiter.parks:
            self.counters.waits += 1
            self.waited_at = self.clock()
        waiter.parks += 1
        waiter.due_at = min(waiter.due_at, park.until)
        if park.ticket is not None:
            waiter.tickets[:] = [park.ticket]
            self.janitor.ensure_beating(park.lease_end)
        if self.closed:  # Mark, then look: `close` finds the waiter, or this finds the client closed
            self.check_open()

    def warn_if_a_loop_waits(self, name: str) -> None:
        """Warn once that a wait for the lock `name`, which is about to begin, blocks the caller's event loop."""
        if not self.has_warned_of_loops and self.platform.task() is not None:
            self.has_warned_of_loops = True
            text = text_of_wait(name)
            self.platform.log.warning(logger, text)
            warn_at_once(text)

    def enter(self, enter: Enter) -> bool:
        """Wait at the gate of an owner that may call several times at once; return whether the caller is in."""
        return self.gates.enter(*enter)

    def renewed(self) -> None:
        """Count a renewal that a quorum has confirmed."""
        self.counters.renewals += 1

    # The book of holds ----------------------------------------------------------------------------------------------

    def all_holds(self) -> list[Hold]:
        """Return every hold of this client, and the lost ones whose owners have not noticed yet."""
        return self.holds.all()

    def is_current(self, hold: Hold) -> bool:
        """Return whether `hold` is held still: neither released nor lost."""
        return self.holds.has(hold)

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
        if not self.is_current(hold):
            return
        now = self.clock()
        loss = hold.lose(reason, now)
        if loss is None:
            return
        self.counters.losses += 1
        for tell in hold.bodies.copy():
            tell(loss)
        # Act, then tell. Also where the masters have forgotten it: a minority may have it still, or get it yet.
        self.undo(hold.keys, hold.owner, hold.token, hold.ttl, max(now, hold.late_until))
        for callback in hold.callbacks:
            self.losses.hand(callback, loss)
        if self.options.on_lost is not None:
            self.losses.hand(self.options.on_lost, loss)
        self.emit(Lost(loss.lock, reason))

    # What goes to the background ------------------------------------------------------------------------------------

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> None:
        """Have the janitor end whatever `owner` may have on any master."""
        if not self.closed or self.is_closing:
            self.janitor.hand(self.undo_task(keys, owner, token, ttl, not_after))

    def undo_task(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> tasks.UndoTask:
        """Return the task of the janitor that ends a hold or a place."""
        return tasks.UndoTask(keys, owner, token, ttl, not_after, max(not_after, self.clock()) + ttl)

    def undo_hold(self, hold: Hold) -> tasks.UndoTask:
        """Return the task of the janitor that ends a hold which was released."""
        return self.undo_task(hold.keys, hold.owner, hold.token, hold.ttl, hold.undo_after)

    def undo_attempt(self, undo: Undo) -> None:
        """Have the janitor carry out what a flow asks to be undone."""
        if not self.closed or self.is_closing:
            answers = undo.answers
            task = self.undo_task(undo.keys, undo.owner, 0, undo.ttl, undo.until)
            task = task._replace(stays=undo.stays, ticket=undo.ticket or 0)
            if answers is None:
                self.janitor.hand(task)
            else:
                is_left = partial(self._is_left, answers, undo.ended_us or self._masters_clocks(), stays=undo.stays)
                self.janitor.look_later(tasks.PendingCheck(is_left, answers, undo.until, lambda: task))

    def _is_left(self, answers: Sequence[Answer], since_us: Sequence[float], *, stays: bool) -> bool:
        """Return whether a master may keep what nobody wants; once the client is closed, no waiter stays."""
        return may_be_granted(answers) if stays and not self.closed else may_keep_anything(answers, since_us)

    def _masters_clocks(self) -> list[float]:
        """Return the times (us) that the masters' clocks show now, at the earliest."""
        now = self.clock()
        return [master.offset.earliest(now) * 1e6 for master in self.masters]

    def settle(self, hold: Hold) -> None:
        """Have the janitor write the count until every master has it, and no other count can arrive late any more."""
        hold.counts_until = self.clock() + self.node_timeout
        if not hold.settling:
            hold.settling = True
            self.janitor.hand(tasks.Settle(hold))

    def heal(self, holds: tuple[Hold, ...]) -> None:
        """Give holds that a quorum has just confirmed to the masters that do not have them, in the background."""
        if holds:
            self.janitor.hand(tasks.Heal(holds, self.clock() + tasks.HEAL_SECONDS))

    def sweep(self, now: float) -> float:
        """Close connections that nobody has needed for long; return when there may be more."""
        return min(master.sweep(now) for master in self.masters)

    def services(self) -> Iterator[Service]:
        """Yield the services, whose threads must not be kept from their work."""
        yield from (self.watchdog, self.janitor, *self.hub.subscriptions)
        yield from (master.reconnector for master in self.masters if master.reconnector is not None)

    # What is told ---------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Report an event to the logger ``relock.events`` and to the client's callback."""
        is_ordinary = isinstance(event, _ORDINARY_EVENTS)
        if self.options.on_event is not None:
            self.events.hand(self.options.on_event, event, is_ordinary=is_ordinary)
        self.platform.log.write(event_logger, logging.DEBUG if is_ordinary else logging.WARNING, "%s", event)

    def say_warnings(self, stacklevel: int = 3, *, beside: BaseException | None = None) -> None:
        """Warn a caller, whose call has done its work, of what was found, as `telling.warn_caller` does.

        Args:
            stacklevel: as for `warnings.warn`, where this is the second.
            beside: the error that the call ends with.
        """
        if beside is None or isinstance(beside, RelockError):  # an interrupt is in a hurry
            warn_caller(self.unsaid, stacklevel + 1, beside)


_ORDINARY_EVENTS = (Granted, NotGranted, Released, MasterBack)
