"""A coroutine whose work is done also where its task is cancelled before its first step."""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Begun(Coroutine[Any, Any, T]):
    """A coroutine that does what it must though it is cancelled before its first step.

    That happens to a task that was made of it, by ``asyncio.create_task`` or ``asyncio.wait_for``, and then none of its
    code runs. Awaited directly, it begins at once.

    Args:
        coroutine: what it is otherwise.
        otherwise: called where an exception is thrown in before the first step.
    """

    __slots__ = ("_coroutine", "_is_begun", "_otherwise")

    def __init__(self, coroutine: Coroutine[Any, Any, T], otherwise: Callable[[], object]) -> None:
        self._coroutine = coroutine
        self._otherwise = otherwise
        self._is_begun = False

    def __await__(self) -> Generator[Any, Any, T]:
        self._is_begun = True
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """See `collections.abc.Coroutine`."""
        self._is_begun = True
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /) -> Any:
        """See `collections.abc.Coroutine`; it may be called with the exception alone."""
        is_begun, self._is_begun = self._is_begun, True
        try:
            return (
                self._coroutine.throw(kind)
                if isinstance(kind, BaseException)
                else self._coroutine.throw(kind, value, traceback)
            )
        finally:
            if not is_begun:
                self._otherwise()

    def close(self) -> None:
        """See `collections.abc.Coroutine`."""
        self._coroutine.close()
