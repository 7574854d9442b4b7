"""Calls of the doors for tasks must be awaited: each is neither true nor false, and a coroutine to all of asyncio."""

import asyncio
import gc
import inspect
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from relock import AsyncClient, AsyncLock
from relock.aio_lock import AwaitedCall

MEMBERS: dict[str, Callable[[AsyncLock], Any]] = {
    "AsyncLock.acquire": lambda lock: lock.acquire(),
    "AsyncLock.release": lambda lock: lock.release(),
    "AsyncLock.locked": lambda lock: lock.locked(),
    "AsyncLock.force_release": lambda lock: lock.force_release(),
    "AsyncClient.force_release": lambda lock: lock._client.force_release(lock.name),
}


@pytest.fixture
async def lock() -> AsyncLock:
    """A lock whose master does not exist; the tests send no request."""
    return AsyncClient("redis://127.0.0.1:1").lock("a")


@pytest.mark.parametrize("member", MEMBERS)
async def test_what_must_be_awaited_is_neither_true_nor_false(lock: AsyncLock, member: str) -> None:
    call = MEMBERS[member](lock)
    for judge in (bool, lambda call: not call, lambda call: call and 1):
        with pytest.raises(TypeError, match="neither true nor false: await it"):
            judge(call)
    call.close()


async def test_a_call_that_nobody_awaits_is_warned_of_by_python(lock: AsyncLock) -> None:
    def forget() -> None:
        lock.acquire()  # type: ignore[unused-coroutine]
        gc.collect()

    with pytest.warns(RuntimeWarning, match="was never awaited"):
        forget()


async def add(one: int, other: int, *, turns: int = 1) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    if other < 0:
        raise ValueError(other)
    return one + other


async def in_a_group(call: Coroutine[Any, Any, int]) -> int:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(call)
    return task.result()


async def eagerly(call: Coroutine[Any, Any, int]) -> int:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    try:
        return await loop.create_task(call)
    finally:
        loop.set_task_factory(None)


async def plainly(call: Awaitable[int]) -> int:
    return await call


async def first_of_all(call: Coroutine[Any, Any, int]) -> int:
    return (await asyncio.gather(call))[0]


WAYS: dict[str, Callable[[Coroutine[Any, Any, int]], Awaitable[int]]] = {
    "await": plainly,
    "wait_for": lambda call: asyncio.wait_for(call, 10),
    "gather": first_of_all,
    "shield": asyncio.shield,
    "create_task": asyncio.create_task,
    "TaskGroup": in_a_group,
}
if sys.version_info >= (3, 12):
    WAYS["an eager task"] = eagerly


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turns", [0, 2])
async def test_asyncio_takes_it_as_a_coroutine(way: str, turns: int) -> None:
    assert await WAYS[way](AwaitedCall(add(1, 2, turns=turns))) == 3
    with pytest.raises((ValueError, ExceptionGroup)):
        await WAYS[way](AwaitedCall(add(1, -2, turns=turns)))


async def test_tools_see_which_code_runs() -> None:
    call = AwaitedCall(add(1, 2))
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CREATED
    task = asyncio.create_task(call)
    assert "add() running at" in repr(task)
    await asyncio.sleep(0)
    assert task.get_stack()
    assert await task == 3
    with pytest.raises(AttributeError, match="'AwaitedCall' object has no attribute 'other'"):
        call.other  # noqa: B018


async def test_a_cancellation_strikes_what_it_runs() -> None:
    task = asyncio.create_task(AwaitedCall(add(1, 2, turns=1000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_one_that_is_closed_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AwaitedCall(add(1, 2)).close()
        gc.collect()
