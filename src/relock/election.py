"""Election of a leader for threads: one process at a time calls a function."""

import logging
import math
import threading
from collections.abc import Callable

from relock._elections import GOES_ON, LOOK_SECONDS, RETRY_SECONDS, Attempt, OnLost, TermHandle
from relock._errors import AcquireTimeoutError, LockLostError, NotOwnedError, QuorumError
from relock._events import Loss
from relock._owner import serials
from relock.lock import Lock

logger: logging.Logger = logging.getLogger(__name__)


class Term(TermHandle[Lock, threading.Event]):
    """Leadership of this process, until it is lost or given up. Made by `Client.elect`; any thread may use it.

    As with each lock, a process that stands still for longer than its lease may go on as the leader when another one
    leads already. Call `ensure` before an action that must not happen twice, and check the `token` where it takes
    effect.
    """

    def ensure(self, seconds: float = 0.0) -> int:
        """Return the token if this process surely leads for `seconds` more, from 0; usually without I/O.

        Raises:
            LockLostError: the leadership is lost, or too little is left of its lease; out of the function, this error
                gives the leadership up, and the campaign goes on.
            NotOwnedError: the leadership was given up.
        """
        return self._lock.ensure(seconds)

    def resign(self) -> None:
        """Give the leadership up now, before the function has returned; another process may lead from here on."""
        self.lost.set()
        try:
            self._lock.release()
        except (LockLostError, NotOwnedError):
            return  # it has ended already


Lead = Callable[[Term], object]
Stop = threading.Event | None


def campaign(lock_of: Callable[..., Lock], lead: Lead, stop: Stop, on_lost: OnLost) -> None:
    """Call `lead` whenever this process leads, as `Client.elect` says; `lock_of` makes the lock from options."""
    stop = threading.Event() if stop is None else stop
    is_down = False
    while not stop.is_set():
        was_down, is_down = is_down, False
        attempt, lost = Attempt(), threading.Event()
        owner = f"leader-{next(serials)}"  # any thread may use this term, but no other term, and no other campaign
        lock = lock_of(owner=owner, timeout=LOOK_SECONDS, max_hold=math.inf, on_lost=_told(attempt, lost, on_lost))
        try:
            with lock:
                attempt.token = None if stop.is_set() else lock.token
                if attempt.token is not None:
                    try:
                        lead(Term(lock, attempt.token, lost))
                    finally:
                        attempt.is_told = attempt.is_told or lost.is_set()
                        lost.set()  # before the release: it is for the threads that the function has left behind
                attempt.is_over = True
        except (AcquireTimeoutError, QuorumError, LockLostError, NotOwnedError) as error:
            if attempt.is_ended_by(error):
                raise
            if isinstance(error, QuorumError):
                is_down = True
                if not was_down:
                    logger.warning(GOES_ON, lock.name, error)
                stop.wait(RETRY_SECONDS)


def _told(attempt: Attempt, lost: threading.Event, on_lost: OnLost) -> Callable[[Loss], object]:
    """Return a callback that sets `lost`, and then calls what the user gave."""

    def told(loss: Loss) -> None:
        attempt.is_told = True
        lost.set()
        if on_lost is not None:
            on_lost(loss)

    return told
