"""A process whose workers are tasks of an event loop: they are cancelled, their loop stands still, and it ends."""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from chaos.history import clock
from chaos.turns import SAMPLE_SECONDS, Turns
from chaos.worker import TOLD_SECONDS, Job, Process
from relock import AsyncClient, RelockError

CANCELLED_PART = 0.1  # of the turns
CANCELLED_WITHIN_SECONDS = 0.1
BEGIN_SECONDS = 1.0  # within which a task must have a lock, to block its loop with it
CARELESS_PART = 0.4  # of the tasks that the end of their loop cancels: these do not release their locks


class TaskTurns(Turns):
    """The turns of a task. Some are cancelled; the task takes the next turn, unless its loop ends."""

    _process: "LoopProcess"
    _task: "asyncio.Task[Any] | None" = None
    _is_struck = False

    async def _result(self, call: Any) -> Any:
        return await call

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _gives_back(self) -> bool:
        return not self._process.is_ending or self._dice.random() >= CARELESS_PART

    def _compute(self, called: float) -> None:
        self._process.stand_still_inside(called)

    async def turn(self) -> None:
        """Take one turn, which may be cancelled in between."""
        self._task, timer = asyncio.current_task(), None
        if self._dice.random() < CANCELLED_PART:
            delay = self._dice.uniform(0.0, CANCELLED_WITHIN_SECONDS)
            timer = asyncio.get_running_loop().call_later(delay, self._strike)
        try:
            await super().turn()
        except asyncio.CancelledError:
            was_struck, self._is_struck = self._is_struck, False
            if not was_struck or self._task is None or self._task.uncancel():
                raise
        finally:
            if timer is not None:
                timer.cancel()

    def _strike(self) -> None:
        if self._task is not None:
            self._is_struck = self._task.cancel()


class LoopProcess(Process[AsyncClient]):
    """A process with one event loop after the other, all of which use one client.

    Attributes:
        is_ending: the loop's tasks are being cancelled, because ``asyncio.run`` ends.
    """

    is_ending: bool

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._kept: list[asyncio.Future[None]] = []  # else the garbage collector may take a waiting task
        self._stands: tuple[float, float] | None = None  # for how long, and when that was ordered

    def _connect(self, nodes: Any, **options: Any) -> AsyncClient:
        return AsyncClient(nodes, **options)

    def start(self) -> Sequence[threading.Thread]:
        """Start a thread that runs one loop after the other."""
        thread = threading.Thread(target=self._run_loops, daemon=True)
        thread.start()
        return [thread]

    def _run_loops(self) -> None:
        while not self.stopping.is_set():
            asyncio.run(self._live())

    async def _live(self) -> None:
        """Let the tasks work until they stop, or until the loop has to end under them."""
        self._loop, self._over, self.is_ending = asyncio.get_running_loop(), asyncio.Event(), False
        tasks = [asyncio.create_task(TaskTurns(self, i).run()) for i in range(self.job.threads)]
        over = asyncio.create_task(self._over.wait())
        while not all(task.done() for task in tasks):
            await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                self.is_ending = True
                return
        end = clock() + TOLD_SECONDS
        while not self.is_told and clock() < end:  # the loop must be told of losses before it ends
            await asyncio.sleep(SAMPLE_SECONDS)

    def obey(self, order: Any) -> bool:
        """Carry out an order, on the loop if it strikes the loop; return whether the process must go on."""
        match order:
            case {"stand": float(seconds), "inside": True}:
                self._stands = seconds, clock()
            case {"stand": float(seconds)}:
                self._call_on_loop(time.sleep, seconds)
            case "end loop":
                self._call_on_loop(self._over.set)
            case _:
                return super().obey(order)
        return True

    def _call_on_loop(self, do: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop ends just now
            if self._loop is not None:
                self._loop.call_soon_threadsafe(do, *arguments)

    def stand_still_inside(self, called: float) -> None:
        """Block the loop if that was ordered a moment ago, before the caller asked for its present lock."""
        if self._stands is None or called < self._stands[1]:
            return
        (seconds, ordered_at), self._stands = self._stands, None
        if clock() < ordered_at + BEGIN_SECONDS:
            time.sleep(seconds)

    def use_names(self, count: int) -> None:
        """Begin to take and release so many locks, in a task of their own."""
        self._call_on_loop(lambda: self._kept.append(asyncio.ensure_future(self._use_names(count))))

    async def _use_names(self, count: int) -> None:
        for _ in range(count):
            if self.stopping.is_set():
                return
            lock = self.client.lock(self.next_name())
            with suppress(RelockError):
                if await lock.acquire(blocking=False):
                    await lock.release()
