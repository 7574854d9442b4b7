"""Common part of elections for threads and for tasks: what is decided without I/O."""

from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import define

from relock._errors import LockLostError, NotOwnedError, RelockError
from relock._events import Loss
from relock._holding import Holding

LOOK_SECONDS = 1.0  # after which a waiting candidate looks whether it must stop; each time it queues anew
RETRY_SECONDS = 1.0  # between two attempts while too few masters answer
GOES_ON = "the election of %r goes on, though too few masters answer: %s"

H = TypeVar("H", bound=Holding)
E = TypeVar("E")

OnLost = Callable[[Loss], object] | None


class TermHandle(Generic[H, E]):
    """Term of a leader, as its function sees it; no I/O.

    Attributes:
        token: the fencing token, larger than that of every earlier leader.
        lost: set once the leadership is lost or given up, also because the function has ended.
    """

    def __init__(self, lock: H, token: int, lost: E) -> None:
        self._lock = lock
        self.token = token
        self.lost = lost

    def remaining(self) -> float:
        """Return the seconds for which this process surely leads, if nothing is renewed; 0.0 if it may lead no more."""
        return self._lock.remaining()


@define
class Attempt:
    """One attempt to lead.

    Attributes:
        token: the fencing token of the term; None before it has begun.
        is_told: True once a loss, or the function itself, has set the term's ``lost``.
        is_over: True once the leader's function has returned: what is raised then is of the lock.
    """

    token: int | None = None
    is_told: bool = False
    is_over: bool = False

    def is_ended_by(self, error: RelockError) -> bool:
        """Return whether an error ends the campaign: one of the function, unless it only says that the term is over."""
        if self.token is None or self.is_over:
            return False
        is_of_term = isinstance(error, LockLostError) and error.token == self.token
        return not (is_of_term or (self.is_told and isinstance(error, (LockLostError, NotOwnedError))))
