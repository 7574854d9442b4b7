"""The usual case of the scripts that take, hand over, keep and end a hold: which questions it asks, and where it ends.

Tests in which the clock matters use a virtual master, whose clock they set.
"""

from contextlib import closing
from random import Random
from typing import Any

import pytest
import redis
from support.replies import as_list
from support.servers import Server
from support.usual_cases import NOW_US, counted, heard_by, reply_of, without_usual_case

from relock._keys import lock_keys
from relock._scripts import Script, load
from relock.testing._master import VirtualMaster

KEYS = lock_keys("lock", "a")
ME, YOU = b"me:1", b"you:1"
FAR = 9 * 10**15
GUARD_MS = 900
OWN: dict[str, Any] = {"owner": ME, "count": 1, "lease_ms": 5_000, "token_ms": 6_000, "fair": 1, "fence": 0, "hand": 1}
OWN |= {"proposal": 0, "ticket": 0, "alive_ms": 7_000, "queue_ms": 30_000}
TAKES = {"time": 1, "exists": 1, "hset": 1, "pexpire": 1, "set": 1}
QUEUES = {"time": 1, "hlen": 1, "hkeys": 1, "zcount": 1, "zadd": 2}
QUEUES |= {"zrank": 1, "pttl": 1, "pexpire": 2}
HANDS = {"time": 1, "hdel": 1, "exists": 1, "zcount": 1, "zrange": 1}
HANDS |= {"set": 1, "publish": 1, "hset": 1, "pexpire": 1, "zrem": 2}
COMMANDS = {
    "acquire": TAKES,
    "acquire, guarded": {**TAKES, "hmget": 1},
    "count": {"time": 1, "hexists": 1, "hset": 1},
    "extend": {"time": 1, "hexists": 1, "pttl": 2, "pexpire": 2},
    "release": {"time": 1, "hdel": 1, "exists": 1},
    "enqueue": QUEUES,
    "enqueue, behind others": QUEUES,
    "release, hands over": HANDS,
}


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now_us: int = NOW_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


def call(master: VirtualMaster, name: str, *, not_after_us: int = FAR, **other: Any) -> list[Any]:
    script = load(name)
    own = {**OWN, **other}
    made = script.call(KEYS, **{argument: own[argument] for argument in script.own_arguments})
    reply: list[Any] = as_list(master.execute(made, not_after_us, b"", 0))
    return reply


@pytest.mark.every_server
@pytest.mark.parametrize("case", COMMANDS)
def test_the_usual_case_asks_no_more_of_a_server(server: Server, case: str) -> None:
    name, _, state = case.partition(", ")
    guarded = state == "guarded"
    with closing(redis.Redis.from_url(server.url)) as client, closing(subscriber(client)) as waiter:
        client.flushall()
        info = client.info()
        incarnation = f"{info['run_id']}:{info['master_replid']}"
        marker: dict[Any, Any] = {"incarnation": incarnation, "no_vote_until_us": NOW_US, "guard_ms": GUARD_MS}
        client.hset(KEYS.master, mapping=marker)
        if name != "acquire":
            run(client, "acquire", "", [])
        if state in ("behind others", "hands over"):
            waiter.subscribe("lock:client:you")
            waiter.get_message(timeout=5)
            run(client, "enqueue", "", [], owner=b"you:1@3000")
        with counted(client) as calls:
            seconds, micros = client.time()
            socket = f"{incarnation}?{int(seconds):d}{int(micros):06d}" if guarded else ""
            owner = b"they:1@3000" if name == "enqueue" else ME
            reply = run(client, name, socket, [KEYS.master] if guarded else [], owner=owner)
    assert isinstance(reply, bytes) or name == "enqueue", reply
    calls["time"] -= 1
    assert calls == COMMANDS[case]


def subscriber(client: Any) -> Any:
    return client.pubsub()


def run(client: Any, name: str, socket: str, marker: list[bytes], **other: Any) -> Any:
    script = load(name)
    given = {**OWN, "not_after_us": FAR, "incarnation": socket, "guard_ms": GUARD_MS, **other}
    if name == "count":
        given["lease_ms"] = 0
    if name == "extend":
        given |= {"lease_ms": 9_000, "token_ms": 10_000}
    keys = [getattr(KEYS, key.name) for key in script.keys if not key.optional] + marker
    return client.eval(
        script.source, len(keys), *keys, *[given[one.name] for one in script.arguments if one.name != "..."]
    )


def test_two_grants_of_one_microsecond_have_tokens_of_their_own() -> None:
    master = VirtualMaster(Clock(), "this")
    tokens = []
    for _ in range(3):
        tokens.append(call(master, "acquire")[2])
        call(master, "release")
    assert tokens == [NOW_US, NOW_US + 1, NOW_US + 2]
    assert master.contents(KEYS.token) == b"%d" % (NOW_US + 2)


def test_tokens_rise_though_the_clock_was_set_back_and_are_remembered_until_it_has_caught_up() -> None:
    clock = Clock()
    master = VirtualMaster(clock, "this")
    call(master, "acquire")
    call(master, "release")
    clock.now_us -= 60_000_000
    assert call(master, "acquire") == [b"granted", clock.now_us, NOW_US + 1]
    assert master.read("PTTL", KEYS.token) > 60_000 + OWN["lease_ms"]


@pytest.mark.parametrize(
    ("ahead_us", "given"),
    [(-(10**9), False), (-1, False), (0, True), (1, True), (500_000, True), (500_001, False), (10**9, False)],
)
def test_a_proposed_token_is_given_where_it_lies_a_little_above_the_clock(ahead_us: int, given: bool) -> None:
    master = VirtualMaster(Clock(), "this")
    token = NOW_US + ahead_us if given else NOW_US
    assert call(master, "acquire", proposal=NOW_US + ahead_us) == [b"granted", NOW_US, token]
    assert master.contents(KEYS.token) == b"%d" % token
    ahead_ms = max(0, token - NOW_US) / 1000
    assert master.read("PTTL", KEYS.token) >= OWN["lease_ms"] + ahead_ms + 500


def test_masters_whose_clocks_differ_give_the_token_that_is_proposed_to_all() -> None:
    masters = [VirtualMaster(Clock(NOW_US + skew_us), "this") for skew_us in (0, 400, -90_000)]
    for proposal in (NOW_US + 1_000, NOW_US + 1_700):
        replies = [call(master, "acquire", proposal=proposal) for master in masters]
        assert [reply[2] for reply in replies] == [proposal] * 3
        for master in masters:
            call(master, "release")


@pytest.mark.parametrize("proposal", [0, NOW_US + 800, NOW_US + 1_000])
def test_a_token_is_above_one_that_another_caller_has_proposed(proposal: int) -> None:
    master = VirtualMaster(Clock(), "this")
    call(master, "acquire", proposal=NOW_US + 1_000)
    call(master, "release")
    assert call(master, "acquire", proposal=proposal)[2] == NOW_US + 1_001
    assert master.contents(KEYS.token) == b"%d" % (NOW_US + 1_001)


@pytest.mark.parametrize("now_us", [5_123_456, 999_999_999_999_999, NOW_US, NOW_US + 7, NOW_US + 999_999])
@pytest.mark.parametrize("name", ["acquire", "count", "extend"])
def test_what_comes_after_its_not_after_time_does_nothing_whatever_the_clock_says(name: str, now_us: int) -> None:
    """A clock from before 2001 has fewer digits than a not-after time."""
    master = VirtualMaster(Clock(now_us), "this")
    if name != "acquire":
        call(master, "acquire")
    before = master.snapshot()
    assert call(master, name, not_after_us=now_us - 1, lease_ms=9_000) == [b"void", now_us]
    assert master.snapshot() == before
    assert call(master, name, not_after_us=now_us)[0] in (b"granted", b"counted", b"extended")


@pytest.mark.parametrize(
    ("now_us", "last", "token"),
    [
        (NOW_US, b"999999999999999", NOW_US),
        (NOW_US, b"99999999999999999", NOW_US),
        (NOW_US, b"", NOW_US),
        (999_999_999_999_999, b"1000000000000007", 1_000_000_000_000_008),
    ],
)
def test_a_last_token_of_another_length_than_the_clock_is_compared_as_a_number(
    now_us: int, last: bytes, token: int
) -> None:
    master = VirtualMaster(Clock(now_us), "this")
    master.read("SET", KEYS.token, last)
    assert call(master, "acquire") == [b"granted", now_us, token]


def acquire_guarded(master: VirtualMaster, voted_us: int, **marker: bytes) -> list[Any]:
    """Acquire on a socket that was opened to ``run:run``, and on which a vote was written at `voted_us`."""
    ended = {"incarnation": b"run:run", "no_vote_until_us": b"%d" % NOW_US, "guard_ms": b"%d" % GUARD_MS}
    for field, value in {**ended, **marker}.items():
        master.read("HSET", KEYS.master, field.encode(), value)
    script = load("acquire")
    made = script.call(KEYS, **{argument: OWN[argument] for argument in script.own_arguments})
    reply: list[Any] = as_list(master.execute(made, FAR, b"run:run?%016d" % voted_us, GUARD_MS))
    return reply


@pytest.mark.parametrize(
    "marker",
    [
        {"incarnation": b"run:sun"},
        {"incarnation": b"run:runs"},
        {"incarnation": b"un:run?"},
        {"incarnation": b""},
        {"no_vote_until_us": b"%d" % (NOW_US + 1)},
        {"no_vote_until_us": b"soon"},
        {"guard_ms": b"800"},
        {"guard_ms": b"901"},
    ],
    ids=str,
)
def test_one_look_at_the_marker_is_enough_only_where_all_of_it_is_as_expected(marker: dict[str, bytes]) -> None:
    """The server still has the socket's incarnation, and a vote was written a moment ago."""
    master = VirtualMaster(Clock(), "run")
    assert acquire_guarded(master, NOW_US - 1_000, **marker)[0] == b"no_vote"
    assert master.contents(KEYS.lock) is None
    assert acquire_guarded(master, NOW_US - 1_000)[0] == b"granted"


def test_a_marker_without_a_time_is_no_obstacle() -> None:
    master = VirtualMaster(Clock(), "run")
    master.read("HSET", KEYS.master, b"incarnation", b"run:run", b"guard_ms", b"%d" % GUARD_MS)
    script = load("acquire")
    made = script.call(KEYS, **{argument: OWN[argument] for argument in script.own_arguments})
    assert as_list(master.execute(made, FAR, b"run:run?%016d" % NOW_US, GUARD_MS))[0] == b"granted"


@pytest.mark.parametrize(("quiet_us", "is_asked"), [(0, False), (1_000, False), (1_001, True), (-1, True)])
def test_only_a_vote_of_just_now_proves_what_the_socket_leads_to(quiet_us: int, *, is_asked: bool) -> None:
    """The server followed another one, and still has its old marker."""
    master = VirtualMaster(Clock(), "run")
    master.have_data_of("other", "run")
    assert acquire_guarded(master, NOW_US - quiet_us)[0] == (b"no_vote" if is_asked else b"granted")


def test_a_renewal_never_shortens_what_is_left_of_the_token() -> None:
    """Tokens may be ahead of the clock, and are remembered until the clock has caught up."""
    master = VirtualMaster(Clock(), "this")
    call(master, "acquire")
    master.read("PEXPIRE", KEYS.token, 60_000)
    assert call(master, "extend", lease_ms=9_000, token_ms=10_000)[0] == b"extended"
    assert master.read("PTTL", KEYS.token) == 60_000
    assert master.read("PTTL", KEYS.lock) == 9_000


def test_a_count_is_written_on_a_master_that_is_out_of_memory() -> None:
    master = VirtualMaster(Clock(), "this")
    call(master, "acquire")
    master.is_full = True
    assert call(master, "count", count=2, lease_ms=0)[0] == b"counted"
    assert master.contents(KEYS.lock) == {ME: b"2"}


def test_a_note_is_added_on_a_master_that_is_out_of_memory() -> None:
    master = VirtualMaster(Clock(), "this")
    call(master, "acquire")
    master.is_full = True
    made = load("extend").call(KEYS, "why", owner=ME, lease_ms=9_000, token_ms=10_000)
    assert as_list(master.execute(made, FAR, b"", 0))[0] == b"extended"
    assert master.contents(KEYS.lock) == {ME: b"1 why"}


def test_a_count_leaves_a_lease_without_end_on_a_master_that_is_out_of_memory() -> None:
    """Leases have no end where keys were copied from another server without their times to live."""
    master = VirtualMaster(Clock(), "this")
    master.read("HSET", KEYS.lock, ME, 1)
    master.is_full = True
    assert call(master, "count", count=2, lease_ms=0)[0] == b"counted"
    assert master.read("PTTL", KEYS.lock) == -1
    assert master.contents(KEYS.lock) == {ME: b"2"}


@pytest.mark.parametrize("name", ["acquire", "count", "extend", "release"])
def test_a_replica_gives_keeps_and_ends_nothing(name: str) -> None:
    """Replicas may have a copy of the hold for as long as the lease."""
    master = VirtualMaster(Clock(), "this")
    if name != "acquire":
        call(master, "acquire")
    master.is_replica = True
    for lease_ms in (0, 9_000):
        with pytest.raises(Exception, match="READONLY"):
            call(master, name, lease_ms=lease_ms)


SEED = 20261123
STATES = 4_000
GENERAL = {  # of the scripts without their usual cases: the line that leads there, and one that never does
    "release": (b"if ended == 1 then\n  --", b"if false then\n  --"),
    "enqueue": (b"if has_vote and redis.pcall('HLEN'", b"if false and redis.pcall('HLEN'"),
    "give_back": (b"if overdue == 0 and", b"if false and"),
    "leave": (b"if left and redis.pcall('ZREM', waiters", b"if false and redis.pcall('ZREM', waiters"),
    "heartbeat": (b"if holders and #ARGV", b"if false and #ARGV"),
}
WAITERS = [
    b"me:1@3000",
    b"you:1@3000",
    b"you:6@3000",
    b"you:2",
    b"they:1@5000",
    b"they:2@9000",
    b"odd",
    b"no one:1",
    b"you:3#2@3000",
]
WAITERS += [b"you:4&3000", b"you:5@9999999999999", b"x" * 600 + b":1@3000"]
OWNERS = [ME, b"me:1@3000", b"me:1@3000~0123456789abcdef0.1699999999000000", b"you:1@3000~1"]
OWNERS += [b"they:1@3000~0123456789abcdef0.%d" % (NOW_US + 3), b"you:0123456789&3000", b"you:0123456789#2@3000"]
PLACES = [b"1", b"1699999999000001", b"1699999999000002", b"%d" % NOW_US, b"%d" % (NOW_US + 5), b"0.5", b"inf", b"-inf"]
TOKENS = [b"1699999999000000", b"%d" % NOW_US, b"%d" % (NOW_US + 9), b"7", b"", b"x", b"%d" % 2**60]


def drawn(draw: Random) -> tuple[VirtualMaster, list[bytes], list[bytes]]:
    """Return a master in a state that may be odd, its holders, and the messages published there."""
    master, heard = heard_by(draw.sample(["me", "you", "they"], draw.choice([0, 1, 2, 3, 3])), Clock())
    holders = draw.sample(OWNERS, draw.choice([0, 1, 1, 1, 1, 1, 2]))
    for owner in holders:
        master.read("HSET", KEYS.lock, owner, 1)
        master.read("PEXPIRE", KEYS.lock, 5_000)
    odds = draw.choice([0.0, 0.0, 0.3])
    for waiter in draw.sample(WAITERS, draw.choice([0, 1, 1, 2, 3, len(WAITERS)])):
        master.read("ZADD", KEYS.queue, draw.choice(PLACES if draw.random() < odds else PLACES[:3]), waiter)
        if draw.random() >= odds / 2:
            left_ms = -2 if draw.random() < odds / 2 else 7_000
            master.read("ZADD", KEYS.waiters, NOW_US // 1000 + left_ms, waiter)
    for key in (KEYS.queue, KEYS.waiters):
        master.read("PEXPIRE", key, OWN["queue_ms"])
        if draw.random() < 0.05:
            master.read("SET", key, b"another program's")
    if draw.random() < 0.7:
        master.read("SET", KEYS.token, draw.choice(TOKENS), b"PX", 20_000)
    if draw.random() < 0.05:
        master.read("SET", KEYS.lock, b"another program's")
    master.is_full = draw.random() < 0.1
    return master, holders, heard


def outcome(script: Script, draw: Random) -> tuple[Any, ...]:
    """Return the reply, the messages and the state after a drawn call in a drawn state."""
    master, holders, heard = drawn(draw)
    owners = holders if holders and draw.random() < 0.7 else [*OWNERS, *WAITERS[:4]]
    chosen = {**OWN, "owner": draw.choice(owners), "hand": 0 if draw.random() < 0.1 else 1}
    chosen |= {
        "fence": draw.choice([0, 0, 0, NOW_US - 5, NOW_US, NOW_US + 5, 7]),
        "ticket": draw.choice(
            [0, 0, 0, -1, -1 - NOW_US, -5 - NOW_US, -NOW_US, 7 - NOW_US, -600_000 - NOW_US, NOW_US - 7, NOW_US + 3, 5]
        ),
    }
    chosen["client"] = draw.choice(["me", "you"])
    pairs = [(draw.choice(PLACES[:5]), draw.choice([*owners, *WAITERS])) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    rest = [item for pair in pairs for item in pair] if script.name == "heartbeat" else []
    reply = reply_of(master, script, KEYS, chosen, *rest, not_after_us=draw.choice([FAR, FAR, FAR, NOW_US - 1]))
    left = [(master.contents(key), master.read("PTTL", key)) for key in (KEYS.lock, KEYS.queue, KEYS.waiters)]
    return reply, heard, left, master.contents(KEYS.token), master.read("PTTL", KEYS.token)


@pytest.mark.parametrize("name", GENERAL)
def test_the_usual_case_does_what_the_general_one_does(name: str) -> None:
    """Tokens may differ: larger if the first waiter was told in vain, and kept for longer."""
    usual, without = load(name), without_usual_case(name, *GENERAL[name])
    differ = 0
    for number in range(STATES):
        reply, heard, left, token, kept_ms = outcome(usual, Random(SEED + number))
        other_reply, other_heard, other_left, other_token, other_kept_ms = outcome(without, Random(SEED + number))
        told, other_told = [without_token(one) for one in heard], [without_token(one) for one in other_heard]
        assert (reply, told, left) == (other_reply, other_told, other_left), SEED + number
        if token != other_token:
            differ += 1
            assert int(token) == int(other_token) + 1, SEED + number
        assert kept_ms >= other_kept_ms, SEED + number
        tokens = [int(message.split(b" ")[3]) for message in heard if message.startswith(b"grant")]
        assert not tokens or tokens[-1] == int(token), SEED + number
    assert differ < STATES / 4


def without_token(message: bytes) -> bytes:
    words = message.split(b" ")
    return b" ".join(words[:3] + words[4:]) if words[0] == b"grant" else message
