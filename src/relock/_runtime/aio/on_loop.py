"""Callbacks of users that are called on an event loop, so that they may use the loop's objects."""

import asyncio
from collections.abc import Callable
from typing import Any

_tasks: "set[asyncio.Task[Any]]" = set()  # a loop keeps none of its tasks alive


class OnLoop:
    """Callback that calls `function` on the event loop that uses a client; a coroutine function runs as a task.

    If no loop uses the client at the moment, the calling thread calls `function`, and runs a coroutine function in a
    loop of its own. Two callbacks with the same function and client are equal.

    Args:
        function: takes one argument.
        loop: returns the loop that uses the client, or None.
    """

    def __init__(self, function: Callable[[Any], Any], loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._function = function
        self._loop = loop

    def __call__(self, what: Any) -> None:
        loop = self._loop()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._call, loop, what)
            except RuntimeError:  # it was closed at this moment
                loop = None
        if loop is None:
            result = self._function(what)
            if asyncio.iscoroutine(result):
                asyncio.run(result)

    def _call(self, loop: asyncio.AbstractEventLoop, what: Any) -> None:
        result = self._function(what)
        if asyncio.iscoroutine(result):
            task = loop.create_task(result)
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnLoop) and (self._function, self._loop) == (other._function, other._loop)

    def __hash__(self) -> int:
        return hash((self._function, self._loop))
