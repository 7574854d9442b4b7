"""A connection never waits for a silent server longer than its caller told it to."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis import exceptions as redis_errors
from support.tls import certificate

from relock._runtime.net.channel import Channel, SocketChannel
from relock._runtime.net.failures import failure_of
from relock._runtime.net.raw_connection import RawConnection

TIMEOUT_SECONDS = 0.2
MUCH = b"x" * 10_000_000  # more than fits between the two ends


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("channel") / "tls")


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end, and the end of a server that neither reads nor writes."""
    ours, theirs = socket.socketpair()
    if request.param == "tls":
        ours, theirs = _shake_hands(ours, theirs, request.getfixturevalue("trusted"))
    yield ours, theirs
    theirs.close()  # ends a thread that hangs on the other end
    ours.close()


def _shake_hands(ours: socket.socket, theirs: socket.socket, made: Path) -> tuple[socket.socket, socket.socket]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made, made.parent / "key.pem")
    client = ssl.create_default_context(cafile=str(made))
    wrapped: list[socket.socket] = []
    thread = threading.Thread(target=lambda: wrapped.append(server.wrap_socket(theirs, server_side=True)))
    thread.start()
    ours = client.wrap_socket(ours, server_hostname="127.0.0.1")
    thread.join()
    return ours, wrapped[0]


@pytest.fixture
def channel(ends: tuple[socket.socket, socket.socket]) -> Channel:
    return SocketChannel(cast("RawConnection", SimpleNamespace()), ends[0], TIMEOUT_SECONDS)


def error_of(call: Callable[[], Any]) -> Exception:
    """Return the exception that `call` raises; give up if it hangs."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert errors, "the call does not hang"
    return errors[0]


def test_a_server_that_says_nothing_is_not_waited_for_any_longer(channel: Channel) -> None:
    error = error_of(channel.receive)
    assert isinstance(error, redis_errors.TimeoutError)  # the hub then asks the server for a sign of life
    assert "it did not answer in time" in failure_of("m", error, sent=True).why


def test_a_server_that_reads_nothing_is_not_waited_for_any_longer(channel: Channel) -> None:
    error = error_of(lambda: channel.send(MUCH))
    assert isinstance(error, OSError | redis_errors.TimeoutError)
    assert "it did not answer in time" in failure_of("m", error, sent=True).why


LONG = b"*99999999\r\n"
MESSAGE = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$%d\r\n%b\r\n"


@pytest.mark.parametrize(
    "data",
    [
        LONG,
        LONG[:-1],
        b"*99999999",
        b">99999999\r\n",
        b":1\r\n" + LONG,
        b"*2\r\n$5\r\na\r\nbc\r\n" + LONG,
        MESSAGE % (len(LONG), LONG) + LONG,
    ],
)
def test_a_list_of_more_items_than_any_reply_has_is_refused_before_it_is_made(data: bytes) -> None:
    """Hiredis makes room for all items at once: for two thousand million, until the memory is used up."""
    pytest.importorskip("hiredis", reason="the parser in Python makes room for what has come")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = SocketChannel(cast("RawConnection", SimpleNamespace()), ours, TIMEOUT_SECONDS)
        theirs.sendall(data)
        with pytest.raises(redis_errors.InvalidResponse, match="99999999 items"):
            channel.receive()


@pytest.mark.parametrize("name", [LONG, b"\r\n" + LONG, b"x*99999999", b"\n" + LONG + LONG])
def test_a_name_that_looks_like_a_long_list_is_a_name(name: bytes) -> None:
    """Names come from users of a service, too, and these may know the protocol."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = SocketChannel(cast("RawConnection", SimpleNamespace()), ours, TIMEOUT_SECONDS)
        theirs.sendall(2 * (MESSAGE % (len(name), name)))
        assert channel.receive() == 2 * [[b"message", b"a", name]]
