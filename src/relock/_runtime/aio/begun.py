"""Coroutines that the doors for tasks return: each refuses to be judged as true or false before it is awaited."""

import functools
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class AwaitedCall(Coroutine[Any, Any, T]):
    """Coroutine that raises `TypeError` in ``bool()``: ``if lock.acquire():`` without ``await`` would always be true.

    The doors declare it as a plain `Coroutine`: only for that very type, type checkers report a call that stands alone
    without ``await``.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __bool__(self) -> bool:
        if sys._getframe(1).f_globals.get("__name__") == "asyncio.base_tasks":
            return True  # the `repr` of a task asks, from Python 3.12 on
        raise TypeError("this call has not run yet, so it is neither true nor false: await it")

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """Resume the coroutine with `value`."""
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /) -> Any:
        """Raise an exception in the coroutine, as `collections.abc.Coroutine` does, or with the exception alone."""
        if isinstance(kind, BaseException):
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        """Show debuggers, and the ``repr`` of a task, which code runs and where."""
        if name.startswith("cr_") or name in ("__name__", "__qualname__"):
            return getattr(self._coroutine, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Begun(AwaitedCall[T]):
    """Coroutine that does what it must though it is cancelled before its first step.

    That happens to a task that ``asyncio.create_task`` or ``asyncio.wait_for`` has made of the coroutine, and then none
    of the coroutine's code runs. Awaited directly, it begins at once.

    Args:
        coroutine: the coroutine that runs otherwise.
        otherwise: called if an exception is thrown in before the first step.
    """

    __slots__ = ("_is_begun", "_otherwise")

    def __init__(self, coroutine: Coroutine[Any, Any, T], otherwise: Callable[[], object]) -> None:
        self._coroutine = coroutine
        self._otherwise = otherwise
        self._is_begun = False

    def __await__(self) -> Generator[Any, Any, T]:
        self._is_begun = True
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """Resume the coroutine with `value`; note that it has begun."""
        self._is_begun = True
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /) -> Any:
        """Raise an exception in the coroutine; if it has not begun, do what it must."""
        is_begun, self._is_begun = self._is_begun, True
        try:
            return super().throw(kind, value, traceback)
        finally:
            if not is_begun:
                self._otherwise()


def awaited(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a coroutine function return an `AwaitedCall`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return AwaitedCall(function(*args, **kwargs))

    return call
