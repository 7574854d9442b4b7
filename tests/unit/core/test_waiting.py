"""The wait loop, driven by hand over virtual time: one master, which gives the answers of the test."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import Factory, define

from relock._core.effects import Ask, Effect, Failure, Handed, Listen, Park, Undo
from relock._core.lock_spec import LockSpec
from relock._core.patience import LOOK_AGAIN_SECONDS_MAX
from relock._core.quorum import Grant, NoQuorum, Refused
from relock._core.waiting import Wait, ask_until_granted
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._scripts import Call
from relock.testing._master import unpack_arguments

GRANTED = [b"granted", 0, 100]
HELD = [b"refused", 0, 5_000, 1, b"you:1"]
QUEUED = [b"queued", 0, 5_000, 1, b"you:1", 77]
HEAD = [b"queued", 0, 5_000, 0, b"you:1", 77]
MY_TURN_SOON = [b"queued", 0, 0, 0, b"", 77]
GONE = [b"absent", 0]
DOWN = Failure("a", "down", sent=False)
SILENT = Failure("a", "silent")
UNANSWERED = Failure("a", "it has not answered", awaited=True)
NO_TIME = Failure("a", "there was no time to ask it", sent=False, no_time=True)
BROKEN = Failure("a", "its connection broke")
FORBIDDEN = Failure("a", "NOPERM", permanent=True, sent=False)
NO_VOTE = [b"no_vote", 0, 2_000_000]
LATE = [b"void", 0]  # the request came too late, and its answer took 0.3 s


def _ticket(call: Call) -> int:
    """Return the ticket with which an enqueue asks for a place."""
    return int(unpack_arguments(call.own)[4])


@define
class Driver:
    """Driver that answers each effect from a list; time passes only while a flow sleeps or a master is silent."""

    answers: list[Any]
    listens: bool = True
    woken: Callable[[Park], float] = lambda _: float("inf")  # seconds after which a park is woken
    grants: Callable[["Driver"], Sequence[Handed]] = lambda _: ()  # that come at the end of a park
    now: float = 1000.0
    effects: list[Effect] = Factory(list)
    owners: list[bytes] = Factory(lambda: [b"me:1"])
    is_crowded: Callable[[], bool] = bool
    late: float = 0.0  # seconds by which a sleep ends late
    stops: bool = False  # for half a minute, when the last answer is due
    missed: Callable[[bytes], int] = lambda _: 0

    def clock(self) -> float:
        return self.now

    def run(self, until: float = float("inf"), **options: Any) -> Any:
        client = ClientOptions(**options)
        spec = LockSpec.of(lock_keys("lock", "a"), ("a",), client.for_lock(), client)
        wait = Wait(spec, b"me:1", 1, until, self.clock, lambda: 1.0, self.owners)
        flow = ask_until_granted(wait._replace(is_crowded=self.is_crowded, missed=self.missed))
        try:
            effect = flow.send(None)
            while True:
                effect = flow.send(self._carry_out(effect))
        except StopIteration as end:
            return end.value

    def _carry_out(self, effect: Effect) -> Any:
        self.effects.append(effect)
        if isinstance(effect, Ask):
            is_last = len(self.answers) == 1
            answer = self.answers[0] if is_last else self.answers.pop(0)
            self.now += 30.0 if is_last and self.stops else 0.0
            if answer in (SILENT, UNANSWERED):
                self.now = max(self.now, effect.until)
            elif answer is LATE:
                self.now += 0.3
            return [[answer]]
        if isinstance(effect, Listen):
            return self.listens
        if isinstance(effect, Park):
            pause = min(self.woken(effect), max(0.0, effect.until - self.now))
            self.now += pause + self.late
            return self.grants(self) if self.now < effect.until else ()
        return None

    def scripts(self) -> list[str]:
        return [effect.calls[0].script.name for effect in self.effects if isinstance(effect, Ask)]

    def tickets(self) -> list[int]:
        """Return the ticket with which the waiter has queued each time; 0: the master gives one."""
        calls = [effect.calls[0] for effect in self.effects if isinstance(effect, Ask)]
        return [_ticket(call) for call in calls if call.script.name == "enqueue"]

    def parks(self) -> list[Park]:
        return [effect for effect in self.effects if isinstance(effect, Park)]

    def undone(self) -> bool:
        return any(isinstance(effect, Undo) for effect in self.effects)


def test_a_free_lock_takes_one_request_and_nothing_else() -> None:
    driver = Driver([GRANTED])
    outcome = driver.run()
    end = 1000.0 + 30 - 0.302
    assert outcome == Grant(100, end, [end], True, [[GRANTED]])
    assert driver.scripts() == ["acquire"]
    assert len(driver.effects) == 1


def test_one_look_never_queues_and_leaves_nothing() -> None:
    driver = Driver([HELD])
    assert driver.run(until=1000.0) == Refused("you:1", 1, 5.0, None, undecided=False)
    assert driver.scripts() == ["acquire"]
    assert not driver.undone()


def test_a_waiter_listens_before_it_queues_and_is_granted_when_woken() -> None:
    driver = Driver([HELD, QUEUED, GRANTED], woken=lambda _: 1.5)
    assert isinstance(driver.run(), Grant)
    kinds = [type(effect).__name__ for effect in driver.effects]
    assert kinds == ["Ask", "Listen", "Ask", "Park", "Ask"]
    assert driver.scripts() == ["acquire", "enqueue", "enqueue"]
    assert driver.parks()[0].ticket == 77


def test_the_head_looks_again_when_the_holders_lease_ends() -> None:
    driver = Driver([HELD, HEAD, GRANTED])
    driver.run()
    assert driver.parks()[0].until == pytest.approx(1005.0, abs=0.01)


def test_a_waiter_behind_the_head_sleeps_but_never_without_a_timer() -> None:
    driver = Driver([HELD, QUEUED, GRANTED])
    driver.run()
    assert driver.parks()[0].until == 1000.0 + LOOK_AGAIN_SECONDS_MAX


def test_the_head_of_a_free_lock_looks_again_soon() -> None:
    driver = Driver([HELD, MY_TURN_SOON, GRANTED])
    driver.run()
    assert driver.parks()[0].until < 1000.1


def test_a_waiter_that_has_missed_a_turn_comes_back_with_its_ticket_and_after_a_second_one_with_another() -> None:
    misses = iter([1, 1, 2, 2, 3])
    driver = Driver([HELD, *[QUEUED] * 6, GRANTED], woken=lambda _: 1.0, missed=lambda _: next(misses, 3))
    assert isinstance(driver.run(), Grant)
    assert driver.tickets() == [0, 77, 77, 0, 77, 0, 77]


def test_a_wait_ends_at_its_timeout_and_gives_its_place_up() -> None:
    driver = Driver([HELD, QUEUED, QUEUED, GONE])
    outcome = driver.run(until=1003.0)
    assert isinstance(outcome, Refused)
    assert driver.now == 1003.0
    assert driver.scripts() == ["acquire", "enqueue", "enqueue", "release"]
    assert not driver.undone()


def test_a_place_that_could_not_be_given_up_is_given_up_in_the_background() -> None:
    driver = Driver([HELD, QUEUED, QUEUED, SILENT])
    driver.run(until=1003.0)
    assert driver.undone()
    assert driver.now <= 1003.0 + 1.0


@pytest.mark.parametrize(
    ("last", "late", "is_refused"),
    [
        (NO_TIME, 0.0, True),
        ([b"void", 0], 0.0, True),  # the request came too late
        (UNANSWERED, 0.0, False),  # after the whole node timeout
        (UNANSWERED, 0.5, True),  # after half of it, so the outcome is unknown
        (UNANSWERED, 1.5, True),  # without asking
        (DOWN, 0.5, False),
        (BROKEN, 0.5, False),
        (NO_VOTE, 0.5, False),
    ],
    ids=str,
)
def test_a_last_look_without_time_leaves_the_refusal_that_came_before(last: Any, late: float, is_refused: bool) -> None:
    driver = Driver([HELD, QUEUED, last], late=late)
    outcome = driver.run(until=1003.0)
    assert isinstance(outcome, Refused if is_refused else NoQuorum)
    assert driver.now <= 1004.0 + (late if late > 1.0 else 0.0)
    assert driver.undone()


def test_a_look_whose_first_request_came_too_late_has_less_time_for_its_second() -> None:
    driver = Driver([HELD, QUEUED, LATE, UNANSWERED])
    assert isinstance(driver.run(until=1003.0), Refused)
    assert driver.scripts() == ["acquire", "enqueue", "enqueue", "enqueue"]


@pytest.mark.parametrize(("last", "is_refused"), [(SILENT, True), (BROKEN, True), (FORBIDDEN, False)], ids=str)
def test_a_process_that_was_stopped_in_its_last_look_has_been_refused(last: Failure, *, is_refused: bool) -> None:
    """The masters may have answered long ago, and closed the connections meanwhile: that shows no failure of theirs."""
    driver = Driver([HELD, QUEUED, last], woken=lambda _: 1.0, stops=True)
    assert isinstance(driver.run(until=1003.0), Refused if is_refused else NoQuorum)


@pytest.mark.parametrize("last", [NO_TIME, UNANSWERED])
def test_who_was_never_refused_has_no_refusal(last: Failure) -> None:
    assert isinstance(Driver([last]).run(until=1003.0), NoQuorum)


def test_who_wakes_at_the_end_in_a_crowd_does_not_look_again() -> None:
    driver = Driver([HELD, QUEUED, GRANTED], is_crowded=lambda: True)
    assert isinstance(driver.run(until=1003.0), Refused)
    assert driver.scripts() == ["acquire", "enqueue"]
    (undo,) = [effect for effect in driver.effects if isinstance(effect, Undo)]
    assert undo.until == driver.now == 1003.0, "one undo is enough, because no request is under way"


def test_a_crowd_keeps_nobody_from_looking_while_there_is_time() -> None:
    driver = Driver([HELD, QUEUED, GRANTED], is_crowded=lambda: True, woken=lambda _: 1.0)
    assert isinstance(driver.run(until=1003.0), Grant)


def test_who_leaves_a_crowd_with_a_request_under_way_is_undone_once_more_after_it() -> None:
    driver = Driver([HELD, QUEUED, BROKEN, QUEUED], is_crowded=lambda: driver.now >= 1003.0, woken=lambda _: 1.0)
    assert isinstance(driver.run(until=1003.0), Refused)
    (undo,) = [effect for effect in driver.effects if isinstance(effect, Undo)]
    assert undo.until == driver.now + 1.0


def test_without_a_subscription_nobody_queues() -> None:
    driver = Driver([HELD, HELD, HELD, GRANTED], listens=False)
    assert isinstance(driver.run(), Grant)
    assert set(driver.scripts()) == {"acquire"}


def test_patience_ends_a_wait_that_no_quorum_answers() -> None:
    driver = Driver([DOWN])
    outcome = driver.run(patience=4.0)
    assert outcome == NoQuorum((DOWN,), 0, None, away=True)
    assert 1004.0 <= driver.now < 1004.1
    assert len(driver.scripts()) < 20, "the looks have a back-off"
    assert not driver.undone(), "no request was ever sent"


def test_without_patience_one_failure_is_enough() -> None:
    driver = Driver([DOWN])
    driver.run(patience=0)
    assert driver.scripts() == ["acquire"]


def test_a_timeout_comes_before_patience() -> None:
    driver = Driver([DOWN])
    assert isinstance(driver.run(until=1002.0), NoQuorum)
    assert driver.now == 1002.0


def test_an_answer_renews_patience() -> None:
    driver = Driver([DOWN, DOWN, HELD, DOWN, DOWN, GRANTED])
    assert isinstance(driver.run(patience=0.3), Grant)


def test_what_no_patience_mends_ends_the_wait_at_once() -> None:
    driver = Driver([FORBIDDEN])
    outcome = driver.run()
    assert isinstance(outcome, NoQuorum)
    assert outcome.permanent
    assert driver.scripts() == ["acquire"]


def test_patience_does_not_run_while_a_master_waits_for_its_vote() -> None:
    driver = Driver([NO_VOTE, NO_VOTE, NO_VOTE, GRANTED])
    assert isinstance(driver.run(patience=0.1), Grant)
    assert driver.now == 1006.0


def test_a_vote_that_is_long_in_coming_is_looked_for_now_and_then() -> None:
    """A clock that is set ahead, or an operator, may bring it sooner."""
    driver = Driver([[b"no_vote", 0, 3_600_000_000], GRANTED])
    assert isinstance(driver.run(), Grant)
    assert driver.now == 1000.0 + LOOK_AGAIN_SECONDS_MAX


@pytest.mark.parametrize(("first", "is_repeated"), [(SILENT, True), (HELD, False)])
def test_a_lone_master_may_grant_twice_what_was_asked_for_twice(first: Any, is_repeated: bool) -> None:
    """The first request may arrive after the release of the hold: no client would then know the hold that it makes."""
    driver = Driver([first, GRANTED] if is_repeated else [first, QUEUED, GRANTED], woken=lambda _: 0.01)
    grant = driver.run()
    assert isinstance(grant, Grant)
    assert grant.is_repeated == is_repeated


def test_a_silent_master_leaves_an_undo() -> None:
    driver = Driver([SILENT])
    driver.run(until=1000.0)
    assert driver.undone()
    assert driver.scripts() == ["acquire"], "a silent master gets no second request"


def test_silence_that_was_followed_by_a_refusal_is_undone_all_the_same() -> None:
    driver = Driver([SILENT, HELD, QUEUED, QUEUED, GONE])
    driver.run(until=1008.0)
    assert driver.undone()


def test_a_request_that_came_too_late_is_sent_again_at_once() -> None:
    driver = Driver([[b"void", 0], GRANTED])
    assert isinstance(driver.run(until=1000.0), Grant)
    assert driver.scripts() == ["acquire", "acquire"]


def test_requests_that_always_come_too_late_are_no_endless_loop() -> None:
    driver = Driver([[b"void", 0]])
    assert isinstance(driver.run(until=1000.0), NoQuorum)
    assert len(driver.scripts()) == 3


def handed(begins: float, name: bytes = b"me:1~ab.7", lease: float = 3.0) -> Handed:
    return Handed(master=0, owner=name, token=200, granted_us=150, lease=lease, begins=begins)


OURS = [b"queued", 0, 3_000, 0, b"me:1~ab.7", 77]
EXTENDED = [b"extended", 0]


@pytest.mark.parametrize(("lease", "is_short"), [(3.0, True), (30.0, False)])
def test_what_a_releaser_gave_is_taken_at_once_and_nothing_more_is_asked(lease: float, is_short: bool) -> None:
    driver = Driver([HELD, QUEUED], woken=lambda _: 1.0, grants=lambda self: [handed(self.now - 0.25, lease=lease)])
    grant = driver.run()
    assert isinstance(grant, Grant)
    begins = 1001.0 - 0.25
    assert (grant.token, grant.begins, grant.is_short) == (200, begins, is_short)
    assert grant.end == begins + lease - (0.01 * lease + 0.002), "the lease counts from the grant, not from its arrival"
    assert driver.scripts() == ["acquire", "enqueue"]
    assert driver.owners == [b"me:1", b"me:1~ab.7"]


@pytest.mark.parametrize("late_by", [3.0, float("inf")])
def test_what_a_releaser_gave_is_given_back_when_its_message_was_too_late_or_its_time_is_not_known(
    late_by: float,
) -> None:
    released, again = [b"released", 0], GRANTED
    driver = Driver(
        [HELD, QUEUED, released, again], woken=lambda _: 1.0, grants=lambda self: [handed(self.now - late_by)]
    )
    assert isinstance(driver.run(), Grant)
    assert driver.scripts() == ["acquire", "enqueue", "give_back", "enqueue"]
    assert driver.owners == [b"me:1"], "the hold has the name of the last attempt"
    undo = next(effect for effect in driver.effects if isinstance(effect, Undo))
    assert (undo.owner, undo.keeps_place, undo.ticket) == (b"me:1~ab.7", True, QUEUED[-1])


def test_a_grant_that_was_given_back_is_never_taken() -> None:
    """Every park brings its message again, which would now seem to come in time."""
    driver = Driver([HELD, QUEUED, [b"released", 0], QUEUED, GRANTED], woken=lambda _: 1.0)
    driver.grants = lambda self: [handed(self.now - (3.0 if len(self.parks()) == 1 else 0.0))]
    grant = driver.run()
    assert isinstance(grant, Grant)
    assert grant.begins is None
    assert driver.scripts() == ["acquire", "enqueue", "give_back", "enqueue", "enqueue"]


def test_a_give_back_without_an_answer_is_no_reason_to_end_what_the_waiter_got_afterwards() -> None:
    """Holds on a lone master both have the waiter's name, so the end of one ends the other."""
    driver = Driver([HELD, QUEUED, BROKEN, GRANTED], woken=lambda _: 1.0, grants=lambda self: [handed(self.now - 3.0)])
    assert isinstance(driver.run(), Grant)
    assert driver.owners == [b"me:1"]
    assert [effect.owner for effect in driver.effects if isinstance(effect, Undo)] == [b"me:1~ab.7"]


def test_a_grant_that_is_never_heard_of_is_given_back_after_a_second_look() -> None:
    driver = Driver([HELD, OURS, OURS, [b"released", 0], GRANTED])
    assert isinstance(driver.run(), Grant)
    assert driver.scripts() == ["acquire", "enqueue", "enqueue", "give_back", "enqueue"]
    assert driver.now < 1000.0 + 0.2, "the wait for the message is short"


def test_a_request_that_may_still_arrive_is_undone_once_a_releaser_has_given_the_lock() -> None:
    """Requests could queue a waiter that no longer waits, or even get it a second hold."""
    driver = Driver([HELD, SILENT, QUEUED], woken=lambda _: 0.01, listens=True)
    driver.grants = lambda self: [handed(self.now, lease=3.0)] if len(self.parks()) > 1 else ()
    assert isinstance(driver.run(), Grant)
    assert [effect.owner for effect in driver.effects if isinstance(effect, Undo)] == [b"me:1"]
