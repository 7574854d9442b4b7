"""A lock for threads on the thread of an event loop: tasks never share a hold by accident, and a wait warns."""

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.masters import Deployment
from support.until import until

from relock import Client, Lock, LockLostError, RelockWarning

PATIENCE = 60.0  # seconds that nothing here may take

Connect = Callable[..., Client]


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    """Make an unexpected warning fail the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RelockWarning)
        yield


def test_of_twenty_tasks_of_one_thread_one_is_inside(client: Client, name: str) -> None:
    lock = client.lock(name)
    inside = 0
    most = 0
    refused: list[str] = []

    async def work(everybody_tried: asyncio.Event) -> None:
        nonlocal inside, most
        try:
            with lock:
                inside += 1
                most = max(most, inside)
                await everybody_tried.wait()
                assert lock.owned()
                inside -= 1
        except RuntimeError as error:
            refused.append(str(error))
            if len(refused) == 19:
                everybody_tried.set()

    async def main() -> None:
        everybody_tried = asyncio.Event()
        await asyncio.wait_for(asyncio.gather(*(work(everybody_tried) for _ in range(20))), 60)

    asyncio.run(main())
    assert most == 1
    assert len(refused) == 19
    assert all(name in text and "owner=" in text and "asyncio.to_thread" in text for text in refused)
    assert not client.info(name).held


def test_the_next_task_after_a_loss_is_told_of_the_loss(connect: Connect, server: Deployment, name: str) -> None:
    """Notebooks run each cell as a task: the next cell must hear of the loss, and not that another task is inside."""
    client = connect(server.url)
    lock = client.lock(name)

    async def take() -> None:
        lock.acquire()

    asyncio.run(take())
    client.force_release(name)
    until(lambda: lock.lost, within=60, what="the loss is known")
    with pytest.raises(LockLostError):
        asyncio.run(take())


def test_a_task_nests_in_itself(client: Client, name: str) -> None:
    lock, other = client.lock(name), client.lock(name)

    async def inner() -> None:
        with other:
            assert lock.hold_count == 2

    async def main() -> None:
        with lock:
            await asyncio.sleep(0)
            await inner()

    asyncio.run(main())
    assert not client.info(name).held


Cell = Callable[[], object]


def as_task(loop: asyncio.AbstractEventLoop, cell: Cell) -> object:
    async def run() -> object:
        return cell()

    return loop.run_until_complete(run())


def as_callback(loop: asyncio.AbstractEventLoop, cell: Cell) -> object:
    """Return a cell that runs in the loop, and in no task."""
    done = loop.create_future()

    def run() -> None:
        try:
            done.set_result(cell())
        except BaseException as error:
            done.set_exception(error)

    loop.call_soon(run)
    return loop.run_until_complete(done)


def without_a_loop(_: asyncio.AbstractEventLoop, cell: Cell) -> object:
    return cell()


Runner = Callable[[asyncio.AbstractEventLoop, Cell], object]


@pytest.fixture
def loop() -> Any:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("first", [as_task, as_callback, without_a_loop])
@pytest.mark.parametrize("second", [as_task, as_callback, without_a_loop])
def test_one_cell_of_a_notebook_acquires_and_another_releases(
    client: Client, name: str, loop: asyncio.AbstractEventLoop, first: Runner, second: Runner
) -> None:
    lock = client.lock(name)
    for _ in range(2):
        assert first(loop, lock.acquire) is True
        assert second(loop, lambda: lock.owned() and lock.hold_count == 1 and lock.extend() > 0) is True
        second(loop, lock.release)
        assert not client.info(name).held


@pytest.mark.parametrize(("first", "second"), [(as_task, as_task), (as_task, as_callback), (as_callback, as_task)])
def test_a_nested_acquire_in_another_cell_raises_and_changes_nothing(
    client: Client, name: str, loop: asyncio.AbstractEventLoop, first: Runner, second: Runner
) -> None:
    """The first task has ended by then, and the second one may have its id."""
    lock = client.lock(name)
    first(loop, lock.acquire)
    why = "which has ended without releasing it.*owner=" if first is as_task else "both would be inside.*owner="
    for nested in (lock.acquire, lock.__enter__, client.lock(name).acquire, lambda: lock.acquire(blocking=False)):
        with pytest.raises(RuntimeError, match=why):
            second(loop, nested)
    assert lock.hold_count == client.info(name).hold_count == 1
    second(loop, lock.release)
    assert not client.info(name).held
    second(loop, lock.acquire)
    second(loop, lock.release)


def test_a_hold_from_before_the_loop_lets_one_task_in_at_a_time(
    client: Client, name: str, loop: asyncio.AbstractEventLoop
) -> None:
    lock = client.lock(name)

    async def stay_inside(until_told: asyncio.Event) -> None:
        with lock:
            await until_told.wait()

    async def main() -> None:
        for _ in range(2):
            go_on = asyncio.Event()
            inside = asyncio.create_task(stay_inside(go_on))
            await asyncio.sleep(0)
            assert lock.hold_count == 2
            with pytest.raises(RuntimeError, match="owner="):
                lock.acquire()
            go_on.set()
            await inside
            with lock:
                pass

    with lock:
        loop.run_until_complete(main())
        with lock:  # the thread itself runs no loop now, and knows no tasks
            pass
        loop.run_until_complete(main())
        assert lock.hold_count == 1
    assert not client.info(name).held


def test_a_level_of_the_thread_does_not_make_a_task_that_has_left_be_taken_for_one_that_is_inside(
    client: Client, name: str, loop: asyncio.AbstractEventLoop
) -> None:
    lock = client.lock(name)
    with lock:
        as_task(loop, lock.acquire)
        as_task(loop, lock.release)
        with lock:
            as_task(loop, lock.acquire)
            as_task(loop, lock.release)


def test_tasks_that_name_the_same_owner_share_a_hold_on_purpose(client: Client, name: str) -> None:
    lock = client.lock(name, owner="job")

    async def work() -> int:
        with lock:
            await asyncio.sleep(0)
            return lock.hold_count

    async def main() -> list[int]:
        return await asyncio.gather(*(work() for _ in range(5)))

    assert max(asyncio.run(main())) == 5
    assert not client.info(name).held


def test_a_loss_is_told_to_the_task_that_had_it_and_not_to_another(
    client: Client, name: str, loop: asyncio.AbstractEventLoop
) -> None:
    from relock import LockLostError

    lock = client.lock(name)

    async def main() -> None:
        lock.acquire()
        lock.force_release()
        with pytest.raises(LockLostError):
            lock.acquire()
        with pytest.raises(LockLostError):
            lock.release()
        lock.acquire()
        lock.release()

    loop.run_until_complete(main())


# Waits that would block the loop --------------------------------------------------------------------------------------


async def acquire(lock: Lock, **arguments: Any) -> bool:
    return lock.acquire(**arguments)


def run(coroutine: Coroutine[Any, Any, bool]) -> bool:
    return asyncio.run(coroutine)


def test_a_wait_that_blocks_a_loop_is_warned_of_once_for_each_client(
    connect: Connect, server: Deployment, name: str
) -> None:
    held = connect(server.url).lock(name, owner="other")
    for _ in range(2):
        lock = connect(server.url).lock(name)
        held.acquire()
        releasing = release_when_it_is_waited_for(held)
        with pytest.warns(RelockWarning, match=f"'{name}'.*event loop.*asyncio.to_thread") as caught:
            assert run(acquire(lock, timeout=PATIENCE))
        assert [warning.filename for warning in caught] == [__file__], "the warning names the line that waits"
        releasing.join()
        lock.release()
        held.acquire()
        releasing = release_when_it_is_waited_for(held)
        assert run(acquire(lock, timeout=PATIENCE)), "the second wait gives no warning, which would be an error"
        releasing.join()
        lock.release()


def release_when_it_is_waited_for(held: Lock) -> threading.Thread:
    def release() -> None:
        until(lambda: held.info().queue, within=PATIENCE, what="a caller waits")
        held.release()

    thread = threading.Thread(target=release)
    thread.start()
    return thread


def test_what_does_not_wait_is_not_warned_of(client: Client, connect: Connect, server: Deployment, name: str) -> None:
    lock = client.lock(name)
    assert run(acquire(lock))
    lock.release()
    with connect(server.url).lock(name):
        assert not run(acquire(lock, blocking=False))
        assert not run(acquire(lock, timeout=0))
        assert not lock.acquire(timeout=0.05), "a wait on a thread without a loop does not warn"
        assert not asyncio.run(asyncio.to_thread(lock.acquire, timeout=0.05))


def test_a_warning_that_is_an_error_leaves_nothing_in_the_queue(
    client: Client, connect: Connect, server: Deployment, name: str
) -> None:
    redis = server.client()
    with connect(server.url).lock(name):
        with pytest.raises(RelockWarning):
            run(acquire(client.lock(name), timeout=30))
        until(lambda: redis.zcard(f"lock:{{{name}}}:queue") == 0, within=30, what="an empty queue")
    assert client.statistics().waiting == 0


def test_a_wait_behind_another_thread_of_its_owner_is_warned_of_too(
    client: Client, connect: Connect, server: Deployment, name: str
) -> None:
    with connect(server.url).lock(name):
        first = threading.Thread(target=client.lock(name, owner="job").acquire, kwargs={"timeout": 60})
        first.start()
        until(lambda: client.statistics().waiting == 1, within=20, what="the first waits")
        with pytest.warns(RelockWarning, match="event loop"):
            assert not run(acquire(client.lock(name, owner="job"), timeout=0.05))
    first.join()
    assert run(acquire(client.lock(name, owner="job"), timeout=20)), "a thread whose owner has the lock does not wait"
