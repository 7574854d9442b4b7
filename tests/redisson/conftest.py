"""Redisson itself, from its jar: a Java program that plays `Driver.java`, and clients of relock beside it."""

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.servers import Server
from support.spawn import spawn

from relock import Client

FOLDER = Path(__file__).parent
JARS = FOLDER / "target" / "dependency"
FETCH = ("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoverWriteReleases=true")
READY_SECONDS = 120.0
ANSWER_SECONDS = 120.0
TTL = 5.0  # of the clients of relock, and of Redisson's watchdog


class Answer(NamedTuple):
    """Answer of a thread of Java; the times are seconds of `time.monotonic`."""

    result: str
    begun: float
    ended: float


class Java:
    """Java program with a client of Redisson: its threads carry out commands, and answer."""

    def __init__(self, server: Server) -> None:
        command = [shutil.which("java") or "java", "-Xmx128m", "-cp", f"{JARS}/*", str(FOLDER / "Driver.java")]
        self._process = spawn(
            [*command, f"redis://127.0.0.1:{server.port}", str(int(TTL * 1000))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._answers: dict[str, queue.SimpleQueue[Answer]] = {}
        self._is_ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_ready(self) -> None:
        """Wait until the program is connected."""
        assert self._is_ready.wait(READY_SECONDS), "the Java program has not begun"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line == "ready\n":
                    self._is_ready.set()
                    continue
                thread, result, begun, ended = line.split()
                self._queue(thread).put(Answer(result, int(begun) / 1e9, int(ended) / 1e9))

    def _queue(self, thread: str) -> "queue.SimpleQueue[Answer]":
        return self._answers.setdefault(thread, queue.SimpleQueue())

    def begin(self, thread: str, command: str, name: str, number: int = 0, *, kind: str = "lock") -> None:
        """Have a thread carry out a command on a lock, after its earlier ones."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{thread} {kind} {command} {name} {number}\n")
        self._process.stdin.flush()

    def receive(self, thread: str) -> Answer:
        """Return the next answer of a thread."""
        return self._queue(thread).get(timeout=ANSWER_SECONDS)

    def is_silent(self, thread: str) -> bool:
        """Return whether there is no answer of a thread yet."""
        return self._queue(thread).empty()

    def do(self, command: str, name: str, number: int = 0, *, kind: str = "lock", thread: str = "main") -> str:
        """Have a thread carry out a command; return its result."""
        self.begin(thread, command, name, number, kind=kind)
        return self.receive(thread).result

    def kill(self) -> None:
        """End the program with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the program."""
        self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()


@pytest.fixture(scope="session")
def jars() -> Path:
    """Fetch Redisson and what it needs, of the version in pom.xml, or that of ``RELOCK_REDISSON``."""
    for program in ("java", FETCH[0]):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is not here: these tests need Java from 17 on, and Maven")
    version = os.environ.get("RELOCK_REDISSON")
    shutil.rmtree(JARS, ignore_errors=True)
    fetch = [*FETCH, *([f"-Dredisson.version={version}"] if version else [])]
    subprocess.run(fetch, cwd=FOLDER, check=True)
    return JARS


@pytest.fixture(scope="session")
def start_java(jars: Path) -> Iterator[Callable[[Server], Java]]:
    """Start Java programs."""
    started: list[Java] = []

    def start(server: Server) -> Java:
        started.append(Java(server))
        started[-1].wait_until_ready()
        return started[-1]

    yield start
    for java in started:
        java.close()


@pytest.fixture(scope="session")
def _shared_java() -> dict[int, Java]:
    return {}


@pytest.fixture
def java(start_java: Callable[[Server], Java], server: Server, _shared_java: dict[int, Java]) -> Java:
    """Share a Java program between tests: it takes a second to begin."""
    if server.port not in _shared_java:
        _shared_java[server.port] = start_java(server)
    return _shared_java[server.port]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of relock that shares its locks with Redisson."""
    with Client(server.url, redisson=True, ttl=TTL) as made:
        yield made
