"""Common part of tests of tasks: clients that are closed at the end, and waiting."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from relock import AsyncClient
from support.ends import leave_to_leases
from support.urls import options_for

SOON = 60.0  # seconds after which a wait has failed, also on a busy machine
NODE_TIMEOUT = 5.0
TURNS = (*range(20), *range(20, 311, 10))  # of a loop, after which a test cancels a call: up to the end of any
Connect = Callable[..., AsyncClient]


@asynccontextmanager
async def connecting() -> AsyncIterator[Connect]:
    """Yield a function that makes clients, which are closed at the end."""
    made: list[AsyncClient] = []

    def connect(url: Any, **options: Any) -> AsyncClient:
        client = AsyncClient(url, **options_for(url, options))
        made.append(client)
        return client

    try:
        yield connect
    finally:
        for client in made:
            leave_to_leases(client._session)
            await client.close()


async def until(predicate: Callable[[], object], what: str) -> None:
    """Wait until `predicate` is true."""

    async def look() -> None:
        while not predicate():
            await asyncio.sleep(0.002)

    try:
        await asyncio.wait_for(look(), SOON)
    except TimeoutError:
        raise AssertionError(f"not within {SOON} s: {what}") from None


async def cancel_after(turns: int, call: Coroutine[Any, Any, object]) -> bool:
    """Start a task, and cancel it so many turns of the loop later; return whether it was over by then."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    was_over = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return was_over


async def free(client: AsyncClient, name: str) -> None:
    """Wait until the lock is free and without waiters."""
    for _ in range(2000):
        info = await client.info(name)
        if not info.held and not info.queue:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} is not free: {info}")


async def lose(client: AsyncClient, name: str) -> None:
    """Let an operator end the hold; its owner soon finds that out."""
    assert await client.force_release(name)
