"""Deadlocks between clients, on real servers: found, ended for one caller, and the others go on.

Tests hasten heartbeats, with which a search begins, and never wait for a time.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from support.cluster import ClusterOfServers
from support.masters import Deployment, Masters
from support.processes import Worker
from support.proxy import Fault, Proxy, calls_script
from support.servers import Server
from support.tasks import connecting
from support.until import until

from relock import AsyncClient, Client, DeadlockError, LockLostError
from relock._runtime.background import chase

AFTER = 0.5  # seconds: `deadlock_after`, as short as may be
SOON = 120.0  # seconds after which a wait has failed
LEASE = {"ttl": 600.0, "node_timeout": 20.0}  # a machine that stands still for a while must change nothing
OPTIONS = {**LEASE, "deadlock_after": AFTER}

Clients = Callable[..., Client]


class Caller:
    """A thread that takes locks, one after the other."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._thread = ThreadPoolExecutor(1)

    def take(self, name: str, side: str | None = None) -> "Future[Any]":
        """Begin to take a lock, or a side of a read-write lock."""
        lock = self.client.lock(name) if side is None else getattr(self.client.rwlock(name), side)
        return self._thread.submit(lock.acquire)

    def release(self, name: str, side: str | None = None) -> None:
        lock = self.client.lock(name) if side is None else getattr(self.client.rwlock(name), side)
        self._thread.submit(lock.release).result(SOON)

    def end(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


Callers = Callable[[Client], Caller]


@pytest.fixture
def caller(connect: Clients) -> Iterator[Callers]:
    """Make callers; the clients are closed after the test, so those that still wait get an error."""
    made: list[Caller] = []

    def make(client: Client) -> Caller:
        made.append(Caller(client))
        return made[-1]

    yield make
    for one in made:
        one.end()


class Spy:
    """Listener to the messages of all clients."""

    def __init__(self, server: Server) -> None:
        client: Any = server.client()
        self._client, self._pubsub = client, client.pubsub()
        self._pubsub.psubscribe("lock:client:*")
        assert self._pubsub.get_message(timeout=SOON)["type"] == "psubscribe"
        self._heard: list[bytes] = []

    def heard(self, word: bytes = b"") -> list[bytes]:
        """Return all messages so far that begin with this word."""
        while (message := self._pubsub.get_message(timeout=0.05)) is not None:
            self._heard.append(message["data"])
        return [message for message in self._heard if message.startswith(word)]

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


def queued(client: Client, *names: str) -> None:
    """Wait until each of these locks has a waiter."""
    for name in names:
        until(lambda name=name: client.info(name).queue, within=SOON, what="it waits")  # type: ignore[misc]


def hasten(clients: Sequence[Client]) -> None:
    """Have heartbeats sent, with which clients look whether to search."""
    for client in clients:
        client._session.janitor.beat_now()


def beaten(client: Client, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have heartbeats sent, one after the other."""
    done, search = list[float](), client._session.janitor.chase
    looks = search.next_at

    def next_at() -> float:
        done.append(looks())
        return done[-1]

    monkeypatch.setattr(search, "next_at", next_at)
    for number in range(times):
        client._session.janitor.beat_now()
        until(lambda number=number: len(done) > number, within=SOON, what="a heartbeat")  # type: ignore[misc]


def ended(futures: "Sequence[Future[Any]]", clients: Sequence[Client]) -> DeadlockError:
    """Return the error of the only one of these waits that has ended."""

    def one_is_done() -> bool:
        hasten(clients)
        return bool(wait(futures, 0.2, FIRST_EXCEPTION).done)

    until(one_is_done, within=SOON, what="a wait ends")
    (done,) = [future for future in futures if future.done()]
    error = done.exception()
    assert isinstance(error, DeadlockError)
    return error


def make_ring(callers: Sequence[Caller], names: Sequence[str]) -> "list[Future[Any]]":
    """Let each caller take the lock of its number, and then wait for the next one's; the last caller waits last."""
    for one, name in zip(callers, names, strict=True):
        assert one.take(name).result(SOON)
    futures = []
    for number, one in enumerate(callers):
        wanted = names[(number + 1) % len(names)]
        futures.append(one.take(wanted))
        queued(one.client, wanted)
    return futures


def check_ring(callers: Sequence[Caller], names: Sequence[str]) -> DeadlockError:
    """Check that of a ring of callers the last one gets an error, and the others get their locks one by one."""
    futures, clients = make_ring(callers, names), [one.client for one in callers]
    error = ended(futures, clients)
    assert futures[-1].done(), "the victim is the wait with the largest ticket"
    assert error.lock == names[0]
    assert sorted(lock for lock, _, _ in error.cycle) == sorted(names)
    assert clients[-1].statistics().deadlocks == 1
    until(lambda: not clients[0].info(names[0]).queue, within=SOON, what="its place is given up")
    for number in reversed(range(len(callers))):
        callers[number].release(names[number])
        if number:
            assert futures[number - 1].result(SOON), "the next one gets its lock"
            callers[number - 1].release(names[number])
    return error


# Processes ------------------------------------------------------------------------------------------------------------


def say(worker: Worker, **order: str) -> None:
    worker.send(order)


@pytest.mark.every_quorum
def test_of_two_processes_one_gets_an_error_and_the_other_its_lock(
    server: Deployment, start_worker: Callable[..., Worker], client: Client, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(2)]
    with closing(Spy(server.members[0])) as spy:
        processes = [start_worker("workers.crosser", server.url, json.dumps(OPTIONS)) for _ in names]
        for process, one in zip(processes, names, strict=True):
            assert process.receive(SOON)["event"] == "ready"
            say(process, do="acquire", name=one)
            assert process.receive(SOON)["event"] == "granted"
        for process, one in zip(processes, reversed(names), strict=True):
            say(process, do="acquire", name=one)
            queued(client, one)
        first, last = processes
        told = last.receive(SOON)
        assert (told["event"], told["lock"]) == ("deadlock", names[0])
        assert [lock for lock, _, _ in told["cycle"]] == names
        assert first.look() is None, "the other one waits on"
        assert client.info(names[1]).queue
        say(last, do="release")
        assert last.receive(SOON)["event"] == "released"
        assert first.receive(SOON) == {"event": "granted", "lock": names[1]}
        say(first, do="release")
        assert first.receive(SOON)["event"] == "released"
        assert len(spy.heard(b"ask ")) >= 2, "a second round confirms the ring"
        assert len(spy.heard(b"wait ")) >= 2


# Clients --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masters_count", [5])
def test_a_ring_of_three_over_five_masters_one_of_which_is_down(
    own_server: Masters, connect: Clients, caller: Callers, name: str
) -> None:
    clients = [connect(own_server.url, **OPTIONS) for _ in range(3)]
    own_server.members[2].kill()
    check_ring([caller(client) for client in clients], [f"{name}-{number}" for number in range(3)])


def test_a_ring_on_a_cluster_with_each_lock_on_another_node(
    cluster: ClusterOfServers, connect: Clients, caller: Callers, name: str
) -> None:
    found: dict[int, str] = {}
    for number in range(30):
        found.setdefault(cluster.owner(f"{name}-{number}").port, f"{name}-{number}")
    assert len(found) == 3
    callers = [caller(connect(cluster.url, **OPTIONS)) for _ in found]
    check_ring(callers, [*found.values()])


def test_a_ring_goes_through_two_threads_of_one_client(
    server: Server, connect: Clients, caller: Callers, name: str
) -> None:
    one, other = connect(server.url, **OPTIONS), connect(server.url, **OPTIONS)
    check_ring([caller(client) for client in (one, one, other)], [f"{name}-{number}" for number in range(3)])


def test_a_writer_and_one_of_several_readers_make_a_ring(
    server: Server, connect: Clients, caller: Callers, name: str
) -> None:
    clients = [connect(server.url, **OPTIONS) for _ in range(3)]
    writer, reader, another = [caller(client) for client in clients]
    assert another.take("shared", "read").result(SOON)
    assert reader.take("shared", "read").result(SOON)
    assert writer.take(name).result(SOON)
    writes = writer.take("shared", "write")
    queued(clients[0], "shared")
    waits = reader.take(name)
    queued(clients[0], name)
    error = ended([writes, waits], clients)
    assert waits.done()
    assert {lock for lock, _, _ in error.cycle} == {name, "shared"}
    for one in (reader, another):
        one.release("shared", "read")
    assert writes.result(SOON)


@pytest.mark.parametrize("last", ["thread", "task"])
async def test_threads_of_a_client_and_tasks_of_an_async_client_make_a_ring(
    server: Server, connect: Clients, name: str, last: str
) -> None:
    """Thread, task, thread, task; the wait that comes last is the one that ends."""
    names = [f"{name}-{number}" for number in range(4)]
    order = [0, 1, 2, 3] if last == "task" else [1, 2, 3, 0]
    client = connect(server.url, **OPTIONS)
    async with connecting() as make:
        tasks = make(server.url, **OPTIONS)
        runs = [run(number, names, client, tasks) for number in range(4)]
        assert [await anext(one) for one in runs] == ["has"] * 4
        waits = {}
        for number in order:
            waits[number] = asyncio.ensure_future(anext(runs[number]))
            wanted = names[(number + 1) % 4]
            while not (await tasks.info(wanted)).queue:
                await asyncio.sleep(0.003)
        async with asyncio.timeout(SOON):
            await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
            victim = order[-1]
            assert [number for number in order if waits[number].done()] == [victim]
            assert waits[victim].result() == "deadlock"
            for number in [(victim - step) % 4 for step in range(4)]:
                assert await waits[number] == ("deadlock" if number == victim else "got")
                assert await anext(runs[number]) == "released"


async def run(number: int, names: list[str], client: Client, tasks: AsyncClient) -> Any:
    """Take the lock of this number, then wait for the next one; yield what became of it, and release all."""
    mine, wanted = names[number], names[(number + 1) % 4]
    if number % 2:
        orders: asyncio.Queue[str] = asyncio.Queue()
        said: asyncio.Queue[str] = asyncio.Queue()

        async def live() -> None:
            async with tasks.lock(mine):
                await said.put("has")
                await orders.get()
                try:
                    async with tasks.lock(wanted):
                        await said.put("got")
                        await orders.get()
                except DeadlockError:
                    await said.put("deadlock")
                    await orders.get()
            await said.put("released")

        task = asyncio.create_task(live())
        for _ in range(3):
            yield await said.get()
            await orders.put("go on")
        await task
        return
    with ThreadPoolExecutor(1) as thread:
        do = partial(asyncio.get_running_loop().run_in_executor, thread)
        await do(client.lock(mine).acquire)
        yield "has"
        try:
            await do(client.lock(wanted).acquire)
        except DeadlockError:
            yield "deadlock"
        else:
            yield "got"
            await do(client.lock(wanted).release)
        await do(client.lock(mine).release)
        yield "released"


# Faults ---------------------------------------------------------------------------------------------------------------


def lose(how: str, proxy: Proxy, word: bytes) -> Fault:
    """Lose one message that begins with `word`, as it comes; or the request by which it is sent, or its reply."""
    if how == "message":
        return proxy.swallow_message(lambda words: words[2].startswith(word))
    sends = calls_script("notify")

    def match(words: list[bytes]) -> bool:
        return sends(words) and any(one.startswith(word) for one in words)

    return proxy.swallow_reply(match, close=True) if how == "reply" else proxy.lose_request(match)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients repeat their questions soon."""
    monkeypatch.setattr(chase, "REPEAT_SECONDS", 0.5)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "lost", ["message ask", "message wait", "request ask", "request wait", "reply ask", "reply wait"]
)
def test_what_is_lost_is_said_again(proxy: Proxy, connect: Clients, caller: Callers, lost: str) -> None:
    clients = [connect(proxy.url, **OPTIONS) for _ in range(2)]
    how, _, word = lost.partition(" ")
    fault = lose(how, proxy, word.encode() + b" ")
    check_ring([caller(client) for client in clients], ["a", "b"])
    assert fault.struck.is_set()


# What is not sent -----------------------------------------------------------------------------------------------------


def test_waiters_that_hold_nothing_else_ask_nothing(
    server: Server, connect: Clients, caller: Callers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder has two locks, and does not wait."""
    clients = [connect(server.url, **OPTIONS) for _ in range(2)]
    holder, waiters = caller(clients[0]), [caller(client) for client in clients]
    for one in (name, f"{name}-2"):
        assert holder.take(one).result(SOON)
    with closing(Spy(server)) as spy:
        waits = [one.take(name) for one in waiters]
        until(lambda: len(clients[0].info(name).queue) == 2, within=SOON, what="they wait")
        began_at = clients[0]._session.clock()
        until(lambda: clients[0]._session.clock() > began_at + AFTER, within=SOON, what="they have waited for long")
        for client in clients:
            beaten(client, 3, monkeypatch)
        holder.release(name)
        for _ in clients:
            until(lambda: any(one.done() for one in waits), within=SOON, what="a waiter has its turn")
            first = next(number for number, one in enumerate(waits) if one.done())
            assert waits.pop(first).result()
            waiters.pop(first).release(name)
        assert spy.heard(b"ask ") == spy.heard(b"wait ") == []
        assert spy.heard(b"grant "), "it hears what is said"


def test_without_the_option_nothing_is_asked_and_nothing_found(
    server: Server, connect: Clients, caller: Callers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [connect(server.url, **LEASE, deadlock_after=None) for _ in range(2)]
    names = [f"{name}-{number}" for number in range(2)]
    with closing(Spy(server)) as spy:
        one, other = [caller(client) for client in clients]
        futures = make_ring([one, other], names)
        for client in clients:
            beaten(client, 3, monkeypatch)
        assert spy.heard(b"ask ") == spy.heard(b"wait ") == []
        assert not any(future.done() for future in futures)
        assert [client.statistics().deadlocks for client in clients] == [0, 0]
        assert connect(server.url).force_release(names[0]), "an operator breaks the ring"
        assert futures[1].result(SOON)
        other.release(names[0])
        other.release(names[1])
        assert futures[0].result(SOON)
        one.release(names[1])
        with pytest.raises(LockLostError):
            one.release(names[0])


def test_a_caller_that_waits_for_long_in_no_ring_asks_and_goes_on(
    server: Server, connect: Clients, caller: Callers, name: str
) -> None:
    clients = [connect(server.url, **OPTIONS) for _ in range(2)]
    holder, waiter = [caller(client) for client in clients]
    assert waiter.take(f"{name}-mine").result(SOON)
    assert holder.take(name).result(SOON)
    with closing(Spy(server)) as spy:
        waits = waiter.take(name)
        queued(clients[0], name)

        def has_asked() -> bool:
            hasten(clients)
            return len(spy.heard(b"ask ")) >= 1

        until(has_asked, within=SOON, what="it asks")
        assert spy.heard(b"wait ") == []
        holder.release(name)
        assert waits.result(SOON)
        assert [client.statistics().deadlocks for client in clients] == [0, 0]
