"""The scripts of a lock's readers as tables: a state, a call, the reply, the new state. On fakeredis and real servers.

A reader's name ends with ``&``, and beside the writer that is the same owner with a part of that writer's name. The
scripts for writers are here where they meet readers; `test_tables` has the rest of them.
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
from support.script_walk import CLIENTS, Walk, client_of
from support.script_walk import LEASE_MS as WALK_LEASE_MS
from support.servers import Server
from support.usual_cases import NOW_US, check_commands, check_usual_case, draw_oddities, draw_queue, heard_by, reply_of

from relock._keys import LockKeys, lock_keys, read_keys
from relock._scripts import load, script_names
from relock.testing._master import VirtualMaster

KEYS = read_keys("lock", "a")
ALL_KEYS = [KEYS.lock, KEYS.queue, KEYS.waiters, KEYS.token, KEYS.leases]
NAMES = [name for name in script_names() if name.startswith("read_")]


def who(client: str, uuid: str = "1", beside: str = "") -> bytes:
    """Return the name of a reader's waiter, or of its hold."""
    return f"{client}:{uuid}&{beside}".encode()


ME, YOU, THEY = who("me"), who("you"), who("they")
WRITER, OTHER = b"me:7@3000", b"you:7"
OWN = who("me", beside="7")  # the same owner as WRITER
TAKES = b"you:9@3000"  # a writer's waiter that takes grants
RELEASER = who("me", "0123456789abcdef0123")  # its uuid ends with the 16 characters that name the next hold
HANDED = TAKES + b"~456789abcdef0123.1"


@define
class Master(LeasedMaster):
    KEYS = KEYS
    DEFAULTS = USUAL | {"owner": ME, "count": 1, "value": 1, "client": "me"}

    def read(self, *owners: bytes, left_ms: int = LEASE_MS) -> None:
        """Have these readers have the lock."""
        for owner in owners:
            self.hold(owner, 1, left_ms)

    def write(self, owner: bytes, left_ms: int = LEASE_MS) -> None:
        """Have this writer have the lock."""
        self.redis.hset(KEYS.lock, owner, 1)
        self.redis.pexpire(KEYS.lock, max(left_ms, self.redis.pttl(KEYS.lock)))

    def fields(self) -> set[bytes]:
        return set(self.redis.hkeys(KEYS.lock))

    def ttls(self) -> list[int]:
        return [self.redis.pttl(key) for key in (KEYS.lock, KEYS.leases)]


TAKE = pytest.mark.parametrize("take", ["acquire", "enqueue"])
REFUSED = (b"refused", b"queued")

# grants ---------------------------------------------------------------------------------------------------------------


@TAKE
def test_a_reader_takes_a_free_lock_with_a_lease_and_the_clock_as_token(master: Master, take: str) -> None:
    before = master.now_us()
    status, now_us, token = master.call(take, count=2)
    assert (status, token) == (b"granted", now_us)
    assert before <= now_us <= master.now_us()
    assert master.holders() == {ME: 2}
    assert master.redis.zscore(KEYS.leases, ME) == now_us // 1000 + 1 + LEASE_MS
    assert all(LEASE_MS - SHORT_MS < left_ms <= LEASE_MS for left_ms in master.ttls())
    assert LEASE_MS < master.redis.pttl(KEYS.token) <= TOKEN_MS
    assert set(master.redis.scan_iter()) == {KEYS.lock, KEYS.leases, KEYS.token}


@TAKE
def test_many_readers_have_the_lock_each_with_a_lease_and_a_token_of_its_own(master: Master, take: str) -> None:
    first = master.call(take, owner=YOU)
    second = master.call(take, lease_ms=1_000, token_ms=2_000)
    third = master.call(take, owner=THEY, lease_ms=2_000, token_ms=3_000)
    assert first[2] < second[2] < third[2]
    assert set(master.holders()) == {ME, YOU, THEY}
    ends = [master.redis.zscore(KEYS.leases, owner) for owner in (ME, THEY, YOU)]
    assert ends == sorted(ends)
    assert min(*master.ttls(), master.redis.pttl(KEYS.token)) > LEASE_MS - SHORT_MS, "the latest lease counts"


@TAKE
def test_a_writer_keeps_readers_out_and_readers_keep_writers_out(master: Master, take: str) -> None:
    master.write(OTHER)
    reply = master.call(take, owner=ME)
    assert (reply[0] in REFUSED, reply[3:5]) == (True, [0, OTHER])
    assert 0 < reply[2] <= LEASE_MS
    assert master.fields() == {OTHER}
    master.redis.flushall()
    master.read(ME)
    reply = master.call_script(take, owner=b"me:2")
    assert (reply[0] in REFUSED, reply[3:5]) == (True, [0, ME])
    assert set(master.holders()) == {ME}


@TAKE
@pytest.mark.parametrize("name", [b"me:7", b"me:7@3000", b"me:7~2", b"me:7~2.5", b"me:7@3000~0123456789abcdef.5"])
def test_a_reader_gets_in_beside_the_writer_that_is_the_same_owner_and_before_all_waiters(
    master: Master, take: str, name: bytes
) -> None:
    master.write(name, SHORT_MS)
    master.wait(b"you:3", YOU)
    master.listen("you")
    for attempt in (b"", b"~2.7"):
        assert master.call(take, owner=OWN + attempt)[0] == b"granted"
    assert master.fields() == {name, OWN, OWN + b"~2.7"}
    assert master.told() == [], "the writer still has it, so it is nobody's turn"
    for other in (YOU, who("me", "2"), who("me", beside="77"), who("you", beside="7"), who("me", "2", beside="8")):
        assert master.call(take, owner=other)[0] in REFUSED
    assert master.redis.pttl(KEYS.lock) > LEASE_MS - SHORT_MS


@TAKE
@pytest.mark.parametrize("stale", [[THEY], [THEY, YOU]], ids=len)
def test_leases_of_holds_that_were_deleted_let_no_reader_in_beside_a_writer(
    master: Master, take: str, stale: list[bytes]
) -> None:
    """Operators may delete the hash alone; what is left of the leases must not pass for those of its fields."""
    master.read(*stale)
    master.redis.delete(KEYS.lock)
    assert master.call_script("acquire", owner=WRITER)[0] == b"granted"
    assert master.call(take, owner=OWN)[0] == b"granted"
    for newcomer in (YOU, THEY):
        assert master.call(take, owner=newcomer)[0] in REFUSED
        assert master.call("heal", owner=newcomer)[0] == b"refused"
    assert master.fields() == {WRITER, OWN}
    assert master.call("inspect")[3] == WRITER


def test_a_healed_reader_beside_its_writer_takes_stale_leases_away_as_well(master: Master) -> None:
    master.read(THEY)
    master.redis.delete(KEYS.lock)
    master.write(WRITER)
    assert master.call("heal", owner=OWN)[0] == b"healed"
    assert master.call("acquire", owner=YOU)[0] == b"refused"
    assert master.redis.zrange(KEYS.leases, 0, -1) == [OWN]


@TAKE
def test_a_reader_of_a_writer_that_has_ended_is_one_of_many(master: Master, take: str) -> None:
    master.write(OTHER)
    assert master.call(take, owner=OWN)[0] in REFUSED
    master.redis.delete(KEYS.lock)
    master.read(YOU)
    assert master.call(take, owner=OWN)[0] == b"granted"
    assert set(master.holders()) == {YOU, OWN}


@TAKE
def test_a_repeated_request_finds_its_hold(master: Master, take: str) -> None:
    first = master.call(take, count=3)
    master.call(take, owner=THEY)
    master.wait(b"you:3", ME)
    master.listen("you")
    second = master.call(take, lease_ms=1_000)
    assert (second[0], second[2] > first[2]) == (b"granted", True), "the last token may be another owner's"
    assert master.holders() == {ME: 3, THEY: 1}
    assert master.redis.zscore(KEYS.leases, ME) > master.now_us() // 1000 + SHORT_MS, "no lease is shortened"
    assert (master.queue(), master.told()) == ([b"you:3"], [])


@pytest.mark.parametrize(("ahead_us", "given"), [(1_000, True), (0, False), (-1, False), (600_000, False)])
def test_tokens_rise_and_may_be_proposed(ahead_us: int, *, given: bool) -> None:
    now_us = NOW_US
    master = VirtualMaster(lambda: now_us, "this")
    first = run_virtual(master, "acquire", proposal=now_us + ahead_us)[2]
    assert first == now_us + (ahead_us if given else 0)
    tokens = [run_virtual(master, "acquire", owner=who(f"x{one}"))[2] for one in range(4)]
    run_virtual(master, "release", fence=now_us + 10**9)
    for one in range(4):
        run_virtual(master, "release", owner=who(f"x{one}"))
    tokens.append(run(master, KEYS, "acquire", **{**Master.DEFAULTS, "owner": WRITER})[2])
    assert [first, *tokens] == sorted({first, *tokens})
    assert tokens[-1] == now_us + 10**9 + 1
    run(master, KEYS, "release", **{**Master.DEFAULTS, "owner": WRITER})
    assert run_virtual(master, "acquire")[2] == now_us + 10**9 + 2


# turns ----------------------------------------------------------------------------------------------------------------


@TAKE
def test_a_writer_that_waits_ahead_and_listens_keeps_a_newcomer_out(master: Master, take: str) -> None:
    master.wait(OTHER)
    master.listen("you")
    reply = master.call(take)
    assert (reply[0] in REFUSED, reply[2], reply[4]) == (True, 0, b"")
    assert master.told() == [b"wake 7 a"], "the lock is free: it is the writer's turn"
    master.read(who("x"), left_ms=2_000)
    master.read(THEY, left_ms=9_000)
    master.redis.pexpire(KEYS.lock, 9_000)
    reply = master.call(take)
    assert (reply[0] in REFUSED, reply[4]) == (True, THEY)
    assert 2_000 < reply[2] <= 9_000, "until the latest lease ends"
    assert master.told() == [], "a writer must not look in vain"
    assert master.call(take, fair=0)[0] == b"granted"


@TAKE
def test_a_writer_that_nobody_listens_for_is_passed_and_an_overdue_one_goes(master: Master, take: str) -> None:
    master.wait(OTHER)
    assert master.call(take)[0] == b"granted"
    assert master.queue() == [OTHER]
    master.wait(b"you:8", left_ms=-5)
    master.redis.zrem(KEYS.queue, OTHER)
    master.redis.zrem(KEYS.waiters, OTHER)
    master.listen("you")
    assert master.call(take, owner=THEY)[0] == b"granted"
    assert master.queue() == []


@TAKE
def test_readers_pass_each_other_and_no_writer(master: Master, take: str) -> None:
    master.wait(YOU, ME, OTHER, THEY)
    master.listen("me", "you", "they")
    assert master.call("enqueue", owner=ME)[0] == b"granted"
    assert master.told() == [b"wake 1& a"], "the one that was passed gets in as well"
    assert master.call("enqueue", owner=THEY)[0] == b"queued"
    assert master.told() == [b"wake 1& a"]
    assert master.call(take, owner=YOU + b"~1.1")[0] == b"granted"
    assert master.told() == [], "the next one is a writer"
    assert master.queue() == [OTHER, THEY]
    assert set(master.holders()) == {ME, YOU + b"~1.1"}


def test_a_release_of_a_writer_lets_all_readers_up_to_the_next_writer_in_one_after_the_other(master: Master) -> None:
    readers = [who(client) for client in ("you", "they", "x")]
    master.write(WRITER)
    master.wait(*readers, OTHER, who("y"))
    master.listen("you", "they", "x", "y")
    master.call_script("release", owner=WRITER)
    for reader in readers:
        assert master.told() == [b"wake 1& a"]
        assert master.call("enqueue", owner=reader)[0] == b"granted"
    assert master.told() == []
    assert master.queue() == [OTHER, who("y")]


@TAKE
def test_a_writer_behind_more_waiters_than_one_call_may_look_at_is_not_passed(master: Master, take: str) -> None:
    master.wait(*[who("dead", str(number)) for number in range(1_200)], OTHER)
    master.listen("you")
    for _ in range(3):
        assert master.call(take)[0] in REFUSED
    assert master.redis.zscore(KEYS.queue, OTHER) is not None
    assert b"wake 7 a" in master.told()


def test_enqueue_waits_at_the_end_and_keeps_its_ticket(master: Master) -> None:
    master.write(OTHER)
    status, now_us, pttl_ms, ahead, holder, ticket = master.call("enqueue", owner=YOU)
    assert (status, ahead, holder, ticket) == (b"queued", 0, OTHER, now_us)
    assert 0 < pttl_ms <= LEASE_MS
    assert master.call("enqueue")[3] == 1
    assert master.call("enqueue", owner=YOU)[5] == ticket
    assert master.queue() == [YOU, ME]
    proposed = master.call("enqueue", owner=THEY, ticket=-1)
    assert (proposed[0], proposed[3], proposed[5] > ticket) == (b"proposed", 2, True)
    assert master.call("enqueue", owner=THEY, ticket=-FAR)[5] == FAR
    assert master.queue() == [YOU, ME, THEY]
    assert master.call("enqueue", owner=THEY, ticket=ticket - 1)[3] == 0
    for key in (KEYS.queue, KEYS.waiters):
        assert QUEUE_MS - SHORT_MS < master.redis.pttl(key) <= QUEUE_MS


@pytest.mark.parametrize("script", ["read_enqueue", "enqueue"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_ticket_is_above_those_of_all_holders(master: Master, script: str, number: int) -> None:
    """A holder may give the lock back, and return to its place."""
    ahead = master.now_us() + 10**9
    names = [who("x") + b"~1.%d" % (ahead + 5), who("y") + b"~4.7", who("z") + b"~2.%d" % 2**53]
    master.read(names[0], *names[1 : number + 1])
    master.wait(OTHER)
    master.listen("you")
    owner = ME if script == "read_enqueue" else b"me:2"
    assert master.call_script(script, owner=owner)[5] == ahead + 6


# leases ---------------------------------------------------------------------------------------------------------------

REAPS = ["acquire", "enqueue", "release", "give_back", "heal", "heartbeat"]


@pytest.mark.parametrize("name", REAPS)
def test_a_lease_that_has_ended_is_over_for_every_script(master: Master, name: str) -> None:
    dead = who("x")
    master.read(dead, left_ms=-1)
    master.read(THEY)
    master.wait(YOU)
    master.call(name, *([5, ME] if name == "heartbeat" else []))
    assert dead not in master.holders()
    assert THEY in master.holders()


@pytest.mark.parametrize("name", REAPS)
def test_fields_without_a_lease_go_and_leases_without_a_field(master: Master, name: str) -> None:
    master.read(THEY)
    master.redis.hset(KEYS.lock, mapping={who("x"): 1, who("y"): 5})
    master.redis.zadd(KEYS.leases, {who("z"): FAR})
    master.call(name, *([5, ME] if name == "heartbeat" else []))
    assert THEY in master.holders()
    assert not {who("x"), who("y"), who("z")} & set(master.holders())


@pytest.mark.parametrize("name", [*REAPS, "extend", "leave", "inspect"])
def test_a_writer_needs_no_lease_and_keeps_the_one_it_has(master: Master, name: str) -> None:
    master.write(WRITER)
    master.read(OWN, left_ms=2_000)
    for owner in (OWN, who("me", "2"), who("me", "2", beside="7")):
        master.call(name, *([5, owner] if name == "heartbeat" else []), owner=owner, lease_ms=3_000, token_ms=4_000)
    assert WRITER in master.fields()
    assert master.redis.pttl(KEYS.lock) > LEASE_MS - SHORT_MS


def test_extend_renews_and_never_shortens_nor_touches_another_lease(master: Master) -> None:
    master.read(YOU, left_ms=9_000)
    ends = master.redis.zscore(KEYS.leases, YOU)
    master.call("acquire", lease_ms=1_000, token_ms=2_000)
    now_us = master.call("extend")[1]
    end_ms = now_us // 1000 + 1 + LEASE_MS
    assert master.redis.zscore(KEYS.leases, ME) == end_ms
    assert master.call("extend", lease_ms=1_000, token_ms=2_000)[0] == b"extended"
    assert master.redis.zscore(KEYS.leases, ME) == end_ms
    assert master.redis.zscore(KEYS.leases, YOU) == ends
    assert all(LEASE_MS - SHORT_MS < left_ms <= LEASE_MS + 1 for left_ms in master.ttls())
    assert LEASE_MS < master.redis.pttl(KEYS.token) <= TOKEN_MS


def test_a_lease_that_has_ended_is_not_extended_though_nobody_has_removed_it(master: Master) -> None:
    master.read(ME, left_ms=0)
    assert master.call("extend")[0] == b"absent"
    master.read(ME, left_ms=1_000)
    assert master.call("extend")[0] == b"extended"
    assert master.call("extend", owner=YOU)[0] == b"absent"
    master.redis.delete(KEYS.leases)
    assert master.call("extend")[0] == b"absent"


@pytest.mark.parametrize("name", ["release", "give_back"])
def test_a_dead_reader_holds_up_nobody_longer_than_its_own_lease(master: Master, name: str) -> None:
    master.read(THEY, left_ms=2_000)
    master.read(ME, YOU)
    for owner in (ME, YOU):
        assert max(master.ttls()) > LEASE_MS - SHORT_MS
        assert master.call(name, owner=owner)[0] == b"released"
    assert set(master.holders()) == {THEY}
    assert all(0 < left_ms <= 2_000 for left_ms in master.ttls())


def test_the_lease_of_a_writer_that_has_ended_does_not_outlive_the_next_renewal_of_its_reader(master: Master) -> None:
    master.write(WRITER)
    master.read(OWN, left_ms=2_000)
    assert master.call_script("release", owner=WRITER)[0] == b"released"
    assert master.call("extend", owner=OWN, lease_ms=3_000, token_ms=4_000)[0] == b"extended"
    assert all(2_000 < left_ms <= 3_001 for left_ms in master.ttls())


# ends -----------------------------------------------------------------------------------------------------------------


def test_the_release_of_one_of_many_readers_wakes_no_writer_and_ends_no_other_hold(master: Master) -> None:
    master.read(RELEASER, THEY)
    master.wait(TAKES, YOU)
    master.listen("you")
    for status in (b"released", b"absent"):
        assert master.call("release", owner=RELEASER)[0] == status
        assert (set(master.holders()), master.told()) == ({THEY}, [])
    assert master.queue() == [TAKES, YOU]


@pytest.mark.parametrize("name", ["release", "give_back", "leave"])
@pytest.mark.parametrize("is_free", [True, False], ids=["free", "read"])
def test_what_ends_while_the_next_reader_could_get_in_wakes_it(master: Master, name: str, *, is_free: bool) -> None:
    """The writer that kept this one out has died, and so has the reader that would have woken it."""
    if not is_free:
        master.read(THEY)
    if name != "leave":
        master.read(ME)
    else:
        master.wait(ME)
    master.wait(b"dead:1", YOU, OTHER)
    master.listen("you")
    assert master.call(name)[0] in (b"released", b"left")
    assert master.told() == [b"wake 1& a"]


@pytest.mark.parametrize("name", ["release", "give_back", "leave"])
@pytest.mark.parametrize("is_free", [True, False], ids=["free", "read"])
def test_what_ends_wakes_a_writer_only_where_the_lock_is_free(master: Master, name: str, *, is_free: bool) -> None:
    if not is_free:
        master.read(THEY)
    if name != "leave":
        master.read(ME)
    else:
        master.wait(ME)
    master.wait(OTHER, YOU)
    master.listen("you")
    assert master.call(name)[0] in (b"released", b"left")
    assert master.told() == ([b"wake 7 a"] if is_free else [])


@pytest.mark.parametrize("name", ["acquire", "release", "give_back", "heartbeat"])
def test_a_lapse_of_the_last_lease_lets_a_writer_in(master: Master, name: str) -> None:
    """The keys live for longer than the leases only where another program has lengthened them."""
    master.read(who("x"), left_ms=-1)
    master.wait(OTHER)
    master.listen("you")
    master.call(name)
    assert master.told() == [b"wake 7 a"]
    assert not master.fields()


def test_the_release_of_the_last_reader_gives_the_lock_to_a_writer(master: Master) -> None:
    master.read(RELEASER)
    master.wait(TAKES, YOU)
    master.listen("you")
    status, now_us = master.call("release", owner=RELEASER)
    assert status == b"released"
    assert master.fields() == {HANDED}
    assert not master.redis.exists(KEYS.leases)
    assert 0 < master.redis.pttl(KEYS.lock) <= 3_000
    assert master.told() == [b"grant 9@3000 456789abcdef0123.1 %d %d 3000 this a" % (now_us, now_us)]
    assert master.queue() == [YOU]
    assert master.call("release", owner=RELEASER)[0] == b"absent"
    assert (master.fields(), master.told()) == ({HANDED}, [])


@pytest.mark.parametrize("how", [{"hand": 0}, {"not_after_us": 1}], ids=str)
def test_a_release_only_wakes(master: Master, how: dict[str, Any]) -> None:
    master.read(RELEASER)
    master.wait(TAKES)
    master.listen("you")
    master.call("release", owner=RELEASER, **how)
    assert (master.fields(), master.told(), master.queue()) == (set(), [b"wake 9@3000 a"], [TAKES])


def test_a_reader_beside_its_writer_ends_without_a_word_to_anybody(master: Master) -> None:
    for name in ("release", "give_back"):
        master.write(WRITER)
        master.read(OWN)
        master.wait(YOU, OTHER)
        master.listen("you")
        assert master.call(name, owner=OWN)[0] == b"released"
        assert (master.fields(), master.told()) == ({WRITER}, [])
        assert master.redis.pttl(KEYS.lock) > LEASE_MS - SHORT_MS


def test_the_script_for_readers_ends_a_writer_with_its_lease_and_leaves_its_reader(master: Master) -> None:
    master.write(WRITER)
    master.read(OWN, left_ms=2_000)
    master.wait(YOU)
    master.listen("you")
    for status in (b"released", b"absent"):
        assert master.call("release", owner=WRITER)[0] == status
        assert (set(master.holders()), master.told()) == ({OWN}, [b"wake 1& a"])
        assert all(0 < left_ms <= 2_001 for left_ms in master.ttls())


def test_the_script_for_readers_hands_the_lock_of_a_writer_over_where_its_reader_is_not(master: Master) -> None:
    """Readers need only a quorum of the masters."""
    master.write(b"me:0123456789abcdef0123@3000")
    master.wait(TAKES)
    master.listen("you")
    assert master.call("release", owner=b"me:0123456789abcdef0123@3000")[0] == b"released"
    assert master.fields() == {HANDED}


@pytest.mark.parametrize(("first", "told"), [(YOU, [b"wake 1& a"]), (TAKES, []), (OTHER, [])])
def test_the_end_of_a_writer_whose_owner_reads_on_lets_readers_in_and_no_writer(
    master: Master, first: bytes, told: list[bytes]
) -> None:
    master.write(WRITER)
    master.read(OWN)
    master.wait(first)
    master.listen("you")
    assert master.call_script("release", owner=WRITER)[0] == b"released"
    assert (set(master.holders()), master.told()) == ({OWN}, told)
    assert master.call("acquire", owner=THEY)[0] == (b"granted" if told else b"refused")
    assert master.call_script("acquire", owner=b"they:2")[0] == b"refused"


def test_the_writer_counts_as_the_holder_though_the_field_of_its_reader_comes_first(master: Master) -> None:
    """The fields of a hash with long names are in no order."""
    master.read(OWN)
    master.write(WRITER)
    master.wait(YOU)
    master.listen("you")
    assert master.call_script("enqueue", owner=WRITER, ticket=7)[0] == b"granted", "the request has come a second time"
    assert master.call_script("heartbeat", 7, WRITER)[3] == WRITER
    assert master.queue() == [YOU], "a holder has no place"
    assert master.call_script("acquire", owner=OTHER)[4] == WRITER
    assert master.call("leave")[0] == b"absent"
    assert master.call_script("release", owner=OTHER)[0] == b"absent"
    assert master.told() == [], "no reader looks in vain"


def test_a_release_of_a_name_that_is_not_there_ends_its_place_and_tells_its_token(master: Master) -> None:
    master.read(THEY)
    master.wait(ME)
    assert master.call("release", owner=ME + b"~1", fence=FAR)[0] == b"absent"
    assert (set(master.holders()), master.queue()) == ({THEY}, [])
    assert master.redis.get(KEYS.token) == b"%d" % FAR
    assert master.redis.pttl(KEYS.token) > LEASE_MS
    master.call("release", owner=ME, fence=5)
    assert master.redis.get(KEYS.token) == b"%d" % FAR


def test_give_back_ends_an_attempt_and_puts_its_waiter_back(master: Master) -> None:
    attempt = THEY + b"~1.1"
    master.read(attempt, who("x"))
    master.wait(YOU)
    master.listen("you", "they")
    assert master.call("give_back", owner=attempt, ticket=5)[0] == b"released"
    assert (set(master.holders()), master.queue()) == ({who("x")}, [YOU, THEY])
    assert master.told() == [b"wake 1& a"], "the one that comes before"
    master.read(attempt)
    master.call("give_back", owner=attempt, ticket=-1)
    assert master.told() == [], "nobody comes before"
    assert master.call("give_back", owner=attempt, ticket=5)[0] == b"absent"
    master.redis.zrem(KEYS.queue, THEY)
    master.redis.zrem(KEYS.waiters, THEY)
    master.read(attempt)
    assert master.call("give_back", owner=attempt, ticket=5, not_after_us=1)[0] == b"released"
    assert master.queue() == [YOU]


def test_heal_gives_a_reader_its_hold_back_with_its_count_and_its_token(master: Master) -> None:
    master.read(THEY)
    for _ in range(2):
        assert master.call("heal", value=3, fence=FAR)[0] == b"healed"
        assert master.holders() == {THEY: 1, ME: 3}
        assert master.redis.get(KEYS.token) == b"%d" % FAR
    assert master.call("heal", value=5, fence=1, lease_ms=1)[0] == b"healed"
    assert master.holders()[ME] == 3
    assert master.redis.get(KEYS.token) == b"%d" % FAR
    assert min(master.ttls()) > LEASE_MS - SHORT_MS
    master.redis.flushall()
    master.write(OTHER)
    assert master.call("heal")[0] == b"refused"
    assert master.fields() == {OTHER}


def test_heal_takes_a_writer_back_beside_its_reader_and_gives_it_no_lock_that_readers_have(master: Master) -> None:
    master.write(WRITER)
    master.read(OWN)
    assert master.call_script("heal", owner=WRITER)[0] == b"healed"
    assert master.fields() == {WRITER, OWN}
    master.redis.hdel(KEYS.lock, WRITER)
    for writer in (WRITER, OTHER):
        assert master.call_script("heal", owner=writer)[0] == b"refused"
    assert set(master.holders()) == {OWN}


@pytest.mark.parametrize(
    ("held", "waiters", "turn", "looks"),
    [
        pytest.param([], [ME], ME, True, id="free"),
        pytest.param([THEY], [ME], ME, True, id="readers have it"),
        pytest.param([OTHER], [ME], b"", False, id="a writer has it"),
        pytest.param([THEY], [OTHER, ME], b"", False, id="readers have it, a writer is first"),
        pytest.param([THEY], [b"dead:1", ME], ME, True, id="readers have it, behind a dead writer"),
        pytest.param([], [OTHER, ME], b"", True, id="another's turn"),
        pytest.param([ME], [ME], ME, True, id="it is a reader already"),
        pytest.param([ME + b"~2.1", THEY], [OTHER, ME], ME, False, id="an attempt is in"),
    ],
)
def test_heartbeat_says_whose_turn_it_is(
    master: Master, held: list[bytes], waiters: list[bytes], turn: bytes, *, looks: bool
) -> None:
    for owner in held:
        (master.write if owner == OTHER else master.read)(owner)
    master.wait(*waiters)
    master.listen("me", "you")
    mine = [item for place, name in enumerate(waiters) if name.startswith(b"me:") for item in (place + 1, name)]
    status, _, pttl_ms, found, head = master.call("heartbeat", *mine)
    assert (status, found, head) == (b"tended", turn, waiters[0])
    assert (pttl_ms == 0) == looks
    assert pttl_ms <= LEASE_MS
    woken = [b"wake 1& a"] if looks and turn == ME else [b"wake 7 a"] if looks else []
    assert master.told() == woken


def test_heartbeat_restores_places_and_looks_again_soon_while_it_is_open_whose_turn_it_is(master: Master) -> None:
    master.read(THEY)
    master.listen("me")
    master.wait(who("x"), left_ms=-5)
    assert master.call("heartbeat", 7, ME)[3:] == [ME, ME]
    assert master.redis.zscore(KEYS.queue, ME) == 7
    assert master.queue() == [ME]
    master.redis.zadd(KEYS.queue, {f"dead:{number}": number - 2_000 for number in range(1_500)})
    master.redis.zadd(KEYS.waiters, {who("x", str(number)): FAR for number in range(150)})
    assert master.call("heartbeat", 7, ME)[2] == 1
    assert master.call("heartbeat", 7, ME)[2:4] == [0, ME]


def test_inspect_tells_of_readers_and_of_a_writer_beside_which_one_reads(master: Master) -> None:
    master.read(who("dead"), left_ms=0)
    master.read(YOU, left_ms=9_000)
    master.hold(ME, 2, 5_000)
    master.wait(THEY, who("x"))
    master.redis.set(KEYS.token, 77)
    before = [master.redis.hgetall(KEYS.lock), master.redis.zrange(KEYS.leases, 0, -1)]
    status, _, token, readers, queue = master.call("inspect", limit=1)
    assert (status, token, queue) == (b"shared", 77, [THEY, b"1"])
    assert readers[:2] + readers[3:5] == [ME, 2, YOU, 1]
    assert 0 < readers[2] <= 5_000 < readers[5] <= 9_000
    assert [master.redis.hgetall(KEYS.lock), master.redis.zrange(KEYS.leases, 0, -1)] == before
    master.redis.flushall()
    master.read(OWN)
    master.write(WRITER)
    assert master.call("inspect")[3:5] == [WRITER, 1]
    master.redis.hdel(KEYS.lock, WRITER)
    assert master.call("inspect")[0] == b"shared"
    master.redis.delete(KEYS.leases)
    assert master.call("inspect")[3:5] == [b"", 0]
    master.redis.delete(KEYS.lock)
    assert master.call("inspect")[0] == b"free"


def test_readers_have_notes_and_other_values_that_are_no_counts_are_none(master: Master) -> None:
    assert master.call("acquire", owner=ME, count="2 why")[0] == b"granted"
    assert master.call("acquire", owner=YOU)[0] == b"granted"
    assert master.call("extend", owner=ME)[0] == b"extended"
    readers = master.call("inspect")[3]
    assert dict(zip(readers[::3], readers[1::3], strict=True)) == {ME: b"2 why", YOU: 1}
    master.redis.hset(KEYS.lock, YOU, "x y")
    assert master.call("inspect")[3][1::3].count(0) == 1
    for owner in (ME, YOU):
        assert master.call("release", owner=owner)[0] == b"released"
    assert master.holders() == {}


@pytest.mark.parametrize("first", [OTHER, YOU])
def test_force_release_ends_all_readers_and_wakes_the_first(master: Master, first: bytes) -> None:
    master.read(ME, THEY)
    master.wait(first)
    master.listen("you")
    assert master.call_script("force_release", fence=7)[0] == b"released"
    assert (master.holders(), master.queue()) == ({}, [first])
    assert master.told() == [b"wake %b a" % first.partition(b":")[2]]
    assert int(master.redis.get(KEYS.token)) > master.now_us() + 1_000 * (LEASE_MS - SHORT_MS)
    assert master.call_script("force_release", fence=7)[0] == b"absent"


def test_force_release_that_comes_too_late_ends_nothing(master: Master) -> None:
    master.read(ME)
    assert master.call_script("force_release", not_after_us=1)[0] == b"void"
    assert set(master.holders()) == {ME}


def test_nothing_but_taking_and_healing_creates_a_hold(master: Master) -> None:
    for name in ("extend", "release", "give_back", "leave", "heartbeat", "inspect"):
        master.call(name, *([5, ME] if name == "heartbeat" else []))
    assert master.holders() == {}


# late, foreign, many and full -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["acquire", "enqueue", "extend", "heal", "heartbeat"])
def test_what_comes_after_its_not_after_time_does_nothing(master: Master, name: str) -> None:
    master.read(ME, left_ms=-1)
    master.wait(YOU)
    late_us = master.now_us() - 1
    assert master.call(name, *([5, ME] if name == "heartbeat" else []), not_after_us=late_us)[0] == b"void"
    assert (set(master.holders()), master.queue()) == ({ME}, [YOU])


@pytest.mark.parametrize("key", [KEYS.lock, KEYS.leases])
def test_a_key_of_another_type_lets_no_reader_in_and_stays(master: Master, key: bytes) -> None:
    master.redis.set(key, "x", px=LEASE_MS)
    for take in ("acquire", "enqueue"):
        reply = master.call(take)
        assert (reply[0] in REFUSED, reply[4]) == (True, b"")
        assert reply[2] != 0, "it is not the reader's turn"
    assert master.call("enqueue", ticket=7)[0] == b"queued"
    for name in ("release", "give_back", "extend", "leave"):
        assert master.call(name)[0] == (b"left" if name == "leave" and master.queue() else b"absent")
    assert master.call("heal")[0] == b"refused"
    assert master.call("heartbeat", 5, ME)[2] != 0
    assert master.call("inspect")[0] == b"held"
    assert master.redis.get(key) == b"x"


def test_leases_of_another_type_keep_no_hold_and_no_writer(master: Master) -> None:
    master.redis.hset(KEYS.lock, ME, 1)
    master.redis.set(KEYS.leases, "x")
    assert master.call("release")[0] == b"released"
    assert master.call_script("acquire", owner=WRITER)[0] == b"granted"


def test_a_queue_of_another_type_keeps_no_reader_from_taking_the_lock_and_giving_it_back(master: Master) -> None:
    master.redis.set(KEYS.queue, "x")
    for owner in (ME, YOU):
        assert master.call("acquire", owner=owner)[0] == b"granted"
        assert master.call("enqueue", owner=who("x"))[0] == b"granted"
    for owner in (ME, YOU, who("x")):
        assert master.call("release", owner=owner)[0] == b"released"
    assert master.holders() == {}


def test_a_hash_that_is_none_of_ours_is_held_by_nobody_and_not_read(master: Master) -> None:
    master.redis.hset(KEYS.lock, mapping=dict.fromkeys(range(3_000), 1))
    status, _, pttl_ms, _, holder = master.call("acquire")
    assert (status, pttl_ms, holder) == (b"refused", -1, b"")
    assert master.call("heal")[0] == b"refused"
    assert master.call("inspect")[2:5] == [-1, b"", 0]
    assert master.redis.hlen(KEYS.lock) == 3_000


def test_a_few_fields_of_another_program_are_a_writer_and_stay(master: Master) -> None:
    master.redis.hset(KEYS.lock, mapping={"": 1, "any": 2})
    assert master.call("acquire")[0] == b"refused"
    assert master.call("heal")[0] == b"refused"
    assert master.redis.hlen(KEYS.lock) == 2


def test_any_number_of_readers_keeps_a_writer_out_and_leaves(master: Master) -> None:
    """More readers than one call may look at: nobody waits for what only a look could show."""
    readers = [who("x", str(number)) for number in range(3_000)]
    end_ms = master.now_us() // 1000 + LEASE_MS
    master.redis.hset(KEYS.lock, mapping=dict.fromkeys(readers, 1))
    master.redis.zadd(KEYS.leases, dict.fromkeys(readers, end_ms))
    for key in (KEYS.lock, KEYS.leases):
        master.redis.pexpire(key, LEASE_MS)
    assert master.call("acquire")[0] == b"granted"
    assert master.call("heal", owner=YOU)[0] == b"healed"
    assert master.call("extend", owner=readers[7])[0] == b"extended"
    for name in ("acquire", "enqueue"):
        assert master.call_script(name, owner=OTHER)[0] in REFUSED
    assert master.call_script("heal", owner=OTHER)[0] == b"refused"
    assert master.call_script("release", owner=OTHER)[0] == b"absent"
    master.wait(b"they:3", who("they", "4"))
    master.listen("they")
    assert master.call("leave", owner=b"they:3")[0] == b"left"
    assert master.told() == [b"wake 4& a"]
    assert master.call("leave", owner=who("they", "4"))[0] == b"left"
    for owner in (YOU, ME):
        assert master.call("release", owner=owner)[0] == b"released"
    master.redis.zadd(KEYS.leases, dict.fromkeys(readers, 1))
    assert master.call("acquire", owner=ME)[0] == b"granted"
    assert master.redis.hlen(KEYS.lock) == 3_000 - 2_048 + 1
    master.call("release", owner=ME)
    assert master.holders() == {}


@pytest.mark.parametrize("name", ["read_release", "read_extend", "read_give_back", "leave", "release", "force_release"])
def test_holds_end_and_leases_last_on_a_master_that_is_out_of_memory(name: str) -> None:
    master = VirtualMaster(lambda: NOW_US, "this")
    for owner in (ME, YOU):
        run_virtual(master, "acquire", owner=owner)
    given = Master.DEFAULTS | {"owner": ME}
    run(master, KEYS, "enqueue", **given | {"owner": OTHER})
    master.is_full = True
    statuses = {status.encode() for status in load(name).statuses}
    assert run(master, KEYS, name, **given | {"ticket": 5, "owner": OTHER if name == "leave" else ME})[0] in statuses


@pytest.mark.parametrize("take", ["acquire", "enqueue", "heal"])
@pytest.mark.parametrize("others", [[], [YOU]], ids=len)
def test_a_master_that_is_out_of_memory_gives_no_half_of_a_hold(take: str, others: list[bytes]) -> None:
    master = VirtualMaster(lambda: NOW_US, "this")
    for owner in others:
        run_virtual(master, "acquire", owner=owner)
    before, master.is_full = [master.contents(key) for key in ALL_KEYS], True
    with pytest.raises(Exception, match="OOM"):
        run_virtual(master, take)
    assert [master.contents(key) for key in ALL_KEYS] == before


@pytest.mark.parametrize("name", ["acquire", "enqueue", "release", "give_back", "extend", "heal", "heartbeat"])
@pytest.mark.parametrize("mine", [ME, who("me", "9")], ids=["here", "absent"])
def test_a_replica_gives_keeps_and_ends_nothing(name: str, mine: bytes) -> None:
    master = VirtualMaster(lambda: NOW_US, "this")
    for owner in (ME, YOU):
        run_virtual(master, "acquire", owner=owner)
    master.is_replica = True
    if (name, mine == ME) == ("extend", False):
        return  # `absent` is what every master may say
    with pytest.raises(Exception, match="READONLY"):
        run_virtual(master, name, owner=mine)


def test_a_reader_that_is_refused_writes_so_that_a_replica_refuses_its_request() -> None:
    master = VirtualMaster(lambda: NOW_US, "this")
    run(master, KEYS, "acquire", **Master.DEFAULTS | {"owner": OTHER})
    master.is_replica = True
    with pytest.raises(Exception, match="READONLY"):
        run_virtual(master, "acquire")


def run_virtual(master: VirtualMaster, name: str, *rest: Any, **other: Any) -> list[Any]:
    return run(master, KEYS, KEYS.script_name(name), *rest, **{**Master.DEFAULTS, **other})


def test_a_master_without_a_vote_gives_nothing(real: Master) -> None:
    for name in ("acquire", "enqueue", "heal"):
        assert real.call(name, guarded=True, guard_ms=1_000)[0] == b"no_vote"
    assert real.call("enqueue", guarded=True, guard_ms=1_000, ticket=7)[0] == b"no_vote"
    assert real.queue() == [ME], "a place needs no vote"
    real.call("leave")
    assert real.holders() == {}
    real.read(RELEASER)
    real.wait(TAKES)
    real.listen("you")
    real.call("release", owner=RELEASER, guarded=True, guard_ms=1_000)
    assert (real.fields(), real.told()) == (set(), [b"wake 9@3000 a"])


@pytest.mark.parametrize("name", ["acquire", "enqueue", "heal"])
@pytest.mark.parametrize("others", [[], [YOU]], ids=len)
def test_a_master_with_a_vote_gives_and_takes_the_larger_guard(real: Master, name: str, others: list[bytes]) -> None:
    marker = {"incarnation": real.incarnation, "no_vote_until_us": 1, "guard_ms": 1_000}
    real.redis.hset(KEYS.master, mapping=marker)
    real.read(*others)
    assert real.call(name, guarded=True, guard_ms=2_000)[0] in (b"granted", b"healed")
    assert real.redis.hget(KEYS.master, "guard_ms") == b"2000"


def test_where_nobody_counts_who_listens_a_writer_with_a_deadline_keeps_readers_out(master: Master) -> None:
    master.is_on_cluster = True
    master.read(RELEASER, THEY)
    master.wait(TAKES, YOU)
    master.listen("you")
    assert master.call("acquire")[0] == b"refused"
    assert master.call("release", owner=THEY)[0] == b"released"
    assert master.told() == []
    assert master.call("release", owner=RELEASER)[0] == b"released"
    assert (master.fields(), master.told()) == (set(), [b"wake 9@3000 a"])


@pytest.mark.parametrize("refused", ["publish", "pubsub|numsub"])
def test_where_messages_or_questions_are_refused_a_writer_with_a_deadline_keeps_readers_out(
    server: Server, refused: str
) -> None:
    server.cli("ACL", "SETUSER", "mute", "reset", "on", ">x", "~*", "+@all", f"-{refused}", "allchannels")
    with closing(redis.Redis.from_url(server.url)) as admin, closing(redis.Redis.from_url(server.url)) as client:
        admin.flushall()
        client.auth("x", "mute")
        listener, master = Master(admin), Master(client)
        listener.listen("you")
        master.read(ME)
        master.wait(TAKES, YOU)
        assert master.call("acquire", owner=THEY)[0] == b"refused"
        assert master.call("heartbeat", 2, YOU, client="you")[3] == b""
        assert master.call("leave", owner=TAKES)[0] == b"left"
        assert master.call("heartbeat", 2, YOU, client="you")[3] == YOU
        assert master.call("release")[0] == b"released"
        listener.subscribers[0].close()
    server.cli("ACL", "DELUSER", "mute")


def test_nothing_stays_when_all_readers_have_ended(real: Master) -> None:
    for owner in (ME, YOU, THEY):
        real.call("enqueue", owner=owner, guarded=True, guard_ms=0)
    immortal = [key for key in real.redis.scan_iter() if real.redis.ttl(key) == -1]
    assert immortal == [KEYS.master]
    for owner in (ME, YOU, THEY):
        real.call("release", owner=owner, guarded=True, guard_ms=0)
    assert set(real.redis.scan_iter()) == {KEYS.token, KEYS.master}


# the usual cases ------------------------------------------------------------------------------------------------------

COMMANDS = {
    "acquire": {"time": 1, "exists": 1, "hset": 1, "pexpire": 2, "zadd": 1, "set": 1},
    "release": {"time": 1, "hdel": 1, "zrem": 1, "exists": 1},
}


@pytest.mark.every_server
@pytest.mark.parametrize("name", COMMANDS)
def test_the_usual_case_asks_no_more_of_a_server(server: Server, name: str) -> None:
    check_commands(server, Master, name, COMMANDS[name])


GENERAL = {  # of the scripts without their usual cases: the line that leads there, and one that never does
    "read_acquire": (b"if redis.call('EXISTS', lock, queue, leases) == 0", b"if false"),
    "read_release": (b"if ended == 1 and is_gone == 1", b"if false and is_gone == 1"),
    "leave": (b"if left and redis.pcall('ZREM', waiters", b"if false and redis.pcall('ZREM', waiters"),
}
SEED = 20261127
OWNERS = [ME, YOU, THEY, OWN, WRITER, OTHER, YOU + b"~1.7", TAKES]


def outcome(script: Any, draw: Random) -> tuple[Any, ...]:
    """Return the reply, the messages and the state after a drawn call in a drawn state."""
    master, heard = heard_by(draw.sample(CLIENTS, draw.randint(0, 3)))
    holders = draw.sample(OWNERS, draw.choice([0, 0, 0, 1, 1, 2, 3]))
    for owner in holders:
        master.read("HSET", KEYS.lock, owner, 1)
        if b"&" in owner and draw.random() < 0.95:
            master.read("ZADD", KEYS.leases, NOW_US // 1000 + draw.choice([-1, 300, 4_000]), owner)
    draw_queue(master, KEYS, draw, OWNERS)
    draw_oddities(master, KEYS, draw)
    chosen = Master.DEFAULTS | {
        "owner": draw.choice(holders if holders and draw.random() < 0.7 else OWNERS),
        "fence": draw.choice([0, 0, NOW_US + 5]),
        "fair": draw.choice([0, 1]),
        "hand": draw.choice([0, 1]),
    }
    reply = reply_of(master, script, KEYS, chosen, not_after_us=draw.choice([FAR, FAR, NOW_US]))
    left = [master.contents(key) for key in (KEYS.lock, KEYS.leases)]
    rest = [(master.contents(key), master.read("PTTL", key)) for key in (KEYS.queue, KEYS.waiters)]
    return reply, heard, left, master.read("PTTL", KEYS.lock), rest, master.contents(KEYS.token)


@pytest.mark.parametrize("name", GENERAL)
def test_the_usual_case_does_what_the_general_one_does(name: str) -> None:
    check_usual_case(name, *GENERAL[name], outcome, seed=SEED)


# headers --------------------------------------------------------------------------------------------------------------

MINE = who("me", "0123456789abcdef") + b"~1"
HELD = [[], [MINE], [MINE, THEY], [THEY], [OTHER]]
WAITING = [[], [TAKES, THEY], [THEY], [b"you:5", THEY]]
STATES = [(held, waiting) for held in HELD for waiting in WAITING]
ALSO = ["leave", "release", "inspect", "force_release"]  # scripts for writers that meet readers


def put(master: Master, state: tuple[Any, Any]) -> None:
    for owner in state[0]:
        (master.write if owner == OTHER else master.read)(owner)
    master.wait(*state[1])
    master.redis.set(KEYS.token, 5)
    for key in (KEYS.token, KEYS.lock, KEYS.leases):
        master.redis.pexpire(key, SHORT_MS)


def call_with(master: Master, name: str, fence: int) -> None:
    """Call the script of this name with usual arguments."""
    rest = [7, who("me", "2")] if name == "read_heartbeat" else []
    owner = THEY if name == "leave" else MINE
    master.call_script(name, *rest, owner=owner, ticket=7, fence=fence, guarded=True)


@pytest.mark.parametrize("name", [*NAMES, *ALSO])
def test_a_script_writes_and_publishes_what_its_header_says_and_nothing_else(real: Master, name: str) -> None:
    check_header(real, name, STATES, partial(put, real), partial(call_with, real, name))


@pytest.mark.parametrize("name", [*NAMES, *ALSO])
def test_a_script_that_arrives_twice_changes_nothing_more(real: Master, name: str) -> None:
    """Lifetimes may change, the time without a vote, and the last token."""
    check_repeats(real, STATES, partial(put, real), partial(call_with, real, name), may_change=("master", "token"))


# a walk ---------------------------------------------------------------------------------------------------------------


@define
class ReadWalk(Walk):
    """A walk of readers and writers; some owners are both, and end one hold before the other.

    Attributes:
        written_until_ms: until when the last writer had the lock; its reader keeps that lease until the next renewal.
    """

    KEYS = lock_keys("lock", "a")
    DEFAULTS = Master.DEFAULTS

    written_until_ms: int = 0

    def keys_for(self, name: bytes) -> LockKeys:
        return KEYS if b"&" in name else self.KEYS

    def believed(self) -> list[bytes]:
        return [owner for owner, until_us in self.holding.items() if until_us > self.now_us]

    def new_waiter(self, client: str, uuid: str) -> bytes:
        writer = next((owner for owner in self.believed() if b"&" not in owner), b"")
        if writer and self.draw.random() < 0.5:
            return who(client_of(writer), uuid, stem_of(writer).decode())
        return who(client, uuid) if self.draw.random() < 0.6 else f"{client}:{uuid}{self.draw.choice(MARKS)}".encode()

    def may_pass(self, waiter: bytes, ahead: list[bytes]) -> bool:
        if b"&" not in waiter:
            return not ahead
        is_beside = any(is_own(writer, waiter) for writer in self.master.contents(KEYS.lock) or [])
        return is_beside or all(b"&" in other for other in ahead)

    def granted(self, owner: bytes, token: int, lease_ms: int) -> None:
        super().granted(owner, token, lease_ms)
        for other in self.believed():
            assert other == owner or (b"&" in owner and b"&" in other) or is_own(other, owner), "writers are alone"

    def do(self, deed: str) -> None:
        if deed == "extend" and self.believed():
            owner = self.draw.choice(sorted(self.believed()))
            lease_ms = self.draw.choice([100, WALK_LEASE_MS])
            assert self.call("extend", owner=owner, lease_ms=lease_ms, token_ms=lease_ms + 1_000)[0] == b"extended"
            self.holding[owner] = max(self.holding[owner], self.now_us + lease_ms * 1000)
        elif deed == "attempt":
            self.count += 1
            attempt = self.new_waiter(self.draw.choice(CLIENTS), f"{self.count:x}") + b"~1.5"
            if self.call("acquire", owner=attempt, lease_ms=WALK_LEASE_MS, token_ms=3_000)[0] == b"granted":
                self.call("give_back", owner=attempt)
        elif deed == "repeat" and self.believed():
            owner = self.draw.choice([owner for owner in self.believed() if b"&" in owner] or [b""])
            if owner:
                assert self.call("acquire", owner=owner, lease_ms=100, token_ms=1_100)[0] == b"granted"
        else:
            super().do(deed)

    def check(self) -> None:
        super().check()
        fields = self.master.contents(KEYS.lock) or {}
        believed = self.believed()
        assert all(owner in fields for owner in believed), "no live lease is shortened"
        running, queue = self.running(), self.queue()
        writers = [owner for owner in fields if b"&" not in owner]
        assert len(writers) <= 1
        assert all(is_own(writer, reader) for writer in writers for reader in running)
        if queue and queue[0] == (self.master.contents(KEYS.queue) or [])[0][0]:
            is_in = bool(writers) if b"&" in queue[0] else bool(fields)
            assert is_in, "nobody waits whose turn it is and who could get in"
        until_ms = self.now_us // 1000 + self.master.read("PTTL", KEYS.lock)
        if writers:
            self.written_until_ms = until_ms
        elif fields:
            latest_ms = max(self.written_until_ms, *dict(self.master.contents(KEYS.leases) or []).values(), 0)
            rounded_ms = 20  # each renewal may round a lifetime up: the clock is finer than ms
            assert until_ms <= latest_ms + rounded_ms, "no lease that has ended holds the lock"


MARKS = ["", "@1500"]


def stem_of(name: bytes) -> bytes:
    """Return the part of a writer's name that its client has made."""
    return name.partition(b":")[2].partition(b"~")[0].partition(b"@")[0]


def is_own(writer: bytes, reader: bytes) -> bool:
    """Return whether this reader says that it is the same owner as this writer."""
    same_client = client_of(writer) == client_of(reader)
    return same_client and b"&" not in writer and reader.partition(b"&")[2].partition(b"~")[0] == stem_of(writer)


@pytest.mark.parametrize("seed", range(SEED, SEED + 240, 40))
def test_walks_keep_writers_alone_and_turns_and_leases_and_let_everybody_in_who_could_get_in(seed: int) -> None:
    grants = 0
    for one in range(seed, seed + 40):
        print(f"seed {one}")
        walk = ReadWalk(Random(one))
        for _ in range(120):
            walk.step("extend", "attempt", "repeat")
            walk.check()
        grants += len(walk.tokens)
    assert grants > 40 * 20
