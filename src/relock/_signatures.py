"""Signatures of functions that take keywords by ``**`` and refuse unknown ones by themselves."""

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

from relock._options import ClientOptions, LockArguments, LockOptions

P = ParamSpec("P")
R = TypeVar("R")


def lists(arguments: Any, defaults: Any = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lists a function's ``**`` keywords in its signature, for `help` and completion.

    Args:
        arguments: the `TypedDict` of the keywords, which type checkers know already.
        defaults: the class of attrs that has a default for each; None where each default is None.
    """
    default = {} if defaults is None else {one.name: one.default for one in defaults.__attrs_attrs__}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default.get(name), annotation=annotation)
        for name, annotation in arguments.__annotations__.items()
    ]
    return lambda function: _shown_with(function, options)


def called_as(_shown: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator that gives a function another one's parameters for type checkers.

    The function takes more keywords than these, but only to refuse them.
    """
    return lambda function: _shown_with(function, [])


def _shown_with(function: Callable[..., R], options: list[inspect.Parameter]) -> Callable[..., R]:
    shown = inspect.signature(function)
    own = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
    function.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


# Options of other libraries' locks, and what relock has in their place.
_ELSEWHERE = {
    "timeout": "the longest wait is timeout= of lock() or acquire(), and the lease, which redis-py calls so, is ttl=",
    "blocking": "whether to wait is blocking= of acquire(), or timeout=0 of lock()",
    "blocking_timeout": "the longest wait is timeout= of lock() or acquire()",
    "sleep": "relock needs no such pause, because a waiter is woken",
    "thread_local": "a hold is always its thread's own; owner= of lock() lets threads share one",
    "id": "the owner of a hold, if it is not the calling thread, is owner= of lock()",
    "expire": "the lease is ttl=",
    "auto_renewal": "whether the lease is extended while its owner lives is renew=",
}
_LOCK_OPTIONS = tuple(attribute.name for attribute in LockOptions.__attrs_attrs__)
_CLIENT_OPTIONS = tuple(attribute.name for attribute in ClientOptions.__attrs_attrs__)


def check_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that `function` does not take, and say what was probably meant.

    Raises:
        TypeError: there is one that is not among the `known`.
    """
    unknown = sorted(set(given).difference(known))
    if unknown:
        hints = "; ".join(f"{name!r}: {_meant_by(name, known)}" for name in unknown)
        raise TypeError(f"{function}() has no such option as {hints}")


def check_client_keywords(given: Iterable[str]) -> None:
    """Raise `TypeError` for a keyword that is no option of a client."""
    check_keywords("Client", given, _CLIENT_OPTIONS)


def check_lock_keywords(function: str, given: Iterable[str], arguments: Any = LockArguments) -> None:
    """Raise `TypeError` for a keyword that is not among the `arguments`, a `TypedDict`."""
    check_keywords(function, given, arguments.__annotations__)


def _meant_by(name: str, known: Collection[str]) -> str:
    import difflib  # only a wrong option needs this import

    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    for function, options in (("lock", _LOCK_OPTIONS), ("Client", _CLIENT_OPTIONS)):
        if name in options:
            return f"it is an option of {function}()"
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
