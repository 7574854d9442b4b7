"""Session of a client in one process: the book of its holds, its connections, and its background threads.

A session is one object in three layers. `relock._core.host.Host` is what the core's calls know of it: the book, the
clock, the counters. `relock._runtime.driver.Driver` carries out the effects of flows for threads. `Session` adds the
background threads, the loops, and the way in which events are told. An event loop has a `Foreground` beside it.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from relock._core.call_record import CallRecord, Enter
from relock._core.calls import Calls
from relock._core.effects import Park
from relock._core.hold import FOREVER, Hold
from relock._core.interrupts import Interrupted
from relock._core.loops import text_of_wait
from relock._core.quorum import NEVER
from relock._core.tasks import GoOn
from relock._errors import ClientClosedError, RelockError
from relock._events import Event, Granted, Loss, MasterBack, NotGranted, Released, Waiting, fields_of
from relock._keys import LATCH
from relock._options import DEADLOCK_AFTER_SECONDS, ClientOptions, OnEvent, OnLost, default_client_name
from relock._owner import readable
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.session_view import ForegroundView
from relock._runtime.background.telling import CallbackQueue, is_enabled, warn_at_once, warn_caller
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.driver import Driver
from relock._runtime.live_set import LiveSet
from relock._runtime.machine import THREADS
from relock._runtime.masters.make import make_panel
from relock._runtime.net.node import Node
from relock._runtime.platform import Platform
from relock._runtime.service import Service
from relock._runtime.session.gates import Gates
from relock._runtime.session.reports import Reports
from relock._runtime.wakeups.hub import ThreadHub
from relock._runtime.wakeups.hubs import Hubs
from relock._runtime.wakeups.waiter import Waiter

logger = logging.getLogger("relock.session")
event_logger = logging.getLogger("relock.events")

PENDING_WARNINGS_MAX = 100  # warnings that wait for a caller
sessions: "LiveSet[Session]" = LiveSet()  # all sessions of this process


class Observer(Protocol):
    """Observer of a client's events."""

    def note(self, event: Event) -> OnEvent | None:
        """Note an event; return what is to be called with it on the thread of events, or None.

        This is called where the event is reported, with the context variables of the caller, and in the middle of its
        call: it must be quick, and neither wait nor raise.
        """

    def within(self, loss: Loss, tell: OnLost) -> OnLost:
        """Return `tell`, which is to be called with `loss`, in the surroundings that it should run in."""

    def end(self, _: object) -> None:
        """End: the session is closed. This is called on the thread of events, after all events of the session."""


class Session(Driver):
    """Session: all that a client has in one process: connections, threads, holds. A forked child makes a new one.

    `relock._runtime.session.closing` ends it.

    Attributes:
        calls: the calls of threads, as flows.
        closers: counts attempts to close the session of a client that was garbage-collected; the first one does it.
        foregrounds: the drivers of flows on event loops.
        hub: the hub of the client's threads.
        hubs: all hubs of the client.
        interrupted: undoes what an interrupted call of a thread has left.
        interrupted_of_tasks: the same for tasks.
        is_ending: True while pending work is finished because the interpreter ends.
        is_half_closed: True if an interrupt has cut off a `close`.
        measures: what is told of round trips to masters.
        observers: what else is told of the events.
        reports: acts on news of the masters.
        pending_warnings: warnings that the next caller to finish its call must issue.
    """

    gates: Gates
    hub: ThreadHub
    hubs: Hubs
    janitor: Janitor
    watchdog: Watchdog

    def __init__(self, nodes: Sequence[Node], options: ClientOptions, platform: Platform = THREADS) -> None:
        self.reports = Reports(self)
        panel = make_panel(nodes, options, platform, self.reports)
        self.client_id = f"{readable(options.client_name or default_client_name())}-{platform.random_hex(8)}"
        node_timeout = options.node_timeout_for(options.ttl)
        super().__init__(panel, platform, node_timeout)
        self.options = options
        self.tells_losses = options.on_lost is not None
        self.deadlock_after = options.deadlock_after or DEADLOCK_AFTER_SECONDS
        self.prefix = options.prefix
        self.connection_name = f"relock:{self.client_id}"
        self.foregrounds: dict[ForegroundView, None] = {}  # in the order of their addition
        self.losses = CallbackQueue(platform, "relock-losses")
        self.events = CallbackQueue(platform, "relock-events")
        self.observers: tuple[Observer, ...] = ()
        self.measures: tuple[Callable[[str, float], object], ...] = ()
        self._hear()
        self.pending_warnings: deque[str] = deque(maxlen=PENDING_WARNINGS_MAX)
        self.is_ending = self.is_half_closed = self.has_warned_of_loops = False
        self.closers = itertools.count()
        self.hubs = Hubs()
        self.hub = ThreadHub(self.client_id, options.prefix, self.masters, platform, self.reports)
        self.hubs.add(self.hub)
        self.janitor = Janitor(self)
        self.watchdog = Watchdog(self)
        self.gates = Gates(platform)
        self.gates.overtake = self.overtake_later
        self.interrupted = Interrupted(self, may_wait=True)
        self.interrupted_of_tasks = Interrupted(self, may_wait=False)
        self.calls = Calls(self, self.interrupted, self.hub, None if self.lone is None else self.lone.exchange)
        if platform is THREADS:
            sessions.add(self)

    # What the driver leaves to the session --------------------------------------------------------------------------

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
            if waiter.keys.kind != LATCH and self.logs_events():
                self.emit(Waiting(waiter.keys.name, kind=waiter.keys.kind, owner=waiter.owner.decode()))
        waiter.parks += 1
        waiter.due_at = min(waiter.due_at, park.until)
        if park.ticket is not None:
            waiter.tickets[:] = [park.ticket]
            self.janitor.ensure_beating(park.lease_end)
        if self.closed:  # Mark, then look: `close` finds the waiter, or this finds the client closed
            self.check_open()

    def _may_block_a_loop(self) -> bool:
        """Return whether the calling thread runs an event loop, and this session has not warned of a wait yet."""
        return not self.has_warned_of_loops and self.platform.task() is not None

    def warn_if_a_loop_waits(self, name: str) -> None:
        """Warn once that a wait for the lock `name`, which is about to begin, blocks the caller's event loop."""
        if self._may_block_a_loop():
            self.has_warned_of_loops = True
            text = text_of_wait(name)
            self.platform.log.warning(logger, text)
            warn_at_once(text)

    def enter(self, enter: Enter) -> bool:
        """Wait at the gate of an owner that may call several times at once; return whether the caller is in.

        A caller that would block an event loop by that is warned, unless its owner has the lock already: then the wait
        is short.
        """
        record, key, until = enter
        if not self.holds.has_either(key) and until > self.clock() and self._may_block_a_loop():
            if self.gates.enter(record, key, NEVER):
                return True
            self.warn_if_a_loop_waits(key[0])
        return self.gates.enter(record, key, until)

    # Calls of a loop that stands still --------------------------------------------------------------------------------

    def overtake_later(self, record: CallRecord) -> None:
        """Have the janitor undo a call whose event loop stands still.

        If the loop turns first, its task goes on, and nothing is undone. A second request for this does no harm.
        """
        self.janitor.hand(GoOn(partial(self.overtake, record)))

    def overtake(self, record: CallRecord) -> None:
        """Undo a suspended call of a task, which must begin anew when its loop turns."""
        record = record.whole or record
        if record.claim():  # Claim, then act
            for owner in [owner for one in (record, *record.members) for owner in one.owners[:1]]:
                self.hubs.look_again(owner)  # wake the task, which must begin its call anew when the loop turns
                with suppress(RuntimeError):  # the loop is closed
                    record.task.get_loop().call_soon_threadsafe(self._end_wait, owner)
            self.interrupted_of_tasks.undo_acquire(record)

    def _end_wait(self, owner: bytes) -> None:
        """End, on its loop, the wait of an overtaken call that was just about to wait when it was undone."""
        self.hubs.look_again(owner)
        self.hubs.forget(owner)

    def tell_loss(self, hold: Hold, loss: Loss) -> None:
        """Have the hold's callbacks and the client's called, in the background."""
        for callback in (*hold.callbacks, self.options.on_lost):
            if callback is not None:
                tell = callback
                for observer in self.observers:
                    tell = observer.within(loss, tell)
                self.losses.hand(tell, loss)

    def sweep(self, now: float) -> float:
        """Close connections that were idle for long; return when to look again."""
        return min((pool.sweep(now) for pool in self.pools), default=FOREVER)

    def services(self) -> Iterator[Service]:
        """Yield the services, on whose threads no code of users may run."""
        yield from (self.watchdog, self.janitor, *self.hub.subscriptions)
        yield from (master.reconnector for master in self.masters if master.reconnector is not None)

    # What is told ---------------------------------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """Have the `observer` told of each event from now on."""
        self.observers = (*self.observers, observer)
        self._hear()

    def stop_observing(self, observer: Observer) -> None:
        """Have the `observer` told of no further event."""
        self.observers = tuple(one for one in self.observers if one is not observer)
        self._hear()

    def measure(self, tell: Callable[[str, float], object]) -> None:
        """Have `tell` called, on the thread of events, with a master's address and the seconds of a round trip.

        At most one round trip in each `SAMPLE_SECONDS` is told of each master: busy callers pay nothing for more.
        """
        self.measures = (*self.measures, tell)
        for master in self.masters:
            for one in (master, *master.servers):
                one.facts.sample_at = NEVER

    def _hear(self) -> None:
        """Have ordinary events reported if there is a callback, an observer, or a log at their level."""
        is_heard = event_logger.isEnabledFor if self.options.on_event is None and not self.observers else bool
        self.logs_events = partial(is_heard, logging.DEBUG)

    def take_over(self, parents: "Session") -> None:
        """Go on in a forked child for the session of the parent: closed if that was, and observed as that was."""
        self.closed, self.observers = parents.closed, parents.observers
        self._hear()
        for tell in parents.measures:
            self.measure(tell)

    def emit(self, event: Event) -> None:
        """Report an event to the logger ``relock.events``, to the client's callback and to the observers."""
        is_ordinary = isinstance(event, _ORDINARY_EVENTS)
        if self.options.on_event is not None:
            self.events.hand(self.options.on_event, event, is_ordinary=is_ordinary)
        for observer in self.observers:
            if (work := observer.note(event)) is not None:
                self.events.hand(work, event, is_ordinary=is_ordinary)
        level = logging.DEBUG if is_ordinary else logging.WARNING
        if is_enabled(event_logger, level):  # `write` asks as well, but takes three more calls for that
            self.platform.log.write(event_logger, level, "%s", event, fields=partial(fields_of, event))

    def raise_pending_warnings(self, stacklevel: int = 3, *, beside: BaseException | None = None) -> None:
        """Issue the pending warnings to a caller whose call has done its work, as `telling.warn_caller` does.

        Args:
            stacklevel: as for `warnings.warn`, where this is the second.
            beside: the error that the call ends with.
        """
        if beside is None or isinstance(beside, RelockError):  # do not delay an interrupt by warnings
            warn_caller(self.pending_warnings, stacklevel + 1, beside)


_ORDINARY_EVENTS = (Waiting, Granted, NotGranted, Released, MasterBack)
