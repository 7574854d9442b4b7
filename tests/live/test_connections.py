"""Each kind of connection string, at work on a real server: TLS, a unix socket, a user of its own."""

import errno
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis
from support.heartbeats import without_heartbeats
from support.masters import Deployment
from support.proxy import Proxy
from support.servers import Server
from support.tls import Tls, certificate
from support.until import until

from relock import Client, Lock, MasterBack, QuorumError
from relock._events import Event

ACL_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "acl.md"
LEASE_SECONDS = 30.0  # after which a waiter without a message looks again
FOR_EVER = 3600.0  # seconds of patience
TTL = 6.0  # a machine that is busy elsewhere for three seconds loses no lock here


def use(connect: Callable[..., Client], url: str, name: str) -> None:
    """Acquire, nest, renew, wake a waiter and release."""
    client, other = connect(url, ttl=LEASE_SECONDS), connect(url, ttl=LEASE_SECONDS)
    lock, waiter = client.lock(name), other.lock(name)
    waited: list[float] = []

    def wait() -> None:
        assert waiter.acquire(timeout=20)
        waited.append(time.monotonic())
        waiter.release()

    with client.lock(f"{name}-renewed", ttl=TTL) as renewed:
        before = client.statistics().renewals
        until(lambda: client.statistics().renewals >= before + 2, within=20, what="two renewals")
        assert renewed.owned()
    with without_heartbeats():
        lock.acquire()
        with client.lock(name) as nested:
            assert nested.hold_count == 2
        assert not waiter.acquire(blocking=False)
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: len(client.info(name).queue) == 1, within=30, what="the other one waits")
        assert list(client.names(name)) == [name]
        released = time.monotonic()
        lock.release()
        thread.join()
        assert waited[0] - released < LEASE_SECONDS / 3
    assert client.info(name).owner is None
    assert client.check() == ()


@pytest.mark.every_server
def test_tls_does_all_that_a_plain_connection_does(tls: Tls, connect: Callable[..., Client], name: str) -> None:
    use(connect, tls.url(), name)


@pytest.mark.every_server
def test_replies_that_take_many_tls_records_are_read(tls: Tls, connect: Callable[..., Client], name: str) -> None:
    client = connect(tls.url())
    waiters = {f"somebody:{'x' * 100}-{number}": number for number in range(3000)}
    with client.lock(name), tls.server.client() as plain:
        plain.zadd(f"lock:{{{name}}}:queue", waiters)
        assert len(client.info(name).queue) == len(waiters)
        plain.delete(f"lock:{{{name}}}:queue")


@pytest.mark.every_server
def test_a_certificate_of_somebody_else_raises_at_once(
    tls: Tls, connect: Callable[..., Client], name: str, tmp_path: Path
) -> None:
    assert_refused_at_once(connect(tls.url(certificate(tmp_path / "other")), patience=FOR_EVER), name)


@pytest.mark.every_server
def test_a_certificate_for_another_host_raises_at_once(tls: Tls, connect: Callable[..., Client], name: str) -> None:
    assert_refused_at_once(connect(tls.url(host="localhost"), patience=FOR_EVER), name)


NODE_TIMEOUT = 0.5
ENDS_WITHIN = 20.0  # seconds; a step without a limit has no end

# The replies that a client waits for while it opens a connection: redis-py's for the login, then relock's own at once.
REPLIES = {
    "AUTH": lambda words: words[0] == b"AUTH",
    "LIB-NAME": lambda words: words[2:3] == [b"LIB-NAME"],
    "LIB-VER": lambda words: words[2:3] == [b"LIB-VER"],
    "SELECT": lambda words: words[0] == b"SELECT",
    "the first request": lambda words: words[0] == b"INFO",
    "the first script": lambda words: words[0] in (b"EVAL", b"EVALSHA"),
}


def assert_fails_after_a_node_timeout(connect: Callable[..., Client], url: str, name: str) -> None:
    """Check that a single try is given up, and not before a node timeout is over."""
    lock = connect(url, node_timeout=NODE_TIMEOUT, ttl=60.0).lock(name)
    found: list[QuorumError] = []

    def take() -> None:
        with pytest.raises(QuorumError) as caught:
            lock.acquire(blocking=False)
        found.append(caught.value)

    began = time.monotonic()
    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(ENDS_WITHIN)
    assert found, "the call has no end"
    assert time.monotonic() - began > 0.9 * NODE_TIMEOUT
    assert all("imeout" in why or "in time" in why for why in found[0].failures.values()), found[0].failures


@pytest.mark.parametrize("silent", REPLIES)
def test_each_reply_of_opening_a_connection_is_awaited_for_a_node_timeout(
    own_server: Server, connect: Callable[..., Client], name: str, silent: str
) -> None:
    own_server.cli("ACL", "SETUSER", "somebody", "on", ">x", "~*", "&*", "+@all")
    with closing(Proxy(own_server.port)) as proxy:
        fault = proxy.swallow_reply(REPLIES[silent], mute=True)
        for _ in range(10):
            assert_fails_after_a_node_timeout(connect, f"redis://somebody:x@127.0.0.1:{proxy.port}/1", name)
            if fault.struck.is_set():  # else a busy machine was silent before
                return
    pytest.fail("the client did not wait for that reply")


@pytest.mark.parametrize("step", ["connect", "TLS"])
def test_connecting_and_the_tls_handshake_have_a_node_timeout_each(
    connect: Callable[..., Client], name: str, step: str
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, closing(socket.socket()) as first:
        scheme, (host, port) = "rediss" if step == "TLS" else "redis", listening.getsockname()
        if step == "connect":
            first.connect((host, port))  # the queue of a listener that accepts nobody is full then
        assert_fails_after_a_node_timeout(connect, f"{scheme}://{host}:{port}", name)


CLOSED_AT_ONCE = 3


@pytest.mark.every_server
def test_a_proxy_that_accepts_and_closes_does_not_end_a_wait_over_tls(
    tls: Tls, connect: Callable[..., Client], name: str
) -> None:
    """Proxies such as haproxy, stunnel and load balancers do so while the server behind them is away."""
    closed: list[int] = []

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                near = listening.accept()[0]
            except OSError:  # the test has ended
                return
            if len(closed) < CLOSED_AT_ONCE:
                near.close()
                closed.append(1)
                continue
            far = socket.create_connection(("127.0.0.1", tls.port))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        try:
            client = connect(tls.url().replace(str(tls.port), str(listening.getsockname()[1])))
            with client.lock(name, timeout=60) as lock:
                assert lock.owned()
        finally:
            client.close()
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()
    assert len(closed) == CLOSED_AT_ONCE


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until either end has closed."""
    with source, sink, suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


def assert_refused_at_once(client: Client, name: str) -> None:
    """Check that the call raises at once: its patience lasts longer than the test's own limit."""
    with pytest.raises(QuorumError, match="certificate verify failed"):
        client.lock(name).acquire()


# redis-py 5.0 leaves the socket to the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_certificate_that_is_not_there_raises_at_once(
    server: Deployment, connect: Callable[..., Client], name: str, tmp_path: Path
) -> None:
    (member,) = server.members
    client = connect(f"rediss://127.0.0.1:{member.port}/0?ssl_ca_certs={tmp_path}/none.pem")
    with pytest.raises(QuorumError):
        client.lock(name).acquire()


def test_a_server_without_tls_is_no_quorum(server: Deployment, connect: Callable[..., Client], name: str) -> None:
    (member,) = server.members
    with pytest.raises(QuorumError):
        connect(f"rediss://127.0.0.1:{member.port}/0", patience=0.0).lock(name).acquire()


@pytest.mark.every_server
def test_a_unix_socket_does_all_that_a_port_does(server: Server, connect: Callable[..., Client], name: str) -> None:
    use(connect, server.unix_url, name)


@pytest.mark.every_server
@pytest.mark.parametrize("where", ["redis://{user}@127.0.0.1:{port}/0", "unix://{user}@{socket}?db=0"])
def test_a_user_with_the_documented_rights_can_do_it_all(
    server: Server, connect: Callable[..., Client], name: str, where: str
) -> None:
    rights = re.search(r"```text\n(ACL SETUSER.*?)```", ACL_PAGE.read_text(), re.DOTALL)
    assert rights is not None
    server.cli(*rights[1].split())
    try:
        use(connect, where.format(user="relock:CHANGE-ME", port=server.port, socket=server.socket_path), name)
    finally:
        server.cli("ACL", "DELUSER", "relock")


@pytest.mark.every_server
def test_a_tls_connection_of_a_redis_py_client_is_taken(tls: Tls, connect: Callable[..., Client], name: str) -> None:
    with redis.Redis.from_url(tls.url()) as given, connect(given).lock(name) as lock:
        assert lock.owned()


@pytest.mark.every_server
@pytest.mark.parametrize(
    "refuse",
    [("ACL", "SETUSER", "app", "resetpass", ">new"), ("CONFIG", "SET", "maxclients", "1")],
    ids=["the password is another one", "there are too many clients"],
)
def test_holds_live_on_by_the_connections_there_are_where_the_server_takes_no_new_one(
    own_server: Server, connect: Callable[..., Client], name: str, refuse: tuple[str, ...]
) -> None:
    own_server.cli("ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all")
    client = connect(f"redis://app:old@127.0.0.1:{own_server.port}/0", patience=0.0)
    lock = client.lock(name, ttl=TTL)
    lock.acquire()
    own_server.cli(*refuse)
    assert_lives_on(client, lock)


@pytest.mark.parametrize(
    "trouble",
    [
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
    ids=str,
)
def test_holds_live_on_by_the_connections_there_are_where_this_machine_makes_no_new_one(
    server: Server, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch, trouble: OSError
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise trouble

    client = connect(server.url, patience=0.0)
    lock = client.lock(name, ttl=TTL)
    lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        assert_lives_on(client, lock)


def test_a_master_that_took_no_new_connection_is_said_to_be_back_where_nobody_needs_another_one(
    server: Server, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    events: list[Event] = []
    client = connect(server.url, patience=0.0, on_event=events.append)
    with client.lock(name):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        with pytest.raises(QuorumError):
            client.check()
    assert client.statistics().masters[0].down is not None

    def is_back() -> bool:
        with client.lock(name):
            return client.statistics().masters[0].down is None

    until(is_back, within=20, what="the master is back")
    until(lambda: any(isinstance(event, MasterBack) for event in events), within=20, what="an event tells that")


def assert_lives_on(client: Client, lock: Lock) -> None:
    """Check that the client renews the lock on its connections, though other calls needed one more and got none."""

    def is_refused(number: int) -> bool:
        try:
            with client.lock(f"{lock.name}-{number}"):
                return False
        except QuorumError:
            return True

    with ThreadPoolExecutor(8) as pool:
        until(lambda: any(pool.map(is_refused, range(8))), within=30, what="somebody needs a new connection")
    renewed = client.statistics().renewals
    until(lambda: client.statistics().renewals >= renewed + 3, within=30, what="three renewals")
    assert lock.owned()
    lock.release()
