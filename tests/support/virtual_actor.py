"""Tasks of virtual event loops that act for virtual threads: a task makes the calls, and owns the holds."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from greenlet import GreenletExit

from relock.testing._loop import VirtualLoop
from relock.testing._platform import VirtualQueue
from relock.testing._process import Process

LONG_SECONDS = 3600.0  # the longest wait for an actor; a run is shorter

Work = Callable[[], Coroutine[Any, Any, Any]]


class VirtualActor:
    """A task of `loop`, which acts for one thread of the same process.

    Args:
        interrupted: the exception that is raised in the thread when its actor is cancelled. The same exception, when it
            interrupts the waiting thread, cancels the actor.
    """

    def __init__(self, loop: VirtualLoop, process: Process, interrupted: type[BaseException]) -> None:
        self._loop = loop
        self._process = process
        self._interrupted = interrupted
        self._asked = 0  # the number of calls
        self._doing = 0  # the number of the call that is under way; 0 for none
        self._inbox: asyncio.Queue[tuple[int, Work, VirtualQueue]] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self.task = self._loop.create_task(self._act())

    async def _act(self) -> None:
        while True:
            number, work, results = await self._inbox.get()
            self._doing = number
            try:
                result, error = await self.carry_out(work()), None
            except (GeneratorExit, GreenletExit):  # the run, or the process, is over
                raise
            except BaseException as raised:
                result, error = None, raised
            self._doing = 0
            if isinstance(error, asyncio.CancelledError):
                self._uncancel()
                error = self._interrupted()
            results.put((result, error))

    def carry_out(self, coroutine: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        """Return an awaitable that carries out `coroutine`."""
        return coroutine

    def acting(self) -> "asyncio.Task[Any] | None":
        """Return the task that carries out the present call."""
        return self.task

    def cancel(self) -> None:
        """Cancel the latest call, if it is still under way; from any thread."""
        self._loop.call_soon_threadsafe(self.cancel_call, self._asked)

    def cancel_call(self, number: int) -> None:
        """Cancel the call of this number, in the loop, if it is still under way."""
        task = self.acting()
        if self._doing == number and task is not None:
            task.cancel()

    def _uncancel(self) -> None:
        while self.task is not None and self.task.cancelling():
            self.task.uncancel()

    def do(self, work: Work) -> Any:
        """Let the task do the work; return or raise its outcome."""
        self._asked += 1
        results = VirtualQueue(self._process)
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, (self._asked, work, results))
        try:
            result, error = results.get(timeout=LONG_SECONDS)
        except self._interrupted:
            self.cancel()
            result, error = results.get(timeout=LONG_SECONDS)
        if error is not None:
            raise error
        return result

    def see(self, look: Callable[[], Any]) -> Any:
        """Look at something local as the task would."""

        async def looking() -> Any:
            return look()

        return self.do(looking)
