"""Inboxes of the tasks of one loop, into which any thread may put items."""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from queue import Empty
from threading import get_ident
from typing import Any

from relock._core.effects import Clock
from relock._core.pulse import Pulse
from relock._runtime.aio.alarms import Alarms


class LoopInbox:
    """Queue from which one task of a loop takes items, and into which any thread puts them.

    Each step is one operation of a list. An empty list takes a tenth of a deque's memory; each task that waits has one,
    and most are empty. The loop wakes the task, so no thread waits for that. A signal handler on the loop's own thread
    may find the loop asleep, and so wakes the loop like another thread.
    """

    __slots__ = ("_inboxes", "_items", "_woken")

    def __init__(self, inboxes: "Inboxes") -> None:
        self._inboxes = inboxes
        self._items: list[Any] = []
        self._woken: asyncio.Future[None] | None = None  # the future that the task awaits while it sleeps

    def put(self, item: Any, /) -> None:
        """Add an item, and wake the task, if it sleeps."""
        self._items.append(item)
        inboxes = self._inboxes
        try:
            if inboxes.thread == get_ident():  # the loop has just read the message, and so is awake
                self.ring()
            else:
                inboxes.loop.call_soon_threadsafe(self.ring)
        except RuntimeError:  # the loop is closed, and the task will never run
            return

    def get(self, *, timeout: float) -> Any:
        """Raise `NotImplementedError`: no thread waits here, and a task awaits `take`."""
        raise NotImplementedError("a task awaits `take`")

    def get_nowait(self) -> Any:
        """Return the next item; raise ``queue.Empty`` if there is none."""
        try:
            return self._items.pop(0)
        except IndexError:
            raise Empty from None

    def empty(self) -> bool:
        """Return whether there is no item."""
        return not self._items

    async def take(self, until: float) -> Any:
        """Return the next item; wait for one until the clock's `until` (s), or a moment longer.

        Raises:
            queue.Empty: no item has come.
        """
        try:
            woken = self.sleep(until)
            if woken is not None:
                await woken
        finally:
            self.wake_up()
        return self.get_nowait()

    async def feed(self, gathering: Generator[float, Any, None]) -> None:
        """Send `gathering` each item that comes by the time that it yields, until it ends or no item has come."""
        with suppress(Empty, StopIteration):
            until = next(gathering)
            while True:
                until = gathering.send(await self.take(until))

    def sleep(self, until: float) -> "asyncio.Future[None] | None":
        """Return a future to await until there is an item or it is `until`; None if so now. Call `wake_up` after."""
        inboxes = self._inboxes
        now = inboxes.clock()
        if self._items or until <= now:
            return None
        woken = self._woken = inboxes.loop.create_future()
        alarms = inboxes.alarms
        alarms.due[self] = until
        if not now <= alarms.looks_at <= until:
            alarms.look_by(until)
        return woken

    def wake_up(self) -> None:
        """Note that the task no longer sleeps."""
        self._woken = None
        self._inboxes.alarms.due.pop(self, None)

    def ring(self) -> None:
        """Wake the task, if it sleeps. Called on the loop's thread."""
        woken = self._woken
        if woken is not None and not woken.done():
            woken.set_result(None)


class Inboxes:
    """Common part of one loop's inboxes.

    Attributes:
        alarms: wake tasks that sleep when their time is over.
        pulse: the pulse of the loop.
        thread: the identifier of the loop's thread while it acts on messages for the tasks; else 0.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, pulse: Pulse) -> None:
        self.alarms = Alarms(loop, clock, self._over)
        self.loop = loop
        self.clock = clock
        self.pulse = pulse
        self.thread = 0

    def _over(self, inbox: LoopInbox, _at: float, _now: float) -> None:
        """Wake the task of an inbox, because it has slept for long enough."""
        self.alarms.due.pop(inbox, None)
        inbox.ring()
