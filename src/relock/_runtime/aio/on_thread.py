"""Threads for rare work that would block an event loop.

The loop's executor is not used: all of its threads may be busy with functions that wait for a lock.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from relock._runtime.platform import Platform

T = TypeVar("T")


def on_thread(
    platform: Platform,
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], T],
    *,
    name: str = "relock-loop",
    unheard: Callable[[T], object] = bool,
) -> "asyncio.Future[T]":
    """Have a daemon thread call `function`; return a future for its result or error.

    If no thread can be started, as at the end of the interpreter, the loop's own thread calls the function, and the
    loop stands still meanwhile.

    Args:
        platform: starts the thread.
        loop: the loop of the future.
        function: takes long.
        name: the name of the thread.
        unheard: called on the thread with the result, if the loop is closed by then.
    """
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # the future raises it in the task
            tell(partial(_fail, future, error))
        else:
            if not tell(partial(_finish, future, result)):
                unheard(result)

    def tell(callback: Callable[[], object]) -> bool:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return True

    try:
        platform.start(run, name)
    except RuntimeError:  # no thread can be started
        run()
    return future


def _finish(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
