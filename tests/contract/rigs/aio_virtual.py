"""The driver for tasks on the simulator's platform: virtual event loops, virtual time, virtual masters.

As in `contract.rigs.aio`, each thread of a test has an actor, a task of a loop of its own. Here all threads are
virtual.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from support.virtual_actor import VirtualActor

from contract.rigs.aio import ClientOfActors
from contract.rigs.rig import TTL, VIRTUAL_NODE_TIMEOUT, Interrupted
from contract.rigs.virtual import VirtualRig
from contract.rigs.watch import Watch
from relock._owner import running_loop
from relock.testing._loop import VirtualLoop
from relock.testing._process import Task, current_task


class AioVirtualRig(VirtualRig):
    """Rig of tasks over virtual masters."""

    sleep = "before Park"
    shares_connections = True

    def __init__(self, masters: int, seed: int) -> None:
        super().__init__(masters, seed)
        self.watch = Watch(self._current)
        self._actors: dict[Task, VirtualActor] = {}

    def _actor(self) -> VirtualActor:
        """Return the actor of the calling thread."""
        thread = current_task()
        if thread not in self._actors:
            self._actors[thread] = VirtualActor(VirtualLoop(self._process), self._process, Interrupted)
        return self._actors[thread]

    def _current(self) -> object:
        """Return the caller's actor, or the actor that the caller is."""
        loop = running_loop()
        if loop is None:
            return self._actor()
        task = asyncio.current_task(loop)
        return next((actor for actor in self._actors.values() if actor.task is task), None) if task else None

    def client(self, *, ttl: float = TTL, node_timeout: float = VIRTUAL_NODE_TIMEOUT, **options: Any) -> Any:
        """Return a client behind the lines."""
        client = super().client(ttl=ttl, node_timeout=node_timeout, **options)
        return ClientOfActors(client, self.watch, self._actor, self.start)

    def interrupt(self, call: Callable[[], object], when: Callable[[], object]) -> bool:
        """Interrupt the call by cancelling the actor."""
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
