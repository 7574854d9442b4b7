"""Threads that share an ``owner=``: one of them queues, the others join its hold, and no waiters pile up."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.masters import Deployment
from support.until import until

from relock import Client, LockLostError, QuorumError

pytestmark = pytest.mark.every_quorum

Connect = Callable[..., Client]


def test_a_thread_that_does_not_wait_joins_the_hold_that_its_owner_has(client: Client, name: str) -> None:
    """Threads join even while other threads of that owner are at the gate."""
    client.lock(name, owner="job").acquire()
    refused: list[bool] = []

    def nest() -> None:
        lock = client.lock(name, owner="job")
        for _ in range(50):
            if lock.acquire(blocking=False):
                lock.release()
            else:
                refused.append(True)

    threads = [threading.Thread(target=nest) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    assert client.lock(name, owner="job").hold_count == 1


def test_a_thread_behind_another_of_its_owner_hears_that_the_masters_are_away(
    connect: Connect, own_server: Deployment, name: str
) -> None:
    client = connect(own_server.url, patience=5.0, ttl=3.0)
    with client.lock("warm-up"):
        pass
    own_server.kill()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock(name, owner="job").acquire)
        until(lambda: client._session.gates._gates, within=20, what="the first is at the gate")
        with pytest.raises(QuorumError):
            client.lock(name, owner="job").acquire(timeout=0.2)
        with pytest.raises(QuorumError):
            waiting.result()


def test_gates_and_lost_holds_of_many_owners_do_not_pile_up(
    client: Client, connect: Connect, server: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relock._core.book.TOLD_MAX", 3)
    with connect(server.url).lock(name):
        for i in range(20):
            assert not client.lock(name, owner=f"job-{i}").acquire(blocking=False)
    assert client._session.gates._gates == {}
    for i in range(20):
        lock = client.lock(f"{name}-{i}", owner=f"job-{i}")
        lock.acquire()
        lock.force_release()
        with pytest.raises(LockLostError):
            lock.release()
        assert lock.lost
    client._session.holds.all()
    assert len(client._session.holds) == 3
