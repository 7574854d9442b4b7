"""Locks of other languages: programs that speak lines of JSON, as the benchmark's own do.

``python -m bench.peers`` in ``tests`` builds the programs for those of Node, Go and Java that are installed. A peer
that is not built is not measured.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict, frozen
from support.spawn import spawn

from bench.names import LONE, PROCESSES
from relock.cli._bench.crew import Program
from relock.cli._bench.work import OVERDUE_SECONDS, READY_SECONDS, Job

FOLDER = Path(__file__).parent / "peers"


@frozen
class Toolchain:
    """Toolchain of a language: it builds and starts programs."""

    name: str
    folder: Path
    build: tuple[str, ...]
    command: tuple[str, ...]
    built: Path  # the folder or file that the build leaves
    warm_pairs: int = 0  # before any is measured: Node and a JVM compile what has run often
    warm_seconds: float = 0.0  # for each of the processes that hand a lock over on one CPU, before any hand-off counts

    @property
    def is_built(self) -> bool:
        """Return whether the programs can be started."""
        return self.built.exists() and shutil.which(self.command[0]) is not None

    def start(self) -> Program:
        """Start a program, which dies with this process."""
        words = [shutil.which(self.command[0]) or self.command[0], *self.command[1:]]
        return Program(spawn(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


NODE = Toolchain(
    "Node",
    FOLDER / "node",
    build=("npm", "ci", "--no-audit", "--no-fund"),
    command=("node", str(FOLDER / "node" / "peer.js")),
    built=FOLDER / "node" / "node_modules" / "ioredis",
    warm_pairs=5_000,
)
GO = Toolchain(
    "Go",
    FOLDER / "go",
    build=("go", "build", "-o", "peer", "."),
    command=(str(FOLDER / "go" / "peer"),),
    built=FOLDER / "go" / "peer",
)
JAVA = Toolchain(
    "Java",
    FOLDER / "java",
    build=("mvn", "-q", "-B", "compile", "dependency:copy-dependencies"),
    command=("java", "-Xmx128m", "-cp", f"{FOLDER}/java/target/classes:{FOLDER}/java/target/dependency/*", "Peer"),
    built=FOLDER / "java" / "target" / "classes",
    warm_pairs=5_000,
    warm_seconds=1.0,
)


@frozen
class Peer:
    """A library of another language."""

    toolchain: Toolchain
    sends: frozenset[str]  # the commands that its clients send, without those of their scripts
    masters: tuple[int, ...]
    kinds: tuple[str, ...] = (LONE, PROCESSES)


_SET = frozenset({"set", "evalsha", "eval"})
_REDISSON = frozenset({"evalsha", "eval", "subscribe", "unsubscribe", "publish", "wait"})
PEERS = {
    "redis-semaphore (Node)": Peer(NODE, _SET, (1, 3, 5)),
    "redlock (Node)": Peer(NODE, _SET, (1, 3, 5)),
    "rueidislock (Go)": Peer(GO, _SET | {"client|tracking", "get"}, (1,)),
    "redislock (Go)": Peer(GO, _SET, (1,)),
    "redsync (Go)": Peer(GO, _SET, (1, 3, 5)),
    "Redisson lock (Java)": Peer(JAVA, _REDISSON, (1,)),
    "Redisson fair lock (Java)": Peer(JAVA, _REDISSON, (1,)),
    "Redisson read lock (Java)": Peer(JAVA, _REDISSON, (1,), kinds=(LONE,)),  # readers hand nothing over
    "Redisson permit (Java)": Peer(JAVA, _REDISSON, (1,)),
}


def built() -> dict[str, Peer]:
    """Return the peers that can be measured here."""
    return {name: peer for name, peer in PEERS.items() if peer.toolchain.is_built}


def missing() -> list[str]:
    """Return why the other peers are not measured, a line each."""
    return [
        f"not measured: {name}: {peer.toolchain.name} or its libraries are not here (python -m bench.peers)"
        for name, peer in PEERS.items()
        if not peer.toolchain.is_built
    ]


class ForeignPairs:
    """Uncontended pairs in a program of another language.

    The program stands still while others are measured: a JVM compiles and collects for a second after its own turn.
    """

    def __init__(self, contestant: str, ports: Sequence[int]) -> None:
        self._program = PEERS[contestant].toolchain.start()
        self.pid = self._program.pid
        urls = tuple(f"redis://127.0.0.1:{port}" for port in ports)
        self._program.send(asdict(Job(contestant, urls, f"bench-{time.monotonic_ns()}")))
        self._program.receive(READY_SECONDS)
        os.kill(self.pid, signal.SIGSTOP)
        if warm_pairs := PEERS[contestant].toolchain.warm_pairs:
            self.many(warm_pairs)

    def many(self, count: int) -> float:
        """Return the seconds that so many pairs took."""
        os.kill(self.pid, signal.SIGCONT)
        self._program.send({"pairs": count})
        seconds = float(self._program.receive(OVERDUE_SECONDS)["ns"]) / 1e9
        os.kill(self.pid, signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        """End the program."""
        os.kill(self.pid, signal.SIGCONT)
        self._program.close()


def build() -> None:
    """Build the programs, and name those that can't be built."""
    for toolchain in (NODE, GO, JAVA):
        if shutil.which(toolchain.build[0]) is None:
            print(f"{toolchain.name} is not here: its locks will not be measured")
            continue
        environment = {**os.environ, "CGO_ENABLED": "0"}  # so that nothing needs a compiler of C
        done = subprocess.run(toolchain.build, cwd=toolchain.folder, check=False, env=environment)
        print(f"{toolchain.name}: {'built' if done.returncode == 0 else 'could not be built: not measured'}")


if __name__ == "__main__":
    build()
