"""Reports of the masters and the hub, and what the session does about them."""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from relock._core import tasks
from relock._core.book import Book
from relock._core.clocks import ClockStep
from relock._core.hold import FOREVER
from relock._core.info import one_server, shared_servers
from relock._core.quorum import quorum_of
from relock._errors import ConfigurationError
from relock._events import MasterBack, MasterDown, MasterWithoutVote
from relock._keys import LockKeys
from relock._options import ClientOptions
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.session_view import SessionView
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.masters.known import NAMELESS, MasterListener, MasterState, server_of
from relock._runtime.service import Service

logger = logging.getLogger(__name__)


class ReportedSession(SessionView, Protocol):
    """Session, as its reports see it."""

    connection_name: str
    holds: Book
    janitor: Janitor
    may_be_handed: bool
    options: ClientOptions
    unsaid: deque[str]
    watchdog: Watchdog

    def draw_names(self) -> None:
        """Draw the beginning of the names that this client's holds have from now on."""

    def services(self) -> Iterator[Service]:
        """Yield the services, whose threads must not be kept from their work."""

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> None:
        """Have the janitor end whatever `owner` may have on any master."""


class Reports(MasterListener):
    """Listener to the masters of one session, as `MasterListener`, and to its hub, as `HubListener`."""

    def __init__(self, session: ReportedSession) -> None:
        self._session = session

    @property
    def connection_name(self) -> str:  # type: ignore[override]
        """Name of the session's connections on the servers."""
        return self._session.connection_name

    # Of the hub -----------------------------------------------------------------------------------------------------

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None:
        """Have the janitor pass on the turn of a waiter that has left."""
        self._session.janitor.hand(tasks.PassOn(keys, owner))

    def unclaimed(self, keys: LockKeys, owner: bytes, token: int) -> None:
        """End a hold that a releaser gave to a waiter which has left, unless the hold is in the book."""
        session = self._session
        if not any(hold.owner == owner and hold.loss is None for hold in session.holds.copy().values()):
            session.undo(keys, owner, token, session.options.ttl, session.clock())

    def watch_waiters(self) -> None:
        """Have a heartbeat sent in time: it finds waiters that are stuck, and loops that are closed."""
        self._session.janitor.ensure_beating(FOREVER)

    # Of the masters -------------------------------------------------------------------------------------------------

    def clock_in_doubt(self, master: MasterState) -> None:  # noqa: ARG002
        """Have the janitor look at the masters' clocks: one of them seems to have stepped."""
        self._session.janitor.hand(tasks.Sample())

    def subscribed(self) -> None:
        """Have a heartbeat sent now, if there are waiters: what was published before may be lost."""
        session = self._session
        if session.hub.waiters:
            session.janitor.beat_now()

    def master_down(self, master: MasterState, why: str) -> None:
        """Report that a master is down, but not while the session closes, and its connections with it."""
        session = self._session
        if not session.closed:
            session.emit(MasterDown(None, master.address, why))

    def master_back(self, master: MasterState) -> None:
        """Report that a master answers again."""
        self._session.emit(MasterBack(None, master.address))

    def master_without_vote(self, master: MasterState, seconds: float) -> None:
        """Report that a master may have forgotten leases, and has no vote for `seconds` more."""
        why = "it restarted, failed over, was flushed or is new, or its clock stepped: it may have forgotten leases"
        self._session.emit(MasterWithoutVote(None, master.address, seconds, why))

    def master_moved(self, master: MasterState) -> None:
        """Have the subscription follow a master that moved. Nobody is given a lock where a server has no name."""
        session = self._session
        session.may_be_handed = all(one.incarnation != NAMELESS for one in session.masters)
        session.hub.subscriptions[master.index].look()

    def check_independent(self, master: MasterState) -> None:
        """Draw new names for a new connection; raise `ConfigurationError` if its server is another master, too."""
        session = self._session
        session.draw_names()
        if master.incarnation == NAMELESS:
            session.hub.subscriptions[master.index].doubt()
        names = [(one.address, server_of(one.incarnation).decode()) for one in session.masters if one.is_named]
        for addresses in shared_servers(names):
            if master.address in addresses:
                raise ConfigurationError(one_server(addresses), option="nodes")

    def master_judged(self, master: MasterState) -> None:  # noqa: ARG002
        """Let scripts begin guards from now on, if a quorum of the masters was reached."""
        masters = self._session.masters
        if sum(one.is_judged for one in masters) >= quorum_of(len(masters)):
            for one in masters:
                one.is_quorum_judged = True

    def larger_guard(self, found_ms: int) -> None:
        """Use the longer guard of other clients on all masters."""
        for master in self._session.masters:
            master.guard_ms = max(master.guard_ms, found_ms)

    def master_stepped(self, master: MasterState, seconds: float, shown_us: int) -> None:
        """Note a step of a master's clock. Leases end by that clock: if it went ahead, earlier on ours."""
        session = self._session
        step = ClockStep(session.clock(), master.index, seconds, shown_us, master.offset.stepped_after)
        session.steps.append(step)  # Mark, then look: a hold that enters the book from here on looks at the steps
        if seconds > 0:
            for hold in session.holds.copy().values():
                hold.shift(step)
            session.watchdog.poke()
        if len(session.masters) > 1:
            session.janitor.hand(tasks.Accuse(step))
        text = "the clock of %s and ours moved apart by %+.3f s at once"
        session.platform.log.warning(logger, text, master.address, seconds)

    def sweep_by(self, moment: float) -> None:
        """Have the watchdog look by `moment` (our time) for connections that nobody needs."""
        self._session.watchdog.look_by(moment)

    def warn(self, text: str) -> None:
        """Have a `RelockWarning` issued: on a background thread by the log, else by a call that has done its work."""
        session = self._session
        if any(service.is_caller() for service in session.services()):
            session.platform.log.warn(text)
        else:
            session.unsaid.append(text)
