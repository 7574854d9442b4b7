"""Election of a leader for tasks: one process at a time awaits a coroutine function."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from relock._elections import GOES_ON, LOOK_SECONDS, RETRY_SECONDS, Attempt, OnLost, TermHandle
from relock._errors import AcquireTimeoutError, LockLostError, NotOwnedError, QuorumError
from relock._events import Loss
from relock._owner import serials
from relock._runtime.aio.foreground import current_task
from relock.aio_lock import AsyncLock

logger: logging.Logger = logging.getLogger(__name__)


class AsyncTerm(TermHandle[AsyncLock, asyncio.Event]):
    """Leadership of this process, until it is lost or given up. Made by `AsyncClient.elect`; any task may use it.

    What `Term` says of a process that stands still holds here, too.
    """

    async def ensure(self, seconds: float = 0.0) -> int:
        """Return the token if this process surely leads for `seconds` more, from 0; usually without I/O.

        Raises:
            LockLostError: the leadership is lost, or too little is left of its lease; out of the function, this error
                gives the leadership up, and the campaign goes on.
            NotOwnedError: the leadership was given up.
        """
        return await self._lock.ensure(seconds)

    async def resign(self) -> None:
        """Give the leadership up now, before the function has returned; another process may lead from here on."""
        self.lost.set()
        try:
            await self._lock.release()
        except (LockLostError, NotOwnedError):
            return  # it has ended already


Lead = Callable[[AsyncTerm], Awaitable[object]]
Stop = asyncio.Event | None


async def campaign(lock_of: Callable[..., AsyncLock], lead: Lead, stop: Stop, on_lost: OnLost) -> None:
    """Await `lead` whenever this process leads, as `AsyncClient.elect` says; `lock_of` makes the lock from options."""
    stop = asyncio.Event() if stop is None else stop
    is_down = False
    while not stop.is_set():
        was_down, is_down = is_down, False
        attempt, lost = Attempt(), asyncio.Event()
        owner = f"leader-{next(serials)}"  # any task may use this term, but no other term, and no other campaign
        told = _told(attempt, lost, on_lost)
        lock = lock_of(owner=owner, timeout=LOOK_SECONDS, max_hold=math.inf, cancel_on_lost=True, on_lost=told)
        _end_with_task(lock)
        try:
            async with lock:
                attempt.token = None if stop.is_set() else lock.token
                if attempt.token is not None:
                    try:
                        await lead(AsyncTerm(lock, attempt.token, lost))
                    finally:
                        attempt.is_told = attempt.is_told or lost.is_set()
                        lost.set()  # before the release: it is for the tasks that the function has left behind
                attempt.is_over = True
        except (AcquireTimeoutError, QuorumError, LockLostError, NotOwnedError) as error:
            if attempt.is_ended_by(error):
                raise
            if isinstance(error, QuorumError):
                is_down = True
                if not was_down:
                    logger.warning(GOES_ON, lock.name, error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), RETRY_SECONDS)


def _end_with_task(lock: AsyncLock) -> None:
    """Have the owner that the lock's ``owner=`` names live, and stand still, with the running task; it stays shared."""
    task = current_task()
    if task is not None:
        lock._named_owner = lock._who()._replace(liveness=task.liveness)


def _told(attempt: Attempt, lost: asyncio.Event, on_lost: OnLost) -> Callable[[Loss], Awaitable[None]]:
    """Return a callback that sets `lost`, and then calls what the user gave, a function or a coroutine function."""

    async def told(loss: Loss) -> None:
        attempt.is_told = True
        with suppress(RuntimeError):  # the loop is closed, and so are the tasks that waited for this
            lost.set()
        result = None if on_lost is None else on_lost(loss)
        if isinstance(result, Awaitable):
            await result

    return told
