"""Calls whose callers name one ``owner=``, played without threads: an interrupt or a loss, while another call comes."""

from collections.abc import Callable
from typing import Any

import pytest
from support.instructions import Interrupt
from support.pure_host import JOB, PureHost

from relock import LockLostError, NotGranted
from relock._core.call_record import CallFlow, CallRecord, Enter
from relock._core.effects import Ask
from relock._core.flows.inspect import QUEUE_LIMIT
from relock._core.hold import Hold
from relock._core.quorum import NEVER, Refused
from relock._core.tasks import GoOn, Settle, UndoTask
from relock._scripts import load

KEY = ("a", JOB.key)
FORGETFUL = [[b"absent", 1_000_000]] * 3 + [[b"extended", 1_000_000]] * 2
Deed = Callable[[PureHost, CallRecord], CallFlow[Any]]
CALLS: dict[str, tuple[int, Deed, int]] = {
    "acquire": (0, PureHost.acquire, 0),
    "nested acquire": (1, PureHost.acquire, 1),
    "release": (1, PureHost.release, 0),
    "nested release": (2, PureHost.release, 1),
}  # the levels before the call, the call, and the levels that it must leave when it is interrupted


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("is_over", [False, True], ids=["in its work", "at its end"])
def test_an_interrupt_takes_nothing_from_the_next_caller_of_its_owner(kind: str, *, is_over: bool) -> None:
    """The other caller comes in as soon as it can, and has a level before the interrupted call goes on."""
    levels, call, left = CALLS[kind]
    host, record = PureHost(), CallRecord()
    if levels:
        host.take(levels)
    leave = host.gates.leave

    def leave_and_let_in(own: CallRecord) -> None:
        host.gates.leave, host.caller, host.struck = leave, "another", ()
        leave(own)
        host.do(host.acquire())
        if is_over:
            raise Interrupt

    host.gates.leave = leave_and_let_in
    host.struck = () if is_over else ("watch", "count", "release")
    with pytest.raises(Interrupt):
        host.do(call(host, record))
    if call is PureHost.acquire:
        host.interrupted.undo_acquire(record)
    else:
        host.interrupted.undo_release(record, host.spec, JOB, 1)
    assert host.levels() == left + 1
    assert not host.gates._gates


def undone(host: PureHost) -> UndoTask:
    """Return the only undo that the janitor was given."""
    [task] = [task for task in host.handed if isinstance(task, UndoTask)]
    return task


def test_an_acquire_that_is_undone_leaves_no_rest() -> None:
    host, record = PureHost(at_least=60.0), CallRecord()
    host.do(host.acquire(record))
    host.interrupted.undo_acquire(record)
    assert undone(host).rest_until == NEVER
    assert host.levels() == 0


def test_the_undo_of_an_acquire_that_ends_a_used_hold_is_followed_by_its_rest() -> None:
    """The owner has another caller, which has worked under the lock meanwhile, and has left its level."""
    host, record = PureHost(at_least=60.0), CallRecord()
    host.take(1)
    host.do(host.acquire(record))
    host.do(host.release())
    host.interrupted.undo_acquire(record)
    assert undone(host).rest_until == pytest.approx(host.now + 60.0, rel=0.02)
    assert host.levels() == 0


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_undo_of_a_release_is_followed_by_the_rest(*, has_begun: bool) -> None:
    host, record = PureHost(at_least=60.0), CallRecord()
    hold = host.take(1)
    if has_begun:
        host.struck = ("rest",)
        with pytest.raises(Interrupt):
            host.do(host.release(record))
    host.interrupted.undo_release(record, host.spec, JOB, 1)
    assert hold.granted_at + 60.0 < undone(host).rest_until < hold.granted_at + 61.0


def nesting(host: PureHost) -> Callable[[], object]:
    """Let another caller of the owner be inside and ask for a level; return a function that lets it end."""
    host.take(1)
    flow = host.acquire()
    next(flow)
    host.caller = "another"
    return lambda: host.do(flow, [[[b"counted", 1]]])


def strike_on_its_way_in(host: PureHost) -> CallRecord:
    """Interrupt a release while it waits at the gate; return its record."""
    record, host.struck = CallRecord(), ("enter",)
    with pytest.raises(Interrupt):
        host.do(host.release(record))
    return record


def test_a_release_that_is_interrupted_on_its_way_in_takes_its_level_of_those_there_are() -> None:
    """Callers of the owner may take a level at that moment, and not have put it into the book."""
    host = PureHost()
    go_on, enter = nesting(host), host.gates.enter
    record = strike_on_its_way_in(host)

    def enter_behind(*words: Any) -> bool:
        go_on()
        return bool(enter(*words))

    host.gates.enter = enter_behind
    host.interrupted.undo_release(record, host.spec, JOB, 1)
    assert host.levels() == 1


def test_a_release_that_is_interrupted_and_can_not_come_in_gives_its_level_back_later() -> None:
    """Callers of the owner may be inside for longer than the interrupted one waits, and take a level meanwhile."""
    host = PureHost()
    go_on = nesting(host)
    host.interrupted.undo_release(strike_on_its_way_in(host), host.spec, JOB, 1)
    go_on()
    assert host.levels() == 2
    host.go_on()
    assert host.levels() == 1
    assert host.handed == [Settle(host.holds[KEY])]
    assert not host.gates._gates


@pytest.mark.parametrize("strikes", [1, 2])
def test_a_deferred_release_gives_back_once_though_the_clean_up_that_began_it_is_struck(
    monkeypatch: pytest.MonkeyPatch, *, strikes: int
) -> None:
    """The deferred release may be done before the clean-up is begun again."""
    host, inside, record = PureHost(), CallRecord(), CallRecord()
    host.take(3)
    assert host.gates.try_enter(inside, KEY, "another")
    if strikes == 2:
        with monkeypatch.context() as patch:
            patch.setattr(host.interrupted, "_take_back", _strike)
            with pytest.raises(Interrupt):
                host.interrupted.undo_release(record, host.spec, JOB, 1)
        host.gates.leave(inside)
        host.go_on()
        assert host.levels() == 2
    host.interrupted.undo_release_again(record, host.spec, JOB, 1)
    host.gates.leave(inside)
    host.go_on()
    assert host.levels() == 2
    assert not host.interrupted._deferred_releases
    assert not any(isinstance(task, GoOn) for task in host.handed)


def _strike(*_: object) -> None:
    raise Interrupt


def test_a_caller_that_comes_while_the_owners_hold_is_found_lost_keeps_its_own() -> None:
    """The release has taken the old hold out of the book, and puts it back to report that it was lost."""
    host, record = PureHost(), CallRecord()
    lost = host.take(1)
    leaving = host.release(record)
    next(leaving)
    host.caller = "another"
    coming = host.acquire()
    waits = next(coming)
    assert isinstance(waits, Enter)
    assert not host.gates.enter(*waits), "the acquire waits behind this release"
    with pytest.raises(LockLostError):
        leaving.send([[[b"absent", 1]]])
    host.interrupted.fail(record)
    host.do(coming, host.gates.enter(*waits))
    assert host.holds[KEY] is not lost
    assert host.levels() == 1
    assert lost.loss is not None


def test_a_refusal_behind_another_caller_of_its_owner_is_counted_and_told_like_any_other() -> None:
    host = PureHost()
    inside = host.acquire()
    next(inside)
    host.caller = "another"
    coming = host.acquire()
    assert coming.send(host.answer(next(coming))) == Ask(
        (load("inspect").call(host.spec.keys, limit=QUEUE_LIMIT),), 101.0
    )
    with pytest.raises(StopIteration) as end:
        coming.send([[[b"held", 1, 5_000, b"you:1", 1, 7, [b"me:1", b"1", b"me:2", b"2"]]]])
    assert end.value.value == Refused("you:1", 2, 5.0, None, undecided=False)
    assert host.counters.refusals == 1
    assert host.events == [NotGranted("a", 0.0, kind="lock")]


def test_a_count_is_settled_though_the_janitor_was_kept_from_hearing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt strikes when the hold is marked, and the janitor does not have the task yet."""
    host, record = PureHost(), CallRecord()
    held = host.take(2)
    record.hold, record.count = held, 2
    with monkeypatch.context() as patch:
        patch.setattr(host, "hand", _strike)
        with pytest.raises(Interrupt):
            host.settle(held)
    host.interrupted.undo_acquire(record)
    assert host.handed == [Settle(held)]


def test_a_waiter_is_known_until_its_undo_is_with_the_janitor() -> None:
    """A client that is being closed waits for the waiter, and then for what the janitor has to undo."""
    host, record = PureHost(), CallRecord()
    record.spec, record.owners = host.spec, [b"me:1", b"me:1~1"]
    handed_before: list[int] = []

    def forget(_owner: bytes) -> None:
        handed_before.append(len(host.handed))

    host.forget = forget  # type: ignore[method-assign,assignment]
    host.interrupted.undo_acquire(record)
    assert handed_before == [2]


def ends(host: PureHost) -> list[bytes]:
    """Return the holds that the janitor was told to end on the masters."""
    return [task.owner for task in host.handed if isinstance(task, UndoTask)]


def lost_before_its_end(host: PureHost, levels: int) -> Hold:
    """Take the lock, and find that three of five masters have forgotten it; the others keep it."""
    hold = host.take(levels)
    assert hold.deadline > host.now + 1.0
    hold.drop_absent(FORGETFUL)
    with pytest.raises(LockLostError):
        host.check_valid(hold)
    return hold


def test_masters_that_keep_a_lost_hold_go_on_until_its_owner_has_left_every_level() -> None:
    """The owner may rely on the time that `ensure` has told it, and a loop that stands still hears of no loss."""
    host = PureHost(masters=5)
    hold = lost_before_its_end(host, levels=2)
    assert ends(host) == []
    for left in (1, 0):
        with pytest.raises(LockLostError):
            host.do(host.release())
        assert host.levels() == left
        assert ends(host) == ([] if left else [hold.owner])


def test_an_interrupted_release_of_a_lost_hold_ends_it_on_the_masters_that_keep_it() -> None:
    host = PureHost(masters=5)
    hold = lost_before_its_end(host, levels=1)
    host.interrupted.undo_release(CallRecord(), host.spec, JOB, 1)
    assert host.levels() == 0
    assert ends(host) == [hold.owner]


def test_a_hold_that_is_found_lost_after_the_time_that_its_owner_was_told_is_ended_at_once() -> None:
    host = PureHost(masters=5)
    hold = host.take(1)
    hold.drop_absent(FORGETFUL)
    host.now = hold.told_until
    with pytest.raises(LockLostError):
        host.check_valid(hold)
    assert ends(host) == [hold.owner]


def test_a_release_that_finds_its_hold_lost_ends_it_on_the_masters_that_keep_it() -> None:
    host = PureHost(masters=5)
    hold = host.take(1)
    hold.told_until = hold.deadline + 1.0  # a master's clock has stepped since
    flow = host.release()
    next(flow)
    absent = [[[b"absent", 1_000_000]]] * 3 + [[[b"released", 1_000_000]]] * 2
    with pytest.raises(LockLostError):
        host.do(flow, absent)
    assert host.levels() == 0
    assert ends(host) == [hold.owner]
