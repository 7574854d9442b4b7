"""Tree of the errors that relock raises.

    RelockError
    ├── NotOwnedError        (RuntimeError)     The caller holds nothing: a mistake in the calling code.
    ├── LockLostError        (RuntimeError)     The caller's hold ended before its release.
    ├── UpgradeError         (RuntimeError)     The caller has the lock as a reader, and asks for it as a writer.
    ├── DeadlockError        (RuntimeError)     The caller's wait would never end: it is part of a deadlock.
    ├── AcquireTimeoutError  (TimeoutError)     Another owner has the lock, or comes first.
    ├── QuorumError          (ConnectionError)  Too few masters answered.
    ├── ConfigurationError   (ValueError)       An option, or a set of masters, can't be right.
    └── ClientClosedError    (RuntimeError)     The client was closed.

Each error has what a handler needs as attributes, says in its message what to do, and can be pickled.
"""

from collections.abc import Mapping
from typing import Any


class RelockError(Exception):
    """Root of all errors that relock raises on its own account.

    Attributes:
        lock: the name of the lock, or None if the error is not about one lock.
    """

    lock: str | None = None

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)


class NotOwnedError(RelockError, RuntimeError):
    """The caller uses a hold that it does not have."""


class LockLostError(RelockError, RuntimeError):
    """The caller's hold ended before the caller released it; another owner may have the lock.

    Attributes:
        token: the fencing token of the hold that was lost.
        reason: why it was lost, in words.
    """

    token: int | None = None
    reason: str = ""


class UpgradeError(RelockError, RuntimeError):
    """The caller has the lock as a reader, and asks for it as a writer.

    Nothing was sent. Two readers that both waited for all other readers to end would wait for each other.
    """


class DeadlockError(RelockError, RuntimeError):
    """The caller waited for a lock in a ring of callers, each of which has the lock that the one before it waits for.

    The wait has ended, so the ring is broken once the caller releases what it holds. The others get no error.

    Attributes:
        cycle: for each wait of the ring the name of the lock, the waiting owner, and the owner that has the lock.
    """

    cycle: tuple[tuple[str, str, str], ...] = ()


class AcquireTimeoutError(RelockError, TimeoutError):
    """A ``with`` statement could not get the lock in time; its body did not run.

    Attributes:
        timeout: for how many seconds the statement waited at most.
        holder: ``<client>:<uuid>`` of the holder at the last look; None if the lock was free, and the turn of a waiter,
            or if another library had it.
        ahead: how many waiters came first at the last look.
        note: the holder's note, if the ``with`` statement's lock has a note, too, and has waited; else None.
    """

    timeout: float = 0.0
    holder: str | None = None
    ahead: int = 0
    note: str | None = None


class QuorumError(RelockError, ConnectionError):
    """Fewer than a quorum of the masters answered.

    Attributes:
        failures: why each master failed that did, by the master's address.
        needed: how many answers a quorum takes.
        answered: how many answers there were.
    """

    failures: Mapping[str, str] = {}
    needed: int = 1
    answered: int = 0


class ConfigurationError(RelockError, ValueError):
    """An option has a value that can't work, or the masters are not what a lock needs.

    Attributes:
        option: the option to change, or None if the error is about no option, but a server's configuration, say.
    """

    option: str | None = None


class ClientClosedError(RelockError, RuntimeError):
    """The client was closed."""


class RelockWarning(UserWarning):
    """Warning of what works, but promises less than it seems to; given once per client, or per decorated function."""
