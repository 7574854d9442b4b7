"""The connection over which a client hears of its turns, and its reading of a server's bytes."""

import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import pytest
from redis import exceptions as redis_errors
from support.credentials import Given
from support.published import CONFIRMED, KEYS, PONG, WAITER, FakeMaster, Ignores, Line, published

from relock._runtime.machine import THREADS
from relock._runtime.masters.master import Master
from relock._runtime.net import channel
from relock._runtime.wakeups.hub import ThreadHub
from relock._runtime.wakeups.shared_subscriptions import STUCK_SECONDS
from relock._runtime.wakeups.thread_subscription import ThreadSubscription


@pytest.fixture(params=["with hiredis", "without hiredis"], autouse=True)
def _parsed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without hiredis":
        monkeypatch.setattr(channel, "hiredis", None)


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    made = FakeMaster()
    yield made
    made.end()


@pytest.fixture
def hub(master: FakeMaster) -> ThreadHub:
    return ThreadHub("me", "lock", (cast("Master", master),), THREADS, Ignores())


def test_a_message_right_behind_the_confirmation_is_heard(hub: ThreadHub, master: FakeMaster) -> None:
    """A waiter that was queued before the connection broke may be told at the very moment at which it is back."""
    waiter = hub.register(WAITER, KEYS)
    master.server.sendall(CONFIRMED + published(b"wake 1@3000 a"))
    hub.subscriptions[0].step()
    assert hub.subscriptions[0].is_confirmed
    assert waiter.wakes.get_nowait() == 0


def test_a_message_whose_beginning_comes_with_the_confirmation_is_heard(hub: ThreadHub, master: FakeMaster) -> None:
    waiter = hub.register(WAITER, KEYS)
    message = published(b"wake 1@3000 a")
    master.server.sendall(CONFIRMED + message[:20])
    hub.subscriptions[0].step()
    master.server.sendall(message[20:])
    hub.subscriptions[0].step()
    assert hub.subscriptions[0].is_confirmed
    assert waiter.wakes.get_nowait() == 0


@pytest.mark.parametrize("succeeds", [True, False])
@pytest.mark.parametrize("subscribe", ["step", "_subscribe_anew"])
def test_who_closes_knows_for_how_long_a_subscription_is_being_opened(
    hub: ThreadHub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch, subscribe: str, *, succeeds: bool
) -> None:
    """A connection that a thread has opened for a loop is being opened until the loop uses it."""
    subscription, seen = hub.subscriptions[0], list[bool]()

    def introduce(_replies: object) -> bytes:
        seen.append(subscription.is_subscribing)
        if not succeeds:
            raise redis_errors.ConnectionError("the master is a replica")
        master.incarnation = b"run:repl"
        return master.incarnation

    monkeypatch.setattr(master, "introduce", introduce)
    assert not subscription.is_subscribing
    master.server.sendall(CONFIRMED)
    with contextlib.suppress(redis_errors.ConnectionError):
        getattr(subscription, subscribe)()
    assert seen == [True]
    assert subscription.is_subscribing is (succeeds and subscribe == "_subscribe_anew")
    assert subscription.is_confirmed is (succeeds and subscribe == "step")


def test_the_last_message_before_the_end_is_heard(hub: ThreadHub, master: FakeMaster) -> None:
    """Messages may be grants, which no other message tells of."""
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


def test_a_subscription_moves_when_another_socket_finds_the_master_elsewhere(
    hub: ThreadHub, master: FakeMaster
) -> None:
    """Servers of a subscription may answer pings without end, while messages are published elsewhere."""
    subscription = hub.subscriptions[0]
    master.server.sendall(CONFIRMED)
    subscription.step()
    subscription.look()
    assert subscription.is_confirmed
    assert subscription._connection is not None, "a subscription without a move stays"
    master.incarnation = b"another:repl"
    subscription.look()
    assert subscription._connection is None
    assert master.line._ours.fileno() == -1


def test_a_subscription_that_was_not_told_finds_out_by_itself(hub: ThreadHub, master: FakeMaster) -> None:
    """The thread that had to tell the subscription may have been interrupted."""
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
    hub: ThreadHub, master: FakeMaster, stood_for: float, *, moves: bool
) -> None:
    """New subscriptions are the exception: then the releaser is behind."""
    subscription = hub.subscriptions[0]
    master.server.sendall(CONFIRMED)
    subscription.step()
    subscription._stands_since -= stood_for
    master.server.sendall(published(b"grant 1@3000 ab.7 200 100 3000 another:repl a"))
    subscription.step()
    assert subscription.is_confirmed == (not moves)


def stop_on_connecting(subscription: ThreadSubscription, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the subscription stopped while it connects."""

    def connect(line: Line) -> socket.socket:
        subscription.stop()
        return line._ours

    monkeypatch.setattr(Line, "_connect", connect)


def test_a_connection_that_was_under_way_when_the_client_was_closed_is_closed(
    hub: ThreadHub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers would count the client as a listener until Python collects the client."""
    subscription = hub.subscriptions[0]
    stop_on_connecting(subscription, monkeypatch)
    master.server.sendall(CONFIRMED)
    subscription.step()
    assert not subscription.is_confirmed
    assert master.line._ours.fileno() == -1


def test_a_connection_that_was_about_to_be_made_when_the_client_was_closed_is_closed(
    hub: ThreadHub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentinels are asked first, which takes a while; and there is nothing yet that `stop` could close."""
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


# New credentials --------------------------------------------------------------------------------------------------


@pytest.fixture
def second(master: FakeMaster, hub: ThreadHub) -> Iterator[FakeMaster]:
    """The other end of a second connection, which is opened as there are new credentials; the first one stands."""
    made = FakeMaster()
    master.server.sendall(CONFIRMED)
    hub.subscriptions[0].step()
    master.raw_connection = lambda: made.line  # type: ignore[method-assign]
    master.credentials.take(Given("me", "new"))
    yield made
    made.end()


def test_a_second_connection_takes_over_behind_all_messages_that_it_lacks(
    hub: ThreadHub, master: FakeMaster, second: FakeMaster
) -> None:
    subscription, waiter = hub.subscriptions[0], hub.register(WAITER, KEYS)
    second.server.sendall(CONFIRMED + published(b"wake 1@3000 b"))
    for more in (b"", PONG):
        master.server.sendall(published(b"wake 1@3000 a") + more)
        subscription.step()
        assert waiter.wakes.get_nowait() == 0
        assert subscription.is_confirmed
        assert subscription._raw is (second if more else master).line
    assert waiter.wakes.get_nowait() == 0, "the message that came with the confirmation"
    assert (master.line._sock, master.server.recv(4096)[-14:]) == (None, b"*1\r\n$4\r\nPING\r\n")
    second.server.sendall(published(b"wake 1@3000 c"))
    subscription.step()
    assert waiter.wakes.get_nowait() == 0


@pytest.mark.parametrize("error", [redis_errors.AuthenticationError("WRONGPASS"), RuntimeError("of a provider")])
def test_the_first_connection_goes_on_while_no_second_one_can_be_opened(
    hub: ThreadHub, master: FakeMaster, second: FakeMaster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    subscription, waiter, tried = hub.subscriptions[0], hub.register(WAITER, KEYS), list[Line]()

    def connect(line: Line) -> socket.socket:
        tried.append(line)
        raise error

    monkeypatch.setattr(Line, "_connect", connect)
    for _ in "123":
        master.server.sendall(published(b"wake 1@3000 a"))
        subscription.step()
        assert waiter.wakes.get_nowait() == 0
    assert (subscription._raw, tried) == (master.line, [second.line]), "the next try comes after a pause"


@pytest.mark.parametrize("ends", ["stop", "drop"])
def test_a_second_connection_ends_with_the_first(
    hub: ThreadHub, master: FakeMaster, second: FakeMaster, ends: str
) -> None:
    subscription = hub.subscriptions[0]
    second.server.sendall(CONFIRMED)
    master.server.sendall(published(b"wake 1@3000 a"))
    subscription.step()
    assert second.line._sock is not None
    getattr(subscription, ends)()
    assert (master.line._sock, second.line._sock) == (None, None)


def test_a_second_connection_that_was_under_way_when_the_client_was_closed_is_closed(
    hub: ThreadHub, master: FakeMaster, second: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = hub.subscriptions[0]
    stop_on_connecting(subscription, monkeypatch)
    second.server.sendall(CONFIRMED)
    master.server.sendall(published(b"wake 1@3000 a"))
    subscription.step()
    assert (master.line._sock, second.line._sock) == (None, None)


def test_a_leader_that_stands_still_with_what_it_has_taken_is_deposed(
    hub: ThreadHub, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets have no unread bytes then."""
    subscription, now, deposed = hub.subscriptions[0], [50.0], list[object]()
    master.server.sendall(CONFIRMED)
    subscription.step()
    connection = subscription._connection
    assert connection is not None
    monkeypatch.setattr(subscription, "_clock", lambda: now[0])
    monkeypatch.setattr(hub.shared, "depose", lambda connection, _: deposed.append(connection))
    connection._replies.append([b"message", b"channel", b"wake 1@3000 a"])
    for seconds in (0.0, STUCK_SECONDS / 2, STUCK_SECONDS):
        now[0] = 50.0 + seconds
        subscription._check_is_read(connection)
        assert deposed == ([connection] if seconds == STUCK_SECONDS else [])
