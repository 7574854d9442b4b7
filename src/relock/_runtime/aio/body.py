"""The body of an ``async with`` that is cancelled when its hold is lost."""

import asyncio
from typing import Any


class Body:
    """One body, in the task that enters it.

    The cancellation is told from any other by how often the task has been asked to cancel, as `asyncio.timeout` does.

    Attributes:
        task: that task.
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
        """The hold is lost; called by any thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, and the body with it
            return

    def _cancel(self) -> None:
        if not (self._is_over or self._is_cancelled):  # it may be told twice, see `AsyncLock._begin_body`
            self._is_cancelled = True
            self.task.cancel()

    async def end(self, error: BaseException | None) -> bool:
        """The body is left, by `error` or without one. Returns whether it was cancelled because its hold was lost.

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
        """The body ended before it noticed: the cancellation must strike here, and not in what comes after it."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not is_only:
                raise


Bodies = dict["asyncio.Task[Any]", list[Body]]
