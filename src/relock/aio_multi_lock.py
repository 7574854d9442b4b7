"""Several locks as one, for tasks: the class that users call, with the docstrings that they read."""

import math
from collections.abc import Coroutine, Mapping
from typing import Any, Never, Protocol

from relock._core.flows import inspect as inspect_flows
from relock._core.flows.inspect import LockInfo
from relock._core.hold import Hold
from relock._core.lock_spec import MultiSpec
from relock._core.multi import acquire_all, release_all
from relock._core.together import together
from relock._holding_all import HoldingAll
from relock._options import check_seconds
from relock._runtime.aio.loss_hook import LossHooks
from relock.aio_lock import AsyncDoor, AsyncLockClient, AwaitedCall, awaited
from relock.client import Client


class AsyncMultiLockClient(AsyncLockClient, Protocol):
    """Part of a client that its multi-locks use."""

    _client: Client


class AsyncMultiLock(AsyncDoor, HoldingAll):
    """Several distributed locks, taken and given back by tasks as one: all or none. Made by `AsyncClient.lock_all`.

    `MultiLock` says in which order, and what is promised. The holds belong to the task that *calls* `acquire`, or to
    ``owner=``, as those of an `AsyncLock`.
    """

    __slots__ = ("_loss_hooks",)

    _client: AsyncMultiLockClient
    _acquiring = staticmethod(acquire_all)
    _releasing = staticmethod(release_all)

    def __init__(self, client: AsyncMultiLockClient, spec: MultiSpec, *, cancel_on_lost: bool) -> None:
        super().__init__(client, spec)
        self._loss_hooks = LossHooks() if cancel_on_lost else None

    def ensure(self, seconds: float = 0.0) -> Coroutine[Any, Any, Mapping[str, int]]:
        """Check, usually without I/O, that all holds are valid for `seconds` more, as `AsyncLock.ensure` does.

        Args:
            seconds: the time that must be left at least, 0 to infinity; default 0.0.

        Returns:
            The fencing token of each hold, by the lock's name.

        Raises:
            LockLostError: a hold was lost, or has less left than `seconds`; in the second case the holds go on.
            NotOwnedError: the caller lacks one of the locks.
            TypeError, ConfigurationError: `seconds` is no number of seconds from 0.
            RuntimeError: it is called outside a task, without ``owner=``.
        """
        check_seconds("seconds", seconds, 0.0, math.inf, "0 or more")
        return AwaitedCall(self._ensure(self._held(), seconds))

    async def _ensure(self, holds: list[Hold], seconds: float) -> Mapping[str, int]:
        tokens: Mapping[str, int] = await self._client._foreground().run(self._ensuring(holds, seconds))
        return tokens

    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, float]:
        """Renew all holds now, on a quorum, in one round.

        Args:
            ttl: as for `AsyncLock.extend`.

        Returns:
            `remaining()` after the renewal.

        Raises:
            NotOwnedError: the caller lacks one of the locks.
            LockLostError: a hold was lost.
            QuorumError: too few masters confirmed it for one of the locks; the holds are still valid.
            TypeError, ConfigurationError: a ttl that can't be; with several masters, one above ``restart_guard``.
            RuntimeError: it is called outside a task, without ``owner=``.
        """
        self._check_ttl(ttl)
        return AwaitedCall(self._extend(self._held(), ttl))

    async def _extend(self, holds: list[Hold], ttl: float | None) -> float:
        await self._client._foreground().run(self._extending(holds, ttl))
        now = self._client._session.clock()
        return min([hold.remaining(now) for hold in holds])

    @awaited
    async def locked(self) -> bool:
        """Ask the masters whether one of the locks is held. Return True unless a quorum says that all are free.

        Raises:
            QuorumError: too few masters answered.
        """
        return any(info.held for info in (await self.info()).values())

    async def info(self) -> Mapping[str, LockInfo]:
        """Return the holder and the waiters of each lock, by its name, as `AsyncClient.info` does.

        Raises:
            QuorumError: too few masters answered.
        """
        clock, client = self._client._session.clock, self._client._client
        flow = together([inspect_flows.look(member, clock) for member in self._spec.members])
        answers = await self._client._foreground().run(flow)
        return {name: client._agree(name, one) for name, one in zip(self.names, answers, strict=True)}

    @awaited
    async def force_release(self) -> bool:
        """End any hold of each lock, as `AsyncLock.force_release` does.

        Returns:
            True if one of the locks was held.

        Raises:
            QuorumError: too few masters answered; holds of some locks may have ended.
        """
        ended = [await self._client.force_release(name) for name in self.names]
        return any(ended)

    def __reduce__(self) -> Never:
        raise TypeError("an AsyncMultiLock can't be pickled: make one of a client in each process")
