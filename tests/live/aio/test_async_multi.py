"""Several locks as one, for tasks: owners, cancellation, and bodies that a loss cancels."""

import asyncio
import contextlib

import pytest
from support.masters import Deployment
from support.tasks import NODE_TIMEOUT, SOON, cancel_after, free, lose, until
from support.until import until as sync_until
from support.urls import options_for

from relock import AsyncClient, AsyncMultiLock, Client, ClientClosedError, LockLostError, Loss, LossCode, NotOwnedError

pytestmark = pytest.mark.every_quorum


def names_of(name: str) -> list[str]:
    return [f"{name}-{letter}" for letter in "abc"]


async def all_free(client: AsyncClient, lock: AsyncMultiLock) -> None:
    """Wait until nothing is left of any of the locks."""
    for name in lock.names:
        await free(client, name)


async def test_all_locks_belong_to_the_task_that_takes_them(client: AsyncClient, name: str) -> None:
    lock = client.lock_all(names_of(name))

    async def try_it() -> tuple[bool, bool]:
        return lock.owned(), await lock.acquire(blocking=False)

    async with lock:
        assert lock.owned()
        assert await lock.ensure() == lock.tokens
        assert await asyncio.create_task(try_it()) == (False, False)
        async with client.lock(lock.names[1]), lock:
            assert lock.hold_count == 2
        assert await lock.locked()
        assert {info.hold_count for info in (await lock.info()).values()} == {1}
        assert await lock.extend() > 0
    assert not await lock.locked()
    await all_free(client, lock)


async def test_a_call_that_is_cancelled_leaves_nothing(client: AsyncClient, name: str) -> None:
    """The task waits for the second lock, and has the first one."""
    lock = client.lock_all(names_of(name))
    async with client.lock(lock.names[1], owner="holder"):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lock.acquire(), 0.3)
        assert not lock.owned()
        await free(client, lock.names[0])
        await free(client, lock.names[2])
    await all_free(client, lock)
    assert client.statistics().held == 0


async def test_a_release_that_is_cancelled_is_carried_out(client: AsyncClient, name: str) -> None:
    """Cancelled before it begins, and in its middle."""
    lock = client.lock_all(names_of(name), owner="job")
    for turns in (0, 1):
        await lock.acquire()
        await cancel_after(turns, lock.release())
        await all_free(client, lock)
    assert client.statistics().held == 0


async def test_tasks_with_overlapping_names_never_wait_for_each_other(client: AsyncClient, name: str) -> None:
    a, b, c = names_of(name)
    inside: list[set[str]] = []

    async def work(names: list[str]) -> None:
        for _ in range(5):
            async with client.lock_all(names, timeout=SOON):
                assert not any(set(names) & other for other in inside)
                inside.append(set(names))
                await asyncio.sleep(0)
                inside.remove(set(names))

    sets = [[a, b], [b, a], [c, a], [b, c], [c, b, a], [b]]
    await asyncio.gather(*(work(names) for names in sets))
    await all_free(client, client.lock_all([a, b, c]))


async def test_calls_of_one_owner_at_once_are_counted_for_each_lock(client: AsyncClient, name: str) -> None:
    lock = client.lock_all(names_of(name), owner="job")
    assert await asyncio.gather(*(lock.acquire() for _ in range(5))) == [True] * 5
    assert lock.hold_count == 5
    await asyncio.gather(*(lock.release() for _ in range(4)), lock.acquire(blocking=False))
    assert lock.hold_count == 2
    await asyncio.gather(lock.release(), lock.release())
    with pytest.raises(NotOwnedError):
        await lock.release()
    await all_free(client, lock)


@pytest.mark.parametrize("number", [0, 2])
async def test_a_body_is_cancelled_when_one_lock_is_lost(number: int, client: AsyncClient, name: str) -> None:
    told: list[Loss] = []
    reached: list[str] = []
    lock = client.lock_all(names_of(name), cancel_on_lost=True, on_lost=told.append)

    async def work() -> None:
        async with lock:
            await lose(client, lock.names[number])
            await asyncio.sleep(SOON)
            reached.append("the end of the body")

    with pytest.raises(LockLostError) as caught:
        await work()
    assert caught.value.lock == lock.names[number]
    assert not reached
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
    await all_free(client, lock)
    async with lock:
        await asyncio.sleep(0)
    await until(lambda: told, "the loss is told")
    assert [loss.lock for loss in told] == [lock.names[number]]


async def test_a_body_is_cancelled_once_though_all_locks_are_lost(client: AsyncClient, name: str) -> None:
    lock = client.lock_all(names_of(name), cancel_on_lost=True)

    async def work() -> None:
        async with lock:
            for one in lock.names:
                (hold,) = client._session.holds.of_name(one)
                client._session.lose(hold, LossCode.EXPIRED)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(SOON)
            await asyncio.sleep(0.01)

    with pytest.raises(LockLostError):
        await work()
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
    assert not lock._loss_hooks, "no hook is left"
    await asyncio.sleep(0.01)


async def test_a_block_that_is_left_well_leaves_no_hook(client: AsyncClient, name: str) -> None:
    lock = client.lock_all(names_of(name), cancel_on_lost=True)
    plain = client.lock(lock.names[0])
    async with plain:
        (hold,) = client._session.holds.of_name(plain.name)
        async with lock, lock:
            assert len(hold.loss_hooks) == 2
        assert not hold.loss_hooks
        assert not lock._loss_hooks
        client._session.lose(hold, LossCode.EXPIRED)
        await asyncio.sleep(0.01)
        with pytest.raises(LockLostError):
            await plain.release()
        await plain.acquire()


# Ends -----------------------------------------------------------------------------------------------------------------


def wait_until_free(client: Client, *names: str) -> None:
    def are_free() -> bool:
        infos = [client.info(name) for name in names]
        return not any(info.held or info.queue for info in infos)

    sync_until(are_free, within=SOON, what="all are free")


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_close_ends_a_wait_and_gives_back_the_locks_before(
    server: Deployment, name: str, *, is_own: bool
) -> None:
    options = options_for(server.url, {"node_timeout": 1.0})  # so long does a close last
    a, b, c = names_of(name)
    with Client(server.url, **options) as others, Client(server.url, **options) as threads:
        client = AsyncClient(server.url, **options) if is_own else AsyncClient(threads)
        lock = client.lock_all([a, b, c])
        others.lock(b, owner="other").acquire()
        waiting = asyncio.create_task(lock.acquire())
        await until(lambda: client.statistics().waiting == 1, "the task waits, and has the first lock")
        await client.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await lock.acquire()
        await asyncio.to_thread(wait_until_free, others, a, c)
        others.lock(b, owner="other").release()
        await asyncio.to_thread(wait_until_free, others, b)


async def test_locks_are_released_though_the_client_of_their_task_was_closed(server: Deployment, name: str) -> None:
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client = AsyncClient(threads)
        lock = client.lock_all(names_of(name))
        await lock.acquire()
        await client.close()
        await lock.release()
        assert not lock.owned()
        with pytest.raises(NotOwnedError):
            await lock.release()
        await asyncio.to_thread(wait_until_free, threads, *lock.names)


def test_what_a_task_of_a_closed_loop_had_of_all_is_given_back(server: Deployment, name: str) -> None:
    """The task is kept alive, not cancelled: it waits for the second lock, and has the first one."""
    a, b, c = names_of(name)
    with Client(server.url, **options_for(server.url, {"node_timeout": NODE_TIMEOUT})) as threads:
        client, loop = AsyncClient(threads), asyncio.new_event_loop()
        threads.lock(b, owner="other").acquire()
        tasks: list[asyncio.Task[bool]] = []

        async def wait() -> None:
            tasks.append(asyncio.create_task(client.lock_all([a, b, c], owner="job").acquire()))
            await until(lambda: client.statistics().waiting == 1, "the task is in the queue")

        loop.run_until_complete(wait())
        loop.close()
        wait_until_free(threads, a, c)
        threads.lock(b, owner="other").release()
        wait_until_free(threads, b)
        with threads.lock_all([a, b, c], owner="job", timeout=SOON):
            pass
        asyncio.run(client.close())
        assert not threads._session.several
        assert not tasks[0].done()
        tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_body_that_is_closed_after_its_loop_gives_all_locks_back(server: Deployment, name: str) -> None:
    client, loop = AsyncClient(server.url, **options_for(server.url, {})), asyncio.new_event_loop()
    names = names_of(name)

    async def work() -> None:
        async with client.lock_all(names, owner="job", cancel_on_lost=True):
            await asyncio.sleep(3600)

    body = work()
    task = loop.create_task(body)
    loop.run_until_complete(until(lambda: client.statistics().held == 3, "the task has all locks"))
    loop.close()
    with pytest.raises(RuntimeError, match="no event loop of asyncio runs"):
        body.close()
    with Client(server.url, **options_for(server.url, {})) as others:
        wait_until_free(others, *names)
    asyncio.run(client.close())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
