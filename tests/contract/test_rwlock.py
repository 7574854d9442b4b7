"""Read-write lock, on every driver: many readers or one writer, in order of arrival, and one owner as both."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
from support.proxy import Line

from contract.rigs.calls import leave, take
from contract.rigs.rig import (
    BRIEF,
    TTL,
    Interrupted,
    Rig,
    Running,
    all_done,
    all_struck,
    calls,
    key_of,
    leases_key_of,
    release_all,
    until_in_time,
)
from contract.rigs.watch import At
from relock import (
    AcquireTimeoutError,
    Client,
    ClientClosedError,
    LockLostError,
    NotOwnedError,
    QuorumError,
    UpgradeError,
)
from relock._events import Granted, Lost, NotGranted, Released
from relock._runtime.session import closing

PATIENT = 10.0  # seconds: a node timeout that is longer than any wait here
HELP_SECONDS = 7.0  # after this time a waiter looks by itself
SHORT_TTL = 2.0  # seconds, for a lease that a test sees end
FAR_MS = 9_999_999_999_999  # a time on a master's clock that does not come

each_handoff = pytest.mark.parametrize("handoff", ["grant", "wake"])


def warm(rig: Rig, **options: Any) -> Client:
    """Return a client with open connections, and whose scripts are loaded."""
    client = rig.client(**options)
    rig.warm_up(client)
    rig.warm_up(client, "reader")
    return client


def refused(lock: Any) -> bool:
    """Return whether a caller that does not wait can't have the lock."""
    return not lock.acquire(timeout=0) and not lock.acquire(blocking=False)


def leave_lost(lock: Any) -> None:
    """Leave every level of a lost hold: the release raises that."""
    while lock.lost:
        try:
            lock.release()
        except LockLostError:
            continue
        except NotOwnedError:
            return


def forget(rig: Rig, name: str, *, readers: bool) -> None:
    """Make every master forget the readers of the lock, or its writer."""
    for master, holders in enumerate(rig.holders(name)):
        for owner in holders:
            if (b"&" in owner) == readers:
                rig.ask(master, "HDEL", key_of(name), owner.decode())
                rig.ask(master, "ZREM", leases_key_of(name), owner.decode())


def have_it(rig: Rig, name: str, *, writers: int = 0, readers: int = 0) -> bool:
    """Return whether so many writers and readers have the lock on every master."""
    found = [[b"&" in owner for owner in holders] for holders in rig.holders(name)]
    return all((is_reader.count(False), is_reader.count(True)) == (writers, readers) for is_reader in found)


@contextmanager
def nothing_sent(rig: Rig, name: str) -> Iterator[None]:
    """Check that no request for the lock is sent meanwhile, but for extensions that a quorum answered before."""
    key, is_late = key_of(name).encode(), calls(name, "extend", "read_extend")
    faults = [line.hold_request(lambda words: key in words and not is_late(words)) for line in rig.lines]
    try:
        yield
    finally:
        was_asked = [not line.disarm(fault) for line, fault in zip(rig.lines, faults, strict=True)]
        release_all(faults)
    assert not any(was_asked)


class Queue:
    """Callers that wait one behind the other, each in a thread of its own, and each with a lock of its own.

    Attributes:
        served: the callers that got the lock.
        locks: the lock of each of them, which any thread may release.
    """

    def __init__(self, rig: Rig, client: Client, name: str) -> None:
        self._rig, self._client, self._name = rig, client, name
        self.served: list[str] = []
        self.locks: dict[str, Any] = {}
        self._running: list[Any] = []

    def join(self, *callers: str, **options: Any) -> None:
        """Start a thread for each caller, a reader if its name says so; return once it is queued on every master."""
        for caller in callers:
            before = self._rig.queued(self._name)[0]
            both = self._client.rwlock(self._name, owner=caller, **options)
            lock = self.locks[caller] = both.read if caller.startswith("r") else both.write
            self._running.append(self._rig.start(partial(self._wait, caller, lock)))
            self._rig.until(partial(self._rig.queues_are, self._name, before + 1), f"{caller} is queued")

    def _wait(self, caller: str, lock: Any) -> None:
        take(lock, 1)
        self.served.append(caller)

    def release(self, *callers: str) -> None:
        """Let these callers give the lock back."""
        for caller in callers:
            self.locks[caller].release()

    def until_served(self, *callers: str) -> None:
        """Wait until these callers, and no others, have been served; threads may say so in another order."""
        self._rig.until(lambda: len(self.served) >= len(callers), f"{callers} are served")
        assert {*self.served} == {*callers}

    def end(self) -> None:
        """Wait for the end of each thread."""
        for running in self._running:
            running.result()


# Readers and writers --------------------------------------------------------------------------------------------------


def test_readers_have_it_together_and_a_writer_alone(rig: Rig, name: str) -> None:
    one, other = warm(rig).rwlock(name), warm(rig).rwlock(name)
    take(one.read, 1)
    take(other.read, 1)
    assert (one.read.owned(), other.read.owned(), one.write.owned()) == (True, True, False)
    rig.until(lambda: have_it(rig, name, readers=2), "both are everywhere")
    third = warm(rig)
    assert refused(third.rwlock(name).write)
    assert refused(third.lock(name))
    one.read.release()
    assert refused(third.rwlock(name).write), "one reader is left"
    other.read.release()
    take(third.rwlock(name).write, 1)
    for both in (one, other):
        assert refused(both.read)
        assert refused(both.write)
    third.rwlock(name).write.release()
    rig.until_free(name, "all")


def test_nobody_is_ever_inside_beside_a_writer(rig: Rig, name: str) -> None:
    clients = [warm(rig), warm(rig)]
    inside: list[str] = []
    most: list[int] = []

    def work(number: int) -> None:
        both = clients[number % 2].rwlock(name, timeout=20)
        for turn in range(6):
            as_writer = (number + turn) % 3 == 0
            lock: Any = both.write if as_writer else both.read
            with lock:
                assert not inside or not (as_writer or "writer" in inside), inside
                inside.append("writer" if as_writer else "reader")
                lock.extend()  # so that others run meanwhile
                most.append(len(inside))
                inside.remove("writer" if as_writer else "reader")
                lock.ensure()

    for one in [rig.start(partial(work, number)) for number in range(6)]:
        one.result()
    assert len(most) == 36
    rig.until_free(name, "all")
    assert [client.statistics().held for client in clients] == [0, 0]


def test_a_block_that_does_not_get_the_lock_raises_and_does_not_run(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    for held, wanted in (("write", "read"), ("read", "write")):
        holder = getattr(others.rwlock(name, owner="holder"), held)
        take(holder, 1)
        lock = getattr(client.rwlock(name, timeout=3 * BRIEF), wanted)
        with pytest.raises(AcquireTimeoutError) as caught, lock:
            raise AssertionError("the body does not run")
        assert (caught.value.lock, caught.value.timeout, caught.value.ahead) == (name, 3 * BRIEF, 0)
        assert ":holder." in (caught.value.holder or "")
        holder.release()
        with lock:
            assert lock.owned()
        rig.until_free(name, "the block")


# Order ----------------------------------------------------------------------------------------------------------------


@each_handoff
def test_readers_get_in_together_up_to_the_next_writer_and_writers_one_by_one(
    handoff: str, rig: Rig, name: str
) -> None:
    """No heartbeat reaches a master, so each waiter must be served by a release, or by the reader served before it."""
    client, others = (warm(rig, node_timeout=PATIENT, handoff=handoff) for _ in range(2))
    holder, queue = others.rwlock(name).write, Queue(rig, client, name)
    take(holder, 1)
    for line in rig.lines:
        for script in ("heartbeat", "read_heartbeat"):
            line.hold_request(calls(name, script))
    queue.join("r1", "r2", "r3", "w1", "r4", "w2", "w3")
    begin = rig.clock()
    holder.release()
    queue.until_served("r1", "r2", "r3")
    queue.release("r2", "r1")
    assert len(queue.served) == 3, "the writer waits for the last reader"
    queue.release("r3")
    queue.until_served("r1", "r2", "r3", "w1")
    queue.release("w1")
    queue.until_served("r1", "r2", "r3", "w1", "r4")
    queue.release("r4")
    queue.until_served("r1", "r2", "r3", "w1", "r4", "w2")
    queue.release("w2")
    queue.until_served("r1", "r2", "r3", "w1", "r4", "w2", "w3")
    queue.release("w3")
    assert rig.clock() - begin < HELP_SECONDS + rig.slack, "no waiter has looked by itself"
    queue.end()


def test_a_reader_that_comes_later_waits_behind_a_writer_which_waits_only_for_readers_before_it(
    rig: Rig, name: str
) -> None:
    client, others = warm(rig), warm(rig)
    first, queue = others.rwlock(name).read, Queue(rig, client, name)
    take(first, 1)
    queue.join("w1")
    assert refused(others.rwlock(name, owner="newcomer").read)
    queue.join("r1")
    assert queue.served == []
    first.release()
    queue.until_served("w1")
    queue.release("w1")
    queue.until_served("w1", "r1")
    queue.release("r1")
    queue.end()
    rig.until_free(name, "all")


def test_without_fair_a_reader_passes_the_writers_that_wait(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    first, queue = others.rwlock(name).read, Queue(rig, client, name)
    take(first, 1)
    queue.join("w1", fair=False)
    passing = others.rwlock(name, owner="newcomer", fair=False).read
    take(passing, 1)
    assert refused(others.rwlock(name, owner="fair").read)
    first.release()
    assert queue.served == []
    passing.release()
    queue.until_served("w1")
    queue.release("w1")
    queue.end()
    rig.until_free(name, "all")


def test_a_waiter_that_nobody_listens_for_keeps_no_reader_out(rig: Rig, name: str) -> None:
    """The process of a writer that was first has died, while readers had the lock: its place is still there."""
    client, others = warm(rig), warm(rig)
    reader, newcomer = others.rwlock(name).read, client.rwlock(name).read
    take(reader, 1)
    for master in range(rig.masters):
        rig.ask(master, "ZADD", f"{key_of(name)}:queue", 1, "dead:1")
        rig.ask(master, "ZADD", f"{key_of(name)}:waiters", FAR_MS, "dead:1")
    assert newcomer.acquire(timeout=0)
    rig.until(lambda: have_it(rig, name, readers=2), "both are everywhere")
    leave(newcomer)
    leave(reader)


def test_a_writer_that_gives_up_lets_the_readers_behind_it_in(rig: Rig, name: str) -> None:
    client, others = warm(rig, node_timeout=PATIENT), warm(rig)
    reader = others.rwlock(name).read
    take(reader, 1)
    for line in rig.lines:
        line.hold_request(calls(name, "read_heartbeat"))

    def give_up(timeout: float) -> bool:
        begin = rig.clock()
        writer = rig.start(lambda: others.rwlock(name, owner="w").write.acquire(timeout=timeout))
        rig.until(lambda: rig.queues_are(name, 1) or writer.is_over, "the writer waits")
        locks = [client.rwlock(name, owner=owner).read for owner in ("r1", "r2")]
        readers = [rig.start(partial(take, lock, 1)) for lock in locks]
        rig.until(lambda: rig.queues_are(name, 3) or writer.is_over, "the readers wait behind it")
        in_time = not writer.is_over
        assert not writer.result()
        for running in readers:
            running.result()
        assert rig.clock() - begin < timeout + HELP_SECONDS + rig.slack
        for lock in locks:
            lock.release()
        return in_time

    until_in_time(give_up)
    reader.release()
    rig.until_free(name, "all")


# One owner as both ----------------------------------------------------------------------------------------------------


def test_a_reader_nests_though_a_writer_waits(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both, queue = client.rwlock(name), Queue(rig, others, name)
    take(both.read, 1)
    queue.join("w1")
    assert both.read.acquire(timeout=0)
    assert both.read.hold_count == 2
    token = both.read.token
    both.read.release()
    assert (both.read.hold_count, both.read.token, queue.served) == (1, token, [])
    both.read.release()
    with pytest.raises(NotOwnedError, match="as a reader"):
        both.read.release()
    queue.until_served("w1")
    queue.release("w1")
    queue.end()
    rig.until_free(name, "all")


@pytest.mark.parametrize("ended_first", ["read", "write"])
def test_a_writer_is_a_reader_as_well_whatever_it_gives_back_first(ended_first: str, rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both, queue = client.rwlock(name), Queue(rig, others, name)
    take(both.write, 2)
    queue.join("w1")
    assert both.read.acquire(timeout=0), "the writer that waits does not keep it out"
    take(both.read, 1)
    assert (both.write.hold_count, both.read.hold_count) == (2, 2)
    assert (both.read.token or 0) > (both.write.token or 0)
    rig.until(lambda: have_it(rig, name, writers=1, readers=1), "it has both everywhere")
    first, second = (both.read, both.write) if ended_first == "read" else (both.write, both.read)
    first.release()
    assert (first.hold_count, second.hold_count) == (1, 2)
    first.release()
    assert (first.hold_count, second.hold_count, second.owned()) == (0, 2, True)
    assert second.extend() > 0
    assert refused(others.lock(name, owner="newcomer"))
    assert queue.served == []
    leave(second)
    queue.until_served("w1")
    queue.release("w1")
    queue.end()
    rig.until_free(name, "all")


def test_other_readers_get_in_beside_the_reader_that_was_a_writer(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both, other = client.rwlock(name), others.rwlock(name)
    take(both.write, 1)
    take(both.read, 1)
    assert refused(other.read)
    assert refused(other.write)
    both.write.release()
    assert other.read.acquire(timeout=0)
    assert refused(others.rwlock(name, owner="writer").write)
    leave(other.read)
    leave(both.read)
    rig.until_free(name, "all")


@pytest.mark.parametrize("owner", [None, "job"])
def test_a_reader_that_asks_as_a_writer_is_told_at_once_and_nothing_is_sent(
    owner: str | None, rig: Rig, name: str
) -> None:
    client = warm(rig)
    both, plain = client.rwlock(name, owner=owner), client.lock(name, owner=owner)
    several = client.lock_all([name, f"{name}-other"], owner=owner)
    take(both.read, 2)
    token = both.read.token
    rig.until(lambda: rig.counts(name) == [2] * rig.masters, "both levels are everywhere")
    rig.until_settled(client)

    def enter(lock: Any) -> None:
        with lock:
            raise AssertionError("the body does not run")

    with nothing_sent(rig, name):
        for lock in (both.write, plain, several):
            for ask in (lock.acquire, partial(lock.acquire, timeout=0), partial(lock.acquire, blocking=False)):
                with pytest.raises(UpgradeError, match="release the read lock first") as caught:
                    ask()
                assert caught.value.lock == name
            with pytest.raises(RuntimeError):
                enter(lock)
    assert (both.read.hold_count, both.read.token) == (2, token)
    assert (both.write.owned(), plain.hold_count) == (False, 0)
    rig.until_free(f"{name}-other", "the lock of several")
    leave(both.read)
    for lock in (both.write, plain, several):
        take(lock, 1)
        leave(lock)
    take(both.write, 1)
    take(both.read, 1)
    both.write.release()
    with pytest.raises(UpgradeError):
        both.write.acquire()
    leave(both.read)
    rig.until_free(name, "all")
    assert client.statistics().waiting == 0


def test_another_owner_of_the_same_client_waits_as_a_writer(rig: Rig, name: str) -> None:
    client = warm(rig)
    reader, queue = client.rwlock(name).read, Queue(rig, client, name)
    take(reader, 1)
    assert refused(client.rwlock(name, owner="another").write)
    queue.join("w1")
    reader.release()
    queue.until_served("w1")
    queue.release("w1")
    queue.end()


def test_a_hold_of_one_kind_is_not_the_other_kind_s(rig: Rig, name: str) -> None:
    client = warm(rig)
    both = client.rwlock(name)
    for held, other in ((both.read, both.write), (both.write, both.read)):
        take(held, 1)
        for use in (other.release, other.extend, other.ensure):
            with pytest.raises(NotOwnedError, match="does not hold"):
                use()
        assert (other.owned(), other.hold_count, other.token, other.remaining()) == (False, 0, None, 0.0)
        assert held.owned()
        held.release()
    rig.until_free(name, "both")


def test_threads_of_one_owner_share_its_hold_as_reader_and_its_hold_as_writer(rig: Rig, name: str) -> None:
    client = warm(rig)
    both = client.rwlock(name, owner="job")
    take(both.read, 1)
    rig.start(lambda: take(both.read, 1)).result()
    assert both.read.hold_count == 2
    with pytest.raises(UpgradeError):
        rig.start(both.write.acquire).result()
    leave(both.read)
    take(both.write, 1)
    rig.start(lambda: take(both.read, 1)).result()
    assert (both.read.hold_count, both.write.hold_count) == (1, 1)
    rig.start(both.write.release).result()
    assert (both.read.hold_count, both.write.hold_count) == (1, 0)
    rig.start(both.read.release).result()
    rig.until_free(name, "all")


def test_a_plain_lock_is_the_writer(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both, plain = client.rwlock(name), client.lock(name)
    take(both.write, 1)
    take(plain, 1)
    assert (both.write.hold_count, plain.hold_count, plain.token) == (2, 2, both.write.token)
    plain.release()
    both.write.release()
    take(others.rwlock(name).read, 1)
    assert plain.locked()
    assert refused(plain)
    assert not client.lock_all([name, f"{name}-other"]).acquire(timeout=0)
    others.rwlock(name).read.release()
    take(plain, 1)
    assert refused(others.rwlock(name).read)
    take(both.read, 1)
    plain.release()
    rig.until(lambda: have_it(rig, name, readers=1), "the reader is left everywhere")
    leave(both.read)
    rig.until_free(name, "all")


# Calls of one owner for both sides ------------------------------------------------------------------------------------


class Pending:
    """A lock that another client has, and calls of one owner for both sides that are under way meanwhile."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self.client = rig, warm(rig)
        self.name, self.both = name, self.client.rwlock(name, owner="job")
        self._other = warm(rig).lock(name, owner="other")
        take(self._other, 1)

    def start(self, call: Callable[[], object], under_way: int) -> Running:
        """Start a call; return once so many calls are under way, in the queue of every master or at a gate."""
        running = self._rig.start(call)
        self._rig.until(lambda: self._count() == under_way, f"{under_way} calls are under way")
        return running

    def _count(self) -> int:
        queued = self._rig.queued(self.name)
        gates = [*self.client._session.gates._gates.copy().values()]
        return min(queued) + sum(len([*gate.line()]) for gate in gates)

    def let_in(self) -> None:
        """Let the other client release the lock."""
        self._other.release()

    def end(self) -> None:
        """Check that nothing is left, on the masters or at a gate."""
        self._rig.until_free(self.name, "all")
        self._rig.until(lambda: not self.client._session.gates._gates, "no call is at the gate")


@pytest.mark.parametrize("way", ["nested read", "downgrade"])
def test_a_writer_reads_on_though_a_read_of_its_owner_was_under_way_when_it_got_in(
    way: str, rig: Rig, name: str
) -> None:
    pending = Pending(rig, name)
    both = pending.both

    def write_and_read() -> None:
        take(both.write, 1)
        if way == "nested read":
            take(both.read, 1)
            both.write.release()
        else:
            both.write.downgrade()

    writer = pending.start(write_and_read, 1)
    reader = pending.start(lambda: take(both.read, 1), 2)
    pending.let_in()
    writer.result()
    reader.result()
    assert (both.write.hold_count, both.read.hold_count) == (0, 2)
    leave(both.read)
    pending.end()


def test_a_reader_that_asks_as_a_writer_is_told_at_once_though_a_write_of_its_owner_is_under_way(
    rig: Rig, name: str
) -> None:
    """The write that is under way is told as well: the owner has the lock as a reader when its turn comes."""
    pending = Pending(rig, name)
    both = pending.both
    reader = pending.start(lambda: take(both.read, 1), 1)
    writer = pending.start(lambda: take(both.write, 1), 2)
    pending.let_in()
    reader.result()
    with pytest.raises(UpgradeError):
        take(both.write, 1)
    with pytest.raises(UpgradeError):
        writer.result()
    leave(both.read)
    take(both.write, 1)
    leave(both.write)
    pending.end()


def test_several_locks_are_all_given_back_if_one_is_read_by_their_owner_when_their_turn_comes(
    rig: Rig, name: str
) -> None:
    pending = Pending(rig, name)
    both, first = pending.both, f"a-{name}"  # taken before the other one
    several = pending.client.lock_all([name, first], owner="job")
    reader = pending.start(lambda: take(both.read, 1), 1)
    writer = pending.start(several.acquire, 2)
    pending.let_in()
    reader.result()
    with pytest.raises(UpgradeError):
        writer.result()
    rig.until_free(first, "the call for several")
    assert both.read.hold_count == 1
    leave(both.read)
    pending.end()


# Downgrade ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_before", [0, 1])
def test_a_downgrade_makes_each_level_a_level_of_the_reader(read_before: int, rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both = client.rwlock(name)
    take(both.write, 2)
    take(both.read, read_before)
    token = both.write.token or 0
    both.write.downgrade()
    assert (both.write.hold_count, both.read.hold_count) == (0, 2 + read_before)
    assert (both.read.token or 0) > token
    for use in (both.write.release, both.write.downgrade):
        with pytest.raises(NotOwnedError):
            use()
    rig.until(lambda: have_it(rig, name, readers=1), "only the reader is left")
    rig.until(lambda: rig.agree_on(name, 2 + read_before), "the same count here and there")
    assert others.rwlock(name).read.acquire(timeout=0)
    assert refused(others.rwlock(name, owner="writer").write)
    others.rwlock(name).read.release()
    leave(both.read)
    rig.until_free(name, "all")
    assert client.statistics().losses == 0


@each_handoff
def test_a_downgrade_lets_the_readers_in_that_are_first(handoff: str, rig: Rig, name: str) -> None:
    client, others = warm(rig, handoff=handoff), warm(rig, node_timeout=PATIENT, handoff=handoff)
    both, queue = client.rwlock(name), Queue(rig, others, name)
    take(both.write, 1)
    for line in rig.lines:
        for script in ("heartbeat", "read_heartbeat"):
            line.hold_request(calls(name, script))
    queue.join("r1", "r2", "w1", "r3")
    begin = rig.clock()
    both.write.downgrade()
    queue.until_served("r1", "r2")
    assert rig.clock() - begin < HELP_SECONDS + rig.slack
    both.read.release()
    queue.release("r1")
    assert len(queue.served) == 2
    queue.release("r2")
    queue.until_served("r1", "r2", "w1")
    queue.release("w1")
    queue.until_served("r1", "r2", "w1", "r3")
    queue.release("r3")
    queue.end()


def test_a_downgrade_leaves_a_writer_that_is_first_waiting(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both, queue = client.rwlock(name), Queue(rig, others, name)
    take(both.write, 1)
    queue.join("w1", "r1")
    both.write.downgrade()
    assert both.read.owned()
    assert refused(others.rwlock(name, owner="newcomer").read), "behind the writer"
    assert queue.served == []
    both.read.release()
    queue.until_served("w1")
    queue.release("w1")
    queue.until_served("w1", "r1")
    queue.release("r1")
    queue.end()
    rig.until_free(name, "all")


def test_a_downgrade_needs_a_writer(rig: Rig, name: str) -> None:
    both = warm(rig).rwlock(name)
    with nothing_sent(rig, name), pytest.raises(NotOwnedError):
        both.write.downgrade()
    take(both.read, 1)
    rig.until(lambda: have_it(rig, name, readers=1), "the reader is everywhere")
    with nothing_sent(rig, name), pytest.raises(NotOwnedError):
        both.write.downgrade()
    assert both.read.hold_count == 1
    leave(both.read)


@pytest.mark.parametrize("read_before", [0, 1])
def test_a_downgrade_of_a_lost_hold_raises_that_and_takes_no_reader(read_before: int, rig: Rig, name: str) -> None:
    both = warm(rig).rwlock(name)
    rig.take_everywhere(both.write, 1)
    take(both.read, read_before)
    rig.until(lambda: have_it(rig, name, writers=1, readers=read_before), "all is everywhere")
    forget(rig, name, readers=False)
    with pytest.raises(LockLostError):
        both.write.extend()
    with nothing_sent(rig, name), pytest.raises(LockLostError):
        both.write.downgrade()
    assert both.read.hold_count == read_before
    leave_lost(both.write)
    leave(both.read)
    rig.until_free(name, "the loss")


def test_a_downgrade_that_finds_the_writer_lost_leaves_no_reader(rig: Rig, name: str) -> None:
    client = warm(rig)
    both = client.rwlock(name)
    rig.take_everywhere(both.write, 2)
    faults = [line.hold_request(calls(name, "read_release")) for line in rig.lines]
    going = rig.start(lambda: None)

    def forget_the_writer() -> None:
        rig.until(lambda: all_struck(faults), "the end of the writer's hold is under way")
        forget(rig, name, readers=False)
        release_all(faults)

    going = rig.start(forget_the_writer)
    with pytest.raises(LockLostError):
        both.write.downgrade()
    going.result()
    assert (both.read.hold_count, both.write.hold_count, both.write.lost) == (0, 0, True)
    for _ in range(2):
        with pytest.raises(LockLostError):
            both.write.release()
    with pytest.raises(NotOwnedError):
        both.write.release()
    rig.until_free(name, "the loss")
    assert client.statistics().losses == 1


def test_after_a_downgrade_that_no_quorum_answers_the_writer_goes_on(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=BRIEF, patience=0), warm(rig)
    rig.warm_up(client)
    rig.warm_up(client, "reader")
    both = client.rwlock(name)
    rig.take_everywhere(both.write, 2)
    faults = []

    def downgrade() -> None:
        with pytest.raises(QuorumError):
            both.write.downgrade()

    faults = rig.until_asked(lambda line: line.hold_reply(calls(name, "read_acquire")), downgrade)
    assert (both.write.hold_count, both.read.hold_count) == (2, 0)
    release_all(faults)
    rig.until(lambda: have_it(rig, name, writers=1), "no reader is left anywhere")
    assert refused(others.rwlock(name).read)
    leave(both.write)
    rig.until_free(name, "the release")
    assert client.statistics().losses == 0


FATES: dict[str, Callable[[Line, Any], Any]] = {
    "the request is late": Line.hold_request,
    "the request is lost": Line.lose_request,
    "the reply is late": Line.hold_reply,
    "the reply is lost": lambda line, match: line.swallow_reply(match, mute=True),
}


@pytest.mark.parametrize("script", ["read_acquire", "read_release"])
@pytest.mark.parametrize("fate", FATES.values(), ids=FATES)
def test_whatever_becomes_of_a_request_of_a_downgrade(
    fate: Callable[[Line, Any], Any], script: str, rig: Rig, name: str
) -> None:
    client, others = rig.client(node_timeout=BRIEF, patience=0), warm(rig)
    rig.warm_up(client)
    rig.warm_up(client, "reader")
    both = client.rwlock(name, timeout=0)
    expected: list[tuple[int, int]] = []

    def prepare() -> None:
        leave(both.read)
        leave(both.write)
        rig.until(partial(tried, partial(take, both.write, 2)), "the writer has it")

    def downgrade() -> None:
        try:
            both.write.downgrade()
        except QuorumError:
            expected.append((2, 0))
        else:
            expected.append((0, 2))
        assert (both.write.hold_count, both.read.hold_count) == expected[-1]

    faults = rig.until_asked(lambda line: fate(line, calls(name, script)), downgrade, before=prepare)
    release_all(faults)
    rig.until(lambda: all_done(faults), "the late requests and replies have come")
    assert (both.write.hold_count, both.read.hold_count) == expected[-1]
    rig.until(lambda: rig.agree_on(name, 2), "the same here and there")
    assert refused(others.lock(name))
    leave(both.read)
    leave(both.write)
    rig.until_free(name, "a request with that fate")
    take(others.lock(name), 1)
    assert (client.statistics().held, client.statistics().losses) == (0, 0)


def tried(call: Callable[[], object]) -> bool:
    """Make the call; return whether a quorum has answered in time, which a busy machine may prevent."""
    try:
        call()
    except (QuorumError, AssertionError):
        return False
    return True


# Interrupts -----------------------------------------------------------------------------------------------------------


def interrupt() -> None:
    raise Interrupted


@pytest.mark.parametrize("owner", [None, "job"])
@pytest.mark.parametrize("read_before", [0, 1])
def test_an_interrupt_between_any_two_steps_of_a_downgrade(
    read_before: int, owner: str | None, rig: Rig, name: str
) -> None:
    """The caller has the lock as a writer still, or as a reader, and no level is lost or won."""
    client = rig.client(on_event=print)  # events are told last of all, so there are steps up to the very end
    rig.warm_up(client)
    rig.warm_up(client, "reader")
    seen = set()
    for number in count(1):
        both = client.rwlock(f"{name}-{number}", owner=owner)
        rig.take_everywhere(both.write, 2)  # a master that has only the reader gets no writer back
        take(both.read, read_before)
        strike = At(number, interrupt)
        with rig.watch.each(strike):
            try:
                both.write.downgrade()
            except Interrupted:
                pass
        levels = both.write.hold_count, both.read.hold_count
        assert levels in {(2, read_before), (0, 2 + read_before)}, f"after an interrupt {strike.where}"
        assert strike.where or levels[0] == 0
        rig.until(lambda: not client._session.gates._gates, f"no gate is taken after an interrupt {strike.where}")
        seen.add(levels)
        rig.until(
            partial(rig.agree_on, both.name, 2 + read_before), f"the same there after an interrupt {strike.where}"
        )
        rig.until(
            partial(have_it, rig, both.name, writers=min(1, levels[0]), readers=min(1, levels[1])),
            f"the same holders after an interrupt {strike.where}",
        )
        leave(both.read)
        leave(both.write)
        rig.until_free(both.name, f"an interrupt {strike.where}")
        if not strike.where:
            break
    assert number > 10, "the watch sees the steps"
    assert len(seen) == 2
    statistics = client.statistics()
    assert (statistics.held, statistics.losses) == (0, 0)


@pytest.mark.parametrize(("script", "levels"), [("read_acquire", (2, 0)), ("read_release", (0, 2))])
def test_an_interrupt_of_a_downgrade_while_the_masters_are_silent(
    script: str, levels: tuple[int, int], rig: Rig, name: str
) -> None:
    client = rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    rig.warm_up(client, "reader")
    both = client.rwlock(name)
    rig.take_everywhere(both.write, 2)
    rig.until_settled(client)
    faults = [line.hold_reply(calls(name, script)) for line in rig.lines]
    assert rig.interrupt(both.write.downgrade, when=lambda: all_struck(faults))
    assert (both.write.hold_count, both.read.hold_count) == levels
    release_all(faults)
    rig.until(lambda: rig.agree_on(name, 2), "the same there")
    leave(both.read)
    leave(both.write)
    rig.until_free(name, "the interrupt")
    assert client.statistics().held == 0


def test_an_interrupt_between_any_two_steps_of_a_read_acquire_beside_the_writer(rig: Rig, name: str) -> None:
    client = rig.client(on_event=print)
    rig.warm_up(client)
    rig.warm_up(client, "reader")
    for number in count(1):
        both = client.rwlock(f"{name}-{number}")
        take(both.write, 1)
        strike = At(number, interrupt)
        with rig.watch.each(strike):
            try:
                both.read.acquire()
            except Interrupted:
                pass
        assert (both.write.hold_count, both.read.hold_count) == (1, 0 if strike.where else 1)
        rig.until(
            partial(have_it, rig, both.name, writers=1, readers=both.read.hold_count), f"an interrupt {strike.where}"
        )
        leave(both.write)
        leave(both.read)
        rig.until_free(both.name, f"an interrupt {strike.where}")
        if not strike.where:
            break
    assert number > 5, "the watch sees the steps"
    assert client.statistics().held == 0


# Losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["read", "write"])
def test_the_loss_of_one_hold_leaves_the_other_and_is_told_with_its_kind(lost: str, rig: Rig, name: str) -> None:
    told: list[Any] = []
    client, others = warm(rig), warm(rig)
    both = client.rwlock(name, on_lost=told.append)
    rig.take_everywhere(both.write, 1)
    take(both.read, 1)
    rig.until(lambda: have_it(rig, name, writers=1, readers=1), "both are everywhere")
    gone, left = (both.read, both.write) if lost == "read" else (both.write, both.read)
    token = gone.token
    forget(rig, name, readers=lost == "read")
    noun = "read hold" if lost == "read" else "hold"
    for use in (gone.extend, gone.ensure, gone.acquire):
        with pytest.raises(LockLostError, match=f"^the {noun} of") as caught:
            use()
        assert (caught.value.lock, caught.value.token) == (name, token)
    assert (gone.lost, gone.owned(), gone.token, gone.remaining()) == (True, False, None, 0.0)
    assert (left.lost, left.owned()) == (False, True)
    assert left.extend() > 0
    assert left.ensure() == left.token
    assert refused(others.rwlock(name).write)
    with pytest.raises(LockLostError):
        gone.release()
    with pytest.raises(NotOwnedError):
        gone.release()
    rig.until(lambda: told, "the loss is told")
    assert [(loss.lock, loss.kind, loss.token) for loss in told] == [
        (name, "read" if lost == "read" else "lock", token)
    ]
    assert client.statistics().losses == 1
    left.release()
    rig.until_free(name, "all")


@pytest.mark.parametrize("lost", ["read", "write"])
def test_a_caller_must_leave_its_lost_hold_before_it_takes_the_other_one(lost: str, rig: Rig, name: str) -> None:
    both = warm(rig).rwlock(name)
    gone, other = (both.read, both.write) if lost == "read" else (both.write, both.read)
    rig.take_everywhere(gone, 1)
    forget(rig, name, readers=lost == "read")
    with pytest.raises(LockLostError):
        gone.extend()
    with nothing_sent(rig, name), pytest.raises(LockLostError):
        other.acquire()
    leave_lost(gone)
    take(other, 1)
    leave(other)
    rig.until_free(name, "all")


def let_readers_die(rig: Rig, name: str, *leases: float) -> None:
    """Have readers with leases that end in so many seconds, whose clients are no more."""
    for master in range(rig.masters):
        seconds, micros = map(int, rig.ask(master, "TIME"))
        for number, lease in enumerate(leases):
            rig.ask(master, "HSET", key_of(name), f"dead:{number}&", 1)
            end_ms = seconds * 1000 + micros // 1000 + round(lease * 1000)
            rig.ask(master, "ZADD", leases_key_of(name), end_ms, f"dead:{number}&")
        for key in (key_of(name), leases_key_of(name)):
            rig.ask(master, "PEXPIRE", key, round(max(leases) * 1000))


def test_a_dead_reader_holds_a_writer_up_for_its_own_lease_while_others_renew(rig: Rig, name: str) -> None:
    client, others = warm(rig, node_timeout=PATIENT), warm(rig)
    living, writer = others.rwlock(name).read, client.rwlock(name).write
    begin = rig.clock()
    let_readers_die(rig, name, SHORT_TTL)
    take(living, 1)
    assert living.extend() > SHORT_TTL
    for line in rig.lines:
        line.hold_request(calls(name, "heartbeat"))
    living.release()
    take(writer, 1)
    assert rig.clock() - begin < SHORT_TTL + 0.3 + rig.slack, "the writer looks when the lease has ended"
    leave(writer)
    rig.until_free(name, "all")


def test_a_dead_reader_is_no_holder_while_others_go_on(rig: Rig, name: str) -> None:
    client = warm(rig)
    living, other = (client.rwlock(name, owner=owner).read for owner in ("living", "other"))
    let_readers_die(rig, name, TTL)
    take(living, 1)
    assert len(living.info().readers) == 2
    for master in range(rig.masters):
        rig.ask(master, "ZADD", leases_key_of(name), 1, "dead:0&")
    assert len(living.info().readers) == 1, "its lease has ended on the masters"
    assert ":living." in living.info().readers[0].owner

    def removed_by_the_next_reader() -> bool:
        """Take and leave the lock; return whether each master then had the two readers that live."""
        assert living.extend() > 0  # it may have missed a master as well
        take(other, 1)
        have_both = have_it(rig, name, readers=2)
        leave(other)
        return have_both

    rig.until(removed_by_the_next_reader, "each master has removed the dead reader")
    leave(living)
    rig.until_free(name, "all")


def test_when_all_readers_have_died_a_writer_gets_in_after_the_last_lease(rig: Rig, name: str) -> None:
    client = warm(rig, node_timeout=PATIENT)
    writer = client.rwlock(name).write
    begin = rig.clock()
    let_readers_die(rig, name, SHORT_TTL, SHORT_TTL / 4, SHORT_TTL / 2)
    for line in rig.lines:
        line.hold_request(calls(name, "heartbeat"))
    assert refused(client.lock(name)) or rig.clock() > begin + SHORT_TTL - 0.1
    take(writer, 1)
    assert SHORT_TTL - 0.1 < rig.clock() - begin < SHORT_TTL + 0.3 + rig.slack
    leave(writer)
    rig.until_free(name, "all")


def test_a_force_release_ends_every_reader_and_serves_the_next_waiter(rig: Rig, name: str) -> None:
    client, operator, others = warm(rig), warm(rig), warm(rig)
    readers = [others.rwlock(name, owner=owner).read for owner in "ab"]
    for reader in readers:
        take(reader, 1)
    queue = Queue(rig, client, name)
    queue.join("w1")
    assert operator.force_release(name) is True
    queue.until_served("w1")
    for reader in readers:
        with pytest.raises(LockLostError):
            reader.extend()
        leave_lost(reader)
    queue.release("w1")
    queue.end()
    rig.until_free(name, "the writer")
    assert operator.force_release(name) is False
    rig.until_free(name, "all")
    both = client.rwlock(name)
    take(both.write, 1)
    take(both.read, 1)
    assert both.read.force_release() is True
    for lock in (both.read, both.write):
        with pytest.raises(LockLostError):
            lock.extend()
        leave_lost(lock)
    rig.until_free(name, "both holds of one owner")


@pytest.mark.several
def test_a_master_that_forgot_a_reader_gets_it_again_with_its_lease(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    reader = client.rwlock(name).read
    rig.take_everywhere(reader, 2)
    before = rig.holders(name)
    rig.ask(0, "DEL", key_of(name), leases_key_of(name))
    # A quorum may answer before the master that lacks the reader, which is then asked by another renewal.
    rig.until(lambda: reader.extend() > 0 and rig.holders(name) == before, "the same reader everywhere")
    assert rig.counts(name) == [2] * rig.masters
    assert [rig.ask(master, "ZCARD", leases_key_of(name)) for master in range(rig.masters)] == [1] * rig.masters
    assert others.rwlock(name).read.acquire(timeout=0)
    leave(others.rwlock(name).read)
    leave(reader)
    rig.until_free(name, "the release")


@pytest.mark.several
def test_a_reader_gets_in_beside_its_own_writer_only(rig: Rig, name: str) -> None:
    """A minority of the masters has another writer."""
    both = warm(rig).rwlock(name)
    rig.occupy(0, name)
    take(both.write, 1)
    take(both.read, 1)
    assert both.read.extend() > 0
    rig.until(lambda: all(len(holders) == 2 for holders in rig.holders(name)[1:]), "the others have both")
    assert rig.holders(name)[0] == [b"somebody:else"]
    leave(both.read)
    leave(both.write)
    rig.vacate(name)
    rig.until_free(name, "all")


@pytest.mark.several
def test_a_master_that_has_only_the_reader_gets_the_writer_again_once_the_reader_is_released(
    rig: Rig, name: str
) -> None:
    both = warm(rig).rwlock(name)
    rig.occupy(0, name)
    take(both.write, 1)
    rig.vacate(name)
    take(both.read, 1)
    rig.until(lambda: all(rig.holders(name)), "every master has the reader or both")
    both.write.extend()
    assert both.write.owned()
    both.read.release()
    # A quorum may answer before the master that lacks the writer, which is then asked by another renewal.
    rig.until(lambda: both.write.extend() > 0 and have_it(rig, name, writers=1), "every master has the writer")
    leave(both.write)
    rig.until_free(name, "all")


def test_readers_that_every_master_forgot_leave_no_lease_that_lets_anybody_in(rig: Rig, name: str) -> None:
    """An operator deletes the key of the lock alone: the leases of its readers say nothing about the next writer."""
    client, others = warm(rig), warm(rig)
    reader, writer = others.rwlock(name, owner="a").read, client.rwlock(name).write
    take(reader, 1)
    for master in range(rig.masters):
        rig.ask(master, "DEL", key_of(name))
    take(writer, 1)
    assert refused(others.rwlock(name, owner="b").read)
    with pytest.raises(LockLostError):
        reader.extend()
    leave_lost(reader)
    assert writer.owned()
    leave(writer)


# What a caller sees ---------------------------------------------------------------------------------------------------


def test_reader_and_writer_have_leases_of_their_own(rig: Rig, name: str) -> None:
    client = warm(rig)
    write, read = client.rwlock(name, ttl=50.0).write, client.rwlock(name, ttl=20.0).read
    take(write, 1)
    take(read, 1)
    assert 20.0 < write.remaining() <= 50.0
    assert 0.0 < read.remaining() <= 20.0
    assert read.extend() <= 20.0
    assert write.remaining() > 20.0
    assert 20.0 < read.extend(30.0) <= 30.0
    with pytest.raises(LockLostError, match=r"^the read hold of .* is valid for"):
        read.ensure(40.0)
    assert write.ensure(40.0) == write.token
    assert read.ensure(20.0) == read.token
    write.release()
    (holder,) = read.info().readers
    assert 20.0 < holder.ttl <= 30.0
    leave(read)
    rig.until_free(name, "both")


def test_tokens_rise_from_readers_to_writers_and_back(rig: Rig, name: str) -> None:
    clients = [warm(rig), warm(rig)]
    last_of_writers, last_of_readers = 0, 0
    for number in range(4):
        both = clients[number % 2].rwlock(name)
        with both.write:
            token = both.write.ensure()
            assert token > max(last_of_readers, last_of_writers)
            last_of_writers = token
        for client in clients:
            take(client.rwlock(name).read, 1)
        for client in clients:
            token = client.rwlock(name).read.ensure()
            assert token > last_of_writers
            last_of_readers = max(token, last_of_readers)
            client.rwlock(name).read.release()
    rig.until_free(name, "all")


def test_info_names_readers_and_waiters_of_both_kinds(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    both = client.rwlock(name)
    empty = both.info()
    assert (empty.name, empty.held, empty.readers, empty.holders, empty.queue) == (name, False, (), (), ())
    brief, longer = (others.rwlock(name, owner=owner, ttl=ttl).read for owner, ttl in (("a", 20.0), ("b", 40.0)))
    take(brief, 2)
    take(longer, 1)
    rig.until(lambda: have_it(rig, name, readers=2), "both are everywhere")
    rig.until_settled(others)
    queue = Queue(rig, others, name)
    queue.join("w1", "r1")
    info = client.info(name)
    assert [":b." in info.readers[0].owner, ":a." in info.readers[1].owner] == [True, True], "the latest lease first"
    assert [reader.hold_count for reader in info.readers] == [1, 2]
    assert 20.0 < info.readers[0].ttl <= 40.0
    assert 0.0 < info.readers[1].ttl <= 20.0
    assert info.holders == info.readers
    assert (info.owner, info.hold_count, info.ttl) == (
        info.readers[0].owner,
        info.readers[0].hold_count,
        info.readers[0].ttl,
    )
    assert (info.held, info.kind) == (True, "lock")
    assert [":w1." in info.queue[0], ":r1." in info.queue[1]] == [True, True]
    assert list(client.names(name)) == [name]
    assert (both.read.locked(), both.write.locked()) == (True, True)
    leave(brief)
    leave(longer)
    queue.until_served("w1")
    info = both.info()
    assert (info.readers, len(info.holders)) == ((), 1)
    assert ":w1." in (info.owner or "")
    queue.release("w1")
    queue.until_served("w1", "r1")
    queue.release("r1")
    queue.end()
    take(both.write, 2)
    take(both.read, 1)
    info = both.info()
    assert (info.readers, info.hold_count, "&" in (info.owner or "&")) == ((), 2, False), "the writer is the holder"
    leave(both.read)
    leave(both.write)
    rig.until_free(name, "all")


def test_events_and_statistics_count_reads_as_holds(rig: Rig, name: str) -> None:
    events: list[Any] = []
    client, others = warm(rig, on_event=events.append), warm(rig)
    before, both = client.statistics(), client.rwlock(name)
    take(both.read, 1)
    take(both.read, 1)
    after = client.statistics()
    assert (after.grants - before.grants, after.held) == (1, 1)
    leave(both.read)
    take(others.lock(name), 1)
    assert not both.read.acquire(timeout=0)
    leave(others.lock(name))
    take(both.read, 1)
    forget(rig, name, readers=True)
    with pytest.raises(LockLostError):
        both.read.extend()
    leave_lost(both.read)

    def told() -> list[tuple[type, str | None]]:
        return [(type(event), event.kind) for event in events if event.lock == name]

    rig.until(lambda: any(kind is Lost for kind, _ in told()), "the loss is told")
    assert told() == [(kind, "read") for kind in (Granted, Released, NotGranted, Granted, Lost)]
    assert client.statistics().held == 0


# Closing --------------------------------------------------------------------------------------------------------------


def test_a_close_ends_the_waits_of_readers_and_writers(rig: Rig, name: str) -> None:
    client, others = warm(rig), warm(rig)
    holder = others.rwlock(name).write
    take(holder, 1)
    waiting = []
    for number, owner in enumerate("ab"):
        both = client.rwlock(name, owner=owner)
        waiting.append(rig.start((both.read if owner == "a" else both.write).acquire))
        rig.until(partial(rig.queues_are, name, number + 1), "the caller waits")
    closing.close(client._session)
    for one in waiting:
        with pytest.raises(ClientClosedError):
            one.result()
    rig.until(lambda: not any(rig.queued(name)), "no waiter is queued")
    leave(holder)
    rig.until_free(name, "the release")


def test_after_a_close_holds_are_released_here_and_left_to_their_leases_there(rig: Rig, name: str) -> None:
    client = warm(rig)
    both, other = client.rwlock(name), client.rwlock(f"{name}-other")
    for lock in (both.write, both.read, other.write):
        take(lock, 1)
    closing.close(client._session)
    with pytest.raises(ClientClosedError):
        other.write.downgrade()
    assert (other.write.hold_count, other.read.hold_count) == (1, 0)
    for lock in (both.write, both.read, other.write):
        lock.release()
        assert not lock.owned()
        with pytest.raises(NotOwnedError):
            lock.release()
    for lock in (both.write, both.read):
        with pytest.raises(ClientClosedError):
            lock.acquire()
