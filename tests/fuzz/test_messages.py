"""Forged messages on a client's channel: its waiter still gets its turn, and no other waiter gets one."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import fuzz, without_complaint
from support.heartbeats import without_heartbeats
from support.proxy import Proxy, Words
from support.servers import Server
from support.until import until

from relock import Client
from relock._keys import lock_keys

LEASE_SECONDS = 30.0  # a waiter without a message looks again only after that time
NAME = "fuzz"

UUIDS = st.one_of(st.just(b"mine"), st.binary(max_size=20), st.just(b"0" * 32))  # "mine" stands for the waiter's
TARGETS = st.one_of(st.just(NAME.encode()), st.binary(max_size=20), st.text(max_size=8).map(str.encode))
PAYLOADS = st.one_of(
    st.binary(max_size=50),
    st.tuples(st.sampled_from([b"wake", b"WAKE", b"wake ", b"grant", b""]), UUIDS, TARGETS).map(b" ".join),
    st.sampled_from([b"wake", b"wake ", b"wake  ", b"wake mine", b"wake mine ", b"wake mine }", b"wake \xff \xff"]),
    st.integers(1, 1_000_000).map(lambda length: b"wake mine " + b"x" * length),
)


@contextmanager
def waiting(url: str, server: Server) -> Iterator[Client]:
    """Let a client wait for a lock during the block, and check that the release after it wakes the client at once."""
    got: list[float] = []

    def wait() -> None:
        with waiter.lock(NAME):
            got.append(time.monotonic())

    with without_heartbeats(), Client(server.url, ttl=LEASE_SECONDS) as holder, Client(url) as waiter:
        thread = threading.Thread(target=wait)
        try:
            with holder.lock(NAME):
                thread.start()
                until(lambda: len(holder.info(NAME).queue) == 1, within=20, what="a caller waits")
                yield waiter
                assert not got
                assert len(holder.info(NAME).queue) == 1, "the waiter has its place"
            released = time.monotonic()
        finally:
            thread.join(2 * LEASE_SECONDS)
        assert got
        assert got[0] - released < LEASE_SECONDS / 3


def listeners(server: Server) -> list[bytes]:
    """Return the connections that have subscribed to something."""
    return [line.split()[0] for line in server.cli("CLIENT", "LIST", "TYPE", "pubsub").splitlines()]


@fuzz(40, shrink=False)
@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=5))
@example(payloads=[b"wake \xff \xff", b"wake mine \xff"])
def test_a_forged_message_is_ignored(server: Server, payloads: list[bytes]) -> None:
    with without_complaint(), waiting(server.url, server) as client:
        ((mine, _),) = client._session.hub.waiters.items()
        channel = f"lock:client:{client._session.client_id}"
        before = listeners(server)
        for payload in payloads:
            assert server.cli("PUBLISH", channel, payload.replace(b"mine", mine.partition(b":")[2])) == 1
        assert server.cli("PUBLISH", channel, b"the last one") == 1
        assert listeners(server) == before, "the subscription is the same"


MESSAGES = st.one_of(
    st.binary(min_size=1, max_size=30),
    st.sampled_from(
        [
            *(b":7\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"+OK\r\n", b"-ERR no\r\n", b"-NOPERM no\r\n"),
            *(b"*1\r\n:1\r\n", b"*1\r\n$7\r\nmessage\r\n", b"*2\r\n$7\r\nmessage\r\n$1\r\na\r\n"),
            *(b"*3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n", b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$100\r\nhalf"),
            *(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$-1\r\n", b"*3\r\n*0\r\n*0\r\n*0\r\n"),
            *(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n*1\r\n$4\r\nwake\r\n", b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"),
        ]
    ),
)


def is_subscribe(words: Words) -> bool:
    return words[0].upper() == b"SUBSCRIBE"


@example(data=b"+", instead=False, close=False)  # a whole reply of another type, with the bytes that follow
@fuzz(40, shrink=False)
@given(data=MESSAGES, instead=st.booleans(), close=st.booleans())
def test_what_is_no_message_costs_a_connection_at_most(
    *, proxy: Proxy, server: Server, data: bytes, instead: bool, close: bool
) -> None:
    """Bytes come instead of the confirmation of the subscription, or after it."""
    proxy.faults.clear()
    proxy.forge_reply(is_subscribe, lambda reply: data if instead else reply + data, close=close)
    with without_complaint(), waiting(proxy.url, server) as client:
        until(lambda: client._session.hub.listen(lock_keys("lock", NAME), 0.0), within=20, what="the client listens")
