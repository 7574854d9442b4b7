"""Who is measured on an event loop: each has a coroutine function that acquires and releases once, uncontended."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from typing import Any

import redis.asyncio

from bench import contestants
from bench.aio.loop_socket import LoopSocket
from bench.aio.loops import HAS_UVLOOP, NewLoop, new_uvloop
from bench.aio.names import LOOP_FLOOR, REDIS_PY_TASKS, RELOCK_TASKS, RELOCK_THREADS, on_uvloop
from bench.contestants import LEASE_SECONDS
from relock import AsyncClient
from relock._core.quorum import quorum_of
from relock.cli._bench.floor.pairs import Asked, Pair
from relock.cli._bench.words import BARE

AsyncPair = Callable[[], Coroutine[Any, Any, None]]
PairOf = Callable[[Sequence[int]], AbstractAsyncContextManager[AsyncPair]]
"""Connects to the masters at these ports, until it is left."""


class LoopPairs:
    """Pairs on an event loop of their own, which runs only while they are made."""

    def __init__(self, pair_of: PairOf, ports: Sequence[int], new_loop: NewLoop) -> None:
        self._loop = new_loop()
        self._connected = pair_of(ports)
        self._pair = self._loop.run_until_complete(self._connected.__aenter__())

    def close(self) -> None:
        """Closes the connections and the loop."""
        self._loop.run_until_complete(self._connected.__aexit__(None, None, None))
        self._loop.close()

    def many(self, count: int) -> float:
        """How long (s) so many pairs took: to start and to stop the loop is no part of it."""
        return self._loop.run_until_complete(self._many(count))

    async def _many(self, count: int) -> float:
        pair = self._pair
        begin = time.perf_counter()
        for _ in range(count):
            await pair()
        return time.perf_counter() - begin


# The floor ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def floor(ports: Sequence[int]) -> AsyncIterator[AsyncPair]:
    """This library's two scripts over a socket that the loop watches: no lock that uses them can do with less."""
    loop, is_lone = asyncio.get_running_loop(), len(ports) == 1
    with ExitStack() as stack:
        masters = []
        for port in ports:
            asked = contestants.with_own_scripts(port, guarded=not is_lone)
            asked.bare.close()
            masters.append((stack.enter_context(closing(LoopSocket(loop, port))), asked))
        yield _on_one(*masters[0]) if is_lone else _on_several(masters)


def _on_one(bare: LoopSocket, asked: Asked) -> AsyncPair:
    async def pair() -> None:
        await bare.call(asked.take)
        await bare.call(asked.give)

    return pair


class _Round:
    """Counts the replies to one request to all masters. Those that come after the quorum are counted, too."""

    def __init__(self, done: "asyncio.Future[None]", quorum: int) -> None:
        self._done = done
        self._missing = quorum

    def has_come(self, _reply: Any) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._done.set_result(None)


def _on_several(masters: Sequence[tuple[LoopSocket, Asked]]) -> AsyncPair:
    """The same over several masters, done at the quorum."""
    loop, quorum = asyncio.get_running_loop(), quorum_of(len(masters))
    takes = [(bare, asked.take) for bare, asked in masters]
    gives = [(bare, asked.give) for bare, asked in masters]

    async def at_the_quorum(commands: Sequence[tuple[LoopSocket, bytes]]) -> None:
        done: asyncio.Future[None] = loop.create_future()
        has_come = _Round(done, quorum).has_come
        for bare, command in commands:
            bare.ask(command, has_come)
        await done

    async def pair() -> None:
        await at_the_quorum(takes)
        await at_the_quorum(gives)

    return pair


# Locks ----------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def relock(ports: Sequence[int]) -> AsyncIterator[AsyncPair]:
    """This library with its defaults; over several masters the first pair waits until their restart guard is over."""
    urls = [f"redis://127.0.0.1:{port}" for port in ports]
    async with AsyncClient(urls[0]) if len(urls) == 1 else AsyncClient(urls, ttl=LEASE_SECONDS) as client:
        lock = client.lock("bench-tasks")

        async def pair() -> None:
            await lock.acquire()
            await lock.release()

        yield pair


@asynccontextmanager
async def redis_py(ports: Sequence[int]) -> AsyncIterator[AsyncPair]:
    """The asyncio Lock of redis-py."""
    async with redis.asyncio.Redis(port=ports[0]) as client:
        lock = client.lock("bench-redis-py-tasks", timeout=LEASE_SECONDS)

        async def pair() -> None:
            await lock.acquire()
            await lock.release()

        yield pair


def on_loop(pair_of: PairOf, new_loop: NewLoop = asyncio.new_event_loop) -> Callable[[Sequence[int]], LoopPairs]:
    """What makes the pairs of one contestant, on a loop of its own."""
    return lambda ports: LoopPairs(pair_of, ports, new_loop)


Make = Callable[[Sequence[int]], Pair | LoopPairs]


def _ours() -> dict[str, Callable[[Sequence[int]], LoopPairs]]:
    """The floor and this library on every kind of loop, first on asyncio's own."""
    found = {LOOP_FLOOR: on_loop(floor), RELOCK_TASKS: on_loop(relock)}
    if HAS_UVLOOP:
        found[on_uvloop(LOOP_FLOOR)] = on_loop(floor, new_uvloop)
        found[on_uvloop(RELOCK_TASKS)] = on_loop(relock, new_uvloop)
    return found


#: Beside each other on one master. The threads' floor joins these figures to the others of the benchmark.
CONTESTANTS: dict[str, Make] = {
    **_ours(),
    RELOCK_THREADS: lambda ports: contestants.relock(ports[0]),
    BARE: lambda ports: contestants.bare(ports[0]),
    REDIS_PY_TASKS: on_loop(redis_py),
}
CONTESTANTS_OF_SEVERAL: dict[str, Make] = {
    **_ours(),
    RELOCK_THREADS: contestants.relock_of_several,
    BARE: contestants.bare_of_several,
}
