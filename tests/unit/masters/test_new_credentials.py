"""Authentication of open connections with new credentials, between two requests."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from redis import exceptions as redis_errors
from support.listener import NewsListener
from support.published import FakeMaster, Line

from relock._core.asking import Round
from relock._core.effects import Ask
from relock._core.flows.release import leave_call
from relock._core.master_facts import Down, make_facts
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.machine import THREADS
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.master import Master
from relock._runtime.masters.opener import Opener
from relock._runtime.net.credentials import Credentials
from relock._runtime.net.node import Node

AUTH = b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$3\r\nnew\r\n"
NOW = 100.0
OK, REFUSED = b"+OK\r\n", b"-WRONGPASS it has expired\r\n"


class Scene:
    """Pool of connections whose other ends the test has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[FakeMaster] = []
        self.error: Exception | None = None  # of the next connection
        self.listener = NewsListener()
        monkeypatch.setattr(Opener, "open", lambda _opener, raw, _shown: raw.connect())
        (facts,), options = make_facts(["a"], ClientOptions()), ClientOptions()
        self.master = Master(Opener(cast("Node", self), facts, options, THREADS, self.listener))
        self.pool = self.master.pool

    address, client_name = "a", "me"
    credentials = property(lambda self: self.__dict__.setdefault("given", Credentials(None)))

    def raw_connection(self, _timeout: float) -> Line:
        if self.error is not None:
            raise self.error
        self.ends.append(FakeMaster())
        return self.ends[-1].line

    def change(self) -> None:
        """Have new credentials, of which nobody was told."""
        self.credentials.latest = ("AUTH", "me", "new")

    @property
    def is_down(self) -> bool:
        return any(isinstance(news, Down) for news in self.listener.news)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(monkeypatch)
    yield made
    for end in made.ends:
        end.end()


@pytest.fixture(params=[True, False], ids=["for calls", "of their own"])
def connection(scene: Scene, request: pytest.FixtureRequest) -> Connection:
    """A connection that is in use, and was opened before there were new credentials."""
    opened = scene.pool.open()
    if not request.param:
        scene.pool.forget(opened)
        opened.is_own = True
        scene.pool._own_connections.add(opened)
    return opened


def test_one_in_use_authenticates_when_it_is_given_back(scene: Scene, connection: Connection) -> None:
    scene.change()
    scene.pool.give_back(connection, NOW)
    assert scene.ends[0].server.recv(4096) == AUTH
    assert scene.pool.check_out_own(NOW) is connection
    assert not connection.is_settled
    scene.ends[0].server.sendall(OK)
    connection.drain()
    scene.pool.give_back(connection, NOW)
    assert (connection.is_settled, connection.is_refused) == (True, False)
    assert [*connection.in_flight] == [], "it is sent once"


def test_the_reply_of_the_next_request_comes_behind_that(scene: Scene, connection: Connection) -> None:
    scene.change()
    scene.pool.give_back(connection, NOW)
    scene.pool.check_out_own(NOW)
    round_ = Round(Ask((leave_call(lock_keys("lock", "a"), b"me:1"),), NOW), NOW, [scene.master.no_reply_yet])
    connection.in_flight.append(round_)
    scene.ends[0].server.sendall(OK + b"-NOPERM no\r\n")
    connection.drain()
    assert "NOPERM" in round_.answers[0][0].why  # type: ignore[union-attr]


def test_an_idle_one_authenticates_at_once(scene: Scene, connection: Connection) -> None:
    scene.pool.give_back(connection, NOW)
    scene.change()
    scene.ends[0].server.sendall(OK)
    scene.pool.renew()
    assert scene.ends[0].server.recv(4096) == AUTH
    assert connection.is_settled
    assert scene.pool.check_out_own(NOW) is connection


def test_one_that_is_opened_meanwhile_authenticates(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection may have asked for its credentials just before."""
    connect = Line.connect
    monkeypatch.setattr(Line, "connect", lambda line: [connect(line), scene.change()])  # type: ignore[func-returns-value, no-untyped-call]
    connection = scene.pool.open()
    assert not connection.is_settled
    scene.pool.give_back(connection, NOW)
    assert scene.ends[0].server.recv(4096) == AUTH


def test_one_on_which_they_are_refused_is_replaced(scene: Scene, connection: Connection) -> None:
    scene.pool.give_back(connection, NOW)
    scene.change()
    scene.ends[0].server.sendall(REFUSED)
    scene.pool.renew()
    successor = scene.pool.check_out_own(NOW)
    assert successor is not None
    assert (successor.raw, successor.is_own) == (scene.ends[1].line, connection.is_own)
    assert (scene.ends[0].line._sock, scene.pool.connections, scene.is_down) == (None, 1, False)


def test_one_on_which_they_are_refused_is_closed_by_the_caller_that_uses_it(
    scene: Scene, connection: Connection
) -> None:
    scene.change()
    connection.log_in()
    scene.ends[0].server.sendall(REFUSED)
    connection.drain()
    scene.pool.renew()
    assert scene.ends[0].line._sock is not None
    round_ = Round(Ask((leave_call(lock_keys("lock", "a"), b"me:1"),), NOW), NOW, [scene.master.no_reply_yet])
    scene.pool.put_back(connection, round_, NOW)
    assert scene.ends[0].line._sock is None
    successor = scene.pool.check_out_own(NOW)
    assert successor is not None
    assert successor.raw is scene.ends[1].line


@pytest.mark.parametrize("error", [redis_errors.AuthenticationError("WRONGPASS"), KeyError("of a provider")])
def test_one_on_which_they_are_refused_stays_if_no_other_can_be_opened(
    scene: Scene, connection: Connection, error: Exception
) -> None:
    """The server may go on with it, for some time at least."""
    scene.pool.give_back(connection, NOW)
    scene.change()
    scene.error = error
    scene.ends[0].server.sendall(REFUSED)
    scene.pool.renew()
    assert scene.pool.check_out_own(NOW) is connection
    assert (scene.pool.connections, scene.is_down) == (1, False)


def cut(end: FakeMaster) -> None:
    end.server.close()


def talk_nonsense(end: FakeMaster) -> None:
    end.server.sendall(b":1\r\n")


@pytest.mark.parametrize("strike", [cut, talk_nonsense])
@pytest.mark.parametrize("is_used", [True, False], ids=["in use", "idle"])
def test_one_that_ends_meanwhile_says_nothing_of_the_master(
    scene: Scene, connection: Connection, strike: Callable[[Any], None], *, is_used: bool
) -> None:
    if not is_used:
        scene.pool.give_back(connection, NOW)
    scene.change()
    strike(scene.ends[0])
    if is_used:
        scene.pool.give_back(connection, NOW)
    scene.pool.renew()
    assert (scene.pool.connections, scene.pool.idle_connections, scene.is_down) == (0, 0, False)
