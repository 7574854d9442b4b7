"""Timeouts of one client that end at one moment: too many for asking the master for all within a node timeout."""

import asyncio
from collections.abc import Iterator

import pytest

from relock import AsyncClient
from relock._runtime.aio.link import Link
from relock.testing import Lab
from relock.testing._loop import VirtualLoop

COUNT = 200
AT_ONCE = 4  # requests that the way to the master takes at one time
NODE_TIMEOUT = 1.0
TIMEOUT = 60.0
SLOW = 0.05  # seconds that a message takes on average: in a node timeout about 40 requests are answered
SLACK = 0.1


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def take_and_slow_down(lab: Lab) -> None:
    """Take the lock, let the waiters queue, and then make the way to the master slow."""
    holder = lab.client("holder")
    holder.lock("a").acquire()
    lab.sleep(TIMEOUT / 2)
    for master in lab.masters:
        master.conditions.delay = SLOW
    lab.sleep(TIMEOUT / 2 + 4 * NODE_TIMEOUT)
    for master in lab.masters:
        master.conditions.delay = 0.0002
    lab.sleep(3 * NODE_TIMEOUT)
    assert holder.info("a").queue == ()
    holder.lock("a").release()


def check(lab: Lab, results: list[object], ends: list[float]) -> None:
    assert results == [False] * COUNT, "each caller is refused, because the lock is taken"
    assert max(ends) <= TIMEOUT + NODE_TIMEOUT + SLACK


def test_tasks_whose_timeouts_end_at_once_get_false_and_on_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "in_flight_max", AT_ONCE)
    threads = lab.client("client", node_timeout=NODE_TIMEOUT)
    client = AsyncClient(threads)
    loop = VirtualLoop(threads._platform.process)  # type: ignore[attr-defined]
    results: list[object] = []
    ends: list[float] = []

    async def wait() -> None:
        try:
            results.append(await client.lock("a").acquire(timeout=TIMEOUT - lab.now))
        except Exception as error:
            results.append(error)
        ends.append(lab.now)

    def begin() -> None:
        lab.sleep(0.1)
        loop.call_soon_threadsafe(lambda: tasks.extend([loop.create_task(wait()) for _ in range(COUNT)]))

    tasks: list[asyncio.Task[None]] = []
    lab.run(lambda: take_and_slow_down(lab), begin)
    check(lab, results, ends)


def test_threads_whose_timeouts_end_at_once_get_false_and_on_time(lab: Lab) -> None:
    client = lab.client("client", node_timeout=NODE_TIMEOUT, max_connections=AT_ONCE)
    results: list[object] = []
    ends: list[float] = []

    def wait() -> None:
        lab.sleep(0.1)
        try:
            results.append(client.lock("a").acquire(timeout=TIMEOUT - lab.now))
        except Exception as error:
            results.append(error)
        ends.append(lab.now)

    lab.run(lambda: take_and_slow_down(lab), *[wait] * COUNT)
    check(lab, results, ends)
