"""Watchdog: one thread that renews all holds of a client, by the plans of `relock._core.renewal`."""

import logging
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from relock._core.flows.extend import extend, is_confirmed, needs_healing
from relock._core.hold import FOREVER, RENEW_PART, Hold
from relock._core.renewal import Pace, pace_of, plan_renewals
from relock._errors import ConfigurationError
from relock._events import LoopStalled, RenewalFailing
from relock._runtime.background.session_view import ForegroundView, SessionView
from relock._runtime.service import Service

logger = logging.getLogger("relock.background")

NOW = 0.0  # a moment that is over on every clock


class Watchdog(Service):
    """Thread that renews holds and notices lost ones; safety depends on `Hold.deadline`, and not on this thread."""

    name = "relock-watchdog"

    def __init__(self, session: SessionView) -> None:
        super().__init__(session.platform)
        self._session = session
        self._pokes: SimpleQueue[float] = session.platform.queue()  # moments by which the thread must plan again
        self._look_at = FOREVER  # when the thread will plan again
        self._due: deque[Hold] = deque()  # holds that the last plan found due, and are not renewed yet
        self._pace = Pace(0, 0.0, 0.0)
        self._round_seconds = 0.0  # how long the last renewal took

    def watch(self, hold: Hold) -> None:
        """Have the thread look at `hold` in time; wake the thread only if it would sleep too long.

        The thread then plans at the moment for which it was woken, even if that hold has ended by then. Otherwise, with
        many short holds, each of them would find the thread asleep without a timer, and would have to wake it.
        """
        due = hold.renew_at if hold.renew_at < hold.deadline else hold.deadline
        if due < self._look_at or not self._running.locked():
            self._wake(due)

    def poke(self) -> None:
        """Make the thread plan now; start it if it does not run."""
        self._wake(NOW)

    def look_by(self, moment: float) -> None:
        """Have the thread plan by `moment`; do not start it for this."""
        if moment < self._look_at and self.running:
            self._pokes.put(moment)

    def _wake(self, look_at: float) -> None:
        self._pokes.put(look_at)
        self.ensure()

    def step(self) -> None:
        """Plan the renewals when it is time, renew some of those that are due, and sleep until there is more."""
        now = self._session.clock()
        if now >= self._look_at or not self._due:
            self._plan_renewals()
        if self._due:
            self._renew_some()
        if self._after_steps is not None:
            self._after_steps()  # before the sleep, which may have no end once no hold is left
        self._sleep(now + self._pace.seconds if self._due else self._look_at)

    def _plan_renewals(self) -> None:
        """End lost holds, plan renewals and the next look, and close connections that were idle for long."""
        session = self._session
        self._look_at = FOREVER  # Mark, then look: a hold that is granted from here on wakes the thread
        now, holds = session.clock(), session.holds.all()
        for foreground in session.foregrounds.copy():
            self._look_at_loop(foreground, [hold for hold in holds if hold.belongs_to(foreground.client)], now)
        plan = plan_renewals(holds, now)
        for hold, code in plan.lost:
            session.lose(hold, code)
        self._look_at = min(plan.look_at, session.sweep(now))
        self._due = deque(plan.renew)
        if self._due:
            self._pace = pace_of(plan.renew, now, self._round_seconds)
            self._look_at = min(self._look_at, self._pace.until)

    def _look_at_loop(self, foreground: ForegroundView, holds: Sequence[Hold], now: float) -> None:
        """Report a loop with `holds` if it stands still, and stop renewing the holds if that lasts too long."""
        if not foreground.is_open or not holds:
            return
        pulse = foreground.pulse
        if pulse.must_be_told(now, min(hold.ttl for hold in holds) / RENEW_PART):
            self._session.emit(LoopStalled(None, pulse.silent_for(now)))
        is_stalled = pulse.silent_for(now) > pulse.limit
        for hold in holds:
            hold.is_stalled = is_stalled
        if pulse.ask(now):
            foreground.ask_for_sign_of_life()

    def _sleep(self, until: float) -> None:
        """Sleep until `until`, or until the next plan is due, which a poke may hasten."""
        while True:
            wake_at = min(until, self._look_at)
            left = wake_at - self._session.clock()
            try:
                look_at = self._pokes.get(timeout=None if wake_at == FOREVER else max(0.0, left))
            except Empty:
                return
            self._look_at = min(self._look_at, look_at)

    def _renew_some(self) -> None:
        """Renew the next few holds, except those that were released or renewed in the meantime."""
        session, began = self._session, self._session.clock()
        some = [self._due.popleft() for _ in range(min(self._pace.holds, len(self._due)))]
        holds = tuple(hold for hold in some if session.holds.has(hold) and hold.wants_renewal(began))
        if holds:
            self._renew(holds)
            self._round_seconds = session.clock() - began
            self._look_at = min(self._look_at, *[hold.due_at for hold in holds])

    def _renew(self, holds: tuple[Hold, ...]) -> None:
        session = self._session
        try:
            answers = session.run_on_own(extend(holds, session.clock, session.node_timeout))
        except ConfigurationError:  # a master has become a replica, say; try again until the deadline
            session.platform.log.warning(logger, "a renewal failed", exc_info=True)
            now = session.clock()
            for hold in holds:
                hold.retry_renewal(now)
                if session.holds.has(hold):
                    session.emit(RenewalFailing(seconds_left=hold.remaining(now), **hold.told))
            return
        if len(session.masters) > 1:
            session.heal(tuple(h for h, answer in zip(holds, answers, strict=True) if needs_healing(h, answer)))
        now = session.clock()
        for hold, answer in zip(holds, answers, strict=True):
            code = hold.reason_for_loss(now)
            if code is not None:
                session.lose(hold, code)
            elif is_confirmed(hold, answer):
                session.counters.renewals += 1
            elif session.holds.has(hold):
                session.emit(RenewalFailing(seconds_left=hold.remaining(now), **hold.told))

    def wake(self) -> None:
        """Have the thread plan now."""
        self._pokes.put(NOW)

    def stop(self) -> None:
        """End the thread; no hold is renewed any more."""
        super().stop()
        self._pokes.put(NOW)
