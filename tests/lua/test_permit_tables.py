"""The scripts of the semaphore as tables: a state, a call, the reply, the new state. On fakeredis and real servers.

Times are relative to the master's clock. A name says what its owner wants: ``#<permits>/<limit>``.
"""

from contextlib import closing
from functools import partial
from random import Random
from typing import Any

import pytest
import redis
from attrs import define
from support.script_master import (
    FAR,
    LEASE_MS,
    QUEUE_MS,
    SHORT_MS,
    TOKEN_MS,
    USUAL,
    LeasedMaster,
    check_header,
    check_repeats,
)
from support.script_master import run_virtual as run
from support.script_walk import CLIENTS, Walk
from support.servers import Server
from support.usual_cases import NOW_US, check_commands, check_usual_case, draw_oddities, draw_queue, heard_by, reply_of

from relock._keys import permit_keys
from relock._scripts import load, script_names
from relock.testing._master import VirtualMaster

KEYS = permit_keys("lock", "a")
NAMES = [name for name in script_names() if name.startswith("permit_")]


def who(client: str, n: int = 1, limit: int = 2, *, uuid: str = "1", takes_ms: int | None = None) -> bytes:
    """Return the name of a waiter, or of its hold."""
    mark = "" if takes_ms is None else f"@{takes_ms}"
    return f"{client}:{uuid}#{n}/{limit}{mark}".encode()


ME, YOU, THEY = who("me"), who("you"), who("they")
RELEASER = who("me", uuid="0123456789abcdef0123")  # its uuid ends with the 16 characters that name the next hold
TAKES = who("you", takes_ms=3_000)
HANDED = TAKES + b"~456789abcdef0123.1.0"


@define
class Master(LeasedMaster):
    KEYS = KEYS
    DEFAULTS = USUAL | {"owner": ME, "slot": -1, "value": 0, "client": "me", "cap": 1, "ttl_ms": LEASE_MS}


# slots and limits -----------------------------------------------------------------------------------------------------

TAKE = pytest.mark.parametrize("take", ["acquire", "enqueue"])


@TAKE
def test_a_permit_has_a_slot_a_lease_and_the_clock_as_token(master: Master, take: str) -> None:
    before = master.now_us()
    status, now_us, token, slot = master.call(take)
    assert (status, token, slot) == (b"granted", now_us, 0)
    assert before <= now_us <= master.now_us()
    assert master.holders() == {ME: 0}
    assert master.redis.zscore(KEYS.leases, ME) == now_us // 1000 + 1 + LEASE_MS
    for key in (KEYS.permits, KEYS.leases):
        assert LEASE_MS - SHORT_MS < master.redis.pttl(key) <= LEASE_MS
    assert LEASE_MS < master.redis.pttl(KEYS.token) <= TOKEN_MS
    assert set(master.redis.scan_iter()) == {KEYS.permits, KEYS.leases, KEYS.token}


@TAKE
def test_a_permit_has_the_lowest_free_slot(master: Master, take: str) -> None:
    master.hold(who("x", limit=4), 0)
    master.hold(who("y", limit=4), 2)
    assert master.call(take, owner=who("me", limit=4))[3] == 1
    assert master.call(take, owner=who("you", limit=4))[3] == 3
    assert master.call(take, owner=who("they", limit=4))[0] in (b"refused", b"queued")


@TAKE
@pytest.mark.parametrize(
    ("held", "slot", "free"),
    [([], 1, None), ([0], 1, None), ([1], 1, b"0 2"), ([1], 3, b"0 2"), ([0, 1, 2], 1, b""), ([0, 2], 0, b"1")],
    ids=str,
)
def test_a_certain_slot_is_taken_if_it_is_free_and_below_the_limit(
    master: Master, take: str, held: list[int], slot: int, free: bytes | None
) -> None:
    for taken in held:
        master.hold(who(f"x{taken}", limit=3), taken)
    reply = master.call(take, owner=who("me", limit=3), slot=slot)
    if free is None:
        assert (reply[0], reply[3]) == (b"granted", slot)
    else:
        assert (reply[0] in (b"refused", b"queued"), reply[-1]) == (True, free)
        assert (reply[2] == 0) == (len(held) < 3), "only if the number would do, it is the slot alone"
        assert (reply[4] == b"") == (len(held) < 3)


def test_no_more_than_64_free_slots_are_named(master: Master) -> None:
    master.hold(who("x", limit=1000), 1)
    free = master.call("acquire", owner=who("me", limit=1000), slot=1)[5]
    assert free.split() == [b"%d" % slot for slot in range(66) if slot != 1][:64]


@TAKE
def test_a_refusal_says_when_the_permits_fit_and_whose_lease_ends_first(master: Master, take: str) -> None:
    first, last = who("x", limit=2), who("y", limit=2)
    master.hold(last, 0, 20_000)
    master.hold(first, 1, 10_000)
    reply = master.call(take, slot=-1)
    assert 5_000 < reply[2] <= 10_000
    assert (reply[3], reply[4], reply[-1]) == (0, first, b"")
    reply = master.call(take, owner=who("you", n=2))
    assert 15_000 < reply[2] <= 20_000, "both leases must end"
    assert reply[4] == first


def test_several_permits_have_no_slot(master: Master) -> None:
    assert master.call("acquire", owner=who("me", n=3, limit=4))[3] == -1
    assert master.holders() == {who("me", n=3, limit=4): -3}
    assert master.call("acquire", owner=who("you", n=2, limit=4))[0] == b"refused"
    assert master.call("acquire", owner=who("you", n=1, limit=4))[3] == 0


def test_each_request_goes_by_its_own_limit(master: Master) -> None:
    """Old and new code may have different limits while a deployment goes on."""
    for number in range(2):
        master.hold(who(f"x{number}", limit=3), number)
    assert master.call("acquire", owner=who("me", limit=2))[0] == b"refused"
    assert master.call("acquire", owner=who("me", limit=3))[3] == 2
    assert master.call("acquire", owner=who("you", limit=3))[0] == b"refused"


@TAKE
@pytest.mark.parametrize(("cap", "number"), [(3, 3), (1, 1), (0, 0), (b"many", 2), (b"-1", 2)])
def test_an_operators_limit_stands_above_that_of_the_code(master: Master, take: str, cap: Any, number: int) -> None:
    master.redis.set(KEYS.limit, cap, px=10_000)
    replies = [master.call(take, owner=who(f"x{one}")) for one in range(4)]
    assert [reply[0] for reply in replies].count(b"granted") == number
    assert replies[-1][2] > 0
    if cap == 0:
        assert replies[0][2] <= 10_000, "the limit of the code holds again then"
    master.redis.delete(KEYS.limit)
    assert len(master.holders()) == number


def test_a_limit_of_another_type_is_none(master: Master) -> None:
    master.redis.hset(KEYS.limit, "a", 1)
    assert [master.call("acquire", owner=who(f"x{one}"))[0] for one in range(3)] == [b"granted", b"granted", b"refused"]


def test_a_limit_is_set_ended_and_wakes_the_first(master: Master) -> None:
    master.hold(THEY, 0)
    master.wait(YOU)
    master.listen("you")
    assert master.call("override", cap=7, not_after_us=1)[0] == b"void"
    assert master.call("override", cap=7)[0] == b"set"
    assert 0 < master.redis.pttl(KEYS.limit) <= LEASE_MS
    assert master.redis.get(KEYS.limit) == b"7"
    assert master.call("override", ttl_ms=0)[0] == b"set"
    assert not master.redis.exists(KEYS.limit)
    assert master.told() == [b"wake 1#1/2 a"] * 2
    assert master.holders() == {THEY: 0}


# leases ---------------------------------------------------------------------------------------------------------------

REAPS = ["acquire", "enqueue", "release", "give_back", "leave", "heal", "heartbeat"]


@pytest.mark.parametrize("name", REAPS)
def test_a_lease_that_has_ended_is_over_for_every_script(master: Master, name: str) -> None:
    dead = who("x")
    master.hold(dead, 0, -1)
    master.hold(THEY, 1)
    master.wait(YOU)
    master.call(name, *([5, ME] if name == "heartbeat" else []))
    assert dead not in master.holders()
    assert THEY in master.holders()


def test_a_lease_that_has_ended_is_not_extended_though_nobody_has_removed_it(master: Master) -> None:
    master.hold(ME, 0, 0)
    assert master.call("extend")[0] == b"absent"
    master.hold(ME, 0, 1_000)
    assert master.call("extend")[0] == b"extended"


def test_extend_renews_and_never_shortens(master: Master) -> None:
    master.call("acquire", lease_ms=1_000, token_ms=2_000)
    now_us = master.call("extend")[1]
    end_ms = now_us // 1000 + 1 + LEASE_MS
    assert master.redis.zscore(KEYS.leases, ME) == end_ms
    assert master.call("extend", lease_ms=1_000, token_ms=2_000)[0] == b"extended"
    assert master.redis.zscore(KEYS.leases, ME) == end_ms
    for key, ttl_ms in ((KEYS.permits, LEASE_MS), (KEYS.leases, LEASE_MS), (KEYS.token, TOKEN_MS)):
        assert ttl_ms - SHORT_MS < master.redis.pttl(key) <= ttl_ms


def test_the_keys_live_as_long_as_the_latest_lease(master: Master) -> None:
    master.call("acquire", owner=YOU)
    master.call("acquire", lease_ms=1_000, token_ms=2_000)
    for key in (KEYS.permits, KEYS.leases, KEYS.token):
        assert master.redis.pttl(key) > LEASE_MS - SHORT_MS
    assert master.redis.zscore(KEYS.leases, ME) < master.redis.zscore(KEYS.leases, YOU)


@pytest.mark.parametrize("name", REAPS)
def test_fields_without_a_lease_go_and_leases_without_a_field(master: Master, name: str) -> None:
    master.hold(THEY, 0)
    master.redis.hset(KEYS.permits, mapping={who("x"): 1, who("y"): 5})
    master.redis.zadd(KEYS.leases, {who("z"): FAR})
    master.wait(YOU)
    master.call(name, *([5, ME] if name == "heartbeat" else []))
    assert THEY in master.holders()
    assert not {who("x"), who("y"), who("z")} & set(master.holders())


def test_leases_that_were_deleted_are_the_end_of_their_permits(master: Master) -> None:
    master.call("acquire")
    master.call("acquire", owner=YOU)
    master.redis.delete(KEYS.leases)
    assert master.call("extend")[0] == b"absent"
    assert master.call("acquire", owner=THEY)[3] == 0
    assert master.holders() == {THEY: 0}


def test_nothing_but_taking_and_healing_creates_a_permit(master: Master) -> None:
    for name in ("extend", "release", "give_back", "leave", "heartbeat", "override"):
        master.call(name, *([5, ME] if name == "heartbeat" else []))
    assert master.holders() == {}


# repeated, late and foreign -------------------------------------------------------------------------------------------


@TAKE
@pytest.mark.parametrize(("n", "slot"), [(1, 0), (2, -1)])
def test_a_repeated_request_finds_its_permit(master: Master, take: str, n: int, slot: int) -> None:
    owner = who("me", n=n)
    first = master.call(take, owner=owner)
    master.wait(YOU)
    master.listen("you")
    second = master.call(take, owner=owner, slot=-1, lease_ms=1_000)
    assert (second[0], first[3], second[3]) == (b"granted", slot, slot)
    assert second[2] > first[2], "the last token may be another owner's"
    assert len(master.holders()) == 1
    assert master.redis.zscore(KEYS.leases, owner) > master.now_us() // 1000 + 5_000


def test_a_repeated_release_ends_nothing_more(master: Master) -> None:
    master.hold(RELEASER, 0)
    master.hold(THEY, 1)
    master.wait(TAKES)
    master.listen("you")
    assert master.call("release", owner=RELEASER)[0] == b"released"
    assert master.call("release", owner=RELEASER)[0] == b"absent"
    assert master.holders() == {THEY: 1, HANDED: 0}


@pytest.mark.parametrize("name", ["acquire", "enqueue", "extend", "heal", "heartbeat", "override"])
def test_what_comes_after_its_not_after_time_does_nothing(master: Master, name: str) -> None:
    master.hold(ME, 0, -1)
    master.wait(YOU)
    late_us = master.now_us() - 1
    assert master.call(name, *([5, ME] if name == "heartbeat" else []), not_after_us=late_us)[0] == b"void"
    assert (master.holders(), master.queue()) == ({ME: 0}, [YOU])
    assert not master.redis.exists(KEYS.limit)


@pytest.mark.parametrize("key", [KEYS.permits, KEYS.leases])
def test_a_key_of_another_type_lets_nobody_in_and_stays(master: Master, key: bytes) -> None:
    master.redis.set(key, "x", px=LEASE_MS)
    for take in ("acquire", "enqueue"):
        reply = master.call(take, slot=0)
        assert reply[0] in (b"refused", b"queued")
        assert 0 < reply[2] <= LEASE_MS
        assert (reply[4], reply[-1]) == (b"", b"")
    for name in ("release", "give_back", "extend", "leave"):
        assert master.call(name)[0] == (b"left" if name == "leave" and master.queue() else b"absent")
    assert master.call("heal")[0] == b"refused"
    assert 0 < master.call("heartbeat", 5, ME)[2] <= LEASE_MS
    assert master.call("inspect")[4] == []
    assert master.redis.get(key) == b"x"


def test_a_hash_with_more_fields_than_permits_can_be_is_not_read(master: Master) -> None:
    master.redis.hset(KEYS.permits, mapping=dict.fromkeys(range(3_000), 1))
    status, _, pttl_ms, _, holder, _ = master.call("acquire", slot=0)
    assert (status, pttl_ms, holder) == (b"refused", -1, b"")
    assert master.redis.hlen(KEYS.permits) == 3_000


def test_an_owner_without_a_mark_gets_nothing(master: Master) -> None:
    assert master.call("acquire", owner=b"me:1")[0] == b"refused"
    assert master.call("enqueue", owner=b"me:1")[0] == b"queued"


@pytest.mark.parametrize("name", ["release", "extend", "give_back", "override"])
def test_permits_end_and_leases_last_on_a_master_that_is_out_of_memory(name: str) -> None:
    master = VirtualMaster(lambda: 1_700_000_000_000_000, "this")
    script = load(f"permit_{name}")
    run_virtual(master, "acquire")
    run_virtual(master, "enqueue", owner=who("x"))
    run_virtual(master, "enqueue", owner=YOU)
    master.is_full = True
    if name == "override":
        with pytest.raises(Exception, match="OOM"):
            run_virtual(master, name)
        assert run_virtual(master, name, ttl_ms=0)[0] == b"set"
    else:
        assert run_virtual(master, name, ticket=5)[0] in {status.encode() for status in script.statuses} - {b"absent"}


@pytest.mark.parametrize("name", REAPS[:4])
def test_a_replica_gives_and_ends_nothing(name: str) -> None:
    master = VirtualMaster(lambda: 1_700_000_000_000_000, "this")
    run_virtual(master, "acquire", owner=YOU)
    run_virtual(master, "acquire", owner=THEY)
    master.is_replica = True
    with pytest.raises(Exception, match="READONLY"):
        run_virtual(master, name)


def run_virtual(master: VirtualMaster, name: str, *rest: Any, **other: Any) -> list[Any]:
    return run(master, KEYS, f"permit_{name}", *rest, **{**Master.DEFAULTS, **other})


@pytest.mark.parametrize(("ahead_us", "given"), [(1_000, True), (0, False), (-1, False), (600_000, False)])
def test_tokens_rise_and_may_be_proposed(ahead_us: int, *, given: bool) -> None:
    now_us = 1_700_000_000_000_000
    master = VirtualMaster(lambda: now_us, "this")
    first = run_virtual(master, "acquire", proposal=now_us + ahead_us)[2]
    assert first == now_us + (ahead_us if given else 0)
    tokens = [run_virtual(master, "acquire", owner=who(f"x{one}", limit=9))[2] for one in range(4)]
    assert [first, *tokens] == sorted({first, *tokens})
    run_virtual(master, "release", fence=now_us + 10**9)
    assert run_virtual(master, "acquire", owner=who("z", limit=9))[2] == now_us + 10**9 + 1


def test_a_master_without_a_vote_gives_nothing(real: Master) -> None:
    for name in ("acquire", "enqueue", "heal"):
        assert real.call(name, guarded=True, guard_ms=1_000)[0] == b"no_vote"
    assert real.holders() == {}
    real.hold(RELEASER, 0)
    real.wait(TAKES)
    real.listen("you")
    real.call("release", owner=RELEASER, guarded=True, guard_ms=1_000)
    assert (real.holders(), real.told()) == ({}, [b"wake 1#1/2@3000 a"])


@TAKE
def test_a_master_with_a_vote_gives_and_takes_the_larger_guard(real: Master, take: str) -> None:
    marker = {"incarnation": real.incarnation, "no_vote_until_us": 1, "guard_ms": 1_000}
    real.redis.hset(KEYS.master, mapping=marker)
    assert real.call(take, guarded=True, guard_ms=1_000)[0] == b"granted"
    assert real.call(take, owner=YOU, guarded=True, guard_ms=2_000)[0] == b"granted"
    assert real.redis.hget(KEYS.master, "guard_ms") == b"2000"


@TAKE
@pytest.mark.parametrize("name", [b"~1.7", b"~0123456789abcdef.7.0"])
def test_a_waiter_that_has_a_hold_gets_no_other_and_is_told_its_name(master: Master, take: str, name: bytes) -> None:
    """The hold is an earlier attempt, or a grant whose message was lost."""
    master.hold(THEY, 0, 5_000)
    master.hold(ME + name, 1)
    reply = master.call(take, owner=ME + b"~2.7")
    assert (reply[0] in (b"refused", b"queued"), reply[4], reply[-1]) == (True, ME + name, b"")
    assert LEASE_MS - SHORT_MS < reply[2] <= LEASE_MS
    assert master.holders() == {THEY: 0, ME + name: 1}


@pytest.mark.parametrize("name", [b"", b"~1.7", b"~0123456789abcdef.7.0"])
def test_a_waiter_that_was_given_a_permit_gets_no_place(master: Master, name: bytes) -> None:
    """A request after the grant writes no place: nobody would leave it. An attempt's hold is given back soon."""
    master.hold(THEY, 0, 5_000)
    master.hold(ME + name, 1)
    is_attempt = name == b"~1.7"
    reply = master.call("enqueue", owner=ME + (b"~2.7" if is_attempt else b""), ticket=7)
    assert reply[0] == (b"queued" if name else b"granted")
    assert master.queue() == ([ME] if is_attempt else [])
    if name:
        assert reply[3:6] == [0, ME + name, 7]


# turns ----------------------------------------------------------------------------------------------------------------


def test_enqueue_waits_at_the_end_and_keeps_its_ticket(master: Master) -> None:
    for number in range(2):
        master.hold(who(f"x{number}"), number)
    status, now_us, pttl_ms, ahead, holder, ticket, free = master.call("enqueue", owner=YOU)
    assert (status, ahead, holder, ticket, free) == (b"queued", 0, who("x0"), now_us, b"")
    assert 0 < pttl_ms <= LEASE_MS
    assert master.call("enqueue")[3] == 1
    assert master.call("enqueue", owner=YOU)[5] == ticket
    assert master.queue() == [YOU, ME]
    proposed = master.call("enqueue", owner=THEY, ticket=-1)
    assert (proposed[0], proposed[3], proposed[5] > ticket) == (b"proposed", 2, True)
    assert master.queue() == [YOU, ME]
    assert master.call("enqueue", owner=THEY, ticket=ticket - 1)[3] == 0
    for key in (KEYS.queue, KEYS.waiters):
        assert QUEUE_MS - SHORT_MS < master.redis.pttl(key) <= QUEUE_MS


def test_a_ticket_is_above_those_of_all_heirs(master: Master) -> None:
    """An heir may give its permit back, and return to its place."""
    ahead = master.now_us() + 10**9
    master.hold(who("x") + b"~0123.%d.0" % ahead, 0)
    master.hold(who("y") + b"~4.7", 1)
    assert master.call("enqueue")[5] == ahead + 1


@TAKE
def test_nobody_passes_a_waiter_that_listens_also_where_its_large_request_does_not_fit(
    master: Master, take: str
) -> None:
    large = who("you", n=2)
    master.hold(THEY, 0)
    master.wait(large)
    master.listen("you")
    reply = master.call(take)
    assert (reply[0] in (b"refused", b"queued"), reply[2], reply[4]) == (True, 0, b"")
    assert master.told() == [b"wake 1#2/2 a"]
    assert master.call(take, fair=0)[0] == b"granted"
    assert master.holders() == {THEY: 0, ME: 1}


def test_waiters_that_nobody_listens_for_are_passed(master: Master) -> None:
    master.wait(YOU, THEY)
    assert master.call("acquire")[0] == b"granted"
    assert master.queue() == [YOU, THEY]


def test_a_waiter_takes_its_permit_in_its_turn(master: Master) -> None:
    master.wait(ME, YOU)
    master.listen("me", "you")
    assert master.call("enqueue", owner=YOU)[0] == b"queued"
    assert master.call("enqueue", owner=ME + b"~1.7")[0] == b"granted"
    assert (master.holders(), master.queue()) == ({ME + b"~1.7": 0}, [YOU])


@TAKE
def test_who_takes_a_permit_while_more_are_free_wakes_the_next(master: Master, take: str) -> None:
    first, second = who("you", limit=3), who("they", limit=3)
    master.wait(first, second)
    master.listen("you", "they")
    assert master.call(take, owner=first)[0] == b"granted"
    assert master.told() == [b"wake 1#1/3 a"]
    master.wait(who("x", limit=3))
    master.hold(who("z", limit=3), 1)
    assert master.call(take, owner=second)[0] == b"granted"
    assert master.told() == [], "none is free"


def test_a_release_of_many_serves_all_that_fit_one_after_the_other(master: Master) -> None:
    waiters = [who(client, limit=3, takes_ms=3_000) for client in ("you", "they", "x", "y")]
    master.hold(who("me", n=3, limit=3), -3)
    master.wait(*waiters)
    master.listen("you", "they", "x", "y")
    master.call("release", owner=who("me", n=3, limit=3))
    for waiter in waiters[:3]:
        assert master.told() == [b"wake 1#1/3@3000 a"]
        assert master.call("enqueue", owner=waiter)[0] == b"granted"
    assert master.told() == []
    assert sorted(master.holders().values()) == [0, 1, 2]
    assert master.queue() == waiters[3:]


def test_a_release_gives_its_slot_to_the_first(master: Master) -> None:
    master.hold(THEY, 1)
    master.hold(RELEASER, 0)
    master.wait(TAKES, who("x"))
    master.listen("you", "x")
    status, now_us = master.call("release", owner=RELEASER)
    assert status == b"released"
    assert master.holders() == {THEY: 1, HANDED: 0}
    assert master.redis.zscore(KEYS.leases, HANDED) == now_us // 1000 + 1 + 3_000
    assert master.redis.pttl(KEYS.permits) > 3_000, "no lease is shortened"
    assert master.redis.get(KEYS.token) == b"%d" % now_us
    assert master.told() == [b"grant 1#1/2@3000 456789abcdef0123.1.0 %d %d 3000 this a" % (now_us, now_us)]
    assert master.queue() == [who("x")]


def test_a_release_that_gives_its_slot_wakes_the_next_where_more_are_free(master: Master) -> None:
    master.hold(RELEASER, 1)
    master.wait(TAKES, who("x"))
    master.listen("you", "x")
    master.call("release", owner=RELEASER)
    assert master.holders() == {TAKES + b"~456789abcdef0123.1.1": 1}
    grant, wake = master.told()
    assert (grant.split()[0], wake) == (b"grant", b"wake 1#1/2 a")


@pytest.mark.parametrize(
    ("first", "how"),
    [
        pytest.param(YOU, {}, id="takes none"),
        pytest.param(who("you", n=2, limit=3, takes_ms=3_000), {}, id="wants two"),
        pytest.param(who("you", limit=1, takes_ms=3_000), {}, id="the slot is not below its limit"),
        pytest.param(who("you", takes_ms=9_999_999_999_999), {}, id="no such lease"),
        pytest.param(TAKES, {"hand": 0}, id="not to be handed"),
        pytest.param(TAKES, {"not_after_us": 1}, id="too late"),
    ],
)
def test_a_release_only_wakes(master: Master, first: bytes, how: dict[str, Any]) -> None:
    owner = who("me", uuid="0123456789abcdef0123", limit=3)
    master.hold(owner, 1)
    master.wait(first)
    master.listen("you")
    master.call("release", owner=owner, **how)
    assert master.holders() == {}
    assert master.told() == [b"wake %b a" % first.partition(b":")[2]]
    assert master.queue() == [first]


def test_a_release_gives_nothing_where_its_slot_is_taken_or_too_many_are_used(master: Master) -> None:
    """A healing, or a larger limit that has ended, may have left more permits than the limit."""
    master.hold(RELEASER, 0)
    master.hold(THEY, 0)
    master.wait(TAKES)
    master.listen("you")
    master.call("release", owner=RELEASER)
    assert master.holders() == {THEY: 0}
    assert master.told() == [b"wake 1#1/2@3000 a"]
    master.hold(RELEASER, 1)
    master.hold(who("x"), 2)
    master.call("release", owner=RELEASER)
    assert (master.holders(), master.told()) == ({THEY: 0, who("x"): 2}, [])


def test_a_release_only_wakes_where_nobody_counts_who_listens(master: Master) -> None:
    master.is_on_cluster = True
    master.hold(RELEASER, 0)
    master.wait(TAKES)
    master.listen("you")
    master.call("release", owner=RELEASER)
    assert (master.holders(), master.told()) == ({}, [b"wake 1#1/2@3000 a"])


def test_a_release_past_a_dead_waiter_gives_its_slot_to_the_next(master: Master) -> None:
    master.hold(RELEASER, 0)
    master.wait(who("dead", takes_ms=3_000), TAKES)
    master.listen("you")
    now_us = master.call("release", owner=RELEASER)[1]
    assert master.holders() == {TAKES + b"~456789abcdef0123.2.0": 0}
    assert int(master.redis.get(KEYS.token)) > now_us, "each message has a token of its own"
    assert master.redis.pttl(KEYS.token) > 3_000


def test_a_release_past_a_dead_waiter_gives_nothing_beyond_the_limit_of_the_next(master: Master) -> None:
    owner = who("me", uuid="0123456789abcdef0123", limit=3)
    for slot, holder in enumerate((owner, who("x", limit=3), who("y", limit=3))):
        master.hold(holder, slot)
    master.wait(who("dead", limit=3, takes_ms=3_000), TAKES)
    master.listen("you")
    master.call("release", owner=owner)
    assert set(master.holders().values()) == {1, 2}
    assert master.told() == [b"wake 1#1/2@3000 a"]


def test_a_release_of_a_name_that_is_not_there_ends_its_place_and_tells_its_token(master: Master) -> None:
    master.hold(THEY, 0)
    master.wait(ME)
    assert master.call("release", owner=ME + b"~1", fence=FAR)[0] == b"absent"
    assert (master.holders(), master.queue()) == ({THEY: 0}, [])
    assert master.redis.get(KEYS.token) == b"%d" % FAR


def test_a_message_that_is_refused_gives_nothing_and_ends_the_permit(server: Server) -> None:
    server.cli("ACL", "SETUSER", "mute", "reset", "on", ">x", "~*", "+@all", "-publish", "allchannels")
    with closing(redis.Redis.from_url(server.url)) as admin, closing(redis.Redis.from_url(server.url)) as client:
        admin.flushall()
        client.auth("x", "mute")
        master = Master(client)
        master.hold(RELEASER, 0)
        master.wait(TAKES, YOU)
        assert master.call("release", owner=RELEASER)[0] == b"released"
        assert (master.holders(), master.queue()) == ({}, [TAKES, YOU])
        assert master.call("acquire")[0] == b"refused", "it is the turn of the first waiter that has a deadline"
        assert master.call("heartbeat", 1, TAKES, client="you")[3] == TAKES
    server.cli("ACL", "DELUSER", "mute")


def test_give_back_ends_an_attempt_and_puts_its_waiter_back(master: Master) -> None:
    attempt = YOU + b"~1.1"
    master.hold(attempt, 0)
    master.hold(THEY, 1)
    master.wait(ME)
    master.listen("me")
    assert master.call("give_back", owner=attempt, ticket=5)[0] == b"released"
    assert (master.holders(), master.queue()) == ({THEY: 1}, [ME, YOU])
    assert master.told() == [b"wake 1#1/2 a"], "the one that comes before"
    master.hold(attempt, 0)
    master.call("give_back", owner=attempt, ticket=-1)
    assert master.told() == [], "nobody comes before"
    assert master.call("give_back", owner=attempt, ticket=5)[0] == b"absent"
    master.hold(attempt, 0)
    master.redis.zrem(KEYS.queue, YOU)
    master.redis.zrem(KEYS.waiters, YOU)
    assert master.call("give_back", owner=attempt, ticket=5, not_after_us=1)[0] == b"released"
    assert master.queue() == [ME]


def test_leave_passes_the_turn_on_where_a_permit_is_free(master: Master) -> None:
    large = who("me", n=2)
    master.hold(THEY, 0)
    master.wait(large, YOU)
    master.listen("you")
    assert master.call("leave", owner=large)[0] == b"left"
    assert master.told() == [b"wake 1#1/2 a"]
    master.hold(who("x"), 1)
    assert master.call("leave", owner=large)[0] == b"absent"
    assert master.told() == [], "none is free"
    assert master.call("leave", owner=YOU)[0] == b"left"
    assert master.queue() == []


def test_heal_gives_a_permit_back_with_its_slot_and_its_token(master: Master) -> None:
    for _ in range(2):
        assert master.call("heal", value=1, fence=FAR)[0] == b"healed"
        assert master.holders() == {ME: 1}
        assert master.redis.get(KEYS.token) == b"%d" % FAR
    assert master.call("heal", owner=YOU, value=1)[0] == b"refused"
    for number in (2, 3):
        assert master.call("heal", owner=who(f"x{number}"), value=number)[0] == b"healed", "the number is not judged"
    assert master.call("heal", owner=who("y", n=2), value=-2)[0] == b"healed"
    assert master.holders() == {ME: 1, who("x2"): 2, who("x3"): 3, who("y", n=2): -2}


@pytest.mark.parametrize(
    ("held", "waiters", "turn", "fits"),
    [
        pytest.param([], [ME], ME, True, id="free"),
        pytest.param([0, 1], [ME], b"", False, id="all used"),
        pytest.param([0], [who("me", n=2)], b"", False, id="too large"),
        pytest.param([0], [who("dead", n=2), ME], ME, False, id="behind a dead one that is too large"),
        pytest.param([0], [YOU, ME], b"", True, id="another's turn"),
    ],
)
def test_heartbeat_says_whose_turn_it_is(
    master: Master, held: list[int], waiters: list[bytes], turn: bytes, *, fits: bool
) -> None:
    for slot in held:
        master.hold(who(f"x{slot}"), slot)
    master.wait(*waiters)
    master.listen("me", "you")
    mine = [item for place, name in enumerate(waiters) if name.startswith(b"me:") for item in (place + 1, name)]
    status, _, pttl_ms, found, head = master.call("heartbeat", *mine)
    assert (status, found, head) == (b"tended", turn, waiters[0])
    assert (pttl_ms == 0) == fits
    assert pttl_ms <= LEASE_MS
    assert len(master.told()) == (len(held) < 2)


def test_heartbeat_restores_places_and_tells_of_a_permit_that_was_given(master: Master) -> None:
    master.hold(HANDED, 0)
    master.wait(THEY, left_ms=-5)
    lost = who("you", uuid="2")
    reply = master.call("heartbeat", 1, TAKES, 7, lost, client="you")
    assert (reply[3], reply[4]) == (TAKES, lost)
    assert master.queue() == [lost]
    assert master.redis.zscore(KEYS.queue, lost) == 7


def test_inspect_leaves_dead_leases_out_and_writes_nothing(master: Master) -> None:
    master.hold(who("dead"), 0, 0)
    master.hold(YOU, 1, 9_000)
    master.hold(who("me", n=2), -2, 5_000)
    master.wait(THEY, who("x"))
    master.redis.set(KEYS.token, 77)
    before = [master.redis.hgetall(KEYS.permits), master.redis.zrange(KEYS.leases, 0, -1)]
    status, _, override, token, holders, queue = master.call("inspect", limit=1)
    assert (status, override, token, queue) == (b"info", -1, 77, [THEY, b"1"])
    assert holders[:2] + holders[3:5] == [who("me", n=2), -2, YOU, 1]
    assert 0 < holders[2] <= 5_000 < holders[5] <= 9_000
    assert [master.redis.hgetall(KEYS.permits), master.redis.zrange(KEYS.leases, 0, -1)] == before
    master.redis.set(KEYS.limit, 0)
    assert master.call("inspect")[2] == 0


def test_nothing_stays_when_all_permits_have_ended(real: Master) -> None:
    real.listen("they")
    for owner in (ME, YOU, who("they", takes_ms=3_000), who("x")):
        real.call("enqueue", owner=owner, guarded=True, guard_ms=0)
    immortal = [key for key in real.redis.scan_iter() if real.redis.ttl(key) == -1]
    assert immortal == [KEYS.master]
    for owner in (ME, YOU, who("x"), *real.holders()):
        real.call("release", owner=owner, guarded=True, guard_ms=0)
    for owner in real.holders():
        real.call("release", owner=owner, guarded=True, guard_ms=0)
    assert set(real.redis.scan_iter()) == {KEYS.token, KEYS.master}


# the usual cases ------------------------------------------------------------------------------------------------------

COMMANDS = {
    "acquire": {"time": 1, "exists": 1, "hset": 1, "pexpire": 2, "zadd": 1, "set": 1},
    "release": {"time": 1, "hget": 1, "hdel": 1, "zrem": 1, "exists": 1},
}


@pytest.mark.every_server
@pytest.mark.parametrize("name", COMMANDS)
def test_the_usual_case_asks_no_more_of_a_server(server: Server, name: str) -> None:
    check_commands(server, Master, name, COMMANDS[name])


GENERAL = {  # of the scripts without their usual cases: the line that leads there, and one that never does
    "permit_acquire": (b"if most and slot + 1", b"if false and slot + 1"),
    "permit_release": (b"if ended == 1 and is_gone == 1", b"if false and is_gone == 1"),
    "permit_give_back": (b"if overdue == 0 and", b"if false and"),
    "permit_leave": (b"if left and redis.pcall('ZREM', waiters", b"if false and redis.pcall('ZREM', waiters"),
}
SEED = 20261127
OWNERS = [ME, YOU, THEY, who("me", 2, 3), TAKES, TAKES + b"~1.7", who("they", 1, 1, takes_ms=400)]


def outcome(script: Any, draw: Random) -> tuple[Any, ...]:
    """Return the reply, the messages and the state after a drawn call in a drawn state."""
    master, heard = heard_by(draw.sample(CLIENTS, draw.randint(0, 3)))
    holders = draw.sample(OWNERS, draw.choice([0, 0, 1, 1, 2, 3]))
    for slot, owner in enumerate(holders):
        master.read("HSET", KEYS.permits, owner, slot)
        if draw.random() < 0.95:
            master.read("ZADD", KEYS.leases, NOW_US // 1000 + draw.choice([-1, 300, 4_000]), owner)
    draw_queue(master, KEYS, draw, OWNERS[:5])
    if draw.random() < 0.2:
        master.read("SET", KEYS.limit, draw.choice([b"0", b"1", b"3"]), b"PX", 4_000)
    draw_oddities(master, KEYS, draw)
    chosen = Master.DEFAULTS | {
        "owner": draw.choice(holders if holders and draw.random() < 0.7 else OWNERS),
        "slot": draw.choice([-1, -1, 0, 1, 2]),
        "fence": draw.choice([0, 0, NOW_US + 5]),
        "ticket": draw.choice([0, 1, 5]),
        "fair": draw.choice([0, 1]),
        "hand": draw.choice([0, 1]),
    }
    reply = reply_of(master, script, KEYS, chosen, not_after_us=draw.choice([FAR, FAR, NOW_US]))
    keys = (KEYS.queue, KEYS.waiters, KEYS.token)
    return reply, heard, living(master), [(master.contents(key), master.read("PTTL", key)) for key in keys]


def living(master: VirtualMaster) -> list[Any]:
    """Return the permits whose leases run, and how long their keys live: only general cases remove the others."""
    ends, fields = master.contents(KEYS.leases), master.contents(KEYS.permits)
    if isinstance(ends, bytes) or isinstance(fields, bytes):
        return [ends, fields]
    found = [
        (owner, fields[owner], end) for owner, end in ends or [] if end > NOW_US // 1000 and owner in (fields or {})
    ]
    return found and [*found, master.read("PTTL", KEYS.permits), master.read("PTTL", KEYS.leases)]


@pytest.mark.parametrize("name", GENERAL)
def test_the_usual_case_does_what_the_general_one_does(name: str) -> None:
    check_usual_case(name, *GENERAL[name], outcome, seed=SEED)


# headers --------------------------------------------------------------------------------------------------------------

MINE = who("me", uuid="0123456789abcdef") + b"~1"
HELD, WAITING = [[], [(MINE, 0)], [(MINE, 0), (THEY, 1)], [(THEY, 0)]], [[], [TAKES, THEY], [THEY]]
STATES = [(held, waiting) for held in HELD for waiting in WAITING]


def put(master: Master, state: tuple[Any, Any]) -> None:
    for owner, slot in state[0]:
        master.hold(owner, slot, SHORT_MS)
    master.wait(*state[1])
    master.redis.set(KEYS.token, 5)
    for key in (KEYS.token, KEYS.permits, KEYS.leases):
        master.redis.pexpire(key, SHORT_MS)


def call_with(master: Master, name: str, fence: int) -> None:
    """Call the script of this name with usual arguments."""
    rest = [7, who("me", uuid="2")] if name == "permit_heartbeat" else []
    owner = THEY if name == "permit_leave" else MINE
    master.call_script(name, *rest, owner=owner, ticket=7, fence=fence, guarded=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_writes_and_publishes_what_its_header_says_and_nothing_else(real: Master, name: str) -> None:
    check_header(real, name, STATES, partial(put, real), partial(call_with, real, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_that_arrives_twice_changes_nothing_more(real: Master, name: str) -> None:
    """Lifetimes may change, the time without a vote, and the last token."""
    check_repeats(real, STATES, partial(put, real), partial(call_with, real, name), may_change=("master", "token"))


# a walk ---------------------------------------------------------------------------------------------------------------


@define
class PermitWalk(Walk):
    """A walk of callers of a semaphore; an operator changes the limit."""

    KEYS = KEYS
    DEFAULTS = Master.DEFAULTS

    most: int = 0

    def used(self) -> int:
        return sum(max(1, -int(value)) for value in self.running().values())

    def cap(self, name: bytes) -> int:
        override = self.master.contents(KEYS.limit)
        return limit_of(name) if override is None else int(override)

    def new_waiter(self, client: str, uuid: str) -> bytes:
        limit, n = self.draw.choice([2, 3, 3, 3]), self.draw.choice([1, 1, 1, 2])
        return who(client, n, limit, uuid=uuid, takes_ms=self.draw.choice([None, 1_500]))

    def granted(self, owner: bytes, token: int, lease_ms: int) -> None:
        super().granted(owner, token, lease_ms)
        self.most = max(self.most, self.cap(owner))
        assert self.used() <= self.cap(owner)

    def do(self, deed: str) -> None:
        if deed == "override":
            self.call("override", cap=self.draw.choice([1, 2, 4]), ttl_ms=self.draw.choice([0, 0, 1_000]))
        else:
            super().do(deed)

    def check(self) -> None:
        super().check()
        running = self.running()
        slots = [int(value) for value in running.values() if int(value) >= 0]
        assert len(slots) == len(set(slots)), "each slot has one owner"
        assert self.used() <= max(4, self.most)
        assert all(owner in running for owner, until_us in self.holding.items() if until_us > self.now_us)
        first, queue = self.queue()[:1], self.master.contents(KEYS.queue) or []
        if first and first[0] == queue[0][0]:
            assert self.used() + n_of(first[0]) > self.cap(first[0]), "nobody waits whose turn it is and who fits"


def n_of(name: bytes) -> int:
    return int(name.partition(b"#")[2].partition(b"/")[0])


def limit_of(name: bytes) -> int:
    return int(name.partition(b"/")[2].partition(b"@")[0].partition(b"~")[0])


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_a_walk_keeps_slots_limits_turns_and_tokens(seed: int) -> None:
    walk = PermitWalk(Random(seed))
    print(f"seed {seed}")
    for _ in range(400):
        walk.step("override")
        walk.check()
    assert len(walk.tokens) > 50
