"""Several locks taken as one, played without threads: rounds, waits, errors, and interrupts at every step."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.instructions import Interrupt, Strike
from support.pure_host import JOB, THREAD, PureHost

from relock import DeadlockError, LockLostError, Loss, LossCode, NotGranted, NotOwnedError
from relock._core import calls
from relock._core.call_record import CallFlow, CallRecord
from relock._core.multi import NotAll, ToldOnce
from relock._core.quorum import Refused
from relock._owner import Owner

WAITS = 200.0  # a time that never comes: the clock stands still
each_owner = pytest.mark.parametrize("who", [THREAD, JOB], ids=["a thread", "owner="])


# Rounds ---------------------------------------------------------------------------------------------------------------


@each_owner
@pytest.mark.parametrize("masters", [1, 3])
def test_one_round_where_all_are_free_and_one_to_give_them_back(who: Owner, masters: int) -> None:
    host = PureHost(masters, "abcd")
    assert host.do(host.acquire_all(who=who)) is None
    assert host.counts(who) == dict.fromkeys("abcd", 1)
    host.do(host.release_all(who=who))
    assert host.sent == ["acquire:abcd", "release:abcd"]
    assert (host.counts(who), host.given, host.handed) == ({}, {}, [])
    assert not host.gates._gates
    assert not host.several


@each_owner
def test_a_try_that_is_refused_gives_everything_back(who: Owner) -> None:
    host = PureHost(1, "abcd")
    host.taken = set("cd")
    assert host.do(host.acquire_all(who=who)) == NotAll("c", Refused("you:1", 0, 5.0, None, undecided=False))
    assert host.sent == ["acquire:abcd", "release:ab"]
    assert (host.counts(who), host.given, host.parked) == ({}, {}, [])


@each_owner
@pytest.mark.parametrize("masters", [1, 3])
def test_a_caller_waits_while_it_holds_smaller_names_only(who: Owner, masters: int) -> None:
    host = PureHost(masters, "abcde")
    host.taken = set("bd")
    assert host.do(host.acquire_all(who=who, until=WAITS)) is None
    assert host.parked == [("b", "a"), ("d", "abc")]
    assert host.counts(who) == dict.fromkeys("abcde", 1)
    assert [one for one in host.sent if "release" in one] == ["release:ce", "release:e"]
    assert not host.gates._gates


def test_a_wait_that_is_part_of_a_deadlock_is_told_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> None:
        raise DeadlockError("a ring", lock="c")

    monkeypatch.setattr(calls, "check_ring", find)
    host = PureHost(1, "abc")
    host.taken = {"c"}
    with pytest.raises(DeadlockError):
        host.do(host.acquire_all(until=WAITS))
    told = [event for event in host.events if isinstance(event, NotGranted)]
    assert [(event.lock, event.error) for event in told] == [("c", "DeadlockError")]
    assert host.counts(JOB) == {}


def test_a_caller_whose_time_is_over_waits_for_none() -> None:
    """The time ends while the names behind the refused one are given back."""
    host = PureHost(1, "abc")
    host.taken = {"b"}
    answer = host.answer

    def answer_late(step: Any) -> Any:
        answers = answer(step)
        if host.sent[-1] == "release:c":
            host.now = 101.0
        return answers

    host.answer = answer_late  # type: ignore[method-assign]
    outcome = host.do(host.acquire_all(who=THREAD, until=101.0))
    assert isinstance(outcome, NotAll)
    assert (outcome.name, host.sent) == ("b", ["acquire:abc", "release:c", "release:a"])


def test_a_call_that_gives_up_tells_one_refusal_and_a_try_that_goes_on_none() -> None:
    host = PureHost(1, "abcd")
    host.taken = set("bcd")
    assert host.do(host.acquire_all(who=THREAD, until=WAITS)) is None
    assert host.counters.refusals == 0
    host.do(host.release_all(who=THREAD))
    host.taken, host.events = set("bcd"), []
    host.do(host.acquire_all(who=THREAD))
    assert host.counters.refusals == 1
    told = [event for event in host.events if isinstance(event, NotGranted)]
    assert [(event.lock, event.waited, event.error) for event in told] == [("b", 0.0, None)]


def test_the_refusal_tells_how_long_the_whole_call_took_and_as_whom_it_asked() -> None:
    host = PureHost(1, "ab")
    host.taken = {"b"}
    flow = host.acquire_all(who=THREAD)
    step = next(flow)
    host.now += 2.0
    host.do(flow, host.answer(step))
    assert host.events[-1] == NotGranted("b", 2.0, kind="lock", owner="me:2@3000")


# Levels that the caller has already -----------------------------------------------------------------------------------


@each_owner
def test_a_name_that_the_caller_holds_already_is_kept_when_the_rest_is_given_up(who: Owner) -> None:
    host = PureHost(1, "abcd")
    host.do(host.acquire_one("a", who))
    host.do(host.acquire_one("d", who))
    host.taken = {"c"}
    assert isinstance(host.do(host.acquire_all(who=who)), NotAll)
    assert host.counts(who) == {"a": 1, "d": 1}
    assert set(host.given) == set("ad")
    host.taken = set()
    host.do(host.acquire_all(who=who))
    assert host.counts(who) == {"a": 2, "b": 1, "c": 1, "d": 2}
    host.do(host.release_all(who=who))
    assert host.counts(who) == {"a": 1, "d": 1}


def test_a_level_that_another_caller_of_the_owner_takes_meanwhile_is_left() -> None:
    host = PureHost(1, "abc")
    host.taken = {"b"}
    flow = host.acquire_all()
    host_sends = flow.send(host.answer(next(flow)))
    host.caller = "another"
    host.do(host.acquire_one("a"))
    host.caller = "one"
    assert isinstance(host.do(flow, host.answer(host_sends)), NotAll)
    assert host.counts() == {"a": 1}


# Gates ----------------------------------------------------------------------------------------------------------------


def test_every_call_comes_to_the_gates_of_its_owner_in_one_order() -> None:
    """Two threads of one owner must not wait for each other, each inside one gate and before the gate of the other."""
    host = PureHost(1, "abc")
    tried: list[str] = []
    try_enter = host.gates.try_enter

    def see(record: CallRecord, key: Any, caller: object) -> bool:
        tried.append(key[0])
        return bool(try_enter(record, key, caller))

    host.gates.try_enter = see
    for deed in (host.acquire_all, host.acquire_all, host.release_all, host.release_all):
        tried.clear()
        host.do(deed())
        assert tried == [*"abc"]
    host.do(host.acquire_one("a"))
    host.taken = {"c"}
    tried.clear()
    host.do(host.acquire_all())
    assert tried == [*"abcab"], "those that are given back as well"


def test_a_caller_that_can_not_come_in_goes_without_and_gives_the_others_back() -> None:
    host = PureHost(1, "abc")
    inside = CallRecord()
    assert host.gates.try_enter(inside, ("b", JOB.key), "another")
    outcome = host.do(host.acquire_all())
    assert outcome == NotAll("b", Refused("you:1", 0, 5.0, None, undecided=False))
    assert host.sent == ["acquire:a inspect:b acquire:c", "release:c", "release:a"]
    assert host.counters.refusals == 1
    assert (host.counts(), host.given) == ({}, {})
    host.gates.leave(inside)
    assert not host.gates._gates


# Losses ---------------------------------------------------------------------------------------------------------------


@each_owner
def test_a_member_that_was_lost_before_gives_the_others_back(who: Owner) -> None:
    host = PureHost(1, "abc")
    host.do(host.acquire_one("b", who))
    host.lose(host.holds["b", who.key], LossCode.FORGOTTEN)
    with pytest.raises(LockLostError, match="'b'"):
        host.do(host.acquire_all(record := CallRecord(), who=who))
    assert host.sent[-1] == "release:ac", "at once, and not only in the background"
    assert set(host.counts(who)) == {"b"}, "until its owner has left the lost level"
    host.interrupted.undo_acquire(record)
    host.finish()
    assert set(host.given) <= {"b"}


def test_a_member_that_fails_has_left_its_gate_when_the_others_are_given_back() -> None:
    """A release of the same owner may be inside an earlier gate, and wait for that of the failed member."""
    host = PureHost(1, "abc")
    host.do(host.acquire_all(who=JOB))
    host.lose(host.holds["b", JOB.key], LossCode.FORGOTTEN)
    answer, inside = host.answer, []

    def look(step: Any) -> Any:
        inside.append("".join(sorted(name for name, _ in host.gates._gates)))
        return answer(step)

    host.answer = look  # type: ignore[method-assign]
    with pytest.raises(LockLostError, match="'b'"):
        host.do(host.acquire_all(who=JOB))
    assert inside == ["abc", "ac"], "the levels of a and c are taken, and then given back"
    assert host.counts(JOB) == dict.fromkeys("abc", 1)


def test_a_call_that_is_late_by_a_node_timeout_gives_back_in_the_background() -> None:
    host = PureHost(1, "ab")
    host.node_timeout = 0.5
    host.taken = {"b"}
    answer = host.answer

    def answer_late(step: Any) -> Any:
        host.now = 100.6
        return answer(step)

    host.answer = answer_late  # type: ignore[method-assign]
    record = CallRecord()
    assert isinstance(host.do(host.acquire_all(record, who=THREAD, until=100.0)), NotAll)
    assert "release" not in "".join(host.sent)
    assert host.counts(THREAD) == {}
    host.interrupted.undo_acquire(record)
    host.finish()
    assert host.given == {}


@each_owner
def test_a_member_that_is_lost_while_the_call_waits_for_another_gives_all_back(who: Owner) -> None:
    host = PureHost(1, "abc")
    host.taken = {"c"}
    answer = host.answer

    def lose_meanwhile(step: Any) -> Any:
        if host.parked or not host.given:
            return answer(step)
        answers = answer(step)
        if host.parked:
            host.lose(host.holds["a", who.key], LossCode.FORGOTTEN)
        return answers

    host.answer = lose_meanwhile  # type: ignore[method-assign]
    with pytest.raises(LockLostError, match="'a'"):
        host.do(host.acquire_all(record := CallRecord(), who=who, until=WAITS))
    assert host.sent[-1] == "release:bc"
    assert host.counts(who) == {}
    host.interrupted.undo_acquire(record)
    host.finish()
    assert host.given == {}
    assert not host.gates._gates
    assert not host.several


def names_in(notes: list[str]) -> list[str]:
    """Return the lock that each note names."""
    return [name for note in notes for name in "abcd" if f"{name!r}" in note]


@each_owner
def test_a_release_leaves_every_lock_and_then_raises_the_loss(who: Owner) -> None:
    host = PureHost(1, "abcd")
    host.do(host.acquire_all(who=who))
    host.do(host.acquire_one("d", who))
    del host.holds["a", who.key]
    host.forced = set("bc")
    with pytest.raises(LockLostError, match="'b'") as raised:
        host.do(host.release_all(record := CallRecord(), who=who))
    host.interrupted.fail(record)
    assert names_in(raised.value.__notes__) == ["a", "c"]
    assert host.counts(who) == {"d": 1}
    assert not host.gates._gates


def test_a_release_without_a_loss_raises_that_a_lock_is_not_owned() -> None:
    host = PureHost(1, "abc")
    host.do(host.acquire_all(who=THREAD, names="bc"))
    host.do(host.release_all(who=THREAD, names="c"))
    with pytest.raises(NotOwnedError, match="'a'") as raised:
        host.do(host.release_all(who=THREAD))
    assert names_in(raised.value.__notes__) == ["c"]
    assert host.counts(THREAD) == {}


def losses(host: PureHost, *names: str) -> None:
    """Lose these holds, and call what hears of it."""
    for name in names:
        hold = host.holds[name, THREAD.key]
        host.lose(hold, LossCode.FORGOTTEN)
        for callback in hold.callbacks:
            callback(hold.loss)  # type: ignore[arg-type]


def test_a_callback_that_was_called_for_one_hold_is_called_for_the_next_one_again() -> None:
    """The lock b is held from before and after, so its hold remembers the callback that was called."""
    told: list[str] = []

    def tell(loss: Loss) -> None:
        told.append(loss.lock)

    host = PureHost(1, "ab", on_lost=tell)
    host.do(host.acquire_all(who=THREAD, names="b"))
    host.do(host.acquire_all(who=THREAD))
    losses(host, "a")
    with pytest.raises(LockLostError):
        host.do(host.release_all(who=THREAD))
    host.do(host.acquire_all(who=THREAD))
    losses(host, "b")
    assert told == ["a", "b"]


def test_holds_that_were_taken_in_two_calls_tell_one_loss() -> None:
    told: list[str] = []

    def tell(loss: Loss) -> None:
        told.append(loss.lock)

    host = PureHost(1, "ab", on_lost=tell)
    host.do(host.acquire_all(who=THREAD))
    host.do(host.release_all(who=THREAD, names="a"))
    host.do(host.acquire_all(who=THREAD))
    losses(host, "a", "b")
    assert told == ["a"]


def test_the_callback_is_told_of_the_first_loss_of_each_hold_of_the_multi_lock() -> None:
    told: list[str] = []

    def tell(loss: Loss) -> None:
        told.append(loss.lock)

    host = PureHost(1, "abc", on_lost=tell)
    host.do(host.acquire_all(who=THREAD))
    host.do(host.acquire_all(who=THREAD))
    losses(host, "b", "a")
    assert told == ["b"]
    for _ in range(2):
        with pytest.raises(LockLostError):
            host.do(host.release_all(who=THREAD))
    host.do(host.acquire_all(who=THREAD))
    losses(host, "c")
    assert told == ["b", "c"], "another hold of the multi-lock"


def test_two_callbacks_are_equal_if_their_functions_are() -> None:
    assert ToldOnce(print) == ToldOnce(print)
    assert hash(ToldOnce(print)) == hash(ToldOnce(print))
    assert ToldOnce(print) != ToldOnce(repr)
    assert ToldOnce(print) != print


# Interrupts -----------------------------------------------------------------------------------------------------------

Deed = Callable[[PureHost, CallRecord, Owner], CallFlow[Any]]
ACQUIRE: Deed = lambda host, record, who: host.acquire_all(record, who)  # noqa: E731
WAIT: Deed = lambda host, record, who: host.acquire_all(record, who, WAITS)  # noqa: E731
RELEASE: Deed = lambda host, record, who: host.release_all(record, who)  # noqa: E731
#: The call; the levels of each lock before it; the locks that others have; the levels that an interrupt leaves.
CALLS: dict[str, tuple[Deed, str, str, str]] = {
    "acquire": (ACQUIRE, "", "", ""),
    "acquire that is refused": (ACQUIRE, "", "c", ""),
    "acquire that waits": (WAIT, "", "bc", ""),
    "nested acquire": (ACQUIRE, "abc", "", "abc"),
    "acquire with one nested": (ACQUIRE, "b", "", "b"),
    "acquire with some nested that is refused": (ACQUIRE, "ac", "b", "ac"),
    "acquire with some nested that waits": (WAIT, "ad", "bc", "ad"),
    "release": (RELEASE, "abcd", "", ""),
    "nested release": (RELEASE, "aabbccdd", "", "abcd"),
    "release of some that are nested": (RELEASE, "aabcd", "", "a"),
}
each_call = pytest.mark.parametrize("kind", CALLS)


def prepared(kind: str, who: Owner) -> tuple[PureHost, Callable[[CallRecord], CallFlow[Any]]]:
    deed, before, taken, _ = CALLS[kind]
    host = PureHost(1, "abcd")
    for name in before:
        host.do(host.acquire_one(name, who))
    host.taken = set(taken)
    return host, lambda record: deed(host, record, who)


def undo(host: PureHost, kind: str, record: CallRecord, who: Owner) -> None:
    """Do what a door does after an interrupt, and let the background end."""
    if CALLS[kind][0] is RELEASE:
        host.interrupted.undo_release(record, host.whole, who, 1)
        host.interrupted.undo_release_again(record, host.whole, who, 1)
    else:
        host.interrupted.undo_acquire(record)
        host.interrupted.undo_acquire_again(record)
    host.finish()


def check(host: PureHost, kind: str, who: Owner, where: object) -> None:
    """Check that the interrupt has left what it must, here and on the masters, and that the gates are open."""
    left = CALLS[kind][3]
    assert "".join(name * count for name, count in sorted(host.counts(who).items())) == left, where
    assert {name: host.holds[name, who.key].owner for name in left} == host.given, where
    assert not host.gates._gates, where
    assert not host.several, where


@each_call
@each_owner
@pytest.mark.parametrize("is_answered", [False, True], ids=["before the answer", "after it"])
def test_an_interrupt_at_each_effect_leaves_nothing(kind: str, who: Owner, *, is_answered: bool) -> None:
    number = 0
    while True:
        number += 1
        host, call = prepared(kind, who)
        record, said, is_over = CallRecord(), None, False
        flow = call(record)
        for effect in range(1, number + 1):
            try:
                step = flow.send(said)
            except StopIteration:
                is_over = True
                break
            if is_answered or effect < number:
                said = host.answer(step)
        if is_over:
            break
        undo(host, kind, record, who)
        check(host, kind, who, f"effect {number}")
    assert number > 1


@each_call
@each_owner
def test_an_interrupt_at_any_instruction_leaves_nothing(kind: str, who: Owner, seed: int) -> None:
    """Test about fifty points, which the seed chooses."""
    host, call = prepared(kind, who)
    with Strike() as counted:
        host.do(call(CallRecord()))
    assert counted.count > 500, "the instructions are seen"
    step = counted.count // 50
    for point in range(1 + seed % step, counted.count, step):
        host, call = prepared(kind, who)
        record = CallRecord()
        with Strike(raise_at=point) as strike, suppress(Interrupt):
            host.do(call(record))
        undo(host, kind, record, who)
        check(host, kind, who, strike.where)


@each_call
@each_owner
def test_an_undo_that_is_struck_itself_is_finished_by_the_next(kind: str, who: Owner, seed: int) -> None:
    """The first interrupt strikes in the middle of the call; the second one in what a door does after it."""

    def play(point: int | None) -> tuple[PureHost, Strike]:
        host, call = prepared(kind, who)
        record, said = CallRecord(), None
        flow = call(record)
        with suppress(StopIteration):
            said = host.answer(flow.send(said))
            flow.send(said)
        with Strike(raise_at=point) as strike, suppress(Interrupt):
            if CALLS[kind][0] is RELEASE:
                host.interrupted.undo_release(record, host.whole, who, 1)
            else:
                host.interrupted.undo_acquire(record)
        if strike.where:
            undo(host, kind, record, who)
        host.finish()
        return host, strike

    _, counted = play(None)
    assert counted.count > 100, "the instructions are seen"
    step = counted.count // 50
    for point in range(1 + seed % step, counted.count, step):
        host, strike = play(point)
        check(host, kind, who, strike.where)


@pytest.mark.parametrize("kind", ["nested acquire", "nested release"])
def test_every_gate_is_left_though_the_last_clean_up_is_struck(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, call = prepared(kind, JOB)
    record = CallRecord()
    next(call(record))
    assert len(host.gates._gates) > 1

    def strike(*_: object) -> None:
        raise Interrupt

    monkeypatch.setattr(host.interrupted, "_take_back", strike)
    with suppress(Interrupt):
        if CALLS[kind][0] is RELEASE:
            host.interrupted.undo_release_again(record, host.whole, JOB, 1)
        else:
            host.interrupted.undo_acquire_again(record)
    assert not host.gates._gates


@each_owner
def test_an_undo_that_is_repeated_changes_nothing(who: Owner) -> None:
    """Levels that the caller takes after the undo are its own."""
    host, call = prepared("acquire with some nested that is refused", who)
    record = CallRecord()
    flow = call(record)
    flow.send(host.answer(next(flow)))
    host.interrupted.undo_acquire(record)
    host.do(host.acquire_one("a", who))
    host.interrupted.undo_acquire(record)
    host.interrupted.undo_acquire_again(record)
    assert host.counts(who) == {"a": 2, "c": 1}


def test_a_release_notes_once_what_it_owes() -> None:
    """Callers of the owner may change the book before the clean-up is begun again."""
    host, record = PureHost(1, "ab"), CallRecord()
    host.do(host.acquire_all())
    owed = dict(host.holds)
    for _ in range(2):
        record.owe(host.whole, host.holds, JOB, 1)
        assert [part.due for part in record.members] == [(hold, 1) for hold in owed.values()]
        assert [part.whole for part in record.members] == [record, record]
        host.do(host.release_all())
        host.do(host.acquire_all())
    single = CallRecord()
    single.owe(host.spec, host.holds, JOB, 1)
    first = single.due
    host.do(host.release_all())
    single.owe(host.spec, host.holds, JOB, 1)
    assert single.due is first


def test_a_call_that_is_over_is_not_undone() -> None:
    """The levels are the caller's, also where a door's clean-up comes after the call has raised."""
    host = PureHost(1, "abc")
    host.do(host.acquire_all(record := CallRecord(), who=THREAD))
    host.interrupted.fail(record)
    host.interrupted.undo_acquire_again(record)
    assert host.counts(THREAD) == dict.fromkeys("abc", 1)
