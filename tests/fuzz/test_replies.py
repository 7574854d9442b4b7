"""Masters that answer nonsense: a clear error in time, or one master less; and no lasting damage."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from support.fuzz import fuzz, without_complaint
from support.masters import Masters, Proxies
from support.proxy import Match, Proxy, Words
from support.until import until
from support.urls import GUARD_SECONDS, Urls

from relock import Client, RelockError

OPTIONS: dict[str, Any] = {"ttl": 1.0, "node_timeout": 0.1, "patience": 0.0}
TIMEOUT = 0.2
OVERDUE = 20.0  # longer than any call may take, even on a busy machine
NAMES = ("fuzz", "fuzz-after")

# The lies -------------------------------------------------------------------------------------------------------------

INTEGERS = st.one_of(
    st.integers(-3, 3), st.integers(), st.sampled_from([2**53, 2**63 - 1, -(2**63), 2**63, 10**30, -(10**30)])
)
STATUSES = st.sampled_from(
    [
        *(b"granted", b"refused", b"void", b"no_vote", b"queued", b"proposed", b"released", b"absent", b"extended"),
        *(b"healed", b"counted", b"tended", b"held", b"free", b"subscribe", b"message", b"pong", b"", b"\xff"),
    ]
)
ERRORS = st.sampled_from(
    [
        *(b"", b"ERR", b"ERR no", b"NOSCRIPT", b"NOSCRIPT No matching script", b"BUSY", b"LOADING", b"OOM"),
        *(b"READONLY", b"MOVED", b"MOVED 1 nowhere", b"MOVED 99999 127.0.0.1:99999", b"ASK", b"ASK 1 a:b", b"\xff\xfe"),
        *(b"TRYAGAIN", b"CLUSTERDOWN", b"MASTERDOWN", b"NOAUTH", b"WRONGPASS", b"WRONGTYPE", b"NOPERM", b"UNKNOWN"),
    ]
)


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def array(items: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


SCALARS = st.one_of(
    INTEGERS.map(lambda number: b":%d\r\n" % number),
    st.one_of(STATUSES, st.binary(max_size=8)).map(bulk),
    STATUSES.map(lambda status: b"+%b\r\n" % status),
    ERRORS.map(lambda error: b"-%b\r\n" % error),
    st.sampled_from(
        [b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"_\r\n", b"#t\r\n", b",nan\r\n", b"(12\r\n", b"%0\r\n", b"~0\r\n"]
    ),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=6).map(array), max_leaves=8)
NUMBERS = st.one_of(INTEGERS.map(lambda number: b"%d" % number), st.binary(max_size=3))
WORDS = st.tuples(STATUSES, st.lists(NUMBERS, max_size=4)).map(lambda parts: bulk(b" ".join([parts[0], *parts[1]])))
REPLIES = st.tuples(STATUSES.map(bulk), st.lists(SCALARS, max_size=7)).map(lambda parts: array([parts[0], *parts[1]]))
BROKEN = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from(
        [
            *(
                b"*5\r\n",
                b"$100\r\nabc",
                b"$99999999999999999999\r\n",
                b"*99999999999999999999\r\n",
                b"*-7\r\n",
                b":\r\n",
            ),
            *(
                b":x\r\n",
                b"$-9\r\nab\r\n",
                b"*1\r\n" * 50,
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                b"\r\n\r\n",
                b"\n",
                b"\x00",
            ),
        ]
    ),
)


def changed(reply: bytes, number: int, value: int) -> bytes:
    """Return the reply with another number in one place: a length, a count, a time or a token."""
    if reply.startswith(b"$") and reply.count(b" "):  # a reply in words
        words = reply.split(b"\r\n")[1].split(b" ")
        words[1 + number % (len(words) - 1)] = b"%d" % value
        return bulk(b" ".join(words))
    places = list(re.finditer(rb"[:*$](-?\d+)", reply))
    if not places:
        return reply
    start, end = places[number % len(places)].span(1)
    return reply[:start] + b"%d" % value + reply[end:]


@define
class Lie:
    """Lie in the place of a reply, and what then becomes of the connection."""

    what: str
    forge: Callable[[bytes], bytes]
    end: str

    def __repr__(self) -> str:
        return f"{self.what}, then {self.end or 'on'}"


FORGERS = st.one_of(
    st.one_of(REPLIES, WORDS, VALUES, BROKEN).map(lambda data: (repr(data), lambda _: data)),
    st.integers(0, 60).map(lambda length: (f"the first {length} bytes", lambda reply: reply[:length])),
    st.one_of(VALUES, BROKEN).map(lambda data: (f"{data!r} after it", lambda reply: reply + data)),
    st.just(("twice the same", lambda reply: reply * 2)),
    st.tuples(st.integers(0, 9), INTEGERS).map(
        lambda change: (f"{change[1]} as its number {change[0]}", lambda reply: changed(reply, *change))
    ),
)
LIES = st.builds(
    lambda forger, end: Lie(forger[0], forger[1], end), FORGERS, st.sampled_from(["", "", "", "close", "mute"])
)


def tell(proxy: Proxy, match: Match, lies: list[Lie]) -> None:
    for lie in lies:
        proxy.forge_reply(match, lie.forge, close=lie.end == "close", mute=lie.end == "mute")


# The promises ---------------------------------------------------------------------------------------------------------


def in_time(call: Callable[[], object]) -> Any:
    """Return the result of the call, or relock's error; check that either comes in time."""
    began = time.monotonic()
    try:
        return call()
    except RelockError as error:
        return error
    finally:
        assert time.monotonic() - began < OVERDUE


def use(client: Client) -> None:
    """Make every call of a lock, whatever its outcome."""
    lock = client.lock(NAMES[0])
    acquire = partial(lock.acquire, timeout=TIMEOUT)
    names: Callable[[], list[str]] = partial(list, client.names("*"))
    taking = (acquire, acquire, lock.extend, lock.info, lock.release, lock.release)
    for call in (*taking, acquire, lock.force_release, names, client.check, lock.release, client.statistics):
        in_time(call)


def works(client: Client) -> bool:
    """Return whether a lock can be taken and released."""
    with suppress(RelockError):
        with client.lock(NAMES[1], timeout=1.0) as lock:
            assert lock.owned()
        return True
    return False


def is_script(words: Words) -> bool:
    return words[0].upper() in (b"EVALSHA", b"EVAL")


def is_set_up(words: Words) -> bool:
    return not is_script(words) and words[0].upper() not in (b"SUBSCRIBE", b"SCAN")


def any_of_the_rest(words: Words) -> bool:
    return words[0].upper() in (b"SUBSCRIBE", b"SCAN", b"PING")


@pytest.fixture
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the parser of replies: hiredis, or the one in Python, which is used where hiredis is not installed."""
    if request.param == "python":
        monkeypatch.setattr("relock._runtime.net.channel.hiredis", None)


@pytest.mark.parametrize(
    ("reader", "match"),
    [("hiredis", is_script), ("python", is_script), ("hiredis", is_set_up), ("hiredis", any_of_the_rest)],
    indirect=["reader"],
)
@fuzz(30, shrink=False)
@given(lies=st.lists(LIES, min_size=1, max_size=4))
def test_one_master_that_lies(reader: None, proxy: Proxy, match: Match, lies: list[Lie]) -> None:
    with without_complaint(), Client(proxy.url, **OPTIONS) as client:
        tell(proxy, match, lies)
        use(client)
        proxy.faults.clear()
        until(lambda: works(client), within=20, what="the client works again, once the master speaks the truth")


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("match", [is_script, is_set_up])
@fuzz(20, shrink=False)
@given(lies=st.lists(LIES, min_size=1, max_size=4), liar=st.integers(0, 2))
def test_one_of_three_masters_that_lies(
    *, server: Masters, proxy: Proxies, match: Match, lies: list[Lie], liar: int
) -> None:
    """The other two masters are a quorum, also while one lies."""
    server.let_vote()  # a lie about the clock costs a master its vote
    with without_complaint(), Client(Urls(proxy.url, None), restart_guard=GUARD_SECONDS, **OPTIONS) as client:
        tell(proxy.members[liar], match, lies)
        use(client)
        until(lambda: works(client), within=20, what="the client works with the other masters")
        proxy.members[liar].faults.clear()
        until(lambda: works(client), within=20, what="the client works with all masters")


LIES_ABOUT_NUMBERS = [
    *(("length", length) for length in (10**8, 2**31, 2**32 - 1)),
    *(("token", token) for token in (2**53, 10**16 - 1, 2**63 - 1, -(2**63), 4 * 10**15)),
]


def long_or_large(reply: bytes, number: str, value: int) -> bytes:
    """Return the reply as the first item of a list of that length, or as a grant with that token."""
    return b"*%d\r\n%b" % (value, reply) if number == "length" else changed(reply, 1, value)


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize(("number", "value"), LIES_ABOUT_NUMBERS)
def test_what_one_of_three_masters_says_of_a_number_costs_neither_the_hold_nor_the_tokens(
    *, server: Masters, proxy: Proxies, number: str, value: int
) -> None:
    """Lengths beyond the memory, and tokens that no later one could exceed."""
    server.let_vote()
    options = {**OPTIONS, "ttl": 30.0, "node_timeout": 10.0, "patience": 20.0}  # a master may connect late
    with without_complaint(), Client(Urls(proxy.url, None), restart_guard=GUARD_SECONDS, **options) as client:
        lie = proxy.members[1].forge_reply(is_script, lambda reply: long_or_large(reply, number, value))
        lock = client.lock(NAMES[0])
        tokens = list[int]()

        def turn() -> bool:
            """Take and release the lock; return whether the master, which may connect late, has lied."""
            with lock:
                began = time.monotonic()
                assert lock.extend() > 0
                assert time.monotonic() - began < options["node_timeout"]
                tokens.append(lock.token or 0)
            return lie.struck.is_set()

        until(turn, within=20, what="the master has lied")
        for _ in range(3):
            turn()
        assert tokens == sorted({*tokens})
        assert tokens[0] > 0
