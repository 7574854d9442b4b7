"""The wait loop over three masters, driven by hand: tickets, names, and the undoing of a failed attempt."""

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import Factory, define

from relock._core.clocks import TICKET_AHEAD_US, propose_ticket
from relock._core.effects import Ask, Effect, Failure, Handed, Leave, Listen, Park, Undo
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.patience import BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN
from relock._core.quorum import TOO_LATE, Grant, NoQuorum, Refused, may_be_granted, may_keep_anything
from relock._core.waiting import Wait, ask_until_granted
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner

GRANTED = [b"granted", 0, 100]
HELD = [b"refused", 0, 5_000, 0, b"you:1"]
DONE = [b"released", 0]
VOID = [b"void", 0]
AWAITED = Failure("c", "not yet", awaited=True)
DOWN = Failure("c", "down", sent=False)
SILENT = Failure("c", "silent")
OPTIONS = ClientOptions(restart_guard=30.0)
T = 1_700_000_000_000_000  # a ticket that was proposed to all
SPEC = LockSpec.of(lock_keys("lock", "a"), ("a", "b", "c"), OPTIONS.for_lock(), OPTIONS)


def proposed(ticket: int) -> list[Any]:
    return [b"proposed", 0, 5_000, 0, b"you:1", ticket]


def queued(ticket: int, ahead: int = 0) -> list[Any]:
    return [b"queued", 0, 5_000, ahead, b"you:1", ticket]


@define
class Driver:
    """Three masters that answer each `Ask` from a script; a park is woken at once."""

    answers: list[list[Any]]
    effects: list[Effect] = Factory(list)
    owners: list[bytes] = Factory(lambda: [b"me:1"])
    given: list[list[Any]] = Factory(list)
    now: float = 1000.0
    pause: float = 1.0
    answer_late: bool = False
    grants: Sequence[Handed] = ()
    ahead_us: int = 0  # of a ticket that lies just above the masters' clocks, as far as is known
    hears: bool = True  # its subscriptions are confirmed
    missed: int = 0  # of turns
    fence: float = 0.0  # of writing a token

    def run(self, until: float = float("inf")) -> Any:
        clock, jitter = (lambda: self.now), (lambda: 1.0)
        propose, missed = (lambda: self.ahead_us), (lambda _: self.missed)
        wait = Wait(SPEC, b"me:1", 1, until, clock, jitter, self.owners, propose=propose, missed=missed)
        flow = ask_until_granted(wait)
        try:
            effect = flow.send(None)
            while True:
                effect = flow.send(self._carry_out(effect))
        except StopIteration as end:
            return end.value

    def _carry_out(self, effect: Effect) -> Any:
        self.effects.append(effect)
        if isinstance(effect, Ask):
            self.now += self.fence if effect.calls[0].script.name == "fence" else 0.0
            self.given.append([[answer] for answer in self.answers.pop(0)])
            return self.given[-1]
        if isinstance(effect, Park):
            self.now += self.pause
            self.ahead_us += self.ahead_us and 9
            if self.answer_late:
                self.given[-1][-1][0] = queued(7)
            return self.grants
        if not self.hears:
            self.now += self.pause  # the driver has waited in vain
        return (isinstance(effect, Listen) and self.hears) or None

    def asked(self) -> list[str]:
        """Return the script of each `Ask`, and its owner."""
        calls = [effect.calls[0] for effect in self.effects if isinstance(effect, Ask)]
        return [f"{call.script.name} {call.own.split()[1].decode()}" for call in calls]

    def parks(self) -> list[Park]:
        return [effect for effect in self.effects if isinstance(effect, Park)]

    def undone(self) -> list[bytes]:
        return [effect.owner for effect in self.effects if isinstance(effect, Undo)]


def test_a_ticket_is_the_largest_proposal_and_is_written_before_anybody_sleeps_on_it() -> None:
    driver = Driver([[HELD] * 3, [proposed(7), proposed(9), proposed(8)], [queued(9)] * 3, [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    kinds = [type(effect).__name__ for effect in driver.effects]
    assert kinds == ["Ask", "Listen", "Ask", "Ask", "Park", "Ask"]
    assert driver.asked() == ["acquire me:1", "enqueue me:1~1", "enqueue me:1~2.9", "enqueue me:1~2.9"]
    placed = [effect.calls[0].own for effect in driver.effects if isinstance(effect, Ask)][2:]
    assert all(b"\r\n9\r\n" in own for own in placed)
    assert [effect.ticket for effect in driver.effects if isinstance(effect, Park)] == [9]


@pytest.mark.parametrize("third", [queued(T), DOWN, VOID, [b"no_vote", 0, 1000]], ids=str)
def test_a_ticket_that_a_quorum_has_written_needs_no_second_round(third: Any) -> None:
    driver = Driver([[HELD] * 3, [queued(T), queued(T), third], [GRANTED] * 3], ahead_us=T - TICKET_AHEAD_US)
    if third is VOID:  # a repeated request, with the time of its clock by now
        driver.answers.insert(2, [queued(T)] * 3)
    assert isinstance(driver.run(), Grant)
    kinds = [type(effect).__name__ for effect in driver.effects]
    assert kinds == ["Ask", "Listen", *["Ask"] * (1 + (third is VOID)), "Park", "Ask"]
    assert set(driver.asked()[1:]) == {f"enqueue me:1~1.{T}"}, "the name of each granted attempt has the ticket"
    assert driver.parks()[0].ticket == T


@pytest.mark.parametrize(
    ("said", "agreed"),
    [
        ([queued(T), queued(T), queued(T + 5)], T + 5),
        ([queued(T), queued(T + 1), SILENT], T + 1),
        ([queued(T), queued(T), proposed(T)], T),
        ([queued(T + 3), queued(T + 3), proposed(T - 7)], T + 3),
        ([queued(T), proposed(T), DOWN], T),
        ([queued(T + 1)] * 3, T + 1),  # a master that has answered no request may have written T
    ],
)
def test_a_ticket_that_no_quorum_has_written_alone_is_written_before_anybody_sleeps_on_it(
    said: list[Any], agreed: int
) -> None:
    driver = Driver([[HELD] * 3, said, [queued(agreed)] * 3, [GRANTED] * 3], ahead_us=T - TICKET_AHEAD_US)
    assert isinstance(driver.run(), Grant)
    asks = [effect.calls[0].own for effect in driver.effects if isinstance(effect, Ask)]
    assert f"\r\n-{T}\r\n".encode() in asks[1]
    assert f"\r\n{agreed}\r\n".encode() in asks[2]
    assert driver.asked()[2].endswith(f".{agreed}")
    assert [park.ticket for park in driver.parks()] == [agreed]


def test_a_waiter_that_has_missed_two_turns_asks_for_another_ticket() -> None:
    """The waiter asks under a new name, because a late grant of an earlier attempt names the lost ticket."""
    answers = [[HELD] * 3, [queued(T)] * 3, [queued(T + 9)] * 3, [GRANTED] * 3]
    driver = Driver(answers, ahead_us=T - TICKET_AHEAD_US, missed=2)
    assert isinstance(driver.run(), Grant)
    assert driver.asked() == ["acquire me:1", f"enqueue me:1~1.{T}", *[f"enqueue me:1~2.{T + 9}"] * 2]
    asks = [effect.calls[0].own for effect in driver.effects if isinstance(effect, Ask)]
    assert f"\r\n-{T + 9}\r\n".encode() in asks[2]
    assert [park.ticket for park in driver.parks()] == [T, T + 9]


def test_a_waiter_that_has_missed_two_turns_asks_for_another_ticket_where_no_clock_is_known() -> None:
    answers = [[HELD] * 3, [proposed(7)] * 3, [queued(7)] * 3, [proposed(9)] * 3, [queued(9)] * 3, [GRANTED] * 3]
    driver = Driver(answers, missed=2)
    assert isinstance(driver.run(), Grant)
    names = ["~1", "~2.7", "~3", "~4.9", "~4.9"]
    assert driver.asked() == ["acquire me:1", *[f"enqueue me:1{name}" for name in names]]
    assert [park.ticket for park in driver.parks()] == [7, 9]


def test_a_waiter_that_can_not_listen_gets_no_more_names_with_each_look() -> None:
    driver = Driver([[HELD] * 3 for _ in range(20)], ahead_us=T, hears=False)
    assert isinstance(driver.run(until=1015.0), Refused)
    assert driver.asked().count("acquire me:1~1") > 2
    assert driver.owners == [b"me:1", b"me:1~1"]


@pytest.mark.parametrize("ahead_us", [0, 2**53 - TICKET_AHEAD_US, 10**16])
def test_no_ticket_is_proposed_that_masters_could_not_tell_from_the_next(ahead_us: int) -> None:
    assert propose_ticket(ahead_us) == 0
    assert propose_ticket(2**53 - TICKET_AHEAD_US - 1) == 2**53 - 1


def test_a_place_that_was_given_up_with_a_grant_is_written_again() -> None:
    some = [[GRANTED, queued(T), queued(T)], [DONE] * 3]
    driver = Driver([[HELD] * 3, *some, [queued(T)] * 3, [GRANTED] * 3], ahead_us=T - TICKET_AHEAD_US)
    assert isinstance(driver.run(), Grant)
    names = [f"enqueue me:1~1.{T}", f"give_back me:1~1.{T}", *[f"enqueue me:1~2.{T}"] * 2]
    assert driver.asked()[1:] == names
    assert len(driver.parks()) == 1, "the waiter asks before it sleeps"


def test_a_place_that_a_silent_master_may_yet_write_is_undone_after_the_hold_is_had() -> None:
    driver = Driver([[HELD] * 3, [queued(T), queued(T), SILENT], [GRANTED] * 3], ahead_us=T - TICKET_AHEAD_US)
    driver.pause = 0.01
    assert isinstance(driver.run(), Grant)
    assert driver.undone() == [f"me:1~1.{T}".encode(), b"me:1"]


def test_an_attempt_of_a_waiter_with_a_ticket_names_it() -> None:
    """A grant of a minority takes the waiter out of their queues; a newcomer must find the ticket all the same."""
    some = [[GRANTED, queued(9), queued(9)], [DONE] * 3]
    driver = Driver([[HELD] * 3, [proposed(9)] * 3, *some, [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    assert driver.asked()[2:] == ["enqueue me:1~2.9", "give_back me:1~2.9", "enqueue me:1~3.9"]


def test_a_minority_of_grants_is_given_back_at_once_and_the_next_attempt_has_a_new_name() -> None:
    driver = Driver([[GRANTED, HELD, HELD], [DONE] * 3, [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    assert driver.asked() == ["acquire me:1", "give_back me:1", "enqueue me:1~1"]
    assert driver.owners == [b"me:1", b"me:1~1"]
    assert driver.undone() == [], "every master has confirmed the undo"


def test_what_could_not_be_given_back_at_once_is_undone_later() -> None:
    """The connection to the master that granted has just gone, so nothing could be sent there."""
    driver = Driver([[GRANTED, HELD, HELD], [DOWN, DONE, DONE], [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    assert driver.undone() == [b"me:1"]


def test_a_master_that_is_down_and_granted_nothing_leaves_nothing_to_undo() -> None:
    driver = Driver([[GRANTED, HELD, DOWN], [DONE, DONE, DOWN], [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    assert driver.undone() == []


def test_what_was_granted_is_given_back_though_the_request_was_sent_again_and_came_too_late() -> None:
    driver = Driver([[GRANTED, VOID, HELD], [VOID, VOID, HELD], [SILENT, HELD, HELD], [DONE] * 3, [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    assert driver.asked() == [*3 * ["acquire me:1"], "give_back me:1", "enqueue me:1~1"]


def test_what_may_have_been_granted_is_undone_though_the_request_was_sent_again_and_came_too_late() -> None:
    driver = Driver([[SILENT, VOID, HELD], [SILENT, VOID, HELD], [SILENT, VOID, HELD], [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    driver.given[2][0][0] = VOID  # the reply to the last request, and not to the first
    (undo,) = (effect for effect in driver.effects if isinstance(effect, Undo))
    assert undo.owner == b"me:1"
    assert undo.answers is not None
    assert may_be_granted(undo.answers)


@pytest.mark.parametrize("first", [GRANTED, SILENT, AWAITED])
@pytest.mark.parametrize("second", [DOWN, SILENT, VOID])
def test_what_may_have_been_granted_is_undone_after_the_hold_that_the_second_request_got(
    first: Any, second: Any
) -> None:
    """Grants of that kind are no votes: their lease began before the moment from which the hold counts."""
    driver = Driver([[VOID, HELD if first is GRANTED else GRANTED, first], [GRANTED, GRANTED, second]])
    outcome = driver.run()
    assert isinstance(outcome, Grant)
    hold = Hold(SPEC, b"me:1", Owner(1, None, None), outcome, 1)
    driver.given[1][2][0] = VOID
    hold.drop_absent([[b"counted", 0]] * 2 + [DOWN])
    assert hold.lacking == {2}
    assert hold.may_be_left([(DONE,), (DONE,), (DOWN,)])
    assert not hold.may_be_left([(DONE,)] * 3)


@pytest.mark.parametrize("says", [GRANTED, HELD])
def test_what_the_second_request_is_granted_late_is_undone_though_the_first_came_too_late(says: list[Any]) -> None:
    driver = Driver([[VOID, HELD, HELD], [AWAITED, HELD, HELD], [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    (undo,) = (effect for effect in driver.effects if isinstance(effect, Undo))
    driver.given[1][0][0] = says  # after a quorum of refusals was enough
    assert undo.answers is not None
    assert may_be_granted(undo.answers) == (says is GRANTED)


def test_a_waiter_that_its_own_earlier_attempt_keeps_out_looks_again_soon() -> None:
    """Undos of that attempt wake waiters before its own, and so never the waiter itself."""
    mine = [b"queued", 0, 5_000, 0, b"me:1", 7]
    driver = Driver([[HELD] * 3, [proposed(7)] * 3, [queued(7)] * 3, [mine] * 3, [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    kept_out_by_another, kept_out_by_itself = (effect.until for effect in driver.effects if isinstance(effect, Park))
    assert kept_out_by_another > 1000.0 + 5.0
    assert kept_out_by_itself <= 1001.0 + BACKOFF_SECONDS_MIN


def test_what_was_granted_is_given_back_where_its_token_reaches_no_quorum() -> None:
    """No caller may use that token. No failure shows that a request was sent, so only the grants must be undone."""
    ahead = [b"granted", 60_000_000, 60_000_000]
    driver = Driver([[ahead, GRANTED, DOWN], [[b"fenced", 0], DOWN, DOWN], [DONE, DOWN, DOWN]])
    assert isinstance(driver.run(until=1000.0), NoQuorum)
    assert driver.asked() == ["acquire me:1", "fence 60000000", "give_back me:1"]


def test_a_grant_whose_lease_ended_while_its_token_was_written_says_so_of_each_master() -> None:
    ahead = [b"granted", 60_000_000, 60_000_000]
    driver = Driver([[ahead, GRANTED, DOWN], [[b"fenced", 0], [b"fenced", 0], DOWN], [DONE, DONE, DOWN]], fence=60.0)
    outcome = driver.run(until=1000.0)
    assert isinstance(outcome, NoQuorum)
    assert [failure.why for failure in outcome.failures] == [TOO_LATE, TOO_LATE, DOWN.why]


def test_what_could_not_be_given_back_everywhere_is_undone_in_the_background() -> None:
    driver = Driver([[GRANTED, HELD, SILENT], [DONE, DONE, SILENT], [GRANTED] * 3])
    driver.run()
    assert driver.undone() == [b"me:1"]


def test_what_a_slow_master_may_have_granted_is_looked_at_later_and_the_place_stays() -> None:
    driver = Driver([[HELD, HELD, AWAITED], [queued(7)] * 3, [GRANTED] * 3])
    assert isinstance(driver.run(), Grant)
    undo = next(effect for effect in driver.effects if isinstance(effect, Undo))
    assert undo.owner == b"me:1"
    assert undo.keeps_place
    assert undo.answers is driver.given[0], "the undo has the list to which late answers are added"


def test_what_broken_connections_may_still_bring_is_undone_after_it_was_given_back() -> None:
    """The request on the broken connection may arrive after the give-back, which went on another connection."""
    driver = Driver([[GRANTED, HELD, SILENT], [[b"absent", 0]] * 3, [GRANTED] * 3])
    driver.run()
    assert driver.undone() == [b"me:1"]


@pytest.mark.parametrize(("answered", "undone"), [(False, [b"me:1~2.7", b"me:1"]), (True, [b"me:1~2.7"])])
def test_a_served_waiter_is_taken_out_of_the_queue_that_a_late_request_may_put_it_into(
    answered: bool, undone: list[bytes]
) -> None:
    """The third attempt is granted while the second, which writes the ticket, is still on its way to a slow master."""
    driver = Driver([[HELD] * 3, [proposed(7)] * 3, [queued(7), queued(7), AWAITED], [GRANTED] * 3], pause=0.0)
    driver.answer_late = answered
    assert isinstance(driver.run(), Grant)
    assert driver.owners[-1] == b"me:1~3.7"
    assert driver.undone() == undone
    assert [effect.ticket for effect in driver.effects if isinstance(effect, Undo) and effect.keeps_place] == [7]


@pytest.mark.parametrize(
    ("answer", "is_left"),
    [([b"queued", 41, 5_000, 0, b"you:1", 7], False), ([b"queued", 42, 5_000, 0, b"you:1", 7], True), (SILENT, True)],
    ids=["before", "perhaps after", "never"],
)
def test_a_place_that_a_slow_master_may_give_after_the_wait_is_taken_back(answer: Any, is_left: bool) -> None:
    """The request is still on its way, and the one that ends the wait may overtake it on another connection."""
    ended = [[b"absent", 42]] * 3
    answers: list[list[Any]] = [[HELD] * 3, [proposed(7)] * 3, [queued(7), queued(7), AWAITED], [queued(7)] * 3, ended]
    driver = Driver(answers, pause=0.002)
    assert isinstance(driver.run(until=1000.001), Refused)
    assert driver.asked()[-1] == "release me:1"
    (undo,) = (effect for effect in driver.effects if isinstance(effect, Undo) and effect.owner == b"me:1")
    assert undo.answers is not None
    assert undo.ended_us is not None
    assert not undo.keeps_place
    driver.given[2][2][0] = answer
    assert may_keep_anything(undo.answers, undo.ended_us) == is_left


def test_what_every_master_has_answered_needs_no_second_end_of_the_wait() -> None:
    answers: list[list[Any]] = [[HELD] * 3, [proposed(7)] * 3, [queued(7)] * 3, [queued(7)] * 3, [[b"absent", 42]] * 3]
    driver = Driver(answers, pause=0.002)
    assert isinstance(driver.run(until=1000.001), Refused)
    assert driver.undone() == []


def test_one_master_that_never_answers_rules_out_no_quorum() -> None:
    forbidden = Failure("c", "NOPERM", permanent=True, sent=False)
    outcome = Driver([[DOWN, [b"no_vote", 0, 10], forbidden]]).run(until=1000.0)
    assert isinstance(outcome, NoQuorum)
    assert not outcome.permanent
    outcome = Driver([[HELD, forbidden, forbidden]]).run()
    assert isinstance(outcome, NoQuorum)
    assert outcome.permanent


@pytest.mark.parametrize("other", [DOWN, VOID], ids=["away", "too late"])
def test_nobody_waits_for_a_vote_while_another_master_may_be_back_sooner(other: Any) -> None:
    """The client asks the other master again soon: no message tells its return, and the vote may be an hour away."""
    no_vote = [b"no_vote", 0, 3_600_000_000]
    driver = Driver([[no_vote, HELD, other]] * 3 + [[no_vote, GRANTED, GRANTED]] * 3, pause=0.0)
    assert isinstance(driver.run(), Grant)
    assert driver.parks()[0].until == driver.now + BACKOFF_SECONDS_MAX


def test_a_wait_that_ends_gives_up_its_place_and_whatever_is_in_doubt() -> None:
    looks: list[list[Any]] = [[HELD, HELD, DOWN], [proposed(7), proposed(7), AWAITED], [queued(7)] * 3, [queued(7)] * 3]
    driver = Driver([*looks, [DONE, DONE, DOWN]])
    outcome = driver.run(until=1000.5)
    assert isinstance(outcome, Refused)
    assert any(isinstance(effect, Leave) for effect in driver.effects)
    assert driver.asked()[-1] == "release me:1"
    assert set(driver.undone()) == {b"me:1", b"me:1~1"}


def handed(master: int, begins: float = 1001.0, token: int = 100, name: bytes = b"me:1~ab.9") -> Handed:
    return Handed(master=master, owner=name, token=token, granted_us=token, lease=3.0, begins=begins)


WAITING = [[HELD] * 3, [proposed(9)] * 3, [queued(9)] * 3]
EXTENDED = [b"extended", 0]


def test_a_hold_that_a_releaser_gave_on_a_quorum_is_taken_with_the_largest_token() -> None:
    driver = Driver([*WAITING, [EXTENDED] * 3], grants=[handed(0, 1000.75, 100), handed(2, 1000.5, 101)])
    grant = driver.run()
    assert isinstance(grant, Grant)
    assert (grant.token, grant.settled) == (101, False)
    assert grant.lease_ends == [1003.75 - 0.032, float("-inf"), 1003.5 - 0.032]
    assert grant.end == 1003.5 - 0.032, "the hold is valid until fewer than a quorum keep it"
    assert may_be_granted([grant.answers[1]]), "the third master may have granted it, too"
    assert grant.is_short
    assert driver.owners[-1] == b"me:1~ab.9"


def test_a_grant_of_which_nobody_knows_when_it_was_made_changes_nothing_but_the_token() -> None:
    """Clocks of such a master may have stepped. The others make the hold, and their grants date its beginning."""
    never = float("-inf")
    grants = [handed(0, 1000.75, 100), handed(1, never, 102), handed(2, 1000.5, 101)]
    driver = Driver([*WAITING, [EXTENDED] * 3], grants=grants)
    grant = driver.run()
    assert isinstance(grant, Grant)
    assert (grant.token, grant.settled, grant.begins) == (102, False, 1000.5)
    assert grant.lease_ends[1] == never
    hold = Hold(SPEC, driver.owners[-1], Owner(1, None, None), grant, 1)
    hold.drop_absent([[b"absent", 0], SILENT, SILENT])
    assert hold.lease_ends == [never, never, grant.lease_ends[2]], "such a grant never counts as one that was asked for"


def test_what_a_minority_gave_is_given_back_with_the_waiters_place() -> None:
    driver = Driver([*WAITING, [DONE] * 3, [GRANTED] * 3], grants=[handed(0)])
    assert isinstance(driver.run(), Grant)
    assert driver.asked()[3:] == ["give_back me:1~ab.9", "enqueue me:1~2.9"]
    give_back = [effect for effect in driver.effects if isinstance(effect, Ask)][3]
    assert b"\r\n9\r\n" in give_back.calls[0].own, "the give-back names the ticket"
    assert driver.undone() == [b"me:1~ab.9"]


def test_grants_of_two_names_do_not_make_a_quorum() -> None:
    other = b"me:1~cd.9"
    driver = Driver([*WAITING, [DONE] * 3, [DONE] * 3, [GRANTED] * 3], grants=[handed(0), handed(1, name=other)])
    assert isinstance(driver.run(), Grant)
    assert driver.asked()[3:5] == ["give_back me:1~ab.9", "give_back me:1~cd.9"]


@pytest.mark.parametrize(("fenced", "is_taken"), [(3, True), (1, False)])
def test_a_token_that_another_may_fall_below_is_written_first(fenced: int, is_taken: bool) -> None:
    """Masters whose clocks differ by more than the short lease."""
    far = 5_000_000_000
    wrote = [[b"fenced", 0]] * fenced + [DOWN] * (3 - fenced)
    driver = Driver([*WAITING, wrote, *([[EXTENDED] * 3] if is_taken else [[DONE] * 3, [GRANTED] * 3])])
    driver.grants = [handed(0, token=100), handed(1, token=far)]
    grant = driver.run()
    assert isinstance(grant, Grant)
    assert (grant.begins is not None) == is_taken


def test_a_token_that_a_quorum_knows_is_waited_for_no_longer() -> None:
    """A third master that hangs costs no time."""
    ahead, fenced = [b"granted", 60_000_000, 60_000_000], [b"fenced", 0]
    driver = Driver([[ahead, GRANTED, AWAITED], [fenced, fenced, AWAITED]])
    assert isinstance(driver.run(), Grant)
    _, write = driver.effects
    assert isinstance(write, Ask)
    assert write.is_certain is not None
    assert write.is_certain([[fenced], [fenced], [AWAITED]])
    assert not write.is_certain([[fenced], [AWAITED], [AWAITED]])


@define
class Slow(Driver):
    """A driver that waits for silent masters until the end; the others need nearly as long to answer."""

    def _carry_out(self, effect: Effect) -> Any:
        if isinstance(effect, Ask):
            answers = [[answer] for answer in self.answers[0]]
            is_certain = effect.is_certain is not None and effect.is_certain(answers)
            is_heard = is_certain or not any(SILENT in answer for answer in answers)
            part = 0.9 if is_heard else 1.0
            self.now = max(self.now, min(effect.until, self.now + part * SPEC.node_timeout))
        return super()._carry_out(effect)


AHEAD, FENCED = [b"granted", 60_000_000, 60_000_000], [b"fenced", 0]


@pytest.mark.parametrize(
    "answers",
    [
        [[GRANTED, HELD, SILENT], [SILENT, DONE, DONE]],
        [[AHEAD, GRANTED, DOWN], [FENCED, SILENT, DOWN], [SILENT, DONE, DOWN]],
    ],
    ids=["what is given back", "a token that is written"],
)
def test_an_acquire_ends_on_time_whatever_it_has_to_do_at_last(answers: list[list[Any]]) -> None:
    """Masters that fall silent one after the other cost one node timeout at most; the rest is undone later."""
    driver = Slow(answers)
    assert not isinstance(driver.run(until=1000.0), Grant)
    assert driver.now <= 1000.0 + SPEC.node_timeout
    assert driver.undone() == [b"me:1"]


def test_a_wait_ends_on_time_whatever_a_releaser_gave_it_at_last() -> None:
    """Releasers gave too few grants, and a token that the masters do not know."""
    far = 5_000_000_000
    gifts = [handed(0, 1004.0), handed(1, 1004.0, far), handed(2, 1004.0, name=b"me:1~cd.9")]
    silent = [SILENT] * 3
    driver = Slow([*WAITING, silent, silent, silent, silent], grants=gifts, pause=1.0)
    until = 1000.0 + 3 * 0.9 * SPEC.node_timeout + driver.pause
    assert isinstance(driver.run(until=until), Refused), "the last known answer of the masters counts"
    assert driver.now <= until + SPEC.node_timeout
    assert {b"me:1~ab.9", b"me:1~cd.9"} <= set(driver.undone())
