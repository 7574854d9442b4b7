"""Reports of the masters and the hubs, and what the session does about them."""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from relock._core import master_facts, tasks
from relock._core.clocks import ClockStep
from relock._core.hold import FOREVER
from relock._core.master_facts import NAMELESS, MasterFacts
from relock._events import MasterBack, MasterDown, MasterWithoutVote
from relock._keys import LockKeys
from relock._options import ClientOptions
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.session_view import SessionView
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.masters.opener import MasterListener
from relock._runtime.service import Service

logger = logging.getLogger(__name__)

_WITHOUT_VOTE = "it restarted, failed over, was flushed or is new, or its clock stepped: it may have forgotten leases"


class ReportedSession(SessionView, Protocol):
    """Session, as its reports see it."""

    connection_name: str
    janitor: Janitor
    may_be_handed: bool
    options: ClientOptions
    pending_warnings: deque[str]
    watchdog: Watchdog

    def services(self) -> Iterator[Service]:
        """Yield the services, whose threads must not be kept from their work."""

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> None:
        """Have the janitor end whatever `owner` may have on any master."""


class Reports(MasterListener):
    """Listener to the masters of one session, as `MasterListener`, and to its hubs, as `HubListener`."""

    def __init__(self, session: ReportedSession) -> None:
        self._session = session

    @property
    def connection_name(self) -> str:
        """Name of the session's connections on the servers."""
        return self._session.connection_name

    # Of the hubs ----------------------------------------------------------------------------------------------------

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

    def subscribed(self) -> None:
        """Have a heartbeat sent now, if there are waiters: what was published before may be lost."""
        session = self._session
        if session.hubs.are_attended:
            session.janitor.beat_now()

    # Of the masters -------------------------------------------------------------------------------------------------

    def hear(self, facts: MasterFacts, news: master_facts.News) -> None:
        """Act on news of a master: tell users, and have the hubs and the background do what follows."""
        session = self._session
        match news:
            case master_facts.Moved():  # nobody is given a lock where a server has no name
                session.may_be_handed = all(one.facts.incarnation != NAMELESS for one in session.masters)
                for hub in session.hubs.all():
                    hub.subscriptions[facts.index].look()
            case master_facts.Seen():
                for hub in session.hubs.all():
                    hub.draw_names()
                    if facts.incarnation == NAMELESS:
                        hub.subscriptions[facts.index].doubt()
            case master_facts.Down(why) if not session.closed:  # else its connections are closed with the session
                session.emit(MasterDown(None, facts.address, why))
            case master_facts.Back():
                session.emit(MasterBack(None, facts.address))
            case master_facts.WithoutVote(seconds):
                session.emit(MasterWithoutVote(None, facts.address, seconds, _WITHOUT_VOTE))
            case master_facts.InDoubt():
                session.janitor.hand(tasks.Sample())
            case master_facts.Stepped():
                self._stepped(facts, news)
            case master_facts.Problem(text):
                self._warn(text)

    def _stepped(self, facts: MasterFacts, news: master_facts.Stepped) -> None:
        """Note a step of a master's clock. Leases end by that clock: if it went ahead, earlier on ours."""
        session, after = self._session, facts.offset.stepped_after
        step = ClockStep(session.clock(), facts.index, news.seconds, news.shown_us, after)
        session.steps.append(step)  # Mark, then look: a hold that enters the book from here on looks at the steps
        if step.seconds > 0:
            for hold in session.holds.copy().values():
                hold.shift(step)
            session.watchdog.poke()
        if len(session.masters) > 1:
            session.janitor.hand(tasks.Accuse(step))
        text = "the clock of %s and ours moved apart by %+.3f s at once"
        session.platform.log.warning(logger, text, facts.address, step.seconds)

    def _warn(self, text: str) -> None:
        """Have a `RelockWarning` issued: on a background thread by the log, else by a call that has done its work."""
        session = self._session
        if any(service.is_caller() for service in session.services()):
            session.platform.log.warn(text)
        else:
            session.pending_warnings.append(text)

    def sweep_by(self, moment: float) -> None:
        """Have the watchdog look by `moment` (our time) for connections that nobody needs."""
        self._session.watchdog.look_by(moment)
