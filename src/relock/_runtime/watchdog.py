"""The watchdog's thread: one for all holds of a client. What it does is decided in `relock._core.renewal`."""

import logging
from queue import Empty, SimpleQueue

from relock._core.flows.extend import extend, needs_healing
from relock._core.hold import Hold
from relock._core.quorum import is_status
from relock._core.renewal import FOREVER, due_at, take_stock
from relock._errors import ConfigurationError
from relock._events import RenewalFailing
from relock._runtime.host import Host
from relock._runtime.service import Service

logger = logging.getLogger(__name__)

BATCH = 100  # holds that one write renews: bounds what one reply buffer takes


class Watchdog(Service):
    """Renews holds and notices those that are lost. Safety does not depend on it: see `Hold.deadline`."""

    name = "relock-watchdog"

    def __init__(self, session: Host) -> None:
        super().__init__(session.platform)
        self._session = session
        self._pokes: SimpleQueue[None] = session.platform.queue()
        self._look_at = FOREVER
        self._watched_until = FOREVER

    def watch(self, hold: Hold) -> None:
        """Sees to it that `hold` is looked at in time; wakes the thread only if it would sleep too long.

        The thread keeps to the moment that it was woken for, also when that hold is gone by then. Otherwise each of
        many short holds would find it asleep for ever, and pay for waking it.
        """
        due = due_at(hold)
        if due < self._look_at or not self.running:
            self._watched_until = due
            self.poke()

    def poke(self) -> None:
        """Makes it take stock now."""
        self._pokes.put(None)
        self.ensure()

    def step(self) -> None:
        """Takes stock, acts, and sleeps until the moment that the stock names."""
        session = self._session
        self._look_at = FOREVER  # a hold that is granted from here on pokes, whatever this stock finds
        stock = take_stock(session.all_holds(), session.clock())
        for hold, reason in stock.lost:
            session.lose(hold, reason)
        for i in range(0, len(stock.renew), BATCH):
            self._renew(stock.renew[i : i + BATCH])
        if stock.lost or stock.renew:
            return  # what these now are is for the next stock to say
        if self._watched_until <= session.clock():
            self._watched_until = FOREVER
        self._sleep(min(stock.look_at, self._watched_until))

    def _sleep(self, look_at: float) -> None:
        self._look_at = look_at
        left = look_at - self._session.clock()
        try:
            self._pokes.get(timeout=None if look_at == FOREVER else max(0.0, left))
        except Empty:
            return
        while not self._pokes.empty():
            self._pokes.get_nowait()

    def _renew(self, holds: tuple[Hold, ...]) -> None:
        session = self._session
        try:
            answers = session.run(extend(holds, session.clock, session.node_timeout))
        except ConfigurationError:  # the master has become a replica, say: no reason to give up before the deadline
            logger.warning("a renewal failed", exc_info=True)
            for hold in holds:
                hold.retry_renewal(session.clock())
            return
        session.heal(tuple(h for h, answer in zip(holds, answers, strict=True) if needs_healing(h, answer)))
        now = session.clock()
        for hold, answer in zip(holds, answers, strict=True):
            reason = hold.reason_for_loss(now)
            if reason is not None:
                session.lose(hold, reason)
            elif sum(is_status(one, b"extended") for one in answer) >= hold.quorum:
                session.renewed()
            elif session.is_current(hold):
                session.emit(RenewalFailing(hold.keys.name, hold.remaining(now)))

    def stop(self) -> None:
        """Ends the thread; no hold is renewed any more."""
        super().stop()
        self._pokes.put(None)
