"""The driver for tasks on the simulator's platform: virtual event loops, virtual time, virtual masters.

As in `contract.aio`, each thread of a test has an actor, a task of a loop of its own. Here all threads are virtual.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from contract.aio import ClientOfActors, Work
from contract.rig import NODE_TIMEOUT, TTL, Interrupted
from contract.virtual import HOUR_SECONDS, VirtualRig
from contract.watch import Watch
from relock._owner import running_loop
from relock.testing._loop import VirtualLoop
from relock.testing._platform import VirtualQueue
from relock.testing._process import Process, Task, current_task


class VirtualActor:
    """See `contract.aio.Actor`."""

    def __init__(self, process: Process) -> None:
        self.loop = VirtualLoop(process)
        self.task: asyncio.Task[None] | None = None
        self._process = process
        self._work: asyncio.Queue[tuple[Work, VirtualQueue]] = asyncio.Queue()
        self.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self.task = self.loop.create_task(self._act())

    async def _act(self) -> None:
        while True:
            work, results = await self._work.get()
            try:
                results.put((await work(), None))
            except GeneratorExit:  # the run is over
                raise
            except asyncio.CancelledError:
                if self.task is not None:
                    self.task.uncancel()
                results.put((None, Interrupted()))
            except BaseException as error:
                results.put((None, error))

    def do(self, work: Work) -> Any:
        """See `contract.aio.Actor`."""
        results = VirtualQueue(self._process)
        self.loop.call_soon_threadsafe(self._work.put_nowait, (work, results))
        result, error = results.get(timeout=HOUR_SECONDS)
        if error is not None:
            raise error
        return result

    def see(self, look: Callable[[], Any]) -> Any:
        """See `contract.aio.Actor`."""

        async def looking() -> Any:
            return look()

        return self.do(looking)

    def cancel(self) -> None:
        """See `contract.aio.Actor`."""
        if self.task is not None:
            self.loop.call_soon_threadsafe(self.task.cancel)


class AioVirtualRig(VirtualRig):
    """See `Rig`."""

    sleep = "before Park"
    shares_connections = True

    def __init__(self, masters: int, seed: int) -> None:
        super().__init__(masters, seed)
        self.watch = Watch(self._current)
        self._actors: dict[Task, VirtualActor] = {}

    def _actor(self) -> VirtualActor:
        """The actor of the calling thread."""
        thread = current_task()
        if thread not in self._actors:
            self._actors[thread] = VirtualActor(self._process)
        return self._actors[thread]

    def _current(self) -> object:
        """Which actor the caller is, or has."""
        loop = running_loop()
        if loop is None:
            return self._actor()
        task = asyncio.current_task(loop)
        return next((actor for actor in self._actors.values() if actor.task is task), None) if task else None

    def client(self, *, ttl: float = TTL, node_timeout: float = NODE_TIMEOUT, **options: Any) -> Any:
        """See `Rig`."""
        return ClientOfActors(super().client(ttl=ttl, node_timeout=node_timeout, **options), self.watch, self._actor)

    def interrupt(self, call: Callable[[], object], when: Callable[[], object]) -> bool:
        """See `Rig`: the actor is cancelled."""
        actor, over = self._actor(), False

        def ring() -> None:
            self.until(lambda: over or when(), "the moment to interrupt")
            if not over:
                actor.cancel()

        bell = self.start(ring)
        try:
            call()
        except Interrupted:
            return True
        finally:
            over = True
            bell.result()
        return False
