"""The way of an acquire over several masters: it opens no connection, and waits for no other thread."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.masters import Masters
from support.proxy import Proxy, Words
from support.until import until
from support.urls import Urls

from relock import Client, QuorumError
from relock.lock import Lock

Connect = Callable[..., Client]
HUGE = 10.0  # a node timeout that no call may wait for
LONGEST = 7.0  # seconds, of a call on a busy machine
PAIRS = 400
NOWHERE = "master.invalid"


def pair(lock: Lock) -> float:
    """Return the seconds of an acquire and a release."""
    begin = time.perf_counter()
    assert lock.acquire(timeout=20)
    lock.release()
    return time.perf_counter() - begin


# Connecting -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Replace the name server by one that never answers; it sets the event once it is asked for a master's address."""
    asked, over = threading.Event(), threading.Event()
    ask = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != NOWHERE:
            return ask(host, *arguments, **options)
        asked.set()
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answered")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield asked
    over.set()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def is_info(words: Words) -> bool:
    return words[0].upper() == b"INFO"


def use(client: Client, name: str, is_asked: Callable[[], object]) -> None:
    """Check that no acquire waits for the third master: neither the first, nor one during the client's connecting."""
    assert pair(client.lock(name)) < LONGEST
    until(is_asked, within=20, what="the third master is being connected")
    assert max(pair(client.lock(name)) for _ in range(50)) < LONGEST
    assert client.statistics().masters[2].version == "", "the third master was not connected all that time"


@pytest.mark.parametrize("masters_count", [2])
def test_nobody_waits_for_a_name_to_be_resolved(
    server: Masters, slow_dns: threading.Event, connect: Connect, name: str
) -> None:
    urls = Urls([*server.url, f"redis://{NOWHERE}:6379/0"], server.guard)
    use(connect(urls, node_timeout=HUGE), name, slow_dns.is_set)


@pytest.mark.parametrize("masters_count", [2])
def test_nobody_waits_for_a_tls_handshake(server: Masters, silent: socket.socket, connect: Connect, name: str) -> None:
    silent.settimeout(20)
    accepted: list[socket.socket] = []

    def hello() -> bytes:
        accepted.append(silent.accept()[0])
        return accepted[-1].recv(1)

    urls = Urls([*server.url, f"rediss://127.0.0.1:{silent.getsockname()[1]}/0"], server.guard)
    try:
        use(connect(urls, node_timeout=HUGE), name, hello)
    finally:
        for one in accepted:
            one.close()


@pytest.mark.parametrize("masters_count", [3])
def test_nobody_waits_for_what_a_new_connection_asks(server: Masters, proxy: Any, connect: Connect, name: str) -> None:
    third: Proxy = proxy.members[2]
    faults = [third.swallow_reply(is_info, mute=True) for _ in range(20)]
    urls = Urls([*server.url[:2], third.url], server.guard)
    use(connect(urls, node_timeout=HUGE), name, faults[0].struck.is_set)


@pytest.mark.parametrize("masters_count", [3])
def test_a_master_that_answers_is_not_accused_of_the_others_silence(
    server: Masters, proxy: Any, connect: Connect, name: str
) -> None:
    """The others took all the time to connect, and the error tells that of the sound one."""
    for silent_one in proxy.members[:2]:
        for _ in range(20):
            silent_one.swallow_reply(is_info, mute=True)
    urls = Urls([*(member.url for member in proxy.members[:2]), server.url[2]], server.guard)
    with pytest.raises(QuorumError) as caught:
        connect(urls, node_timeout=4.0).lock(name).acquire(blocking=False)
    *_, of_the_third = caught.value.failures.values()
    assert "it has not answered" not in of_the_third  # the sound one was asked too late, or got the request too late


@pytest.mark.parametrize("masters_count", [3])
def test_a_client_that_closes_accuses_no_master_that_is_being_connected(
    server: Masters, proxy: Any, connect: Connect, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client closed that connection itself, and no event would ever tell that the master is back."""
    third: Proxy = proxy.members[2]
    fault = third.hold_reply(is_info)
    client = connect(Urls([*server.url[:2], third.url], server.guard), node_timeout=HUGE)
    pair(client.lock(name))
    assert fault.struck.wait(20), "the third master is being connected"
    reconnector = client._session.masters[2].reconnector
    assert reconnector is not None
    client.close()
    fault.release()
    until(lambda: not reconnector.running, within=20, what="the reconnector has given up")
    assert not [record for record in caplog.records if "MasterDown" in record.getMessage()]


# Threads --------------------------------------------------------------------------------------------------------------


def switches(thread: threading.Thread) -> int:
    """Return how often a thread has gone to sleep since it began."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells of a thread's switches")
@pytest.mark.parametrize("masters_count", [5])
def test_no_other_thread_takes_part_in_an_uncontended_acquire_and_release(
    server: Masters, connect: Connect, name: str
) -> None:
    """The client's threads sleep meanwhile: they wake by the clock, not with each acquire."""
    client = connect(server.url)
    lock = client.lock(name)

    def all_are_used() -> bool:
        pair(lock)
        return all(master.version and master.down is None for master in client.statistics().masters)

    until(all_are_used, within=20, what="all masters are connected")
    before = {thread: switches(thread) for thread in threading.enumerate() if thread.name.startswith("relock")}
    assert "relock-watchdog" in {thread.name for thread in before}
    for _ in range(PAIRS):
        pair(lock)
    after = {thread: switches(thread) for thread in threading.enumerate() if thread.name.startswith("relock")}
    woken = {thread.name: count - before.get(thread, 0) for thread, count in after.items()}
    print(f"{PAIRS} acquires and releases, and other threads went to sleep so often: {woken}")
    assert sum(woken.values()) < PAIRS / 2
