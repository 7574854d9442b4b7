"""Signatures of functions that take keywords by ``**`` and refuse unknown ones by themselves."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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
