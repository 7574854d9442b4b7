"""A lock can stand in for threading.RLock, as CPython's own tests of locks and conditions show, and a few more."""

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.masters import Deployment
from support.urls import Urls

from relock import Client, NotOwnedError

pytestmark = pytest.mark.every_quorum

HAS_CPYTHON_TESTS = importlib.util.find_spec("test") is not None and (
    importlib.util.find_spec("test.lock_tests") is not None
)
TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(not HAS_CPYTHON_TESTS and not os.environ.get("CI"), reason="this Python comes without its tests")
@pytest.mark.parametrize("case", ["RLockTests", "ConditionTests"])
def test_the_lock_tests_of_cpython(case: str, server: Deployment) -> None:
    urls = server.url.word if isinstance(server.url, Urls) else server.url
    done = subprocess.run(
        [sys.executable, "-m", "workers.cpython_locks", case, urls],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((False, 1), ValueError),
        ((True, -2), ValueError),
        ((True, float("nan")), ValueError),
        ((True, threading.TIMEOUT_MAX * 2), OverflowError),
        ((True, 1e100), OverflowError),
    ],
)
def test_arguments_are_judged_as_an_rlock_judges_them(
    client: Client, name: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        client.lock(name).acquire(*arguments)


def test_the_largest_timeout_is_taken(client: Client, name: str) -> None:
    assert client.lock(name).acquire(True, threading.TIMEOUT_MAX)


def test_acquire_takes_its_arguments_by_position_and_by_name(client: Client, name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire(False) is True
    assert lock.acquire(blocking=True, timeout=-1) is True
    assert lock.acquire(True, 0.5) is True


def test_a_timeout_of_minus_one_waits_as_long_as_it_takes_whatever_the_lock_says(client: Client, name: str) -> None:
    lock, busy = client.lock(name, timeout=0.1), client.lock(name, owner="somebody else")
    busy.acquire()
    assert lock.acquire() is False
    releaser = threading.Timer(0.5, busy.release)
    releaser.start()
    assert lock.acquire(timeout=-1) is True
    releaser.join()


def test_a_release_by_somebody_else_is_a_runtime_error(client: Client, name: str) -> None:
    lock = client.lock(name)
    with pytest.raises(RuntimeError):
        lock.release()
    with lock:
        errors: list[BaseException] = []

        def release() -> None:
            try:
                lock.release()
            except NotOwnedError as error:
                errors.append(error)

        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        assert len(errors) == 1
        assert lock.owned()


def test_repr_is_local_and_names_the_state(client: Client, server: Deployment, name: str) -> None:
    lock = client.lock(name)
    before = server.calls()
    assert repr(lock).startswith("<unlocked relock.lock.Lock object")
    assert f"name={name!r}" in repr(lock)
    assert server.calls() == before
    with lock, lock:
        assert repr(lock).startswith("<locked relock.lock.Lock object")
        assert "count=2" in repr(lock)


def test_weak_references_work_and_nothing_keeps_a_lock_alive(client: Client, name: str) -> None:
    lock = client.lock(name)
    reference = weakref.ref(lock)
    assert reference() is lock
    with lock:
        pass
    del lock
    gc.collect()
    assert reference() is None


def test_making_a_lock_and_a_client_sends_nothing(
    server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    before = server.calls()
    repr(connect("redis://127.0.0.1:1").lock(name))
    repr(connect(server.url).lock(name))
    assert server.calls() == before


@pytest.fixture
def queue_with_an_rlock(client: Client, name: str) -> Any:
    """Return an object of the standard library that takes an RLock, here one of ours."""
    import queue

    one: Any = queue.Queue()
    one.mutex = client.lock(name)
    one.not_empty = threading.Condition(one.mutex)
    one.not_full = threading.Condition(one.mutex)
    one.all_tasks_done = threading.Condition(one.mutex)
    return one


def test_a_queue_of_the_standard_library_works_with_it(queue_with_an_rlock: Any) -> None:
    got: list[int] = []

    def consume() -> None:
        for _ in range(20):
            got.append(queue_with_an_rlock.get(timeout=30))
            queue_with_an_rlock.task_done()

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(20):
        queue_with_an_rlock.put(number)
    queue_with_an_rlock.join()
    thread.join()
    assert got == list(range(20))
