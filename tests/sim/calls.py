"""Calls of relock, and the exceptions that end some of them, as a signal's handler raises one in a thread."""

import contextlib
from collections.abc import Iterator

from relock.testing._process import Task, current_task
from relock.testing._world import World
from sim.actors import Actor, Interrupted
from sim.referee import Referee

INTERRUPT_LOOKS = 12  # an interrupt comes at one of so many looks at a clock


class Calls:
    """The calls that are under way, and those to come: each may be interrupted once."""

    def __init__(self, world: World, referee: Referee) -> None:
        self._world = world
        self._referee = referee
        self._calling: dict[Task, None] = {}  # threads inside a call that may be interrupted
        self._to_interrupt = 0  # of the next calls

    @contextlib.contextmanager
    def call(self, actor: Actor | None = None) -> Iterator[None]:
        """Make a call of relock in the block, where the thread may be interrupted once, or its actor be cancelled."""
        task = current_task()
        if self._to_interrupt and actor is not None:
            self._to_interrupt -= 1
            actor.doom()
        elif self._to_interrupt:
            self._to_interrupt -= 1
            self._world.doom(task.greenlet, Interrupted(), self._world.random.randint(1, INTERRUPT_LOOKS))
        else:
            self._calling[task] = None
        try:
            yield
        except Interrupted:
            self._referee.struck(task.name, "interrupt", 0.0)
            raise
        finally:
            self._calling.pop(task, None)
            self._world.spare(task.greenlet)
            if actor is not None:
                actor.spare()

    def interrupt(self) -> None:
        """End a call of relock by an exception: a call that waits now, or the next one, at some look at the clock."""
        tasks = [task for task in self._calling if not task.process.is_paused and not task.process.is_dead]
        if tasks and self._world.chance() < 0.5:
            task = self._world.random.choice(tasks)
            self._calling.pop(task)
            task.interrupt(Interrupted())
        else:
            self._to_interrupt += 1
