"""The event loops that are measured: asyncio's own, and uvloop where it is installed."""

import asyncio
import importlib.util
from collections.abc import Callable

NewLoop = Callable[[], asyncio.AbstractEventLoop]

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None


def new_uvloop() -> asyncio.AbstractEventLoop:
    """One of uvloop's."""
    import uvloop

    return uvloop.new_event_loop()
