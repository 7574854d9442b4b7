"""A task that ends in order when its process gets SIGTERM."""

import asyncio
import contextlib
import os
import signal

from relock import AsyncClient


async def main() -> None:
    """Is cancelled, and so leaves through every ``async with`` block on the way."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncClient(os.environ.get("REDIS_URL", "redis://localhost:6379/0")) as client:
        try:
            async with client.lock("nightly report"):
                print("working", flush=True)
                await asyncio.sleep(3600)
        finally:
            print("released", flush=True)


with contextlib.suppress(asyncio.CancelledError):
    asyncio.run(main())
