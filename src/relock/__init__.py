"""relock: a distributed lock on Redis or Valkey that is reentrant, fair, renewed, and says when it is lost.

from relock import Client

client = Client("redis://localhost:6379/0")
with client.lock("orders:42") as held:
    ledger.write(row, fence=held.ensure())

`Client` is for threads, and `AsyncClient` for the tasks of asyncio.
"""

import importlib
import typing

from relock._core.flows.inspect import Holder, LockInfo
from relock._errors import (
    AcquireTimeoutError,
    ClientClosedError,
    ConfigurationError,
    DeadlockError,
    LockLostError,
    NotOwnedError,
    QuorumError,
    RelockError,
    RelockWarning,
    UpgradeError,
)
from relock._events import (
    Deadlocked,
    Event,
    ForceReleased,
    Granted,
    LongWait,
    LoopStalled,
    Loss,
    LossCode,
    Lost,
    MasterBack,
    MasterDown,
    MasterWithoutVote,
    NotGranted,
    Released,
    ReleaseUnconfirmed,
    RenewalFailing,
    Waiting,
)
from relock.client import Client, synchronized
from relock.lock import Lock

if typing.TYPE_CHECKING:
    from relock._core.flows.latch import LatchInfo
    from relock._core.flows.permits import PermitHolder, SemaphoreInfo
    from relock._statistics import MasterState, Statistics
    from relock.aio_client import AsyncClient
    from relock.aio_election import AsyncTerm
    from relock.aio_latch import AsyncLatch
    from relock.aio_lock import AsyncLock
    from relock.aio_multi_lock import AsyncMultiLock
    from relock.aio_rwlock import AsyncReadLock, AsyncRWLock, AsyncWriteLock
    from relock.aio_semaphore import AsyncPermit, AsyncSemaphore
    from relock.election import Term
    from relock.latch import Latch
    from relock.multi_lock import MultiLock
    from relock.rwlock import ReadLock, RWLock, WriteLock
    from relock.semaphore import Permit, Semaphore

__all__ = [
    "AcquireTimeoutError",
    "AsyncClient",
    "AsyncLatch",
    "AsyncLock",
    "AsyncMultiLock",
    "AsyncPermit",
    "AsyncRWLock",
    "AsyncReadLock",
    "AsyncSemaphore",
    "AsyncTerm",
    "AsyncWriteLock",
    "Client",
    "ClientClosedError",
    "ConfigurationError",
    "DeadlockError",
    "Deadlocked",
    "Event",
    "ForceReleased",
    "Granted",
    "Holder",
    "Latch",
    "LatchInfo",
    "Lock",
    "LockInfo",
    "LockLostError",
    "LongWait",
    "LoopStalled",
    "Loss",
    "LossCode",
    "Lost",
    "MasterBack",
    "MasterDown",
    "MasterState",
    "MasterWithoutVote",
    "MultiLock",
    "NotGranted",
    "NotOwnedError",
    "Permit",
    "PermitHolder",
    "QuorumError",
    "RWLock",
    "ReadLock",
    "ReleaseUnconfirmed",
    "Released",
    "RelockError",
    "RelockWarning",
    "RenewalFailing",
    "Semaphore",
    "SemaphoreInfo",
    "Statistics",
    "Term",
    "UpgradeError",
    "Waiting",
    "WriteLock",
    "synchronized",
]

__version__ = "0.1.0"

_LATER = {
    "AsyncClient": "relock.aio_client",
    "AsyncLatch": "relock.aio_latch",
    "AsyncTerm": "relock.aio_election",
    "Term": "relock.election",
    "AsyncLock": "relock.aio_lock",
    "AsyncMultiLock": "relock.aio_multi_lock",
    "AsyncPermit": "relock.aio_semaphore",
    "AsyncRWLock": "relock.aio_rwlock",
    "AsyncReadLock": "relock.aio_rwlock",
    "AsyncSemaphore": "relock.aio_semaphore",
    "AsyncWriteLock": "relock.aio_rwlock",
    "Latch": "relock.latch",
    "LatchInfo": "relock._core.flows.latch",
    "MasterState": "relock._statistics",
    "MultiLock": "relock.multi_lock",
    "Permit": "relock.semaphore",
    "PermitHolder": "relock._core.flows.permits",
    "RWLock": "relock.rwlock",
    "ReadLock": "relock.rwlock",
    "Semaphore": "relock.semaphore",
    "SemaphoreInfo": "relock._core.flows.permits",
    "Statistics": "relock._statistics",
    "WriteLock": "relock.rwlock",
}


if not typing.TYPE_CHECKING:  # a type checker that sees this takes any misspelt name for one of the package's

    def __getattr__(name: str) -> typing.Any:
        """Import what few programs use when it is first used: the others start faster without it."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(importlib.import_module(_LATER[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
