"""Decorators of `synchronized`: a function holds a lock while it runs."""

import contextlib
import functools
import inspect
import logging
import operator
import re
import string
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, Never, ParamSpec, TypeVar

from relock._errors import AcquireTimeoutError, ConfigurationError, RelockWarning
from relock._options import check_name

logger = logging.getLogger("relock.synchronized")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

STAGES_MAX = 100  # a proxy may pretend to wrap functions without end
_AN_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}>")  # `object.__repr__` ends with an address


def check_template(template: object) -> str:
    """Return the template, if it can be the name of a lock.

    Raises:
        TypeError: the template is no str; a function shows that the decorator was written without a name.
        ConfigurationError: no lock can be called so.
    """
    if callable(template):
        raise TypeError(
            "synchronized takes the lock's name before the function: write @client.synchronized('orders:{order_id}')"
        )
    return check_name(template)


def decorator(
    template: str, lock_of: Callable[[str], contextlib.AbstractContextManager[object]], skip: bool, otherwise: T
) -> Callable[[Callable[P, R]], Callable[P, R | T]]:
    """Return a decorator: the function runs inside the lock that `lock_of` returns for a name made from `template`.

    With `skip` the lock's timeout is 0, and a call that does not get the lock returns `otherwise`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R | T]:
        is_proxy, shown = _known_as(function)
        _check_runs_when_called(function, shown)
        name_for = _names(template, function, shown)
        is_lazy = any(map(_is_generator_function, _stages(function)))

        @functools.wraps(function, () if is_proxy else functools.WRAPPER_ASSIGNMENTS)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | T:
            lock, is_inside = lock_of(name_for(*args, **kwargs)), False
            try:
                with lock:
                    is_inside = True
                    result = function(*args, **kwargs)
                    if _is_to_run(result) or (is_lazy and isinstance(result, Generator | AsyncGenerator)):
                        _refuse(result, shown)
                    return result
            except AcquireTimeoutError:
                if is_inside or not skip:
                    raise
                return otherwise

        return wrapper

    return decorate


def coroutine_decorator(
    template: str, lock_of: Callable[[str], contextlib.AbstractAsyncContextManager[object]], skip: bool, otherwise: T
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | T]]]:
    """Return a decorator of coroutine functions: one runs inside the lock, as part of the task that awaits it.

    `skip` and `otherwise` are as for `decorator`.
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R | T]]:
        is_proxy, shown = _known_as(function)
        _check_is_coroutine_function(function, shown)
        name_for = _names(template, function, shown)

        @functools.wraps(function, () if is_proxy else functools.WRAPPER_ASSIGNMENTS)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | T:
            lock, is_inside = lock_of(name_for(*args, **kwargs)), False
            try:
                async with lock:
                    is_inside = True
                    return await function(*args, **kwargs)
            except AcquireTimeoutError:
                if is_inside or not skip:
                    raise
                return otherwise

        return wrapper

    return decorate


def _known_as(function: Any) -> tuple[bool, str]:
    """Return whether a function is a proxy, which may invent any attribute, and its name for messages."""
    is_proxy = not isinstance(getattr(function, "__name__", ""), str)
    # A `functools.partial` has no `__name__`, and is no proxy.
    return is_proxy, repr(function) if is_proxy else getattr(function, "__qualname__", repr(function))


# What can be decorated ------------------------------------------------------------------------------------------------

# All functions that one of these decorators has made share the decorator's code.
_CONTEXT_MANAGERS = tuple(
    map(operator.attrgetter("__code__"), (contextlib.contextmanager(iter), contextlib.asynccontextmanager(aiter)))
)


def _check_runs_when_called(function: Callable[..., object], shown: str) -> None:
    """Refuse a function that would run after the call, without the lock; also an object whose ``__call__`` does."""
    if isinstance(function, type):
        raise TypeError(f"synchronized: {shown} is a class: decorate its methods, each for itself")
    # A decorated static method would become an ordinary method.
    if isinstance(function, staticmethod) or not callable(function):
        if hasattr(type(function), "__get__"):
            kind = type(function).__name__
            text = f"synchronized takes a function, not a {kind}: write @{kind} above @client.synchronized(...)"
            raise TypeError(text)
        raise TypeError(f"synchronized: {shown} can't be called")
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called):
            raise TypeError(f"synchronized: {shown} is a coroutine function; use that of an AsyncClient")
        if _is_generator_function(called):
            raise TypeError(f"synchronized: {shown} is a generator function; its body runs after the call")
        if any(getattr(stage, "__code__", None) in _CONTEXT_MANAGERS for stage in _stages(called)):
            raise TypeError(
                f"synchronized: {shown} is a context manager, whose body runs after the call: take the lock in it, by "
                "`with client.lock(...)`"
            )


def _check_is_coroutine_function(function: Callable[..., object], shown: str) -> None:
    """Refuse a function that is not awaited, or whose body would run after the await, without the lock."""
    if isinstance(function, type):
        raise TypeError(f"synchronized: {shown} is a class: decorate its methods, each for itself")
    stages = [stage for called in (function, type(function).__call__) for stage in _stages(called)]
    if any(getattr(stage, "__code__", None) in _CONTEXT_MANAGERS for stage in stages):
        raise TypeError(
            f"synchronized: {shown} is a context manager, whose body runs after the call: take the lock in it, by "
            "`async with client.lock(...)`"
        )
    if any(map(_is_generator_function, stages)):
        raise TypeError(f"synchronized: {shown} is a generator function; its body runs after the call")
    if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        raise TypeError(f"synchronized: {shown} is no coroutine function; use that of a Client")


def _is_generator_function(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _stages(function: Any) -> Iterator[Any]:
    """Yield a function, and those that it was made of by decorators and `functools.partial`, from the outside.

    A proxy may have any attribute that it is asked for, and a new one each time: so the number of stages is limited.
    """
    for _ in range(STAGES_MAX):
        if function is None:
            return
        yield function
        function = getattr(function, "func" if isinstance(function, functools.partial) else "__wrapped__", None)


def _is_to_run(result: Any) -> bool:
    """Return whether `result` must be awaited, and is not a task or future of asyncio that is done."""
    return not (_is_future(result) and result.done()) and inspect.isawaitable(result)


def _is_future(result: object) -> bool:
    # No future exists before a module has imported asyncio.
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and asyncio.isfuture(result) is True


def _refuse(result: Any, shown: str) -> Never:
    """Refuse the `result` of a call that has not run its function, which would run later, without the lock.

    The function then never runs. Only a call can show this: another decorator may run a coroutine itself or return it.
    """
    done = ""
    if isinstance(result, Coroutine | Generator):
        kind = "a coroutine" if inspect.isawaitable(result) else "a generator"
        if not _has_begun(result):
            result.close()  # a closed coroutine or generator can't run any more
            done = ": it was closed, and has not run"
    elif isinstance(result, AsyncGenerator):
        kind = "a generator"
    elif _is_future(result):
        kind = "a task or future"
        result.cancel()
        done = ": it is being cancelled, and stops where it waits next"
    else:
        kind = "an awaitable"
    text = f"synchronized: {shown} returned {kind}, whose body would run after the call, without the lock"
    raise TypeError(text + done)


def _has_begun(result: Any) -> bool:
    """Return whether a coroutine or generator has run some of its body: closing it would run more of the body."""
    if inspect.iscoroutine(result):
        return inspect.getcoroutinestate(result) != inspect.CORO_CREATED
    return inspect.isgenerator(result) and inspect.getgeneratorstate(result) != inspect.GEN_CREATED


# What the lock is called ----------------------------------------------------------------------------------------------


def _names(template: str, function: Callable[..., object], shown: str) -> Callable[..., str]:
    """Return a function that makes a lock's name from `template` and the arguments of a call of `function`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of Python's own functions have no signature
        if _fields(template):
            why = f"synchronized({template!r}): {shown} has no signature, so its arguments can't be in the name"
            raise ConfigurationError(why, option="template") from None
        return lambda *_args, **_kwargs: template.format()
    missing = _fields(template) - set(signature.parameters)
    if missing:
        named = ", ".join(name or "without a name" for name in sorted(missing))
        raise ConfigurationError(f"synchronized({template!r}): {shown} has no argument {named}", option="template")
    is_warned = False

    def name_for(*args: Any, **kwargs: Any) -> str:
        nonlocal is_warned
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        name = template.format(**bound.arguments)
        if " at 0x" in name and not is_warned and _AN_ADDRESS.search(name):
            is_warned = True
            _warn_of_address(name, shown)
        return name

    return name_for


def _warn_of_address(name: str, shown: str) -> None:
    text = (
        f"synchronized: {shown} locks {name!r}, and each object has an address of its own: another process, or another "
        "object for the same thing, takes another lock; use an argument that says which thing it is, such as {order.id}"
    )
    logger.warning(text)
    warnings.warn(text, RelockWarning, stacklevel=4)


def _fields(template: str) -> set[str]:
    try:
        return set(_used(template))
    except ValueError as error:
        raise ConfigurationError(f"synchronized({template!r}): no valid format: {error}", option="template") from None


def _used(template: str) -> Iterator[str]:
    """Yield the arguments that a template uses, those within its format specifications included."""
    for _, name, specification, _ in string.Formatter().parse(template):
        if name is not None:
            yield name.partition(".")[0].partition("[")[0]
            yield from _used(specification or "")
