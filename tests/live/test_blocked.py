"""Log handlers, callbacks and a `showwarning` of the user that never return, and that block nothing else."""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.proxy import Proxy, calls_script
from support.servers import Server
from support.until import until
from support.urls import Urls

from relock import Client, Loss, QuorumError, RelockWarning
from relock._runtime.machine import THREADS

Connect = Callable[..., Client]

WITHIN = 20.0
LONG = 120.0  # for which a call hangs, unless the test ends before
TTL = 6.0


class Hanging:
    """A function that never returns."""

    def __init__(self) -> None:
        self.reached, self.over = threading.Event(), threading.Event()

    def __call__(self, *_words: Any, **_more: Any) -> None:
        self.reached.set()
        self.over.wait(LONG)


class HangingHandler(logging.Handler):
    """A handler of the log that never returns."""

    def __init__(self, hanging: Hanging) -> None:
        super().__init__()
        self.emit = hanging  # type: ignore[method-assign]


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.over.set()
    THREADS.log.settle(WITHIN)


@pytest.fixture(params=[("relock", logging.WARNING), ("relock", logging.DEBUG), ("relock.events", logging.WARNING)])
def hanging_log(hanging: Hanging, request: pytest.FixtureRequest) -> Iterator[Hanging]:
    """Make the log hang from its first record on."""
    name, level = request.param
    logger, handler = logging.getLogger(name), HangingHandler(hanging)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    yield hanging
    logger.removeHandler(handler)
    logger.setLevel(before)
    hanging.over.set()


def check_that_all_goes_on(client: Client, other: Client, proxy: Proxy, name: str, hanging: Hanging) -> None:
    """Check that everything goes on though a hold is lost, and the call that tells the loss never returns.

    `client` is behind `proxy`.
    """
    kept, lost = client.lock(f"{name}-kept"), client.lock(f"{name}-lost")
    assert kept.acquire(timeout=WITHIN)
    assert lost.acquire(timeout=WITHIN)
    assert other.force_release(lost.name)
    assert hanging.reached.wait(WITHIN), "the loss is told, by a call that hangs"
    until(lambda: client.statistics().losses, within=WITHIN, what="the hold is lost")
    renewals = client.statistics().renewals
    until(lambda: client.statistics().renewals >= renewals + 2, within=WITHIN, what="renewals go on")
    assert kept.owned()
    check_that_waiters_are_woken(client, other, name)
    check_that_an_attempt_is_undone(client, other, proxy, name)
    kept.release()


def check_that_an_attempt_is_undone(client: Client, other: Client, proxy: Proxy, name: str) -> None:
    """Check that an attempt is undone whose reply is lost; its lease would last for a minute."""
    fault = proxy.swallow_reply(calls_script("acquire"))

    def attempt() -> None:
        with pytest.raises(QuorumError):
            client.lock(f"{name}-tried", ttl=60.0).acquire(blocking=False)

    trying = threading.Thread(target=attempt)
    trying.start()
    assert fault.done.wait(WITHIN)
    until(lambda: not other.lock(f"{name}-tried").locked(), within=WITHIN, what="the grant without a reply is undone")
    trying.join(WITHIN)
    assert not trying.is_alive()


def check_that_waiters_are_woken(client: Client, other: Client, name: str) -> None:
    first, served = other.lock(f"{name}-queue"), threading.Event()
    assert first.acquire(timeout=WITHIN)

    def wait() -> None:
        with client.lock(f"{name}-queue", timeout=2 * WITHIN):
            served.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: len(other.info(f"{name}-queue").queue) == 1, within=WITHIN, what="a caller waits")
    first.release()
    assert served.wait(WITHIN), "the waiter is woken, and gets the lock"
    waiter.join(WITHIN)
    assert not waiter.is_alive()


def check_that_it_closes(client: Client) -> None:
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(WITHIN)
    assert not closing.is_alive()


def test_a_handler_of_the_log_that_never_returns(
    hanging_log: Hanging, connect: Connect, server: Server, proxy: Proxy, name: str
) -> None:
    losses: list[Loss] = []
    client, other = connect(proxy.url, ttl=TTL, on_lost=losses.append), connect(server.url)
    check_that_all_goes_on(client, other, proxy, name, hanging_log)
    until(lambda: losses, within=WITHIN, what="the loss is told")
    check_that_it_closes(client)


def test_a_callback_for_losses_that_never_returns(
    *, hanging: Hanging, connect: Connect, server: Server, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Any] = []
    client, other = connect(proxy.url, ttl=TTL, on_lost=hanging, on_event=events.append), connect(server.url)
    check_that_all_goes_on(client, other, proxy, name, hanging)
    until(lambda: "Lost" in {type(event).__name__ for event in events}, within=WITHIN, what="the event is told")
    until(lambda: "Lost(lock=" in caplog.text, within=WITHIN, what="the text is logged")
    check_that_it_closes(client)


def test_a_callback_for_events_that_never_returns(
    *, hanging: Hanging, connect: Connect, server: Server, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[Loss] = []
    client, other = connect(proxy.url, ttl=TTL, on_lost=losses.append, on_event=hanging), connect(server.url)
    check_that_all_goes_on(client, other, proxy, name, hanging)
    until(lambda: losses, within=WITHIN, what="the loss is told")
    until(lambda: "Lost(lock=" in caplog.text, within=WITHIN, what="the text is logged")
    check_that_it_closes(client)


# Warnings -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging_warnings(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """Make relock's warnings hang, and no others.

    A collection may close, in the watchdog's thread, a socket that an earlier test left: that warning is not relock's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RelockWarning)
        monkeypatch.setattr(warnings, "showwarning", hanging)
        yield hanging
        hanging.over.set()
        THREADS.log.settle(WITHIN)
        monkeypatch.undo()


def test_a_warning_that_never_returns_leaves_the_caller_its_hold(
    hanging_warnings: Hanging, start_server: Callable[..., Server], connect: Connect, name: str
) -> None:
    """The caller gets its warning once it has the lock. The watchdog renews the lock, and other threads go on."""
    server = start_server("--maxmemory-policy", "allkeys-lru")
    client = connect(server.url, ttl=TTL)
    done = threading.Event()

    def hold() -> None:
        with client.lock(name):
            done.wait(LONG)

    holder = threading.Thread(target=hold)
    holder.start()
    assert hanging_warnings.reached.wait(WITHIN)
    until(lambda: client.statistics().renewals >= 2, within=WITHIN, what="the hold is renewed")
    with client.lock(f"{name}-other", timeout=WITHIN):
        assert client.statistics().held == 2
    hanging_warnings.over.set()
    done.set()
    holder.join(WITHIN)
    assert not client.info(name).held


def test_what_a_background_thread_finds_to_warn_of_keeps_it_from_nothing(
    hanging_warnings: Hanging, start_server: Callable[..., Server], connect: Connect, name: str
) -> None:
    """The third of three masters may evict keys; the reconnector finds that, and must open other connections later."""
    servers = [start_server(), start_server(), start_server("--maxmemory-policy", "allkeys-lru")]
    client = connect(Urls([server.url for server in servers], 0.0), ttl=TTL, restart_guard=0)
    third = servers[2]

    def reaches_the_third() -> bool:
        with client.lock(name, timeout=WITHIN):
            return bool(third.cli("EXISTS", f"lock:{{{name}}}"))

    until(lambda: reaches_the_third() and hanging_warnings.reached.is_set(), within=WITHIN, what="the warning is given")
    third.cli("CLIENT", "KILL", "TYPE", "normal")
    until(reaches_the_third, within=WITHIN, what="another connection is there")


def test_a_warning_that_is_an_error_leaves_no_hold(
    start_server: Callable[..., Server], connect: Connect, name: str
) -> None:
    server = start_server("--maxmemory-policy", "allkeys-lru")
    client = connect(server.url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RelockWarning, match="noeviction"):
            client.lock(name).acquire()
        assert not client.lock(name).owned()
        until(lambda: not server.cli("EXISTS", f"lock:{{{name}}}"), within=WITHIN, what="the grant is undone")
        with client.lock(name, timeout=WITHIN) as lock:
            assert lock.owned()
