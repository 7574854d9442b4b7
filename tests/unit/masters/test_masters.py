"""A master's connections: the effect of their replies, their end, and their opening."""

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import pytest
import redis
from support.listener import NewsListener

from relock._core.asking import Round
from relock._core.clocks import LOOK_SECONDS
from relock._core.effects import Ask, Failure
from relock._core.master_facts import Down, InDoubt, MasterFacts, Moved, News, Seen, Stepped, make_facts
from relock._core.quorum import NEVER
from relock._errors import ConfigurationError
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.machine import THREADS
from relock._runtime.masters.connections import NOT_AFTER_PART, Connection
from relock._runtime.masters.master import Master, Reconnector
from relock._runtime.masters.opener import MasterListener, Opener
from relock._runtime.net.channel import Channel
from relock._runtime.net.credentials import Credentials
from relock._runtime.net.node import Node
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import load

GUARD = ClientOptions(restart_guard=30.0).guard_ms / 1000
SERVER, OTHER = b"run:repl", b"other:repl"


class Line:
    """A connection that leads nowhere."""

    is_open = False

    def disconnect(self) -> None:
        self.is_open = False


class FakeNode:
    """A node without a server."""

    address, client_name = "a", "me"
    credentials = Credentials(None)

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def raw_connection(self, timeout: float) -> Line:  # noqa: ARG002
        self.lines.append(Line())
        return self.lines[-1]


def make(node: FakeNode | None = None, listener: MasterListener | None = None) -> Master:
    """Return one of several masters; at our time 10 its clock showed 110, as the client knows to the microsecond."""
    options = ClientOptions(restart_guard=30.0)
    facts, _ = make_facts(["a", "b"], options)
    node = node or FakeNode()
    made = Master(Opener(cast("Node", node), facts, options, THREADS, listener or NewsListener()))
    see_server(made, SERVER)
    facts.offset.see(100.0, 100.0, 10.0)
    return made


def see_server(master: Master, incarnation: bytes) -> None:
    """Note that a new socket leads to that server."""
    master.act(master.facts.see_incarnation(incarnation))


class Interrupted(NewsListener):
    """Listener that a signal interrupts once, when it begins to act on news."""

    strikes = 0

    def hear(self, facts: MasterFacts, news: News) -> None:
        if self.strikes:
            self.strikes -= 1
            raise KeyboardInterrupt
        super().hear(facts, news)


def test_a_step_counts_though_a_signal_interrupts_the_thread_that_saw_it() -> None:
    """No later reply shows the step: the bounds are those of the new time by then, and leases would count in full."""
    listener = Interrupted()
    master = make(listener=listener)
    connection, listener.strikes = connected(master, SERVER), 1
    with pytest.raises(KeyboardInterrupt):
        see(connection, 105.0, 105.0, 10.5)
    moved, seen, stepped = listener.news
    assert (moved, seen, isinstance(stepped, Stepped)) == (Moved(), Seen(), True)
    assert master.facts.offset.see(105.0, 105.0, 10.6) == 0.0


@pytest.mark.parametrize(("down", "is_tried"), [(Down("reset"), True), (Down("a replica", is_mistake=True), False)])
def test_a_master_that_goes_down_is_tried_again_at_once(
    down: Down, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters that turned out to be replicas are not: their address must come to mean another server first."""
    master, tried = make(), list[bool]()
    monkeypatch.setattr(master.reconnector, "probe", lambda: tried.append(True))
    master.act([down])
    assert tried == [True] * is_tried


class SlowLine:
    """A connection whose replies come one by one, each some seconds after the one before."""

    def __init__(self, seconds: float) -> None:
        self.now = 10.0
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    def connect(self) -> None:
        """Take no time."""

    def pack_commands(self, _commands: object) -> list[bytes]:
        return []

    def send_packed_command(self, _packed: object, *, check_health: bool) -> None:
        assert not check_health

    def can_read(self, timeout: float) -> bool:
        self.now += min(self._seconds, timeout)
        return self._seconds <= timeout

    def read_response(self) -> Any:
        raise redis.ResponseError("NOPERM")


def test_a_server_that_is_asked_for_its_name_has_a_node_timeout_for_all_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = make()
    line = SlowLine(0.7 * master.node_timeout)
    monkeypatch.setattr(master.opener, "clock", line.clock)
    with pytest.raises(redis.TimeoutError):
        Connection(master.pool, cast("RawConnection", line)).open()
    assert line.now == pytest.approx(10.0 + master.node_timeout)


def test_a_connection_that_another_thread_closes_while_it_is_introduced_is_not_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look of redis-py for unread bytes would open the connection."""
    line = SlowLine(0.0)
    monkeypatch.setattr(line, "_sock", None, raising=False)
    monkeypatch.setattr(line, "can_read", lambda _timeout: pytest.fail("a closed connection was opened again"))
    with pytest.raises(redis.ConnectionError, match="closed"):
        Connection(make().pool, cast("RawConnection", line)).open()


class FakeChannel:
    """Channel that keeps the bytes a client sends."""

    def __init__(self) -> None:
        self.sent = b""

    def send(self, packed: bytes) -> None:
        self.sent += packed


def test_what_is_sent_while_another_thread_finds_another_server_there_is_void() -> None:
    """The client knows nothing of the other server's clock until the new connection has asked for it."""
    master = make()
    connection = Connection(master.pool, cast("RawConnection", None))
    connection.shown.incarnation = SERVER
    channel = FakeChannel()
    connection.channel = cast("Channel", channel)
    see_server(master, OTHER)
    call = load("extend").call(lock_keys("lock", "a"), owner=b"me:1", lease_ms=1000, token_ms=2000)
    connection.request(Round(Ask((call,), 12.0), 10.0, []))
    assert channel.sent.endswith(b"$16\r\n%016d\r\n" % 0)


def test_a_grant_counts_for_nothing_as_soon_as_another_thread_has_seen_a_step() -> None:
    """Grants are void even before that thread reports the step; else the hold would be lost with the step."""
    master = make()
    connection = Connection(master.pool, cast("RawConnection", None))
    connection.shown.incarnation = SERVER
    assert master.facts.offset.see(105.0, 105.0, 10.5)
    granted = [b"granted", 115_600_000, 115_600_000]
    assert isinstance(connection._judge(granted, load("acquire"), 10.4, 10.6), Failure)
    assert connection._judge(granted, load("acquire"), 10.55, 10.6) == granted


def connected(master: Master, incarnation: bytes) -> Connection:
    """Return a connection that was opened to `incarnation`, when that was the master."""
    connection = Connection(master.pool, cast("RawConnection", Line()))
    cast("Line", connection.raw).is_open = True
    connection.shown.incarnation = incarnation
    return connection


def is_open(connection: Connection) -> bool:
    return cast("Line", connection.raw).is_open


def test_sockets_to_the_server_that_was_the_master_are_given_up() -> None:
    """Unused sockets end at once, the others when they are given back."""
    listener = NewsListener()
    master = make(listener=listener)
    idle, used, new = connected(master, SERVER), connected(master, SERVER), connected(master, OTHER)
    master.pool.give_back(idle, 10.0)
    assert (is_open(idle), listener.news.count(Moved())) == (True, 1)
    see_server(master, OTHER)
    master.pool.give_back(used, 10.0)
    master.pool.give_back(new, 10.0)
    assert [is_open(connection) for connection in (idle, used, new)] == [False, False, True]
    assert master.pool.check_out(10.0) is new
    assert listener.news.count(Moved()) == 2


@pytest.mark.parametrize("status", [b"granted", b"released", b"refused"])
def test_what_the_server_says_that_was_the_master_counts_for_nothing(status: bytes) -> None:
    """Clocks of such a server do not count either: the master's clock would seem to step."""
    master = make()
    connection = connected(master, SERVER)
    see_server(master, OTHER)
    reply = {b"granted": b"granted 1 1", b"released": b"released 1", b"refused": [status, 1, 0, 0, b""]}[status]
    script = load("release" if status == b"released" else "acquire")
    failure = connection._judge(reply, script, 10.0, 10.1)
    assert isinstance(failure, Failure)
    assert failure.sent, "the server may have carried the request out"
    assert connection.shown.is_retired
    assert master.facts.offset.low == NEVER


@pytest.mark.parametrize("words", ["READONLY You can't write", "ERR Error running script: -READONLY You can't write"])
def test_a_replica_is_not_believed_to_be_the_master_any_more(words: str) -> None:
    """Redis 6.2 puts more words before READONLY. Each idle connection would get the same error, and cost a call."""
    listener = NewsListener()
    master = make(listener=listener)
    connection, idle = connected(master, SERVER), connected(master, SERVER)
    master.pool.give_back(idle, 10.0)
    connection._judge(redis.ResponseError(words), load("acquire"), 10.0, 10.1)
    assert (connection.shown.is_retired, is_open(idle), listener.news.count(Moved())) == (True, False, 2)
    connection._judge(redis.ResponseError(words), load("acquire"), 10.0, 10.1)
    assert listener.news.count(Moved()) == 2, "a known fact is told once"


def test_a_replica_that_is_found_at_the_address_gives_no_socket_to_the_master_up() -> None:
    master = make()
    connection = connected(master, SERVER)
    master.pool.give_back(connection, 10.0)
    said = [b"run_id:replica\r\n", b"role:slave\r\nmaster_replid:repl\r\n", b""]
    with pytest.raises(ConfigurationError, match="is a replica"):
        master.opener.introduce(said)
    assert master.pool.check_out(10.0) is connection


def packed_us(connection: Connection, until: float) -> int:
    """Return the not-after time of a request."""
    return int(connection._own_arguments(load("count"), until).split(b"\r\n")[1])


def test_a_not_after_time_is_packed_for_the_requests_of_a_moment() -> None:
    master = make()
    connection, facts = connected(master, SERVER), master.facts
    first, spare = facts.offset.not_after_us(20.0), NOT_AFTER_PART * master.node_timeout
    assert [packed_us(connection, 20.0 + later) for later in (0.0, spare / 2, spare)] == [first] * 3
    late = 20.0 + 1.01 * spare
    assert packed_us(connection, late) == facts.offset.not_after_us(late) > first, (
        "a packed request keeps most of its time"
    )
    assert packed_us(connection, 20.0) == first, "a request with less time gets no later not-after time"


@pytest.mark.parametrize("bounds", [(100.05, 100.06), (105.0, 105.0), (95.0, 95.0)], ids=["tighter", "ahead", "back"])
def test_a_not_after_time_is_that_of_the_bounds_that_are_known(bounds: tuple[float, float]) -> None:
    master = make()
    connection, facts = connected(master, SERVER), master.facts
    before = packed_us(connection, 20.0)
    facts.offset.see(*bounds, 15.0)
    assert packed_us(connection, 20.0) == facts.offset.not_after_us(20.0) != before
    facts.see_incarnation(OTHER)
    assert packed_us(connection, 20.0) == 0, "the clock of another server is unknown"


def test_a_request_names_the_guard_that_is_known_by_then() -> None:
    """Requests name it even on an old connection: a quorum was reached since, or another master has a larger guard."""
    master = make()
    connection, facts = connected(master, SERVER), master.facts

    def named() -> bytes:
        return connection._own_arguments(load("acquire"), 11.0).split(b"\r\n")[-2]

    assert named() == named() == b"-30600"
    connection._credit([b"granted", 110_000_000, 1], facts.offset, 10.0, 10.0)
    assert named() == b"30600", "a vote shows that there is a marker"
    facts.peers[1].found_guard(60_000)
    assert named() == b"+60000"


def see(connection: Connection, low: float, high: float, now: float) -> Any:
    """Read a reply, by which the master's clock is ahead of ours by `low` to `high` (s)."""
    return connection._judge([b"absent", round((now + low) * 1e6)], load("extend"), now + low - high, now)


def test_a_reply_that_shows_nothing_new_changes_nothing_for_a_moment() -> None:
    master = make()
    connection, offset = connected(master, SERVER), master.facts.offset
    see(connection, 99.9, 100.1, 10.0 + LOOK_SECONDS / 2)
    assert offset.seen_at == 10.0
    see(connection, 99.9, 100.1, 10.0 + LOOK_SECONDS * 2)
    assert offset.seen_at == 10.0 + LOOK_SECONDS * 2, "the next look renews the bounds, which have widened"
    assert (offset.low, offset.high) == pytest.approx((100.0, 100.0), abs=0.001)


@pytest.mark.parametrize("ahead", [0.1, -0.1])
def test_a_step_is_seen_at_once(ahead: float) -> None:
    master = make()
    see(connected(master, SERVER), 100.0 + ahead, 100.0 + ahead, 10.0 + LOOK_SECONDS / 10)
    assert master.facts.offset.stepped_at == 10.0 + LOOK_SECONDS / 10


def test_a_step_of_unknown_direction_is_looked_into_at_once() -> None:
    """Two replies were under way together, and don't agree. If the clock went ahead, leases end earlier."""
    listener = NewsListener()
    master = make(listener=listener)
    connection = connected(master, SERVER)
    absent = [b"absent", 139_805_000]  # 30 s after the known sample, which agrees with either
    assert connection._judge(absent, load("extend"), 40.0, 40.01) == absent
    granted = [b"granted", 140_140_000, 140_140_000]
    assert isinstance(connection._judge(granted, load("acquire"), 39.98, 40.02), Failure)
    assert listener.news.count(InDoubt()) == 1


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ("acquire", [b"granted", 110_000_000, 2**53]),
        ("acquire", [b"granted", 110_000_000, -1]),
        ("acquire", [b"granted", 110_000_000, 0]),
        ("enqueue", [b"granted", 110_000_000, 0]),
        ("enqueue", [b"granted", 110_000_000, 2**63 - 1]),
        ("inspect", [b"held", 110_000_000, 0, b"", 0, 2**53, []]),
        ("inspect", [b"free", 110_000_000, 2**53, []]),
    ],
)
def test_a_token_that_nothing_could_rise_above_is_no_reply(script: str, reply: list[Any]) -> None:
    """Clients that believed the token would write it to all masters, and all later holders would get the same one."""
    connection = connected(make(), SERVER)
    with pytest.raises(redis.exceptions.InvalidResponse, match="no script gives"):
        connection._judge(reply, load(script), 10.0, 10.0)


def test_a_reply_in_words_is_the_array_that_it_stands_for() -> None:
    connection = connected(make(), SERVER)
    granted = connection._judge(b"granted 110000000 110000001", load("acquire"), 10.0, 10.0)
    assert granted == [b"granted", 110_000_000, 110_000_001]
    assert connection._judge(b"released 110000000", load("release"), 10.0, 10.0) == [b"released", 110_000_000]


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", b" ", b"granted", b"granted ", b"granted 110000000", b"granted 110000000 7 7", b"granted  110000000 7"),
        *(b"granted 110000000 0", b"granted 110000000 -7", b"granted 110000000 +7", b"granted 110000000 7_0"),
        *(b"granted 110000000 7\n", b"granted\t110000000 7", b" granted 110000000 7", b"granted 110000000 x"),
        *(b"granted 110000000 \xd9\xa7", b"granted 110000000 %d" % 2**53, b"granted %d 7" % 10**99),
        *(b"refused 110000000 0", b"no_vote 110000000 110000001", b"released 110000000", b"OK"),
    ],
    ids=repr,
)
def test_words_that_no_script_gives_are_no_reply(reply: bytes) -> None:
    connection = connected(make(), SERVER)
    with pytest.raises(redis.exceptions.InvalidResponse, match="no script gives"):
        connection._judge(reply, load("acquire"), 10.0, 10.0)


class LateChannel(FakeChannel):
    """Channel with replies that no caller has read yet."""

    def __init__(self, *replies: Any) -> None:
        super().__init__()
        self.replies = [*replies]

    def wait(self, seconds: float) -> bool:
        assert seconds == 0.0
        return bool(self.replies)

    def has_part(self) -> bool:
        return False

    def take(self) -> list[Any]:
        replies, self.replies = self.replies, []
        return replies

    def parse(self, taken: list[Any]) -> list[Any]:
        return taken


@pytest.mark.parametrize(
    ("replies", "is_drained", "in_flight"),
    [
        ([[b"absent", 110_000_000]], True, 0),
        ([redis.exceptions.NoScriptError("NOSCRIPT No matching script.")], True, 1),
        ([], False, 1),
    ],
    ids=["answered", "script not known", "silent"],
)
def test_a_connection_is_not_overdue_with_what_it_was_sent_while_its_late_replies_were_read(
    replies: list[Any], is_drained: bool, in_flight: int
) -> None:
    """Scripts that the master did not know have had no time to run yet."""
    master = make()
    clock = iter([12.0, 12.001, 12.002])
    master.opener.clock = lambda: next(clock)
    connection = Connection(master.pool, cast("RawConnection", None))
    channel = connection.channel = cast("Any", LateChannel(*replies))
    call = load("extend").call(lock_keys("lock", "a"), owner=b"me:1", lease_ms=1000, token_ms=2000)
    connection.in_flight.append(Round(Ask((call,), 10.5), 10.0, [(Failure("a", "silent", awaited=True),)]))
    assert master.pool.is_drained(connection, master.opener.clock()) is is_drained
    assert len(connection.in_flight) == in_flight
    assert (b"EVAL\r\n" in channel.sent) is (is_drained and in_flight == 1), (
        "it is sent, and the connection must wait for it"
    )


def test_a_script_that_was_not_known_is_not_sent_behind_a_later_request() -> None:
    """Requests behind may be the release of a hold that the script would create, which would then stay."""
    connection = Connection(make().pool, cast("RawConnection", None))
    connection.shown.incarnation = SERVER
    channel = connection.channel = cast("Any", LateChannel())
    call = load("leave").call(lock_keys("lock", "a"), owner=b"me:1")
    rounds = [Round(Ask((call,), 12.0), 10.0, [(Failure("a", "silent", awaited=True),)]) for _ in range(2)]
    for one in rounds:
        connection.request(one)
    unknown = redis.exceptions.NoScriptError("NOSCRIPT No matching script.")
    channel.replies, channel.sent = [unknown, unknown], b""
    connection.receive()
    assert channel.sent.count(b"EVAL\r\n") == 1, "only the last script is sent again"
    channel.replies = [[b"left", 110_000_000]]
    connection.receive()
    (overtaken,), (left,) = (one.answers[0] for one in rounds)
    assert isinstance(overtaken, Failure)
    assert not overtaken.sent
    assert not overtaken.awaited
    assert left == [b"left", 110_000_000]
    for _ in range(2):
        connection.in_flight.clear()
        connection.request(rounds[0])
    assert channel.sent.count(b"EVAL\r\n") == 2, "the next request brings the unknown script, once"


class Sleep(deque[Any]):
    """Sleep of a reconnector, which only a message meanwhile ends."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.meanwhile = meanwhile
        self.put = self.append

    def get(self, timeout: float | None) -> Any:
        assert timeout is None, "the sleep has no limit while no failure is known"
        self.meanwhile()
        assert self, "a message must end the sleep"
        return self.popleft()

    def empty(self) -> bool:
        return not self


def test_a_master_is_tried_again_though_the_thread_that_found_it_down_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads may be interrupted before they wake the reconnector. The other masters are a quorum without this one."""
    master, tried = make(), list[bool]()
    reconnector = cast("Reconnector", master.reconnector)

    def fail() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(reconnector, "probe", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                master.failed(OSError("reset"), sent=True)
        for _ in range(3):
            master.open_later(None, is_call=True)

    sleep = Sleep(fail)
    monkeypatch.setattr(reconnector, "_wanted", sleep)
    monkeypatch.setattr(reconnector, "ensure", lambda: True)
    monkeypatch.setattr(master, "open_ahead", lambda: tried.append(True))
    reconnector.step()
    assert tried == [True]
    assert sleep.empty(), "several requests wake the reconnector once"
    master.open_later(None, is_call=True)
    assert sleep.empty(), "a master that is down is tried at intervals"


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_connection_that_is_opened_while_the_client_is_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups of names, questions to Sentinels and handshakes take time, and there is nothing to close yet."""
    node = FakeNode()
    master = make(node)

    def open_(connection: Connection) -> None:
        master.pool.close()
        cast("Line", connection.raw).is_open = True

    monkeypatch.setattr(Connection, "open", open_)
    with pytest.raises(redis.ConnectionError, match="closed") as caught:
        master.probe()
    assert [line.is_open for line in node.lines] == [False]
    master.failed(caught.value, sent=False)
    assert master.facts.down is None, "a closed client does not call the master down"


def test_connections_that_are_opened_meanwhile_do_not_keep_the_others_from_being_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads may run between any two instructions, also between the steps of a loop over all connections."""
    node = FakeNode()
    master = make(node)
    monkeypatch.setattr(Connection, "open", lambda connection: setattr(connection.raw, "is_open", True))
    connections = [master.pool.open() for _ in range(3)]

    def open_another(frame: FrameType, event: str, _: Any) -> None:
        if "live_set" in frame.f_code.co_filename and event in ("call", "c_call") and len(node.lines) < 20:
            with suppress(redis.ConnectionError):
                connections.append(master.pool.open())

    sys.setprofile(open_another)
    try:
        master.pool.close()
    finally:
        sys.setprofile(None)
    assert not any(line.is_open for line in node.lines)
