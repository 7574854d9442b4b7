"""A lock around an endpoint: by a dependency, in threads by another one, and by middleware."""

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from relock import AcquireTimeoutError, AsyncClient, AsyncLock, Client, Lock

threads = Client(os.environ.get("REDIS_URL", "redis://localhost:6379/0"))
client = AsyncClient(threads)  # one session for threads and tasks
app = FastAPI()
WAIT_SECONDS = 2.0


async def order_lock(order_id: int) -> AsyncIterator[AsyncLock]:
    """The lock of the order in the path, held until the response is sent."""
    async with client.lock(f"orders:{order_id}", timeout=WAIT_SECONDS) as held:
        yield held


@app.post("/orders/{order_id}/cancel")
async def cancel(order_id: int, held: Annotated[AsyncLock, Depends(order_lock)]) -> dict[str, int]:
    """Runs in the task in which the dependency has entered."""
    return {"order": order_id, "fence": await held.ensure()}


def report_lock() -> Iterator[Lock]:
    """The lock of the report. FastAPI enters and leaves in different threads: so the owner is this request."""
    lock = threads.lock("report", owner=f"request-{uuid.uuid4()}", max_hold=60.0, timeout=WAIT_SECONDS)
    with lock:
        yield lock


@app.post("/report")
def report(held: Annotated[Lock, Depends(report_lock)]) -> dict[str, int]:
    """Runs in a third thread, and uses the same hold."""
    return {"fence": held.ensure()}


@app.middleware("http")
async def one_import_at_a_time(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """Runs the endpoint in another task: so the hold belongs to an owner of the request's own."""
    if request.url.path != "/import":
        return await go_on(request)
    lock = client.lock("import", owner=f"request-{uuid.uuid4()}", max_hold=60.0, timeout=WAIT_SECONDS)
    request.state.lock = lock
    try:
        async with lock:
            return await go_on(request)
    except AcquireTimeoutError:
        return JSONResponse({"detail": "another import is under way"}, 409)


@app.post("/import")
async def import_all(request: Request) -> dict[str, int]:
    """Uses the hold of the middleware."""
    lock: AsyncLock = request.state.lock
    return {"fence": await lock.ensure()}
