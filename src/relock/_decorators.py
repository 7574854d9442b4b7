"""Doors of `synchronized`: the method of each client, a decorator with the options of a lock and its own."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, overload

from relock._errors import ConfigurationError
from relock._options import LockArguments, check_flag
from relock._signatures import check_lock_keywords

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskArguments(LockArguments, total=False):
    """Options of a lock of tasks, for type checkers."""

    cancel_on_lost: bool


class Synchronizes:
    """Base of `Client`: its `synchronized`."""

    lock: Callable[..., AbstractContextManager[object]]

    @overload
    def synchronized(
        self, template: str, *, skip: Literal[False] = False, **lock_options: Unpack[LockArguments]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    @overload
    def synchronized(
        self, template: str, *, skip: bool, otherwise: None = None, **lock_options: Unpack[LockArguments]
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
    @overload
    def synchronized(
        self, template: str, *, skip: bool, otherwise: T, **lock_options: Unpack[LockArguments]
    ) -> Callable[[Callable[P, R]], Callable[P, R | T]]: ...
    def synchronized(
        self, template: str, *, skip: bool = False, otherwise: Any = None, **lock_options: Unpack[LockArguments]
    ) -> Any:
        """Return a decorator: the function runs while the caller holds the lock that `template` names.

        Args:
            template: the lock's name; ``"orders:{order_id}"`` uses the function's argument ``order_id``.
            skip: True: look once; if another owner has the lock, or a waiter's turn comes first, do not call the
                function. Not with ``timeout``. Default False: wait, as ``with`` does.
            otherwise: what the caller gets in place of a result then; default None. Only with ``skip=True``.
            lock_options: as for `lock`.

        Raises:
            ConfigurationError: a value or template that can't work, or an argument that the function does not have.
            TypeError: a wrong type, an unknown option; a coroutine function, a generator function, a context manager, a
                class, or a static method or property, whose decorators belong above this one. Calling the function
                raises it if the function returns an awaitable, which is closed or cancelled.

        A `RelockWarning` says that the name contains an object's address, so each object has a lock of its own.
        """
        from relock._synchronized import decorator

        options = checked(template, skip, otherwise, lock_options, LockArguments)
        self.lock("any", **options)  # a wrong option is refused now, not at the first call
        return decorator(template, partial(self.lock, **options), skip, otherwise)


class SynchronizesTasks:
    """Base of `AsyncClient`: its `synchronized`."""

    lock: Callable[..., AbstractAsyncContextManager[object]]

    @overload
    def synchronized(
        self, template: str, *, skip: Literal[False] = False, **lock_options: Unpack[TaskArguments]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def synchronized(
        self, template: str, *, skip: bool, otherwise: None = None, **lock_options: Unpack[TaskArguments]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...
    @overload
    def synchronized(
        self, template: str, *, skip: bool, otherwise: T, **lock_options: Unpack[TaskArguments]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | T]]]: ...
    def synchronized(
        self, template: str, *, skip: bool = False, otherwise: Any = None, **lock_options: Unpack[TaskArguments]
    ) -> Any:
        """Return a decorator for coroutine functions: one runs while it holds the lock that `template` names.

        Args:
            template: the lock's name; ``"orders:{order_id}"`` uses the function's argument ``order_id``.
            skip: True: look once; if another owner has the lock, or a waiter's turn comes first, do not call the
                function. Not with ``timeout``. Default False: wait, as ``async with`` does.
            otherwise: what the caller gets in place of a result then; default None. Only with ``skip=True``.
            lock_options: as for `lock`, with ``cancel_on_lost``.

        Raises:
            ConfigurationError: a value or template that can't work, or an argument that the function does not have.
            TypeError: a wrong type, an unknown option; anything but a coroutine function: a generator function of
                either kind, a context manager, a class, a function that is not awaited.
        """
        from relock._synchronized import coroutine_decorator

        options = checked(template, skip, otherwise, lock_options, TaskArguments)
        self.lock("any", **options)  # a wrong option is refused now, not at the first call
        return coroutine_decorator(template, partial(self.lock, **options), skip, otherwise)


def checked(template: object, skip: bool, otherwise: object, options: LockArguments, known: type) -> LockArguments:
    """Return the options of the lock: those that are given, which are known, and a timeout of 0 with `skip`.

    Raises:
        TypeError: an unknown option, a wrong type of the template or of `skip`.
        ConfigurationError: no lock can be called so; `skip` with a timeout; `otherwise` without `skip`.
    """
    from relock._synchronized import check_template

    check_template(template)
    check_lock_keywords("synchronized", options, known)
    check_flag("skip", skip)
    if not skip:
        if otherwise is not None:
            raise ConfigurationError(
                f"otherwise={otherwise!r}: calls that are skipped return it; write skip=True, too", option="otherwise"
            )
        return options
    if options.get("timeout") is not None:
        text = (
            f"timeout={options['timeout']!r}: a call with skip=True looks once and never waits; leave one of them out"
        )
        raise ConfigurationError(text, option="timeout")
    return {**options, "timeout": 0.0}
