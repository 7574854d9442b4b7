"""The poller of a round to several masters, which is kept for the next one."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relock._runtime.machine import THREADS
from relock._runtime.masters.bundle import Bundle
from relock._runtime.masters.connections import Connection


def connection_of(sock: socket.socket) -> Connection:
    return cast("Connection", SimpleNamespace(channel=SimpleNamespace(fileno=sock.fileno()), sock=object()))


class Peer:
    """A connection, and the socket at its other end."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.connection = connection_of(self.near)

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made = [Peer() for _ in range(3)]
    yield made
    for peer in made:
        peer.close()


def ready(bundle: Bundle) -> list[Connection]:
    return [bundle.by_fileno[fileno] for fileno, _ in bundle.poll(0)]


def take(bundle: Bundle, *peers: Peer) -> None:
    bundle.take([peer.connection for peer in peers])


def test_it_polls_what_it_took_last_and_nothing_else(peers: list[Peer]) -> None:
    bundle = Bundle(THREADS)
    one, two, three = peers
    for peer in peers:
        peer.far.send(b"x")
    take(bundle, one, two)
    assert ready(bundle) == [one.connection, two.connection]
    take(bundle, two, three)
    assert ready(bundle) == [two.connection, three.connection]
    bundle.drop(two.near.fileno())
    assert ready(bundle) == [three.connection]
    take(bundle, one, two, three)
    assert len(ready(bundle)) == 3


def test_it_registers_nothing_anew_where_the_connections_are_those_of_the_round_before(peers: list[Peer]) -> None:
    registered: list[int] = []
    poller: Any = SimpleNamespace(register=lambda fileno, _: registered.append(fileno), poll=None)
    bundle = Bundle(cast(Any, SimpleNamespace(poller=lambda: poller)))
    take(bundle, *peers)
    take(bundle, *peers)
    assert len(registered) == 3


def test_another_connection_with_the_number_of_one_that_was_closed_is_told_from_it(peers: list[Peer]) -> None:
    bundle = Bundle(THREADS)
    take(bundle, *peers)
    before, peers[0].connection = peers[0].connection, connection_of(peers[0].near)
    take(bundle, *peers)
    peers[0].far.send(b"x")
    assert ready(bundle) == [peers[0].connection]
    assert ready(bundle)[0] is not before
