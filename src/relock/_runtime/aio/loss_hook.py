"""Hooks that cancel the body of an ``async with`` when its hold is lost."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from relock._core.hold import Hold
from relock._owner import running_loop


class LossHook:
    """Hook that cancels the body of an ``async with``, in the task that entered it, when its hold is lost.

    The number of requests to cancel the task tells this cancellation from any other, as in `asyncio.timeout`.

    Attributes:
        task: the task that runs the body.
    """

    task: "asyncio.Task[Any]"

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a body that is cancelled when its hold is lost must run in a task")
        self.task = task
        self._loop = task.get_loop()
        self._cancelling = task.cancelling()
        self._is_cancelled = False
        self._is_over = False

    def lost(self, _loss: object) -> None:
        """Have the loop cancel the body, because its hold is lost; any thread may call this."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, and the body with it
            return

    def _cancel(self) -> None:
        if not (self._is_over or self._is_cancelled):  # it may be told twice, see `LossHooks.add`
            self._is_cancelled = True
            self.task.cancel()

    async def end(self, error: BaseException | None) -> bool:
        """Leave the body, by `error` or without one; return whether it was cancelled because its hold was lost.

        Raises:
            asyncio.CancelledError: the task was cancelled for another reason at the same moment.
        """
        self._is_over = True
        if not self._is_cancelled:
            return False
        is_only = self.task.uncancel() <= self._cancelling
        if error is None:
            await self._take_pending(is_only=is_only)
            return True
        return is_only and isinstance(error, asyncio.CancelledError)

    async def _take_pending(self, *, is_only: bool) -> None:
        """Take a cancellation that came as the body ended, so that it does not strike the code after the body."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not is_only:
                raise


class LossHooks(dict["asyncio.Task[Any]", list[LossHook]]):
    """Hooks of the tasks that are inside the blocks of one lock: for each task, that of the innermost block last."""

    def add(self, holds: Iterable[Hold]) -> None:
        """Have the block that the running task has just entered cancelled when one of `holds` is lost."""
        hook = LossHook()
        self.setdefault(hook.task, []).append(hook)
        for hold in holds:
            hold.loss_hooks.append(hook.lost)
            if hold.loss is not None:  # Mark, then look: the hold may have been lost before it had the hook
                hook.lost(hold.loss)

    def remove(self, holds: Iterable[Hold]) -> LossHook | None:
        """Return the hook of the innermost block of the running task, which `holds` tell no more; None without one."""
        loop = running_loop()
        task: Any = None if loop is None else asyncio.current_task(loop)  # a body may be closed after its loop was
        hooks = self.get(task)
        if not hooks:
            return None
        hook = hooks.pop()
        if not hooks:
            del self[task]
        for hold in holds:
            with suppress(ValueError):
                hold.loss_hooks.remove(hook.lost)
        return hook
