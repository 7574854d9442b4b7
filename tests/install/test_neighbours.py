"""Clients of another version, from its wheel, work on the same lock as this one's: see ``docs/internals/wire.md``."""

import os
import subprocess
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from support.masters import Deployment

ROOT = Path(__file__).parent.parent.parent
LAST_OF_WIRE_1 = "d7d6eba2a0d6db41d84b4cc3827b1a04fbd6eaf6"
TURNS = 60
WORKER = """
import sys, time
from pathlib import Path
from support.urls import options_for, urls_of
import relock

place, count, turns = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
assert Path(relock.__file__).is_relative_to(place), relock.__file__
urls = urls_of(sys.argv[4])
client = relock.Client(urls, **options_for(urls, {}))
print("ready", flush=True)
sys.stdin.readline()
lock = client.lock(sys.argv[5], ttl=10)
for turn in range(turns):
    with lock:
        seen = int(count.read_text())
        time.sleep(0.0005)
        count.write_text(str(seen + 1))
        print(lock.token, flush=True)
client.close()
"""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


@pytest.fixture(scope="module", params=[LAST_OF_WIRE_1, "HEAD~1"], ids=["wire 1", "the previous commit"])
def neighbour(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel of another commit holds."""
    try:
        archive = git("archive", "--format=zip", request.param)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no history here: a source archive, or a shallow clone")
    source, dist, place = (tmp_path_factory.mktemp(name) for name in ("source", "dist", "place"))
    with zipfile.ZipFile(BytesIO(archive)) as packed:
        packed.extractall(source)
    build = [sys.executable, "-m", "build", "--wheel", "-o", str(dist), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(place)
    return place


def start(place: Path, count: Path, urls: str, name: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(place), str(count), str(TURNS), urls, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT / "tests")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(600)
@pytest.mark.every_quorum
def test_two_versions_exclude_each_other_and_share_the_turns(
    neighbour: Path, server: Deployment, name: str, tmp_path: Path
) -> None:
    """Both queue, wake or give the lock to the other, and tokens rise over all of them."""
    count = tmp_path / "count"
    count.write_text("0")
    places = [neighbour, ROOT / "src"] * 2
    workers = [start(place, count, " ".join(one.url for one in server.members), name) for place in places]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    begin = time.monotonic()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    tokens = [[int(token) for token in worker.communicate()[0].split()] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    assert int(count.read_text()) == len(workers) * TURNS
    assert all(own == sorted(own) for own in tokens)
    everybody = [token for own in tokens for token in own]
    assert len(set(everybody)) == len(everybody) == len(workers) * TURNS
    assert time.monotonic() - begin < 60, "nobody waits for a timer"
    second = sorted(everybody)[len(everybody) // 2]
    turns_of_the_first_half = [sum(token < second for token in own) for own in tokens]
    assert min(turns_of_the_first_half) > TURNS / 4, "they take turns"
