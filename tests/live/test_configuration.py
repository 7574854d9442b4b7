"""Servers that can't be used, or promise less than they seem to: the error names the server and the remedy."""

import functools
import importlib
import math
import pickle
import re
import socket
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import valkey
from support.servers import Server, free_port
from support.tls import Tls
from support.until import until

from relock import Client, ConfigurationError, LockLostError, MasterBack, MasterDown, QuorumError, RelockWarning
from relock._runtime.session import closing


def failure(client: Client, name: str, **acquire: Any) -> str:
    with pytest.raises(QuorumError) as caught:
        client.lock(name).acquire(**acquire)
    ((master, why),) = caught.value.failures.items()
    assert master in str(caught.value)
    assert why in str(caught.value)
    return why


def test_a_refused_connection_says_what_to_start(connect: Callable[..., Client], name: str) -> None:
    why = failure(connect(f"redis://127.0.0.1:{free_port()}"), name, blocking=False)
    assert "refused" in why
    assert "start it" in why


@pytest.mark.parametrize("url", ["redis://:wrong@127.0.0.1:{port}", "redis://127.0.0.1:{port}"], ids=["wrong", "none"])
def test_a_wrong_password_raises_at_once_however_long_one_would_wait(
    start_server: Callable[..., Server], connect: Callable[..., Client], name: str, url: str
) -> None:
    server = start_server(password="hush")
    why = failure(connect(url.format(port=server.port)), name)  # blocking, without a timeout
    assert "password" in why
    assert "hush" not in why


def test_the_right_password_works_and_is_told_to_nobody(
    start_server: Callable[..., Server], connect: Callable[..., Client], name: str
) -> None:
    server = start_server(password="hush")
    client = connect(server.url)
    with client.lock(name) as lock:
        shown = [repr(client), repr(lock), repr(client.statistics()), repr(client.info(name))]
    assert not any("hush" in text for text in shown)


@pytest.mark.every_server
@pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "TIME", "HMGET", "HSET"])
def test_a_command_that_was_renamed_raises_at_once_and_is_named(
    start_server: Callable[..., Server], connect: Callable[..., Client], name: str, command: str
) -> None:
    server = start_server("--rename-command", command, "hidden-from-relock")
    client = connect(server.url, patience=math.inf)
    why = failure(client, name)  # blocking, without a timeout: an error comes at once or never
    assert "rename-command" in why
    if command in ("TIME", "HMGET"):  # each connection needs these
        with pytest.raises(QuorumError, match=command):
            client.check()
    else:
        (problem,) = client.check()
        assert f"does not know {command}:" in problem


def test_a_database_that_is_not_there_raises_at_once(connect: Callable[..., Client], server: Server, name: str) -> None:
    assert "DB index" in failure(connect(f"redis://127.0.0.1:{server.port}/9999"), name)


def test_databases_are_told_apart(connect: Callable[..., Client], server: Server, name: str) -> None:
    with connect(f"redis://127.0.0.1:{server.port}/1").lock(name):
        assert connect(server.url).lock(name).acquire(blocking=False)


def test_a_replica_is_refused(
    server: Server, start_server: Callable[..., Server], connect: Callable[..., Client], name: str
) -> None:
    replica = start_server("--replicaof", "127.0.0.1", str(server.port))
    with pytest.raises(ConfigurationError, match="replica"):
        connect(replica.url).lock(name).acquire()


def test_a_master_that_becomes_a_replica_has_no_vote_and_says_so(
    own_server: Server, server: Server, connect: Callable[..., Client], name: str
) -> None:
    client = connect(own_server.url)
    with client.lock(name):
        pass
    own_server.cli("REPLICAOF", "127.0.0.1", str(server.port))
    with pytest.raises((QuorumError, ConfigurationError), match="replica"):
        client.lock(name).acquire(blocking=False)


def test_a_master_that_is_a_replica_for_a_while_is_waited_for(
    own_server: Server, server: Server, connect: Callable[..., Client], name: str
) -> None:
    """Failovers look so behind an address that follows the master, until the address has moved."""
    client = connect(own_server.url, patience=60)
    with client.lock(name):
        pass
    own_server.cli("REPLICAOF", "127.0.0.1", str(server.port))
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(lambda: client.lock(name).acquire(timeout=60))
        try:
            until(lambda: client.statistics().masters[0].down or waiter.done(), within=20, what="the master is down")
            assert "is a replica" in str(client.statistics().masters[0].down)
        finally:
            own_server.cli("REPLICAOF", "NO", "ONE")
        assert waiter.result(timeout=60)


def test_a_server_that_loads_has_no_vote(
    start_server: Callable[..., Server], connect: Callable[..., Client], name: str
) -> None:
    server = start_server("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
    with server.client() as redis_client:
        for number in range(2_000):  # for twenty seconds
            redis_client.set(f"key-{number}", "x" * 1000)
        redis_client.save()
    server.restart()
    assert "loading" in failure(connect(server.url), name, blocking=False).lower()


def test_an_evicting_policy_is_warned_of_once(
    start_server: Callable[..., Server], connect: Callable[..., Client], name: str
) -> None:
    server = start_server("--maxmemory-policy", "allkeys-lru")
    client = connect(server.url)
    with pytest.warns(RelockWarning, match="noeviction") as caught, client.lock(name):
        pass
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server.cli("CLIENT", "KILL", "TYPE", "normal")
        with client.lock(name, timeout=10):
            pass
    assert any("allkeys-lru" in problem for problem in client.check())


def test_a_good_server_has_nothing_to_be_said_of_it(client: Client, name: str) -> None:
    assert client.check() == ()
    (master,) = client.statistics().masters
    assert (master.down, master.vote_in, master.problems) == (None, 0.0, ())
    assert master.version


def test_a_server_that_goes_and_comes_back_is_told(
    own_server: Server, connect: Callable[..., Client], name: str
) -> None:
    events: list[Any] = []
    client = connect(own_server.url, on_event=events.append)
    with client.lock(name):
        own_server.kill()
    failure(client, name, blocking=False)
    until(lambda: any(isinstance(event, MasterDown) for event in events), within=20, what="the master is down")
    assert client.statistics().masters[0].down is not None
    own_server.start()
    with client.lock(name, timeout=20):
        pass
    until(lambda: any(isinstance(event, MasterBack) for event in events), within=20, what="the master is back")
    assert client.statistics().masters[0].down is None


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_of_redis_py_is_used_as_it_is_configured(
    server: Server, connect: Callable[..., Client], name: str, decode: bool, protocol: int
) -> None:
    given = redis.Redis(host="127.0.0.1", port=server.port, db=2, decode_responses=decode, protocol=protocol)
    client = connect(given)
    with client.lock(name), client.lock(name) as lock:
        assert client.info(name).hold_count == lock.hold_count == 2
        assert list(client.names()) == [name]
        assert given.exists(f"lock:{{{name}}}")
    client.close()
    assert given.ping(), "the user's own client stays open"


@pytest.mark.every_server
@pytest.mark.parametrize("where", ["a port", "a socket", "a URL"])
def test_a_client_of_valkey_py_is_used_as_it_is_configured(
    server: Server, connect: Callable[..., Client], name: str, where: str
) -> None:
    if where == "a port":
        given = valkey.Valkey("127.0.0.1", server.port, db=2, decode_responses=True, protocol=3)
    elif where == "a socket":
        given = valkey.Valkey(unix_socket_path=str(server.socket_path), db=2)
    else:
        given = valkey.Valkey.from_url(f"valkey://127.0.0.1:{server.port}/2")
    with given:
        client, other = connect(given), connect(f"valkey://127.0.0.1:{server.port}/2")
        with client.lock(name), client.lock(name) as lock:
            assert lock.hold_count == 2
            assert not other.lock(name).acquire(blocking=False)
            assert given.exists(f"lock:{{{name}}}")
        client.close()
        assert given.ping(), "the user's own client stays open"


@pytest.mark.every_server
def test_a_tls_connection_of_a_valkey_py_client_is_taken(connect: Callable[..., Client], name: str, tls: Tls) -> None:
    with valkey.Valkey.from_url(tls.url(scheme="valkeys")) as given, connect(given).lock(name) as lock:
        assert lock.owned()
    with connect(tls.url(scheme="valkeys")).lock(name) as lock:
        assert lock.owned()


@pytest.mark.every_server
def test_a_port_that_speaks_no_tls_suggests_the_other_scheme(
    server: Server, connect: Callable[..., Client], name: str
) -> None:
    why = failure(connect(f"rediss://127.0.0.1:{server.port}", patience=0.0, node_timeout=1.0), name)
    assert "write redis:// instead of rediss://" in why


@pytest.mark.every_server
def test_a_port_that_speaks_tls_suggests_the_other_scheme(connect: Callable[..., Client], name: str, tls: Tls) -> None:
    why = failure(connect(f"redis://127.0.0.1:{tls.port}", patience=0.0), name)
    assert "write rediss://, not redis://" in why


ALERT = b"\x15\x03\x03\x00\x02\x02\x46"  # "unknown version": the answer of some servers that can't read the first bytes


@pytest.mark.parametrize("parser", ["DefaultParser", "_RESP2Parser"])
def test_a_server_that_answers_in_tls_suggests_the_other_scheme(
    connect: Callable[..., Client], name: str, parser: str
) -> None:
    """The words of hiredis, if installed, and those of redis-py's own parser show the mistake."""
    reads = getattr(redis.connection, parser, None) or getattr(importlib.import_module("redis._parsers"), parser)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:
        served = threads.submit(_answer_with_alert, listening)
        pool = redis.ConnectionPool(host="127.0.0.1", port=listening.getsockname()[1], parser_class=reads)
        why = failure(connect(redis.Redis(connection_pool=pool), patience=0.0), name, blocking=False)
        served.result(timeout=20)
    assert re.search("speaks TLS.* rediss://", why)


def _answer_with_alert(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(ALERT)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def test_a_lone_server_that_is_away_is_spoken_of_as_a_server(connect: Callable[..., Client], name: str) -> None:
    address = f"redis://127.0.0.1:{free_port()}"
    client = connect(address, patience=0.0)
    for ask in (client.lock(name).acquire, client.lock(name).locked, lambda: list(client.names()), client.check):
        with pytest.raises(QuorumError, match=f"{address}/0: .*nothing listens there") as caught:
            ask()
        assert " of 1 masters" not in str(caught.value)
        assert "quorum" not in str(caught.value)


def test_ensure_gives_the_token_of_what_it_has_checked(client: Client, name: str) -> None:
    lock = client.lock(name)
    with lock as held:
        first = held.ensure(2.0)
        assert first == held.token
        with lock:
            assert lock.ensure() == first
    with lock:
        assert lock.ensure() > first


def test_a_unix_socket_works(server: Server, connect: Callable[..., Client], name: str) -> None:
    with connect(f"unix://{server.socket_path}").lock(name) as lock:
        assert lock.owned()


def test_a_url_may_be_given_in_a_sequence_of_one(server: Server, connect: Callable[..., Client], name: str) -> None:
    with connect([server.url]).lock(name) as lock:
        assert lock.owned()


def test_names_lists_what_is_held_or_waited_for(client: Client, server: Server) -> None:
    with client.lock("orders:1"), client.lock("orders:2"), client.lock("users:1"):
        server.client().zadd("lock:{orders:3}:queue", {"somebody:1": 1})
        assert set(client.names()) == {"orders:1", "orders:2", "orders:3", "users:1"}
        assert set(client.names("orders:*")) == {"orders:1", "orders:2", "orders:3"}
    assert set(client.names("users:*")) == set()


def test_synchronized_names_the_lock_by_the_arguments(client: Client, server: Server) -> None:
    class Shop:
        @client.synchronized("orders:{order_id}")
        def sell(self, order_id: int, amount: int = 1) -> tuple[int, list[str]]:
            return amount * (order_id > 0), list(client.names())

    assert Shop().sell(42) == (1, ["orders:42"])
    assert Shop().sell(order_id=7, amount=3) == (3, ["orders:7"])
    assert list(client.names()) == []


def test_synchronized_refuses_an_argument_that_the_function_does_not_have(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="order"):

        @client.synchronized("orders:{order}")
        def sell(order_id: int) -> None:
            raise AssertionError(order_id)


def test_synchronized_takes_the_options_of_a_lock(client: Client, name: str) -> None:
    @client.synchronized(name, timeout=0.05)
    def work() -> None:
        raise AssertionError("the body ran without the lock")

    holder = client.lock(name, owner="holder")
    holder.acquire()
    with pytest.raises(TimeoutError):
        work()


def test_info_and_locked_raise_where_no_quorum_answers(connect: Callable[..., Client], name: str) -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}")
    lock = client.lock(name)
    for ask in (lock.info, lock.locked, lock.force_release, lambda: list(client.names()), client.check):
        with pytest.raises(QuorumError):
            ask()


def test_a_hold_may_be_released_after_close(connect: Callable[..., Client], server: Server, name: str) -> None:
    client = connect(server.url)
    lock = client.lock(name)
    lock.acquire()
    client.close()
    assert lock.owned()
    lock.release()
    assert not lock.owned()
    assert server.client().exists(f"lock:{{{name}}}"), "the hold stays until its lease ends"


def test_a_hold_that_is_released_while_the_client_is_being_closed_ends_on_the_master(
    connect: Callable[..., Client], server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(server.url)
    lock = client.lock(name)
    lock.acquire()
    monkeypatch.setattr(closing, "_see_calls_off", lambda _session: lock.release())
    client.close()
    assert not lock.owned()
    assert not server.client().exists(f"lock:{{{name}}}")


def test_a_hold_that_ends_after_close_says_so_where_it_is_used(
    connect: Callable[..., Client], server: Server, name: str
) -> None:
    told: list[object] = []
    client = connect(server.url, ttl=3.0, on_lost=told.append)  # until after the close, however slow this machine is
    lock = client.lock(name)
    lock.acquire()
    client.close()
    until(lambda: not lock.owned(), within=10, what="the lease is over")
    with pytest.raises(LockLostError):
        lock.release()
    assert not client._session.losses.running
    assert told == []


RIGHTS = ("on", "nopass", "~*", "&*", "+@all")


@pytest.mark.every_server
@pytest.mark.parametrize("missing", ["pexpire", "hkeys", "set", "evalsha"])
def test_a_right_that_is_missing_raises_at_once_and_leaves_nothing(
    server: Server, connect: Callable[..., Client], name: str, missing: str
) -> None:
    server.cli("ACL", "SETUSER", "poor", "reset", *RIGHTS, f"-{missing}")
    if missing == "hkeys":
        server.client().hset(f"lock:{{{name}}}", "somebody:1", "1")
    try:
        why = failure(connect(f"redis://poor:x@127.0.0.1:{server.port}"), name)  # blocking, without a timeout
        assert "ACL page" in why
        if missing != "hkeys":
            until(lambda: not server.client().exists(f"lock:{{{name}}}"), within=10, what="the grant is undone")
    finally:
        server.cli("ACL", "DELUSER", "poor")


@pytest.mark.every_server
def test_a_right_that_is_taken_away_is_no_loss(server: Server, connect: Callable[..., Client], name: str) -> None:
    server.cli("ACL", "SETUSER", "poor", "reset", *RIGHTS)
    try:
        lock = connect(f"redis://poor:x@127.0.0.1:{server.port}").lock(name)
        lock.acquire()
        server.cli("ACL", "SETUSER", "poor", "-hexists", "-hdel")
        with pytest.raises(QuorumError):
            lock.extend()
        assert lock.owned()
        lock.release()
        assert not lock.lost
    finally:
        server.cli("ACL", "DELUSER", "poor")


def test_synchronized_refuses_what_runs_after_the_call(client: Client) -> None:
    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    class Called:
        async def __call__(self) -> None: ...

    for function in (coroutine, generator, functools.partial(coroutine), functools.partial(generator), Called()):
        with pytest.raises(TypeError, match="synchronized"):
            client.synchronized("a")(function)


def test_clients_and_locks_are_not_pickled_but_say_so(client: Client, name: str) -> None:
    for thing in (client, client.lock(name)):
        with pytest.raises(TypeError, match="in each process"):
            pickle.dumps(thing)


def test_a_guard_below_the_ttl_is_warned_of(connect: Callable[..., Client], server: Server) -> None:
    with pytest.warns(RelockWarning, match="restart_guard"):
        connect(server.url, ttl=30.0, restart_guard=1.0)


def test_synchronized_names_a_partial_function_that_lacks_an_argument(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="has no argument b"):
        client.synchronized("orders:{b}")(functools.partial(lambda a: a))


@pytest.mark.parametrize("template", ["orders:{}", "orders:{a:{b}}", "orders:{", "orders:}", "orders:{a!}"])
def test_synchronized_refuses_a_template_that_can_t_work_when_it_decorates(template: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client("redis://127.0.0.1:1").synchronized(template)(lambda a: a)
    assert caught.value.option == "template"
