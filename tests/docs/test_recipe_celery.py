"""Recipe for Celery: its tasks on a real worker, whose pool forks two processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.servers import Server
from support.spawn import spawn
from support.until import until
from workers.recipes import NODE_TIMEOUT

from relock import Client

celery = pytest.importorskip("celery", reason="it comes with the extra test")
pytestmark = pytest.mark.skipif(redis.VERSION < (6, 1), reason="Celery's broker on Redis needs redis-py 6.1")

WITHIN = 60.0
SIG_SOFT_TIMEOUT = signal.SIGUSR1  # as billiard, Celery's pool, has it
TESTS = Path(__file__).parents[1]


class Feeds:
    """A worker with the recipe's tasks, whose broker is the server of the locks."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.redis: redis.Redis = server.client(decode_responses=True)
        self.locks = Client(server.url, node_timeout=NODE_TIMEOUT)
        self._log = folder / "log"
        broker = server.url.removesuffix("0") + "1"  # the database beside that of the locks, as in the recipe
        self._sender = celery.Celery("sender", broker=broker)
        environment = os.environ | {
            "REDIS_URL": server.url,
            "BROKER_URL": broker,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        }
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
        command = [sys.executable, "-m", "celery", "-A", "workers.celery_feeds", "worker", "--concurrency=2", *quiet]
        with self._log.open("wb") as log:
            self.process: subprocess.Popen[bytes] = spawn(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def send(self, task: str, feed: str, **options: object) -> str:
        """Send a task, and return its id."""
        sent: str = self._sender.send_task(f"celery_feeds.{task}", (feed,), **options).id
        return sent

    def _next(self, key: str) -> str:
        def is_there() -> bool:
            assert self.process.poll() is None, self.log()
            return bool(self.redis.llen(key))

        until(is_there, within=WITHIN, what=f"a word in {key}")
        return str(self.redis.lpop(key))

    def inside(self, feed: str) -> tuple[int, int]:
        """Return the process and the fencing token of the next run that is inside."""
        pid, fence = self._next(f"inside:{feed}").split()
        return int(pid), int(fence)

    def let_go_on(self, feed: str) -> None:
        """Let the run that is inside end its work."""
        self.redis.rpush(f"go:{feed}", "on")

    def end_of(self, task: str) -> str:
        """Return how the next run of a task ended."""
        return self._next(f"ended:{task}")

    def end_soft_time_limit(self, task: str) -> None:
        """Send the signal by which Celery interrupts a task: a real limit could end too early."""
        os.kill(int(self._next(f"began:{task}")), SIG_SOFT_TIMEOUT)

    def log(self) -> str:
        """Return what the worker printed."""
        return self._log.read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._sender.close()
        self.locks.close()
        self.redis.close()


@pytest.fixture
def feeds(server: Server, tmp_path: Path) -> Iterator[Feeds]:
    made = Feeds(server, tmp_path)
    yield made
    made.close()


def test_tasks_of_celery_run_one_at_a_time(feeds: Feeds) -> None:
    """One worker plays all scenes, because a start of Celery takes a second."""
    for scene in (
        one_is_retried_and_one_is_ignored_while_a_third_is_inside,
        a_task_whose_process_was_killed_runs_again_with_a_greater_token,
        a_soft_time_limit_ends_a_wait_and_a_hold,
        a_worker_that_is_told_to_stop_lets_its_task_end,
    ):
        scene(feeds)


def one_is_retried_and_one_is_ignored_while_a_third_is_inside(feeds: Feeds) -> None:
    first = feeds.send("import_feed", "news")
    pid, fence = feeds.inside("news")
    holder = feeds.locks.info("feeds:news").owner
    second, third = feeds.send("import_feed", "news"), feeds.send("refresh_feed", "news")
    assert feeds.end_of(second) == "RETRY"
    assert feeds.end_of(third) == "IGNORED"
    feeds.let_go_on("news")
    assert feeds.end_of(first) == "SUCCESS"
    _, later = feeds.inside("news")
    assert later > fence
    other = feeds.locks.info("feeds:news").owner
    assert holder is not None
    assert other is not None
    assert str(pid) in holder, "each process of the pool is a client of its own"
    feeds.let_go_on("news")
    while (end := feeds.end_of(second)) == "RETRY":
        pass
    assert end == "SUCCESS"


def a_task_whose_process_was_killed_runs_again_with_a_greater_token(feeds: Feeds) -> None:
    sent = feeds.send("import_feed", "music")
    killed, fence = feeds.inside("music")
    os.kill(killed, 9)
    pid, later = feeds.inside("music")
    assert pid != killed
    assert later > fence
    feeds.let_go_on("music")
    while (end := feeds.end_of(sent)) == "RETRY":
        pass
    assert end == "SUCCESS"


def a_soft_time_limit_ends_a_wait_and_a_hold(feeds: Feeds) -> None:
    inside = feeds.send("drop_feed", "films")
    feeds.inside("films")
    feeds.end_soft_time_limit(inside)
    with feeds.locks.lock("feeds:books"):
        waiting = feeds.send("drop_feed", "books")
        until(lambda: feeds.locks.info("feeds:books").queue, within=WITHIN, what="it waits")
        feeds.end_soft_time_limit(waiting)
        assert feeds.end_of(waiting) == "FAILURE"
        until(lambda: not feeds.locks.info("feeds:books").queue, within=WITHIN, what="it leaves the queue")
    assert feeds.end_of(inside) == "FAILURE"
    until(lambda: not feeds.locks.info("feeds:films").held, within=WITHIN, what="it releases")
    assert feeds.log().count("raised unexpected: SoftTimeLimitExceeded") == 2


def a_worker_that_is_told_to_stop_lets_its_task_end(feeds: Feeds) -> None:
    sent = feeds.send("import_feed", "games")
    feeds.inside("games")
    feeds.process.terminate()
    until(lambda: "Warm shutdown" in feeds.log(), within=WITHIN, what="it is told")
    assert feeds.locks.info("feeds:games").held
    feeds.let_go_on("games")
    assert feeds.end_of(sent) == "SUCCESS"
    assert not feeds.locks.info("feeds:games").held
