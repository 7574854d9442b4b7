"""The faults of a simulated run: each does what its name says, and chance draws each."""

import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from attrs import evolve
from greenlet import getcurrent
from redis import exceptions as redis_errors

from relock._core.call_record import CallRecord
from relock._runtime.session.gates import Gates
from relock.testing import Lab
from relock.testing._conditions import Conditions
from relock.testing._network import VirtualConnection
from relock.testing._platform import VirtualPlatform
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim.draws import draw
from sim.fork import InheritedConnection
from sim.plan import CALLS, CLOCKS, KINDS
from sim.simulation import Simulation

EPOCH_SECONDS = 1_700_000_000.0
CONNECT_SECONDS_MAX = 1.0


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt."""


@pytest.fixture
def world() -> World:
    return World(0)


def play(world: World, process: Process, *functions: Callable[[], object]) -> None:
    tasks = [process.start(function, "test") for function in functions]
    world.run(world.now + 100.0, is_over=lambda: all(task.is_over for task in tasks))
    assert not world.errors


def connect(process: Process, server: Server) -> VirtualConnection:
    raw = VirtualConnection(process, server, socket_timeout=CONNECT_SECONDS_MAX)
    raw.connect()
    return raw


def test_every_fault_is_drawn() -> None:
    plans = [draw(Random(seed)) for seed in range(300)]
    assert {kind for plan in plans for kind in plan.kinds} == {*KINDS, *CLOCKS, *CALLS}
    assert {plan.conditions.repeats > 0 for plan in plans} == {plan.named for plan in plans} == {True, False}
    assert {(plan.is_calm, plan.only_clocks_fail) for plan in plans} >= {(True, True), (False, True), (False, False)}


# Clocks ---------------------------------------------------------------------------------------------------------------


def test_a_sleeper_sleeps_on_while_its_clock_stands_still(world: World) -> None:
    process = Process(world, "client", rate=1.005, offset=50.0)
    world.at(0.5, lambda: process.pause(stops_clock=True))
    world.at(2.5, process.resume)
    shown = []

    def sleep() -> None:
        before = process.local()
        process.sleep(1.0)
        shown.append((process.local() - before, world.now))

    play(world, process, sleep)
    ((passed, at),) = shown
    assert passed == pytest.approx(1.0, abs=1e-3)
    assert at == pytest.approx(2.0 + 1.0 / 1.005, abs=1e-3)
    assert process.stood_still(since=2.0) == pytest.approx(2.0)
    assert process.stood_still(since=2.6) == 0.0
    assert process.stood_still_between(0.0, 1.0) == pytest.approx(0.5)
    assert process.stood_still_between(2.0, 9.0) == pytest.approx(0.5)
    for when, running in ((0.4, 0.4), (2.0, 0.5), (2.7, 0.7)):
        assert process.showed(when) == pytest.approx(50.0 + 1.005 * running)


def test_a_clock_whose_rate_changes_does_not_jump(world: World) -> None:
    for clock in (Process(world, "client", rate=0.995), Server(world, 0, Conditions(), rate=0.995, offset=0.0)):
        world.run(100.0)
        before = clock.local() if isinstance(clock, Process) else clock.clock()
        clock.set_rate(1.005)
        after = clock.local() if isinstance(clock, Process) else clock.clock()
        assert before == pytest.approx(after) == pytest.approx(0.995 * world.now)


# Interrupts -----------------------------------------------------------------------------------------------------------


def test_a_doomed_task_is_interrupted_at_one_of_its_own_looks_at_the_clock(world: World) -> None:
    process, looks = Process(world, "client"), dict.fromkeys(("doomed", "other"), 0)
    caught = []

    def look(name: str) -> None:
        if name == "doomed":
            world.doom(getcurrent(), Interrupted(), looks=5)
        try:
            for _ in range(10):
                process.clock()
                looks[name] += 1
                process.sleep(0.001)
        except Interrupted:
            caught.append(name)

    play(world, process, lambda: look("doomed"), lambda: look("other"))
    assert caught == ["doomed"]
    assert looks == {"doomed": 4, "other": 10}


def test_a_spared_task_is_not_interrupted(world: World) -> None:
    process = Process(world, "client")

    def look() -> None:
        world.doom(getcurrent(), Interrupted(), looks=1)
        world.spare(getcurrent())
        process.clock()

    play(world, process, look)


def test_a_gate_goes_to_the_next_in_line_if_the_first_is_interrupted_on_its_way_in(world: World) -> None:
    process = Process(world, "client")
    gates, order, key = Gates(VirtualPlatform(process)), list[str](), ("lock", "owner")

    def enter(name: str) -> None:
        record = CallRecord()
        try:
            assert gates.enter(record, key, process.clock() + 10.0)
        except Interrupted:
            order.append(f"{name} interrupted")
        else:
            order.append(name)
        gates.leave(record)

    def hold() -> None:
        record = CallRecord()
        assert gates.enter(record, key, 0.0)
        process.sleep(1.5)
        gates.leave(record)
        world.at(world.now, lambda: first.interrupt(Interrupted()))  # woken by now, and still outside

    holder = process.start(hold, "holder")
    world.run(0.1)
    first = process.start(lambda: enter("first"), "first")
    world.run(0.2)
    play(world, process, lambda: enter("second"))
    assert holder.is_over
    assert order == ["first interrupted", "second"]
    assert world.now < 1.6


# Connections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [1000.0, 0.2, 0.0002])
@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_connect_waits_for_its_timeout_at_most(*, world: World, delay: float, is_reachable: bool) -> None:
    server, process = Server(world, 0, Conditions(delay=delay), rate=1.0, offset=EPOCH_SECONDS), Process(world, "a")
    if not is_reachable:
        server.unreachable.add(process.name)
    is_in_time = delay < CONNECT_SECONDS_MAX
    waited: list[float] = []

    def work() -> None:
        try:
            connect(process, server)
        except redis_errors.TimeoutError:
            waited.append(world.now)

    play(world, process, work)
    assert waited == ([] if is_in_time and is_reachable else [pytest.approx(CONNECT_SECONDS_MAX, abs=1e-3)])
    assert bool(process.connections) == (is_in_time and is_reachable)


# Repeats --------------------------------------------------------------------------------------------------------------


def test_a_published_message_comes_twice(world: World) -> None:
    conditions = Conditions(repeats=1.0, repeated_after=(0.5,))
    server, process = Server(world, 0, conditions, rate=1.0, offset=EPOCH_SECONDS), Process(world, "client")
    heard: list[Any] = []

    def listen() -> None:
        raw = connect(process, server)
        raw.send_command("SUBSCRIBE", "channel")
        raw.read_response()
        server.master.read("PUBLISH", b"channel", b"hello")
        while raw.can_read(1.0):
            heard.append(raw.read_response())

    play(world, process, listen)
    assert heard == [[b"message", b"channel", b"hello"]] * 2


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_a_request_is_carried_out_twice_and_answered_once(later: float) -> None:
    lab = Lab(masters=1)
    (server,) = lab.masters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lock = lab.client(ttl=30.0).lock("a")
    server.conditions = evolve(server.conditions, repeats=1.0, repeated_after=(later,))
    ran: list[tuple[Any, ...]] = []
    run = server.master.run

    def count(*request: Any) -> Any:
        ran.append((request[0].name, *map(tuple, request[1:])))
        return run(*request)

    server.master.run = count  # type: ignore[assignment, method-assign]
    counts = []

    def work() -> None:
        for step in (lock.acquire, lock.acquire, lock.release):
            step()
            lab.sleep(1.0)
            counts.append(lock.hold_count)
        lock.release()
        lab.sleep(1.0)

    lab.run(work)
    lab.close()
    assert counts == [1, 2, 1]
    assert [name for name, *_ in dict.fromkeys(ran)] == ["acquire", "count", "count", "release"]
    assert all(ran.count(request) >= 2 for request in ran)
    assert server.master.contents(b"lock:{a}") is None


# Forks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_child_keeps_its_dead_parents_socket_alive_until_it_closes_its_copy(*, world: World, is_closed: bool) -> None:
    server = Server(world, 0, Conditions(), rate=1.0, offset=EPOCH_SECONDS)
    parent = Process(world, "parent")
    child = parent.fork("child")

    def work() -> None:
        raw = connect(parent, server)
        raw.send_command("SUBSCRIBE", "channel")
        raw.read_response()
        copy = InheritedConnection(raw, child)
        if is_closed:
            copy.disconnect()

    play(world, parent, work)
    parent.crash()
    world.run(world.now + 1.0)
    assert server.master.read("PUBLISH", b"channel", b"hello") == (0 if is_closed else 1)
    child.crash()
    world.run(world.now + 1.0)
    assert server.master.read("PUBLISH", b"channel", b"hello") == 0


def test_a_child_forks_only_once_it_has_begun() -> None:
    """Children have their parent's connections at first, and run no code of their own before these are dropped."""
    simulation = Simulation(0)
    simulation.world.run(0.5)
    simulation.strikes.fork()
    (child,) = simulation.cast.processes[-1:]
    simulation.cast.workers = [worker for worker in simulation.cast.workers if worker.process is child]
    for forked, seconds in ((False, 0.001), (True, 0.0)):
        simulation.strikes.fork()
        assert (simulation.cast.processes[-1] is not child) == forked
        simulation.world.run(simulation.world.now + seconds)
    for process in simulation.cast.processes:
        process.end()
