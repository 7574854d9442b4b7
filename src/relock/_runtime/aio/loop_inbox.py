"""What a task waits for, put in from any thread."""

import asyncio
from collections.abc import Callable
from queue import Empty
from typing import Any

TIMER_SECONDS_MAX = 60.0  # a loop's clock stops while the machine is suspended: whoever wakes looks at ours


class LoopInbox:
    """A queue of which one task of `loop` takes, and any thread puts into.

    Each step is one operation of a list, which is a tenth of a deque while it is empty: as many as tasks wait are, and
    few have more than one item at a time. The task is woken through the loop, so nobody waits for it. A signal handler
    that runs in the loop's own thread may find the loop asleep, and so wakes it like another thread.

    Args:
        orphaned: called when something is put in after the loop was closed: its tasks are gone.
    """

    __slots__ = ("_items", "_loop", "_orphaned", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, orphaned: Callable[[], object]) -> None:
        self._loop = loop
        self._orphaned = orphaned
        self._items: list[Any] = []
        self._woken: asyncio.Future[None] | None = None  # while its task sleeps

    def put(self, item: Any, /) -> None:
        """Adds one more."""
        self._items.append(item)
        try:
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:  # it is closed
            self._orphaned()

    def get(self, *, timeout: float) -> Any:
        """See `Inbox`: no thread waits here."""
        raise NotImplementedError("a task awaits `take`")

    def get_nowait(self) -> Any:
        """The next one; ``queue.Empty`` where there is none."""
        try:
            return self._items.pop(0)
        except IndexError:
            raise Empty from None

    def empty(self) -> bool:
        """Whether there is none."""
        return not self._items

    async def take(self, seconds: float) -> Any:
        """The next one, as soon as there is one, within `seconds` or so: a timer may fire a little early.

        Raises:
            queue.Empty: none has come.
        """
        if not self._items and seconds > 0:
            woken = self._woken = self._loop.create_future()
            timer = self._loop.call_later(min(seconds, TIMER_SECONDS_MAX), self._ring)
            try:
                await woken
            finally:
                timer.cancel()
                self._woken = None
        return self.get_nowait()

    def _ring(self) -> None:
        woken = self._woken
        if woken is not None and not woken.done():
            woken.set_result(None)
