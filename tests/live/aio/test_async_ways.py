"""Tasks on each kind of connection, and the other promises that the page on asyncio makes of the door for tasks."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from support.servers import Server
from support.tasks import SOON, Connect, free
from support.tasks import until as tasks_until
from support.tls import Tls
from support.until import until

import relock
from relock import AsyncClient, AsyncLock, Client, ClientClosedError, ConfigurationError, LockLostError, LoopStalled
from relock._runtime.aio.link import Link
from relock._runtime.session import closing


async def use(client: AsyncClient, name: str) -> None:
    """Make every kind of call that goes over a link, and wait once."""
    lock = client.lock(name)

    async def wait() -> int:
        async with client.lock(name) as held:
            return await held.ensure()

    async with lock:
        first = await lock.ensure()
        waiting = [asyncio.create_task(wait()) for _ in range(20)]
        assert await lock.extend(40.0) > 30
        while len((await lock.info()).queue) < 20:
            await asyncio.sleep(0.002)
    tokens = await asyncio.gather(*waiting)
    assert len(set(tokens)) == 20
    assert min(tokens) > first
    await free(client, name)


@pytest.mark.every_server
async def test_over_tls(tls: Tls, connect: Connect, name: str) -> None:
    await use(connect(tls.url()), name)


async def test_over_a_unix_socket(server: Server, connect: Connect, name: str) -> None:
    await use(connect(f"unix://{server.socket_path}"), name)


async def test_with_the_settings_of_a_client_of_redis_py(server: Server, connect: Connect, name: str) -> None:
    with redis.Redis(host="127.0.0.1", port=server.port, db=3) as given:
        await use(connect(given), name)
        async with connect(given.connection_pool).lock(name):
            assert given.exists(f"lock:{{{name}}}")


@pytest.mark.parametrize("way", ["a port", "a socket", "TLS"])
async def test_with_the_settings_of_a_client_of_redis_asyncio(tls: Tls, connect: Connect, name: str, way: str) -> None:
    if way == "TLS":
        given = redis.asyncio.Redis.from_url(tls.url())
    elif way == "a socket":
        given = redis.asyncio.Redis(unix_socket_path=str(tls.server.socket_path), db=3)
    else:
        given = redis.asyncio.Redis(host="127.0.0.1", port=tls.server.port, db=3, decode_responses=True)
    async with given:
        await use(connect(given), name)
        async with connect(given.connection_pool).lock(name):
            assert await given.exists(f"lock:{{{name}}}")
        assert await given.ping(), "the user's own client stays open"


async def test_each_door_names_the_other_one(client: AsyncClient, name: str) -> None:
    lock: Any = client.lock(name)
    with pytest.raises(TypeError, match=r"use `async with`.*relock.Client"), lock:
        raise AssertionError
    with pytest.raises(TypeError, match=r"use `async with`"), threading.Condition(lock):
        raise AssertionError
    both: Any = client
    with pytest.raises(TypeError, match=r"use `async with`.*relock.Client"), both:
        raise AssertionError

    async def work() -> None: ...

    with pytest.raises(TypeError, match="AsyncClient"):
        client._client.synchronized(name)(work)
    with pytest.raises(TypeError, match="AsyncClient"):
        relock.synchronized(lambda: client._client, name)(work)


@pytest.mark.filterwarnings("ignore:coroutine 'AsyncReleaseDoor._release' was never awaited:RuntimeWarning")
async def test_a_condition_of_asyncio_does_not_release(client: AsyncClient, name: str) -> None:
    """Conditions of asyncio await no release, so the page warns of them."""
    lock: Any = client.lock(name)
    async with asyncio.Condition(lock):
        pass
    assert lock.owned()
    await lock.release()


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_callback_of_a_client_for_threads_hears_of_a_stall_while_it_lasts(
    server: Server, name: str, is_named: bool, request: pytest.FixtureRequest
) -> None:
    """The log tells of the stall, too. A hold with ``owner=`` is not reported, because it belongs to no loop."""
    heard: list[float] = []
    logged: list[float] = []

    def observe(event: object) -> None:
        if isinstance(event, LoopStalled):
            heard.append(time.monotonic())

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "LoopStalled" in record.getMessage():
                logged.append(time.monotonic())

    handler, logger = Handler(), logging.getLogger("relock.events")
    logger.addHandler(handler)
    request.addfinalizer(lambda: logger.removeHandler(handler))

    with Client(server.url, ttl=4.5, on_event=observe) as threads:
        client = AsyncClient(threads, stall_limit=None if not is_named else 0.1)
        async with client.lock(name, owner="job" if is_named else None) as lock:
            renewals = threads.statistics().renewals

            def is_over() -> bool:
                return threads.statistics().renewals >= renewals + 4 and (is_named or bool(heard and logged))

            until(is_over, within=SOON, what="a lease is over, and who is to hear has heard")
            turned_at = time.monotonic()
            assert lock.owned()
        await client.close()
    assert (len(heard), len(logged)) == ((0, 0) if is_named else (1, 1))
    assert all(moment < turned_at for moment in heard + logged)


@pytest.fixture
async def entered(client: AsyncClient, name: str) -> AsyncIterator[AsyncLock]:
    lock = client.lock(name, owner="the fixture")
    async with lock:
        assert not await client.lock(name).acquire(blocking=False)
        yield lock


async def test_a_fixture_and_its_test_share_a_hold_by_an_owner(
    client: AsyncClient, name: str, entered: AsyncLock
) -> None:
    """Fixture and test are different tasks, and the code after the fixture's ``yield`` runs in a third one."""
    assert entered.owned()
    assert not client.lock(name).owned()
    assert await entered.ensure() > 0


async def test_two_tasks_that_hand_a_lock_over_send_two_commands_each_time(
    own_server: Server, connect: Connect, name: str
) -> None:
    """The second task lines up at once, because the lock was just refused; so a release finds it in the queue."""
    client, turns = connect(own_server.url), 200

    async def work() -> None:
        lock = client.lock(name)
        for _ in range(turns):
            async with lock:
                pass

    await asyncio.gather(work(), work())
    assert own_server.cli("INFO", "commandstats")["cmdstat_evalsha"]["calls"] <= 2.3 * 2 * turns


async def test_of_tasks_that_come_at_once_nearly_all_ask_for_their_places_first(
    connect: Connect, server: Server, name: str
) -> None:
    """Tasks that have begun go on before the others, which then know that the lock is held."""
    client = connect(server.url, ttl=90.0, node_timeout=30.0)  # a request that comes late is void, and repeated
    await client.lock(name, owner="holder").acquire()

    async def wait() -> None:
        async with client.lock(name):
            pass

    with server.client() as plain:

        def scripts() -> int:
            return int(plain.info("commandstats")["cmdstat_evalsha"]["calls"])

        before, count, polls = scripts(), 10 * Link.in_flight_max, 1
        tasks = [asyncio.create_task(wait()) for _ in range(count)]
        while len((await client.info(name)).queue) < count:
            polls += 1
            await asyncio.sleep(0.01)
        looks = scripts() - before - count - polls
    assert looks < count / 2
    await client.lock(name, owner="holder").release()
    await asyncio.gather(*tasks)


async def callbacks_of_a_thousand_waits(
    client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[float, str]]:
    """Let 1,000 tasks wait in debug mode, and cancel half of them; return how long (s) each callback computed."""
    loop, took, run = asyncio.get_running_loop(), list[tuple[float, str]](), asyncio.Handle._run

    def timed(handle: Any) -> None:
        what, begin = repr(getattr(handle._callback, "__self__", handle)), time.thread_time()
        run(handle)
        took.append((time.thread_time() - begin, what))

    async def wait() -> None:
        async with client.lock(name):
            pass

    await client.lock(name, owner="holder").acquire()
    loop.set_debug(True)
    gc.disable()  # a collection takes longer in a large process, and comes at any time
    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    try:
        tasks = []
        for number in range(1000):
            tasks.append(asyncio.create_task(wait()))
            if number % 10 == 0:
                await asyncio.sleep(0)
        await tasks_until(lambda: len(client._session.hubs.waiters()) == 1000, "all wait")
        for number, task in enumerate(tasks[::2]):
            task.cancel()
            if number % 10 == 0:
                await asyncio.sleep(0)
        await client.lock(name, owner="holder").release()
        await tasks_until(lambda: all(task.done() for task in tasks), "all have had the lock, or were cancelled")
        seen = took.copy()
    finally:
        monkeypatch.undo()
        gc.enable()
        loop.set_debug(False)
    await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(seen)


async def test_in_debug_mode_no_callback_takes_long(
    client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No callback takes 10 ms of processor time; debug mode warns from 100 ms on.

    A virtual machine's host may stop it for as long, which the kernel counts as processor time of whatever ran. So a
    callback counts only if each of three tries has a long one.
    """
    for left in (2, 1, 0):
        seen = await callbacks_of_a_thousand_waits(client, f"{name}-{left}", monkeypatch)
        assert len(seen) > 2000
        if seen[-1][0] < 0.010:
            return
    raise AssertionError(seen[-5:])


async def test_many_names_are_listed_by_few_threads(
    client: AsyncClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, started, start = (
        {f"{name}-{number:03}" for number in range(230)},
        list[str](),
        client._session.platform.start,
    )
    for one in names:
        assert await client.lock(one).acquire()

    def note(target: Callable[[], object], name: str) -> None:
        started.append(name)
        start(target, name)

    monkeypatch.setattr(client._session.platform, "start", note)
    assert {one async for one in client.names(f"{name}-*")} == names
    assert started.count("relock-loop") == 4, "three batches of at most a hundred, and a look for more"
    monkeypatch.undo()
    for one in names:
        await client.lock(one).release()


async def test_a_closed_client_asks_nobody_though_its_session_is_open(server: Server, name: str) -> None:
    with Client(server.url) as threads:
        client = AsyncClient(threads)
        assert "<open" in repr(client)
        await client.close()
        assert "<closed" in repr(client)
        for asks in (client.info(name), client.check(), client.force_release(name), client.lock(name).acquire()):
            with pytest.raises(ClientClosedError):
                await asks
        with pytest.raises(ClientClosedError):
            assert [one async for one in client.names()] == []
        assert threads.check() == ()


async def test_a_function_is_cancelled_when_its_hold_is_lost(client: AsyncClient, name: str) -> None:
    inside = asyncio.Event()

    @client.synchronized(name, cancel_on_lost=True, ttl=4.5)
    async def work() -> None:
        inside.set()
        await asyncio.sleep(60)

    working = asyncio.create_task(work())
    await inside.wait()
    assert await client.force_release(name)
    with pytest.raises(LockLostError):
        await working
    wrong: Any = "yes"
    with pytest.raises(TypeError, match="cancel_on_lost"):
        client.lock(name, cancel_on_lost=wrong)
    with pytest.raises(TypeError, match="cancel_on_lost"):
        client.synchronized(name, cancel_on_lost=wrong)


async def test_after_a_wait_a_free_lock_is_taken_in_one_look_again(client: AsyncClient, name: str) -> None:
    """Acquires that come once a second would otherwise keep each other from taking the lock in one look."""
    lock = client.lock(name)

    async def work() -> None:
        async with lock:
            await asyncio.sleep(0.01)

    await asyncio.gather(work(), work())
    waited_at = client._session.waited_at
    for _ in range(3):
        await work()
    assert client._session.waited_at == waited_at


async def test_what_runs_outside_a_task_is_refused(client: AsyncClient, name: str) -> None:
    """Gates of an owner could not tell whose turn it is."""
    acquiring, refused = client.lock(name, owner="job").acquire(), asyncio.get_running_loop().create_future()

    def step() -> None:
        try:
            acquiring.send(None)
        except RuntimeError as error:
            refused.set_result(str(error))

    asyncio.get_running_loop().call_soon(step)
    assert "outside a task" in await refused


def test_where_no_loop_of_asyncio_runs_it_says_which_ones_there_are(server: Server, name: str) -> None:
    client = AsyncClient(server.url)
    with pytest.raises(RuntimeError, match="outside a task of asyncio"):
        client.lock(name).acquire().close()
    looking = client.info(name)
    with pytest.raises(RuntimeError, match="no event loop of asyncio runs in this thread"):
        looking.send(None)


class Proactor(asyncio.SelectorEventLoop):
    """A loop without `add_reader`, like that of Windows, which needs no pipe to itself then."""

    add_reader = asyncio.AbstractEventLoop.add_reader

    def _make_self_pipe(self) -> None: ...

    def _close_self_pipe(self) -> None: ...


def test_a_loop_that_watches_no_sockets_is_refused(server: Server, name: str) -> None:
    async def take() -> None:
        await AsyncClient(server.url).lock(name).acquire(timeout=0)

    refused = pytest.raises(ConfigurationError, match="a Proactor watches no sockets")
    with asyncio.Runner(loop_factory=Proactor) as runner, refused:
        runner.run(take())


async def test_a_client_that_is_dropped_open_says_so(server: Server, name: str) -> None:
    client = AsyncClient(server.url)
    session = client._session
    await client.lock(name).locked()
    with pytest.warns(ResourceWarning, match="unclosed <open relock.AsyncClient"):
        del client
    closing.close(session)
    closed, unused, of_another = AsyncClient(server.url), AsyncClient(server.url), Client(server.url)
    async with closed:
        await closed.lock(name).locked()
    shares = AsyncClient(of_another)
    await shares.lock(name).locked()
    del closed, unused, shares  # no warning for any of these: here it would be an error
    of_another.close()


def test_a_task_of_a_closed_loop_keeps_no_thread_of_its_owner(server: Server, name: str) -> None:
    """Tasks may stand in line at the gate when their loop is closed."""
    with Client(server.url) as threads, Client(server.url) as others:
        tasks, gates = AsyncClient(threads), threads._session.gates
        others.lock(name).acquire()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(use_once, threads, name)
            until(lambda: gates._gates, within=SOON, what="the first is at the gate")
            loop = asyncio.new_event_loop()

            async def line_up() -> None:
                kept.append(asyncio.create_task(take(tasks.lock(name, owner="job"))))
                await asyncio.sleep(0.1)

            kept: list[asyncio.Task[None]] = []
            loop.run_until_complete(line_up())
            loop.close()
            second = pool.submit(use_once, threads, name)
            others.lock(name).force_release()
            first.result(SOON)
            second.result(SOON)


def use_once(client: Client, name: str) -> None:
    """Take the lock for a moment, as a thread of the owner."""
    with client.lock(name, owner="job", timeout=SOON):
        pass


async def take(lock: AsyncLock) -> None:
    await lock.acquire()
