"""Costs of each path: round trips, scripts, threads and Python calls, counted on real servers.

The figures do not depend on the machine's speed. A change that adds a round trip, a command or a thread to a path fails
here. So does a change by which the caller's thread makes more calls in Python. One table has the limits of each path; a
change that shortens a path belongs in the table as well.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
from attrs import frozen
from support.costs import learn_scripts
from support.heartbeats import without_any_heartbeat
from support.masters import Deployment
from support.servers import Server
from support.until import until
from support.urls import options_for

import relock
from relock import AsyncClient, Client, Lock, MultiLock
from relock._core import calls, hold
from relock._core.effects import Answer, Ask
from relock._core.lock_spec import HANDED_LEASE_SECONDS
from relock._runtime.machine import Machine
from relock._scripts import Prepared

PATIENCE_SECONDS = 60.0
OPTIONS = {"ttl": 120.0, "node_timeout": 40.0}  # a machine that stands still for a while must change nothing
Asked = Ask | Prepared
PACKAGE = str(Path(relock.__file__).parent)
BACKGROUND = ("relock-hub", "relock-janitor", "relock-watchdog")
HAND_OFFS, HAND_OFFS_SHORT = 50, 5  # the most tries; nearly all are within the limit, and some may be cut short
HAND_OFF_PYTHON_CALLS = 80  # acquire, wait and release
OF_THE_CLOCK = ("see", "not_after_us", "_pack_not_after")  # not counted: luck decides if a master's clock needs these
REPEATS = 3
REPEATS_MAX = 500  # the fewest Python calls count: on a slow machine, most repeats need some more


@frozen
class Way:
    """One path, and its costs.

    Attributes:
        rounds: the round trips in their order, each with the scripts that it sends to every master.
        walk: takes the path once, and counts.
        threads: the threads that the path starts.
        masters: the numbers of masters over which the path costs that.
        python_calls: the most calls of Python functions that the caller's own thread makes, over one master; over
            several the number depends on how many replies are there at once.
        files: the most files of relock's that have these functions: a reader has to open so many.
    """

    name: str
    rounds: tuple[str, ...]
    walk: "Callable[[Scene], None]"
    threads: tuple[str, ...] = ()
    masters: tuple[int, ...] = (1,)
    python_calls: int | None = None
    files: int | None = None

    @property
    def is_first(self) -> bool:
        """Return whether the path is the first use of a new client."""
        return self.name.startswith("the first")


class CountingPlatform(Machine):
    """The threads of this process, by name, as they are started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, target: Callable[[], object], name: str) -> None:
        self.started.append(name)
        super().start(target, name)


class Scene:
    """A client whose steps are counted, and another one that has no part in it."""

    def __init__(self, server: Deployment, name: str) -> None:
        self.server = server
        self.name = name
        platform = CountingPlatform()

        class CountedClient(Client):
            _platform = platform

        options = options_for(server.url, OPTIONS)
        self.client: Client = CountedClient(server.url, **options)
        self.other = Client(server.url, **options)
        self.lock = self.client.lock(name)
        self.rounds: tuple[str, ...] = ()
        self.threads: tuple[str, ...] = ()
        self.python_calls = self.files = 0
        self._started = platform.started
        self._asked: list[Asked] = []
        self._all: list[Asked] = []
        self._at_first = self._arrived()
        note_asks(self.client, self._asked, self._all)
        note_asks(self.other, self._all)

    def is_accounted_for(self) -> bool:
        """Return whether no master has got more scripts than the clients have asked that master for.

        A request that is sent at this very moment, such as an undo after a late answer, may make a difference, which is
        gone at the next look.
        """
        for client in (self.client, self.other):
            client.info(self.name)  # all masters answer it, after everything that was sent before
        asked = [self._asked_of(number) for number in range(len(self.server.members))]
        return all(
            now - before <= asks for now, before, asks in zip(self._arrived(), self._at_first, asked, strict=True)
        )

    def _asked_of(self, number: int) -> int:
        """Return the number of scripts that both clients have asked the master with this number for."""
        return sum(
            calls_in(ask) for ask in self._all if isinstance(ask, Prepared) or ask.only is None or number in ask.only
        )

    def _arrived(self) -> list[int]:
        """Return the number of scripts that each master has got from any client.

        The masters know all scripts, so EVAL is only the probe of a client's first connection.
        """
        return [one.calls().get("evalsha", 0) for one in self.server.members]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the round trips, threads and calls of the block."""
        self._asked.clear()
        self._started.clear()
        calls, files = 0, set[str]()

        def see(frame: FrameType, event: str, _: Any) -> None:
            nonlocal calls
            path = frame.f_code.co_filename
            if event == "call" and path != __file__ and frame.f_code.co_name not in OF_THE_CLOCK:
                calls += 1
                files.add(path)

        sys.setprofile(see)
        try:
            yield
        finally:
            sys.setprofile(None)
        self.rounds = tuple(shown(ask) for ask in self._asked)
        self.python_calls = calls - 1  # without the call that leaves this function
        self.files = len([path for path in files if path.startswith(PACKAGE)])
        # Two calls that need the same thread at once may both start it; the second one ends at once (`Service.ensure`).
        self.threads = tuple(sorted(set(self._started)))

    def close(self) -> None:
        self.client.close()
        self.other.close()


def note_asks(client: Client, *books: list[Asked]) -> None:
    """Note a client's requests, of all threads: all of them in the last book, those of the path in one before it.

    The janitor's requests are no part of a path: it repeats a count if one of several masters was slow, for example.
    """
    janitor = client._session.janitor
    fan_out: Any = client._session.fan_out
    lone: Any = client._session.lone
    ask_masters = fan_out.ask

    def note(ask: Ask, *, strict: bool, is_call: bool = True) -> list[Answer]:
        for book in books[-1:] if janitor.is_caller() else books:
            book.append(ask)
        answers: list[Answer] = ask_masters(ask, strict=strict, is_call=is_call)
        return answers

    fan_out.ask = note
    if lone is None:
        return
    calls: Any = client._session.calls
    exchange = lone.pool.exchange

    def note_exchange(request: Prepared, *words: Any) -> Sequence[Answer] | None:
        answers: Sequence[Answer] | None = exchange(request, *words)
        if answers is not None:
            for book in books:
                book.append(request)
        return answers

    calls._at_once = note_exchange


def calls_in(asked: Asked) -> int:
    """Return the number of calls that the path sends to each master."""
    return 1 if isinstance(asked, Prepared) else len(asked.calls)


def shown(asked: Asked) -> str:
    """Return the request, as in the table."""
    if isinstance(asked, Prepared):
        return asked.script.name
    (name,) = {call.script.name for call in asked.calls}
    return name if len(asked.calls) == 1 else f"{len(asked.calls)} {name}"


@pytest.fixture
def scene(own_server: Deployment, name: str) -> Iterator[Scene]:
    learn_scripts(own_server)  # its own servers: leftovers of other tests' clients would be counted
    made = Scene(own_server, name)
    yield made
    made.close()


# The paths ------------------------------------------------------------------------------------------------------------


def stepping(step: Callable[[Lock], object], *, held: int = 0, left: int = 0) -> Callable[[Scene], None]:
    """Return a walk that counts `step` with so many levels held, and releases those that are left then."""

    def walk(scene: Scene) -> None:
        for _ in range(held):
            scene.lock.acquire()
        with scene.counted():
            step(scene.lock)
        for _ in range(left):
            scene.lock.release()

    return walk


def making_a_lock(scene: Scene) -> None:
    with scene.counted():
        scene.client.lock(scene.name)


def acquire_and_release(lock: Lock) -> None:
    lock.acquire()
    lock.release()


def try_lock_refused(scene: Scene) -> None:
    with scene.other.lock(scene.name):
        scene.other.info(scene.name)  # so that every master has granted the lock, even a slow one
        with scene.counted():
            assert not scene.lock.acquire(blocking=False)


def look_at_ones_own_hold(lock: Lock) -> None:
    assert lock.owned()
    assert lock.hold_count
    assert lock.token
    assert lock.remaining()
    lock.ensure(1.0)


def wait_hand_off_and_release(scene: Scene) -> None:
    """Wait once, with a hold that ends before its full lease is asked for, however slow the machine is."""
    with patch.object(hold, "HANDED_SETTLE_SECONDS", PATIENCE_SECONDS):
        wait_and_hold_for(scene, lambda: None)


def wait_hand_off_and_a_hold_that_lasts(scene: Scene) -> None:
    def last() -> None:
        until(lambda: scene.lock.remaining() > HANDED_LEASE_SECONDS, within=PATIENCE_SECONDS, what="the full lease")

    wait_and_hold_for(scene, last)


def wait_and_hold_for(scene: Scene, last: Callable[[], None]) -> None:
    """Let the other client hold the lock and release it, and count the wait and the hold of the first.

    Heartbeats come by the clock. One that crossed the hand-off on a slow machine would wake the waiter once more, or
    remove its leftovers.
    """
    held = scene.other.lock(scene.name, owner="whoever")
    held.acquire()
    waiter = threading.Thread(target=acquire_in_turn, args=(scene.lock, last))
    just_now = patch.object(calls, "IN_LINE_SECONDS", PATIENCE_SECONDS)  # as if it had just waited
    with just_now, without_any_heartbeat(), scene.counted():
        waiter.start()
        until(lambda: scene.other.info(scene.name).queue, within=PATIENCE_SECONDS, what="a caller waits")
        held.release()
        waiter.join()


def acquire_in_turn(lock: Lock, last: Callable[[], None]) -> None:
    with lock:
        last()


def renewal_of(count: int) -> Callable[[Scene], None]:
    def walk(scene: Scene) -> None:
        session, locks = scene.client._session, [scene.client.lock(f"{scene.name}-{number}") for number in range(count)]
        for lock in locks:
            lock.acquire()
        renewed = session.counters.renewals
        with scene.counted():
            for hold in session.holds.all():
                hold.renew_at = 0.0
            session.watchdog.poke()
            until(lambda: session.counters.renewals == renewed + count, within=PATIENCE_SECONDS, what="all are renewed")
        for lock in locks:
            lock.release()

    return walk


def ten(scene: Scene) -> MultiLock:
    return scene.client.lock_all([f"{scene.name}-{number}" for number in range(10)])


def acquire_and_release_ten(scene: Scene) -> None:
    lock = ten(scene)
    with scene.counted():
        lock.acquire()
        lock.release()


def nest_and_leave_ten(scene: Scene) -> None:
    lock = ten(scene)
    with lock, scene.counted():
        lock.acquire()
        lock.release()


def try_ten_refused(scene: Scene) -> None:
    lock = ten(scene)
    with scene.other.lock(lock.names[0]):
        scene.other.info(lock.names[0])  # so that every master has granted the lock, even a slow one
        with scene.counted():
            assert not lock.acquire(blocking=False)


BOTH = (1, 5)
ACQUIRE, RELEASE = stepping(Lock.acquire, left=1), stepping(Lock.release, held=1)
PATHS = [
    Way("making a lock", (), making_a_lock, masters=BOTH, python_calls=15),
    Way("the first try-lock, refused", ("acquire",), try_lock_refused),
    Way("the first hold", ("acquire",), ACQUIRE, ("relock-watchdog",)),
    Way("the first wait", ("acquire", "enqueue", "release"), wait_hand_off_and_release, BACKGROUND),
    Way("acquire", ("acquire",), ACQUIRE, python_calls=16, files=8),
    Way(
        "acquire with a timeout",
        ("acquire",),
        stepping(lambda lock: lock.acquire(timeout=5), left=1),
        python_calls=16,
        files=8,
    ),
    Way(
        "try-lock", ("acquire",), stepping(lambda lock: lock.acquire(blocking=False), left=1), python_calls=16, files=8
    ),
    Way("entering a block", ("acquire",), stepping(Lock.__enter__, left=1), python_calls=16, files=8),
    Way("release", ("release",), RELEASE, python_calls=12, files=7),
    Way(
        "leaving a block",
        ("release",),
        stepping(lambda lock: lock.__exit__(None, None, None), held=1),
        python_calls=12,
        files=7,
    ),
    Way("acquire and release", ("acquire", "release"), stepping(acquire_and_release), masters=BOTH, python_calls=29),
    Way("re-entry", ("count",), stepping(Lock.acquire, held=1, left=2), masters=BOTH, python_calls=13, files=8),
    Way("inner release", ("count",), stepping(Lock.release, held=2, left=1), masters=BOTH, python_calls=12, files=8),
    Way("try-lock, refused", ("acquire",), try_lock_refused, masters=BOTH, python_calls=38),
    Way(
        "looking at one's own hold",
        (),
        stepping(look_at_ones_own_hold, held=1, left=1),
        masters=BOTH,
        python_calls=29,
    ),
    Way("wait, hand-off and release", ("enqueue", "release"), wait_hand_off_and_release),
    Way(
        "wait, hand-off, and a hold that lasts",
        ("enqueue", "extend", "release"),
        wait_hand_off_and_a_hold_that_lasts,
    ),
    Way("several locks, acquire and release", ("10 acquire", "10 release"), acquire_and_release_ten, masters=BOTH),
    Way("several locks, with one level before", ("10 count", "10 count"), nest_and_leave_ten, masters=BOTH),
    Way("several locks, refused", ("10 acquire", "9 release"), try_ten_refused, masters=BOTH),
    Way("renewal of one hold", ("extend",), renewal_of(1), masters=BOTH),
    Way("renewal of 120 holds", ("50 extend", "50 extend", "20 extend"), renewal_of(120)),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "path" in metafunc.fixturenames:
        cases = [pytest.param(path, count, id=f"{path.name}-{count}") for path in PATHS for count in path.masters]
        metafunc.parametrize(("path", "masters_count"), cases)


def test_each_path_takes_what_the_table_says(path: Way, masters_count: int, scene: Scene) -> None:
    calls_max = path.python_calls if masters_count == 1 else None
    if not path.is_first:
        path.walk(scene)
        scene.client._session.janitor.ensure()  # a slow one of several masters may give the janitor work
    python_calls, files = [], []
    for repeat in range(1 if path.is_first else REPEATS if calls_max is None else REPEATS_MAX):
        path.walk(scene)
        assert scene.rounds == path.rounds
        assert scene.threads == path.threads
        python_calls.append(scene.python_calls)
        files.append(scene.files)
        if repeat >= REPEATS and is_as_short_as(path, python_calls, files):
            break
    until(scene.is_accounted_for, within=PATIENCE_SECONDS, what="no more arrived than was asked for")
    assert calls_max is None or is_as_short_as(path, python_calls, files), (python_calls, files)


def is_as_short_as(path: Way, python_calls: Sequence[int], files: Sequence[int]) -> bool:
    """Return whether at least one run of the path was within its limits of calls and files."""
    calls_max = path.python_calls
    return calls_max is not None and min(python_calls) <= calls_max and (path.files is None or min(files) <= path.files)


def test_a_waiting_thread_makes_few_calls_for_a_hand_off(scene: Scene) -> None:
    """Waiters read the message themselves, as soon as the thread of the subscription has let them."""
    calls = list[int]()
    with patch.object(hold, "HANDED_SETTLE_SECONDS", PATIENCE_SECONDS), without_any_heartbeat():
        for _ in range(HAND_OFFS):
            held = scene.other.lock(scene.name, owner="whoever")
            held.acquire()
            other = threading.Thread(target=release_when_it_is_waited_for, args=(scene, held))
            other.start()
            with scene.counted():
                scene.lock.acquire()
                scene.lock.release()
            other.join()
            calls.append(scene.python_calls)
            if len(within_limit(calls)) == HAND_OFFS_SHORT:
                break
    assert len(within_limit(calls)) == HAND_OFFS_SHORT, calls


def within_limit(calls: list[int]) -> list[int]:
    return [count for count in calls if count <= HAND_OFF_PYTHON_CALLS]


def release_when_it_is_waited_for(scene: Scene, held: Lock) -> None:
    until(lambda: scene.other.info(scene.name).queue, within=PATIENCE_SECONDS, what="a caller waits")
    held.release()


# Tasks ----------------------------------------------------------------------------------------------------------------


@frozen
class Walk:
    """Way of one call of a task through relock.

    Attributes:
        python_calls: how often relock's functions are called, or resumed, until the work is over.
        files: the number of files in which these functions are.
        hops: how often a call is in another file than the call before, so that a reader turns to
            another file.
    """

    python_calls: int
    files: int
    hops: int

    def is_within(self, most: "Walk") -> bool:
        """Return whether this takes no more than `most` allows."""
        return self.python_calls <= most.python_calls and self.files <= most.files and self.hops <= most.hops


TASK_WALKS = {"acquire": Walk(38, files=12, hops=23), "release": Walk(37, files=10, hops=21)}


async def walk_of(call: Callable[[], Awaitable[object]]) -> Walk:
    """Do something, and return the way that it took."""
    path: list[str] = []

    def see(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            path.append(frame.f_code.co_filename)

    sys.setprofile(see)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return Walk(len(path), len(set(path)), sum(one != other for one, other in pairwise(path)))


async def test_a_task_s_acquire_and_release_make_few_calls_in_few_files(server: Server, name: str) -> None:
    async with AsyncClient(server.url) as client:
        lock = client.lock(name)
        shortest: dict[str, Walk] = {}
        for _ in range(REPEATS_MAX):
            for call, do in (("acquire", lock.acquire), ("release", lock.release)):
                walk = await walk_of(do)
                if call not in shortest or walk.python_calls < shortest[call].python_calls:
                    shortest[call] = walk
            if all(shortest[call].is_within(most) for call, most in TASK_WALKS.items()):
                return
    raise AssertionError(shortest)


AFTER_A_PAIR = """
import json, sys
from relock import Client
def show():
    print(json.dumps([name for name in sys.modules if name.startswith("relock.")]))
with Client(sys.argv[1], ttl=120.0, node_timeout=40.0) as client:
    show()
    with client.lock(sys.argv[2]):
        pass
show()
from relock import AsyncClient
show()
"""


def test_a_program_of_threads_reads_only_the_modules_that_it_needs(server: Server, name: str) -> None:
    command = [sys.executable, "-c", AFTER_A_PAIR, server.url, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made, threads, tasks = (set(json.loads(line)) for line in done.stdout.splitlines())
    of_tasks = {"relock.aio_client", "relock.aio_lock", "relock._runtime.aio.foreground"}
    assert not of_tasks & threads
    assert not {"relock._runtime.masters.cluster", "relock._statistics", "relock._synchronized"} & threads
    assert made == threads, "a first acquire imports nothing"
    assert of_tasks <= tasks
