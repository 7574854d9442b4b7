"""Places of one client's waiters in the queues: heartbeats keep the places of waiters that can act, and no others."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._core.flows.heartbeat import heartbeat, judge_heartbeat
from relock._core.patience import EXPIRY_SECONDS
from relock._core.pulse import Pulse
from relock._core.tasks import PassOn
from relock._core.turns import Turns
from relock._keys import LATCH, LockKeys
from relock._owner import client_name
from relock._runtime.background.long_waits import LongWaits
from relock._runtime.background.session_view import SessionView

logger = logging.getLogger("relock.background")

HEARTBEAT_SECONDS_MIN = 0.25  # between two heartbeats, however short the holders' leases are


class Kept(NamedTuple):
    """Result of a heartbeat.

    Attributes:
        next_at: when the next heartbeat is due, at the latest.
        gone: waiters that have left while the heartbeat was under way, which may have restored their places.
    """

    next_at: float
    gone: list[PassOn]


class Places:
    """Places of a session's waiters; the janitor's thread alone calls the methods."""

    def __init__(self, session: SessionView) -> None:
        self._session = session
        self._turns = Turns()
        self._long_waits = LongWaits(session)

    def woke(self, due: float, now: float) -> None:
        """Note that the janitor, which was to wake at `due`, woke at `now`; if late, the process was stopped."""
        self._turns.woke(due, now)

    def give_up(self, now: float) -> list[PassOn]:
        """Find the waiters that cannot act; return the tasks that give up their places."""
        waiters = self._session.hubs.waiters()
        stuck: list[tuple[int, PassOn]] = []
        for waiter in waiters:
            if waiter.keys.kind == LATCH or not self._turns.has_missed(waiter, now):
                waiter.has_left = False  # a waiter at a latch has no place that holds others up
            elif not waiter.has_left:
                waiter.has_left = True
                if waiter.pulse is not None:
                    waiter.pulse.has_left = True
                stuck.append((max(waiter.tickets.copy(), default=0), PassOn(waiter.keys, waiter.owner)))
        self._ask_loops({waiter.pulse for waiter in waiters}, now)
        stuck.sort(key=lambda place: place[0], reverse=True)  # last place first: to give up the first wakes the next
        return [task for _, task in stuck]

    def were_given_up(self, owners: Iterable[bytes]) -> bool:
        """Log that the waiters among `owners` have lost their places; return whether one of them can act again."""
        session = self._session
        left = [waiter for waiter in map(session.hubs.waiter, owners) if waiter is not None]
        if not left:
            return False
        now = session.clock()
        text = "a waiter for %r did not react to its turn, as its thread or loop stands still: it has lost its place"
        text += " until it goes on, and so have %d others"
        session.platform.log.warning(logger, text, left[0].keys.name, len(left) - 1)
        return not all(self._turns.has_missed(one, now) for one in left)

    def keep(self, now: float) -> Kept:
        """Send the heartbeat for all waiters that are queued and can act; then tell which callers wait for long."""
        kept = self._keep(now)
        self._long_waits.tell()
        return kept

    def _keep(self, now: float) -> Kept:
        """Send the heartbeat: all scripts in one batch."""
        session = self._session
        waiters = [waiter for waiter in session.hubs.waiters() if not waiter.has_left]
        queues: defaultdict[tuple[bytes, LockKeys], list[tuple[int, bytes]]] = defaultdict(list)
        for waiter in waiters:
            tickets = waiter.tickets.copy()
            if tickets:
                queues[client_name(waiter.owner), waiter.keys].append((tickets[0], waiter.owner))
        next_at = self._turns.next_look(waiters, now)
        if not queues:
            return Kept(next_at, [])
        votes = [master.facts.vote_at <= session.clock() for master in session.masters]
        until = session.clock() + session.node_timeout
        answers = session.ask_shielded(heartbeat(queues.items(), until))
        self._turns.woke(until, session.clock())
        heard = judge_heartbeat(answers, votes)
        for owner in heard.turns:
            session.hubs.look_again(owner)
        if not heard.well:
            session.hubs.wake_all()  # the waiters' own looks then show what is wrong, and their patience counts
        waiter_of = session.hubs.waiter
        gone = [PassOn(k, owner) for (_, k), some in queues.items() for _, owner in some if waiter_of(owner) is None]
        return Kept(min(next_at, session.clock() + beat_pause(heard.lease_left)), gone)

    def _ask_loops(self, pulses: set[Pulse | None], now: float) -> None:
        """Ask the loops whose tasks wait for a sign of life; stop the hubs of loops that were closed."""
        for foreground in self._session.foregrounds.copy():
            if foreground.is_open and foreground.pulse in pulses and foreground.pulse.ask(now):
                foreground.ask_for_sign_of_life()
        self._session.hubs.stop_spare()


def beat_pause(lease_left: float) -> float:
    """Return the seconds until the next heartbeat, which comes when the holder's lease ends, if that is soon.

    No master publishes that a lease has ended. The first waiter has a timer for that moment, but its process may have
    ended.
    """
    return min(max(lease_left + EXPIRY_SECONDS, HEARTBEAT_SECONDS_MIN), HEARTBEAT_SECONDS)
