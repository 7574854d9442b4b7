"""The scripts of the latch as tables: a state, a call, the reply, the new state. On fakeredis and real servers."""

from functools import partial
from typing import Any

import pytest
import redis
from attrs import define
from support.script_master import (
    ALIVE_MS,
    FAR,
    LEASE_MS,
    SHORT_MS,
    ScriptMaster,
    check_header,
    check_repeats,
)

from relock._keys import latch_keys
from relock._scripts import load

KEYS = latch_keys("lock", "a}b")
TTL_MS, SLACK_MS = 30_000, 5_000
WAITERS = KEYS.waiters
ME, YOU, GONE = b"me:1!", b"you.1:2!", b"gone:3!"
DEFAULTS = {"party": b"x", "parties": 2, "ttl_ms": TTL_MS, "waiter": b"", "alive_ms": ALIVE_MS, "most": 1000}


@define
class Master(ScriptMaster):
    KEYS = KEYS

    def call(self, name: str, **arguments: Any) -> list[Any]:
        script = load(f"latch_{name}")
        found = self.run(script, {**DEFAULTS, **arguments}, (), guarded=False)
        assert script.shapes[found[0]] == [*map(type, found)]
        return found

    def arrive(self, party: bytes, parties: int = 2, **arguments: Any) -> list[Any]:
        return self.call("arrive", party=party, parties=parties, **arguments)

    def look(self, **arguments: Any) -> list[Any]:
        reply = self.call("look", **arguments)
        return [*reply[2:4], sorted(reply[4])]

    def fields(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.redis.hgetall(KEYS.latch)
        return found


# Arriving -------------------------------------------------------------------------------------------------------------


def test_an_arrival_is_kept_with_its_name_and_the_number_of_parties(master: Master) -> None:
    before = master.now_us()
    status, now_us, count = master.arrive(b"x")
    assert (status, count) == (b"arrived", 1)
    assert before <= now_us <= master.now_us()
    assert master.fields() == {b"": b"2", b"x": b"1"}
    assert TTL_MS - SLACK_MS < master.redis.pttl(KEYS.latch) <= TTL_MS
    assert set(master.redis.scan_iter()) == {KEYS.latch}


@pytest.mark.parametrize("party", [b"x", b"a b", b"client:0123", b"\xff\xfe", b"}{", b"1", b"n" * 10_000])
def test_a_party_counts_once(master: Master, party: bytes) -> None:
    assert [master.arrive(party, 3)[2] for _ in range(3)] == [1, 1, 1]
    assert master.arrive(b"y", 3)[2] == 2
    assert master.look() == [2, 3, sorted([party, b"y"])]


def test_an_arrival_that_comes_too_late_does_nothing(master: Master) -> None:
    assert master.arrive(b"x", not_after_us=1)[0] == b"void"
    assert master.look() == [0, 0, []]
    assert not master.redis.keys()


def test_another_number_of_parties_is_reported_and_nothing_is_done(master: Master) -> None:
    master.arrive(b"x", 2)
    master.redis.pexpire(KEYS.latch, 1_000)
    for parties in (1, 3, 20):
        reply = master.arrive(b"y", parties)
        assert (reply[0], reply[2]) == (b"differs", 2)
    assert master.fields() == {b"": b"2", b"x": b"1"}
    assert master.redis.pttl(KEYS.latch) <= 1_000


def test_an_open_latch_keeps_no_more_names_but_lives_on(master: Master) -> None:
    assert [master.arrive(b"%d" % number)[2] for number in range(2)] == [1, 2]
    master.redis.pexpire(KEYS.latch, 1_000)
    for late in (b"7", b"8", b"0"):
        assert master.arrive(late)[2] == 2
    assert master.look() == [2, 2, [b"0", b"1"]]
    assert master.redis.pttl(KEYS.latch) > TTL_MS - SLACK_MS, "the time counts from the last arrival"


def test_a_thousand_parties_are_all_named(master: Master) -> None:
    for number in range(1_005):
        master.arrive(b"%d" % number, 1_000)
    count, parties, names = master.look()
    assert (count, parties, len(names)) == (1_000, 1_000, 1_000)


def test_no_arrival_shortens_the_life_of_the_others(master: Master) -> None:
    master.arrive(b"x", ttl_ms=10 * TTL_MS)
    master.arrive(b"y", ttl_ms=1)
    assert master.redis.pttl(KEYS.latch) > 9 * TTL_MS


# Waking ---------------------------------------------------------------------------------------------------------------


def test_the_arrival_that_opens_the_latch_wakes_all_who_wait_and_live(master: Master) -> None:
    master.listen("me", "you.1", "gone")
    for waiter in (ME, YOU, GONE):
        master.look(waiter=waiter)
    master.redis.zadd(WAITERS, {GONE: master.now_us() // 1000 - 1, b"no name": 2**50})
    master.arrive(b"x")
    assert master.told() == []
    master.arrive(b"y")
    assert sorted(master.told()) == [b"wake 1! a}b", b"wake 2! a}b"]


def test_a_repeated_arrival_at_an_open_latch_wakes_them_once_more(master: Master) -> None:
    """The message that was published when it opened may be lost."""
    master.listen("me")
    master.arrive(b"x", 1)
    master.look(waiter=ME)
    master.arrive(b"x", 1)
    assert master.told() == [b"wake 1! a}b"]


# Looking --------------------------------------------------------------------------------------------------------------


def test_a_look_without_a_waiter_writes_nothing(master: Master) -> None:
    assert master.look() == [0, 0, []]
    assert not master.redis.keys()


def test_a_waiter_is_kept_for_as_long_as_it_counts_as_alive(master: Master) -> None:
    master.redis.zadd(WAITERS, {GONE: master.now_us() // 1000 - 1})
    status, now_us, *_ = master.call("look", waiter=ME)
    assert status == b"seen"
    assert master.redis.zrange(WAITERS, 0, -1, withscores=True) == [(ME, round(now_us / 1000 + ALIVE_MS))]
    assert ALIVE_MS - SLACK_MS < master.redis.pttl(WAITERS) <= ALIVE_MS


def test_names_are_left_out_where_there_are_more_than_the_caller_wants(master: Master) -> None:
    master.arrive(b"x", 3)
    master.arrive(b"y", 3)
    assert master.look(most=2) == [2, 3, [b"x", b"y"]]
    assert master.look(most=1) == [2, 3, []]
    assert master.look(most=0) == [2, 3, []]


# What other programs have written -------------------------------------------------------------------------------------


def test_a_key_of_another_type_is_an_error_and_stays_as_it_is(master: Master) -> None:
    master.redis.set(KEYS.latch, "theirs")
    for call in (partial(master.arrive, b"x"), partial(master.look, waiter=ME)):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
    assert master.redis.get(KEYS.latch) == b"theirs"
    assert master.redis.pttl(KEYS.latch) == -1


def test_fields_of_another_programs_hash_are_no_arrivals(master: Master) -> None:
    master.redis.hset(KEYS.latch, mapping={"a": 1, "b": 1, "c": 1})
    assert master.look() == [0, 0, []]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        master.arrive(b"x")
    assert set(master.fields()) == {b"a", b"b", b"c"}


def test_a_number_of_parties_that_is_none_differs(master: Master) -> None:
    master.redis.hset(KEYS.latch, mapping={"": "theirs", "x": 1})
    assert master.arrive(b"y")[2] == 0
    assert master.look() == [1, 0, [b"x"]]


def test_a_waiter_without_a_place_still_looks(master: Master) -> None:
    master.redis.set(WAITERS, "theirs")
    assert master.look(waiter=ME) == [0, 0, []]
    master.arrive(b"x", 1)
    assert master.look(waiter=ME) == [1, 1, [b"x"]]
    assert (master.redis.get(WAITERS), master.redis.pttl(WAITERS)) == (b"theirs", -1)


def test_a_master_without_memory_refuses_an_arrival_and_lets_waiters_look(real: Master) -> None:
    real.arrive(b"x")
    real.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError, match=r"OOM|out of memory|used memory"):
            real.arrive(b"y")
        assert real.look(waiter=ME) == [1, 2, [b"x"]]
        assert real.redis.zrange(WAITERS, 0, -1) == [ME]
    finally:
        real.redis.config_set("maxmemory", 0)
    assert real.arrive(b"y", not_after_us=FAR)[2] == 2


# headers --------------------------------------------------------------------------------------------------------------

THEY = b"they:4!"
STATES = [(arrived, waiting) for arrived in ([], [b"x"], [b"y"], [b"y", b"z"]) for waiting in ([], [THEY], [ME, THEY])]
CALLS: dict[str, dict[str, Any]] = {"latch_arrive": {"ttl_ms": LEASE_MS}, "latch_look": {"waiter": ME}}


def put(master: Master, state: tuple[list[bytes], list[bytes]]) -> None:
    for party in state[0]:  # before the waiters, so that this wakes none of them
        master.arrive(party)
    for waiter in state[1]:
        master.look(waiter=waiter)
    for key in (KEYS.latch, WAITERS):
        master.redis.pexpire(key, SHORT_MS)


def call_with(master: Master, name: str, _fence: int) -> None:
    master.call(name.removeprefix("latch_"), **CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_a_script_writes_and_publishes_what_its_header_says_and_nothing_else(real: Master, name: str) -> None:
    check_header(real, name, STATES, partial(put, real), partial(call_with, real, name))


@pytest.mark.parametrize("name", CALLS)
def test_a_script_that_arrives_twice_changes_nothing_more(real: Master, name: str) -> None:
    check_repeats(real, STATES, partial(put, real), partial(call_with, real, name), may_change=())
