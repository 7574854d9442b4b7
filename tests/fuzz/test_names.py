"""Names, owners, prefixes and patterns of any kind, on a real server: each is refused, or works like any other."""

import threading
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import fuzz
from support.heartbeats import without_heartbeats
from support.servers import Server
from support.until import until

from relock import Client, ConfigurationError

LEASE_SECONDS = 30.0  # a waiter without a message looks again only after that time
PATIENT_SECONDS = LEASE_SECONDS / 3  # names of 100 kB, on a busy machine

LETTERS = st.sampled_from(
    [*"{}[]*?^-\\:~ .%", "\x00", "\n", "\r", "\x7f", "\xe9", "\u2028", "\U0001f512", "a", "b", "0"]
)
TEXTS = st.one_of(
    st.text(LETTERS, max_size=12),
    st.text(max_size=30),
    st.text(st.characters(), max_size=5),
    st.tuples(st.text(LETTERS, max_size=3), st.integers(1, 100_000)).map(lambda parts: parts[0] + "x" * parts[1]),
    st.sampled_from(["}", "{", "{}", "}{", "a}:queue", "a}:token", "master", "client:x", "wake", "\ud800", "a\udfff"]),
)


def has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_name(text: str) -> bool:
    return text != "" and not text.startswith("}") and has_utf8(text)


def is_prefix(text: str) -> bool:
    return text != "" and not {"{", "}"} & set(text) and has_utf8(text)


def is_client_name(text: str) -> bool:
    return text != "" and has_utf8(text)


def made(url: str, options: dict[str, Any], name: str, owner: str) -> Any:
    """Return a client and a lock; or None for bad texts, after checking that the error names one of them."""
    good = is_name(name) and owner and is_prefix(options["prefix"]) and is_client_name(options["client_name"])

    def make() -> Any:
        client = Client(url, **options)
        return client, client.lock(name, owner=owner)

    if good:
        return make()
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.option in ("name", "owner", "prefix", "client_name")
    return None


@fuzz(150)
@given(name=TEXTS, owner=TEXTS, prefix=TEXTS | st.just("lock"), client_name=TEXTS | st.just("me"))
@example(name="a\x00b", owner="\x00", prefix="\x00", client_name="\x00")
def test_a_lock_of_any_name_is_taken_and_leaves_nothing(
    server: Server, name: str, owner: str, prefix: str, client_name: str
) -> None:
    found = made(server.url, {"prefix": prefix, "client_name": client_name}, name, owner)
    if found is None:
        return
    client, lock = found
    with client, lock:
        with client.lock(name, owner=owner) as nested:
            assert nested.hold_count == 2
        info = client.info(name)
        assert (info.name, info.hold_count, info.token) == (name, 1, lock.token)
        assert server.cli("HLEN", f"{prefix}:{{{name}}}") == 1
        assert name in client.names()
        with Client(server.url, prefix=prefix) as other:
            assert not other.lock(name).acquire(blocking=False)
        assert client.lock(name + "x").acquire(blocking=False), "another name is another lock"
        client.lock(name + "x").release()
        lock.extend()
    assert server.cli("EXISTS", f"{prefix}:{{{name}}}") == 0


@pytest.mark.parametrize("what", ["name", "owner", "prefix", "client_name"])
@fuzz(30)
@given(text=TEXTS)
def test_a_waiter_is_woken_whatever_the_names_are(server: Server, what: str, text: str) -> None:
    """Wake-ups carry names: a waiter without its message would wait for a heartbeat."""
    texts = {"name": "a", "owner": "b", "prefix": "lock", "client_name": "c", what: text}
    name, owner = texts.pop("name"), texts.pop("owner")
    found = made(server.url, {**texts, "node_timeout": PATIENT_SECONDS}, name, owner)
    if found is None:
        return
    client, waiter = found
    woken: list[float] = []

    def wait() -> None:
        with waiter:
            woken.append(time.monotonic())

    other = Client(server.url, prefix=texts["prefix"], ttl=LEASE_SECONDS, node_timeout=PATIENT_SECONDS)
    with without_heartbeats(), other, client:
        thread = threading.Thread(target=wait)
        with other.lock(name):
            thread.start()
            until(lambda: len(other.info(name).queue) == 1, within=20, what="a caller waits")
        released = time.monotonic()
        thread.join()
    assert woken[0] - released < LEASE_SECONDS / 3


@fuzz(50)
@given(pattern=TEXTS)
def test_patterns(client: Client, pattern: str) -> None:
    """Patterns that no server takes as text are refused at once; any other pattern is a glob."""
    if not has_utf8(pattern):
        with pytest.raises(ConfigurationError):
            client.names(pattern)
        return
    with client.lock("a"), client.lock("a}b"), client.lock("x"):
        found = list(client.names(pattern))
    assert set(found) <= {"a", "a}b", "x"}
    assert len(found) == len(set(found))
