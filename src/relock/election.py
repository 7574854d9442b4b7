"""Election of a leader for threads: one process at a time calls a function."""

import logging
import math
import threading
from collections.abc import Callable

from relock._errors import AcquireTimeoutError, LockLostError, NotOwnedError, QuorumError
from relock._events import Loss
from relock._owner import serials
from relock.lock import Lock

logger: logging.Logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # after which a waiting candidate looks whether it must stop; each time it queues anew
RETRY_SECONDS = 1.0  # between two attempts while too few masters answer
GOES_ON = "the election of %r goes on, though too few masters answer: %s"


class Term:
    """Leadership of this process, until it is lost or given up. Made by `Client.elect`; any thread may use it.

    As with each lock, a process that stands still for longer than its lease may go on as the leader when another one
    leads already. Call `ensure` before an action that must not happen twice, and check the `token` where it takes
    effect.

    Attributes:
        token: the fencing token, larger than that of every earlier leader.
        lost: set once the leadership is lost or given up.
    """

    def __init__(self, lock: Lock, token: int, lost: threading.Event) -> None:
        self._lock = lock
        self.token = token
        self.lost = lost

    def remaining(self) -> float:
        """Return the seconds for which this process surely leads, if nothing is renewed; 0.0 if it may lead no more."""
        return self._lock.remaining()

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
OnLost = Callable[[Loss], object] | None
Stop = threading.Event | None


def campaign(lock_of: Callable[..., Lock], lead: Lead, stop: Stop, on_lost: OnLost) -> None:
    """Call `lead` whenever this process leads, as `Client.elect` says; `lock_of` makes the lock from options."""
    stop = threading.Event() if stop is None else stop
    owner = f"leader-{next(serials)}"  # any thread may use the term, but no other campaign has the hold
    is_warned = False
    while not stop.is_set():
        lost, token = threading.Event(), None
        lock = lock_of(owner=owner, timeout=LOOK_SECONDS, max_hold=math.inf, on_lost=_told(lost, on_lost))
        is_over = False  # what is raised then is of the lock, not of `lead`
        try:
            with lock:
                token, is_warned = lock.token, False
                if token is not None:
                    lead(Term(lock, token, lost))
                is_over = True
        except AcquireTimeoutError:
            if token is not None:
                raise
        except QuorumError as error:
            if token is not None and not is_over:
                raise
            if not is_warned:
                logger.warning(GOES_ON, lock.name, error)
            is_warned = True
            stop.wait(RETRY_SECONDS)
        except (LockLostError, NotOwnedError) as error:  # NotOwnedError: it has resigned
            if not is_over and not is_end_of_term(error, token, lost.is_set()):
                raise


def is_end_of_term(error: LockLostError | NotOwnedError, token: int | None, is_told: bool) -> bool:
    """Return whether an error of `lead` only says that the term with this `token` has ended: the campaign goes on."""
    return is_told or (isinstance(error, LockLostError) and error.token == token)


def _told(lost: threading.Event, on_lost: OnLost) -> Callable[[Loss], object]:
    """Return a callback that sets `lost`, and then calls what the user gave."""

    def told(loss: Loss) -> None:
        lost.set()
        if on_lost is not None:
            on_lost(loss)

    return told
