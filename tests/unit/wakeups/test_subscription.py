"""The connection over which a client hears of its turns, and how it reads what a server sends on it."""

import socket
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from redis._parsers import _RESP2Parser
from redis.connection import Connection

from relock._keys import LockKeys, lock_keys
from relock._runtime.machine import THREADS
from relock._runtime.masters.master import Master
from relock._runtime.net import channel
from relock._runtime.wakeups.hub import Hub, HubListener
from relock._runtime.wakeups.reading import STUCK_SECONDS

KEYS = lock_keys("lock", "a")
WAITER = b"me:1@3000"
TIMEOUT_SECONDS = 0.2
CONFIRMED = b"$3\r\nrun\r\n$4\r\nrepl\r\n*3\r\n$9\r\nsubscribe\r\n$14\r\nlock:client:me\r\n:1\r\n"


def published(payload: bytes) -> bytes:
    """A message for the client, as a server sends it."""
    return b"*3\r\n$7\r\nmessage\r\n$14\r\nlock:client:me\r\n$%d\r\n%b\r\n" % (len(payload), payload)


class Line(Connection):
    """A connection whose other end the test has, and that sends nothing when it opens."""

    def __init__(self, ours: socket.socket) -> None:
        parser = {} if getattr(channel, "hiredis", None) else {"parser_class": _RESP2Parser}
        super().__init__(  # type: ignore[no-untyped-call]
            socket_timeout=TIMEOUT_SECONDS, redis_connect_func=_introduce, protocol=2, **parser
        )
        self._ours = ours

    def _connect(self) -> socket.socket:
        self._ours.settimeout(TIMEOUT_SECONDS)
        return self._ours


class FakeMaster:
    """Has a line to the test."""

    index = 0
    address = "a"
    vote_at = 0.0
    node_timeout = TIMEOUT_SECONDS
    naming = ()
    introduction = (("INFO", "server"), ("INFO", "replication"))

    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        self.line = Line(ours)

    @property
    def facts(self) -> "FakeMaster":
        return self

    opener = facts

    def raw_connection(self) -> Any:
        return self.line

    def introduce(self, replies: Sequence[Any]) -> bytes:
        self.incarnation = b":".join(replies)
        return self.incarnation


class Listener(HubListener):
    """Ignores all that it is told."""

    def pass_turn_on(self, keys: LockKeys, owner: bytes) -> None: ...

    def unclaimed(self, keys: LockKeys, owner: bytes, token: int) -> None: ...

    def watch_waiters(self) -> None:
        """Ignored."""

    def subscribed(self) -> None: ...


@pytest.fixture(params=["with hiredis", "without hiredis"], autouse=True)
def _parsed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without hiredis":
        monkeypatch.setattr(channel, "hiredis", None)


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    made = FakeMaster()
    yield made
    made.server.close()
    made.line.disconnect()  # type: ignore[no-untyped-call]
    made.line._ours.close()


@pytest.fixture
def hub(master: FakeMaster) -> Hub:
    return Hub("me", "lock", (cast("Master", master),), THREADS, Listener())


def test_a_message_right_behind_the_confirmation_is_heard(hub: Hub, master: FakeMaster) -> None:
    """A waiter that was queued before the connection broke may be told at the very moment at which it is back."""
    waiter = hub.register(WAITER, KEYS)
    master.server.sendall(CONFIRMED + published(b"wake 1@3000 a"))
    hub.subscriptions[0].step()
    assert hub.subscriptions[0].is_confirmed
    assert waiter.wakes.get_nowait() == 0


def test_a_message_whose_beginning_comes_with_the_confirmation_is_heard(hub: Hub, master: FakeMaster) -> None:
    waiter = hub.register(WAITER, KEYS)
    message = published(b"wake 1@3000 a")
    master.server.sendall(CONFIRMED + message[:20])
    hub.subscriptions[0].step()
    master.server.sendall(message[20:])
    hub.subscriptions[0].step()
    assert hub.subscriptions[0].is_confirmed
    assert waiter.wakes.get_nowait() == 0


def test_the_last_message_before_the_end_is_heard(hub: Hub, master: FakeMaster) -> None:
    """It may be a grant, which no other message tells of."""
    subscription = hub.subscriptions[0]
    waiter = hub.register(WAITER, KEYS)
    master.server.sendall(CONFIRMED)
    subscription.step()
    master.server.sendall(published(b"wake 1@3000 a"))
    master.server.shutdown(socket.SHUT_WR)
    subscription.step()
    assert waiter.wakes.get_nowait() == 0
    subscription.step()
    assert not subscription.is_confirmed


def test_a_subscription_moves_when_another_socket_finds_the_master_elsewhere(hub: Hub, master: FakeMaster) -> None:
    """Its server may answer pings for ever, and pass on what is published elsewhere."""
    subscription = hub.subscriptions[0]
    master.server.sendall(CONFIRMED)
    subscription.step()
    subscription.look()
    assert subscription.is_confirmed
    assert subscription._ear is not None, "nothing has changed"
    master.incarnation = b"another:repl"
    subscription.look()
    assert subscription._ear is None
    assert master.line._ours.fileno() == -1


def test_a_subscription_that_was_not_told_finds_out_by_itself(hub: Hub, master: FakeMaster) -> None:
    """The thread that had to tell it may have been interrupted."""
    subscription = hub.subscriptions[0]
    hub.register(WAITER, KEYS)
    master.server.sendall(CONFIRMED)
    subscription.step()
    master.incarnation = b"another:repl"
    master.server.sendall(published(b"wake 1@3000 a"))
    subscription.step()
    assert not subscription.is_confirmed


@pytest.mark.parametrize(("stood_for", "moves"), [(0.5, False), (1.5, True)])
def test_a_subscription_that_hears_of_another_incarnations_grant_is_opened_anew(
    hub: Hub, master: FakeMaster, stood_for: float, *, moves: bool
) -> None:
    """Unless it was just opened: then the releaser is behind."""
    subscription = hub.subscriptions[0]
    master.server.sendall(CONFIRMED)
    subscription.step()
    subscription._stands_since -= stood_for
    master.server.sendall(published(b"grant 1@3000 ab.7 200 100 3000 another:repl a"))
    subscription.step()
    assert subscription.is_confirmed == (not moves)


def test_a_connection_that_was_under_way_when_the_client_was_closed_is_closed(
    hub: Hub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server would count the client as a listener until Python collects the client."""
    subscription = hub.subscriptions[0]

    def connect(line: Line) -> socket.socket:
        subscription.stop()
        return line._ours

    monkeypatch.setattr(Line, "_connect", connect)
    master.server.sendall(CONFIRMED)
    subscription.step()
    assert not subscription.is_confirmed
    assert master.line._ours.fileno() == -1


def test_a_connection_that_was_about_to_be_made_when_the_client_was_closed_is_closed(
    hub: Hub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a Sentinel is asked first, that takes a while; and there is nothing yet that `stop` could close."""
    subscription = hub.subscriptions[0]

    def raw_connection() -> Line:
        subscription.stop()
        return master.line

    monkeypatch.setattr(master, "raw_connection", raw_connection)
    master.server.sendall(CONFIRMED)
    subscription.step()
    assert not subscription.is_confirmed
    assert subscription._raw is None
    assert master.line._sock is None


def _introduce(line: Any) -> None:
    line._parser.on_connect(line)


def test_a_leader_that_stands_still_with_what_it_has_taken_is_deposed(
    hub: Hub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing lies at the socket then."""
    subscription, now, deposed = hub.subscriptions[0], [50.0], list[object]()
    master.server.sendall(CONFIRMED)
    subscription.step()
    ear = subscription._ear
    assert ear is not None
    monkeypatch.setattr(subscription, "_clock", lambda: now[0])
    monkeypatch.setattr(hub.reading, "depose", lambda ear, _: deposed.append(ear))
    ear._replies.append([b"message", b"channel", b"wake 1@3000 a"])
    for seconds in (0.0, STUCK_SECONDS / 2, STUCK_SECONDS):
        now[0] = 50.0 + seconds
        subscription._check_is_read(ear)
        assert deposed == ([ear] if seconds == STUCK_SECONDS else [])
