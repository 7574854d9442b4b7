"""Event loops in virtual time: the tasks of asyncio, on one thread of a virtual process.

asyncio's own futures and tasks run here; only the loop is another one. It waits as any virtual thread does, so a world
can have processes with threads beside processes with loops. While its thread waits or pauses, other threads run in the
same real thread, and must not find a loop that runs in it: `Parking` sees to that.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from heapq import heappop, heappush
from typing import Any

from greenlet import GreenletExit

from relock._runtime.net.loop_channel import LoopChannel
from relock._runtime.net.raw_connection import RawConnection
from relock.testing._process import Parking, Process

_Base: Any = asyncio.AbstractEventLoop  # of which only what tasks and relock use is here


class VirtualLoop(_Base):  # type: ignore[misc]
    """An event loop of a virtual process, for as long as that lives.

    Args:
        process: whose loop it is.
        timers_first: timers fire before the loop reads what has come, as with libuv; else after it, as with selectors.
    """

    def __init__(self, process: Process, *, timers_first: bool = False) -> None:
        self._process = process
        self._timers_first = timers_first
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._readers: dict[int, tuple[Any, asyncio.Handle]] = {}  # what is watched, by its number
        self._parking: Parking | None = None  # while it waits
        self._is_running = True
        self._is_closed = False
        self._ended: Callable[[], object] | None = None  # is called when it is closed; None: it goes on
        process.start(self._run, f"{process.name} loop")

    # What asyncio and relock call -----------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the process's local time."""
        return self._process.local()

    def get_debug(self) -> bool:
        """Return False: there is no debug mode."""
        return False

    def is_closed(self) -> bool:
        """Return whether the loop is closed."""
        return self._is_closed

    def is_running(self) -> bool:
        """Return whether the loop turns."""
        return self._is_running

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        """Start a task on this loop."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Call `callback` in the next turn."""
        if self._is_closed and not self._process.is_dead:
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call `callback` in the next turn, and wake the loop."""
        handle = self.call_soon(callback, *args, context=context)
        if self._parking is not None:
            self._parking.wake()
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call `callback` after `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call `callback` when the local time is `when`."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave the handle in the heap until its time has come."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception of a callback as an error of the run, but for the one that ends a process."""
        error = context.get("exception")
        if not (self._process.is_dead or isinstance(error, GreenletExit)):
            failed = error if error is not None else RuntimeError(context["message"])
            self._process.world.errors.append((f"{self._process.name} loop", failed))

    def stop_for(self, sleep: Callable[[], object]) -> None:
        """Stop the loop, from within it, while `sleep` lasts; then run it again."""
        self._is_running = False
        try:
            sleep()
        finally:
            self._is_running = True

    def end(self, ended: Callable[[], object]) -> None:
        """Stop the loop, from within it, after this turn, and close it, whatever tasks it has; then call `ended`."""
        self._ended = ended

    def watch(self, fileno: int, watched: Any, readable: Callable[[], object]) -> None:
        """Call `readable` in each turn in which `watched` has something to read."""
        self._readers[fileno] = watched, asyncio.Handle(readable, (), self)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Watch the connection that has that number in the loop's process."""
        self.watch(fd, self._process.channels[fd], partial(callback, *args))

    def remove_reader(self, fd: Any) -> bool:
        """Stop watching that number; return whether it was watched."""
        found = self._readers.pop(fd, None)
        if found is not None:
            found[1].cancel()
        return found is not None

    # Its turns ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio._set_running_loop(self)
        try:
            while self._ended is None:
                self._turn()
            self._is_running, self._is_closed = False, True
            self._process.world.after(0.0, self._ended)
            Parking(self._process).wait(None)  # its tasks are kept
        finally:
            for task in asyncio.all_tasks(self):  # else they end when they are collected, perhaps with the interpreter
                with suppress(GreenletExit):
                    task.get_coro().close()
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        """Wait for something to do, and do all of it that is there now."""
        self._wait()
        steps = [self._take_readable, self._take_due]
        if self._timers_first:
            steps.reverse()
        for step in steps:
            step()
            self._process.clock()  # its thread may pause between the two
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
            if self._process.is_dead:
                raise GreenletExit

    def _wait(self) -> None:
        while self._timers and self._timers[0][-1].cancelled():
            heappop(self._timers)
        if self._ready or any(watched.is_readable() for watched, _ in self._readers.values()):
            return
        seconds = self._timers[0][0] - self.time() if self._timers else None
        if seconds is not None and seconds <= 0:
            return
        self._parking = Parking(self._process)
        for watched, _ in self._readers.values():
            watched.watch(self._parking)
        self._parking.wait(seconds)
        self._parking = None

    def _take_readable(self) -> None:
        self._ready.extend([handle for watched, handle in self._readers.values() if watched.is_readable()])

    def _take_due(self) -> None:
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heappop(self._timers)[-1])


class VirtualLoopChannel(LoopChannel):
    """A virtual connection that a `VirtualLoop` watches."""

    def __init__(
        self, opened: Any, raw: RawConnection, loop: VirtualLoop, _failed: Callable[[BaseException], object]
    ) -> None:
        self._raw: Any = raw
        self._loop: VirtualLoop = loop
        self.parse = opened.parse
        self.fileno = opened.fileno
        self.send = opened.send
        self.may_be_pending = False
        self.take = self.take_now = opened.take_now
        self.ready = opened.ready

    def watch(self, readable: Callable[[], object]) -> None:
        """Have the loop call `readable` in each turn in which something is there to read."""
        self._loop.watch(self.fileno, self._raw, readable)

    def unwatch(self) -> None:
        """Stop the loop from looking at the connection."""
        self._loop.remove_reader(self.fileno)

    def is_pending(self) -> bool:
        """Return False: nothing is read before it is taken."""
        return False
