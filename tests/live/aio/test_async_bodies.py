"""``cancel_on_lost``: the body of an ``async with`` is cancelled when its hold is lost, and nothing else is."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT, SOON, Connect, free, lose, until
from support.until import until as wait_until
from support.urls import options_for

from relock import AsyncClient, Client, LockLostError, LossCode, NotOwnedError
from relock._core.hold import Hold
from relock._runtime.aio.loss_hook import LossHooks

pytestmark = pytest.mark.every_quorum


async def test_a_body_is_cancelled_when_its_hold_is_lost(client: AsyncClient, name: str) -> None:
    reached = []

    async def work() -> None:
        async with client.lock(name, cancel_on_lost=True):
            await lose(client, name)
            await asyncio.sleep(SOON)
            reached.append("the end of the body")

    with pytest.raises(LockLostError):
        await work()
    assert not reached
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)


async def test_a_body_is_cancelled_at_once_when_another_client_ends_its_hold(
    server: Deployment, connect: Connect, name: str
) -> None:
    client, operator = connect(server.url, ttl=600, node_timeout=NODE_TIMEOUT), connect(server.url)

    async def work() -> None:
        async with client.lock(name, cancel_on_lost=True):
            hubs = client._session.hubs
            await until(lambda: any(hub.is_confirmed() for hub in hubs.all()), "the loop listens")
            assert await operator.force_release(name)
            await asyncio.sleep(SOON)  # no renewal is due for minutes

    with pytest.raises(LockLostError, match="by force"):
        await work()


async def test_a_body_that_ends_before_it_is_cancelled_cancels_nothing_else(client: AsyncClient, name: str) -> None:
    async def work() -> None:
        async with client.lock(name, cancel_on_lost=True):
            (hold,) = client._session.holds.of_name(name)
            client._session.lose(hold, LossCode.EXPIRED)

    with pytest.raises(LockLostError):
        await work()
    await asyncio.sleep(0.01)


async def test_a_body_is_cancelled_once_however_often_it_is_told(client: AsyncClient, name: str) -> None:
    """Holds may be lost just when the body begins."""

    async def work() -> None:
        async with client.lock(name, cancel_on_lost=True):
            (hold,) = client._session.holds.of_name(name)
            (tell,) = hold.loss_hooks
            client._session.lose(hold, LossCode.EXPIRED)
            tell(hold.loss)  # type: ignore[arg-type]
            await asyncio.sleep(SOON)

    with pytest.raises(LockLostError):
        await work()
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_a_body_is_cancelled_though_a_callback_keeps_those_after_it_waiting(
    connect: Connect, server: Deployment, name: str
) -> None:
    goes_on = threading.Event()
    client = connect(server.url, on_lost=lambda _: goes_on.wait(SOON))

    async def work() -> None:
        async with client.lock(name, cancel_on_lost=True, on_lost=lambda _: goes_on.wait(SOON)):
            await lose(client, name)
            await asyncio.sleep(SOON)

    try:
        with pytest.raises(LockLostError):
            await work()
        assert not goes_on.is_set()
    finally:
        goes_on.set()


async def test_a_body_that_swallows_its_cancellation_and_has_another_one_pending_releases(
    client: AsyncClient, name: str
) -> None:
    lock = client.lock(name, cancel_on_lost=True)

    async def work() -> None:
        async with lock:
            (hold,) = client._session.holds.of_name(name)
            client._session.lose(hold, LossCode.EXPIRED)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(SOON)
            asyncio.current_task().cancel()  # type: ignore[union-attr]

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [hold for hold in client._session.holds.of_name(name) if hold.count]


async def test_a_cancellation_from_elsewhere_goes_on(client: AsyncClient, name: str) -> None:
    async def work() -> None:
        async with client.lock(name, cancel_on_lost=True):
            begun.set()
            await asyncio.sleep(SOON)

    begun = asyncio.Event()
    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    await free(client, name)


async def test_an_inner_level_is_left_and_the_outer_body_is_still_cancelled(client: AsyncClient, name: str) -> None:
    lock = client.lock(name, cancel_on_lost=True)

    async def work() -> None:
        async with lock:
            async with lock:
                pass
            await lose(client, name)
            await asyncio.sleep(SOON)

    with pytest.raises(LockLostError):
        await work()


async def test_a_generator_that_another_task_closes_says_that_it_did_not_release(
    client: AsyncClient, name: str
) -> None:
    lock = client.lock(name)

    async def hold() -> AsyncIterator[None]:
        async with lock:
            yield

    generator = hold()
    await anext(generator)
    with pytest.raises(NotOwnedError, match="owner="):
        await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
    assert lock.owned()
    await lock.release()


async def test_a_cancellation_does_not_hide_that_the_hold_was_lost(client: AsyncClient, name: str) -> None:
    """Cancellations from elsewhere go on, with a note, even if the lock would cancel its body for the loss."""

    async def work() -> None:
        async with client.lock(name):
            (hold,) = client._session.holds.of_name(name)
            client._session.lose(hold, LossCode.EXPIRED)
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError as error:
                found.append(error)
                raise

    found: list[BaseException] = []
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert "LockLostError" in found[0].__notes__[0]


async def test_a_client_that_is_closed_between_the_grant_and_the_body_leaves_no_hold(
    server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = LossHooks.add

    def add_to_closed(hooks: LossHooks, holds: Iterable[Hold]) -> None:
        thread = threading.Thread(target=lambda: asyncio.run(client.close()))
        thread.start()
        thread.join()
        add(hooks, holds)

    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client = AsyncClient(threads)
        monkeypatch.setattr(LossHooks, "add", add_to_closed)
        async with client.lock(name, cancel_on_lost=True):
            assert threads.statistics().held == 1
        assert threads.statistics().held == 0
        await asyncio.to_thread(wait_until, lambda: not threads.info(name).held, within=SOON, what="it is free")
