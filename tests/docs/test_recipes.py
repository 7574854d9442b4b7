"""Recipes for frameworks: their programs run as they stand, in the framework's own processes."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server, free_port
from support.spawn import spawn
from support.until import until
from workers.recipes import EXAMPLES, NODE_TIMEOUT, load

from relock import Client

WITHIN = 60.0
TESTS = Path(__file__).parents[1]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """Start programs that find the tests' modules and the server, with their output in ``log``."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> "subprocess.Popen[str]":
        environment = os.environ | {
            "REDIS_URL": server.url,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "PYTHONUNBUFFERED": "1",
        }
        with (tmp_path / "log").open("ab") as log:
            started.append(
                spawn([sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def locks(server: Server) -> Iterator[Client]:
    with Client(server.url, node_timeout=NODE_TIMEOUT) as client:
        yield client


def test_a_command_of_django_runs_once_and_a_view_commits_before_it_releases(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("django", reason="it comes with the extra test")
    site = start("-m", "workers.django_site", str(tmp_path / "database"))
    output, _ = site.communicate(timeout=WITHIN)
    assert site.returncode == 0, (tmp_path / "log").read_text()
    said = json.loads(output)
    assert said["busy"] == [[], 75]
    assert said["free"] == [["corrected"], 0]
    assert said["again"] == [[], 0]
    assert said["fenced"] == 1
    assert said["correct"] == [200, False], "the commit comes before the release"
    assert said["customer"] == "corrected"
    assert said["careless"] == [200, True], "with ATOMIC_REQUESTS the release comes before the commit"


def test_one_of_two_schedulers_fires_and_the_other_takes_over(start: Start, locks: Client) -> None:
    pytest.importorskip("apscheduler", reason="it comes with the extra test")

    def fence_of(process: "subprocess.Popen[str]") -> int:
        assert process.stdout is not None
        word, fence = process.stdout.readline().split()
        assert word == "report"
        return int(fence)

    def standing_by() -> bool:
        return bool(locks.info("scheduler").queue)

    first = start("-m", "workers.one_scheduler")
    led = fence_of(first)
    second = start("-m", "workers.one_scheduler")
    until(standing_by, within=WITHIN, what="the second waits")
    assert fence_of(first) == fence_of(first) == led, "it leads, and fires again"
    first.kill()
    follows = fence_of(second)
    assert follows > led
    third = start("-m", "workers.one_scheduler")
    until(standing_by, within=WITHIN, what="the third waits")
    second.terminate()
    assert fence_of(third) > follows
    said, _ = second.communicate(timeout=WITHIN)
    assert second.returncode == 0
    assert set(said.split()) <= {"report", str(follows)}, "one term, one fence"


def get(port: int, path: str) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


class Getting(threading.Thread):
    """Request of a thread of its own."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._asked = port, path
        self.answer: tuple[int, str] | None = None
        self.start()

    def run(self) -> None:
        self.answer = get(*self._asked)

    def wait(self) -> tuple[int, str] | None:
        """Return the answer."""
        self.join(WITHIN)
        return self.answer


def test_workers_of_gunicorn_have_a_client_each_and_end_in_order(
    start: Start, server: Server, locks: Client, tmp_path: Path
) -> None:
    pytest.importorskip("gunicorn", reason="it comes with the extra test")
    port = free_port()
    quiet = ["--no-control-socket", "--log-level=info", f"--worker-tmp-dir={tmp_path}"]
    bound = ["--preload", "--workers=2", f"--bind=127.0.0.1:{port}"]
    gunicorn = start("-m", "gunicorn", *bound, *quiet, "workers.wsgi_orders:app")
    log = tmp_path / "log"
    until(lambda: log.read_text().count("Booting worker") == 2, within=WITHIN, what="two workers")
    first = Getting(port, "/7")
    pid, fence = inside(server, "7")
    holder = locks.info("orders:7").owner
    second = Getting(port, "/7")
    until(lambda: locks.info("orders:7").queue, within=WITHIN, what="the second waits")
    server.cli("RPUSH", "go:7", "on")
    other_pid, later = inside(server, "7")
    other = locks.info("orders:7").owner
    assert first.wait() == (200, "shipped\n")
    assert other_pid != pid
    assert later > fence
    assert str(pid) in str(holder)
    assert str(other_pid) in str(other), "each worker is a client of its own"
    gunicorn.send_signal(signal.SIGTERM)
    until(lambda: "Handling signal: term" in log.read_text(), within=WITHIN, what="it is told")
    assert locks.info("orders:7").held
    server.cli("RPUSH", "go:7", "on")
    assert second.wait() == (200, "shipped\n")
    assert gunicorn.wait(WITHIN) == 0
    assert not locks.info("orders:7").held


def inside(server: Server, name: str) -> tuple[int, int]:
    """Return the process and the fencing token of what is next inside."""
    with server.client(decode_responses=True) as client:
        until(lambda: client.llen(f"inside:{name}"), within=WITHIN, what="it is inside")
        pid, fence = str(client.lpop(f"inside:{name}")).split()
    return int(pid), int(fence)


def test_the_command_of_the_cron_job_runs_on_one_of_the_pods(
    start: Start, locks: Client, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r"command: (\[.*\])", (EXAMPLES / "recipes" / "cronjob.yaml").read_text())
    assert found is not None
    init, dashes, program, *arguments = json.loads(found[1])
    assert [init, dashes, program] == ["tini", "--", "relock"]
    assert arguments[-2:] == ["python", "report.py"]
    monkeypatch.setenv("RELOCK_NODES", server.url)
    report = tmp_path / "report.py"
    report.write_text("import os; print('report', os.environ['RELOCK_TOKEN'])")
    command = ["-m", "relock", *arguments[:-2], sys.executable, str(report)]
    with locks.lock("nightly-report") as held:
        other = start(*command)
        assert other.communicate(timeout=WITHIN)[0] == ""
        assert other.returncode == 75
        token = held.token
    free = start(*command)
    word, fence = free.communicate(timeout=WITHIN)[0].split()
    assert (free.returncode, word) == (0, "report")
    assert token is not None
    assert int(fence) > token


def test_an_actor_of_dramatiq_is_sent_again_while_another_worker_has_the_lock(
    server: Server, locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dramatiq", reason="it comes with the extra test")
    import dramatiq
    from dramatiq.brokers import redis
    from dramatiq.brokers.stub import StubBroker

    monkeypatch.setattr(redis, "RedisBroker", lambda **_: StubBroker())
    monkeypatch.setattr(dramatiq.broker, "global_broker", None)
    example, locks_of_the_worker = load("recipes/dramatiq_albums"), Client(server.url, node_timeout=NODE_TIMEOUT)
    monkeypatch.setattr(example, "client", locks_of_the_worker)
    retried, stored = threading.Event(), list[tuple[str, int]]()
    monkeypatch.setattr(example, "RETRY_MILLISECONDS", 1)
    monkeypatch.setattr(example, "store", lambda album, fence: stored.append((album, fence)))

    class Looking(dramatiq.Middleware):
        def after_process_message(self, *_: Any, exception: Any = None, **__: Any) -> None:
            if isinstance(exception, dramatiq.Retry):
                retried.set()

    broker = dramatiq.get_broker()
    broker.add_middleware(Looking())
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        with locks.lock("albums:summer") as held:
            example.resize.send("summer")
            assert retried.wait(WITHIN)
            assert not stored
            token = held.token
        until(lambda: stored, within=WITHIN, what="it runs in the end")
        broker.join("default", timeout=int(WITHIN * 1000))
    finally:
        worker.stop()
        broker.close()
        locks_of_the_worker.close()
    assert token is not None
    [(album, fence)] = stored
    assert album == "summer"
    assert fence > token
