"""Every contestant on a loop makes its pairs, and the floor sends what the lock sends."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.servers import Server

from bench.__main__ import many
from bench.aio.names import LOOP_FLOOR, RELOCK_TASKS, RELOCK_THREADS
from bench.aio.pairs import CONTESTANTS, CONTESTANTS_OF_SEVERAL
from bench.ground import own_server
from relock.cli._bench.words import BARE

PAIRS = 3

# The others leave their sockets to the process that they are measured in.
ON_LOOPS = [name for name in CONTESTANTS if name not in (RELOCK_THREADS, BARE)]


def make_pairs(pairs: Any) -> None:
    with closing(pairs):
        assert many(pairs, PAIRS) > 0


@pytest.mark.parametrize("name", ON_LOOPS)
def test_a_contestant_on_one_master_makes_its_pairs(name: str, server: Server) -> None:
    make_pairs(CONTESTANTS[name]([server.port]))


def test_the_floor_of_several_masters_is_done_at_the_quorum(server: Server) -> None:
    make_pairs(CONTESTANTS_OF_SEVERAL[LOOP_FLOOR]([server.port] * 3))


@pytest.fixture
def noting() -> Iterator[Server]:
    """A server that notes each command with its words."""
    with own_server() as server:
        server.cli("CONFIG", "SET", "slowlog-log-slower-than", 0)
        server.cli("CONFIG", "SET", "slowlog-max-len", 1000)
        yield server


def scripts_of(server: Server, name: str) -> list[list[Any]]:
    """The script, and how long each of its words is, of the last pair that a contestant has made."""
    make_pairs(CONTESTANTS[name]([server.port]))
    with server.client() as client:
        commands = [entry["command"] for entry in client.slowlog_get(100)]
    words = [command.split(b" ") for command in commands if command.startswith(b"EVALSHA ")]
    return [[word if number < 3 else len(word) for number, word in enumerate(one)] for one in words[:2]]


def test_the_floor_sends_the_same_scripts_with_words_of_the_same_kinds(noting: Server) -> None:
    """Names of keys and of the owner have lengths of their own."""
    floor, ours = scripts_of(noting, LOOP_FLOOR), scripts_of(noting, RELOCK_TASKS)
    assert [len(one) for one in floor] == [len(one) for one in ours]
    assert [one[:3] for one in floor] == [one[:3] for one in ours]
    assert [one[8:] for one in floor] == [one[8:] for one in ours]
