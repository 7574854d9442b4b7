"""Tutorial for FastAPI: its programs, and the task or thread in which FastAPI runs each part of an endpoint."""

import asyncio
import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from support.servers import Server

from relock import AsyncClient, AsyncLock, Client, Lock, NotOwnedError

pytest.importorskip("fastapi", reason="it comes with the extra test")
pytest.importorskip("httpx", reason="it comes with the extra test")
import anyio.to_thread
import httpx
from fastapi import BackgroundTasks, Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
Handler = Callable[[Request], Awaitable[Response]]


def test_the_tests_of_the_tutorial_pass(tmp_path: Path) -> None:
    """Readers run the tests in the same way: in a folder of their own, with pytest alone."""
    for name in ("orders.py", "test_orders.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:valkey"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout


def load(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def answer(app: Any, path: str) -> Any:
    """Return the service's answer, and end its client."""

    async def ask() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return (await http.post(path)).json()

    return ask()


@pytest.fixture
def around(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example with a lock around its endpoints."""
    monkeypatch.setenv("REDIS_URL", server.url)
    example = load("around")
    monkeypatch.setattr(example, "WAIT_SECONDS", 60.0)  # however busy the machine is
    return example


async def until_free(client: AsyncClient, name: str) -> None:
    """Wait until the lock is free: an answer may come before the code around its endpoint has ended."""
    while (await client.info(name)).held:
        await asyncio.sleep(0.01)


def test_a_dependency_and_its_endpoint_have_one_hold(around: Any) -> None:
    async def scene() -> None:
        given = await asyncio.gather(*(answer(around.app, "/orders/7/cancel") for _ in range(5)))
        assert len({one["fence"] for one in given}) == 5
        await until_free(around.client, "orders:7")
        await around.client.close()
        around.threads.close()

    asyncio.run(scene())


def test_a_dependency_in_threads_has_one_hold_by_an_owner(around: Any) -> None:
    """Dependencies are entered, used and left in different threads, under enough requests to use each thread."""

    async def scene() -> None:
        given = await asyncio.gather(*(answer(around.app, "/report") for _ in range(20)))
        assert len({one["fence"] for one in given}) == 20
        await until_free(around.client, "report")
        await around.client.close()
        around.threads.close()

    asyncio.run(scene())


def test_middleware_and_its_endpoint_have_one_hold_by_an_owner(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        given = await asyncio.gather(*(answer(around.app, "/import") for _ in range(5)))
        assert len({one["fence"] for one in given}) == 5
        await until_free(around.client, "import")
        monkeypatch.setattr(around, "WAIT_SECONDS", 0.1)
        async with around.client.lock("import"):
            assert await answer(around.app, "/import") == {"detail": "another import is under way"}
        await around.client.close()
        around.threads.close()

    asyncio.run(scene())


def test_middleware_runs_its_endpoint_in_another_task(server: Server, name: str) -> None:
    """Endpoints do not own the hold of the middleware."""
    app, client = FastAPI(), AsyncClient(server.url)

    @app.middleware("http")
    async def around(request: Request, go_on: Handler) -> Response:
        async with client.lock(name):
            return await go_on(request)

    @app.post("/")
    async def endpoint() -> str:
        with pytest.raises(NotOwnedError, match=r"is held by the task .*, and the task .* give the lock an owner="):
            await client.lock(name).ensure()
        return "refused"

    async def scene() -> None:
        assert await answer(app, "/") == "refused"
        await client.close()

    asyncio.run(scene())


def test_a_body_that_is_streamed_and_a_plain_function_do_not_hold_what_a_dependency_has_taken(
    server: Server, name: str
) -> None:
    app, client, seen = FastAPI(), AsyncClient(server.url), list[object]()

    async def lock() -> AsyncIterator[AsyncLock]:
        async with client.lock(name) as held:
            yield held
        seen.append("left")

    @app.post("/streamed")
    async def streamed(held: Annotated[AsyncLock, Depends(lock)]) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            seen.append(held.owned())
            yield b"1"

        return StreamingResponse(body())

    @app.post("/plain")
    def plain(held: Annotated[AsyncLock, Depends(lock)]) -> str:
        try:
            held.owned()
        except RuntimeError as error:
            return str(error)
        return "owned"

    @app.post("/later")
    async def later(held: Annotated[AsyncLock, Depends(lock)], tasks: BackgroundTasks) -> int:
        async def work() -> None:
            seen.append(held.owned())

        tasks.add_task(work)
        return 1

    async def scene() -> None:
        assert await answer(app, "/streamed") == 1
        assert seen == [False, "left"], "the lock is held until the response is sent"
        assert "outside a task" in await answer(app, "/plain")
        seen.clear()
        assert await answer(app, "/later") == 1
        assert seen == [True, "left"], "the lock is held until the background tasks are done"
        await client.close()

    asyncio.run(scene())


def test_a_plain_dependency_without_an_owner_is_left_in_another_thread(server: Server, name: str) -> None:
    """The endpoint keeps the thread busy that entered the dependency, so another one leaves it."""
    app, client, entered, done = FastAPI(), Client(server.url), list[int](), threading.Event()
    errors = list[BaseException]()

    def lock() -> Iterator[Lock]:
        entered.append(threading.get_ident())
        try:
            with client.lock(name) as held:
                yield held
        except NotOwnedError as error:
            errors.append(error)

    @app.post("/")
    async def endpoint(held: Annotated[Lock, Depends(lock)]) -> int:
        working = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            assert threading.get_ident() in entered, "the pool gives the thread that became idle last"
            loop.call_soon_threadsafe(working.set)
            done.wait()

        tasks.append(asyncio.create_task(anyio.to_thread.run_sync(work)))
        await working.wait()
        return 1

    tasks = list[asyncio.Task[None]]()

    async def scene() -> None:
        try:
            assert await answer(app, "/") == 1
        finally:
            done.set()
            await asyncio.gather(*tasks)

    asyncio.run(scene())
    assert len(errors) == 1
    assert client.info(name).held, "the first thread keeps the lock"
    client.close()
