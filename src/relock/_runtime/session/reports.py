"""Reports of the masters and the hubs, and the session's reactions to them."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from relock._core import master_facts, tasks
from relock._core.clocks import ClockStep
from relock._core.flows.extend import find_out
from relock._core.hold import FOREVER, Hold
from relock._core.master_facts import NAMELESS, MasterFacts
from relock._events import ForceReleased, MasterBack, MasterDown, MasterWithoutVote
from relock._keys import LOCK, SEMAPHORE, LockKeys
from relock._options import ClientOptions
from relock._runtime.background.janitor import Janitor
from relock._runtime.background.session_view import SessionView
from relock._runtime.background.telling import CallbackQueue
from relock._runtime.background.watchdog import Watchdog
from relock._runtime.masters.opener import MasterListener
from relock._runtime.service import Service

logger = logging.getLogger("relock.session")

_WITHOUT_VOTE = "it restarted, failed over, was flushed or is new, or its clock stepped: it may have forgotten leases"


class ReportedSession(SessionView, Protocol):
    """Session, as its reports see it."""

    connection_name: str
    events: CallbackQueue
    janitor: Janitor
    may_be_handed: bool
    measures: tuple[Callable[[str, float], object], ...]
    options: ClientOptions
    pending_warnings: deque[str]
    watchdog: Watchdog

    def services(self) -> Iterator[Service]:
        """Yield the services, on whose threads no code of users may run."""

    def undo(self, keys: LockKeys, owner: bytes, token: int, ttl: float, not_after: float) -> None:
        """Have the janitor end whatever `owner` may have on any master."""


class Reports(MasterListener):
    """Listener to the masters of one session, as `MasterListener`, and to its hubs, as `HubListener`."""

    def __init__(self, session: ReportedSession) -> None:
        self._session = session
        self._suspects: deque[Hold] = deque()  # holds that were ended by force, as clients say; only the janitor takes

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
        """Have a heartbeat sent in time: the janitor then also finds stuck waiters and closed loops."""
        self._session.janitor.ensure_beating(FOREVER)

    def asked(self, message: bytes) -> None:
        """Have the janitor act on another client's question, or answer, about a wait."""
        janitor = self._session.janitor
        janitor.hand(tasks.GoOn(partial(janitor.chase.hear, message)))

    def ended(self, name: str, owner: bytes) -> None:
        """Have the janitor find out whether the hold `owner` has ended, as another client says."""
        self._note_forced(name, self._session.clock(), owner)

    def _note_forced(self, name: str, since: float, owner: bytes | None) -> None:
        """Have the janitor find out which holds have ended by force, as `Book.note_forced` describes them."""
        suspects = self._session.holds.note_forced(name, since, owner)
        self._suspects.extend(suspects)  # first: each master brings the message, and one request answers all
        if suspects:
            self._session.janitor.hand(tasks.GoOn(self._find_out))

    def _find_out(self) -> None:
        session, now = self._session, self._session.clock()
        suspects = dict.fromkeys([self._suspects.popleft() for _ in range(len(self._suspects))])
        holds = tuple(hold for hold in suspects if session.holds.has(hold) and hold.remaining(now) > 0)
        if holds and not session.closed:
            session.run_shielded(find_out(holds, session.clock))
            session.watchdog.poke()

    def subscribed(self) -> None:
        """Have a heartbeat sent now, if there are waiters: messages from before the subscription are lost."""
        session = self._session
        if session.hubs.are_attended:
            session.janitor.beat_now()

    # Of calls -------------------------------------------------------------------------------------------------------

    def forced(self, name: str, since: float, owner: bytes | None = None) -> None:
        """Report that this client has ended by force what was held of a lock, or the permits of `owner`, at `since`."""
        kind, of = (LOCK, None) if owner is None else (SEMAPHORE, owner.decode())
        self._session.emit(ForceReleased(name, kind=kind, owner=of))
        self._note_forced(name, since, owner)

    # Of the masters -------------------------------------------------------------------------------------------------

    def hear(self, facts: MasterFacts, news: master_facts.News) -> None:
        """Act on news of a master: emit events, and tell the hubs and the background threads."""
        session = self._session
        match news:
            case master_facts.Moved():  # no releaser may give a lock if a server has no incarnation to name
                session.may_be_handed = all(
                    server.facts.incarnation != NAMELESS for one in session.masters for server in one.servers
                )
                for hub in session.hubs.all():
                    hub.look(facts.index)
            case master_facts.Seen():
                self._seen(facts)
            case master_facts.Down(why) if not session.closed:  # else the session itself has closed the connections
                session.emit(MasterDown(None, facts.address, why))
            case master_facts.Back():
                session.emit(MasterBack(None, facts.address))
            case master_facts.WithoutVote(seconds):
                session.emit(MasterWithoutVote(None, facts.address, seconds, _WITHOUT_VOTE))
            case master_facts.InDoubt():
                session.janitor.hand(tasks.Sample())
            case master_facts.NewCredentials():
                self._renew(facts)
            case master_facts.Stepped():
                self._stepped(facts, news)
            case master_facts.RoundTrip(seconds):
                for tell in session.measures:
                    session.events.hand(partial(tell, facts.address), seconds, is_ordinary=True)
            case master_facts.Problem(text):
                self._warn(text)

    def _seen(self, facts: MasterFacts) -> None:
        for hub in self._session.hubs.all():
            hub.draw_names()
            if facts.incarnation == NAMELESS:
                hub.subscriptions[facts.index].doubt()

    def _renew(self, facts: MasterFacts) -> None:
        for hub in self._session.hubs.all():
            for subscription in list(hub.subscriptions):  # to all nodes of a Cluster
                if subscription.index == facts.index:
                    subscription.renew()
        for foreground in self._session.foregrounds.copy():
            foreground.renew()

    def _stepped(self, facts: MasterFacts, news: master_facts.Stepped) -> None:
        """Note a step of a master's clock. Leases end by that clock: if it went ahead, they end earlier on ours."""
        session, after = self._session, facts.offset.stepped_after
        step = ClockStep(session.clock(), facts.index, news.seconds, news.shown_us, after)
        session.counters.clock_steps += 1
        session.steps.append(step)  # Mark, then look: a call that books a hold from here on counts the step itself
        if step.seconds > 0:
            for hold in session.holds.copy().values():
                hold.shift(step)
            session.watchdog.poke()
        if len(session.masters) > 1:
            session.janitor.hand(tasks.Accuse(step))
        text = "the clock of %s and ours moved apart by %+.3f s at once"
        session.platform.log.warning(logger, text, facts.address, step.seconds)

    def _warn(self, text: str) -> None:
        """Have a `RelockWarning` issued: by the log if a background thread calls, else by the next call that ends."""
        session = self._session
        if any(service.is_caller() for service in session.services()):
            session.platform.log.warn(text)
        else:
            session.pending_warnings.append(text)

    def sweep_by(self, moment: float) -> None:
        """Have the watchdog close, by `moment` (our time), connections that were idle for long."""
        self._session.watchdog.look_by(moment)
