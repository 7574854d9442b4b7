"""What a task's acquire and release take, on one master: calls of relock's functions, whatever the loop's own take."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

from support.servers import Server

import relock
from relock import AsyncClient

PACKAGE = str(Path(relock.__file__).parent)
REPEATS = 20  # the fewest count: a reply that makes what is known of a clock tighter takes more
CALLS_MAX = {"acquire": 41, "release": 41}


async def count(call: Callable[[], Awaitable[object]]) -> int:
    """How many of relock's functions are called, or gone on with, until it is over."""
    calls = 0

    def see(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(see)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return calls


async def test_a_task_s_acquire_and_release_make_few_calls(server: Server, name: str) -> None:
    async with AsyncClient(server.url) as client:
        lock = client.lock(name)
        counts = [(await count(lock.acquire), await count(lock.release)) for _ in range(REPEATS)]
    fewest = dict(zip(CALLS_MAX, map(min, zip(*counts, strict=True)), strict=True))
    assert all(fewest[call] <= CALLS_MAX[call] for call in CALLS_MAX), fewest
