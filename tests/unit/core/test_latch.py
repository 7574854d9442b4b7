"""Flows of a latch, driven step by step: what each asks for, and how it judges the replies."""

from collections.abc import Sequence
from typing import Any

import pytest

from relock import Client, ConfigurationError, LatchInfo
from relock._core.effects import Ask, Failure, Listen, Park
from relock._core.flows.inspect import MasterReplies
from relock._core.flows.latch import NOBODY, LatchFlow, LatchSpec, agree, arrive, judge_look, wait
from relock._core.quorum import NEVER, NoQuorum
from relock._keys import latch_keys

SILENT = Failure("c", "silent")
DOWN = Failure("c", "refused", sent=False)
DENIED = Failure("c", "NOPERM", permanent=True)
VOID = [b"void", 1]
WAITER = b"me:1!"
NODE_TIMEOUT, PATIENCE = 1.0, 10.0


def spec_for(masters: int = 3, parties: int = 3) -> LatchSpec:
    return LatchSpec(latch_keys("lock", "a"), tuple("abc"[:masters]), NODE_TIMEOUT, PATIENCE, parties, 60.0)


def seen(*names: bytes, parties: int = 3, count: int | None = None) -> list[Any]:
    count = len(names) if count is None else count
    return [b"seen", 1, count, parties if count else 0, list(names)]


def arrived(count: int) -> list[Any]:
    return [b"arrived", 1, count]


class Driver:
    """Answers a flow, and notes what it asked for: the scripts, the waiters of looks, and the other effects."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[Any] = []
        self.endless: list[Any] = []  # the answers once no others are left

    def run(self, flow: LatchFlow, *answers: Any, takes: float = 0.0) -> Any:
        given = list(answers)
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, Ask):
                    (call,) = effect.calls
                    words = call.own.split(b"\r\n")
                    self.asked.append(words[1] if call.script.name == "latch_look" else call.script.name)
                    assert effect.until == self.now + NODE_TIMEOUT
                    self.now += takes
                    effect = flow.send([(reply,) for reply in (given.pop(0) if given else self.endless)])
                elif isinstance(effect, Listen):
                    self.asked.append("listen")
                    effect = flow.send(True)
                else:
                    assert isinstance(effect, Park)
                    assert (effect.ticket, effect.lease_end) == (None, NEVER)
                    self.asked.append(round(effect.until - self.now, 3))
                    self.now = effect.until
                    effect = flow.send([])
        except StopIteration as end:
            assert not given, "all was asked"
            return end.value

    def clock(self) -> float:
        return self.now


# Judging a look -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replies", "missing"),
    [
        ([seen(), seen(), seen()], 3),
        ([seen(b"a"), seen(b"a"), seen(b"a")], 2),
        ([seen(b"a", b"b"), seen(b"b", b"c"), seen(b"a", b"c")], 0),
        ([seen(b"a"), seen(b"b"), SILENT], 1),
        ([seen(b"a", b"b", b"c"), SILENT, SILENT], 0),
        ([seen(count=2), seen(b"a"), seen()], 1),
        ([seen(count=5), seen(), seen()], 0),
        ([seen(b"a", b"b"), seen(b"c", b"d")], 0),
        ([SILENT, SILENT, SILENT], 3),
    ],
)
def test_parties_that_any_master_names_have_arrived(replies: MasterReplies, missing: int) -> None:
    assert judge_look(spec_for(), replies, 3) == missing
    assert judge_look(spec_for(), replies, 1) == min(1, missing)


@pytest.mark.parametrize("parties", [1, 2, 4, 1000])
def test_another_number_of_parties_is_an_error_that_says_so(parties: int) -> None:
    with pytest.raises(ConfigurationError, match=f"parties=3: others wait at the latch 'a' for {parties} parties"):
        judge_look(spec_for(), [seen(b"a"), seen(b"a", parties=parties), SILENT], 3)


# The state ------------------------------------------------------------------------------------------------------------


def test_nothing_is_known_without_a_quorum() -> None:
    assert agree(spec_for(), [seen(b"a"), SILENT, SILENT]) is None
    assert agree(spec_for(), [seen(), seen(), SILENT]) == LatchInfo("a", 3, ())


def test_the_state_names_all_parties_in_order() -> None:
    info = agree(spec_for(parties=9), [seen(b"b", b"a", parties=4), seen(b"c", parties=4), seen()])
    assert info == LatchInfo("a", 4, ("a", "b", "c"))
    assert (info.missing, info.kind) == (1, "latch")


def test_names_without_a_text_are_still_different_parties() -> None:
    info = agree(spec_for(1, 2), [seen(b"\xff", b"\xfe", parties=2)])
    assert info is not None
    assert (len(info.arrived), info.missing) == (2, 0)


# Arriving -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "missing", "asked"),
    [
        ([[arrived(1)] * 3], 2, ["latch_arrive"]),
        ([[arrived(3)] * 3], 0, ["latch_arrive"]),
        ([[arrived(7), arrived(1), arrived(1)]], 0, ["latch_arrive"]),
        (
            [[arrived(2), arrived(2), arrived(1)], [seen(b"a", b"b"), seen(b"b", b"c"), SILENT]],
            0,
            ["latch_arrive", b""],
        ),
        ([[arrived(2), arrived(2), SILENT], [seen(b"a", b"b"), SILENT, SILENT]], 1, ["latch_arrive", b""]),
        ([[VOID, arrived(1), arrived(1)], [arrived(1)] * 3], 2, ["latch_arrive"] * 2),
    ],
)
def test_an_arrival_says_how_many_are_missing_at_most(rounds: list[Any], missing: int, asked: list[Any]) -> None:
    driver = Driver()
    assert driver.run(arrive(spec_for(), b"x", driver.clock), *rounds) == missing
    assert driver.asked == asked


@pytest.mark.parametrize(
    ("replies", "failures"),
    [([arrived(3), SILENT, SILENT], 2), ([SILENT] * 3, 3), ([VOID, VOID, arrived(1)], 2)],
)
def test_an_arrival_that_no_quorum_has_noted_is_uncertain(replies: list[Any], failures: int) -> None:
    driver = Driver()
    rounds = [replies] * (1 + (VOID in replies))
    outcome = driver.run(arrive(spec_for(), b"x", driver.clock), *rounds)
    assert isinstance(outcome, NoQuorum)
    assert (len(outcome.failures), outcome.answered) == (failures, 3 - failures)


@pytest.mark.parametrize("others", [[arrived(1)] * 2, [SILENT] * 2])
def test_an_arrival_where_others_want_another_number_is_an_error(others: list[Any]) -> None:
    driver = Driver()
    with pytest.raises(ConfigurationError, match="for 5 parties"):
        driver.run(arrive(spec_for(), b"x", driver.clock), [[b"differs", 1, 5], *others])


# Waiting --------------------------------------------------------------------------------------------------------------

CLOSED, OPEN = [seen(b"a")] * 3, [seen(b"a", b"b", b"c")] * 3


def play(until: float, *answers: Sequence[Any], takes: float = 0.0, masters: int = 3) -> tuple[Any, list[Any]]:
    driver = Driver()
    flow = wait(spec_for(masters), WAITER, until, driver.clock, lambda: 0.0)
    return driver.run(flow, *answers, takes=takes), driver.asked


def test_an_open_latch_is_passed_with_one_look() -> None:
    assert play(100.0, OPEN) == (0, [NOBODY])
    assert play(0.0, OPEN) == (0, [NOBODY])


def test_a_wait_listens_before_it_looks_as_a_waiter_and_sleeps() -> None:
    assert play(100.0, CLOSED, CLOSED, CLOSED, OPEN) == (0, [NOBODY, "listen", WAITER, 2.5, WAITER, 2.5, WAITER])


def test_an_arrival_between_two_looks_is_noticed_before_the_sleep() -> None:
    assert play(100.0, CLOSED, OPEN) == (0, [NOBODY, "listen", WAITER])


def test_a_wait_without_time_looks_once_and_leaves_no_waiter() -> None:
    assert play(0.0, CLOSED) == (2, [NOBODY])


def test_the_last_look_comes_with_the_timeout_and_leaves_no_waiter() -> None:
    assert play(3.0, *[CLOSED] * 4) == (2, [NOBODY, "listen", WAITER, 2.5, WAITER, 0.5, NOBODY])


def test_a_minority_that_knows_enough_opens_the_latch() -> None:
    few = [OPEN[0], SILENT, SILENT]
    assert play(100.0, few)[0] == 0
    assert play(0.0, few)[0] == 0


def test_a_minority_says_nothing_about_a_closed_latch() -> None:
    few = [seen(b"a"), DOWN, SILENT]
    assert isinstance(play(0.0, few)[0], NoQuorum)
    outcome, asked = play(100.0, few, few, OPEN)
    assert outcome == 0
    assert asked[:3] == [NOBODY, "listen", WAITER]


def test_a_wait_ends_when_its_patience_is_over() -> None:
    driver = Driver()
    flow = wait(spec_for(), WAITER, 1e9, driver.clock, lambda: 0.0)
    driver.endless = [seen(b"a"), SILENT, SILENT]
    assert isinstance(driver.run(flow, takes=NODE_TIMEOUT), NoQuorum)
    assert PATIENCE <= driver.now - NODE_TIMEOUT < PATIENCE + 2 * NODE_TIMEOUT


def test_an_answer_of_a_quorum_begins_the_patience_anew() -> None:
    few: list[Any] = [seen(b"a"), SILENT, SILENT]
    rounds: list[Any] = []
    for _ in range(20):
        rounds += [few, *[CLOSED] * 4]
    assert play(1e9, CLOSED, *rounds, OPEN)[0] == 0


def test_no_patience_helps_where_a_right_is_missing() -> None:
    outcome, asked = play(1e9, [DENIED, DENIED, seen()])
    assert isinstance(outcome, NoQuorum)
    assert outcome.permanent
    assert asked == [NOBODY]


def test_a_lone_master_names_nobody_to_its_waiters() -> None:
    """The count of a lone master says it all."""
    driver = Driver()
    flow = wait(spec_for(1), WAITER, 100.0, driver.clock, lambda: 0.0)
    assert driver.run(flow, [seen()], [seen(count=2)], [seen(count=3)]) == 0


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a", 0), ConfigurationError),
        (("a", -1), ConfigurationError),
        (("a", 1001), ConfigurationError),
        (("a", 2.0), TypeError),
        (("a", True), TypeError),
        (("a", "2"), TypeError),
        (("a", None), TypeError),
        ((1, 2), TypeError),
        (("", 2), ConfigurationError),
        (("\ud800", 2), ConfigurationError),
        (("a", 2, 0.0), ConfigurationError),
        (("a", 2, 0.049), ConfigurationError),
        (("a", 2, float("nan")), ConfigurationError),
        (("a", 2, float("inf")), ConfigurationError),
        (("a", 2, 4e8), ConfigurationError),
        (("a", 2, None), TypeError),
        (("a", 2, "60"), TypeError),
    ],
    ids=repr,
)
def test_what_can_not_work_is_refused_when_the_latch_is_made(arguments: Any, error: type[Exception]) -> None:
    with Client("redis://127.0.0.1:1") as client, pytest.raises(error):
        client.latch(*arguments)


def test_a_latch_shows_what_it_is_without_asking() -> None:
    with Client("redis://127.0.0.1:1") as client:
        latch = client.latch("a", 3, ttl=60)
        assert (latch.name, latch.parties) == ("a", 3)
        assert "relock.latch.Latch object name='a' parties=3" in repr(latch)
