"""The model of a master's commands, a real server and fakeredis reply the same to the same random commands."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import fakeredis
import pytest
import redis
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot
from support.servers import Server

from relock._scripts import load
from relock.testing._channels import SHARDED
from relock.testing._master import ReplyError, VirtualMaster
from relock.testing._store import COMMANDS

EXAMPLES = settings(
    max_examples=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KEYS = (b"a", b"b", b"c")
HUGE = b"9223372036854775807"
START_US = 1_700_000_000_000_000
PTTL_SLACK_MS = 20_000  # of a real server, whose clock goes on meanwhile
COMMAND_US = 7  # of a command, so that none comes exactly when a key expires, where servers differ
Words = tuple[bytes, ...]

keys = st.sampled_from(KEYS)
# Each type has a key that is mostly its own: a command for another type always gets the same error.
strings, hashes, sets = (st.sampled_from([key] * 12 + [*KEYS]) for key in KEYS)
texts = st.sampled_from([b"x", b"y", b"z:1", b"10", b"-3", b""])
integers = st.sampled_from([b"0", b"1", b"-1", b"-2", b"3", b"100", HUGE, b"07", b"1.5", b"x", b""])
ranks = st.sampled_from([b"0", b"1", b"-1", b"-2", b"-9", b"2", b"9", b"x"])
lifetimes = st.sampled_from([b"100000", b"200000", b"500000", b"0", b"-5", b"07", b"1.5", b"x"])  # none ends meanwhile
scores = st.sampled_from([b"1", b"2", b"2.5", b"-1", b"1700000000000123", b"inf", b"-inf", b"1e3", b"x"])
bounds = st.one_of(scores, st.sampled_from([b"(1", b"(2", b"+inf", b"(inf", b"(x"]))
set_options = st.sampled_from(
    [
        (b"GET",),
        (b"NX",),
        (b"XX", b"GET"),
        (b"nx", b"get"),
        (b"KEEPTTL",),
        (b"NX", b"XX"),
        (b"GET", b"KEEPTTL"),
        (b"SOON",),
    ]
)


def words(*parts: bytes | st.SearchStrategy[Any]) -> st.SearchStrategy[Words]:
    """Return a command of these words. A part may be drawn: one word, or a tuple of words."""
    drawn = st.tuples(*[st.just(part) if isinstance(part, bytes) else part for part in parts])
    return drawn.map(flat)


def some(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(each, min_size=1, max_size=3).map(flat)


def flat(parts: Sequence[Any]) -> Words:
    return tuple(word for part in parts for word in (part if isinstance(part, tuple) else (part,)))


SHAPES: list[tuple[Any, ...]] = [
    (b"EXISTS", some(keys)),
    (b"DEL", some(keys)),
    (b"PEXPIRE", keys, st.one_of(lifetimes, st.just(HUGE))),
    (b"PTTL", keys),
    (b"TYPE", keys),
    (b"GET", strings),
    (b"SET", strings, texts),
    (b"SET", strings, texts, b"PX", lifetimes, b"GET"),
    (b"SET", strings, texts, b"PX", lifetimes, set_options),
    (b"SET", strings, texts, set_options),
    (b"INCR", strings),
    (b"HSET", hashes, some(st.tuples(texts, st.one_of(texts, integers)))),
    (b"HINCRBY", hashes, texts, integers),
    (b"HGET", hashes, texts),
    (b"HMGET", hashes, some(texts)),
    (b"HEXISTS", hashes, texts),
    (b"HKEYS", hashes),
    (b"HLEN", hashes),
    (b"HDEL", hashes, some(texts)),
    (b"ZADD", sets, st.sampled_from([(), (b"NX",), (b"nx",)]), some(st.tuples(scores, texts))),
    (b"ZREM", sets, some(texts)),
    (b"ZCARD", sets),
    (b"ZCOUNT", sets, bounds, bounds),
    (b"ZSCORE", sets, texts),
    (b"ZRANK", sets, texts),
    (b"ZRANGE", sets, ranks, ranks, st.sampled_from([(), (b"WITHSCORES",)])),
    (b"ZREVRANGE", sets, ranks, ranks, st.sampled_from([(), (b"WITHSCORES",), (b"LIMIT",)])),
    (b"ZRANGEBYSCORE", sets, bounds, bounds),
    (b"ZRANGEBYSCORE", sets, bounds, bounds, b"LIMIT", ranks, ranks),
    (b"LINDEX", b"a list that is not there", ranks),
    (b"PUBLISH", texts, texts),
    (b"PUBSUB", b"NUMSUB", some(texts)),
    (b"SPUBLISH", texts, texts),
    (b"PUBSUB", b"SHARDNUMSUB", some(texts)),
]
FILLING = [shape for shape in SHAPES if shape[0] in (b"HSET", b"ZADD")]
BEGINNING: list[Words] = [
    (b"SET", b"a", b"10"),
    (b"HSET", b"b", b"x", b"1", b"10", b"-3"),
    (b"ZADD", b"c", b"2", b"x", b"1", b"y", b"2", b"z:1"),
]
commands = st.one_of([words(*shape) for shape in SHAPES + 2 * FILLING])


def test_every_command_of_the_model_is_compared() -> None:
    """Except TIME, which `test_engine` compares, and INFO, which differs between any two servers."""
    assert {shape[0].decode() for shape in SHAPES} == set(COMMANDS) - {"TIME", "INFO"}


class Twins:
    """A model, and a server that gets the same commands; compares their replies."""

    def __init__(self, client: Any, *, has_own_words: bool = False) -> None:
        self.client = client
        self.client.response_callbacks.clear()
        self.now_us = 0
        self.model = VirtualMaster(lambda: self.now_us, "this")
        self._has_own_words = has_own_words

    def seconds(self) -> float:
        """Return the present time, in place of `time.time`."""
        return self.now_us / 1e6

    def compare(self, command: Words) -> None:
        model = attempt(lambda: self.model.read(command[0].decode(), *command[1:]))
        server = attempt(lambda: self.client.execute_command(*command))
        assert self._said(command, model) == self._said(command, server), f"{command}: {model!r}, {server!r}"
        if command[0] == b"PTTL":
            assert abs(model - server) <= PTTL_SLACK_MS

    def compare_all(self) -> None:
        """Compare all data of both."""
        for key in KEYS:
            for name in (b"TYPE", b"PTTL", b"GET", b"HKEYS"):
                self.compare((name, key))
            self.compare((b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"))
            for field in self.model.contents(key) if self.model.read("TYPE", key) == b"hash" else ():
                self.compare((b"HGET", key, field))
        assert self.model.keys() == sorted(self.client.keys("*"))

    def _said(self, command: Words, reply: Any) -> Any:
        """Return the part of a reply that must be the same: scores as numbers, and no times to live."""
        if isinstance(reply, Exception):
            return "an error" if self._has_own_words else without_first_word(reply)
        if command[0] == b"PTTL":
            return min(reply, 0)
        if command[0] == b"ZSCORE" and reply is not None:
            return float(reply)
        if command[-1] == b"WITHSCORES":
            return list(zip(reply[::2], map(float, reply[1::2]), strict=True))
        return reply


def attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (ReplyError, redis.ResponseError) as error:
        return error


def without_first_word(error: Exception) -> str:
    """Return an error's text without its first word, which redis-py removes."""
    return str(error).removeprefix("ERR ").removeprefix("OOM ")


@pytest.fixture
def client(own_server: Server) -> Iterator[Any]:
    with own_server.client(protocol=2) as client:
        yield client


@EXAMPLES
@given(steps=st.lists(st.one_of(commands, commands, st.booleans()), min_size=5, max_size=60))
def test_a_real_server_says_the_same(client: Any, steps: Sequence[Words | bool]) -> None:
    """A step that is a bool sets whether the memory is full from now on."""
    client.flushall()
    twins = Twins(client)
    twins.now_us = int(time.time() * 1e6)
    knows_shards = not isinstance(attempt(lambda: client.execute_command("SPUBLISH", "x", "x")), Exception)
    try:
        for step in [*BEGINNING, *steps]:
            if not knows_shards and not isinstance(step, bool) and {b"SPUBLISH", b"SHARDNUMSUB"}.intersection(step):
                continue  # a server before 7.0
            if isinstance(step, bool):
                client.execute_command("CONFIG", "SET", "maxmemory", "1" if step else "0")
                twins.model.is_full = step
            else:
                twins.compare(step)
        twins.compare_all()
    finally:
        client.execute_command("CONFIG", "SET", "maxmemory", "0")


def is_known_to_fakeredis(command: Words) -> bool:
    """Return False for an expiry beyond all times: fakeredis takes it, and no server does."""
    return command[0] != b"PEXPIRE" or command[-1] != HUGE


@EXAMPLES
@given(
    steps=st.lists(
        st.one_of(
            *[commands.filter(is_known_to_fakeredis)] * 3, st.integers(1, 300).map(lambda seconds: seconds * 1_001_000)
        ),
        min_size=5,
        max_size=40,
    )
)
def test_fakeredis_says_the_same_while_time_goes_by(steps: Sequence[Words | int]) -> None:
    """A step that is a number lets so many microseconds pass."""
    twins = Twins(fakeredis.FakeRedis(protocol=2), has_own_words=True)
    twins.now_us = START_US
    with mock.patch("time.time", new=twins.seconds):
        for step in [*BEGINNING, *steps]:
            if isinstance(step, int):
                twins.now_us += step
            else:
                twins.compare(step)
                twins.now_us += COMMAND_US
        twins.compare_all()


# Cases that no comparison shows: edges of time, and further acts of a master ------------------------------------------


@pytest.fixture
def clock() -> list[int]:
    return [START_US]


@pytest.fixture
def master(clock: list[int]) -> VirtualMaster:
    return VirtualMaster(lambda: clock[0], "first")


def test_a_key_is_there_until_its_last_millisecond_is_over(master: VirtualMaster, clock: list[int]) -> None:
    master.read("SET", b"a", b"x", b"PX", b"100")
    clock[0] += 100_999
    assert (master.read("PTTL", b"a"), master.read("GET", b"a")) == (0, b"x")
    clock[0] += 1
    assert (master.read("PTTL", b"a"), master.read("GET", b"a"), master.keys()) == (-2, None, [])


def test_a_key_comes_back_if_a_clock_is_set_back_before_any_look_at_the_key(
    master: VirtualMaster, clock: list[int]
) -> None:
    master.read("SET", b"a", b"x", b"PX", b"100")
    clock[0] += 10**6
    clock[0] -= 10**6
    assert master.read("GET", b"a") == b"x"


def test_a_snapshot_is_what_was_there_without_what_has_expired(master: VirtualMaster, clock: list[int]) -> None:
    master.read("HSET", b"a", b"x", b"1")
    master.read("ZADD", b"b", b"1", b"x")
    master.read("SET", b"c", b"x", b"PX", b"100")
    snapshot = master.snapshot()
    master.read("HSET", b"a", b"x", b"2")
    master.read("ZADD", b"b", b"2", b"y")
    for incarnation in ("second", "third"):
        master.restart(incarnation, snapshot)
        assert master.incarnation == incarnation
        assert master.keys() == [b"a", b"b", b"c"]
        assert (master.contents(b"a"), master.contents(b"b")) == ({b"x": b"1"}, [(b"x", 1.0)])
        master.read("HSET", b"a", b"x", b"3")
        master.read("ZREM", b"b", b"x")
    clock[0] += 10**6
    master.restart("fourth", snapshot)
    assert master.keys() == [b"a", b"b"]


def test_a_restart_and_a_flush_forget(master: VirtualMaster) -> None:
    heard: list[bytes] = []
    master.subscribe(b"news", lambda _channel, message: heard.append(message))
    master.read("SET", b"a", b"x")
    master.flush()
    assert (master.keys(), master.incarnation, master.read("PUBLISH", b"news", b"1")) == ([], "first", 1)
    master.read("SET", b"a", b"x")
    master.restart("second")
    assert (master.keys(), master.incarnation, master.read("PUBLISH", b"news", b"2")) == ([], "second", 0)
    assert heard == [b"1"]


def test_publish_counts_subscribers_and_a_subscriber_may_ask_the_master(master: VirtualMaster) -> None:
    heard: list[Any] = []

    def first(channel: bytes, message: bytes) -> None:
        heard.append((channel, message, master.read("TYPE", b"a")))

    def second(_channel: bytes, message: bytes) -> None:
        heard.append(message)

    master.subscribe(b"news", first)
    master.subscribe(b"news", second)
    assert master.read("PUBLISH", b"news", b"1") == 2
    master.unsubscribe(b"news", first)
    master.unsubscribe(b"news", first)
    assert master.read("PUBLISH", b"news", b"2") == 1
    master.unsubscribe(b"news", second)
    assert master.read("PUBLISH", b"news", b"3") == 0
    assert heard == [(b"news", b"1", b"none"), b"1", b"2"]


# A node of a Cluster --------------------------------------------------------------------------------------------------

HERE, THERE = b"{a}", b"{b}"  # keys of two slots
NODE_SCRIPT = load("release").on_cluster


@pytest.fixture
def node(master: VirtualMaster) -> VirtualMaster:
    """Return a node that has the slot of `HERE` only."""
    master.refusal_of = lambda slot, _: "" if slot == key_slot(HERE) else f"MOVED {slot} 10.0.0.2:7001"
    return master


def test_a_node_sends_a_script_on_whose_keys_another_node_has(node: VirtualMaster) -> None:
    assert node.slot_of([HERE, HERE + b":queue"]) == key_slot(HERE)
    with pytest.raises(ReplyError, match=rf"^MOVED {key_slot(THERE)} 10\.0\.0\.2:7001$"):
        node.run("release", [THERE], [])
    with pytest.raises(ReplyError, match=r"^CROSSSLOT"):
        node.run("release", [HERE, THERE], [])


@pytest.mark.parametrize(
    "command",
    ["'SPUBLISH', '{b}', 'x'", "'SET', '{b}', 'x'", "'SET', '{b}', 'x', 'KEEPTTL'", "'GET', '{b}'", "'DEL', '{b}'"],
)
def test_a_script_uses_no_key_and_no_sharded_channel_of_another_slot(node: VirtualMaster, command: str) -> None:
    source = f"redis.call('SET', KEYS[1], 'x') return redis.call({command})".encode()
    with pytest.raises(ReplyError, match="attempted to access keys that do not hash to the same slot"):
        node.run(evolve(NODE_SCRIPT, source=source, sha=command), [HERE], [])
    assert node.keys() == [HERE], "what it wrote before stays"
    assert node.contents(THERE) is None, "only scripts are checked"


def test_sharded_channels_have_subscribers_and_messages_of_their_own(master: VirtualMaster) -> None:
    heard: list[Any] = []
    master.subscribe(b"news", lambda _channel, message: heard.append((b"message", message)))
    master.subscribe(b"news", lambda _channel, message: heard.append((b"smessage", message)), SHARDED)
    assert master.read("PUBSUB", b"SHARDNUMSUB", b"news", b"none") == [b"news", 1, b"none", 0]
    assert (master.read("PUBLISH", b"news", b"1"), master.read("SPUBLISH", b"news", b"2")) == (1, 1)
    assert heard == [(b"message", b"1"), (b"smessage", b"2")]
    master.restart("second")
    assert (master.read("PUBLISH", b"news", b"3"), master.read("SPUBLISH", b"news", b"4")) == (0, 0)


def test_slots_move_with_their_keys_and_expiries(node: VirtualMaster, clock: list[int]) -> None:
    other = VirtualMaster(lambda: clock[0] + 5_000_000, "other")
    for key in (HERE, THERE):
        node.read("SET", key, b"x", b"PX", b"100")
    node.give_slots({key_slot(THERE)}, other)
    assert (node.keys(), other.keys(), other.read("PTTL", THERE)) == ([HERE], [THERE], 100)
