"""`relock bench`, as a process: its output, and that nothing stays behind. These tests do not judge its speed."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.bench import WITHIN, environment, figures_of, leftovers, relock_bench
from support.servers import Server
from support.until import until

from relock.cli._bench.crew import CrewFailedError, Program, play, start
from relock.cli._bench.floor.floor import NO_HIREDIS
from relock.cli._bench.work import Job

TTL_MS_MAX = 6_500  # of a leftover key: the lease of 5 s, and a second more
HOUR_OF_SIX = ["--seconds", "0.3", "--workers", ",".join(["6"] * 200)]
needs_hiredis = pytest.mark.skipif(find_spec("hiredis") is None, reason="without hiredis there is no floor")
# Begins as in the foreground of a terminal, wherever the tests run.
IN_FOREGROUND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from relock.cli import main
main()
"""


def test_it_measures_and_leaves_nothing_for_long(server: Server) -> None:
    found = figures_of("--workers", "2,5", nodes=server.url)
    assert (found["masters"], found["workers_are"], found["section_seconds"]) == (1, "processes", 0.0)
    assert list(found["alone"]) == ["uncontended", "reentry"]
    assert all(one["pairs"] > 0 and one["median_us"] <= one["p99_us"] for one in found["alone"].values())
    assert [one["workers"] for one in found["handed_over"]] == [2, 5]
    for one in found["handed_over"]:
        assert one["turns"] >= one["handoffs"]
        assert (one["overlaps"], one["out_of_order"]) == (0, 0)
    assert all(key.endswith(b":token") and 0 < left < TTL_MS_MAX for key, left in leftovers(server).items())


@pytest.mark.long
def test_threads_of_one_client_with_time_inside(server: Server) -> None:
    found = figures_of("--workers", "3", "--threads", "--section", "0.002", nodes=server.url)
    assert (found["workers_are"], found["section_seconds"]) == ("threads", 0.002)
    (handed_over,) = found["handed_over"]
    assert handed_over["overlaps"] == 0
    assert handed_over["turns_per_second"] < 1.1 / 0.002
    assert 0 < handed_over["in_use"] <= 1


@pytest.mark.long
def test_people_see_tables_and_on_a_terminal_how_much_is_done(server: Server) -> None:
    command = [sys.executable, "-m", "relock", "bench", "--seconds", "0.5", "--workers", "2,4"]
    controller, terminal = pty.openpty()
    env = {**environment(server.url), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True, env=env) as process:
        os.close(terminal)
        seen = b""
        with suppress(OSError):  # so Linux reports that nobody can write any more
            while chunk := os.read(controller, 65536):
                seen += chunk
        os.close(controller)
        shown = process.communicate(timeout=WITHIN)[0]
    parts = [int(part) for part in re.findall(rb"(\d+)%", seen)]
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0, 100)
    assert len(set(parts)) > 5, "step by step"
    for text in (b"relock bench: alone", b"relock bench: 2 workers", b"relock bench: 4 workers"):
        assert text in seen
    for part in ("one master", "one more level", "hand-offs among 4 processes", "Jain's index"):
        assert part in " ".join(shown.split())


@pytest.mark.long
def test_several_masters(start_server: Callable[..., Server]) -> None:
    urls = " ".join(start_server().url for _ in range(3))
    assert figures_of("--workers", "2", nodes=urls)["masters"] == 3


def test_without_hiredis_there_is_no_floor_and_it_says_so(server: Server) -> None:
    main = ("-c", "import sys; sys.modules['hiredis'] = None; from relock.cli import main; main()")
    found = figures_of("--workers", "2", nodes=server.url, main=main)
    assert found["no_floor"] == [NO_HIREDIS]
    assert [one["floor"] for one in (*found["alone"].values(), *found["handed_over"])] == [None] * 3
    assert found["alone"]["uncontended"]["pairs"] > 0


@pytest.mark.parametrize("workers", ["1", "2,", "x", "2,501", ""])
def test_numbers_of_workers_that_make_no_sense(server: Server, workers: str) -> None:
    done = relock_bench("--workers", workers, nodes=server.url)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_server_that_is_away_is_one_line_and_an_exit_code(own_server: Server) -> None:
    own_server.kill()
    done = relock_bench(nodes=own_server.url)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (69, "", 1)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--seconds", "3600"], b"*"),
        (HOUR_OF_SIX, b"*}:queue"),
        pytest.param(HOUR_OF_SIX, b"*}:floor-queue", marks=[needs_hiredis, pytest.mark.long]),
    ],
    ids=["alone", "handed over", "handed over by the floor"],
)
def test_ctrl_c_ends_it_and_its_workers_and_leaves_nothing_for_long(
    server: Server, tmp_path: Path, options: list[str], key: bytes
) -> None:
    command = [sys.executable, "-c", IN_FOREGROUND, "bench", *options]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment(server.url))
    try:
        until(lambda: server.cli("KEYS", b"lock:{" + key), within=WITHIN, what="the benchmark is at work")
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "output").read_text() == ""
    assert all(0 < left < TTL_MS_MAX for left in leftovers(server).values())
    assert not [key for key in leftovers(server) if b":floor" in key]


# Its parts ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def program() -> Any:
    started = start("relock.cli._bench.worker")
    yield started
    started.close()


def job(server: Server, name: str, **more: Any) -> Job:
    return Job(contestant="relock", urls=(server.url,), name=name, **more)


def test_workers_hand_over_until_they_are_told_to_end(server: Server, name: str, program: Program) -> None:
    played = play([(program, job(server, name, processes=2, threads=2))], seconds=2.0)
    assert {turn.worker for turn in played.turns} == {0, 1, 2, 3}
    assert (played.figures.overlaps, played.figures.out_of_order) == (0, 0)
    assert all(key.endswith(b":token") for key in leftovers(server)), "the lock is free and without waiters"


def test_an_interrupted_job_ends_with_everybodys_next_turn(server: Server, name: str, program: Program) -> None:
    def look() -> None:
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        play([(program, job(server, name, processes=3))], seconds=3600, look=look)
    assert time.monotonic() - begin < WITHIN
    assert all(key.endswith(b":token") for key in leftovers(server)), "the lock is free and without waiters"
    again = play([(program, job(server, name, processes=2))], seconds=1.5)
    assert {turn.worker for turn in again.turns} == {0, 1}


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("pass", "has ended"),
        ("print('{\"turns\": [', end='')", "has ended"),
        ('print(\'{"failed": "a reason"}\')', "a reason"),
        ("print('[' * 200_000, end='')", "has ended"),
    ],
    ids=["nothing", "half a line", "failed", "half of a long line"],
)
def test_a_program_that_ends_or_fails_is_an_error(does: str, error: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", does], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with closing(Program(process)) as program, pytest.raises(CrewFailedError, match=error):
        program.receive(WITHIN)


def test_a_program_that_says_nothing_is_an_error(program: Program) -> None:
    with pytest.raises(CrewFailedError, match="was silent for 0 s"):
        program.receive(0.0)


def test_a_job_that_cannot_be_done_is_an_error_with_the_reason(server: Server, name: str, program: Program) -> None:
    wrong = Job(contestant="relock", urls=(server.url.replace("redis://", "nowhere://"),), name=name, processes=3)
    with pytest.raises(CrewFailedError, match="ConfigurationError"):
        play([(program, wrong)], seconds=0.1)
    played = play([(program, job(server, name, processes=2))], seconds=1.5)
    assert {turn.worker for turn in played.turns} == {0, 1}
