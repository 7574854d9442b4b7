"""The floors of the benchmark are real locks: otherwise a comparison with them would mean nothing."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from bench.handoff.contestants import CONTESTANTS, ONE_HOP, TWO_HOPS, is_floor
from bench.handoff.floors import OneHop, TwoHops
from support.servers import Server
from support.until import until

from relock.cli._bench.crew import Part, Program, play, start
from relock.cli._bench.figures import figures
from relock.cli._bench.work import Job

WITHIN = 30.0


@pytest.fixture
def program() -> Iterator[Program]:
    started = start("bench.handoff.worker")
    yield started
    started.close()


@pytest.mark.every_server
@pytest.mark.parametrize("floor", [ONE_HOP, TWO_HOPS])
def test_workers_of_a_floor_take_turns_one_at_a_time(server: Server, name: str, program: Program, floor: str) -> None:
    job = Job(floor, (server.url,), name, processes=2, threads=2)
    played = play([Part(program, job)], warm_seconds=0.1, seconds=2.0)
    found = figures(played.turns, 4, played.window)
    assert {turn.worker for turn in played.turns} == {0, 1, 2, 3}
    assert found.overlaps == 0
    assert server.cli("EXISTS", name, f"{name}:queue") == 0, "nobody has it, and nobody waits"


@pytest.fixture
def lockers(server: Server, name: str) -> Iterator[Callable[[type[OneHop]], OneHop]]:
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(closing(kind(server.port, name)))


def test_a_release_hands_over_in_the_order_in_which_they_came(
    server: Server, name: str, lockers: Callable[[type[OneHop]], OneHop]
) -> None:
    first, *others = (lockers(OneHop) for _ in range(4))
    first.acquire()
    assert [server.cli("RPUSH", f"{name}:queue", other.me) for other in others] == [1, 2, 3]
    last = first
    for other in others:
        last.release()
        assert server.cli("GET", name) == other.me.encode()
        last = other
    last.release()
    assert server.cli("EXISTS", name) == 0


@pytest.mark.parametrize(("kind", "commands"), [(OneHop, 3), (TwoHops, 4)])
def test_commands_from_the_first_acquire_until_the_next_worker_has_it(
    server: Server, name: str, lockers: Callable[[type[OneHop]], OneHop], kind: type[OneHop], commands: int
) -> None:
    holder, waiter = lockers(kind), lockers(kind)
    before = server.calls().get("evalsha", 0)
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    until(lambda: server.cli("LLEN", f"{name}:queue") == 1, within=WITHIN, what="the other waits")
    holder.release()
    thread.join(WITHIN)
    assert server.cli("GET", name) == waiter.me.encode()
    assert server.calls()["evalsha"] - before == commands


@pytest.mark.parametrize("kind", [OneHop, TwoHops])
def test_a_release_of_somebody_else_does_nothing(
    server: Server, name: str, lockers: Callable[[type[OneHop]], OneHop], kind: type[OneHop]
) -> None:
    holder, other = lockers(kind), lockers(kind)
    holder.acquire()
    other.release()
    assert server.cli("GET", name) == holder.me.encode()


def test_the_floors_are_contestants() -> None:
    assert [name for name in CONTESTANTS if is_floor(name)] == [ONE_HOP, TWO_HOPS]
