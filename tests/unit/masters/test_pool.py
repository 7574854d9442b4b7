"""Number of a client's connections: as many as calls need, and never more than allowed. The tests move the clock."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty
from types import FrameType
from typing import Any, cast

import pytest
from attrs import define
from support.instructions import Interrupt, Strike
from support.listener import NewsListener

from relock._core.asking import Panel, Round
from relock._core.effects import Answer, Ask, Failure
from relock._core.flows.release import leave_call
from relock._core.master_facts import make_facts
from relock._core.quorum import NEVER
from relock._errors import ConfigurationError
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.machine import Machine
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.fan_out import CROWDED_SECONDS, LOOK_SECONDS, FanOut, Leg
from relock._runtime.masters.master import Master, Reconnector
from relock._runtime.masters.opener import Opener
from relock._runtime.masters.pool import UNUSED_SECONDS
from relock._runtime.masters.pool import Pool as RealPool
from relock._runtime.net.credentials import Credentials
from relock._runtime.net.node import Node
from relock._runtime.wait_queue import Entry

TIME = 1.0  # for one call
ANSWER: Answer = ([b"done"],)
CALL = leave_call(lock_keys("lock", "a"), b"me:1")


class Desk(Machine):
    """Machine of one thread: while it sleeps, the clock goes on, and the test's actions happen."""

    def __init__(self) -> None:
        self.now = 100.0
        self.clock = lambda: self.now
        self.queue = lambda: Wakes(self)  # type: ignore[assignment, return-value]
        self.meanwhile: Callable[[], object] = lambda: None
        self.sleeps = 0


class Wakes(deque[Any]):
    """Messages as in a `queue.SimpleQueue`."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    put = deque.append

    def empty(self) -> bool:
        return not self

    def get_nowait(self) -> Any:
        if not self:
            raise Empty
        return self.popleft()

    def get(self, timeout: float) -> Any:
        desk = self._desk
        desk.sleeps += 1
        if not self:
            meanwhile, desk.meanwhile = desk.meanwhile, lambda: None
            meanwhile()
        if not self:
            desk.now += timeout
        return self.get_nowait()


@define(eq=False)
class FakeConnection:
    """A connection that leads nowhere."""

    is_open: bool = False

    def disconnect(self) -> None:
        self.is_open = False


class Nowhere:
    """A node without a server."""

    address = "a"
    client_name = ""
    credentials = Credentials(None)

    def __init__(self) -> None:
        self.raws: list[FakeConnection] = []

    def raw_connection(self, _timeout: float) -> FakeConnection:
        self.raws.append(FakeConnection())
        return self.raws[-1]

    @property
    def open(self) -> int:
        return sum(raw.is_open for raw in self.raws)


class PromptReconnector(Reconnector):
    """Reconnector that opens at once what a real one opens in the background; if it is `late`, only by the test."""

    late = False

    def ensure(self) -> bool:
        while not self.late and not self._wanted.empty():
            self.step()
        return True


@pytest.fixture(autouse=True)
def _without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace connections by some that are open at once, and answer before they are asked twice."""

    def request(connection: Connection, round_: Round) -> None:
        assert cast("FakeConnection", connection.raw).is_open
        assert round_.answers[connection.facts.index][0].awaited  # type: ignore[union-attr]
        round_.answers[connection.facts.index] = ANSWER
        round_.missing -= 1

    monkeypatch.setattr(Connection, "open", lambda connection: setattr(connection.raw, "is_open", True))
    monkeypatch.setattr(Connection, "request", request)
    monkeypatch.setattr(RealPool, "_is_sound", lambda *_: True)
    monkeypatch.setattr(FanOut, "_read_whoever_is_ready", lambda *_: None)


class Pool:
    """Masters with so many connections for calls, and the fan-out that asks them."""

    def __init__(self, maximum: int, masters: int = 1) -> None:
        self.desk = Desk()
        self.nodes = [Nowhere() for _ in range(masters)]
        self.listener = NewsListener()
        options = ClientOptions(max_connections=maximum, restart_guard=0.0)
        facts = make_facts(["a"] * masters, options)
        self.masters = tuple(
            Master(Opener(cast("Node", node), own, options, self.desk, self.listener))
            for node, own in zip(self.nodes, facts, strict=True)
        )
        if masters > 1:
            for master in self.masters:
                master.reconnector = PromptReconnector(master)
        self.fan_out = FanOut(Panel(self.masters), self.desk)

    @property
    def master(self) -> Master:
        return self.masters[0]

    def ask(self, *, is_call: bool = True) -> list[Answer]:
        return self.fan_out.ask(Ask((CALL,), self.desk.now + TIME), strict=True, is_call=is_call)

    def take(self, count: int, master: int = 0) -> list[Connection]:
        """Take so many connections to a master, as calls of other threads do."""
        taken = []
        for _ in range(count):
            connection = self.masters[master].pool.check_out(self.desk.now) or self.masters[master].pool.open_for_call()
            assert connection is not None
            taken.append(connection)
        return taken

    def end(self, connections: list[Connection]) -> None:
        while connections:
            connection = connections.pop()
            connection.pool.give_back(connection, self.desk.now)


# Connections that no call needs ---------------------------------------------------------------------------------------


def test_what_a_burst_has_opened_is_closed_when_nobody_has_needed_it_for_half_a_minute() -> None:
    pool = Pool(64)
    pool.end(pool.take(64))
    for _ in range(int(UNUSED_SECONDS)):
        assert pool.nodes[0].open == 64
        pool.desk.now += 1.0
        pool.end(pool.take(3))
    assert pool.nodes[0].open == 3, "as many stay as were in use at once since then"


def test_the_last_connection_is_kept_for_rare_calls() -> None:
    pool = Pool(64)
    pool.end(pool.take(2))
    pool.desk.now += UNUSED_SECONDS
    assert pool.master.pool.sweep(pool.desk.now) == float("inf"), "no unused connection is left"
    assert (pool.nodes[0].open, pool.master.pool.connections) == (1, 1)


def test_the_sweeper_of_connections_is_told_when() -> None:
    """A single connection needs no look, so a client with one at most is never woken for it."""
    pool = Pool(64)
    first = pool.take(1)
    assert pool.listener.moments == []
    pool.desk.now += 5.0
    second = pool.take(1)
    assert pool.listener.moments == [pool.desk.now + UNUSED_SECONDS]
    assert pool.master.pool.sweep(pool.desk.now) == pool.desk.now + UNUSED_SECONDS, "connections in use stay"
    pool.end(first)
    pool.desk.now += 1.0
    pool.end(second)
    pool.desk.now += UNUSED_SECONDS - 1.0
    assert pool.master.pool.sweep(pool.desk.now) == float("inf")
    assert pool.nodes[0].open == 1


def test_what_was_used_a_moment_ago_stays() -> None:
    pool = Pool(64)
    pool.end(pool.take(2))
    pool.desk.now += UNUSED_SECONDS - 1.0
    pool.end(pool.take(2))
    assert pool.master.pool.sweep(pool.desk.now) == pool.desk.now + UNUSED_SECONDS
    assert pool.nodes[0].open == 2


# The bound ------------------------------------------------------------------------------------------------------------


def test_a_call_that_finds_none_free_waits_until_one_is_given_back() -> None:
    pool = Pool(2)
    taken = pool.take(2)
    pool.desk.meanwhile = lambda: pool.end(taken)
    assert pool.ask() == [ANSWER]
    assert pool.desk.sleeps == 1, "the call is woken"
    assert pool.desk.now == 100.0
    assert len(pool.nodes[0].raws) == 2
    assert not pool.master.pool.line.waiting


def test_calls_that_come_at_once_have_no_more_opened_than_there_may_be() -> None:
    """Each call has found room for one connection; those opened for the others would be too many."""
    pool = Pool(2, masters=3)
    reconnector, reports = cast("PromptReconnector", pool.master.reconnector), pool.desk.queue()
    reconnector.late = True
    for _ in range(5):
        pool.master.open_later(reports, is_call=True)
    for _ in range(5):
        reconnector.step()
    assert (pool.nodes[0].open, pool.master.pool.idle_connections) == (2, 2)
    assert [reports.get_nowait() for _ in range(5)] == [(pool.master, None)] * 5, "no call waits for a report in vain"
    pool.master.open_later(reports, is_call=False)
    reconnector.step()
    assert pool.nodes[0].open == 3, "a background task waits for no call"


def test_a_call_waits_no_longer_than_it_has_time() -> None:
    pool = Pool(2)
    taken = pool.take(2)
    began = pool.desk.now
    ((failure,),) = pool.ask()
    assert isinstance(failure, Failure)
    assert (failure.sent, failure.awaited, failure.permanent) == (False, False, False)
    assert "max_connections=2" in failure.why
    assert pool.desk.now == pytest.approx(began + TIME)
    assert not pool.master.pool.line.waiting
    pool.end(taken)
    assert pool.ask() == [ANSWER]


def test_a_call_that_has_some_connections_when_its_time_is_over_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masters might carry out the call's request, though its failure says that none was sent."""
    pool = Pool(1, masters=3)
    pool.ask()
    taken = pool.take(1, master=1) + pool.take(1, master=2)
    takes_turn = FanOut._takes_turn

    def take_some(fan_out: FanOut, leg: Leg, *arguments: Any) -> bool:
        assert not takes_turn(fan_out, leg, *arguments)
        leg.connections.extend(pool.take(1))
        return False

    monkeypatch.setattr(FanOut, "_takes_turn", take_some)
    assert all(isinstance(answer[0], Failure) and not answer[0].sent for answer in pool.ask())
    assert not pool.master.pool.is_in_use
    pool.end(taken)


def test_a_connection_that_breaks_makes_room_for_another_one() -> None:
    """No call gives the connection back, so none wakes the next waiter."""
    pool = Pool(1)
    (connection,) = pool.take(1)
    pool.desk.meanwhile = connection.close
    assert pool.ask() == [ANSWER]
    assert pool.desk.now - 100.0 <= 2 * LOOK_SECONDS
    assert pool.nodes[0].open == 1


def test_one_that_an_interrupted_call_has_left_makes_room_though_somebody_keeps_the_exception() -> None:
    pool = Pool(1)
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "request", lambda *_: (_ for _ in ()).throw(Interrupt))
        try:
            pool.ask()
        except Interrupt as interrupt:
            kept.append(interrupt)
    assert pool.nodes[0].open == 0
    assert pool.ask() == [ANSWER]
    assert pool.desk.sleeps == 0
    assert kept


def test_what_is_no_call_has_its_own_beside_them() -> None:
    """Calls don't get that connection, and it is closed when no background task needs it."""
    pool = Pool(2)
    taken = pool.take(2)
    assert pool.ask(is_call=False) == [ANSWER]
    assert pool.desk.sleeps == 0
    assert pool.nodes[0].open == 3
    assert pool.ask(is_call=False) == [ANSWER]
    assert pool.nodes[0].open == 3, "the connection is used again"
    assert isinstance(pool.ask()[0][0], Failure)
    pool.end(taken)
    assert pool.ask(is_call=False) == [ANSWER]
    pool.desk.now += UNUSED_SECONDS
    pool.master.pool.sweep(pool.desk.now)
    assert pool.nodes[0].open == 1


def test_what_is_no_call_has_at_most_three_more_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads ask beside calls, the watchdog and the janitor, and in the background another one is opened.

    The masters are slow to connect to: each request has wished for a connection before there is one.
    """
    pool = Pool(2, masters=3)
    taken = [connection for number in range(3) for connection in pool.take(2, number)]
    for master in pool.masters:
        cast("PromptReconnector", master.reconnector).late = True

    def open_all() -> None:
        for master in pool.masters:
            reconnector = cast("PromptReconnector", master.reconnector)
            while not reconnector._wanted.empty():
                reconnector.step()

    for _ in range(5):
        assert isinstance(pool.ask(is_call=False)[0][0], Failure)
    open_all()
    assert [node.open - 2 for node in pool.nodes] == [1, 1, 1]

    request, under_way = Connection.request, [1]  # how many requests are to begin while another one is under way

    def begin_another(connection: Connection, round_: Round) -> None:
        if under_way.pop() if under_way else 0:
            pool.ask(is_call=False)  # finds none free
            open_all()
            pool.ask(is_call=False)
            for master in pool.masters:
                master.open_later(None, is_call=False)
            open_all()
        request(connection, round_)

    monkeypatch.setattr(Connection, "request", begin_another)
    pool.ask(is_call=False)
    assert max(node.open - 2 for node in pool.nodes) <= 3
    for _ in range(5):
        pool.ask(is_call=False)
    open_all()
    assert max(node.open - 2 for node in pool.nodes) <= 3
    pool.end(taken)


def test_what_is_no_call_uses_what_calls_leave_idle() -> None:
    pool = Pool(2)
    pool.ask()
    pool.ask(is_call=False)
    assert pool.nodes[0].open == 1


def test_two_calls_at_once_open_no_more_connections_than_there_may_be() -> None:
    """Threads may both see room for one connection, and at most one thread has it."""
    pool = Pool(1)
    found: list[Connection | None] = []

    def other(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Connection.__init__.__code__:
            sys.setprofile(None)
            found.append(pool.master.pool.open_for_call())

    sys.setprofile(other)
    try:
        found.append(pool.master.pool.open_for_call())
    finally:
        sys.setprofile(None)
    assert sum(connection is not None for connection in found) <= 1
    assert pool.nodes[0].open <= 1


# The line -------------------------------------------------------------------------------------------------------------


def test_a_newcomer_does_not_pass_those_that_wait() -> None:
    pool = Pool(1)
    taken = pool.take(1)
    order: list[str] = []
    waiting = Entry(pool.desk.queue())
    pool.master.pool.line.join(waiting)
    pool.end(taken)

    def served() -> None:
        order.append("first")
        pool.master.pool.line.leave(waiting)

    pool.desk.meanwhile = served
    pool.ask()
    order.append("newcomer")
    assert order == ["first", "newcomer"]


# Several masters ------------------------------------------------------------------------------------------------------


def test_a_call_that_waits_for_one_master_holds_no_connection_to_another() -> None:
    pool = Pool(1, masters=3)
    pool.ask()
    taken = pool.take(1, master=1)

    def look() -> None:
        assert [master.pool.is_in_use for master in pool.masters] == [False, True, False]
        pool.end(taken)

    pool.desk.meanwhile = look
    assert pool.ask() == [ANSWER] * 3
    assert pool.desk.now == 100.0
    assert [node.open for node in pool.nodes] == [1, 1, 1]


def test_a_master_that_keeps_its_connections_keeps_nobody_for_long_while_a_quorum_is_free() -> None:
    pool = Pool(1, masters=3)
    pool.ask()
    taken = pool.take(1, master=1)
    first, second, third = pool.ask()
    assert (first, third) == (ANSWER, ANSWER)
    assert isinstance(second[0], Failure)
    assert not second[0].sent
    assert pool.desk.now - 100.0 == pytest.approx(CROWDED_SECONDS, abs=LOOK_SECONDS)
    pool.end(taken)


def test_nor_does_it_keep_a_call_that_must_connect_to_that_quorum_first() -> None:
    pool = Pool(1, masters=3)
    taken = pool.take(1, master=1)
    assert pool.ask().count(ANSWER) == 2
    assert pool.desk.now - 100.0 <= 3 * CROWDED_SECONDS
    assert [node.open for node in pool.nodes] == [1, 1, 1]
    pool.end(taken)


def test_what_failed_before_a_master_was_asked_says_nothing_of_what_it_has_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One attempt to connect may fail, and another one succeed: then the master may have carried out the request."""
    pool = Pool(1)
    get_quorum = FanOut._get_quorum
    seen: list[Any] = []

    def fail_first(fan_out: FanOut, leg: Leg) -> bool:
        leg.round.fail(leg.masters[0], Failure("a", "refused", sent=False))
        return get_quorum(fan_out, leg)

    monkeypatch.setattr(FanOut, "_get_quorum", fail_first)
    monkeypatch.setattr(Connection, "request", lambda _, round_: seen.append(round_.answers[0]))
    monkeypatch.setattr(FanOut, "_read_one", lambda *_: None)
    pool.ask()
    assert seen == [pool.master.no_reply_yet]


def test_no_quorum_is_waited_for_as_long_as_there_is_time() -> None:
    pool = Pool(1, masters=3)
    pool.ask()
    taken = pool.take(1, master=1) + pool.take(1, master=2)
    answers = pool.ask()
    assert all(isinstance(answer[0], Failure) for answer in answers)
    assert pool.desk.now - 100.0 == pytest.approx(TIME)
    pool.end(taken)
    assert pool.ask() == [ANSWER] * 3


def test_a_server_that_is_no_master_ends_a_call_until_it_can_not_be_reached_any_more() -> None:
    """Then it is down, like any other: what is at its address now is unknown."""
    pool = Pool(1, masters=3)
    pool.ask()
    third = pool.masters[2]
    cast("PromptReconnector", third.reconnector).late = True
    pool.take(1, master=2)[0].close()
    third.facts.was_sound = False
    error = ConfigurationError("a replica", option="nodes")
    third.turned_out(error)
    with pytest.raises(ConfigurationError) as caught:
        pool.ask()
    assert caught.value is error
    assert not any(master.pool.is_in_use for master in pool.masters), "the connections to the others are given back"
    assert [master.pool.idle_connections for master in pool.masters] == [1, 1, 0]
    third.failed(ConnectionResetError(), sent=False)
    assert pool.ask().count(ANSWER) == 2


@pytest.mark.parametrize("is_drain", [True, False], ids=["in the background", "by a call"])
@pytest.mark.parametrize("owes", [True, False])
def test_an_idle_connection_that_ends_says_something_of_the_master_only_where_it_owes_a_reply(
    owes: bool, is_drain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply may have come before the end, and neither has been read."""

    def drain(connection: Connection) -> None:
        if not owes:
            connection.in_flight.clear()
        raise ConnectionResetError

    pool = Pool(1)
    (connection,) = taken = pool.take(1)
    round_ = Round(Ask((CALL,), pool.desk.now + TIME), pool.desk.now, [])
    connection.in_flight.append(round_)
    pool.end(taken)
    pool.desk.now += 10 * TIME
    monkeypatch.setattr(Connection, "drain", drain)
    if is_drain:
        pool.master.pool.drain()
    else:
        assert pool.master.pool.check_out(pool.desk.now) is None
    assert (pool.master.facts.down is not None) is owes
    assert pool.nodes[0].open == 0


# Interrupts -----------------------------------------------------------------------------------------------------------


def interrupted(pool: Pool, raise_at: int) -> bool:
    with suppress(Interrupt), Strike(raise_at):
        pool.ask()
        return False
    return True


def crowded(masters: int) -> Iterator[tuple[Pool, list[Connection]]]:
    """Yield pools whose only connections are in use, and are given back while the call waits."""
    while True:
        pool = Pool(1, masters)
        pool.ask()
        taken = [connection for master in range(masters) for connection in pool.take(1, master)]
        pool.desk.meanwhile = partial(pool.end, taken)
        yield pool, taken


@pytest.mark.parametrize("masters", [1, 3])
def test_an_interrupt_at_any_instruction_of_a_wait_loses_no_connection_and_no_place(masters: int) -> None:
    for number, (pool, taken) in enumerate(crowded(masters), 1):
        is_struck = interrupted(pool, number)
        pool.end(taken)  # if the interrupt came before the wait, or when they were given back
        assert not any(master.pool.is_in_use for master in pool.masters), f"after {number}"
        assert pool.ask().count(ANSWER) >= pool.fan_out._panel.quorum, "a lost connection is replaced meanwhile"
        assert pool.ask() == [ANSWER] * masters
        assert pool.desk.now == 100.0, "no call has waited"
        assert [master.pool.connections for master in pool.masters] == [1] * masters
        if not is_struck:
            break
    assert number > 300


def test_what_is_known_of_a_master_at_its_bound() -> None:
    pool = Pool(1)
    assert (pool.master.pool.has_room, pool.master.pool.is_full, pool.master.pool.is_crowded) == (True, False, False)
    taken = pool.take(1)
    assert (pool.master.pool.has_room, pool.master.pool.is_full, pool.master.pool.is_crowded) == (False, True, True)
    assert "max_connections=1" in pool.master.unconnected().why
    pool.end(taken)
    assert (pool.master.pool.has_room, pool.master.pool.is_full, pool.master.pool.is_crowded) == (False, False, False)
    assert pool.master.facts.trusted_from == NEVER
