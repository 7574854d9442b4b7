"""Replies in any order mean the same, and no script that passes another one does harm."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations, product

import pytest
from support.proxy import Fault

from contract.rigs.calls import take
from contract.rigs.rig import BRIEF, Rig, all_done, all_struck, calls, key_of, release_all
from relock import Lock, LockLostError, QuorumError

PATIENT = 20.0  # seconds: a caller waits for a master that is silent for a while


def let_go_in_order(rig: Rig, faults: Sequence[Fault], order: Sequence[int]) -> None:
    """Release the replies one after the other, once all are held."""
    rig.until(lambda: all_struck(faults), "every master has answered")
    for master in order:
        faults[master].release()
        rig.until(faults[master].done.is_set, "the reply is on its way")


@pytest.mark.several
@pytest.mark.parametrize("granted", list(product([True, False], repeat=3)), ids=lambda votes: f"{sum(votes)} grants")
def test_replies_to_an_acquire_in_any_order(granted: tuple[bool, ...], rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    for order in permutations(range(3)):
        lock = client.lock(f"{name}-{order}")
        for master in range(3):
            if not granted[master]:
                rig.occupy(master, lock.name)
        faults = [line.hold_reply(calls(lock.name, "acquire")) for line in rig.lines]
        going = rig.start(partial(let_go_in_order, rig, faults, order))
        assert lock.acquire(blocking=False) == (sum(granted) >= 2), f"in the order {order}"
        going.result()
        if lock.owned():
            lock.release()
        rig.vacate(lock.name)
        rig.until_free(lock.name, f"replies in the order {order}")
    assert client.statistics().held == 0


@pytest.mark.several
def test_replies_to_a_count_and_a_release_in_any_order(rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    for order in permutations(range(3)):
        lock = client.lock(f"{name}-{order}")
        take(lock, 1)
        for script, do, count in (("count", lock.acquire, 2), ("count", lock.release, 1), ("release", lock.release, 0)):
            faults = [line.hold_reply(calls(lock.name, script)) for line in rig.lines]
            going = rig.start(partial(let_go_in_order, rig, faults, order))
            do()
            going.result()
            assert lock.hold_count == count
            rig.until(partial(rig.agree_on, lock.name, count), f"{count} after {order}")
        rig.until_free(lock.name, f"replies in the order {order}")
    statistics = client.statistics()
    assert (statistics.held, statistics.losses) == (0, 0)


@pytest.mark.several
@pytest.mark.parametrize("says_yes", [False, True], ids=["a late no", "a late yes"])
def test_a_late_reply_is_not_that_to_the_next_request(says_yes: bool, rig: Rig, name: str) -> None:
    """The last master's vote decides the next request, which follows the late one on the same connection."""
    client = rig.client(node_timeout=PATIENT)
    rig.warm_up(client)
    first, second = client.lock(f"{name}-first"), client.lock(f"{name}-second")
    rig.occupy(1, second.name)
    rig.occupy(2, second.name if says_yes else first.name)
    late = rig.lines[2].hold_reply(calls(first.name, "acquire"))
    assert first.acquire(timeout=20), "two masters are enough"
    rig.until(late.struck.is_set, "the third one has answered, too late")

    def let_go() -> None:
        rig.until(lambda: rig.holders(second.name)[0], "the next request is under way")
        late.release()

    going = rig.start(let_go)
    assert second.acquire(blocking=False) == (not says_yes)
    going.result()
    assert first.owned()
    for lock in (first, second):
        if lock.owned():
            lock.release()
        rig.vacate(lock.name)
        rig.until_free(lock.name, "everything")


def test_a_reply_that_nobody_waited_for_is_not_that_to_the_next_request(rig: Rig, name: str) -> None:
    """A renewal gives up before the masters confirm it; the renewal of another, lost hold gets its own answer."""
    client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client)
    first, second = client.lock(f"{name}-first"), client.lock(f"{name}-second")
    take(first, 1)
    rig.take_everywhere(second, 1)
    for master in range(rig.masters):
        rig.ask(master, "DEL", key_of(second.name))
    late = [line.hold_reply(calls(first.name, "extend")) for line in rig.lines]
    with pytest.raises(QuorumError):
        first.extend()
    going = rig.start(lambda: release_all(late))
    rig.until(partial(is_lost, second), "the hold is lost")
    going.result()
    assert first.owned()
    first.release()
    rig.until_free(first.name, "the release")


def is_lost(lock: Lock) -> bool:
    """Ask the masters, which may be silent for a moment; return whether they do not confirm the hold."""
    try:
        lock.extend()
    except LockLostError:
        return True
    except QuorumError:
        return False
    raise AssertionError("it was told what another lock was to hear")


def test_scripts_that_later_ones_have_passed(rig: Rig, name: str) -> None:
    """Scripts of one hold are held back while the hold goes on and ends, and arrive during another client's hold."""
    client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client)
    lock = client.lock(name)
    late: list[Fault] = []

    def hold_back(script: str, do: Callable[[], object], *, before: Callable[[], object] = lambda: None) -> None:
        late.extend(rig.until_asked(lambda line: line.hold_request(calls(name, script)), do, before=before))

    def fail(do: Callable[[], object]) -> None:
        with pytest.raises(QuorumError):
            do()

    hold_back("acquire", lambda: fail(lambda: lock.acquire(blocking=False)))
    take(lock, 1)
    hold_back("count", lambda: take(lock, 1))
    hold_back("extend", lambda: fail(lock.extend))
    while lock.hold_count > 1:
        lock.release()
    hold_back("release", lock.release, before=lambda: take(lock, 1 - lock.hold_count))
    other = rig.client().lock(name)
    rig.take_everywhere(other, 1)
    before = rig.holders(name)
    release_all(late)
    rig.until(lambda: all_done(late), "all have arrived")
    assert rig.holders(name) == before
    assert rig.counts(name) == [1] * rig.masters
    assert other.owned()
    other.release()
    rig.until_free(name, "everything")
