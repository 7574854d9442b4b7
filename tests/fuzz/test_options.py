"""Arguments of any kind: each is taken, or is refused in words before anything is sent."""

import math
import threading
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import fuzz

from relock import Client, ConfigurationError, NotOwnedError, RelockWarning

NOWHERE = "redis://127.0.0.1:1"  # no server listens there, and no test here sends a request
THREE = ["redis://a", "redis://b", "redis://c"]
REFUSED = (TypeError, ConfigurationError)

NUMBERS = st.one_of(
    st.integers(-10, 10),
    st.sampled_from([2**31, 2**63, -(2**63), 10**400, -(10**400), 315_576_000, 315_576_001]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, math.ulp(0.0), -0.0, 0.05, 0.5, 30.0, 1e300]),
    st.booleans(),
)
THINGS = st.one_of(
    NUMBERS,
    st.none(),
    st.text(max_size=5),
    st.text(st.characters(categories=["Cs", "Cc", "L"]), max_size=5),
    st.binary(max_size=5),
    st.sampled_from([[], {}, (), set(), object(), print, Client, Decimal("1.5"), Fraction(1, 3), 1j, ...]),
)
CLIENT_OPTIONS = (
    *("ttl", "renew", "fair", "node_timeout", "max_hold", "patience", "restart_guard", "min_replicas"),
    *("replica_timeout", "max_connections", "drift_factor", "prefix", "client_name", "on_lost", "on_event"),
)
LOCK_OPTIONS = ("ttl", "renew", "fair", "timeout", "owner", "max_hold", "on_lost")


@pytest.fixture(autouse=True)
def _warnings_are_no_errors() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RelockWarning)
        yield


def refusal(call: Callable[[], object]) -> Exception | None:
    """Return the error that refused the arguments; None if they were not refused."""
    try:
        call()
    except REFUSED as error:
        return error
    return None


@pytest.mark.parametrize("nodes", [NOWHERE, THREE], ids=["1-master", "3-masters"])
@fuzz(120)
@given(options=st.dictionaries(st.sampled_from(CLIENT_OPTIONS), THINGS, max_size=3))
def test_options_of_a_client(nodes: Any, options: dict[str, Any]) -> None:
    error = refusal(lambda: Client(nodes, **options).close())
    if isinstance(error, ConfigurationError):
        assert error.option in options or error.option == "ttl", (
            "an error of another option is that of a ttl above the given guard"
        )


@pytest.mark.parametrize("option", CLIENT_OPTIONS)
@fuzz(60)
@given(value=THINGS)
def test_each_option_of_a_client(option: str, value: Any) -> None:
    error = refusal(lambda: Client(NOWHERE, **{option: value}).close())
    assert error is None or option in str(error)


@fuzz(150)
@given(options=st.dictionaries(st.sampled_from(LOCK_OPTIONS), THINGS, max_size=3), name=THINGS | st.just("a"))
def test_options_of_a_lock(options: dict[str, Any], name: Any) -> None:
    client = Client(NOWHERE)
    error = refusal(lambda: client.lock(name, **options))
    if isinstance(error, ConfigurationError):
        assert error.option in (*options, "name")
    client.close()


@fuzz(150)
@given(value=THINGS)
def test_arguments_of_a_locks_methods(value: Any) -> None:
    """Arguments are checked before the state of the lock."""
    lock = Client(NOWHERE).lock("a")
    for call in (lambda: lock.ensure(value), lambda: lock.extend(value)):
        try:
            assert refusal(call) is not None
        except NotOwnedError:
            pass


@fuzz(150)
@given(blocking=st.booleans(), timeout=THINGS.filter(lambda thing: not isinstance(thing, Fraction)))
def test_an_acquire_refuses_what_an_rlock_refuses(blocking: bool, timeout: Any) -> None:
    """Fractions are the exception: relock takes one as a number of seconds."""

    def judged(lock: Any) -> bool:
        try:
            lock.acquire(blocking, timeout)
        except (TypeError, ValueError, OverflowError):
            return False
        return True

    client = Client(NOWHERE)
    with patch.object(client._session, "run", return_value=None):  # as if the lock were free
        assert judged(client.lock("a")) == judged(threading.RLock())


@fuzz(150)
@given(nodes=st.one_of(THINGS, st.lists(THINGS, max_size=3)))
def test_nodes(nodes: Any) -> None:
    assert refusal(lambda: Client(nodes).close()) is not None


PARTS = st.sampled_from(
    [
        *("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+cluster", "http", "://", ":", "//"),
        *("/", "@", ",", "?", "&", "=", "#", "[", "]", "[::1]", "%", "%zz", "%00", "\x00", "\n", " ", "\xe9", "\ud800"),
        *("65536", "-1", "6379", "db", "db=", "ssl_cert_reqs", "none", "socket_timeout", "protocol", "mymaster", "a"),
    ]
)


@fuzz(500)
@given(text=st.lists(PARTS, max_size=12).map("".join))
@example("redis+sentinel://a:1,b/x/y/z?q")
@example("redis://[::1")
def test_urls(text: str) -> None:
    refusal(lambda: Client(text).close())
    refusal(lambda: Client([text, "redis://other-host"]).close())


FIELDS = st.sampled_from([*"{}[]!:.ab01 ", "{a}", "{b}", "{a.x}", "{a[0]}", "{a!r}", "{a:>9}"])


@fuzz(200)
@given(template=st.lists(FIELDS, max_size=8).map("".join))
def test_templates(template: str) -> None:
    """The function runs once, with the lock; or an error says why not, at the latest when the function is called."""
    client = Client(NOWHERE, patience=0)
    seen: list[str] = []

    def lock(name: str) -> Any:
        seen.append(name)
        return threading.RLock()

    def function(a: str) -> str:
        return a

    client.lock = lock  # type: ignore[method-assign,assignment]
    try:
        decorator = client.synchronized(template)
        seen.clear()  # a lock that checks the options
        decorated = decorator(function)
        assert decorated("x") == "x"
    except (TypeError, ValueError, LookupError, AttributeError):  # `str.format` raises the last two
        assert not seen
    else:
        assert len(seen) == 1
