"""The promises of docs/concepts/guarantees.md, each shown on a real server and numbered as on the page."""

import contextlib
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.servers import Server
from support.until import until

import relock
from relock import AcquireTimeoutError, Client, DeadlockError, LockLostError, Loss, QuorumError, UpgradeError
from relock._servers.starting import freeze

SLACK = 8.0  # for a busy machine; a broken promise takes longer than that, or has no end
WAIT = 30.0  # longer than each bound with its slack


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("relock"), "propagate", False)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@contextmanager
def process(server: Server, code: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that has a client and runs `code`, which prints "ready"; kill it at the end."""
    program = f"import time\nfrom relock import Client\nclient = Client({server.url!r})\n{code}\n"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env=os.environ | {"PYTHONPATH": str(Path(relock.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def queued(client: Client, number: int) -> None:
    """Wait until so many wait for the lock "a"."""
    until(lambda: len(client.info("a").queue) == number, within=10, what=f"{number} in the queue")


@contextmanager
def waiter(client: Client) -> Iterator[threading.Event]:
    """Start a thread that takes the lock "a"; the event is set once the thread has it."""
    got = threading.Event()

    def take() -> None:
        client.lock("a").acquire()
        got.set()

    thread = threading.Thread(target=take)
    thread.start()
    yield got
    thread.join(30)


HOLDER = "client.lock('a', ttl=1).acquire(); print('ready'); time.sleep(60)"
WAITER = "print('ready'); client.lock('a').acquire()"


def test_1_exclusion(server: Server) -> None:
    """Several clients with several threads each: never are two of them inside at once."""
    inside = 0
    seen = []

    def work(client: Client) -> None:
        nonlocal inside
        for _ in range(10):
            with client.lock("a", ttl=5):
                inside += 1
                seen.append(inside)
                time.sleep(0.001)
                inside -= 1

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server.url)) for _ in range(3)]
        threads = [threading.Thread(target=work, args=(client,)) for client in clients for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert seen == [1] * 90


def test_2_the_deadline_is_checked_without_the_watchdog(client: Client) -> None:
    lock = client.lock("a", ttl=0.3)
    assert lock.acquire()
    client._session.watchdog.stop()
    time.sleep(0.35)
    assert (lock.owned(), lock.token, lock.hold_count, lock.remaining()) == (False, None, 0, 0.0)
    for use in (lock.ensure, lock.acquire, lock.extend, lock.release):
        with pytest.raises(LockLostError):
            use()


def test_3_a_loss_is_said_once_and_stays(client: Client) -> None:
    losses: list[Loss] = []
    lock = client.lock("a", on_lost=losses.append)
    lock.acquire()
    token = lock.token
    assert lock.acquire()
    assert client.force_release("a")
    for _ in range(2):
        with pytest.raises(LockLostError):
            lock.release()
    until(lambda: losses, within=10, what="the callback")
    time.sleep(0.05)
    assert [(loss.lock, loss.token) for loss in losses] == [("a", token)]
    assert lock.acquire(timeout=0)
    assert not lock.lost
    lock.release()


def test_4_tokens_rise(client: Client, server: Server) -> None:
    lock = client.lock("a")
    tokens = []
    for turn in range(5):
        lock.acquire()
        assert lock.token is not None
        tokens.append(lock.token)
        lock.acquire()
        assert lock.token == tokens[-1]
        lock.release()
        if turn % 2:
            client.force_release("a")
            with contextlib.suppress(LockLostError):
                lock.release()
        else:
            lock.release()
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))
    ahead = tokens[-1] + 3_600_000_000  # as if the server's clock had then been set back by an hour
    server.cli("SET", "lock:{a}:token", ahead, "PX", 7_200_000)
    with lock:
        assert lock.token == ahead + 1


def test_7_a_dead_process_holds_for_one_lease_at_most(server: Server, client: Client) -> None:
    with process(server, HOLDER) as holder:
        assert not client.lock("a").acquire(timeout=0)
        holder.kill()
        begin = time.monotonic()
        assert client.lock("a").acquire(timeout=WAIT)
        assert time.monotonic() - begin < 1 + SLACK


def test_7_a_dead_thread_holds_for_one_lease_at_most(client: Client) -> None:
    thread = threading.Thread(target=client.lock("a", ttl=1).acquire)
    thread.start()
    thread.join()
    begin = time.monotonic()
    assert client.lock("a").acquire(timeout=WAIT)
    assert time.monotonic() - begin < 1 + SLACK


def test_8_waiters_are_served_in_order(server: Server) -> None:
    served: list[int] = []
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server.url)) for _ in range(3)]
        holder = clients[0].lock("a")
        holder.acquire()

        def wait(number: int) -> None:
            with clients[number % 3].lock("a"):
                served.append(number)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(9)]
        for number, thread in enumerate(threads):
            thread.start()
            queued(clients[0], number + 1)
        holder.release()
        for thread in threads:
            thread.join(30)
    assert served == list(range(9))


def test_9_a_dead_waiter_delays_nobody(server: Server, client: Client) -> None:
    holder = client.lock("a")
    holder.acquire()
    with process(server, WAITER) as first:
        queued(client, 1)
        with waiter(client) as got:
            queued(client, 2)
            first.kill()
            first.wait()
            time.sleep(0.2)  # until the server sees the connection closing
            begin = time.monotonic()
            holder.release()
            assert got.wait(WAIT)
            assert time.monotonic() - begin < SLACK


def test_9_a_stopped_waiter_delays_the_others_less_than_ten_seconds(server: Server, client: Client) -> None:
    holder = client.lock("a")
    holder.acquire()
    with process(server, WAITER) as first:
        queued(client, 1)
        with waiter(client) as got:
            queued(client, 2)
            freeze(first.pid)
            holder.release()
            assert got.wait(WAIT)


def test_10_a_free_lock_is_noticed_without_a_message(server: Server, client: Client) -> None:
    holder = client.lock("a")
    holder.acquire()
    with waiter(client) as got:
        queued(client, 1)
        server.cli("DEL", "lock:{a}")  # publishes no message
        begin = time.monotonic()
        assert got.wait(WAIT)
        assert time.monotonic() - begin < 3.0 + SLACK


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_11_an_acquire_ends_on_time(client: Client, timeout: float) -> None:
    client.lock("a", owner="somebody else").acquire()
    begin = time.monotonic()
    assert client.lock("a").acquire(timeout=timeout) is False
    assert timeout <= time.monotonic() - begin < timeout + SLACK


def test_12_a_silent_server_is_an_error_and_on_time(own_server: Server) -> None:
    with Client(own_server.url, node_timeout=0.2) as client:
        client.check()
        own_server.stop()
        try:
            begin = time.monotonic()
            with pytest.raises(QuorumError):
                client.lock("a").acquire(timeout=0.5)
            assert time.monotonic() - begin < 0.5 + 0.2 + SLACK
        finally:
            own_server.cont()
        assert client.lock("a").acquire(timeout=WAIT)


@pytest.mark.parametrize("milliseconds", [500, None])
def test_14_locks_of_other_libraries_are_respected(server: Server, client: Client, milliseconds: int | None) -> None:
    lease = () if milliseconds is None else ("PX", milliseconds)
    assert server.cli("SET", "lock:{a}", "theirs", "NX", *lease)
    lock = client.lock("a")
    assert lock.locked()
    assert not lock.acquire(timeout=0)
    begin = time.monotonic()
    if milliseconds is None:
        deleter = threading.Timer(0.2, lambda: server.cli("DEL", "lock:{a}"))
        deleter.start()
    assert lock.acquire(timeout=WAIT)
    assert time.monotonic() - begin < 3.2 + SLACK
    assert not server.cli("SET", "lock:{a}", "theirs", "NX")


def test_20_opposite_orders_are_no_deadlock(server: Server) -> None:
    """Each thread names the locks in an order of its own; in a circle, all would wait until their timeouts."""
    orders = (["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"])
    inside, seen = 0, []
    failures: list[BaseException] = []

    def work(client: Client, names: list[str]) -> None:
        nonlocal inside
        try:
            for _ in range(10):
                with client.lock_all(names, timeout=20):
                    inside += 1
                    seen.append(inside)
                    time.sleep(0.001)
                    inside -= 1
        except BaseException as error:
            failures.append(error)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server.url)) for _ in orders]
        threads = [
            threading.Thread(target=work, args=pair) for pair in zip(clients, orders, strict=True) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures
    assert seen == [1] * 60


def test_20_all_locks_or_none(client: Client) -> None:
    other = client.lock("b", owner="somebody else")
    other.acquire()
    kept = client.lock("a")
    kept.acquire()
    lock = client.lock_all(["c", "b", "a"], timeout=0.2)
    assert lock.acquire() is False
    with pytest.raises(AcquireTimeoutError) as caught, lock:
        pass
    assert caught.value.lock == "b"
    assert (kept.hold_count, client.info("c").held) == (1, False)
    other.release()
    with lock:
        assert (lock.hold_count, kept.hold_count) == (1, 2)
    kept.release()
    assert not lock.locked()


def test_20_one_lost_hold_is_a_lost_whole(client: Client) -> None:
    losses: list[Loss] = []
    lock = client.lock_all(["a", "b"], on_lost=losses.append)
    lock.acquire()
    client.force_release("a")
    with pytest.raises(LockLostError):
        lock.extend()
    assert (lock.owned(), lock.lost, lock.tokens) == (False, True, {"a": None, "b": None})
    with pytest.raises(LockLostError):
        lock.ensure()
    assert client.lock("b").owned()
    client.force_release("b")
    with pytest.raises(LockLostError):
        client.lock("b").extend()
    with pytest.raises(LockLostError):
        lock.release()
    client.close()  # tells what is left to tell
    until(lambda: losses, within=10, what="the callback")
    assert [loss.lock for loss in losses] == ["a"]


def test_20_a_release_frees_all_whatever_one_of_them_says(client: Client) -> None:
    lock = client.lock_all(["a", "b", "c"])
    lock.acquire()
    client.force_release("b")
    with pytest.raises(LockLostError) as caught:
        lock.release()
    assert caught.value.lock == "b"
    assert not lock.locked()
    with lock:
        assert not lock.lost


def test_21_never_more_than_the_limit(server: Server) -> None:
    """Three clients with three threads each, of which two have a limit of 2 and one of 3: each slot has one owner."""
    inside: set[int | None] = set()
    seen = []

    def work(client: Client, limit: int) -> None:
        for _ in range(10):
            with client.semaphore("a", limit, ttl=5) as permit:
                slot = permit.slot
                assert slot not in inside
                inside.add(slot)
                seen.append((limit, slot, len(inside)))
                time.sleep(0.001)
                inside.remove(slot)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(9) as threads:
        clients = [(stack.enter_context(Client(server.url)), limit) for limit in (2, 2, 3)]
        calls = [threads.submit(work, client, limit) for client, limit in clients for _ in range(3)]
        for call in calls:
            call.result(60)
    assert len(seen) == 90
    assert all(slot in range(limit) and at_once <= 3 for limit, slot, at_once in seen)


def test_21_a_lower_limit_ends_no_permit(client: Client) -> None:
    semaphore = client.semaphore("a", 3)
    with semaphore as first, semaphore as second:
        semaphore.override(1, seconds=60)
        assert semaphore.acquire(timeout=0.2) is None
        assert first.ensure() < second.ensure()
    assert (first.lost, second.lost) == (False, False)
    with semaphore:
        assert semaphore.acquire(timeout=0.2) is None


def test_22_many_readers_or_one_writer(server: Server) -> None:
    """Three clients, each with two threads that read and one that writes: a writer is alone, and tokens tell it."""
    reading: set[int] = set()
    writing: set[int] = set()
    wrote = [0]
    crowds = []

    def read(client: Client) -> None:
        for _ in range(10):
            with client.rwlock("a", ttl=5).read as held:
                token = held.ensure()
                reading.add(token)
                assert not writing
                assert token > wrote[0]
                crowds.append(len(reading))
                time.sleep(0.005)
                assert not writing
                reading.remove(token)

    def write(client: Client) -> None:
        for _ in range(10):
            with client.rwlock("a", ttl=5).write as held:
                token = held.ensure()
                writing.add(token)
                assert not reading
                assert len(writing) == 1
                assert token > wrote[0]
                wrote[0] = token
                time.sleep(0.001)
                assert not reading
                writing.remove(token)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(9) as threads:
        clients = [stack.enter_context(Client(server.url)) for _ in range(3)]
        calls = [threads.submit(work, client) for work in (read, read, write) for client in clients]
        for call in calls:
            call.result(60)
    assert len(crowds) == 60


def test_22_a_writer_that_waits_is_not_passed_by_readers(client: Client) -> None:
    """A reader that comes while others read, and a writer waits, gets in after that writer."""
    lock = client.rwlock("a")
    order: list[str] = []

    def take(name: str) -> None:
        with lock.write if name == "writer" else lock.read:
            order.append(name)

    with ThreadPoolExecutor(2) as threads:
        with lock.read:
            writer = threads.submit(take, "writer")
            until(lambda: len(lock.info().queue) == 1, within=60, what="the writer waits")
            reader = threads.submit(take, "reader")
            until(lambda: len(lock.info().queue) == 2, within=60, what="the reader waits")
            with pytest.raises(UpgradeError):
                lock.write.acquire()
            assert order == []
        writer.result(60)
        reader.result(60)
    assert order == ["writer", "reader"]


def test_22_a_downgrade_lets_readers_in_and_no_writer(client: Client) -> None:
    lock = client.rwlock("a")
    with ThreadPoolExecutor(1) as threads:
        lock.write.acquire()
        assert not threads.submit(lock.read.acquire, timeout=0).result(60)
        lock.write.downgrade()
        assert lock.read.owned()
        assert not lock.write.owned()
        assert not threads.submit(lock.write.acquire, timeout=0).result(60)
        assert threads.submit(lock.read.acquire, timeout=5).result(60)
        threads.submit(lock.read.release).result(60)
        lock.read.release()
        assert threads.submit(lock.write.acquire, timeout=5).result(60)
        threads.submit(lock.write.release).result(60)


def test_23_a_latch_opens_with_the_last_party_and_never_before(client: Client, server: Server) -> None:
    with Client(server.url) as other, ThreadPoolExecutor(4) as threads:
        waits = [threads.submit(one.latch("a", 3).wait, 60) for one in (client, other) for _ in range(2)]
        for party, missing in (("x", 2), ("x", 2), ("y", 1), ("y", 1), ("x", 1)):
            assert client.latch("a", 3).arrive(party) == missing
            assert not other.latch("a", 3).wait(0)
        assert not any(wait.done() for wait in waits)
        assert other.latch("a", 3).arrive("z") == 0
        assert all(wait.result(60) for wait in waits)


@pytest.mark.parametrize("clients_count", [1, 2])
def test_24_a_deadlock_ends_by_one_error(server: Server, clients_count: int) -> None:
    both_have_one = threading.Barrier(2)

    def work(client: Client, first: str, second: str) -> DeadlockError | None:
        with client.lock(first):
            both_have_one.wait(60)
            try:
                with client.lock(second):
                    return None
            except DeadlockError as error:
                return error

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        clients = [stack.enter_context(Client(server.url)) for _ in range(clients_count)]
        calls = (threads.submit(work, clients[0], "a", "b"), threads.submit(work, clients[-1], "b", "a"))
        (error,) = [error for error in (call.result(60) for call in calls) if error is not None]
    assert {lock for lock, _, _ in error.cycle} == {"a", "b"}
    assert error.lock in {"a", "b"}
