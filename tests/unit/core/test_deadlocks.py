"""Deadlocks within a client: edges, rings, victims, and what becomes of them; played without masters."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from support.pure_host import JOB, OPTIONS, PureHost

from relock import Deadlocked, DeadlockError, LossCode, NotGranted
from relock._core import conditions
from relock._core.call_record import CallFlow, CallRecord, Step
from relock._core.deadlocks import (
    RING_MAX,
    Edge,
    Ring,
    check_ring,
    cycle_of,
    deadlock_error,
    end_ring,
    find_ring,
    own_edges,
    victim_of,
)
from relock._core.effects import Listen
from relock._core.hold import FOREVER, Hold
from relock._core.lock_spec import LockSpec, Wish
from relock._core.quorum import Grant
from relock._keys import permit_keys
from relock._owner import Owner, TaskRef, as_reader, owner_of_permit

AFTER = 2.5  # seconds: `deadlock_after`
ONE, OTHER, THIRD = (Owner(serial, None, None) for serial in range(3))

# Rings ----------------------------------------------------------------------------------------------------------------


def edge(
    hold: str, lock: str, order: int = 0, *, waiter: str = "", is_sure: bool = True, may_raise: bool = True
) -> Edge:
    """Return the edge of an owner that has `hold` and waits for `lock`."""
    return Edge(hold.encode(), (waiter or f"w:{hold}").encode(), lock, order, is_sure, may_raise)


def found(edges: Sequence[Edge], waiter: str, **holders: str) -> list[str] | None:
    """Return the holds of the ring through the wait; `holders` names the holds of each lock."""
    ring = find_ring(
        {one.hold: one for one in edges},
        {lock: [hold.encode() for hold in holds.split()] for lock, holds in holders.items()},
        waiter.encode(),
    )
    return None if ring is None else [one.hold.decode() for one in ring]


def test_a_chain_is_no_ring() -> None:
    """The last caller of the chain has a lock, and does not wait."""
    edges = [edge("a", "B"), edge("b", "C")]
    for waiter in ("w:a", "w:b", "w:c"):
        assert found(edges, waiter, A="a", B="b", C="c") is None


@pytest.mark.parametrize("waiter", ["w:a", "w:nobody"])
def test_a_wait_of_a_caller_that_holds_nothing_is_in_no_ring(waiter: str) -> None:
    assert found([], waiter) is None
    assert found([edge("b", "C"), edge("c", "B")], waiter, B="b", C="c") is None


@pytest.mark.parametrize("length", [2, 3, RING_MAX])
def test_a_ring_is_found_from_each_of_its_waits_and_begins_there(length: int) -> None:
    edges = [edge(f"h{i}", f"L{(i + 1) % length}") for i in range(length)]
    holders = {f"L{i}": f"h{i}" for i in range(length)}
    for first in range(length):
        assert found(edges, f"w:h{first}", **holders) == [f"h{(first + i) % length}" for i in range(length)]


def test_a_ring_that_is_too_long_is_not_found() -> None:
    length = RING_MAX + 1
    edges = [edge(f"h{i}", f"L{(i + 1) % length}") for i in range(length)]
    assert found(edges, "w:h0", **{f"L{i}": f"h{i}" for i in range(length)}) is None


def test_a_ring_that_a_wait_leads_to_is_not_that_waits_own() -> None:
    edges = [edge("a", "B"), edge("b", "C"), edge("c", "B")]
    assert found(edges, "w:a", A="a", B="b", C="c") is None
    assert found(edges, "w:b", A="a", B="b", C="c") == ["b", "c"]


def test_a_ring_of_a_writer_goes_through_any_of_the_readers_it_waits_for() -> None:
    """The first reader does not wait, and the second waits for a lock whose holder does not."""
    edges = [edge("me:w", "Shared"), edge("me:2&", "Other"), edge("me:3&", "W")]
    holders = {"Shared": "me:1& me:2& me:3&", "Other": "me:o", "W": "me:w"}
    assert found(edges, "w:me:w", **holders) == ["me:w", "me:3&"]
    assert found(edges, "w:me:3&", **holders) == ["me:3&", "me:w"]
    assert found(edges, "w:me:2&", **holders) is None


def test_a_reader_waits_for_no_reader() -> None:
    """Readers have the lock together; a reader that waits has a writer before it."""
    as_readers = [edge("a", "B", waiter="me:1&"), edge("me:b&", "A")]
    assert found(as_readers, "me:1&", A="a", B="me:b&") is None
    assert found(as_readers, "w:me:b&", A="a", B="me:b&") is None
    as_writer = [edge("a", "B", waiter="me:1"), edge("me:b&", "A")]
    assert found(as_writer, "me:1", A="a", B="me:b&") == ["a", "me:b&"]
    of_writer = [edge("a", "B", waiter="me:1&"), edge("b", "A")]
    assert found(of_writer, "me:1&", A="a", B="b") == ["a", "b"], "a reader waits for a writer"


def test_a_short_ring_is_found_among_many_readers() -> None:
    readers = [f"me:{i}&" for i in range(100)]
    edges = [edge("me:w", "Shared"), edge(readers[-1], "W")]
    assert found(edges, "w:me:w", Shared=" ".join(readers), W="me:w") == ["me:w", readers[-1]]
    assert found(edges, f"w:{readers[-1]}", Shared=" ".join(readers), W="me:w") == [readers[-1], "me:w"]


def test_a_ring_goes_through_the_hold_that_is_waited_for_of_those_that_an_owner_has() -> None:
    edges = [edge(hold, "C", waiter="one") for hold in ("a1", "a2", "a3")]
    edges += [edge(hold, "A2", waiter="other") for hold in ("c1", "c")]
    holders = {"A1": "a1", "A2": "a2", "A3": "a3", "C1": "c1", "C": "c"}
    assert found(edges, "one", **holders) == ["a2", "c"]
    assert found(edges, "other", **holders) == ["c", "a2"]


# Victims --------------------------------------------------------------------------------------------------------------


def victim(*edges: Edge) -> str | None:
    """Return the hold of the victim's edge."""
    chosen = victim_of(edges)
    return None if chosen is None else chosen.hold.decode()


def test_the_victim_is_the_wait_that_began_last() -> None:
    assert victim(edge("a", "B", 7), edge("b", "C", 9), edge("c", "A", 8)) == "b"


def test_of_waits_that_began_together_each_client_chooses_the_same() -> None:
    edges = [edge("a", "B", 7, waiter="me:1"), edge("b", "C", 7, waiter="me:3"), edge("c", "A", 7, waiter="me:2")]
    for turn in range(3):
        assert victim(*edges[turn:], *edges[:turn]) == "b"


def test_a_wait_that_only_reports_is_no_victim() -> None:
    assert victim(edge("a", "B", 1), edge("b", "A", 2, may_raise=False)) == "a"
    assert victim(edge("a", "B", 1, may_raise=False), edge("b", "A", 2, may_raise=False)) is None


@pytest.mark.parametrize("unsure", [0, 1])
def test_a_ring_that_another_caller_may_break_has_no_victim(unsure: int) -> None:
    edges = [edge("a", "B", 1, is_sure=unsure != 0), edge("b", "A", 2, is_sure=unsure != 1)]
    assert victim(*edges) is None


# A client's own edges -------------------------------------------------------------------------------------------------


class Deadlocks(PureHost):
    """Host of the locks x, y and z, in which callers hold and wait.

    Attributes:
        woken: the waiters that were woken.
        begun: the calls that are about to wait.
    """

    def __init__(self) -> None:
        super().__init__(names="xyz")
        self.deadlock_after = AFTER
        self.begun: list[CallFlow[Any]] = []
        self.woken: list[bytes] = []

    def look_again(self, owner: bytes) -> None:
        self.woken.append(owner)

    @property
    def failed(self) -> list[tuple[bytes, DeadlockError]]:
        """The waiters that get an error, and the errors; each was woken, so that it looks."""
        failed = [(record.owners[0], record.error) for record in self.waits if record.error is not None]
        assert self.woken == [owner for owner, _ in failed]
        return failed


def spec_of(host: PureHost, name: str, deadlock: Any = "raise") -> LockSpec:
    (spec,) = host.only(name).members
    return evolve(spec, options=evolve(spec.options, deadlock=deadlock))


def hold(host: PureHost, name: str, who: Owner, spec: LockSpec | None = None) -> Hold:
    """Give the owner a hold."""
    owner = next(host.names) + (b"&" if as_reader(who) is who else b"")
    end = host.now + 30.0
    made = Hold(spec or spec_of(host, name), owner, who, Grant(1, end, [end], True, [([b"granted", 1, 1],)]), 1)
    host.holds[name, who.key] = made
    return made


def wait(
    host: PureHost, name: str, who: Owner, *, timeout: float = FOREVER, deadlock: Any = "raise", task: Any = None
) -> CallRecord:
    """Let the owner wait for a lock."""
    record = CallRecord()
    record.spec, record.owners, record.task = spec_of(host, name, deadlock), [next(host.names)], task
    host.waits[record] = who, host.now, host.now + timeout
    return record


def test_each_hold_of_an_owner_that_waits_makes_an_edge() -> None:
    host = Deadlocks()
    x, y, _ = hold(host, "x", ONE), hold(host, "y", ONE), hold(host, "z", OTHER)
    assert own_edges(host) == {}, "nobody waits"
    waits = wait(host, "z", ONE)
    (waiter,) = waits.owners
    expected = Edge(b"", waiter, "z", 0, is_sure=True, may_raise=True, since=host.now)
    assert own_edges(host) == {one.owner: expected._replace(hold=one.owner) for one in (x, y)}
    wait(host, "x", THIRD)
    assert len(own_edges(host)) == 2, "this caller holds nothing"


def test_later_waits_have_larger_numbers() -> None:
    host = Deadlocks()
    first, second = hold(host, "x", OTHER).owner, hold(host, "y", ONE).owner
    wait(host, "y", OTHER)
    wait(host, "x", ONE)
    edges = own_edges(host)
    assert edges[first].order < edges[second].order


@pytest.mark.parametrize(("timeout", "counts"), [(0.5, False), (AFTER, False), (AFTER + 0.1, True), (FOREVER, True)])
def test_a_wait_that_ends_soon_by_itself_makes_no_edge(timeout: float, *, counts: bool) -> None:
    host = Deadlocks()
    hold(host, "x", ONE)
    wait(host, "y", ONE, timeout=timeout)
    assert bool(own_edges(host)) == counts


def test_a_long_wait_makes_an_edge_until_its_last_moment() -> None:
    """The caller's whole timeout counts, and not the rest of it."""
    host = Deadlocks()
    hold(host, "x", ONE)
    wait(host, "y", ONE, timeout=10.0)
    host.now += 9.9
    assert own_edges(host)
    host.now += 0.1
    assert own_edges(host) == {}, "the call may still be about to leave the queue"


def test_a_wait_that_gets_an_error_already_makes_no_edge() -> None:
    host, _, last = stuck()
    last.error = DeadlockError("no")
    assert [edge.waiter for edge in own_edges(host).values()] != [last.owners[0]]
    assert len(own_edges(host)) == 1


def test_a_wait_that_closes_two_rings_ends_both() -> None:
    """A writer that only reports waits for two readers, each of which waits for one of its locks."""
    host = Deadlocks()
    victims = []
    hold(host, "x", THIRD)
    for reader in (ONE, OTHER):
        hold(host, "y", as_reader(reader))
        victims.append(wait(host, "x", reader))
    check_ring(host, wait(host, "y", THIRD, deadlock="report"))
    assert host.failed == [(one.owners[0], one.error) for one in victims]
    assert all(one.error is not None for one in victims)
    assert host.counters.deadlocks == 2


def test_many_rings_that_are_only_reported_are_reported_once_each() -> None:
    host = Deadlocks()
    hold(host, "x", ONE)
    hold(host, "y", OTHER)
    wait(host, "y", ONE, deadlock="report")
    last = wait(host, "x", OTHER, deadlock="report")
    for _ in range(3):
        check_ring(host, last)
    assert host.counters.deadlocks == 1
    host.waits.clear()
    wait(host, "y", ONE, deadlock="report")
    check_ring(host, wait(host, "x", OTHER, deadlock="report"))
    assert host.counters.deadlocks == 2
    assert len(host.rings) == 1, "the one before has ended"


@pytest.mark.parametrize(("deadlock", "raises"), [("raise", [True]), ("report", [False]), ("ignore", [])])
def test_a_wait_is_in_deadlocks_as_its_lock_says(deadlock: str, raises: list[bool]) -> None:
    host = Deadlocks()
    hold(host, "x", ONE)
    wait(host, "y", ONE, deadlock=deadlock)
    assert [one.may_raise for one in own_edges(host).values()] == raises


def test_a_hold_that_has_ended_makes_no_edge() -> None:
    host = Deadlocks()
    lost, over = hold(host, "x", ONE), hold(host, "y", ONE)
    wait(host, "z", ONE)
    lost.lose(LossCode.EXPIRED, host.now)
    assert [*own_edges(host)] == [over.owner]
    host.now = over.deadline
    assert own_edges(host) == {}


def test_a_wait_that_has_ended_makes_no_edge() -> None:
    host = Deadlocks()
    hold(host, "x", ONE)
    wait(host, "y", ONE).spec = None
    assert own_edges(host) == {}


def test_nobody_waits_for_a_hold_of_its_own() -> None:
    """A condition's wait, and an owner that has the lock as a reader, may leave such a hold in the book."""
    host = Deadlocks()
    hold(host, "x", ONE)
    other = hold(host, "y", ONE)
    wait(host, "x", ONE)
    assert [*own_edges(host)] == [other.owner]


def test_permits_make_no_edges() -> None:
    """Any thread may release a permit, and any permit will do."""
    host = Deadlocks()
    keys, permit = permit_keys("lock", "x"), owner_of_permit(ONE)
    spec = LockSpec.of(keys, ("a",), OPTIONS.for_lock(), OPTIONS, Wish(1, 2))
    hold(host, "x", permit, spec)
    wait(host, "y", ONE)
    assert own_edges(host) == {}
    hold(host, "y", OTHER)
    wait(host, "z", owner_of_permit(OTHER))
    assert own_edges(host) == {}


@pytest.mark.parametrize("waits_as_reader", [False, True])
@pytest.mark.parametrize("holds_as_reader", [False, True])
def test_an_owner_is_the_same_as_reader_and_as_writer(*, holds_as_reader: bool, waits_as_reader: bool) -> None:
    host = Deadlocks()
    held = hold(host, "x", as_reader(ONE) if holds_as_reader else ONE)
    wait(host, "y", as_reader(ONE) if waits_as_reader else ONE)
    assert [*own_edges(host)] == [held.owner]


def test_callers_of_one_named_owner_may_release_while_one_of_them_waits() -> None:
    host = Deadlocks()
    held = hold(host, "x", JOB)
    first = wait(host, "y", JOB)
    wait(host, "z", JOB)
    edge_of = own_edges(host)[held.owner]
    assert not edge_of.is_sure
    assert edge_of.waiter == first.owners[0]


@pytest.mark.parametrize("carried_first", [False, True])
async def test_a_task_is_stuck_if_it_awaits_its_own_call(*, carried_first: bool) -> None:
    """A task that carries out one call of the owner may carry out a release as well."""
    me, another = asyncio.current_task(), asyncio.create_task(asyncio.sleep(0))
    assert me is not None
    who, host = Owner("me", TaskRef(me), None, takes_turns=True), Deadlocks()
    held = hold(host, "x", who)
    carried = wait(host, "y", who, task=another)
    assert not own_edges(host)[held.owner].is_sure
    if not carried_first:
        host.waits.clear()
    own = wait(host, "z", who, task=me)
    if not carried_first:
        host.waits[carried] = who, host.now, FOREVER
    edge_of = own_edges(host)[held.owner]
    assert (edge_of.is_sure, edge_of.waiter) == (True, own.owners[0])
    await another


# The end of a ring ----------------------------------------------------------------------------------------------------


def stuck(**options: Any) -> tuple[Deadlocks, CallRecord, CallRecord]:
    """Return a host with a ring of two, the first wait of which has these options, and both waits."""
    host = Deadlocks()
    hold(host, "x", ONE)
    hold(host, "y", OTHER)
    return host, wait(host, "y", ONE), wait(host, "x", OTHER, **options)


def test_the_last_caller_gets_an_error_and_the_ring_is_reported() -> None:
    host, first, last = stuck()
    with pytest.raises(DeadlockError) as caught:
        check_ring(host, last)
    x, y = host.holds["x", ONE.key], host.holds["y", OTHER.key]
    waits_for_y, waits_for_x = first.owners[0].decode(), last.owners[0].decode()
    cycle = (("x", waits_for_x, x.owner.decode()), ("y", waits_for_y, y.owner.decode()))
    assert (caught.value.lock, caught.value.cycle) == ("x", cycle)
    assert host.events == [Deadlocked("x", cycle, waits_for_x, kind="lock")]
    assert host.counters.deadlocks == 1
    assert host.failed == []


def test_a_ring_is_reported_once_and_ended_whenever_it_is_found() -> None:
    host, first, last = stuck()
    for _ in range(2):
        with pytest.raises(DeadlockError):
            check_ring(host, last)
    check_ring(host, first)
    assert (len(host.events), host.counters.deadlocks) == (1, 1)
    assert [(owner, error.lock) for owner, error in host.failed] == [(last.owners[0], "x")]


def test_another_deadlock_of_the_same_callers_is_reported_anew() -> None:
    host, _, last = stuck()
    with pytest.raises(DeadlockError):
        check_ring(host, last)
    del host.waits[last]
    with pytest.raises(DeadlockError):
        check_ring(host, wait(host, "x", OTHER))
    assert (len(host.events), host.counters.deadlocks) == (2, 2)


def test_a_victim_that_sleeps_is_woken_with_the_error() -> None:
    host, first, last = stuck(deadlock="report")
    check_ring(host, last)
    ((owner, error),) = host.failed
    (event,) = host.events
    assert isinstance(event, Deadlocked)
    assert owner == first.owners[0]
    assert event.victim == owner.decode()
    assert (error.lock, error.cycle) == ("y", event.cycle)


def test_a_ring_that_another_caller_may_break_is_only_reported() -> None:
    host = Deadlocks()
    hold(host, "x", ONE)
    hold(host, "y", JOB)
    wait(host, "y", ONE)
    check_ring(host, wait(host, "x", JOB))
    (event,) = host.events
    assert isinstance(event, Deadlocked)
    assert event.victim is None
    assert (host.counters.deadlocks, host.failed) == (1, [])


@pytest.mark.parametrize("option", [{"timeout": AFTER}, {"deadlock": "ignore"}], ids=str)
def test_a_wait_that_is_part_of_no_deadlock_ends_none(option: dict[str, Any]) -> None:
    host, first, last = stuck(**option)
    check_ring(host, last)
    check_ring(host, first)
    assert (host.events, host.failed, host.counters.deadlocks) == ([], [], 0)


def test_a_ring_without_its_caller_raises_nothing() -> None:
    """A ring that was found for another client has no caller here."""
    host, first, last = stuck()
    edges = own_edges(host)
    ring: Ring = tuple(edges.values())
    end_ring(host, ring)
    assert [owner for owner, _ in host.failed] == [last.owners[0]]
    assert first in host.waits


def test_an_error_says_who_waits_for_whom_and_what_to_do() -> None:
    ring = (edge("me:a", "orders:1", 1), edge("me:b", "orders:2", 2))
    cycle = cycle_of(ring)
    assert cycle == (("orders:1", "w:me:a", "me:b"), ("orders:2", "w:me:b", "me:a"))
    error = deadlock_error(ring[1], cycle)
    assert str(error) == (
        "waiting for 'orders:2' would never end: w:me:a waits for 'orders:1', which me:b has; w:me:b waits for "
        "'orders:2', which me:a has; take these locks together by lock_all, or always in the same order"
    )
    assert (error.lock, error.cycle) == ("orders:2", cycle)


# Calls ----------------------------------------------------------------------------------------------------------------


def stuck_calls() -> Deadlocks:
    """Return a host where one caller has x, another one has y, and neither waits."""
    host = Deadlocks()
    hold(host, "x", ONE)
    hold(host, "y", OTHER)
    host.taken = {"x", "y"}
    return host


def begin(host: Deadlocks, name: str, who: Owner, *, until: float = FOREVER) -> CallRecord:
    """Let the owner ask for a lock that is taken, until it is about to wait; return the call's record."""
    record = CallRecord()
    flow = host.calls.acquire(record, spec_of(host, name), who, until)
    step: Step = next(flow)
    while not isinstance(step, Listen):
        step = flow.send(host.answer(step))
    host.begun.append(flow)
    return record


@pytest.mark.parametrize("in_line", [False, True])
def test_the_call_that_closes_a_ring_raises_before_it_sleeps(*, in_line: bool) -> None:
    """The client itself knows that the lock is held: in line, the call has asked no master yet."""
    host = stuck_calls()
    host.waited_at = host.now if in_line else host.waited_at
    first = begin(host, "y", ONE)
    sent = len(host.sent)
    with pytest.raises(DeadlockError):
        begin(host, "x", OTHER)
    assert next(iter(host.waits)) is first
    assert len(host.sent) - sent == (0 if in_line else 1)
    assert host.parked == []


@pytest.mark.parametrize("in_line", [False, True])
def test_a_wait_is_forgotten_when_the_call_ends(*, in_line: bool) -> None:
    host = stuck_calls()
    host.waited_at = host.now if in_line else host.waited_at
    record = begin(host, "y", ONE)
    assert [*host.waits] == [record]
    host.taken.clear()
    (flow,) = host.begun
    host.do(flow, True)
    assert host.waits == {}
    assert host.holds["y", ONE.key].count == 1


def test_the_wait_of_a_call_that_has_raised_is_forgotten_once_the_call_is_undone() -> None:
    host = stuck_calls()
    begin(host, "y", ONE)
    before, record = [*host.waits], CallRecord()
    with pytest.raises(DeadlockError):
        host.do(host.calls.acquire(record, spec_of(host, "x"), OTHER, FOREVER))
    assert len(host.waits) == 2
    host.interrupted.undo_acquire(record, DeadlockError("", lock="x", cycle=()))
    assert [*host.waits] == before
    told = [event for event in host.events if isinstance(event, NotGranted)]
    assert [(event.lock, event.error) for event in told] == [("x", "DeadlockError")]
    host.interrupted.undo_acquire_again(record)
    assert [event for event in host.events if isinstance(event, NotGranted)] == told


def test_a_call_that_does_not_wait_is_part_of_no_deadlock() -> None:
    host = stuck_calls()
    begin(host, "y", ONE)
    assert host.do(host.calls.acquire(CallRecord(), spec_of(host, "x"), OTHER, host.now))
    assert [(type(event), event.lock) for event in host.events] == [(NotGranted, "x")]
    assert len(host.waits) == 1


def take_again(host: Deadlocks, before: Hold) -> None:
    """Let a condition take the lock of `before` again, until it is about to wait."""
    flow = conditions.take_again(host.calls, CallRecord(), OTHER, before, 1)
    step: Step = next(flow)
    while not isinstance(step, Listen):
        step = flow.send(host.answer(step))
    host.begun.append(flow)


def test_a_condition_that_takes_its_lock_again_gets_no_error() -> None:
    """An error would have to take the lock first. The caller that it waits for gets one."""
    host = stuck_calls()
    before = waited_hold(host, "raise")
    hold(host, "z", ONE)
    first = begin(host, "y", ONE)
    take_again(host, before)
    assert [owner for owner, _ in host.failed] == first.owners


def test_a_condition_of_a_lock_that_ignores_deadlocks_ignores_them() -> None:
    host = stuck_calls()
    before = waited_hold(host, "ignore")
    hold(host, "z", ONE)
    begin(host, "y", ONE)
    take_again(host, before)
    assert (host.events, host.failed) == ([], [])


def waited_hold(host: Deadlocks, deadlock: str) -> Hold:
    """Return a hold of z that its owner has released."""
    before = hold(host, "z", OTHER, spec_of(host, "z", deadlock))
    del host.holds["z", OTHER.key]
    host.taken.add("z")
    return before
