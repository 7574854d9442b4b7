"""An interrupt at each step of a call: the call has no effect or is undone; a release is carried out."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from contract.rigs.calls import CALLS, KINDS, SINGLE, AnyLock, Call, Kind, Permits, leave, make, shut, take
from contract.rigs.rig import Interrupted, Rig, all_done, all_struck, calls, release_all
from contract.rigs.watch import At
from relock._core.effects import Clock
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.master import Master

each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
each_kind = pytest.mark.parametrize("kind", KINDS)


def interrupt() -> None:
    raise Interrupted


@each_kind
@each_call
def test_an_interrupt_between_any_two_steps(call: Call, rig: Rig, name: str, *, kind: Kind) -> None:
    client = rig.client(on_event=print)  # events are told last of all, so there are steps up to the very end
    rig.warm_up(client, kind)
    left: list[tuple[AnyLock, str]] = []
    for number in count(1):
        lock, singles = make(client, f"{name}-{number}", kind)
        take(lock, call.levels)
        strike = At(number, interrupt)
        with rig.watch.each(strike):
            try:
                call.do(lock)
                is_over = True
            except Interrupted:
                is_over = False
        levels = call.after if is_over else call.interrupted
        assert {one.hold_count for one in singles} == {levels}, f"after an interrupt {strike.where}"
        assert not (isinstance(lock, Permits) and lock.is_entered), f"after an interrupt {strike.where}"
        if levels:
            what = f"the same count here and there after an interrupt {strike.where}"
            for one in singles:
                rig.until(partial(rig.agree_on, one.name, levels), what)
            leave(lock)
        left += [(one, strike.where) for one in singles]
        if not strike.where:
            break
    assert number > 5, "the watch sees the steps"
    for single, where in left:
        rig.until_free(single.name, f"an interrupt {where}")
    assert client.statistics().held == 0, "no hold without an owner is renewed"


def wait_and_be_interrupted(
    rig: Rig, lock: AnyLock, number: int, is_waiting: Callable[[], object], give: Callable[[], object]
) -> str:
    """Wait for a lock that `give` sets free, and interrupt the step of that `number`.

    Return the name of that step; an empty one if the wait ended before. An interrupted caller has no hold.
    """
    over: list[str] = []

    def give_soon() -> None:
        rig.until(lambda: over or is_waiting(), "the caller waits")
        give()

    giving = rig.start(give_soon)
    strike = At(number, interrupt)
    with rig.watch.each(strike):
        try:
            assert lock.acquire(timeout=20)
        except Interrupted:
            pass
    over.append(strike.where)
    giving.result()
    assert lock.owned() == (not strike.where)
    leave(lock)
    return strike.where


@pytest.mark.parametrize("kind", SINGLE)
def test_an_interrupt_between_any_two_steps_of_a_wait(kind: Kind, rig: Rig, name: str) -> None:
    """Holders give the lock back once the caller is queued; a third owner waits behind."""
    client, others = rig.client(), rig.client()
    rig.warm_up(client, kind)
    rig.warm_up(others, kind)
    for number in count(1):
        lock, _ = make(client, f"{name}-{number}", kind)
        holder = shut(others, lock.name, kind)
        where = wait_and_be_interrupted(rig, lock, number, partial(rig.is_queued, lock.name), holder.release)
        following, _ = make(others, lock.name, kind, owner="next")
        assert following.acquire(timeout=20), f"the turn is passed on after {where}"
        leave(following)
        leave(holder)
        rig.until_free(lock.name, f"an interrupt {where}")
        if not where:
            break
    assert number > 15, "the watch sees the steps"
    statistics = client.statistics()
    assert (statistics.held, statistics.waiting) == (0, 0)


def test_an_interrupt_between_any_two_steps_of_a_wait_for_one_of_several(rig: Rig, name: str) -> None:
    """The caller waits for the second lock, holds the first one, and has given back the third."""
    client, others = rig.client(), rig.client()
    rig.warm_up(client)
    rig.warm_up(others)
    for number in count(1):
        lock, singles = make(client, f"{name}-{number}", "several")
        holder = others.lock(singles[1].name, owner="holder")
        take(holder, 1)
        where = wait_and_be_interrupted(rig, lock, number, partial(rig.is_queued, holder.name), holder.release)
        assert {one.hold_count for one in singles} == {0}
        for one in singles:
            rig.until_free(one.name, f"an interrupt {where}")
        if not where:
            break
    assert number > 15, "the watch sees the steps"
    statistics = client.statistics()
    assert (statistics.held, statistics.waiting) == (0, 0)


@each_kind
@each_call
def test_an_interrupt_while_the_masters_are_silent(call: Call, rig: Rig, name: str, *, kind: Kind) -> None:
    """Replies of the masters are on the way, and come when no caller is left to read them."""
    client = rig.client(node_timeout=10.0)
    rig.warm_up(client, kind)
    lock, singles = make(client, name, kind)
    for one in singles:
        rig.take_everywhere(one, call.levels)
    rig.until_settled(client)
    faults = [line.hold_reply(calls(singles[-1].name, call.script_for(kind))) for line in rig.lines]
    assert rig.interrupt(lambda: call.do(lock), when=lambda: all_struck(faults))
    assert {one.hold_count for one in singles} == {call.interrupted}
    release_all(faults)
    leave(lock)
    for one in singles:
        rig.until_free(one.name, "the interrupt")
    assert client.statistics().held == 0
    assert lock.acquire(timeout=20)


@pytest.mark.parametrize("kind", SINGLE)
def test_an_interrupt_in_the_queue(kind: Kind, rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=10.0), rig.client(node_timeout=10.0)
    holder = shut(others, name, kind)
    lock, _ = make(client, name, kind)
    assert rig.interrupt(lock.acquire, when=lambda: rig.is_queued(name))
    rig.until(lambda: not any(rig.queued(name)), "no waiter is queued")
    assert client.statistics().waiting == 0
    assert holder.owned()
    leave(holder)
    rig.until_free(name, "the interrupt")


@pytest.mark.parametrize("kind", SINGLE)
def test_a_request_that_its_own_undo_has_passed(kind: Kind, rig: Rig, name: str) -> None:
    """The undo of an interrupted acquire arrives first, on another connection, while the acquire is not void yet."""
    client = rig.client(node_timeout=2.0)  # after which the undo is sent again
    rig.warm_up(client, kind)
    lock, _ = make(client, name, kind)
    faults = [line.hold_request(calls(name, "acquire", "permit_acquire", "read_acquire")) for line in rig.lines]
    undone = [line.hold_reply(calls(name, "release", "permit_release", "read_release")) for line in rig.lines]
    assert rig.interrupt(lock.acquire, when=lambda: all_struck(faults))
    rig.until(lambda: all_struck(undone), "the undo has found nothing")
    release_all(faults)
    release_all(undone)
    rig.until(lambda: all_done(faults), "the acquire has arrived")
    rig.until_free(name, "an acquire that came after its undo")
    rig.until(lambda: client.statistics().undos, "every master has confirmed the undo")
    assert client.statistics().held == 0


def test_a_count_that_its_own_correction_has_passed(rig: Rig, name: str) -> None:
    """The count that an interrupt leaves of a nested acquire is written before the larger count of the acquire."""
    client = rig.client(node_timeout=2.0)  # after which the undo is sent again
    rig.warm_up(client)
    lock = client.lock(name)
    rig.take_everywhere(lock, 1)
    faults = [line.hold_request(calls(name, "count")) for line in rig.lines]
    corrected = [line.hold_reply(calls(name, "count")) for line in rig.lines]
    assert rig.interrupt(lock.acquire, when=lambda: all_struck(faults))
    rig.until(lambda: all_struck(corrected), "the count is corrected")
    release_all(faults)
    release_all(corrected)
    rig.until(lambda: all_done(faults), "the late count has arrived")
    rig.until(lambda: rig.counts(name) == [1] * rig.masters, "the count is right in the end")
    lock.release()
    rig.until_free(name, "the release")


def test_a_correction_that_the_next_count_has_passed(rig: Rig, name: str) -> None:
    """The count that an interrupt leaves arrives after the next one, whose caller still waits for the replies."""
    if rig.shares_connections:
        pytest.skip("the next count can't pass the first one, whose reply is held back")
    client = rig.client(node_timeout=20.0)
    rig.warm_up(client)
    lock = client.lock(name)
    rig.take_everywhere(lock, 1)
    faults = [line.hold_reply(calls(name, "count")) for line in rig.lines]
    late = [line.hold_request(calls(name, "count")) for line in rig.lines]
    assert rig.interrupt(lock.acquire, when=lambda: all_struck(faults))
    rig.until(lambda: all_struck(late), "the correction is under way")
    answered = [line.hold_reply(calls(name, "count")) for line in rig.lines]
    returned: list[bool] = []

    def let_go() -> None:
        rig.until(lambda: all_struck(answered), "the next count is written")
        release_all(late)
        rig.until(lambda: all_done(late), "the correction has arrived")
        rig.until(lambda: rig.counts(name) == [2] * rig.masters, "the next count is written again")
        assert not returned, "the janitor corrects the count at once"
        release_all(answered)

    going = rig.start(let_go)
    lock.acquire()
    returned.append(True)
    going.result()
    assert lock.hold_count == 2
    leave(lock)
    rig.until_free(name, "the release")


def test_an_interrupt_between_any_two_steps_of_a_wait_for_a_connection(rig: Rig, name: str) -> None:
    """Calls wait for the only connection to each master, which another call then gives back."""
    client = rig.client(max_connections=1)
    rig.warm_up(client)
    masters, clock = client._session.masters, client._session.clock
    for number in count(1):
        lock = client.lock(f"{name}-{number}")
        taken: list[Connection] = []
        for master in masters:
            rig.until(partial(take_connection, master, clock, taken), "a connection is free, because none was lost")
        is_waiting, give = partial(bool, masters[0].pool.line.waiting), partial(give_connections_back, taken, clock)
        where = wait_and_be_interrupted(rig, lock, number, is_waiting, give)
        rig.until_free(lock.name, f"an interrupt {where}")
        assert all(len(master.pool._connections) <= 1 for master in masters)
        if not where:
            break
    assert number > 5, "the watch sees the steps"


def take_connection(master: Master, clock: Clock, taken: list[Connection]) -> bool:
    """Take the connection for calls, if it is free."""
    connection = master.pool.check_out(clock()) or master.pool.open_for_call()
    if connection is not None:
        taken.append(connection)
    return connection is not None


def give_connections_back(taken: list[Connection], clock: Clock) -> None:
    """Give the connections back, as the calls that used them would."""
    while taken:
        connection = taken.pop()
        connection.pool.give_back(connection, clock())
