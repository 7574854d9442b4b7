"""Validity: until when a hold counts, against masters with clocks of their own, and the arithmetic by itself."""

import heapq
import itertools
import re
from collections.abc import Callable, Generator
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from relock._core.effects import Answer, Ask, Effect, Failure, Reply
from relock._core.flows.attempt import attempt, take_call
from relock._core.flows.extend import extend, heal, needs_healing
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import (
    NEVER,
    Grant,
    deadline_of,
    is_attempt_certain,
    is_release_certain,
    judge,
    quorum_of,
)
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner
from relock._scripts import Call

TTL = 9.0
NODE_TIMEOUT = 1.0
DRIFT_FACTOR = 0.01
TINY = 1e-6  # of floating point; seconds
OPTIONS = ClientOptions(ttl=TTL, node_timeout=NODE_TIMEOUT, drift_factor=DRIFT_FACTOR)
MASTERS = st.sampled_from([1, 2, 3, 4, 5])


def spec_of(masters: int) -> LockSpec:
    addresses = tuple(f"master-{number}" for number in range(masters))
    return LockSpec.of(lock_keys("lock", "a"), addresses, OPTIONS.for_lock(), OPTIONS)


# The q-th largest ----------------------------------------------------------------------------------------------------

ENDS = st.lists(st.one_of(st.floats(0, 1e6), st.just(NEVER)), min_size=1, max_size=7)


@given(ENDS)
def test_the_deadline_is_the_qth_largest_lease_end(ends: list[float]) -> None:
    """A quorum of leases lasts until the deadline, and until no later moment."""
    quorum = quorum_of(len(ends))
    deadline = deadline_of(ends, quorum)
    assert deadline in ends
    assert sum(end >= deadline for end in ends) >= quorum
    assert sum(end > deadline for end in ends) < quorum


@given(ENDS)
def test_masters_that_have_the_hold_before_the_deadline_leave_no_quorum_to_another(ends: list[float]) -> None:
    """Masters whose leases have ended before the deadline are too few to grant the lock to another owner."""
    quorum = quorum_of(len(ends))
    deadline = deadline_of(ends, quorum)
    if deadline != NEVER:
        free = sum(end < deadline for end in ends)
        assert free <= len(ends) - quorum
        assert free < quorum


SAYS = st.sampled_from(["extended", "absent", "silent", "void"])
ROUNDS = st.lists(st.tuples(st.floats(0.01, 4.0), st.floats(0.0, 1.0), st.lists(SAYS, min_size=7, max_size=7)))


@given(MASTERS, ROUNDS)
def test_partial_renewals_move_the_deadline_to_the_qth_largest_of_the_latest_ends(
    masters: int, rounds: list[tuple[float, float, list[str]]]
) -> None:
    """Deadlines after partial renewals are the q-th largest of the masters' latest ends, and are never passed."""
    spec = spec_of(masters)
    granted: list[Answer] = [[[b"granted", 0, 7]]] * masters
    first = spec.validity
    one = Hold(spec, b"me:1", Owner(1, None, None), Grant(7, first, [first] * masters, True, granted), 1)
    said = [first] * masters
    now = 0.0
    for pause, trip, words in rounds:
        sent_at = now + pause
        now = sent_at + trip
        end = sent_at + spec.validity
        was = deadline_of(said, one.quorum)
        answers = [reply_of(word) for word in words[:masters]]
        confirmed = one.count_renewal(answers, sent_at, end, now)
        in_time = now < was
        said = [NEVER if word == "absent" else before for word, before in zip(words, said, strict=False)]
        if in_time:
            said = [end if word == "extended" else before for word, before in zip(words, said, strict=False)]
        assert one.lease_ends == said
        assert one.deadline == deadline_of(said, one.quorum)
        assert one.remaining(now) == max(0.0, one.deadline - now)
        assert confirmed == (in_time and words[:masters].count("extended") >= one.quorum)
        if now >= was:
            assert one.deadline <= was, "an ended hold is never revived"
            break


def reply_of(word: str) -> Reply | Failure:
    if word == "silent":
        return Failure("x", "silent")
    reply: Reply = [word.encode(), 0]
    return reply


# Certain outcomes ----------------------------------------------------------------------------------------------------

GRANTED: Reply = [b"granted", 10, 100]
REFUSED: Reply = [b"refused", 10, 5_000, 2, b"you:1"]
NO_VOTE: Reply = [b"no_vote", 0, 1_000_000]
SILENT = Failure("x", "silent")
DOWN = Failure("x", "refused", sent=False)
AWAITED = Failure("x", "not yet", awaited=True)
ANSWERS = st.sampled_from([GRANTED, REFUSED, NO_VOTE, SILENT, DOWN, AWAITED])
MIXES = st.sampled_from([1, 3, 5]).flatmap(lambda n: st.lists(ANSWERS, min_size=n, max_size=n))


def kinds_of(answers: list[Any]) -> set[str]:
    """Return the outcomes that an attempt can still have, whatever the missing answers are."""
    awaited = sum(answer is AWAITED for answer in answers)
    kinds = set()
    for said in itertools.product([GRANTED, REFUSED, NO_VOTE, SILENT], repeat=awaited):
        late: Any = iter(said)
        filled: list[Answer] = [[next(late) if answer is AWAITED else answer] for answer in answers]
        kinds.add(type(judge(filled, ["x"] * len(answers), end=5.0, now=1.0)).__name__)
    return kinds


@given(MIXES)
def test_an_attempt_is_certain_only_when_no_master_can_change_its_outcome(answers: list[Any]) -> None:
    """No attempt ends while a master that has not answered could change its outcome."""
    if is_attempt_certain([[answer] for answer in answers]):
        assert len(kinds_of(answers)) == 1


@given(MIXES)
def test_an_attempt_is_certain_as_soon_as_no_master_can_change_its_outcome(answers: list[Any]) -> None:
    """Attempts end when their outcome is certain; only an error waits, so that it names the masters that failed."""
    if AWAITED in answers and kinds_of(answers) in ({"Granted"}, {"Refused"}):
        assert is_attempt_certain([[answer] for answer in answers])


@given(st.sampled_from([1, 3, 5]).flatmap(lambda n: st.lists(st.sampled_from("rax"), min_size=n, max_size=n)))
def test_a_release_is_certain_with_a_quorum_that_says_the_same(said: list[str]) -> None:
    """A release waits until a quorum has released the hold, or a quorum has nothing to release."""
    replies: dict[str, Reply | Failure] = {"r": [b"released", 0], "a": [b"absent", 0], "x": AWAITED}
    quorum = quorum_of(len(said))
    same = said.count("r") >= quorum or said.count("a") >= quorum
    assert is_release_certain([[replies[word]] for word in said]) == same


# Masters with clocks of their own ------------------------------------------------------------------------------------


def words_of(packed: bytes) -> list[bytes]:
    return [match.group(1) for match in re.finditer(rb"\$\d+\r\n([^\r]*)\r\n", packed)]


@define
class VirtualMaster:
    """Master with the scripts' effects on one lock, on a clock that runs at a rate of its own in whole milliseconds."""

    rate: float
    ahead: float
    owner: bytes = b""
    until_ms: int = 0
    no_vote_until: float = NEVER  # on the client's clock

    def ms(self, now: float) -> int:
        return int((self.ahead + self.rate * now) * 1000)

    def has(self, owner: bytes, now: float) -> bool:
        return self.owner == owner and self.ms(now) < self.until_ms

    def free_from(self) -> float:
        """Return the earliest moment, on the client's clock, at which the master could vote for another owner."""
        lease_end = (self.until_ms / 1000 - self.ahead) / self.rate if self.owner else NEVER
        return max(lease_end, self.no_vote_until)

    def run(self, call: Call, not_after: float, now: float) -> Reply:
        owner, *rest = words_of(call.own)
        clock_us = self.ms(now) * 1000
        if now > not_after:
            return [b"void", clock_us]
        if call.script.name == "extend":
            if not self.has(owner, now):
                return [b"absent", clock_us]
            return self._lease(owner, int(rest[0]), now, b"extended")
        if call.script.name == "fence":
            return [b"fenced", clock_us]
        if now < self.no_vote_until:
            return [b"no_vote", clock_us, clock_us + int((self.no_vote_until - now) * 1e6)]
        return self._lease(owner, int(rest[1]), now, b"granted" if call.script.name == "acquire" else b"healed")

    def _lease(self, owner: bytes, lease_ms: int, now: float, status: bytes) -> Reply:
        left = self.until_ms if self.has(owner, now) else 0
        self.owner, self.until_ms = owner, max(left, self.ms(now) + lease_ms)
        clock_us = self.ms(now) * 1000
        return [status, clock_us, clock_us]

    def forget(self, now: float, guard: float) -> None:
        """Restart the master empty, without a vote for `guard` seconds."""
        self.owner, self.no_vote_until = b"", now + guard


@define
class World:
    """A driver over virtual masters: each message arrives at its time, which may be much later."""

    masters: list[VirtualMaster]
    trips: Callable[[], tuple[float, float]]  # of a request, and of its reply; infinity: it is lost
    now: float = 0.0
    _coming: list[tuple[float, int, Callable[[], None]]] = field(factory=list)
    _order: Any = field(factory=itertools.count)

    def at(self, moment: float, act: Callable[[], None]) -> None:
        if moment != float("inf"):
            heapq.heappush(self._coming, (moment, next(self._order), act))

    def run_until(self, moment: float, is_over: Callable[[], bool] = lambda: False) -> None:
        while not is_over() and self._coming and self._coming[0][0] <= moment:
            self.now, _, act = heapq.heappop(self._coming)
            act()
        if not is_over():
            self.now = max(self.now, moment)

    def carry_out(self, flow: Generator[Effect, Any, Any]) -> Any:
        answers: list[Answer] | None = None
        try:
            while True:
                ask = flow.send(answers)
                assert isinstance(ask, Ask)
                answers = self._ask(ask)
        except StopIteration as end:
            return end.value

    def _ask(self, ask: Ask) -> list[Answer]:
        silence = (Failure("x", "silent", awaited=True),) * len(ask.calls)
        answers: list[Answer] = [silence] * len(self.masters)
        asked = range(len(self.masters)) if ask.only is None else sorted(ask.only)
        missing = set(asked)

        def arrive(index: int, back: float) -> None:
            replies = [self.masters[index].run(call, ask.until, self.now) for call in ask.calls]

            def answer() -> None:
                answers[index] = replies
                missing.discard(index)

            self.at(self.now + back, answer)

        for index in asked:
            there, back = self.trips()
            self.at(self.now + there, lambda index=index, back=back: arrive(index, back))  # type: ignore[misc]
        certain = ask.is_certain or (lambda _: False)
        self.run_until(ask.until, lambda: not missing or certain(answers))
        return answers

    def free_for_another(self) -> float:
        """Return the moment from which a quorum could vote for another owner, if no client renews any more."""
        moments = sorted(master.free_from() for master in self.masters)
        return moments[quorum_of(len(moments)) - 1]


RATES = st.floats(1.0 - DRIFT_FACTOR / 2, 1.0 + DRIFT_FACTOR)  # of a master's clock, against the client's
TRIPS = st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 2.5), st.just(float("inf")))
STEPS = st.sampled_from(["renew", "renew", "wait", "longer", "forget"])


@pytest.mark.parametrize("masters", [1, 3, 5])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_hold_never_counts_for_longer_than_a_quorum_keeps_it(masters: int, data: st.DataObject) -> None:
    """Holds exclude others until the moment that `remaining` names, even if messages are slow, lost or late."""
    spec = spec_of(masters)
    quick = st.floats(0.0, 0.1)

    def trips() -> tuple[float, float]:
        if data.draw(st.integers(0, 3)):
            return data.draw(quick), data.draw(quick)
        return data.draw(TRIPS), data.draw(TRIPS)

    world = World([VirtualMaster(data.draw(RATES), data.draw(st.floats(0.0, 2 * TTL))) for _ in range(masters)], trips)

    def clock() -> float:
        return world.now

    outcome, *_ = world.carry_out(attempt(spec, take_call(spec, b"me:1", 1, 0), clock, 1e9))
    if not isinstance(outcome, Grant):
        return
    one = Hold(spec, b"me:1", Owner(1, None, None), outcome, 1)
    ttl = TTL
    for _ in range(data.draw(st.integers(1, 8))):
        if one.remaining(world.now) > 0:
            assert world.now + one.remaining(world.now) <= world.free_for_another() + TINY
        step = data.draw(STEPS)
        if step == "wait":
            world.run_until(world.now + data.draw(st.floats(0.0, 0.7 * TTL)))
        elif step == "forget":
            data.draw(st.sampled_from(world.masters)).forget(world.now, 1.02 * max(ttl, 2 * TTL))
        else:
            if step == "longer":
                ttl = one.ttl = 2 * TTL
            answers = world.carry_out(extend((one,), clock, NODE_TIMEOUT))[0]
            if needs_healing(one, answers):
                world.carry_out(heal((one,), lambda _: True, clock, NODE_TIMEOUT))
        if world.now >= one.deadline:
            return
    assert world.now + one.remaining(world.now) <= world.free_for_another() + TINY
