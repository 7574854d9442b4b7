"""relock: a distributed lock on Redis or Valkey that is reentrant, fair, renewed, and says when it is lost.

from relock import Client

client = Client("redis://localhost:6379/0")
with client.lock("orders:42") as held:
    ledger.write(row, fence=held.ensure())

`Client` is for threads, and `AsyncClient` for the tasks of asyncio.
"""

from relock._core.flows.inspect import LockInfo
from relock._errors import (
    AcquireTimeoutError,
    ClientClosedError,
    ConfigurationError,
    LockLostError,
    NotOwnedError,
    QuorumError,
    RelockError,
    RelockWarning,
)
from relock._events import (
    Event,
    Granted,
    LoopStalled,
    Loss,
    Lost,
    MasterBack,
    MasterDown,
    MasterWithoutVote,
    NotGranted,
    Released,
    ReleaseUnconfirmed,
    RenewalFailing,
)
from relock.aio_client import AsyncClient
from relock.aio_lock import AsyncLock
from relock.client import Client, MasterState, Statistics, synchronized
from relock.lock import Lock

__all__ = [
    "AcquireTimeoutError",
    "AsyncClient",
    "AsyncLock",
    "Client",
    "ClientClosedError",
    "ConfigurationError",
    "Event",
    "Granted",
    "Lock",
    "LockInfo",
    "LockLostError",
    "LoopStalled",
    "Loss",
    "Lost",
    "MasterBack",
    "MasterDown",
    "MasterState",
    "MasterWithoutVote",
    "NotGranted",
    "NotOwnedError",
    "QuorumError",
    "ReleaseUnconfirmed",
    "Released",
    "RelockError",
    "RelockWarning",
    "RenewalFailing",
    "Statistics",
    "synchronized",
]

__version__ = "0.1.0"
