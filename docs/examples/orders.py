"""Ships each order once, however many requests ask for it. Run it by: uvicorn orders:app --workers 2."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from relock import AcquireTimeoutError, AsyncClient, QuorumError

logger = logging.getLogger(__name__)

WAIT_SECONDS = 2.0  # for which a request waits for another one
CARRIER_SECONDS = 1.0  # which the carrier may take


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the whole process. It connects when a request first needs a lock."""
    app.state.database = open_database()
    async with AsyncClient(os.environ.get("REDIS_URL", "redis://localhost:6379/0")) as client:
        app.state.client = client
        yield
    app.state.database.close()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order_id}/ship")
async def ship(order_id: int, request: Request) -> dict[str, str]:
    """Buys a label for the order, unless it has one."""
    client: AsyncClient = request.app.state.client
    database: sqlite3.Connection = request.app.state.database
    async with client.lock(f"orders:{order_id}", timeout=WAIT_SECONDS) as held:
        label = read_label(database, order_id)
        if label is None:
            await held.ensure(CARRIER_SECONDS)  # LockLostError unless the lock is sure for as long
            async with asyncio.timeout(CARRIER_SECONDS):
                label = await buy_label(order_id)
            write_label(database, order_id, label, fence=await held.ensure())
    return {"label": label}


@app.exception_handler(AcquireTimeoutError)
async def busy(_request: Request, error: AcquireTimeoutError) -> JSONResponse:
    """Another request had the lock for all of WAIT_SECONDS, and the body of the endpoint has not run."""
    return JSONResponse({"detail": f"{error.lock} is busy"}, 409, {"Retry-After": "1"})


@app.exception_handler(QuorumError)
async def away(_request: Request, error: QuorumError) -> JSONResponse:
    """The server of the locks does not answer, so nothing is known about the lock."""
    logger.error("%s", error)
    return JSONResponse({"detail": "try again later"}, 503, {"Retry-After": "5"})


async def buy_label(order_id: int) -> str:
    """Stands for the call of a carrier, who charges for each."""
    await asyncio.sleep(0.05)
    return f"label of order {order_id}"


def open_database() -> sqlite3.Connection:
    """Stands for your database. `fence` is the greatest token that has written the row."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, label TEXT, fence INTEGER NOT NULL DEFAULT 0)")
    database.executemany("INSERT INTO orders (id) VALUES (?)", [(1,), (2,)])
    return database


def read_label(database: sqlite3.Connection, order_id: int) -> str | None:
    """The order's label, if it has one."""
    row = database.execute("SELECT label FROM orders WHERE id = ?", (order_id,)).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such order")
    label: str | None = row[0]
    return label


def write_label(database: sqlite3.Connection, order_id: int, label: str, fence: int) -> None:
    """Writes the label, unless a holder with a newer token has written the order."""
    with database:  # one transaction
        written = database.execute(
            "UPDATE orders SET label = ?, fence = ? WHERE id = ? AND fence <= ?", (label, fence, order_id, fence)
        )
    if written.rowcount == 0:
        raise HTTPException(409, "a newer request has written this order")
