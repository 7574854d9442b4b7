"""Slots of a semaphore: which one an attempt asks for, which one a permit has, and what a caller says of its wish."""

from typing import Any

import pytest
from attrs import Factory, define

from relock._core.effects import Answer, Ask, Effect, Failure, Park
from relock._core.hold import Hold
from relock._core.lock_spec import ANY_SLOT, CallTemplates, LockSpec, Wish
from relock._core.quorum import NEVER, Grant, Outcome, Refused
from relock._core.slots import free_slots, slot_of
from relock._core.waiting import SLOTS_TRIED_MAX, Wait, ask_until_granted, first_value
from relock._keys import permit_keys
from relock._options import ClientOptions
from relock._owner import Owner, PermitKey, handed_slot

SILENT, DOWN = Failure("c", "silent"), Failure("c", "down", sent=False)
FOREVER = float("inf")
REQUESTS = "permit_acquire", "permit_enqueue"


def spec(masters: int, permits: int = 1, limit: int = 8, **options: Any) -> LockSpec:
    """Return the spec of a wish for so many permits."""
    client = ClientOptions(restart_guard=30.0 if masters > 1 else 0.0, **options)
    keys = permit_keys("lock", "a")
    return LockSpec.of(keys, tuple("abcde"[:masters]), client.for_lock(), client, Wish(permits, limit))


def refused(free: str, ahead: int = 0) -> list[Any]:
    return [b"refused", 0, 5_000, ahead, b"you:1#1/8", free.encode()]


def queued(free: str, ahead: int = 0, ticket: int = 7) -> list[Any]:
    return [b"queued", 0, 5_000, ahead, b"you:1#1/8", ticket, free.encode()]


def granted(slot: int) -> list[Any]:
    return [b"granted", 0, 100, slot]


# Free slots, and the slot of a permit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replies", "free"),
    [
        ([refused("0 2"), refused("2 3"), refused("3")], [2, 3]),
        ([refused("1"), queued("1"), SILENT], [1]),
        ([refused("1"), SILENT, DOWN], []),
        ([refused("1"), granted(1), granted(1)], []),
        ([refused(""), refused("0"), refused("")], []),
        ([[b"proposed", 0, 0, 0, b"", 7, b"5"], queued("5"), [b"void", 0]], [5]),
        ([[b"no_vote", 0, 1000], refused("10 1"), refused("10")], [10]),
    ],
    ids=str,
)
def test_a_slot_is_free_where_a_quorum_says_so(replies: list[Any], free: list[int]) -> None:
    assert sorted(free_slots([(reply,) for reply in replies], 2)) == free


def test_the_slot_of_a_permit_is_that_of_its_grants() -> None:
    assert slot_of(b"me:1#1/8", [(SILENT,), (granted(5),), (granted(5),)]) == 5
    assert slot_of(b"me:1#1/8~2.77", [(granted(0),)]) == 0, "the name of an attempt ends with a ticket"
    assert slot_of(b"me:1#3/8", [(granted(-1),)]) == -1


def test_the_slot_of_a_permit_that_a_releaser_gave_is_in_its_name() -> None:
    """The message of such a grant has no slot."""
    assert slot_of(b"me:1#1/8@3000~ab.7.11", [([b"granted", 0, 100],), (SILENT,)]) == 11


@pytest.mark.parametrize(
    "name", [b"me:1#1/8", b"me:1#1/8~3", b"me:1#1/8~3.77", b"me.2:1.5.6#1/8@3000", b"me:1@3000~ab.7"]
)
def test_other_names_have_no_slot(name: bytes) -> None:
    assert handed_slot(name) is None


def hold(of: LockSpec, owner: bytes, answers: list[Answer], count: int = 1) -> Hold:
    ends = [9.0 if isinstance(answer[0], list) else NEVER for answer in answers]
    return Hold(of, owner, Owner(PermitKey(1, None), None, None), Grant(7, 9.0, ends, True, answers), count)


def test_masters_keep_the_slot_of_a_permit_and_not_its_count() -> None:
    """Healing writes this number to a master that forgot the permit."""
    three = spec(3)
    assert hold(three, b"me:1#1/8~1", [(SILENT,), (granted(4),), (granted(4),)]).kept == 4
    assert hold(three, b"me:1#1/8@3000~ab.7.2", [([b"granted", 0, 7],)] * 3).kept == 2
    assert hold(spec(1, permits=3), b"me:1#3/8", [(granted(-1),)]).kept == -1


# Wishes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "options", "mark", "grant_mark"),
    [
        ((1, 8), {}, b"#1/8", b"#1/8@3000"),
        ((3, 8), {}, b"#3/8", b"#3/8"),
        ((1, 1000), {"handoff": "wake"}, b"#1/1000", b"#1/1000"),
        ((1, 8), {"min_replicas": 1}, b"#1/8", b"#1/8"),
    ],
    ids=str,
)
def test_a_waiter_s_name_says_what_it_wants(
    wish: tuple[int, int], options: dict[str, Any], mark: bytes, grant_mark: bytes
) -> None:
    """A releaser's grant is for a waiter that wants one permit."""
    templates = spec(1, *wish, **options).templates
    assert (templates.mark, templates.grant_mark) == (mark, grant_mark)


def test_the_requests_of_a_semaphore_are_its_own_scripts_and_ask_for_any_slot() -> None:
    templates: CallTemplates = spec(1).templates
    asked = (templates.taking, templates.acquire, templates.enqueue, templates.release, templates.extend)
    names = [one.script.name for one in asked]
    assert names == ["permit_acquire", "permit_acquire", "permit_enqueue", "permit_release", "permit_extend"]
    assert (templates.kept, templates.usual) == ("slot", ANY_SLOT)


def test_wishes_that_differ_do_not_share_what_they_say() -> None:
    assert spec(1).templates is spec(1).templates
    wishes = [(1, 8), (2, 8), (1, 9)]
    assert [spec(1, permits, limit).templates.mark for permits, limit in wishes] == [b"#1/8", b"#2/8", b"#1/9"]


def test_a_request_names_a_slot_with_several_masters_only() -> None:
    assert spec(1).slots is None
    assert spec(3).slots == 8


def _never_asked() -> float:
    raise AssertionError("a lock draws no random number: its runs in the simulator stay the same")


def test_the_first_slot_is_left_to_chance_and_below_the_limit() -> None:
    assert first_value(spec(1), _never_asked) == ANY_SLOT
    chances = iter((0.0, 0.124, 0.126, 0.999, 1.0))
    assert [first_value(spec(3), lambda: next(chances)) for _ in range(5)] == [0, 0, 1, 7, 7]
    assert first_value(spec(3, limit=1), lambda: 1.0) == 0


# Other slots ----------------------------------------------------------------------------------------------------------


@define
class Driver:
    """Three masters that answer each `Ask` from a script; a park ends at once.

    Attributes:
        now: the time (s).
        seconds: how long a request takes.
    """

    answers: list[list[Any]]
    until: float = FOREVER
    value: int = 0
    effects: list[Effect] = Factory(list)
    now: float = 1000.0
    seconds: float = 0.0

    def run(self) -> Outcome:
        of = spec(3)
        wait = Wait(of, b"me:1#1/8", self.value, self.until, lambda: self.now, lambda: 0.999, [b"me:1#1/8"])
        flow = ask_until_granted(wait)
        try:
            effect = flow.send(None)
            while True:
                effect = flow.send(self._carry_out(effect))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _carry_out(self, effect: Effect) -> Any:
        self.effects.append(effect)
        if not isinstance(effect, Ask):
            return () if isinstance(effect, Park) else True
        self.now += self.seconds
        if self.name(effect) in REQUESTS:
            return [[answer] for answer in self.answers.pop(0)]
        return [[[b"left", 0]]] * 3

    @staticmethod
    def name(ask: Ask) -> str:
        return ask.calls[0].script.name

    @property
    def asked(self) -> list[int]:
        """Return the slot that each request for a permit asks for."""
        asks = [effect for effect in self.effects if isinstance(effect, Ask)]
        return [int(ask.calls[0].own.split(b"\r\n")[3]) for ask in asks if self.name(ask) in REQUESTS]

    @property
    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects]


def test_another_slot_is_tried_at_once_where_only_the_guess_was_taken() -> None:
    driver = Driver([[refused("3 5")] * 3, [granted(5)] * 3])
    assert isinstance(driver.run(), Grant)
    assert driver.kinds == ["Ask", "Ask"], "there is no wait between"
    assert driver.asked == [0, 5], "one of those that are free, by chance"


def test_a_caller_without_time_tries_another_slot_as_well() -> None:
    driver = Driver([[refused("3")] * 3, [granted(3)] * 3], until=0.0)
    assert isinstance(driver.run(), Grant)


def test_no_more_slots_are_tried_than_a_bound_before_the_next_sleep() -> None:
    """Each free slot is taken by another caller before the request for it arrives."""
    answers = [[refused(str(number % 7 + 1))] * 3 for number in range(30)]
    driver = Driver(answers, until=0.0)
    assert isinstance(driver.run(), Refused)
    assert len(driver.asked) == 1 + SLOTS_TRIED_MAX


def test_the_bound_holds_anew_after_a_sleep() -> None:
    tries = [[refused(str(number % 7 + 1))] * 3 for number in range(1 + SLOTS_TRIED_MAX)]
    places = [[queued("")] * 3, [queued("")] * 3]  # a ticket is proposed, then written; then the caller sleeps
    again = [[queued(str((number + SLOTS_TRIED_MAX) % 7 + 1))] * 3 for number in range(3)]
    driver = Driver([*tries, *places, *again, [granted(1)] * 3])
    assert isinstance(driver.run(), Grant)
    assert len(driver.asked) == len(tries) + len(places) + len(again) + 1
    assert driver.kinds.count("Park") == 1


def test_no_other_slot_is_tried_where_it_is_another_s_turn() -> None:
    """The own slot is free. The number of those ahead does not say so: it counts dead waiters, too."""
    driver = Driver([[refused("0 3", ahead=1)] * 3], until=0.0)
    assert isinstance(driver.run(), Refused)
    assert len(driver.asked) == 1


@pytest.mark.parametrize("free", ["", "0", "0 0"])
def test_no_other_slot_is_tried_where_none_is_free_or_the_same(free: str) -> None:
    """A slot that a quorum has free, and did not give, is another's turn: a releaser's grant, or a wake-up."""
    driver = Driver([[refused(free)] * 3], until=0.0)
    assert isinstance(driver.run(), Refused)
    assert len(driver.asked) == 1


def test_no_other_slot_is_tried_beyond_the_limit_of_time() -> None:
    """A caller whose timeout is over may look for one node timeout more, and no longer."""
    node_timeout = spec(3).node_timeout
    answers = [[refused(str(number % 7 + 1))] * 3 for number in range(30)]
    driver = Driver(answers, until=0.0, seconds=0.4 * node_timeout)
    end = driver.now + node_timeout
    assert isinstance(driver.run(), Refused)
    assert len(driver.asked) == 3
    assert driver.now >= end


def test_a_lone_master_is_asked_for_any_slot_and_never_again_at_once() -> None:
    of = spec(1)
    wait = Wait(of, b"me:1#1/8", first_value(of, lambda: 0.5), 0.0, lambda: 1000.0, lambda: 0.5, [b"me:1#1/8"])
    flow = ask_until_granted(wait)
    effect = flow.send(None)
    assert isinstance(effect, Ask)
    with pytest.raises(StopIteration) as end:
        flow.send([[refused("")]])
    assert isinstance(end.value.value, Refused)
