"""Random sequences of the scripts have the same effect on a virtual master, on a real server, and on fakeredis.

Each script runs on the server first; its reply has the time, and the test sets the virtual master's clock to that
moment. So replies, tickets and tokens must be the same to the microsecond, and only times to live may differ a little.
"""

import hashlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import fakeredis
import hiredis
import pytest
import redis
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.replies import as_list
from support.servers import Server

from relock._keys import client_channel, latch_keys, lock_keys, permit_keys
from relock._scripts import Call, Script, load, pack_argument, script_names
from relock.testing._engine import Engine
from relock.testing._master import ReplyError, VirtualMaster
from relock.testing._store import Store

EXAMPLES = settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KEYS = lock_keys("lock", "a")
PERMITS = permit_keys("lock", "a")
LOCK_KEYS = (KEYS.lock, KEYS.queue, KEYS.waiters, KEYS.token, KEYS.master)
PERMIT_KEYS = (PERMITS.permits, PERMITS.queue, PERMITS.waiters, PERMITS.token, PERMITS.leases, PERMITS.limit)
LATCH = latch_keys("lock", "a")
ALL_KEYS = (*LOCK_KEYS, *PERMIT_KEYS, LATCH.latch, LATCH.waiters)
CLIENTS = ("me", "you", "they")
FAR = 2**52
START_US = 1_700_000_000_000_000
TAKING = {"count": 1, "lease_ms": 60_000, "token_ms": 61_000, "fair": 1, "proposal": 0}
COMMAND_US = 7  # of a script, if the test sets the clock
SLACK_MS = 2_000  # after the time in its reply, within which a busy server looks at its clock again
ROUNDING_MS = 2  # because fakeredis computes with seconds
REPLICATION_ID = "this"  # stands for the server's own
REPLICATION_ID_OF_SERVER = "return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')"
PTTL_AT = {b"refused": 2, b"queued": 2, b"proposed": 2, b"tended": 2, b"held": 2}


class ScriptStep(NamedTuple):
    """A script with arguments, of which some are relative: a fence or a ticket to the last token or ticket."""

    script: str
    arguments: dict[str, Any]
    rest: tuple[Any, ...]
    not_after_us: int
    incarnation: str
    guard_ms: int


owners = st.sampled_from([b"me:1", b"me:1~1", b"you:1", b"you:2@60000", b"they:1@120000~2"])
waiters = st.sampled_from([b"me:1", b"you:1", b"you:2@60000", b"they:1@120000"])
leases = st.sampled_from([60_000, 120_000, 300_000])
permit_waiters = st.sampled_from([b"me:1#1/2", b"you:1#2/3", b"you:2#1/2@60000", b"they:1#1/3@120000"])
permit_owners = st.builds(lambda waiter, end: waiter + end, permit_waiters, st.sampled_from([b"", b"~1", b"~2"]))
relative = st.sampled_from(["0", "last", "last+1", "last+1000000", "last-1"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "owner": owners,
    "count": st.integers(1, 3),
    "lease_ms": leases,
    "rest_ms": leases,
    "token_ms": leases.map(lambda lease_ms: lease_ms + 1_000),
    "fair": st.integers(0, 1),
    "ticket": st.one_of(st.sampled_from([0, -1]), relative),
    "alive_ms": st.sampled_from([0, 10_000]),  # 1 may end between a server's error and the question for its time
    "queue_ms": st.sampled_from([30_000, 60_000]),
    "fence": relative,
    "proposal": relative,
    "client": st.sampled_from([b"me", b"you", b"they"]),
    "hand": st.integers(0, 1),
    "limit": st.integers(0, 3),
    "accused": st.sampled_from([b"this", b"that"]),
    "slot": st.sampled_from([-1, -1, 0, 1, 2]),
    "value": st.integers(-2, 2),
    "cap": st.integers(0, 3),
    "ttl_ms": st.sampled_from([0, 60_000]),
    "seen": st.sampled_from([b"this 0 0", b"that"]),
    "party": st.sampled_from([b"a", b"b", b"me:1"]),
    "parties": st.sampled_from([2, 2, 2, 3]),
    "waiter": st.sampled_from([b"", b"me:1!", b"you:1!", b"nobody"]),
    "most": st.sampled_from([0, 1, 1000]),
}
guards = st.sampled_from([None, None, None, None, None, 0, 1, 1, -1, 90_000, -90_000])


def scripts() -> st.SearchStrategy[ScriptStep]:
    """Draw any script with any of its arguments; more often those that take and end holds."""
    often = ["acquire", "acquire", "enqueue", "enqueue", "enqueue", "release", "release", "heartbeat"]
    often += [
        "permit_acquire",
        "permit_enqueue",
        "permit_enqueue",
        "permit_enqueue",
        "permit_release",
        "permit_release",
        "latch_arrive",
        "latch_look",
    ]
    names = [name for name in script_names() if name != "notify"]  # which only publishes: its table is in tests/lua
    return st.sampled_from(names + often).flatmap(_steps)


def _steps(name: str) -> st.SearchStrategy[ScriptStep]:
    own = load(name).own_arguments
    is_permit = name.startswith("permit_")
    values = VALUES | ({"owner": permit_owners} if is_permit else {})
    values |= {"ttl_ms": st.just(60_000)} if name.startswith("latch_") else {}
    pairs = st.tuples(relative, permit_waiters if is_permit else waiters)
    return st.builds(
        ScriptStep,
        script=st.just(name),
        arguments=st.fixed_dictionaries({argument: values[argument] for argument in own}),
        rest=st.lists(pairs, max_size=2).map(tuple) if "heartbeat" in name else st.just(()),
        not_after_us=st.sampled_from([FAR, FAR, FAR, FAR, 0]),
        incarnation=st.sampled_from([REPLICATION_ID, REPLICATION_ID, REPLICATION_ID, "0" * 40]),
        guard_ms=guards,
    )


# The commands of an operator or another library.
intrusions = st.sampled_from(
    [
        (b"DEL", KEYS.lock),
        (b"DEL", KEYS.queue),
        (b"DEL", KEYS.token),
        (b"DEL", KEYS.master),
        (b"SET", KEYS.lock, b"x", b"NX"),
        (b"DEL", PERMITS.permits),
        (b"DEL", PERMITS.leases),
        (b"SET", PERMITS.permits, b"x", b"NX"),
        (b"DEL", LATCH.latch),
        (b"SET", LATCH.latch, b"x", b"NX"),
        (b"SET", LATCH.waiters, b"x", b"NX"),
    ]
)
# After this a script may write, and then fail without telling the time of the write: only a test that sets the clock
# uses it.
harm = st.just((b"SET", KEYS.queue, b"x", b"PX", b"60000"))


class Twins:
    """A virtual master, and a server that runs the same steps; compares their replies, messages and data."""

    def __init__(self, client: Any, listening: Sequence[str], slack_ms: int, replication_id: str | None = None) -> None:
        self.client = client
        self.slack_ms = slack_ms
        self.client.response_callbacks.clear()
        self.now_us = int(time.time() * 1e6)
        self.replication_id = replication_id  # None for a server that can't be asked
        self.model = VirtualMaster(lambda: self.now_us, replication_id or "this")
        self.heard: dict[str, list[bytes]] = {name: [] for name in listening}
        self.subscriptions = {name: self._subscribe(name) for name in listening}
        self._last = 0  # the last token or ticket

    def _subscribe(self, name: str) -> Any:
        channel = client_channel("lock", name)
        self.model.subscribe(channel.encode(), lambda _channel, message: self.heard[name].append(message))
        subscription = self.client.pubsub()
        subscription.subscribe(channel)
        assert subscription.get_message(timeout=5)["type"] == "subscribe"
        return subscription

    def run(self, step: ScriptStep) -> None:
        call = self._call(step)
        guarded, guard_ms = step.guard_ms is not None, step.guard_ms or 0
        incarnation = self._socket(step.incarnation)
        connection = [pack_argument(b"%016d" % step.not_after_us), pack_argument(incarnation), _number(guard_ms)]
        packed = call.pack(b"".join(connection[: call.script.connection_argument_count]), guarded, source=True)
        said = attempt(lambda: self.client.execute_command(*unpacked(packed)))
        real = as_list(said)
        self.now_us = real[1] if isinstance(real, list) else self._server_us()
        arguments = (call, step.not_after_us, incarnation, guard_ms)
        model = attempt(lambda: self.model.execute(*arguments, guarded=guarded))
        compare(said, model, step, self.slack_ms)
        if isinstance(real, list) and real[0] in (b"granted", b"queued"):
            self._last = real[2 if real[0] == b"granted" else 5]

    def _socket(self, replication_id: str) -> bytes:
        """Return a socket's incarnation and last vote: long ago, or just now if the server can't be asked."""
        if self.replication_id is None:
            return b"run:%b?%016d" % (replication_id.encode(), self.now_us)
        known = self.replication_id if replication_id == REPLICATION_ID else replication_id
        return b"run:%b?%016d" % (known.encode(), 0)

    def _server_us(self) -> int:
        seconds, micros = self.client.execute_command("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def _call(self, step: ScriptStep) -> Call:
        own = {name: self._resolved(value) for name, value in step.arguments.items()}
        rest = [word for ticket, waiter in step.rest for word in (self._resolved(ticket), waiter)]
        keys = {"permit": PERMITS, "latch": LATCH}.get(step.script.partition("_")[0], KEYS)
        return load(step.script).call(keys, *rest, **own)

    def _resolved(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return max(0, self._last + int(value.removeprefix("last") or 0)) if value.startswith("last") else int(value)

    def do(self, command: tuple[bytes, ...]) -> None:
        real = self.client.execute_command(*command)
        assert self.model.read(command[0].decode(), *command[1:]) == real

    def compare_all(self) -> None:
        """Compare the data of both, the times to live, and the messages."""
        self.now_us = self._server_us()
        held = {key: self._contents(key) for key in ALL_KEYS}
        assert {key: self.model.contents(key) for key in ALL_KEYS} == held
        for key in ALL_KEYS:
            real, model = self.client.execute_command("PTTL", key), self.model.read("PTTL", key)
            assert min(real, 0) == min(model, 0), (key, real, model)
            assert abs(real - model) <= self.slack_ms, (key, real, model)
        assert self.heard == {name: self._published(name) for name in self.subscriptions}

    def _contents(self, key: bytes) -> Any:
        kind = self.client.execute_command("TYPE", key)
        if kind == b"hash":
            pairs = self.client.execute_command("HGETALL", key)
            return dict(zip(pairs[::2], pairs[1::2], strict=True))
        if kind == b"zset":
            pairs = self.client.execute_command("ZRANGE", key, "0", "-1", "WITHSCORES")
            return [(member, float(score)) for member, score in zip(pairs[::2], pairs[1::2], strict=True)]
        return self.client.execute_command("GET", key)

    def _published(self, name: str) -> list[bytes]:
        """Return all messages up to a last one, which this method publishes after them."""
        self.client.execute_command("PUBLISH", client_channel("lock", name), b"end")
        found: list[bytes] = []
        while not found or found[-1] != b"end":
            found.append(self.subscriptions[name].get_message(timeout=5)["data"])
        return found[:-1]

    def close(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.close()


def _number(value: int) -> bytes:
    return pack_argument(b"%d" % value)


def unpacked(packed: bytes) -> Sequence[bytes]:
    """Return the words of a command on the wire, by another parser than ours."""
    reader = hiredis.Reader()
    reader.feed(packed)
    words: list[bytes] = reader.gets()
    return words


def attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (ReplyError, redis.ResponseError) as error:
        return error


def compare(real: Any, model: Any, asked: object, slack_ms: int = 0) -> None:
    """Assert that replies are the same, except for words that redis-py and the server add to errors.

    If a script itself fails, each server puts words of its own before the line of the script.
    """
    said = f"{asked}: {real!r}, {model!r}"
    if isinstance(real, Exception):
        assert isinstance(model, ReplyError), said
        text = str(model)
        failed = text.partition("user_script")[2]
        assert (failed and failed in str(real)) or str(real).startswith((text, text.partition(" ")[2])), said
        return
    if isinstance(asked, ScriptStep) and isinstance(real, list) and real[0] in PTTL_AT and len(real) > PTTL_AT[real[0]]:
        at = PTTL_AT[real[0]]
        assert abs(real[at] - model[at]) <= slack_ms, said
        real, model = real[:at] + real[at + 1 :], model[:at] + model[at + 1 :]
    assert real == model, said
    assert repr(real) == repr(model), said  # of the same types


@pytest.fixture
def client(own_server: Server) -> Iterator[Any]:
    with own_server.client(protocol=2) as client:
        yield client


listeners = st.lists(st.sampled_from(CLIENTS), unique=True)


@EXAMPLES
@given(
    listening=listeners,
    steps=st.lists(st.one_of(*[scripts()] * 6, intrusions, st.booleans()), min_size=10, max_size=50),
)
def test_the_scripts_do_the_same_on_a_real_server(
    client: Any, listening: list[str], steps: Sequence[ScriptStep | bool | tuple[bytes, ...]]
) -> None:
    """A step that is a bool sets whether the memory is full from now on."""
    client.flushall()
    twins = Twins(client, listening, SLACK_MS, client.eval(REPLICATION_ID_OF_SERVER, 0).decode())
    try:
        for step in steps:
            if isinstance(step, bool):
                client.execute_command("CONFIG", "SET", "maxmemory", "1" if step else "0")
                twins.model.is_full = step
            elif isinstance(step, ScriptStep):
                twins.run(step)
            elif not twins.model.is_full:
                twins.do(step)
        twins.compare_all()
    finally:
        client.execute_command("CONFIG", "SET", "maxmemory", "0")
        twins.close()


@EXAMPLES
@given(
    listening=listeners,
    steps=st.lists(
        st.one_of(*[scripts()] * 6, intrusions, harm, st.integers(1, 100).map(lambda seconds: seconds * 1_001_000)),
        min_size=5,
        max_size=25,
    ),
)
def test_the_scripts_do_the_same_on_fakeredis_while_time_goes_by(
    listening: list[str], steps: Sequence[ScriptStep | int | tuple[bytes, ...]]
) -> None:
    """A step that is a number lets so many microseconds pass."""
    clock_us = START_US

    def seconds() -> float:
        return clock_us / 1e6

    with mock.patch("time.time", new=seconds):
        twins = Twins(fakeredis.FakeRedis(protocol=2), listening, ROUNDING_MS)
        for step in steps:
            if isinstance(step, int):
                clock_us += step
            elif isinstance(step, ScriptStep):
                twins.run(step)
            else:
                twins.do(step)
            clock_us += COMMAND_US
            twins.now_us = clock_us
        twins.compare_all()
        twins.close()


# How values change on their way in and out ----------------------------------------------------------------------------

SNIPPETS = [
    "return 3.99",
    "return -3.99",
    "return 2^53 - 1",
    "return nil",
    "return",
    "return true",
    "return false",
    "return 'text'",
    "return ''",
    "return {}",
    "return { 1, 2.7, 'x', true, false, 3 }",
    "return { 1, nil, 3 }",
    "return { 'a', { 'b', { 1.5, nil, 2 }, {} }, { ok = 'FINE' } }",
    "return { ok = 'FINE' }",
    "return { err = 'MINE of my own' }",
    "return redis.error_reply('MINE of my own')",
    "return redis.status_reply('FINE')",
    "return { KEYS[1], ARGV[1], ARGV[2], #KEYS, #ARGV, KEYS[2] or 'none' }",
    "return redis.call('SET', KEYS[1], 'v')",
    "return { type(redis.call('GET', KEYS[1])), redis.call('GET', KEYS[1]) == false, redis.call('GET', KEYS[1]) }",
    "redis.call('SET', KEYS[1], 12.5) return redis.call('GET', KEYS[1])",
    "redis.call('SET', KEYS[1], 1700000000123456) return redis.call('GET', KEYS[1])",
    "redis.call('SET', KEYS[1], 'v') return { redis.call('SET', KEYS[1], 'w', 'PX', 1e5, 'GET') }",
    "redis.call('SET', KEYS[1], 'v') return { redis.call('TYPE', KEYS[1]), redis.call('TYPE', KEYS[1]).ok }",
    "return redis.call('set', KEYS[1], 'v').ok",
    "redis.call('hset', KEYS[1], 'f', 1, 'g', 2) return redis.call('hkeys', KEYS[1])",
    "redis.call('HSET', KEYS[1], 'f', 1) local r = redis.call('HMGET', KEYS[1], 'f', 'g') return { r[2] == false, r }",
    "redis.call('HSET', KEYS[1], 'f', 1) return { redis.call('HMGET', KEYS[1], 'f', 'g', 'f') }",
    "return #redis.call('ZRANGE', KEYS[1], 0, -1)",
    "return redis.call('ZRANK', KEYS[1], 'x') == false",
    "redis.call('ZADD', KEYS[1], 2, 'b', 1.5, 'a') return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    "redis.call('HSET', KEYS[1], 'f', 1) return redis.pcall('GET', KEYS[1])",
    "redis.call('HSET', KEYS[1], 'f', 1) return string.sub(redis.pcall('GET', KEYS[1]).err, 1, 9)",
    "redis.call('HSET', KEYS[1], 'f', 1) return redis.call('GET', KEYS[1])",
    "redis.call('HSET', KEYS[1], 'f', 1) local ok, e = pcall(redis.call, 'GET', KEYS[1]) return { ok, e }",
    "redis.call('SET', KEYS[1], 'v') error('stop')",
    "error({ err = 'MINE of my own' })",
    "return redis.pcall('PUBLISH', 'nobody', 'hello')",
    "return redis.pcall('PUBSUB', 'NUMSUB', 'nobody')",
    "return #redis.call('TIME') .. type(redis.call('TIME')[1])",
    "return unknown",
    "unknown = 1",
    "return string.format('%.0f %s', 2^53, tostring(2^53))",
    "local function f(...) return select('#', ...) end return f(unpack(redis.call('ZRANGE', KEYS[1], 0, -1)))",
    "return tonumber('0x10') + tonumber(' 7 ')",
]


FAILING = [  # because each kind of server has its own words
    "return redis.call('HSET', KEYS[1], 'f', nil)",
    "return redis.call('HSET', KEYS[1], 'f', {})",
    "return redis.call('HSET', KEYS[1], 'f', true)",
    "return redis.call('NONSENSE', KEYS[1])",
    "return redis.call('HSET', KEYS[1], 'f')",
    "return redis.call('ZADD', KEYS[1], 1)",
]


def snippet(text: str) -> Script:
    source = text.encode()
    return evolve(load("inspect"), source=source, sha=hashlib.sha1(source, usedforsecurity=False).hexdigest())


@pytest.mark.parametrize("text", SNIPPETS)
def test_values_change_on_their_way_in_and_out_as_on_a_server(server: Server, text: str) -> None:
    with server.client(protocol=2) as client:
        real = attempt(lambda: client.eval(text, 1, "k", "1", "x"))
        left = client.exists("k")
    model = VirtualMaster(lambda: int(time.time() * 1e6), "this")
    compare(real, attempt(lambda: model.run(snippet(text), [b"k"], [b"1", b"x"])), text)
    assert left == model.read("EXISTS", b"k")


@pytest.mark.parametrize("text", FAILING)
def test_the_model_refuses_what_a_server_refuses(server: Server, text: str) -> None:
    with server.client(protocol=2) as client, pytest.raises(redis.ResponseError):
        client.eval(text, 1, "k")
    model = VirtualMaster(lambda: START_US, "this")
    with pytest.raises(ReplyError):
        model.run(snippet(text), [b"k"], [])
    assert model.keys() == []


FIRST = [  # of a script, on a master without memory
    "redis.call('GET', 'k')",
    "redis.call('PUBLISH', 'k', 'x')",
    "redis.call('PEXPIRE', 'k', 1000)",
    "redis.call('DEL', 'k')",
    "redis.call('HDEL', 'h', 'f')",
    "redis.call('ZREM', 'z', 'm')",
    "redis.pcall('SET', 'k', 'x')",
    "redis.pcall('ZREM', 'k', 'm')",
]
SECOND = [
    "SET', 'k', 'x'",
    "INCR', 'k'",
    "HSET', 'h', 'f', 1",
    "HINCRBY', 'h', 'f', 1",
    "ZADD', 'z', 1, 'm'",
    "GET', 'k'",
]


def test_a_master_without_memory_refuses_what_a_server_refuses(client: Any) -> None:
    """Masters without memory refuse only a script's first write, whose command decides whether later ones may write."""
    client.execute_command("CONFIG", "SET", "maxmemory", "1")
    for first, second in itertools.product(FIRST, SECOND):
        text = f"{first} return redis.call('{second})"
        client.flushall()
        model = VirtualMaster(lambda: START_US, "this")
        model.is_full = True
        real = attempt(partial(client.eval, text, 0))
        compare(real, attempt(partial(model.run, snippet(text), [], [])), text)


# Cases that no comparison shows ---------------------------------------------------------------------------------------


def test_masters_are_apart_although_they_share_an_engine() -> None:
    masters = [VirtualMaster(lambda: START_US, "this") for _ in range(2)]
    acquire = load("acquire").call(KEYS, owner=b"me:1", **TAKING)
    granted = b"granted %d %d" % (START_US, START_US)
    assert [master.execute(acquire, FAR, b"this", 0) for master in masters] == [granted] * 2


def test_a_subscriber_may_run_a_script_at_once() -> None:
    master = VirtualMaster(lambda: START_US, "this")
    acquire, release, enqueue = load("acquire"), load("release"), load("enqueue")
    first = acquire.call(KEYS, owner=b"me:1", **TAKING)
    waits = {"count": 1, "lease_ms": 60_000, "fair": 1, "ticket": 0, "alive_ms": 10_000, "queue_ms": 30_000}
    second = enqueue.call(KEYS, owner=b"you:1", **waits)
    replies = [master.execute(first, FAR, b"this", 0), master.execute(second, FAR, b"this", 0)]

    def take(_channel: bytes, _message: bytes) -> None:
        replies.append(master.execute(second, FAR, b"this", 0))

    master.subscribe(b"lock:client:you", take)
    ended = master.execute(release.call(KEYS, owner=b"me:1", fence=0, token_ms=61_000, hand=0), FAR, b"this", 0)
    assert ended == b"released %d" % START_US
    assert [as_list(reply)[0] for reply in replies] == [b"granted", b"queued", b"granted"]


def test_a_defect_of_the_model_is_no_error_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that runs the script gets the exception itself, and no script can catch it."""
    engine, store = Engine(), Store()
    monkeypatch.setattr(store, "_values", None)
    for text in ("return redis.call('GET', KEYS[1])", "return redis.pcall('GET', KEYS[1])"):
        with pytest.raises(AttributeError):
            engine.run(snippet(text), store, [b"k"], [])


def test_relock_itself_needs_no_lua() -> None:
    probe = "import sys, relock; sys.exit('lupa' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
