"""Forked and spawned processes, pre-forking servers, and thread idents that the system uses again."""

import _thread
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.masters import Deployment
from support.until import until
from workers import spawned

from relock import Client, NotOwnedError

pytestmark = pytest.mark.every_quorum

fork = multiprocessing.get_context("fork")
spawn = multiprocessing.get_context("spawn")


def wait_for(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(what: Callable[[], bool]) -> bool:
    """Return whether `what` is true in a forked child."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if what() else 1
        finally:
            os._exit(code)
    return wait_for(child) == 0


def test_the_child_owns_nothing_and_the_parents_hold_goes_on(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    client = connect(server.url, ttl=6.0)
    with client.lock(name) as lock:
        token = lock.token
        results = fork.Queue()
        child = fork.Process(target=spawned.try_what_the_parent_holds, args=(lock, results))
        child.start()
        assert results.get(timeout=30) == "NotOwnedError"
        assert results.get(timeout=30) == (False, 0, False), "the child does not own the hold, and is refused"
        assert results.get(timeout=30) != os.getpid()
        child.join()
        renewals = client.statistics().renewals
        until(lambda: client.statistics().renewals >= renewals + 2, within=20, what="the parent renews")
        assert lock.token == token
        lock.ensure()


def test_the_child_is_a_client_of_its_own(client: Client, server: Deployment, name: str) -> None:
    with client.lock(f"{name}-parent"):
        parents = client._session.client_id

        def check() -> bool:
            with client.lock(name, timeout=30) as lock:
                return (
                    lock.owned()
                    and client._session.client_id != parents
                    and str(os.getpid()) in client._session.client_id
                )

        assert in_child(check)
    assert client.lock(name).acquire(timeout=30)


def sockets_to(server: Deployment) -> set[str]:
    """Return the inodes of this process's connections to the ports of the masters."""
    ports = {one.port for one in server.members}
    mine = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue  # the descriptor that listed the folder
    fields = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    there = {f"socket:[{line[9]}]" for line in fields if int(line[2].split(":")[1], 16) in ports}
    return mine & there


def test_the_child_closes_its_copies_of_the_parents_connections(client: Client, server: Deployment, name: str) -> None:
    """Copies of the subscription would make a dead waiter look alive for as long as the child lives."""
    before = sockets_to(server)
    holder = client.lock(name, owner="holder")
    holder.acquire()
    thread = threading.Thread(target=client.lock(name).acquire, kwargs={"timeout": 30})
    thread.start()
    until(lambda: client.info(name).queue, within=30, what="the parent has a subscription")
    ours = sockets_to(server) - before
    assert len(ours) >= 2 * server.quorum
    try:
        assert in_child(lambda: not ours & sockets_to(server))
    finally:
        holder.release()
        thread.join()


def test_a_child_of_a_child_works_too(client: Client, name: str) -> None:
    with client.lock(f"{name}-parent"):

        def grandchild() -> bool:
            with client.lock(name, timeout=30):
                return True

        assert in_child(lambda: in_child(grandchild) and grandchild())


@pytest.mark.parametrize("context", [fork, spawn], ids=["fork", "spawn"])
def test_multiprocessing_loses_no_update(
    server: Deployment, name: str, tmp_path: Path, context: "multiprocessing.context.BaseContext"
) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("0")
    processes = [
        context.Process(target=spawned.add, args=(server.url, name, str(ledger), 25))  # type: ignore[attr-defined]
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert ledger.read_text() == "100"


def test_a_pre_forking_server_shares_the_client_that_was_made_before_the_fork(
    client: Client, name: str, tmp_path: Path
) -> None:
    with client.lock("used before the fork"):
        pass
    ledger = tmp_path / "ledger"
    ledger.write_text("0")
    workers = [fork.Process(target=spawned.serve, args=(client, name, str(ledger), 25)) for _ in range(4)]
    for worker in workers:
        worker.start()
    spawned.serve(client, name, str(ledger), 25)
    for worker in workers:
        worker.join()
    assert ledger.read_text() == "125"


def test_a_recycled_thread_ident_never_inherits_a_hold(client: Client, server: Deployment, name: str) -> None:
    idents: dict[int, int] = {}
    reused = 0
    outcomes: list[tuple[bool, bool]] = []
    for number in range(200):
        lock = client.lock(f"{name}-{number}")
        before = client.lock(f"{name}-{number - 1}")
        done = threading.Event()

        def body(lock: object = lock, before: object = before, done: threading.Event = done) -> None:
            idents[_thread.get_ident()] = idents.get(_thread.get_ident(), 0) + 1
            outcomes.append((before.owned(), lock.acquire(blocking=False)))  # type: ignore[attr-defined]
            done.set()

        _thread.start_new_thread(body, ())
        assert done.wait(30)
        until(lambda: _thread._count() < 50, within=30, what="the thread has ended")
    reused = sum(count - 1 for count in idents.values())
    assert reused > 0, "the system uses idents again"
    assert all(not owned and taken for owned, taken in outcomes)


def test_a_release_in_the_child_is_not_owned(client: Client, name: str) -> None:
    with client.lock(name) as lock:

        def check() -> bool:
            try:
                lock.release()
            except NotOwnedError:
                return True
            return False

        assert in_child(check)
        assert client.info(name).held
