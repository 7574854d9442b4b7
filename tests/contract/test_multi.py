"""Several locks as one, on every driver: all of them or none, in one order, in one time."""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from contract.rigs.calls import leave, take
from contract.rigs.rig import BRIEF, TTL, Rig, all_done, all_struck, calls, release_all
from relock import AcquireTimeoutError, Client, ClientClosedError, LockLostError, MultiLock, NotOwnedError, QuorumError
from relock._events import Granted, NotGranted, Released
from relock._runtime.session import closing

PATIENT = 10.0  # seconds: a node timeout that is longer than any wait here
BRIEF_CLOSE = 2.0  # seconds: the node timeout where a close, or what repeats a request, waits for it to be over


def names_of(name: str) -> list[str]:
    """Return three names in the order of their bytes."""
    return [f"{name}-{letter}" for letter in "abc"]


def free_all(rig: Rig, lock: MultiLock, after: str) -> None:
    """Wait until nothing is left of any of the locks."""
    for one in lock.names:
        rig.until_free(one, after)


def agree(rig: Rig, lock: MultiLock, count: int) -> bool:
    """Return whether each lock has this count, on the masters."""
    return all(rig.agree_on(one, count) for one in lock.names)


# Taking and giving back -----------------------------------------------------------------------------------------------


def test_all_locks_are_taken_and_given_back(rig: Rig, name: str) -> None:
    client, others = rig.client(), rig.client()
    names = names_of(name)
    with client.lock_all(names[::-1]) as lock:
        assert lock.names == (*names,)
        assert lock.owned()
        assert {*lock.tokens} == {*names}
        assert lock.tokens == lock.ensure() == {one: client.lock(one).token for one in names}
        assert lock.remaining() == pytest.approx(min(client.lock(one).remaining() for one in names), abs=rig.slack)
        for one in names:
            assert not others.lock(one).acquire(blocking=False)
        assert not others.lock_all(names[1:]).acquire(blocking=False)
        assert lock.locked()
        assert {one: info.hold_count for one, info in lock.info().items()} == dict.fromkeys(names, 1)
    assert not lock.owned()
    assert not lock.locked()
    with client.lock(names[1]):
        assert lock.locked(), "one of them is"
    free_all(rig, lock, "the block")


def test_levels_are_counted_for_each_lock(rig: Rig, name: str) -> None:
    client = rig.client()
    names = names_of(name)
    lock, some = client.lock_all(names), client.lock_all(names[:2])
    with client.lock(names[0]), lock, some, client.lock(names[0]):
        assert [client.lock(one).hold_count for one in names] == [4, 2, 1]
        assert (lock.hold_count, some.hold_count) == (1, 2)
        rig.until(lambda: [rig.agree_on(one, 4 - 2 * i or 1) for i, one in enumerate(names[:1])], "the counts")
    assert lock.hold_count == 0
    free_all(rig, lock, "all blocks")


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_try_takes_all_or_nothing(taken: int, rig: Rig, name: str) -> None:
    events: list[Any] = []
    client, others = rig.client(on_event=events.append), rig.client()
    rig.warm_up(client)
    names = names_of(name)
    held = others.lock(names[taken])
    rig.take_everywhere(held, 1)
    before, lock = client.statistics(), client.lock_all(names)
    assert not lock.acquire(blocking=False)
    assert (lock.owned(), lock.hold_count, lock.lost) == (False, 0, False)
    for one in names:
        if one != held.name:
            rig.until_free(one, "the refusal")
    after = client.statistics()
    assert after.refusals - before.refusals == 1
    assert (after.held, after.waits) == (0, before.waits)

    def refusals() -> list[str | None]:
        return [event.lock for event in events if isinstance(event, NotGranted)]

    rig.until(refusals, "the refusal is told")
    assert refusals() == [held.name]
    leave(held)
    assert lock.acquire(blocking=False)
    assert client.statistics().refusals == after.refusals
    leave(lock)
    for one in names:
        rig.until_free(one, "the release")


def test_each_lock_is_told_and_counted_as_a_hold_of_its_own(rig: Rig, name: str) -> None:
    events: list[Any] = []
    client = rig.client(on_event=events.append)
    rig.warm_up(client)
    before, lock = client.statistics(), client.lock_all(names_of(name))
    with lock:
        after = client.statistics()
        assert (after.grants - before.grants, after.held) == (3, 3)

    def told(kind: type[Granted] | type[Released]) -> list[str | None]:
        return [event.lock for event in events if isinstance(event, kind) and event.lock in lock.names]

    rig.until(lambda: told(Released) == [*lock.names], "the releases are told")
    assert told(Granted) == [*lock.names]


# Waiting --------------------------------------------------------------------------------------------------------------


def test_a_caller_that_waits_holds_only_names_before_the_one_it_waits_for(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=PATIENT), rig.client()
    rig.warm_up(client)
    a, b, c = names_of(name)
    held = others.lock(b, owner="other")
    rig.take_everywhere(held, 1)
    waiting = rig.start(lambda: client.lock_all([c, b, a], owner="job").acquire(timeout=20))
    rig.until(lambda: rig.is_queued(b), "the caller waits")
    rig.until_free(c, "the names behind are given back")
    assert rig.agree_on(a, 1)
    assert others.lock(c, owner="other").acquire(blocking=False)
    held.release()
    rig.until(lambda: rig.is_queued(c), "it waits for the next one")
    assert rig.agree_on(b, 1)
    others.lock(c, owner="other").release()
    assert waiting.result() is True
    lock = client.lock_all([a, b, c], owner="job")
    assert lock.owned()
    assert client.statistics().refusals == 0
    lock.release()
    free_all(rig, lock, "the release")


def test_a_refused_call_leaves_its_longer_lease_and_its_callback_with_a_hold_from_before(rig: Rig, name: str) -> None:
    client, others = rig.client(), rig.client()
    rig.warm_up(client)
    rig.warm_up(others)
    a, b, _ = names_of(name)
    told: list[object] = []
    take(others.lock(b), 1)
    single, several = client.lock(a, ttl=TTL / 2), client.lock_all([a, b], on_lost=told.append)
    take(single, 1)
    assert single.remaining() <= TTL / 2
    assert not several.acquire(blocking=False)
    assert single.hold_count == 1
    assert single.remaining() > TTL / 2
    assert client.force_release(a)
    with pytest.raises(LockLostError):
        single.extend()
    rig.until(lambda: told, "the callback is told of the loss")


@pytest.mark.parametrize("by", ["acquire", "with"])
def test_one_deadline_holds_for_all_and_at_its_end_everything_is_given_back(by: str, rig: Rig, name: str) -> None:
    """The first lock becomes free in the middle of the time, and the last one never."""
    timeout = 3.0 + min(rig.slack, 3.0)  # in real time, the callers may be late by seconds
    client, others = rig.client(), rig.client()
    rig.warm_up(client)
    rig.warm_up(others)
    a, b, c = names_of(name)
    held = others.lock_all([a, c], owner="other")
    take(held, 1)
    lock = client.lock_all([a, b, c], timeout=timeout)
    begin = rig.clock()

    def let_go() -> None:
        rig.until(lambda: rig.clock() > begin + 1.5, "a part of the time is over")
        others.lock(a, owner="other").release()

    going = rig.start(let_go)
    if by == "acquire":
        assert lock.acquire() is False
    else:
        with pytest.raises(AcquireTimeoutError, match=repr(c)) as caught, lock:
            raise AssertionError("the body does not run")
        assert (caught.value.lock, caught.value.timeout) == (c, timeout)
        assert ":other." in (caught.value.holder or "")
    assert timeout <= rig.clock() - begin < timeout + 2.0 + rig.slack
    going.result()
    assert client.statistics().held == 0
    rig.until_free(a, "the timeout")
    rig.until_free(b, "the timeout")
    others.lock(c, owner="other").release()
    rig.until_free(c, "the release")
    assert client.statistics().refusals == 1


def test_callers_with_overlapping_names_never_wait_for_each_other(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    a, b, c = names_of(name)
    done: list[str] = []

    def work(number: int, names: list[str]) -> None:
        lock = client.lock_all(names, owner=f"job-{number}")
        for _ in range(4):
            with lock:
                done.append(f"{number} in")
                assert lock.owned()
                done.append(f"{number} out")

    sets = [[a, b], [b, a], [c, a], [b, c], [c, b, a]]
    running = [rig.start(partial(work, number, names)) for number, names in enumerate(sets)]
    for job in running:
        job.result()
    for first, second in zip(done[::2], done[1::2], strict=True):
        assert first.split()[0] == second.split()[0], "any two sets here have a name in common"
    for one in (a, b, c):
        rig.until_free(one, "all")


def test_a_try_passes_no_queue_and_a_waiter_takes_its_turn(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=PATIENT), rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    rig.warm_up(others)
    a, b, c = names_of(name)
    held = others.lock(b, owner="holder")
    rig.take_everywhere(held, 1)
    order: list[str] = []

    def wait(owner: str, lock: Any) -> None:
        with lock:
            order.append(owner)

    plain = rig.start(lambda: wait("plain", others.lock(b, owner="plain")))
    rig.until(lambda: rig.queues_are(b, 1), "a plain waiter is queued")
    several = rig.start(lambda: wait("several", client.lock_all([a, b, c], owner="several")))
    rig.until(lambda: rig.queues_are(b, 2), "so is the other")
    last = rig.start(lambda: wait("last", others.lock(b, owner="last")))
    rig.until(lambda: rig.queues_are(b, 3), "and one more")
    assert not client.lock_all([b, c], owner="try").acquire(blocking=False)
    assert rig.queues_are(b, 3)
    held.release()
    for job in (plain, several, last):
        job.result()
    assert order == ["plain", "several", "last"]
    for one in (a, b, c):
        rig.until_free(one, "all")


def test_threads_of_one_owner_never_wait_for_each_other_inside_their_gates(rig: Rig, name: str) -> None:
    """A nested acquire is not refused while another caller of the owner leaves a level of all."""
    client = rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    lock = client.lock_all(names_of(name), owner="job")
    take(lock, 1)

    def go_in_and_out() -> None:
        for _ in range(10):
            assert lock.acquire(blocking=False), "the owner has all locks"
            lock.release()

    begin = rig.clock()
    running = [rig.start(go_in_and_out) for _ in range(3)]
    for one in running:
        one.result()
    assert rig.clock() - begin < rig.slack + 1.0
    assert lock.hold_count == 1
    lock.release()
    free_all(rig, lock, "the release")


# Losses, and leaving --------------------------------------------------------------------------------------------------


def lose(client: Client, one: str, owner: str | None = None) -> None:
    """Let an operator end the hold of one lock, and let the caller find out."""
    lock = client.lock(one, owner=owner)
    lock.force_release()
    with suppress(LockLostError):
        lock.extend()
    assert lock.lost


@pytest.mark.parametrize("number", [0, 1, 2])
def test_with_one_lock_lost_the_whole_is_lost_and_the_others_are_held_until_they_are_left(
    number: int, rig: Rig, name: str
) -> None:
    told: list[str] = []
    client = rig.client()
    rig.warm_up(client)
    names = names_of(name)
    lock = client.lock_all(names, on_lost=lambda loss: told.append(loss.lock))
    take(lock, 1)
    lose(client, names[number])
    assert (lock.owned(), lock.hold_count, lock.lost, lock.remaining()) == (False, 0, True, 0.0)
    assert lock.tokens == dict.fromkeys(names)
    for use in (lock.ensure, lock.extend, lock.acquire):
        with pytest.raises(LockLostError) as caught:
            use()
        assert caught.value.lock == names[number]
    for one in names:
        assert client.lock(one).hold_count == (one != names[number])
    with pytest.raises(LockLostError) as caught:
        lock.release()
    assert caught.value.lock == names[number]
    assert not hasattr(caught.value, "__notes__")
    free_all(rig, lock, "the release")
    rig.until(lambda: told, "the loss is told")
    take(lock, 1)
    assert not lock.lost, "another hold"
    assert lock.owned()
    leave(lock)
    assert told == [names[number]]


def test_a_lock_that_is_lost_while_its_caller_waits_for_another_gives_all_back(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=PATIENT), rig.client()
    rig.warm_up(client)
    a, b, c = names_of(name)
    held = others.lock(b, owner="other")
    take(held, 1)
    lock = client.lock_all([a, b, c], owner="job")
    waiting = rig.start(lock.acquire)
    rig.until(lambda: rig.is_queued(b), "the caller waits, and has the first lock")
    lose(client, a, "job")
    held.release()
    with pytest.raises(LockLostError) as caught:
        waiting.result()
    assert caught.value.lock == a
    assert [client.lock(one, owner="job").hold_count for one in (a, b, c)] == [0, 0, 0]
    free_all(rig, lock, "the loss")
    assert lock.acquire(timeout=20)
    lock.release()


def test_each_hold_of_the_whole_tells_one_loss(rig: Rig, name: str) -> None:
    told: list[str] = []
    client = rig.client()
    names = names_of(name)
    lock = client.lock_all(names, on_lost=lambda loss: told.append(loss.lock))
    for number in (2, 0):
        take(lock, 1)
        for one in (names[number], names[1]):
            lose(client, one)
        with pytest.raises(LockLostError):
            lock.release()
    rig.until(lambda: len(told) >= 2, "the losses are told")
    client._session.losses.hand(lambda _: told.append("end"), None)  # told after all losses
    rig.until(lambda: told[-1] == "end", "all is told")
    assert told == [names[2], names[0], "end"]


def test_leaving_a_block_raises_the_first_loss_and_notes_the_others(rig: Rig, name: str) -> None:
    client = rig.client()
    names = names_of(name)
    with pytest.raises(LockLostError) as caught, client.lock_all(names) as lock:  # noqa: PT012
        client.lock(names[0]).release()
        lose(client, names[1])
        lose(client, names[2])
    assert caught.value.lock == names[1]
    first, second = caught.value.__notes__
    assert repr(names[0]) in first
    assert repr(names[2]) in second
    free_all(rig, lock, "the block")


def test_a_lock_that_the_body_has_left_is_not_owned_and_the_others_are_given_back(rig: Rig, name: str) -> None:
    client = rig.client()
    names = names_of(name)
    with pytest.raises(NotOwnedError) as caught, client.lock_all(names) as lock:
        client.lock(names[1]).release()
    assert caught.value.lock == names[1]
    free_all(rig, lock, "the block")


def test_beside_the_body_s_error_a_loss_is_a_note(rig: Rig, name: str) -> None:
    client = rig.client()
    names = names_of(name)
    with pytest.raises(KeyError) as caught, client.lock_all(names):  # noqa: PT012
        lose(client, names[1])
        raise KeyError
    (note,) = caught.value.__notes__
    assert repr(", ".join(names)) in note
    assert "LockLostError" in note
    for one in names:
        rig.until_free(one, "the block")


def test_a_renewal_of_all_is_one_and_a_force_release_ends_each(rig: Rig, name: str) -> None:
    client, operator = rig.client(), rig.client()
    rig.warm_up(client)
    lock = client.lock_all(names_of(name))
    take(lock, 1)
    assert lock.extend(90.0) > 80.0
    assert lock.remaining() > 80.0
    assert operator.lock_all(lock.names).force_release() is True
    for one in lock.names:
        rig.until_free(one, "the forced release")
    assert operator.lock_all(lock.names).force_release() is False
    assert operator.lock_all(lock.names).locked() is False
    with pytest.raises(LockLostError):
        lock.extend()
    with pytest.raises(LockLostError):
        lock.release()
    assert client.statistics().held == 0


# Silent masters -------------------------------------------------------------------------------------------------------


def test_no_quorum_leaves_nothing(rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client)
    lock = client.lock_all(names_of(name), timeout=0)
    faults = [line.hold_reply(calls(lock.names[1], "acquire")) for line in rig.lines]
    taken = False
    with suppress(QuorumError):
        taken = lock.acquire()
    assert not taken
    assert client.statistics().held == 0
    release_all(faults)
    free_all(rig, lock, "the acquire")
    rig.until(lambda: all_done(faults) or not all_struck(faults), "the late replies have come")


@pytest.mark.parametrize("script", ["acquire", "release"])
def test_requests_that_come_late_leave_nothing(script: str, rig: Rig, name: str) -> None:
    """Requests of a batch are on the way, and reach the masters after the call has ended, or not at all."""
    client, others = rig.client(node_timeout=BRIEF), rig.client()
    rig.warm_up(client)
    lock = client.lock_all(names_of(name), timeout=0)

    def prepare() -> None:
        while lock.hold_count:
            lock.release()
        while script == "release" and not lock.owned():
            with suppress(QuorumError):
                lock.acquire(timeout=20)

    def do() -> None:
        if script == "release":
            lock.release()
        else:
            with suppress(QuorumError):
                lock.acquire()

    faults = rig.until_asked(lambda line: line.hold_request(calls(lock.names[1], script)), do, before=prepare)
    leave(lock)
    release_all(faults)
    rig.until(lambda: all_done(faults), "the late requests have come")
    free_all(rig, lock, "late requests")
    assert others.lock_all(lock.names).acquire(timeout=20)
    assert (client.statistics().held, client.statistics().losses) == (0, 0)


# Interrupts -----------------------------------------------------------------------------------------------------------


def test_a_name_that_the_caller_has_is_kept_through_an_interrupt(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=PATIENT), rig.client()
    rig.warm_up(client)
    lock = client.lock_all(names_of(name))
    a, b, c = lock.names
    holder = others.lock(b, owner="holder")
    take(holder, 1)
    take(client.lock(a), 1)
    take(client.lock(c), 2)
    assert rig.interrupt(lock.acquire, when=lambda: rig.is_queued(b))
    assert [client.lock(one).hold_count for one in (a, b, c)] == [1, 0, 2]
    rig.until(lambda: rig.agree_on(a, 1) and rig.agree_on(c, 2), "the same counts on the masters")
    rig.until(lambda: not any(rig.queued(b)), "no waiter is queued")
    holder.release()
    leave(client.lock(a))
    leave(client.lock(c))
    free_all(rig, lock, "all")


# Closing --------------------------------------------------------------------------------------------------------------


def test_a_close_ends_a_wait_and_gives_back_what_the_call_has(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=BRIEF_CLOSE), rig.client()
    rig.warm_up(client)
    lock = client.lock_all(names_of(name), owner="job")
    a, b, c = lock.names
    holder = others.lock(b, owner="holder")
    take(holder, 1)
    waiting = rig.start(lock.acquire)
    rig.until(lambda: rig.is_queued(b), "the caller waits")
    closing.close(client._session)
    with pytest.raises(ClientClosedError):
        waiting.result()
    for one in (a, c):
        rig.until_free(one, "the close")
    rig.until(lambda: not any(rig.queued(b)), "no waiter is queued")
    holder.release()
    rig.until_free(b, "the release")


def test_an_acquire_that_was_interrupted_is_undone_before_a_close_has_ended(rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=rig.close_seconds)
    rig.warm_up(client)
    lock = client.lock_all(names_of(name))
    faults = [line.hold_request(calls(lock.names[0], "acquire")) for line in rig.lines]
    rig.interrupt(lock.acquire, lambda: all_struck(faults))
    going_on = rig.start(lambda: release_all(faults))
    closing.close(client._session)
    going_on.result()
    assert all(map(rig.is_free, lock.names))


def test_a_release_after_a_close_ends_all_here(rig: Rig, name: str) -> None:
    client = rig.client()
    lock = client.lock_all(names_of(name))
    take(lock, 2)
    closing.close(client._session)
    lock.release()
    assert lock.hold_count == 1
    lock.release()
    assert not lock.owned()
    with pytest.raises(NotOwnedError):
        lock.release()
    with pytest.raises(ClientClosedError):
        lock.acquire()
