"""The package works from a zip file, as zipapp and PEX have it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
USE = """
import relock
from relock._servers.server import local_server
from relock.cli._bench.floor.sockets import FOLDER
assert ".zip/" in relock.__file__, relock.__file__
with local_server() as server, relock.Client(server.url) as client:
    with client.lock("a") as lock:
        assert lock.owned()
assert [path for path in FOLDER.iterdir() if path.name == "take.lua"][0].read_bytes()
"""
NO_SCRIPTS = """
import relock
from relock._scripts import ScriptError
try:
    relock.Client("redis://localhost").lock("a")
except ScriptError as error:
    assert "incomplete" in str(error)
else:
    raise AssertionError
"""


def run(archive: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    command = [sys.executable, "-P", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=archive.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def zipped(folder: Path, *trees: tuple[Path, str]) -> Path:
    made = folder / "relock.zip"
    with zipfile.ZipFile(made, "w") as archive:
        for tree, name in trees:
            for path in tree.rglob("*"):
                if path.suffix in (".py", ".lua"):
                    archive.write(path, f"{name}/{path.relative_to(tree)}")
    return made


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return zipped(tmp_path, (ROOT / "src" / "relock", "relock"), (ROOT / "lua", "relock/_lua"))


def test_a_lock_is_taken_from_a_zip_file(archive: Path) -> None:
    run(archive, "-c", USE)


def test_the_command_line_runs_from_a_zip_file(archive: Path) -> None:
    assert "Distributed locks" in run(archive, "-m", "relock", "--help")


def test_a_zip_file_without_the_scripts_says_so(tmp_path: Path) -> None:
    run(zipped(tmp_path, (ROOT / "src" / "relock", "relock")), "-c", NO_SCRIPTS)
