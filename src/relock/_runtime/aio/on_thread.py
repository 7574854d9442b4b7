"""Threads for what takes long and is rare, while a task goes on.

The loop's executor is not used: its threads may all be busy with what waits for a lock.
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
    """Have a daemon thread call `function`; the future has what it returns or raises.

    Where there can't be another thread, as at the end of the interpreter, the loop's own calls it, and the loop stands
    still meanwhile.

    Args:
        platform: starts the thread.
        loop: whose future it is.
        function: what takes long.
        name: the thread's.
        unheard: called with the result, on the thread, where the loop is closed by then.
    """
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # it is the future's: the thread has nobody to tell
            tell(partial(_fail, future, error))
        else:
            if not tell(partial(_finish, future, result)):
                unheard(result)

    def tell(callback: Callable[[], object]) -> bool:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it is closed
            return False
        return True

    try:
        platform.start(run, name)
    except RuntimeError:  # there can't be another thread
        run()
    return future


def _finish(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
