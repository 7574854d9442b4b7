"""Each contestant that needs no other package makes its pairs and hand-offs, also after a script has changed.

The peers are not here: their packages come with the extra ``bench`` alone.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server

from bench import names, scripts
from bench.contestants import CONTESTANTS, _foreign
from bench.floors import BareSocket
from bench.goals import _of_the_family
from bench.handoffs import Bench, Cell, HandoffPlan
from bench.machine import servers_started
from bench.names import LONE, TASKS, THREADS
from bench.peers import PEERS
from relock.cli._bench.words import BARE, REENTRY, RELOCK

PAIRS = 3
LUA = Path(__file__).resolve().parents[2] / "lua"
SECONDS, SECONDS_MAX = 0.2, 30.0
WORKERS = 6
SECTION_MS = 1.0  # in which other tasks may run: tasks that never wait exclude each other without a lock


def make_pairs(name: str, ports: list[int]) -> None:
    make = CONTESTANTS[name].pairs
    assert make is not None
    with closing(make(ports)) as pairs:
        assert pairs.many(PAIRS) > 0


# Pairs of threads end with the process that measures them, and nothing closes their sockets.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "masters"),
    [
        *product([BARE, names.FLOOR, *names.PERMITS.values()], [1, 3]),
        *product([RELOCK, REENTRY, names.AFRESH, "redis-py Lock"], [1]),
        *product([names.OWN_SCRIPTS, names.LOOP_FLOOR], [3]),
    ],
)
def test_a_contestant_makes_its_pairs(name: str, masters: int, start_server: Callable[[], Server]) -> None:
    make_pairs(name, [start_server().port for _ in range(masters)])


def test_peers_are_measured_with_as_many_masters_as_they_work_with() -> None:
    redlock = CONTESTANTS["redlock-py"]
    assert (redlock.has_pairs(1, LONE), redlock.has_pairs(5, LONE)) == (False, True)
    assert (redlock.hands_over(1, "processes", 2), redlock.hands_over(3, "processes", 2)) == (False, True)


def test_readers_of_a_peer_hand_nothing_over() -> None:
    readers = _foreign("Redisson read lock (Java)", PEERS["Redisson read lock (Java)"])
    assert (readers.has_pairs(1, LONE), readers.hands_over(1, "processes", 2)) == (True, False)


ON_LOOPS = [name for name, one in CONTESTANTS.items() if one.kinds == (TASKS,) and name != names.RELOCK_THREADS]


@pytest.mark.parametrize("name", [name for name in ON_LOOPS if CONTESTANTS[name].has_pairs(1, TASKS)])
def test_a_contestant_on_a_loop_makes_its_pairs(name: str, server: Server) -> None:
    make_pairs(name, [server.port])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, TASKS) for name, one in CONTESTANTS.items() if one.hands_over(1, TASKS, WORKERS)),
        *product(names.PERMITS_HOPS.values(), [THREADS]),
    ],
)
def test_workers_hand_over_and_are_no_more_than_the_limit_at_a_time(name: str, kind: str, server: Server) -> None:
    """The workers hand over for longer until they have done so, and the order of their turns is judged."""
    cell, seconds, found = Cell(1, "unpinned", kind, WORKERS, SECTION_MS), SECONDS, dict[str, Any]()
    with closing(Bench([server])) as bench:
        while not found.get("handoffs"):
            (row,) = bench.measure(cell, HandoffPlan((cell,), (name,), 1, seconds))
            (found,) = row["rounds"]
            assert "failed" not in found
            assert seconds < SECONDS_MAX, "a lock was handed over"
            seconds *= 4  # a busy machine hands over nothing in so short a time
    assert (found["overlaps"], found["out_of_order"]) == (0, 0)


def test_no_more_workers_than_permits_hand_nothing_over() -> None:
    four = CONTESTANTS[names.PERMITS_HOPS[4]]
    assert [four.hands_over(1, THREADS, workers) for workers in (2, 4, 8)] == [False, False, True]


@pytest.fixture
def noting() -> Iterator[Server]:
    """Start a server that notes each command with its words."""
    with servers_started(1) as (server,):
        server.cli("CONFIG", "SET", "slowlog-log-slower-than", 0)
        server.cli("CONFIG", "SET", "slowlog-max-len", 1000)
        yield server


def scripts_of(server: Server, name: str) -> list[list[Any]]:
    """Return the script of the last pair that a contestant has made, with the length of each of its words."""
    make_pairs(name, [server.port])
    with server.client() as client:
        commands = [entry["command"] for entry in client.slowlog_get(100)]
    words = [command.split(b" ") for command in commands if command.startswith(b"EVALSHA ")]
    return [[word if number < 3 else len(word) for number, word in enumerate(one)] for one in words[:2]]


def test_the_floor_sends_the_same_scripts_with_words_of_the_same_kinds(noting: Server) -> None:
    """Keys and the owner have lengths of their own, so only lengths of other words are compared."""
    floor, ours = scripts_of(noting, names.LOOP_FLOOR), scripts_of(noting, names.RELOCK_TASKS)
    assert [len(one) for one in floor] == [len(one) for one in ours]
    assert [one[:3] for one in floor] == [one[:3] for one in ours]
    assert [one[8:] for one in floor] == [one[8:] for one in ours]


def test_a_permit_may_take_little_more_than_a_lock() -> None:
    """A permit without a figure, as in reports from before there were semaphores, is no goal."""
    one, ten = names.PERMITS.values()
    times = {RELOCK: 100.0, one: 110.0, ten: 120.0}
    found = list(_of_the_family("", "one CPU", times))
    assert [(goal.measured, goal.is_met) for goal in found] == [(1.1, True), (1.2, False)]
    assert list(_of_the_family("", "one CPU", {RELOCK: 100.0})) == []


def test_scripts_are_measured_with_permits_beside_locks(server: Server) -> None:
    found = scripts.measure(server.port, (None,), 1)
    for name in (scripts.SHIPPED, scripts.GUARDED, scripts.QUIET, scripts.HAND_OVER):
        assert found[name] > 0
        assert found[name + scripts.PERMIT] > 0


def test_scripts_of_a_commit_without_semaphores_can_be_beside(server: Server, tmp_path: Path) -> None:
    """Such a folder has no scripts of permits, and the others are measured."""
    there = tmp_path / "lua"
    shutil.copytree(LUA, there, ignore=shutil.ignore_patterns("permit_*"))
    with closing(BareSocket(server.port)) as bare, closing(BareSocket(server.port)) as listener:
        found = scripts.contestants(bare, listener, (there,))
    assert f"{scripts.SHIPPED} ({there})" in found
    assert not any(scripts.PERMIT in name for name in found)
