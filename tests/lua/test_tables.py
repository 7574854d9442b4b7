"""The scripts as tables: a state, a call, the reply, the new state. On fakeredis and on real servers alike.

Times: the scores and deadlines of a row are relative to the master's clock, which is read just before.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from random import random
from typing import Any

import pytest
import redis
from attrs import Factory, define, evolve
from support.script_master import (
    FAR,
    LEASE_MS,
    QUEUE_MS,
    SHORT_MS,
    TOKEN_MS,
    ScriptMaster,
    check_header,
    check_repeats,
)
from support.servers import Server

from relock._keys import lock_keys
from relock._scripts import TOKEN_MAX, _fragment, find_folder, load, script_names

KEYS = lock_keys("lock", "a")
NAMES = [
    name for name in script_names() if not name.startswith(("permit_", "read_", "latch_"))
]  # the others have own tables
ME, YOU, THEY = b"me:1", b"you:1", b"they:1"


@define
class State:
    """State of lock ``a`` on a master; waiters in the order of their tickets."""

    holder: dict[bytes, int] = Factory(dict)
    foreign: bytes | None = None
    pttl_ms: int = LEASE_MS
    queue: list[bytes] = Factory(list)
    overdue: list[bytes] = Factory(list)
    token: int | None = None


@define
class Master(ScriptMaster):
    KEYS = KEYS

    def put(self, state: State) -> None:
        if state.foreign is not None:
            self.redis.set(KEYS.lock, state.foreign, px=state.pttl_ms)
        if state.holder:
            self.redis.hset(KEYS.lock, mapping=state.holder)
            self.redis.pexpire(KEYS.lock, state.pttl_ms)
        now_ms = self.now_us() // 1000
        for place, waiter in enumerate(state.queue):
            deadline = now_ms - 1 if waiter in state.overdue else now_ms + 10_000
            self.redis.zadd(KEYS.queue, {waiter: place + 1})
            self.redis.zadd(KEYS.waiters, {waiter: deadline})
        if state.token is not None:
            self.redis.set(KEYS.token, state.token)

    def call(self, name: str, *rest: Any, guarded: Any = False, **arguments: Any) -> list[Any]:
        return self.run(load(name), arguments, rest, guarded=guarded)

    def holder(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.redis.hgetall(KEYS.lock)
        return found


def acquire(master: Master, owner: bytes = ME, count: int | bytes = 1, fair: int = 1, **other: Any) -> list[Any]:
    own = {"owner": owner, "count": count, "lease_ms": LEASE_MS, "token_ms": TOKEN_MS, "fair": fair, "proposal": 0}
    return master.call("acquire", **own, **other)


def enqueue(master: Master, owner: bytes = ME, fair: int = 1, **other: Any) -> list[Any]:
    times = {"alive_ms": 7_000, "queue_ms": 30_000}
    given = {"ticket": 0, **times, **other}
    return master.call("enqueue", owner=owner, count=1, lease_ms=LEASE_MS, fair=fair, **given)


def release(master: Master, owner: bytes = ME, fence: int = 0, hand: int = 1, **other: Any) -> list[Any]:
    return master.call("release", owner=owner, fence=fence, token_ms=TOKEN_MS, hand=hand, **other)


# acquire --------------------------------------------------------------------------------------------------------------


def test_acquire_takes_a_free_lock_with_a_lease_and_the_clock_as_token(master: Master) -> None:
    before = master.now_us()
    status, now_us, token = acquire(master)
    assert status == b"granted"
    assert before <= now_us <= master.now_us()
    assert token == now_us
    assert master.holder() == {ME: b"1"}
    assert 0 < master.redis.pttl(KEYS.lock) <= LEASE_MS
    assert LEASE_MS < master.redis.pttl(KEYS.token) <= LEASE_MS + 1_000


def test_acquire_begins_with_the_count_that_is_asked(master: Master) -> None:
    acquire(master, count=3)
    assert master.holder() == {ME: b"3"}


def test_acquire_gives_a_token_above_one_that_is_ahead_of_the_clock(master: Master) -> None:
    ahead = master.now_us() + 3_600_000_000
    master.put(State(token=ahead))
    assert acquire(master)[2] == ahead + 1
    assert int(master.redis.get(KEYS.token)) == ahead + 1
    assert master.redis.pttl(KEYS.token) > 3_590_000 + LEASE_MS, "the token is kept until the clock has passed it"


@pytest.mark.parametrize(
    ("state", "reply"),
    [
        pytest.param(State(holder={YOU: 2}), [0, YOU], id="held"),
        pytest.param(State(holder={YOU: 1}, queue=[THEY]), [1, YOU], id="held, one waits"),
        pytest.param(State(foreign=b"x"), [0, b""], id="another library's"),
    ],
)
def test_acquire_is_refused_while_somebody_has_it(master: Master, state: State, reply: list[Any]) -> None:
    master.put(state)
    status, _, pttl_ms, *rest = acquire(master)
    assert (status, rest) == (b"refused", reply)
    assert 0 < pttl_ms <= LEASE_MS
    assert master.queue() == state.queue, "an acquire never queues"


def test_a_refused_acquire_takes_nothing_from_the_hash_of_another_program(master: Master) -> None:
    """Hashes of other programs keep their fields, whatever the fields are called."""
    master.redis.hset(KEYS.lock, "", 1)
    for _ in range(2):
        assert acquire(master)[0] == b"refused"
    assert master.redis.hgetall(KEYS.lock) == {b"": b"1"}


def test_acquire_reads_a_foreign_lock_without_a_ttl_as_held_without_an_end(master: Master) -> None:
    master.redis.set(KEYS.lock, "x")
    assert acquire(master)[2] == -1


def test_acquire_again_finds_its_hold_and_leaves_the_count_alone(master: Master) -> None:
    token = acquire(master)[2]
    master.redis.hset(KEYS.lock, ME, 2)
    assert acquire(master)[2] == token
    assert master.holder() == {ME: b"2"}


def test_acquire_leaves_a_free_lock_to_the_first_who_listens_and_wakes_it(master: Master) -> None:
    master.put(State(queue=[YOU, THEY]))
    master.listen("you")
    master.listen("they")
    status, _, pttl_ms, ahead, holder = acquire(master)
    assert (status, pttl_ms, ahead, holder) == (b"refused", 0, 2, b"")
    assert master.told() == [b"wake 1 a"]


def test_acquire_passes_over_waiters_that_nobody_listens_for(master: Master) -> None:
    master.put(State(queue=[YOU, THEY]))
    assert acquire(master)[0] == b"granted"
    assert master.queue() == [YOU, THEY], "waiters that may be alive keep their places"


def test_acquire_removes_waiters_that_are_overdue_although_they_listen(master: Master) -> None:
    master.put(State(queue=[YOU], overdue=[YOU]))
    master.listen("you")
    assert acquire(master)[0] == b"granted"
    assert master.queue() == []


def test_unfair_acquire_takes_a_free_lock_before_the_queue(master: Master) -> None:
    master.put(State(queue=[YOU]))
    master.listen("you")
    assert acquire(master, fair=0)[0] == b"granted"
    assert master.told() == []


@pytest.mark.parametrize("name", ["acquire", "enqueue", "count", "extend", "heal", "heartbeat", "force_release"])
def test_what_comes_after_its_not_after_time_does_nothing(master: Master, name: str) -> None:
    master.put(State(holder={YOU: 1}, queue=[THEY]))
    arguments = {
        "owner": YOU,
        "count": 5,
        "value": 5,
        "lease_ms": 1_000_000,
        "token_ms": 1_001_000,
        "fair": 1,
        "alive_ms": 7_000,
        "queue_ms": 30_000,
        "client": "me",
        "fence": 0,
        "proposal": 0,
        "ticket": 0,
    }
    own = {p.name: arguments[p.name] for p in load(name).arguments if p.name in arguments}
    now_us = master.now_us()
    rest = [now_us, ME] if name == "heartbeat" else []
    assert master.call(name, *rest, **own, not_after_us=now_us - 1)[0] == b"void"
    assert master.holder() == {YOU: b"1"}
    assert master.redis.pttl(KEYS.lock) <= LEASE_MS
    assert master.queue() == [THEY]


# enqueue --------------------------------------------------------------------------------------------------------------


def test_enqueue_takes_a_free_lock(master: Master) -> None:
    assert enqueue(master)[0] == b"granted"
    assert master.queue() == []


def test_enqueue_waits_at_the_end_and_keeps_its_ticket(master: Master) -> None:
    master.put(State(holder={THEY: 1}))
    status, now_us, pttl_ms, ahead, holder, ticket = enqueue(master, YOU)
    assert (status, ahead, holder, ticket) == (b"queued", 0, THEY, now_us)
    assert 0 < pttl_ms <= LEASE_MS
    later = enqueue(master, ME)
    assert (later[3], later[5] > ticket) == (1, True)
    assert enqueue(master, YOU)[5] == ticket
    assert master.queue() == [YOU, ME]
    for key in (KEYS.queue, KEYS.waiters):
        assert 0 < master.redis.pttl(key) <= 30_000


def test_enqueue_behind_the_dead_has_its_place_for_as_long_as_any(master: Master) -> None:
    """Dead waiters have no heartbeats, so the time of the queue may be nearly over."""
    master.put(State(holder={THEY: 1}, queue=[YOU]))
    master.redis.pexpire(KEYS.queue, 500)
    assert enqueue(master)[0] == b"queued"
    assert master.redis.pttl(KEYS.queue) > 29_000


def test_enqueue_gives_tickets_above_one_that_is_ahead_of_the_clock(master: Master) -> None:
    master.put(State(holder={THEY: 1}))
    ahead = master.now_us() + 3_600_000_000
    master.redis.zadd(KEYS.queue, {YOU: ahead})
    master.redis.zadd(KEYS.waiters, {YOU: ahead // 1000})
    assert enqueue(master)[5] == ahead + 1


def test_enqueue_is_granted_when_its_turn_comes_and_leaves_the_queue(master: Master) -> None:
    master.put(State(queue=[ME, YOU]))
    master.listen("you")
    assert enqueue(master)[0] == b"granted"
    assert master.queue() == [YOU]


def test_enqueue_of_another_wakes_the_head_of_a_free_lock(master: Master) -> None:
    master.put(State(queue=[YOU]))
    master.listen("you")
    assert enqueue(master)[:1] == [b"queued"]
    assert master.told() == [b"wake 1 a"]
    assert master.queue() == [YOU, ME]


# release and leave ----------------------------------------------------------------------------------------------------


def test_release_ends_the_hold_and_wakes_the_head_alone(master: Master) -> None:
    master.put(State(holder={ME: 3}, queue=[YOU, THEY]))
    master.listen("you")
    master.listen("they")
    assert release(master)[0] == b"released"
    assert master.holder() == {}
    assert master.told() == [b"wake 1 a"]


def test_release_wakes_the_first_that_listens_past_any_number_of_dead(master: Master) -> None:
    dead = [b"dead%d:1" % i for i in range(130)]
    master.put(State(holder={ME: 1}, queue=[*dead, YOU]))
    master.listen("you")
    release(master)
    assert master.told() == [b"wake 1 a"]


GRANTEE = b"you:1@3000"
HOLDER = b"me:0123456789abcdef0123@3000~4"  # its uuid ends with the 16 characters that name the next hold
HANDED = b"you:1@3000~456789abcdef0123.1"


def test_release_gives_the_lock_to_the_head_if_that_takes_grants(master: Master) -> None:
    master.put(State(holder={HOLDER: 3}, queue=[GRANTEE, THEY]))
    master.listen("you")
    master.listen("they")
    before = master.now_us()
    status, now_us = release(master, HOLDER)
    assert status == b"released"
    assert before <= now_us <= master.now_us()
    assert master.holder() == {HANDED: b"1"}
    assert 2_000 < master.redis.pttl(KEYS.lock) <= 3_000, "the lease of the waiter's name"
    assert master.queue() == [THEY]
    token = int(master.redis.get(KEYS.token))
    assert token == now_us
    assert master.told() == [b"grant 1@3000 456789abcdef0123.1 %d %d 3000 this a" % (token, now_us)]


def test_a_grant_has_a_token_above_all_before_it_and_the_released_one_too(master: Master) -> None:
    master.put(State(holder={HOLDER: 1}, queue=[GRANTEE], token=5))
    master.listen("you")
    release(master, HOLDER, fence=FAR)
    assert int(master.redis.get(KEYS.token)) == FAR + 1
    assert b" %d " % (FAR + 1) in master.told()[0]


def test_release_gives_the_lock_to_the_first_that_listens_past_the_dead(master: Master) -> None:
    master.put(State(holder={HOLDER: 1}, queue=[b"dead:1@3000", GRANTEE]))
    master.listen("you")
    release(master, HOLDER)
    (holder,) = master.holder()
    assert holder.startswith(GRANTEE + b"~")
    assert master.queue() == [b"dead:1@3000"], "a waiter that may be alive keeps its place"


def test_a_dead_waiter_looks_alive_to_a_release_while_somebody_else_watches_the_channels(master: Master) -> None:
    """PUBLISH counts all clients that receive a message: a limit that the documentation names."""
    master.put(State(holder={HOLDER: 1}, queue=[b"dead:1@3000", GRANTEE]))
    master.listen("you")
    watcher = master.redis.pubsub()
    watcher.psubscribe("lock:*")
    assert watcher.get_message(timeout=5)["type"] == "psubscribe"
    master.subscribers.append(watcher)
    release(master, HOLDER)
    (holder,) = master.holder()
    assert holder.startswith(b"dead:1@3000~")


@pytest.mark.parametrize("fence", [0, 7])
def test_a_release_beside_another_hold_of_the_same_hash_gives_nothing_and_wakes_nobody(
    master: Master, fence: int
) -> None:
    """Locks are not free when only the releaser's own field has ended."""
    master.put(State(holder={HOLDER: 1}, queue=[GRANTEE]))
    master.redis.hset(KEYS.lock, THEY, 1)
    master.listen("you")
    assert release(master, HOLDER, fence=fence)[0] == b"released"
    assert master.holder() == {THEY: b"1"}
    assert master.told() == []
    assert master.queue() == [GRANTEE]


def test_each_message_has_a_token_of_its_own(master: Master) -> None:
    """Waiters that do not listen here may hear of a token at a replica."""
    master.put(State(holder={HOLDER: 1}, queue=[b"dead:1@3000", b"dead:2@3000", b"late:1@3000", GRANTEE]))
    master.listen("you")
    before_us = release(master, HOLDER)[1]
    (token,) = [int(message.split()[3]) for message in master.told()]
    assert token == before_us + 3, "one more for each message before it, and the first waiter gets two"
    assert int(master.redis.get(KEYS.token)) == token


def test_the_token_of_a_grant_is_remembered_for_longer_than_its_lease_whoever_is_passed_over(master: Master) -> None:
    """The dead waiter before the grantee takes shorter leases."""
    master.put(State(holder={HOLDER: 1}, queue=[b"dead:1@50", GRANTEE]))
    master.listen("you")
    release(master, HOLDER)
    assert master.redis.pttl(KEYS.token) > master.redis.pttl(KEYS.lock) > 1050


def test_release_only_wakes_a_head_that_takes_no_grants(master: Master) -> None:
    master.put(State(holder={HOLDER: 1}, queue=[THEY, GRANTEE]))
    master.listen("you")
    master.listen("they")
    release(master, HOLDER)
    assert master.holder() == {}
    assert master.told() == [b"wake 1 a"]
    assert master.queue() == [THEY, GRANTEE]


@pytest.mark.parametrize(
    "how",
    [{"hand": 0}, {"not_after_us": 1}, {"guarded": True, "guard_ms": 1000}],
    ids=["not to be handed", "too late", "no vote"],
)
def test_release_only_wakes(real: Master, how: dict[str, Any]) -> None:
    """A late release, or one on a master that may have forgotten a hold, gives the lock to no waiter."""
    acquire(real, HOLDER)
    real.redis.zadd(KEYS.queue, {GRANTEE: 1})
    real.redis.zadd(KEYS.waiters, {GRANTEE: FAR})
    real.listen("you")
    assert release(real, HOLDER, **how)[0] == b"released"
    assert real.holder() == {}
    assert real.told() == [b"wake 1@3000 a"]


def test_release_only_wakes_where_nobody_counts_who_listens(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Cluster's PUBLISH counts the listeners of one node, so a dead first waiter looks like a live one."""
    acquire(master, HOLDER)
    master.redis.zadd(KEYS.queue, {GRANTEE: 1})
    master.redis.zadd(KEYS.waiters, {GRANTEE: FAR})
    master.listen("you")
    on_cluster = load("release").on_cluster
    monkeypatch.setitem(globals(), "load", lambda _: on_cluster)
    assert release(master, HOLDER)[0] == b"released"
    assert master.holder() == {}
    assert master.told() == [b"wake 1@3000 a"]


FORBID = {"no command": ["allchannels", "-publish"], "no channel": ["resetchannels"]}


@pytest.fixture(params=FORBID)
def mute(request: pytest.FixtureRequest, server: Server) -> Iterator[Master]:
    """A real server that refuses the scripts' messages; a client with all rights has put its state there."""
    server.cli("ACL", "SETUSER", "mute", "reset", "on", ">x", "~*", "+@all", *FORBID[request.param])
    with closing(redis.Redis.from_url(server.url)) as admin, closing(redis.Redis.from_url(server.url)) as client:
        admin.flushall()
        client.auth("x", "mute")
        yield Master(client)
    server.cli("ACL", "DELUSER", "mute")


def listening(server: Server, name: str) -> Any:
    """Return a context manager that keeps a client with all rights subscribed to its channel."""
    client: Any = redis.Redis.from_url(server.url)
    subscriber = client.pubsub()
    subscriber.subscribe(f"lock:client:{name}")
    assert subscriber.get_message(timeout=5)["type"] == "subscribe"
    return closing(subscriber)


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("queue", "fence"),
    [([GRANTEE], 0), ([THEY], 0), ([GRANTEE, THEY], FAR), ([b"dead:1@3000", GRANTEE], 0)],
    ids=["takes grants", "takes none", "with a token to write", "perhaps dead"],
)
def test_a_release_whose_message_is_refused_is_done_and_the_next_one_keeps_its_place_and_its_turn(
    server: Server, mute: Master, queue: list[bytes], fence: int
) -> None:
    mute.put(State(holder={HOLDER: 1}, queue=queue))
    with listening(server, "you"), listening(server, "they"):
        assert release(mute, HOLDER, fence=fence)[0] == b"released"
        assert mute.holder() == {}, "a waiter without a message has no hold"
        assert mute.queue() == queue
        assert int(mute.redis.get(KEYS.token) or 0) >= fence
        assert release(mute, HOLDER, fence=fence)[0] == b"absent"
        assert acquire(mute, b"other:1")[:1] == [b"refused"], "no newcomer passes the first waiter"
        client = queue[0].partition(b":")[0].decode()
        assert heartbeat(mute, 1, queue[0], client=client)[3] == queue[0], "the reply names the waiter whose turn it is"
        assert enqueue(mute, queue[0])[0] == b"granted"
    assert mute.queue() == queue[1:]


@pytest.mark.every_server
@pytest.mark.parametrize("name", ["leave", "give_back", "force_release", "enqueue"])
def test_no_script_fails_where_messages_are_refused(mute: Master, name: str) -> None:
    mute.put(State(holder={} if name in ("leave", "enqueue") else {b"me:1~1": 1}, queue=[YOU, THEY]))
    if name == "leave":
        assert mute.call("leave", owner=YOU)[0] == b"left"
    elif name == "give_back":
        assert give_back(mute)[0] == b"released"
    elif name == "enqueue":
        assert enqueue(mute, b"other:1")[0] == b"queued"
    else:
        assert mute.call("force_release", fence=0, lease_ms=LEASE_MS)[0] == b"released"
    assert mute.holder() == {}
    assert set(mute.queue()) >= {THEY}


@pytest.mark.every_server
@pytest.mark.parametrize("heard", [[], [b"dead:1"]], ids=["first", "behind one whose channel is allowed"])
def test_where_messages_are_refused_who_has_no_deadline_goes(server: Server, mute: Master, heard: list[bytes]) -> None:
    """Waiters without a deadline go, as in a Cluster: such a waiter would keep the lock from all others without end."""
    if heard:
        server.cli("ACL", "SETUSER", "mute", "resetchannels", "+publish", "&lock:client:d*")
        queue_up(mute, heard)
    queue_up(mute, [b"nobody:1"], deadline_ms=None, ticket=2)
    queue_up(mute, [YOU], ticket=3)
    assert acquire(mute)[0] == b"refused"
    assert mute.queue() == [*heard, YOU]


@pytest.mark.every_server
def test_a_message_that_is_refused_behind_one_that_nobody_hears_gives_the_lock_to_nobody(
    server: Server, mute: Master
) -> None:
    """The user may use some channels: here those of clients whose names begin with a d."""
    server.cli("ACL", "SETUSER", "mute", "resetchannels", "+publish", "&lock:client:d*")
    mute.put(State(holder={HOLDER: 1}, queue=[b"dead:1@3000", GRANTEE, b"dead:2@3000"]))
    with listening(server, "you"):
        assert release(mute, HOLDER)[0] == b"released"
    assert mute.holder() == {}
    assert mute.queue() == [b"dead:1@3000", GRANTEE, b"dead:2@3000"]
    assert heartbeat(mute, 2, GRANTEE, client="you")[3] == GRANTEE


@pytest.mark.every_server
def test_a_server_without_publish_ends_holds_as_well(start_server: Callable[..., Server]) -> None:
    server = start_server("--rename-command", "PUBLISH", "hidden-from-relock")
    with closing(redis.Redis.from_url(server.url)) as client:
        master = Master(client)
        master.put(State(holder={HOLDER: 1}, queue=[GRANTEE]))
        master.listen("you")
        assert release(master, HOLDER)[0] == b"released"
        assert master.holder() == {}
        assert master.queue() == [GRANTEE]
        master.subscribers.pop().close()


def test_a_release_that_comes_twice_gives_nothing_twice(master: Master) -> None:
    master.put(State(holder={HOLDER: 1}, queue=[GRANTEE, b"they:1@3000"]))
    master.listen("you")
    master.listen("they")
    release(master, HOLDER)
    assert release(master, HOLDER)[0] == b"absent"
    assert master.holder() == {HANDED: b"1"}
    assert len(master.told()) == 1


def test_a_waiter_after_a_grantee_gets_a_larger_ticket_though_the_grantee_may_give_it_back(master: Master) -> None:
    master.put(State(holder={HOLDER: 1}))
    master.redis.zadd(KEYS.queue, {GRANTEE: FAR})
    master.redis.zadd(KEYS.waiters, {GRANTEE: FAR})
    master.listen("you")
    release(master, HOLDER)
    assert master.queue() == []
    assert enqueue(master, THEY, ticket=-1)[-1] == FAR + 1


def test_an_enqueue_that_arrives_twice_is_granted_by_the_first_or_not_at_all(master: Master) -> None:
    """The waiter with the smallest ticket has its turn, even if this master has not heard of that ticket yet."""
    master.redis.zadd(KEYS.queue, {YOU: 20})
    master.redis.zadd(KEYS.waiters, {YOU: FAR})
    master.listen("you")
    first, second = (enqueue(master, ME, ticket=10) for _ in range(2))
    assert first[0] == second[0] == b"granted"
    assert master.holder() == {ME: b"1"}
    assert master.queue() == [YOU]


def test_a_waiter_after_an_attempt_gets_a_larger_ticket_though_the_attempt_may_give_the_lock_back(
    master: Master,
) -> None:
    master.put(State(queue=[YOU]))
    master.listen("you")
    attempt = b"%b~3.%d" % (YOU, FAR)
    assert enqueue(master, owner=attempt, ticket=FAR)[0] == b"granted"
    assert master.queue() == []
    assert enqueue(master, THEY, ticket=-1)[-1] == FAR + 1


def test_the_heartbeat_of_a_grantee_tells_that_it_has_been_given_the_lock(master: Master) -> None:
    """The message may be lost, and the grantee is no longer in the queue."""
    master.put(State(holder={HANDED: 1}, queue=[THEY]))
    status, _, left_ms, turn, head = heartbeat(master, 7, GRANTEE, client="you")
    assert (status, turn, head) == (b"tended", GRANTEE, THEY)
    assert left_ms > 0
    assert master.queue() == [THEY]


@pytest.mark.parametrize(
    "state", [State(), State(holder={YOU: 1}), State(foreign=b"x")], ids=["free", "you", "foreign"]
)
def test_release_of_what_is_not_there_is_absent_and_harms_nobody(master: Master, state: State) -> None:
    master.put(state)
    assert release(master)[0] == b"absent"
    assert master.redis.exists(KEYS.lock) == bool(state.holder or state.foreign)


def test_release_tells_the_token_also_where_the_hold_is_not(master: Master) -> None:
    """The master may have forgotten the hold, or never have had it."""
    assert release(master, fence=FAR)[0] == b"absent"
    assert master.redis.get(KEYS.token) == b"%d" % FAR


def test_release_gives_up_a_place_in_the_queue_too(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[ME, YOU]))
    assert release(master)[0] == b"absent"
    assert master.queue() == [YOU]


def test_release_writes_back_a_larger_token_and_never_a_smaller(master: Master) -> None:
    token = acquire(master)[2]
    release(master, fence=token + 10)
    assert int(master.redis.get(KEYS.token)) == token + 10
    acquire(master)
    release(master, fence=1)
    assert int(master.redis.get(KEYS.token)) > token + 10


def test_enqueue_proposes_a_ticket_and_writes_nothing(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[YOU]))
    last = 2 * master.now_us()
    master.redis.zadd(KEYS.queue, {YOU: last})
    status, _, _, ahead, holder, ticket = enqueue(master, ticket=-1)
    assert (status, ahead, holder, ticket) == (b"proposed", 1, THEY, last + 1), (
        "above every ticket that the master knows"
    )
    assert master.queue() == [YOU]


def test_enqueue_writes_a_proposed_ticket_that_is_above_the_clock_and_all_others(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[YOU]))
    proposed = master.now_us() + 1_000_000
    assert enqueue(master, ticket=-proposed)[5] == proposed
    assert enqueue(master, b"she:1", ticket=-proposed)[5] == proposed + 1
    assert enqueue(master, b"late:1", ticket=-5)[5] == proposed + 2
    assert master.queue() == [YOU, ME, b"she:1", b"late:1"]


def test_enqueue_writes_the_agreed_ticket_in_place_of_one_that_is_there(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[YOU]))
    assert enqueue(master, ticket=77)[5] == 77
    assert master.queue() == [YOU, ME]
    assert enqueue(master, ticket=99)[5] == 99, "the ticket that all agreed on replaces an earlier one"
    assert enqueue(master, ticket=77)[5] == 77
    assert enqueue(master, ticket=-99)[5] == 77, "a proposal does not change an agreed ticket"
    assert enqueue(master, ticket=-1)[0] == b"queued", "the waiter has its place"


def test_an_owner_takes_the_lock_in_the_turn_of_its_waiter(master: Master) -> None:
    master.put(State(queue=[ME, YOU]))
    master.listen("me")
    master.listen("you")
    assert enqueue(master, owner=b"me:1~1", ticket=1)[0] == b"granted"
    assert master.holder() == {b"me:1~1": b"1"}
    assert master.queue() == [YOU]


def give_back(master: Master, ticket: int = 5, **changes: Any) -> list[Any]:
    return master.call("give_back", owner=b"me:1~1", ticket=ticket, alive_ms=7_000, queue_ms=30_000, **changes)


def test_give_back_ends_an_attempt_and_puts_its_waiter_back_in_its_place(master: Master) -> None:
    """Waiters behind the attempt's waiter are not woken."""
    master.put(State(holder={b"me:1~1": 1}, queue=[YOU]))
    master.redis.zadd(KEYS.queue, {YOU: 9})
    master.listen("me")
    master.listen("you")
    assert give_back(master)[0] == b"released"
    assert master.told() == []
    assert master.queue() == [ME, YOU]
    assert master.holder() == {}


def test_give_back_wakes_who_comes_before(master: Master) -> None:
    master.put(State(holder={b"me:1~1": 1}, queue=[YOU]))
    master.listen("you")
    assert give_back(master)[0] == b"released"
    assert len(master.told()) == 1


def test_give_back_that_comes_late_puts_nobody_back(master: Master) -> None:
    """Others may have been served meanwhile, so no place is restored; but the attempt's hold ends at any time."""
    master.put(State(holder={b"me:1~1": 1}, queue=[YOU]))
    master.listen("you")
    assert give_back(master, not_after_us=0)[0] == b"released"
    assert master.queue() == [YOU]
    assert master.holder() == {}


@pytest.mark.parametrize("ticket", [0, 5])
def test_give_back_of_nothing_queues_nobody(master: Master, ticket: int) -> None:
    master.put(State(holder={THEY: 1}, queue=[YOU]))
    assert give_back(master, ticket)[0] == b"absent"
    assert master.queue() == [YOU]
    assert master.holder() == {THEY: b"1"}


def test_release_gives_up_the_place_of_the_waiter_behind_an_attempt(master: Master) -> None:
    master.put(State(holder={b"me:1~1": 1}, queue=[ME, YOU]))
    master.listen("you")
    assert release(master, owner=b"me:1~1")[0] == b"released"
    assert len(master.told()) == 1
    assert master.queue() == [YOU]


def fence(master: Master, token: int) -> list[Any]:
    return master.call("fence", fence=token, lease_ms=LEASE_MS)


def test_fence_keeps_a_larger_token_and_never_a_smaller(master: Master) -> None:
    assert fence(master, FAR)[0] == b"fenced"
    assert fence(master, 5)[0] == b"fenced"
    assert int(master.redis.get(KEYS.token)) == FAR
    assert acquire(master)[2] == FAR + 1


def heal(master: Master, token: int = 9, **other: Any) -> list[Any]:
    return master.call("heal", owner=ME, value=3, lease_ms=LEASE_MS, fence=token, **other)


def test_heal_gives_a_hold_back_with_its_count_and_its_token(master: Master) -> None:
    assert heal(master, token=FAR)[0] == b"healed"
    assert master.holder() == {ME: b"3"}
    assert 0 < master.redis.pttl(KEYS.lock) <= LEASE_MS
    assert int(master.redis.get(KEYS.token)) == FAR


@pytest.mark.parametrize(
    ("state", "status", "holder"),
    [
        (State(holder={YOU: 1}), b"refused", {YOU: b"1"}),
        (State(holder={ME: 2}), b"healed", {ME: b"2"}),
        (State(token=FAR), b"healed", {ME: b"3"}),
    ],
    ids=["held by another", "here already", "a larger token"],
)
def test_heal_takes_nothing_from_others(
    master: Master, state: State, status: bytes, holder: dict[bytes, bytes]
) -> None:
    master.put(state)
    assert heal(master)[0] == status
    assert master.holder() == holder
    assert state.token is None or int(master.redis.get(KEYS.token)) == state.token


def test_the_token_is_remembered_for_longer_than_the_hold_whoever_prolongs_that(master: Master) -> None:
    """A repeated request prolongs the lease; without its token the hold would seem to have none."""
    for prolong in (acquire, enqueue, lambda master: heal(master, token=1)):
        token = acquire(master)[2]
        master.redis.pexpire(KEYS.lock, 900)
        master.redis.pexpire(KEYS.token, 1000)
        assert prolong(master)[0] in (b"granted", b"healed")
        assert int(master.redis.get(KEYS.token)) == token
        assert master.redis.pttl(KEYS.token) > master.redis.pttl(KEYS.lock) > 1000
        release(master)


def test_heal_leaves_a_lock_of_another_library_alone(master: Master) -> None:
    master.put(State(foreign=b"x"))
    assert heal(master)[0] == b"refused"


def test_leave_gives_up_a_place_never_a_hold(master: Master) -> None:
    master.put(State(holder={ME: 1}, queue=[ME, YOU]))
    assert master.call("leave", owner=ME)[0] == b"left"
    assert master.holder() == {ME: b"1"}
    assert master.queue() == [YOU]
    assert master.call("leave", owner=ME)[0] == b"absent"


def test_leave_passes_the_turn_on(master: Master) -> None:
    master.put(State(queue=[ME, YOU]))
    master.listen("you")
    master.call("leave", owner=ME)
    assert master.told() == [b"wake 1 a"]


# count and extend -----------------------------------------------------------------------------------------------------


def test_count_writes_the_absolute_count_twice_the_same(master: Master) -> None:
    master.put(State(holder={ME: 1}, pttl_ms=5_000))
    for _ in range(2):
        assert master.call("count", owner=ME, count=2, lease_ms=0)[0] == b"counted"
    assert master.holder() == {ME: b"2"}
    assert master.redis.pttl(KEYS.lock) <= 5_000


def test_count_lengthens_the_lease_and_never_shortens_it(master: Master) -> None:
    master.put(State(holder={ME: 1}, pttl_ms=5_000))
    master.call("count", owner=ME, count=2, lease_ms=9_000)
    assert 5_000 < master.redis.pttl(KEYS.lock) <= 9_000
    master.call("count", owner=ME, count=2, lease_ms=1_000)
    assert master.redis.pttl(KEYS.lock) > 5_000


def test_extend_renews_and_never_shortens(master: Master) -> None:
    master.put(State(holder={ME: 2}, pttl_ms=5_000))
    assert master.call("extend", owner=ME, lease_ms=9_000, token_ms=10_000)[0] == b"extended"
    assert 5_000 < master.redis.pttl(KEYS.lock) <= 9_000
    master.call("extend", owner=ME, lease_ms=100, token_ms=1_100)
    assert master.redis.pttl(KEYS.lock) > 5_000
    assert master.holder() == {ME: b"2"}


@pytest.mark.parametrize(
    "state", [State(), State(holder={YOU: 1}), State(foreign=b"x")], ids=["free", "you", "foreign"]
)
@pytest.mark.parametrize("name", ["count", "extend"])
def test_nothing_but_an_acquire_creates_a_hold(master: Master, name: str, state: State) -> None:
    master.put(state)
    arguments: dict[str, Any] = {"owner": ME, "lease_ms": 1_000}
    arguments |= {"count": 2} if name == "count" else {"token_ms": 2_000}
    assert master.call(name, **arguments)[0] == b"absent"
    assert master.redis.exists(KEYS.lock) == bool(state.holder or state.foreign)
    if state.holder:
        assert master.holder() == {YOU: b"1"}


# heartbeat ------------------------------------------------------------------------------------------------------------


def heartbeat(master: Master, *waiters: Any, client: str = "me") -> list[Any]:
    return master.call("heartbeat", *waiters, client=client, alive_ms=7_000, queue_ms=30_000)


def test_heartbeat_restores_lost_entries_with_their_old_tickets(master: Master) -> None:
    master.put(State(holder={THEY: 1}))
    master.redis.zadd(KEYS.queue, {YOU: 20})
    master.redis.zadd(KEYS.waiters, {YOU: FAR})
    assert heartbeat(master, 10, ME, 30, b"me:2")[0] == b"tended"
    assert master.queue() == [ME, YOU, b"me:2"]


def test_heartbeat_moves_deadlines_and_removes_the_overdue(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[YOU, ME], overdue=[YOU, ME]))
    heartbeat(master, 2, ME)
    assert master.queue() == [ME]
    assert int(master.redis.zscore(KEYS.waiters, ME)) > master.now_us() // 1000 + 5_000


def test_heartbeat_never_queues_who_holds_the_lock(master: Master) -> None:
    master.put(State(holder={ME: 1}))
    heartbeat(master, 1, ME)
    assert master.queue() == []


@pytest.mark.parametrize(
    ("queue", "listening", "turn", "woken"),
    [
        pytest.param([ME, YOU], ["me", "you"], ME, 1, id="mine, and it listens"),
        pytest.param([ME, YOU], [], ME, 0, id="mine, and it is told although its subscription broke"),
        pytest.param([YOU, ME], ["me", "you"], b"", 1, id="another's"),
        pytest.param([YOU, ME], ["me"], ME, 1, id="mine, after a dead one"),
    ],
)
def test_heartbeat_says_whose_turn_it_is(
    master: Master, queue: list[bytes], listening: list[str], turn: bytes, woken: int
) -> None:
    master.put(State(queue=queue))
    for client in listening:
        master.listen(client)
    assert heartbeat(master, queue.index(ME) + 1, ME)[3] == turn
    assert len(master.told()) == woken


def test_heartbeat_says_nothing_of_turns_while_the_lock_is_held(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[ME]))
    master.listen("me")
    status, _, pttl_ms, turn, head = heartbeat(master, 1, ME)
    assert (status, turn, head) == (b"tended", b"", ME)
    assert 0 < pttl_ms <= LEASE_MS
    assert master.told() == []


# rest -----------------------------------------------------------------------------------------------------------------

REST = {b"~me:1": b"0"}


def rest(master: Master, rest_ms: int, fence: int = 0) -> list[Any]:
    return master.call("rest", owner=ME, rest_ms=rest_ms, fence=fence, token_ms=max(rest_ms, LEASE_MS) + 1_000)


@pytest.mark.parametrize("rest_ms", [SHORT_MS, 2 * LEASE_MS], ids=["shorter than the lease", "longer"])
def test_a_rest_keeps_the_lock_from_everybody_and_late_requests_of_its_hold_do_not_find_it(
    master: Master, rest_ms: int
) -> None:
    token = acquire(master)[2]
    assert rest(master, rest_ms)[0] == b"released"
    times = {"lease_ms": 3 * LEASE_MS, "not_after_us": FAR}
    assert master.call("extend", owner=ME, token_ms=TOKEN_MS, **times)[0] == b"absent"
    assert [master.call("count", owner=ME, count=2, **{**times, "lease_ms": ms})[0] for ms in (0, 9)] == [b"absent"] * 2
    assert master.call("heal", owner=ME, value=1, fence=token, **times)[0] == b"refused"
    for owner in (ME, YOU):
        status, _, pttl_ms, *_, holder = acquire(master, owner)
        assert (status, holder) == (b"refused", b"~me:1")
        assert rest_ms - SHORT_MS < pttl_ms <= rest_ms
    assert rest(master, 3 * LEASE_MS)[0] == release(master)[0] == b"absent", "neither lengthens nor ends the rest"
    assert master.holder() == REST
    assert rest_ms - SHORT_MS < master.redis.pttl(KEYS.lock) <= rest_ms < master.redis.pttl(KEYS.token)


def test_a_rest_wakes_the_first_waiter_which_learns_when_it_ends(master: Master) -> None:
    master.put(State(holder={ME: 1}, queue=[ME, YOU, THEY]))
    master.listen("you", "they")
    rest(master, SHORT_MS)
    assert master.told() == [b"wake 1 a"]
    assert master.queue() == [YOU, THEY], "the place of its own waiter is given up"
    status, _, pttl_ms, ahead, holder, _ = enqueue(master, YOU)
    assert (status, ahead, holder) == (b"queued", 0, b"~me:1")
    assert 0 < pttl_ms <= SHORT_MS


def test_a_rest_is_absent_where_the_hold_is_not_and_tells_the_token_there(master: Master) -> None:
    master.put(State(holder={YOU: 1}, queue=[THEY]))
    master.listen("they")
    assert rest(master, SHORT_MS, fence=FAR)[0] == b"absent"
    assert (master.holder(), master.told()) == ({YOU: b"1"}, [])
    assert master.redis.get(KEYS.token) == b"%d" % FAR


def test_a_rest_shortens_no_lease_of_another_program_in_the_same_hash(master: Master) -> None:
    master.put(State(holder={ME: 1, YOU: 1}))
    rest(master, SHORT_MS)
    assert master.holder() == {YOU: b"1", **REST}
    assert master.redis.pttl(KEYS.lock) > SHORT_MS


def test_force_release_ends_a_rest(master: Master) -> None:
    token = acquire(master)[2]
    rest(master, SHORT_MS)
    assert master.call("force_release", fence=0, lease_ms=LEASE_MS)[0] == b"released"
    status, _, later = acquire(master, YOU)
    assert status == b"granted"
    assert later > token


# notes ----------------------------------------------------------------------------------------------------------------

NOTE = "nightly \u00e4\nhttps://ci/7".encode()


def look(master: Master) -> list[Any]:
    """Return what `inspect` says, but for the times."""
    status, _, *found = master.call("inspect", limit=9)
    return [status, *(found[1:] if status != b"free" else found)]


def test_a_note_stands_behind_the_count_of_its_hold_and_ends_with_it(master: Master) -> None:
    token = acquire(master, count=b"1 " + NOTE)[2]
    assert master.holder() == {ME: b"1 " + NOTE}
    assert look(master) == [b"noted", ME, 1, token, NOTE, []]
    again, other = acquire(master, count=b"1 " + NOTE), acquire(master, YOU)
    assert (again[0], again[2], other[0], other[4]) == (b"granted", token, b"refused", ME)
    assert master.call("count", owner=ME, count=b"12 " + NOTE, lease_ms=0)[0] == b"counted"
    assert look(master) == [b"noted", ME, 12, token, NOTE, []]
    assert release(master)[0] == b"released"
    assert look(master) == [b"free", token, []]
    assert master.call("heal", owner=ME, value=b"3 " + NOTE, fence=token, lease_ms=LEASE_MS)[0] == b"healed"
    assert look(master) == [b"noted", ME, 3, token, NOTE, []]
    assert master.call("force_release", fence=0, lease_ms=LEASE_MS)[0] == b"released"
    assert enqueue(master, YOU)[0] == b"granted"
    assert look(master)[:3] == [b"held", YOU, 1]


def test_a_rest_has_no_note(master: Master) -> None:
    acquire(master, count=b"1 " + NOTE)
    rest(master, SHORT_MS)
    assert master.holder() == REST


@pytest.mark.parametrize(("before", "after"), [("1", "1 why"), ("3", "3 why"), ("2 another", "2 another")])
def test_an_extension_adds_a_note_where_there_is_none_and_leaves_the_count(
    master: Master, before: str, after: str
) -> None:
    acquire(master, count=before.encode())
    lengths = {"lease_ms": 3 * LEASE_MS, "token_ms": 3 * LEASE_MS + 1_000}
    for _ in range(2):
        assert master.call("extend", "why", owner=ME, **lengths)[0] == b"extended"
        assert master.holder() == {ME: after.encode()}
        assert LEASE_MS < master.redis.pttl(KEYS.lock) < master.redis.pttl(KEYS.token)
    assert master.call("extend", "why", owner=YOU, **lengths)[0] == b"absent"
    assert master.call("extend", "why", owner=ME, **lengths, not_after_us=1)[0] == b"void"
    assert master.holder() == {ME: after.encode()}


@pytest.mark.parametrize(
    ("value", "count", "note"), [("x y", 0, None), ("1 ", 1, None), (" y", 0, None), ("1 " + 999 * "y", 1, 218 * b"y")]
)
def test_the_value_of_another_program_is_read_in_part(
    master: Master, value: str, count: int, note: bytes | None
) -> None:
    master.redis.hset(KEYS.lock, ME, value)
    status, _, _, holder, found, _, *more = master.call("inspect", limit=9)
    assert (holder, found) == (ME, count)
    assert [status, *more] == ([b"held", []] if note is None else [b"noted", note, []])


# inspect and force_release --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reply"),
    [
        pytest.param(State(), [b"free", 0, []], id="free"),
        pytest.param(State(queue=[YOU], token=7), [b"free", 7, [YOU, b"1"]], id="free, one waits"),
        pytest.param(
            State(holder={ME: 2}, queue=[YOU, THEY], token=7), [b"held", ME, 2, 7, [YOU, b"1", THEY, b"2"]], id="held"
        ),
        pytest.param(State(foreign=b"x"), [b"held", b"", 0, 0, []], id="another library's"),
    ],
)
def test_inspect(master: Master, state: State, reply: list[Any]) -> None:
    master.put(state)
    found = master.call("inspect", limit=100)
    without_times = found[:1] + found[3 if found[0] == b"held" else 2 :]
    assert without_times == reply


def test_force_release_ends_any_hold_wakes_the_head_and_keeps_the_token(master: Master) -> None:
    master.put(State(holder={THEY: 1}, queue=[YOU], token=5))
    master.listen("you")
    assert master.call("force_release", fence=0, lease_ms=LEASE_MS)[0] == b"released"
    assert master.holder() == {}
    assert int(master.redis.get(KEYS.token)) == 5
    assert master.told() == [b"wake 1 a"]
    assert master.call("force_release", fence=0, lease_ms=LEASE_MS)[0] == b"absent"


@pytest.mark.parametrize("ahead_ms", [0, 2 * LEASE_MS], ids=["of a silent master", "of a quorum"])
def test_force_release_passes_a_token_that_only_another_master_knows(master: Master, ahead_ms: int) -> None:
    """Tokens that no quorum knows lie below the end of the lease that is deleted here."""
    lease_ends_us = master.now_us() + LEASE_MS * 1000
    master.put(State(holder={THEY: 1}, token=5))
    fence = master.now_us() + ahead_ms * 1000
    assert master.call("force_release", fence=fence, lease_ms=LEASE_MS)[0] == b"released"
    token = int(master.redis.get(KEYS.token))
    assert token == fence if ahead_ms else token >= lease_ends_us


def test_force_release_of_a_free_lock_changes_no_token(master: Master) -> None:
    master.put(State(token=5))
    assert master.call("force_release", fence=9, lease_ms=LEASE_MS)[0] == b"absent"
    assert int(master.redis.get(KEYS.token)) == 5


# notify ---------------------------------------------------------------------------------------------------------------

ASK, WAIT = b"ask me me.1 you:1", b"wait me.1 you:1 you:2@3000 7 11 \xc3\xa4 lock"


def notify(master: Master, client: bytes, message: bytes) -> list[Any]:
    return master.call("notify", client=client, message=message)


@pytest.mark.parametrize("message", [ASK, WAIT], ids=["ask", "wait"])
def test_notify_brings_a_message_to_one_client_as_it_is(master: Master, message: bytes) -> None:
    master.listen("you", "they")
    before = master.now_us()
    status, now_us, heard = notify(master, b"you", message)
    assert (status, heard) == (b"told", 1)
    assert before <= now_us <= master.now_us()
    assert master.told() == [message]


def test_notify_says_that_no_client_hears_it(master: Master) -> None:
    master.listen("they")
    assert notify(master, b"you", ASK)[::2] == [b"told", 0]
    assert master.told() == []


@pytest.mark.parametrize(
    "state",
    [State(), State(holder={YOU: 1}, queue=[THEY], token=5), State(queue=[YOU, THEY]), State(foreign=b"x")],
    ids=["free", "held", "free, two wait", "another library's"],
)
def test_notify_changes_nothing_and_gives_no_turn(master: Master, state: State) -> None:
    master.put(state)
    master.listen("they")
    before = {key: held for key, (held, _) in master.seen().items()}
    assert notify(master, b"they", ASK)[2] == 1
    assert {key: held for key, (held, _) in master.seen().items()} == before
    assert master.told() == [ASK]


@pytest.mark.parametrize("prefix", ["lock", "lock:demo", "a b"])
def test_notify_uses_the_channels_of_the_locks_prefix(master: Master, prefix: str) -> None:
    """A lock's name may have braces; a prefix may not."""
    keys = lock_keys(prefix, "a:{b}{c")
    with closing(master.redis.pubsub()) as subscriber:
        subscriber.subscribe(f"{prefix}:client:you")
        assert subscriber.get_message(timeout=5)["type"] == "subscribe"
        source = load("notify").source
        assert master.redis.eval(source, 1, keys.lock, b"you", ASK)[2] == 1
        assert subscriber.get_message(timeout=5)["data"] == ASK


@pytest.mark.every_server
def test_notify_is_no_error_where_messages_are_refused(server: Server, mute: Master) -> None:
    with listening(server, "you"):
        assert notify(mute, b"you", ASK)[::2] == [b"told", -1]


# the vote -------------------------------------------------------------------------------------------------------------

TAKES = pytest.mark.parametrize("take", [acquire, enqueue, heal], ids=["acquire", "enqueue", "heal"])


def mark(real: Master, incarnation: bytes, *, until_us: int = 1, guard_ms: int = 900) -> None:
    """Write a marker as if a client had looked at the master as `incarnation`."""
    marker = {"incarnation": incarnation, "no_vote_until_us": until_us, "guard_ms": guard_ms}
    real.redis.hset(KEYS.master, mapping=marker)


def outlived(real: Master) -> bytes:
    """Return the incarnation of the same process before it followed another master and became one again."""
    return real.incarnation.partition(b":")[0] + b":" + b"0" * 40


VOTE = f"""
{_fragment(find_folder(), "digits")}
{_fragment(find_folder(), "just_now")}
{_fragment(find_folder(), "vote")}
return no_vote_until(KEYS[1], ARGV[1], ARGV[2], 'me:1', tonumber(ARGV[3])) or false
"""


@TAKES
def test_a_master_without_its_marker_has_no_vote_until_the_guard_is_over(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    status, now_us, until_us = take(real, guarded=True, guard_ms=500)
    assert (status, until_us) == (b"no_vote", now_us + 500_000)
    assert take(real, guarded=True, guard_ms=500)[2] == until_us, "the guard began once"
    assert (real.holder(), real.queue()) == ({}, [])
    real.redis.hset(KEYS.master, "no_vote_until_us", real.now_us() - 1)
    assert take(real, guarded=True, guard_ms=500)[0] in (b"granted", b"healed")


def test_another_incarnation_starts_the_guard_again(real: Master) -> None:
    mark(real, b"that")
    status, now_us, until_us = acquire(real, guarded=True, guard_ms=500)
    assert (status, until_us) == (b"no_vote", now_us + 900_000), "the largest guard in use counts"
    assert real.redis.hget(KEYS.master, "incarnation") == real.incarnation


def marked(real: Master) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = real.redis.hgetall(KEYS.master)
    return found


@TAKES
def test_a_larger_guard_is_written_down_for_all_with_what_is_given(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    mark(real, real.incarnation)
    status, now_us, *_ = take(real, guarded=True, guard_ms=1_500)
    assert status in (b"granted", b"healed")
    assert marked(real) == {
        b"incarnation": real.incarnation,
        b"no_vote_until_us": b"600001",
        b"guard_ms": b"1500",
        b"set_by": b"me",
        b"set_us": b"%d" % now_us,
    }


def test_a_place_is_given_with_the_larger_guard_as_well(real: Master) -> None:
    """A releaser that does not know that guard may make a hold of the place."""
    mark(real, real.incarnation)
    real.put(State({YOU: 1}))
    assert enqueue(real, guarded=True, guard_ms=1_500, ticket=-1)[0] == b"proposed"
    assert marked(real)[b"guard_ms"] == b"900"
    assert enqueue(real, guarded=True, guard_ms=1_500)[0] == b"queued"
    assert (marked(real)[b"guard_ms"], marked(real)[b"set_by"]) == (b"1500", b"me")


@TAKES
def test_a_larger_guard_that_gets_nothing_changes_nothing_on_a_master_that_votes(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    """The caller waits until its own guard would be over; other clients go on meanwhile."""
    began_us = real.now_us() - 1_000_000
    mark(real, real.incarnation, until_us=began_us + 900_000)
    before = marked(real)
    status, _, until_us = take(real, guarded=True, guard_ms=600_000)
    assert (status, until_us) == (b"no_vote", began_us + 600_000_000)
    assert marked(real) == before
    assert take(real, guarded=True, guard_ms=900)[0] in (b"granted", b"healed")


def test_a_larger_guard_that_is_refused_changes_nothing(real: Master) -> None:
    mark(real, real.incarnation)
    before = marked(real)
    real.put(State({YOU: 1}))
    assert acquire(real, guarded=True, guard_ms=1_500)[0] == b"refused"
    release(real, guarded=True, guard_ms=1_500)
    assert marked(real) == before


@TAKES
@pytest.mark.parametrize("guard_ms", [500, b"+500", -500])
def test_a_larger_guard_that_came_after_the_socket_is_read_before_anything_is_given(
    real: Master, take: Callable[..., list[Any]], guard_ms: Any
) -> None:
    """Otherwise clients would begin their small guard if the master forgets the larger one."""
    mark(real, real.incarnation)
    before = marked(real)
    status, now_us, until_us = take(real, guarded=True, guard_ms=guard_ms)
    assert (status, until_us) == (b"no_vote", now_us)
    assert (marked(real), real.holder()) == (before, {})


def test_who_has_set_a_guard_is_written_down_until_another_sets_a_larger_one(real: Master) -> None:
    _, now_us, _ = acquire(real, ME, guarded=True, guard_ms=500)
    mine = (b"me", b"%d" % now_us)
    acquire(real, YOU, guarded=True, guard_ms=500)
    assert (marked(real)[b"set_by"], marked(real)[b"set_us"]) == mine
    real.redis.hset(KEYS.master, "incarnation", "that")
    acquire(real, YOU, guarded=True, guard_ms=400)
    assert (marked(real)[b"set_by"], marked(real)[b"set_us"]) == mine, "a restart keeps the author of the guard"
    _, later_us, _ = acquire(real, YOU, guarded=True, guard_ms=600)
    assert (marked(real)[b"set_by"], marked(real)[b"set_us"]) == (b"you", b"%d" % later_us)


# the first contact ----------------------------------------------------------------------------------------------------


@TAKES
def test_a_first_contact_gets_nothing_where_the_marker_is_missing_and_writes_nothing(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    status, now_us, until_us = take(real, guarded=True, guard_ms=-600_000)
    assert (status, until_us) == (b"no_vote", now_us)
    assert list(real.redis.scan_iter()) == []


@TAKES
def test_a_first_contact_gets_what_others_get_where_the_marker_is_right(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    mark(real, real.incarnation)
    before = marked(real)
    assert take(real, guarded=True, guard_ms=-900)[0] in (b"granted", b"healed")
    assert marked(real) == before


@TAKES
def test_a_first_contact_spreads_no_larger_guard_where_the_master_votes(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    mark(real, real.incarnation)
    before = marked(real)
    status, now_us, until_us = take(real, guarded=True, guard_ms=-1_500)
    assert (status, until_us) == (b"no_vote", now_us), "no vote, even if the client's own guard would be over"
    assert marked(real) == before
    assert real.holder() == {}


@TAKES
def test_a_first_contact_begins_the_guard_where_the_marker_is_that_of_another_incarnation(
    real: Master, take: Callable[..., list[Any]]
) -> None:
    mark(real, b"that")
    status, now_us, until_us = take(real, guarded=True, guard_ms=-500)
    assert (status, until_us) == (b"no_vote", now_us + 900_000)
    assert marked(real)[b"incarnation"] == real.incarnation


@TAKES
def test_a_first_contact_lengthens_a_guard_that_runs(real: Master, take: Callable[..., list[Any]]) -> None:
    """The master may have forgotten a lease as long as this client's."""
    began_us = real.now_us()
    mark(real, real.incarnation, until_us=began_us + 900_000)
    status, _, until_us = take(real, guarded=True, guard_ms=-1_500)
    assert (status, until_us) == (b"no_vote", began_us + 1_500_000)
    assert (marked(real)[b"guard_ms"], marked(real)[b"set_by"]) == (b"1500", b"me")


def test_a_first_contact_hands_nothing_over_and_accuses_nobody(real: Master) -> None:
    real.put(State({ME: 1}, queue=[b"you:1@3000"]))
    real.listen("you")
    release(real, guarded=True, guard_ms=-500)
    assert real.told() == [b"wake 1@3000 a"]
    assert quarantine(real, guard_ms=-500)[0] == b"absent"
    assert not real.redis.exists(KEYS.master)
    mark(real, real.incarnation)
    before = marked(real)
    assert quarantine(real, guard_ms=-500)[0] == b"absent"
    assert marked(real) == before


@TAKES
def test_a_guard_of_others_stops_nobody_on_a_master_that_votes(real: Master, take: Callable[..., list[Any]]) -> None:
    """The client that has found the guard has shorter leases itself."""
    mark(real, real.incarnation, until_us=real.now_us() - 1)
    before = marked(real)
    assert take(real, guarded=True, guard_ms=b"+600000")[0] in (b"granted", b"healed")
    assert marked(real) == before


@TAKES
def test_a_guard_of_others_begins_where_the_marker_is_missing(real: Master, take: Callable[..., list[Any]]) -> None:
    status, now_us, until_us = take(real, guarded=True, guard_ms=b"+600000")
    assert (status, until_us) == (b"no_vote", now_us + 600_000_000)
    assert (marked(real)[b"guard_ms"], marked(real)[b"set_by"]) == (b"600000", b"me")
    real.redis.hset(KEYS.master, mapping={"no_vote_until_us": now_us + 900_000, "guard_ms": 900})
    assert take(real, guarded=True, guard_ms=b"+600000")[2] == now_us + 600_000_000, (
        "the guard grows while the master has no vote"
    )


def test_a_guard_of_others_gets_no_vote_on_a_socket_that_outlived_its_incarnation(real: Master) -> None:
    mark(real, real.incarnation)
    status, now_us, until_us = acquire(real, guarded=True, incarnation=outlived(real), guard_ms=b"+600000")
    assert status == b"no_vote"
    assert until_us >= now_us
    assert real.holder() == {}


# lowering -------------------------------------------------------------------------------------------------------------


def lower(real: Master) -> list[Any]:
    fields = real.redis.hmget(KEYS.master, "incarnation", "no_vote_until_us", "guard_ms")
    return real.call("lower_guard", seen=b" ".join(fields), guarded=True)


def test_a_guard_that_is_lowered_is_over_for_everybody_and_grows_with_what_is_given(real: Master) -> None:
    acquire(real, guarded=True, guard_ms=600_000)
    assert lower(real)[0] == b"lowered"
    assert marked(real) == {b"incarnation": real.incarnation, b"no_vote_until_us": b"0", b"guard_ms": b"0"}
    assert acquire(real, YOU, guarded=True, guard_ms=0)[0] == b"granted"
    release(real, YOU)
    assert acquire(real, ME, guarded=True, guard_ms=30_000)[0] == b"granted", (
        "the vote comes at once, because the guard began in 1970"
    )
    assert (marked(real)[b"guard_ms"], marked(real)[b"set_by"]) == (b"30000", b"me")


def test_a_guard_is_lowered_only_if_it_is_the_one_that_was_seen(real: Master) -> None:
    mark(real, real.incarnation, until_us=7)
    seen = real.incarnation + b" 7 900"
    mark(real, b"that", until_us=7)
    assert real.call("lower_guard", seen=seen, guarded=True)[0] == b"changed"
    assert marked(real)[b"guard_ms"] == b"900"
    real.redis.delete(KEYS.master)
    assert real.call("lower_guard", seen=seen, guarded=True)[0] == b"absent"
    assert not real.redis.exists(KEYS.master)


def test_a_guard_is_lowered_on_a_master_that_is_out_of_memory(real: Master) -> None:
    acquire(real, guarded=True, guard_ms=600_000)
    real.redis.config_set("maxmemory", 1)
    try:
        assert lower(real)[0] == b"lowered"
    finally:
        real.redis.config_set("maxmemory", 0)


# the guard that runs --------------------------------------------------------------------------------------------------


def test_a_larger_guard_that_comes_later_lengthens_one_that_runs(real: Master) -> None:
    """The leases that were forgotten when the smaller guard began may be longer ones of this client."""
    began_us = real.now_us()
    mark(real, real.incarnation, until_us=began_us + 900_000)
    status, _, until_us = acquire(real, guarded=True, guard_ms=1_500)
    assert (status, until_us) == (b"no_vote", began_us + 1_500_000)
    assert acquire(real, guarded=True, guard_ms=500)[2] == until_us, "the longer guard holds for all clients"


def test_a_clock_that_was_set_back_does_not_lengthen_the_guard(real: Master) -> None:
    mark(real, real.incarnation, until_us=real.now_us() + 10**12, guard_ms=500)
    status, now_us, until_us = acquire(real, guarded=True, guard_ms=500)
    assert (status, until_us) == (b"no_vote", now_us + 500_000)
    assert acquire(real, guarded=True, guard_ms=500)[2] == until_us, "the guard does not begin again and again"
    assert real.redis.ttl(KEYS.master) == -1


@TAKES
@pytest.mark.every_server
@pytest.mark.parametrize("is_marked", [True, False], ids=["with its old marker", "after the guard"])
def test_a_socket_that_outlived_its_incarnation_has_no_vote(
    real: Master, take: Callable[..., list[Any]], *, is_marked: bool
) -> None:
    """Data sets may be copies from another server. An old marker begins the guard, and the socket never votes again."""
    mark(real, outlived(real) if is_marked else real.incarnation)
    status, now_us, until_us = take(real, guarded=True, incarnation=outlived(real), guard_ms=500)
    assert (status, until_us) == (b"no_vote", now_us + (900_000 if is_marked else 0))
    assert real.redis.hget(KEYS.master, "incarnation") == real.incarnation
    assert real.holder() == {}


@TAKES
@pytest.mark.every_server
def test_a_script_that_may_not_ask_the_server_what_it_is_votes_by_marker_and_socket(
    server: Server, real: Master, take: Callable[..., list[Any]]
) -> None:
    server.cli("ACL", "SETUSER", "blind", "reset", "on", ">x", "~*", "&*", "+@all", "-info")
    with closing(redis.Redis.from_url(server.url)) as client:
        client.auth("x", "blind")
        blind = Master(client, incarnation=real.incarnation)
        with pytest.raises(redis.ResponseError):
            take(blind, guarded=True, guard_ms=500)
        for marker in (None, outlived(real)):
            real.redis.flushall()
            if marker is not None:
                mark(real, marker)
            assert take(blind, guarded=True, guard_ms=500, proof=b"!")[0] == b"no_vote"
            assert real.redis.hget(KEYS.master, "incarnation") == real.incarnation
        mark(real, real.incarnation)
        assert take(blind, guarded=True, guard_ms=900, proof=b"!")[0] in (b"granted", b"healed")
    server.cli("ACL", "DELUSER", "blind")


@TAKES
@pytest.mark.parametrize("found", [None, b"another:repl", b"-"])
def test_by_the_marker_alone_only_a_missing_one_begins_the_guard(
    real: Master, take: Callable[..., list[Any]], found: bytes | None
) -> None:
    if found is not None:
        mark(real, found)
    given: dict[str, Any] = {"guarded": True, "guard_ms": 900, "incarnation": b"-", "proof": b"="}
    assert (take(real, **given)[0] == b"no_vote") is (found is None)
    assert real.redis.hget(KEYS.master, "incarnation") == (found or b"-")
    assert take(real, guarded=True, guard_ms=900)[0] == b"no_vote", "a client that asks the server begins the guard"
    assert take(real, **given)[0] == b"no_vote", "that guard counts for all"


@pytest.mark.every_server
@pytest.mark.parametrize("proof", [b"?", b"!", b"="])
def test_a_grant_and_a_quarantine_name_the_incarnation_alone(real: Master, proof: bytes) -> None:
    mark(real, real.incarnation)
    real.put(State({ME: 1}, queue=[b"you:1@3000"]))
    real.listen("you")
    mark(real, real.incarnation)
    release(real, guarded=True, guard_ms=900, proof=proof)
    assert real.told()[0].endswith(b" 3000 " + real.incarnation + b" a")
    assert quarantine(real, proof=proof)[0] == b"quarantined"
    assert real.redis.hget(KEYS.master, "incarnation") == real.incarnation


@pytest.mark.parametrize(
    ("quiet_us", "is_asked"), [(0, False), (1_000, False), (1_001, True), (10**15, True), (-1, True)]
)
def test_the_server_is_asked_what_it_is_unless_a_vote_was_written_on_the_socket_just_now(
    real: Master, quiet_us: int, *, is_asked: bool
) -> None:
    """No data set is copied within a millisecond. After a step back, the clock does not show how old a vote is."""
    now_us = real.now_us()
    mark(real, outlived(real))
    socket = outlived(real) + b"?%016d" % (now_us - quiet_us)
    until_us = real.redis.eval(VOTE, 1, KEYS.master, socket, 900, now_us)
    assert until_us == (now_us + 900_000 if is_asked else None)


@pytest.mark.every_server
@pytest.mark.parametrize("has_moved", [True, False], ids=["it has moved", "it has not"])
def test_a_release_gives_the_lock_only_if_its_socket_leads_to_what_it_led_to(real: Master, *, has_moved: bool) -> None:
    socket = outlived(real) if has_moved else real.incarnation
    mark(real, socket)
    real.put(State({ME: 1}, queue=[b"you:1@3000"]))
    real.listen("you")
    release(real, guarded=True, incarnation=socket, guard_ms=900)
    (message,) = real.told()
    if has_moved:
        assert message == b"wake 1@3000 a"
    else:
        assert message.startswith(b"grant 1@3000 ")
        assert message.endswith(b" 3000 " + real.incarnation + b" a"), (
            "the message names the incarnation without the time of the vote"
        )


# tidiness -------------------------------------------------------------------------------------------------------------


def quarantine(master: Master, **other: Any) -> list[Any]:
    given = {"accused": master.incarnation, "client": "me", "guarded": True, "guard_ms": 500, **other}
    return master.call("quarantine", **given)


def test_quarantine_takes_the_vote_of_the_accused_for_its_guard(real: Master) -> None:
    acquire(real, guarded=True, guard_ms=700)
    real.redis.hset(KEYS.master, "no_vote_until_us", 0)
    assert acquire(real, guarded=True, guard_ms=700)[0] == b"granted"
    status, now_us, until_us = quarantine(real)
    assert (status, until_us) == (b"quarantined", now_us + 700_000), "the largest guard in use counts"
    assert enqueue(real, YOU, guarded=True, guard_ms=700)[0] == b"no_vote"


def test_quarantine_takes_the_vote_of_a_master_that_is_out_of_memory(real: Master) -> None:
    """Releases there would otherwise still give the lock to the next waiter."""
    real.redis.config_set("maxmemory", 1)
    try:
        assert quarantine(real)[0] == b"quarantined"
    finally:
        real.redis.config_set("maxmemory", 0)
    assert acquire(real, guarded=True, guard_ms=500)[0] == b"no_vote"


@pytest.mark.parametrize("other", [{"incarnation": b"another"}, {"guarded": False}], ids=["another", "no guard"])
def test_quarantine_of_another_master_or_without_a_guard_does_nothing(master: Master, other: dict[str, Any]) -> None:
    given = {"accused": b"this", "client": "me", "guarded": True, "guard_ms": 500, **other}
    assert master.call("quarantine", **given)[0] == b"absent"
    assert not master.redis.exists(KEYS.master)


def test_nothing_stays_for_ever_but_the_marker(real: Master) -> None:
    enqueue(real, YOU, guarded=True, guard_ms=0)
    enqueue(real, ME, guarded=True, guard_ms=0)
    immortal = [key for key in real.redis.scan_iter() if real.redis.ttl(key) == -1]
    assert immortal == [KEYS.master]
    release(real, ME)
    release(real, YOU)
    assert set(real.redis.scan_iter()) == {KEYS.token, KEYS.master}


# what others have written ---------------------------------------------------------------------------------------------

PASSED_MAX = 1_000  # that a call passes over at most; it looks at one more
TOLD_MAX = 32  # of these, at most, that are told without a look at the listeners
STRANGERS = [b"", b"no-colon", b":", b"you:", b":1", b"you :1", b"you:1 a", b"you:1:2", b"you:1~2", b"y~u:1"]
STRANGERS += [b"\n:1", b"\xff:1", b"\0:1"]


def queue_up(master: Master, names: Iterable[bytes], *, deadline_ms: int | None = 10_000, ticket: float = 1) -> None:
    """Put entries into the queue, in this order from `ticket` on; without a deadline into the queue alone."""
    placed = {name: ticket + place for place, name in enumerate(names)}
    master.redis.zadd(KEYS.queue, placed)
    if deadline_ms is not None:
        master.redis.zadd(KEYS.waiters, dict.fromkeys(placed, master.now_us() // 1000 + deadline_ms))


def on_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the scripts for a Cluster from now on, whose PUBLISH counts one node's listeners."""
    originals = {name: load(name).on_cluster for name in script_names()}
    monkeypatch.setitem(globals(), "load", originals.__getitem__)


@pytest.mark.parametrize("deadline_ms", [None, 10_000])
@pytest.mark.parametrize("counted", [True, False])
def test_what_is_no_waiters_name_goes_and_holds_up_nobody(
    master: Master, monkeypatch: pytest.MonkeyPatch, deadline_ms: int | None, counted: bool
) -> None:
    if not counted:
        on_cluster(monkeypatch)
    for client in ("you", "y~u", ""):  # listeners do not help an entry that is no waiter's name
        master.listen(client)
    queue_up(master, STRANGERS, deadline_ms=deadline_ms)
    queue_up(master, [GRANTEE], ticket=100)
    assert acquire(master)[0] == b"refused"
    assert master.told() == [b"wake 1@3000 a"]
    assert master.queue() == [GRANTEE]
    queue_up(master, STRANGERS, deadline_ms=deadline_ms)
    master.redis.hset(KEYS.lock, HOLDER, 1)
    assert release(master, HOLDER)[0] == b"released"
    assert [message.split()[:2] for message in master.told()] == [[b"grant" if counted else b"wake", b"1@3000"]]


@pytest.mark.parametrize("name", ["acquire", "enqueue", "release", "leave", "give_back", "heartbeat", "force_release"])
def test_every_script_that_looks_for_the_next_removes_who_is_none(master: Master, name: str) -> None:
    arguments = {"owner": ME, "count": 1, "lease_ms": LEASE_MS, "fair": 1, "hand": 1, "fence": 0, "ticket": 0}
    arguments |= {"token_ms": TOKEN_MS, "proposal": 0}
    arguments |= {"client": "me", "alive_ms": 7_000, "queue_ms": 30_000}
    own = {p.name: arguments[p.name] for p in load(name).arguments if p.name in arguments}
    queue_up(master, [b"nobody", b"they:1"], deadline_ms=None)
    queue_up(master, [YOU], ticket=3)
    master.listen("you")
    master.call(name, *([9, ME] if name == "heartbeat" else []), **own)
    assert not {b"nobody", b"they:1"} & set(master.queue())
    assert master.told() == [b"wake 1 a"]


def test_a_waiter_without_a_deadline_goes_unless_it_listens(master: Master) -> None:
    """Deadlines may be lost: an evicting server takes the keys one by one."""
    queue_up(master, [b"dead:1", b"dead:2", YOU, THEY], deadline_ms=None)
    queue_up(master, [b"dead:3"], ticket=0)
    master.listen("you")
    assert acquire(master)[0] == b"refused"
    assert master.told() == [b"wake 1 a"]
    assert master.redis.zrange(KEYS.queue, 0, -1) == [b"dead:3", YOU, THEY], (
        "no call looks at a waiter behind the one that listens"
    )


def test_where_nobody_counts_who_listens_who_has_no_deadline_goes(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cluster(monkeypatch)
    queue_up(master, [b"nobody:1"], deadline_ms=None)
    queue_up(master, [YOU], ticket=2)
    master.listen("nobody")
    master.listen("you")
    assert acquire(master)[0] == b"refused"
    assert master.told() == [b"wake 1 a"]
    assert master.queue() == [YOU]


def test_a_waiter_behind_a_thousand_dead_is_served_at_once(master: Master) -> None:
    dead = [b"dead%d:1@3000" % i for i in range(PASSED_MAX)]
    queue_up(master, [*dead, GRANTEE])
    master.redis.hset(KEYS.lock, HOLDER, 1)
    master.listen("you")
    release(master, HOLDER)
    assert [message.split()[0] for message in master.told()] == [b"grant"]
    assert len(master.queue()) == PASSED_MAX, "waiters that may be alive keep their places"


def test_a_queue_of_strangers_is_no_obstacle_however_long(master: Master) -> None:
    """The first try takes the lock, and each call removes the entries that it has looked at."""
    left = 3 * PASSED_MAX
    queue_up(master, [b"stranger-%d" % i for i in range(left)], deadline_ms=None)
    for call, reply in ((acquire, b"granted"), (release, b"released"), (acquire, b"granted")):
        assert call(master)[0] == reply
        left = max(0, left - PASSED_MAX - 1)
        assert master.redis.zcard(KEYS.queue) == left


@pytest.mark.parametrize("strangers", [b"stranger-%d", b"stranger:%d"], ids=["no names", "names"])
def test_waiters_behind_any_number_of_strangers_have_their_turns_in_order(master: Master, strangers: bytes) -> None:
    queue_up(master, [strangers % i for i in range(3 * PASSED_MAX)], deadline_ms=None)
    queue_up(master, [b"dead:1", YOU, THEY, ME], ticket=9_000)
    for client in ("you", "they", "me"):
        master.listen(client)
    assert acquire(master, b"other:1")[0] == b"refused"
    assert master.told() == [b"wake 1 a"]
    assert heartbeat(master, 9_001, YOU, client="you")[3] == YOU
    assert enqueue(master, YOU)[0] == b"granted"


def test_nobody_passes_waiters_that_one_call_can_not_reach(master: Master) -> None:
    """A crowd that died a moment ago: each call goes on behind the waiters that the call before looked at in vain."""
    dead = [b"dead%d:1" % i for i in range(2 * PASSED_MAX + 500)]
    queue_up(master, [*dead, YOU])
    master.listen("you")
    before = len(dead) + 1
    for _ in range(2):
        status, _, pttl_ms, ahead, holder = acquire(master)
        assert (status, pttl_ms, holder) == (b"refused", 0, b"")
        assert before - ahead == PASSED_MAX + 1
        assert master.told() == []
        before = ahead
    assert acquire(master)[0] == b"refused"
    assert master.told() == [b"wake 1 a"]
    assert len(master.queue()) == before, "the waiters before a reached one keep their places"


def test_a_release_gives_the_lock_to_nobody_while_it_is_open_who_is_first(master: Master) -> None:
    queue_up(master, [*[b"dead%d:1" % i for i in range(2 * PASSED_MAX)], GRANTEE])
    master.redis.hset(KEYS.lock, HOLDER, 1)
    master.listen("you")
    release(master, HOLDER)
    assert (master.holder(), master.told()) == ({}, [])
    assert release(master, HOLDER)[0] == b"absent"
    assert len(master.told()) == 1


def test_a_heartbeat_says_that_it_is_open_who_is_first_so_that_the_next_one_comes_soon(master: Master) -> None:
    queue_up(master, [b"dead%d:1" % i for i in range(2 * PASSED_MAX)])
    _, _, pttl_ms, turn, _ = heartbeat(master, 9_000, ME)
    assert (pttl_ms, turn) == (1, b"")
    _, _, pttl_ms, turn, _ = heartbeat(master, 9_000, ME)
    assert (pttl_ms, turn) == (0, b""), "no waiter listens, and the asking one is not the first"
    assert len(master.queue()) == PASSED_MAX


def test_a_waiter_that_was_passed_over_in_a_crowd_comes_back_to_its_place(master: Master) -> None:
    """Subscriptions of such a waiter may just have broken."""
    queue_up(master, [ME, *[b"dead%d:1" % i for i in range(PASSED_MAX + 500)]])
    master.redis.hset(KEYS.lock, HOLDER, 1)
    release(master, HOLDER)
    assert ME not in master.queue()
    assert heartbeat(master, 1, ME)[3] == ME, "the reply gives the turn, which needs no subscription"
    assert master.queue()[0] == ME
    assert enqueue(master, ME, ticket=1)[0] == b"granted"


def test_where_all_that_one_call_reaches_are_dead_and_there_are_no_more_a_newcomer_takes_the_lock(
    master: Master,
) -> None:
    """Entries without a place in the queue stop no newcomer, even if they have a deadline."""
    queue_up(master, [b"dead%d:1" % i for i in range(PASSED_MAX + 1)])
    master.redis.zadd(KEYS.waiters, {b"gone%d:1" % i: FAR for i in range(200)})
    assert acquire(master)[0] == b"granted"


@pytest.mark.every_server
@pytest.mark.parametrize("may_ask", [True, False], ids=["", "without the right to ask who listens"])
def test_a_crowd_of_dead_costs_three_pages_and_one_question(server: Server, may_ask: bool) -> None:
    """Releases keep a master busy for no longer than that number of commands takes."""
    server.cli("ACL", "SETUSER", "user", "reset", "on", ">x", "~*", "&*", "+@all", *([] if may_ask else ["-pubsub"]))
    with closing(redis.Redis.from_url(server.url)) as admin, closing(redis.Redis.from_url(server.url)) as client:
        admin.flushall()
        master = Master(client)
        queue_up(master, [*[b"dead%d:1@3000" % i for i in range(PASSED_MAX)], GRANTEE])
        client.hset(KEYS.lock, HOLDER, 1)
        master.listen("you")
        admin.config_resetstat()
        client.auth("x", "user")
        release(master, HOLDER)
        calls = {name: stats["calls"] for name, stats in admin.info("commandstats").items()}
        assert [message.split()[0] for message in master.told()] == [b"grant"]
        master.subscribers.pop().close()
    server.cli("ACL", "DELUSER", "user")
    assert calls.pop("cmdstat_publish") == 1 + (TOLD_MAX + 1 if may_ask else PASSED_MAX + 1)
    assert calls.pop("cmdstat_pubsub|numsub", calls.pop("cmdstat_pubsub", 0)) == may_ask  # Redis 6: without NUMSUB
    assert calls.pop("cmdstat_zrange") == 1 + 3, "one look of the usual case, and three pages"
    assert calls.pop("cmdstat_set") == 1 + 3
    assert calls.pop("cmdstat_zscore") == (TOLD_MAX if may_ask else PASSED_MAX)
    assert sum(calls.values()) < 24, calls


@pytest.mark.parametrize("command", [("SET", "x"), ("RPUSH", "x"), ("HSET", "x", "y")], ids=lambda words: words[0])
@pytest.mark.parametrize("key", [KEYS.queue, KEYS.waiters], ids=["queue", "waiters"])
def test_a_queue_of_another_type_keeps_nobody_from_taking_the_lock_and_giving_it_back(
    master: Master, key: bytes, command: tuple[str, ...]
) -> None:
    master.redis.execute_command(command[0], key, *command[1:])
    kind = master.redis.type(key)
    assert acquire(master)[0] == b"granted"
    assert acquire(master, YOU)[:1] == [b"refused"]
    assert master.call("inspect", limit=9)[0] == b"held"
    assert release(master)[0] == b"released"
    assert enqueue(master)[0] == b"granted"
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        enqueue(master, YOU)
    assert release(master, YOU)[0] == b"absent", "an undo of a refused enqueue finds no place"
    assert master.call("leave", owner=YOU)[0] == b"absent"
    assert master.call("force_release", fence=0, lease_ms=LEASE_MS)[0] == b"released"
    assert give_back(master, ticket=0)[0] == b"absent"
    assert master.redis.type(key) == kind, "the key of another program is not deleted"
    assert {name for name in (KEYS.queue, KEYS.waiters) if master.redis.exists(name)} == {key}


def test_a_waiter_is_served_though_the_deadlines_are_of_another_type(master: Master) -> None:
    queue_up(master, [b"dead:1", GRANTEE], deadline_ms=None)
    master.redis.set(KEYS.waiters, "x")
    master.redis.hset(KEYS.lock, HOLDER, 1)
    master.listen("you")
    assert release(master, HOLDER)[0] == b"released"
    assert master.holder() == {HANDED[:-1] + b"2": b"1"}


@pytest.mark.parametrize("score", ["inf", "1e300", 2**53])
def test_what_no_ticket_can_be_makes_no_ticket_wrong(master: Master, score: Any) -> None:
    master.put(State(holder={THEY: 1}))
    master.redis.zadd(KEYS.queue, {b"x:%d" % i: score for i in range(3)})
    _, now_us, _, _, _, ticket = enqueue(master, YOU, ticket=-1)
    assert ticket == now_us
    master.redis.zadd(KEYS.queue, {YOU: score})
    for asked in (0, -1):
        _, now_us, _, ahead, _, ticket = enqueue(master, YOU, ticket=asked)
        assert (ahead, master.queue()) == (0, [YOU])
        assert ticket == int(master.redis.zscore(KEYS.queue, YOU)) <= now_us


def test_a_holder_whose_name_ends_with_no_ticket_makes_none_wrong(master: Master) -> None:
    master.put(State(holder={b"x:1~a." + b"9" * 40: 1}))
    _, now_us, *_, ticket = enqueue(master)
    assert ticket == now_us


@pytest.mark.parametrize("score", ["-inf", "-5", "0.5", "1e-9"])
def test_a_waiter_with_an_odd_place_is_served_all_the_same(master: Master, score: Any) -> None:
    master.redis.zadd(KEYS.queue, {GRANTEE: score})
    master.redis.zadd(KEYS.waiters, {GRANTEE: FAR})
    master.redis.hset(KEYS.lock, HOLDER, 1)
    master.listen("you")
    assert release(master, HOLDER)[0] == b"released"
    assert len(master.holder()) == len(master.told()) == 1
    assert master.queue() == []


@pytest.mark.parametrize(
    "mark", [b"@", b"@x", b"@9999999999999", b"@-5", b"@1.5", b"@3000!", b"&3000", b"&0", b"#2@3000"]
)
def test_a_waiter_whose_lease_can_not_be_or_that_asks_for_what_is_not_known_here_is_woken(
    master: Master, mark: bytes
) -> None:
    waiter = b"you:1" + mark
    queue_up(master, [waiter])
    master.redis.hset(KEYS.lock, HOLDER, 1)
    master.listen("you")
    release(master, HOLDER)
    assert master.told() == [b"wake 1%b a" % mark]
    assert master.holder() == {}


@pytest.mark.parametrize("wrong", ["x", "", "inf", "-inf", "nan", "1e300", "-5", str(2**53), str(2**64)])
def test_what_no_token_can_be_is_none(master: Master, wrong: str) -> None:
    def tamper() -> None:
        master.redis.set(KEYS.token, wrong)

    tamper()
    status, now_us, token = acquire(master)
    assert (status, token) == (b"granted", now_us)
    tamper()
    assert now_us <= acquire(master)[2] < FAR, "a repeated request gets a valid token"
    assert heal(master, token=FAR)[0] == b"healed"
    assert int(master.redis.get(KEYS.token)) == FAR
    tamper()
    assert master.call("inspect", limit=9)[5] == 0
    assert fence(master, 7)[0] == b"fenced"
    assert int(master.redis.get(KEYS.token)) == 7
    tamper()
    assert master.call("extend", owner=ME, lease_ms=9_000, token_ms=10_000)[0] == b"extended"
    assert master.call("force_release", fence=FAR, lease_ms=LEASE_MS)[0] == b"released"
    assert int(master.redis.get(KEYS.token)) == FAR
    master.redis.hset(KEYS.lock, ME, 1)
    tamper()
    assert release(master, fence=9)[0] == b"released"
    queue_up(master, [GRANTEE])
    master.redis.hset(KEYS.lock, HOLDER, 1)
    tamper()
    master.listen("you")
    status, now_us = release(master, HOLDER)
    assert master.told() == [b"grant 1@3000 456789abcdef0123.1 %d %d 3000 this a" % (now_us + 1, now_us)]


@pytest.mark.parametrize("wrong", [TOKEN_MAX, TOKEN_MAX + 1, 2**53 - 2, 2**53 - 1])
def test_a_token_that_nobody_could_go_beyond_counts_as_none(master: Master, wrong: int) -> None:
    master.redis.set(KEYS.token, wrong)
    status, now_us, token = acquire(master)
    assert (status, token) == (b"granted", now_us)
    master.redis.set(KEYS.token, wrong + 1)
    assert 0 < acquire(master)[2] <= TOKEN_MAX, "a repeated request gets a valid token"
    assert release(master)[0] == b"released"
    assert acquire(master, YOU)[0] == b"granted"


@pytest.mark.parametrize("wrong", ["0.5", "1e-300", "0"])
def test_a_repeated_request_never_gets_the_token_0(master: Master, wrong: str) -> None:
    acquire(master)
    master.redis.set(KEYS.token, wrong)  # a server cuts the fraction from its reply
    status, now_us, token = acquire(master)
    assert (status, token) == (b"granted", now_us)


@pytest.mark.parametrize("wrong", [TOKEN_MAX, TOKEN_MAX + 1, 2**53 - 1])
def test_a_release_writes_its_token_back_over_one_that_counts_as_none(master: Master, wrong: int) -> None:
    """The next token would come from the clock alone, and might be smaller than the release's."""
    acquire(master)
    master.redis.set(KEYS.token, wrong)
    assert release(master, fence=FAR)[0] == b"released"
    assert acquire(master)[2] == FAR + 1


def test_a_hash_that_is_none_of_ours_is_held_by_nobody_and_not_read(real: Master) -> None:
    for _ in range(10):
        real.redis.hset(KEYS.lock, mapping={f"{random()}": 1 for _ in range(10_000)})
    real.redis.config_resetstat()
    status, _, _, _, holder = acquire(real)
    assert (status, holder) == (b"refused", b"")
    assert "cmdstat_hkeys" not in real.redis.info("commandstats"), "the 100,000 names are not read"


def test_a_hash_with_a_few_more_fields_than_there_may_be_readers_is_not_read_either(real: Master) -> None:
    real.redis.hset(KEYS.lock, mapping={f"{number}" + "x" * 1_000: 1 for number in range(2_049)})
    real.redis.config_resetstat()
    assert acquire(real)[::4] == [b"refused", b""]
    assert "cmdstat_hkeys" not in real.redis.info("commandstats")


def test_an_entry_that_is_longer_than_any_name_is_not_read_and_goes(real: Master) -> None:
    for number in range(20):
        real.redis.zadd(KEYS.queue, {f"{number}" + "x" * 1_000_000 + ":1": number})
    real.redis.config_resetstat()
    left = []
    while acquire(real)[0] == b"refused":
        left.append(real.redis.zcard(KEYS.queue))
    assert left == [12, 4], "each call looks at eight entries"
    assert "cmdstat_publish" not in real.redis.info("commandstats"), "no message goes to channels with names of 1 MB"
    assert not real.redis.exists(KEYS.queue)


def test_long_names_behind_a_waiter_end_a_call_too(real: Master) -> None:
    real.redis.zadd(KEYS.queue, {"dead:1": 0, **{f"{number}" + "x" * 10_000: 1 for number in range(100)}})
    assert acquire(real)[0] == b"refused"
    assert real.redis.zcard(KEYS.queue) == 101 - 32
    for _ in range(20):
        if acquire(real)[0] == b"granted":
            break
    assert real.holder() == {ME: b"1"}


def test_long_names_that_are_overdue_go_a_few_at_a_time(real: Master) -> None:
    real.redis.zadd(KEYS.waiters, {f"{number}" + "x" * 10_000: 1 for number in range(40)})
    queue_up(real, [YOU])
    acquire(real)
    assert real.redis.zcard(KEYS.waiters) <= 40 - 16 + 1
    assert real.redis.zcard(KEYS.waiters) >= 40 - 16


@pytest.mark.parametrize("ticket", [0, 1_700_000_000_000_000])
def test_a_waiter_that_can_have_no_place_leaves_none(master: Master, ticket: int) -> None:
    """Waiters that come next would otherwise find a queue with a place that no client keeps."""
    acquire(master, YOU)
    master.redis.rpush(KEYS.waiters, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        enqueue(master, ticket=ticket)
    assert not master.redis.exists(KEYS.queue)
    master.redis.delete(KEYS.waiters)
    master.redis.rpush(KEYS.queue, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        enqueue(master, ticket=ticket)
    assert master.redis.pttl(KEYS.waiters) != -1, "the key that is left expires"


def test_a_token_of_another_type_is_an_error_and_not_lost(master: Master) -> None:
    """A grant needs the token, and the data of another program is not overwritten."""
    master.redis.rpush(KEYS.token, "x")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            acquire(master)
    assert master.redis.lrange(KEYS.token, 0, -1) == [b"x"]


@pytest.mark.parametrize("field", ["no_vote_until_us", "guard_ms"])
@pytest.mark.parametrize("wrong", ["x", "", "inf", "nan", "1e300", str(2**63)])
def test_a_marker_with_a_field_that_is_no_number_is_taken_for_none(real: Master, field: str, wrong: str) -> None:
    marker = {"incarnation": real.incarnation, "no_vote_until_us": 0, "guard_ms": 900, field: wrong}
    real.redis.hset(KEYS.master, mapping=marker)
    status, now_us, until_us = acquire(real, guarded=True, guard_ms=500)
    assert (status, until_us) == (b"no_vote", now_us + 500_000)
    assert acquire(real, guarded=True, guard_ms=500)[2] == until_us, "the guard began once"
    real.redis.hset(KEYS.master, "no_vote_until_us", 0)
    assert acquire(real, guarded=True, guard_ms=500)[0] == b"granted"
    real.redis.hset(KEYS.master, field, wrong)
    status, now_us, until_us = quarantine(real)
    assert (status, until_us) == (b"quarantined", now_us + 500_000)


def test_a_marker_of_another_type_is_an_error_and_not_lost(real: Master) -> None:
    """Markers show what a master may have forgotten."""
    real.redis.set(KEYS.master, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        acquire(real, guarded=True, guard_ms=500)
    assert real.redis.get(KEYS.master) == b"x"
    assert real.holder() == {}


# headers --------------------------------------------------------------------------------------------------------------

MARKER, SEEN = ("incarnation", "no_vote_until_us", "guard_ms"), "this 7 900"
MINE = b"me:0123456789abcdef~1"
STATES = [
    State(),
    State(holder={MINE: 1}, queue=[GRANTEE, THEY], token=5),
    State(holder={MINE: 1}, queue=[THEY]),
    State(holder={YOU: 1}, queue=[THEY], token=5),
    State(queue=[THEY, YOU], token=5),
    State(foreign=b"x", queue=[THEY]),
]


def prepare(master: Master, name: str, state: State) -> None:
    master.put(evolve(state, pttl_ms=SHORT_MS))
    for key in (KEYS.queue, KEYS.waiters, KEYS.token):
        master.redis.pexpire(key, SHORT_MS)
    if name == "lower_guard":
        master.redis.hset(KEYS.master, mapping=dict(zip(MARKER, SEEN.split(), strict=True)))


def call_with(master: Master, name: str, fence: int) -> None:
    """Call the script of this name with usual arguments."""
    arguments = {
        "owner": THEY if name == "leave" else MINE,
        "count": 1,
        "value": 1,
        "lease_ms": LEASE_MS,
        "fair": 1,
        "hand": 1,
    }
    arguments |= {"ticket": 7, "alive_ms": 7_000, "queue_ms": QUEUE_MS, "client": "me", "limit": 9}
    arguments |= {
        "rest_ms": LEASE_MS,
        "fence": fence,
        "accused": master.incarnation,
        "token_ms": TOKEN_MS,
        "proposal": 0,
        "seen": SEEN,
    }
    if name == "notify":
        notify(master, b"you", ASK)
        notify(master, b"they", WAIT)
        notify(master, b"they", b"ended 1 a")
        return
    own = {p.name: arguments[p.name] for p in load(name).arguments if p.name in arguments}
    master.call(name, *([7, b"me:2"] if name == "heartbeat" else []), **own, guarded=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_writes_and_publishes_what_its_header_says_and_nothing_else(real: Master, name: str) -> None:
    check_header(real, name, STATES, partial(prepare, real, name), partial(call_with, real, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_that_arrives_twice_changes_nothing_more(real: Master, name: str) -> None:
    """Lifetimes and the time without a vote may change, which the headers mention."""
    check_repeats(real, STATES, real.put, partial(call_with, real, name), may_change=("master",))
