"""Measure the cost of waiters while nothing happens: of threads, and of tasks, each for its half of `bench.report`.

The processes differ in one thing: the object that their threads or tasks wait for. It is an `Event`, or a lock or a
permit that another client has; one for all, or several. The difference in memory is what relock needs for its waiters;
their commands are counted at the server. Threads that all begin at once open more connections than threads that come
one after the other, and leave more memory in use.

Tasks are watched, then half of them are cancelled, and the others get their turn.
The master notes its slowest script.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from attrs import asdict, frozen
from support.processes import Worker
from support.servers import Server

from bench.machine import cpu_seconds, memory_bytes, placed, placements, servers_started, thread_count
from bench.names import EVENT, KINDS
from bench.quiet import undisturbed
from bench.sleepers import PERMITS, READS, names_of, wanted
from relock import Client
from relock._keys import lock_keys, permit_keys
from relock._scripts import load, script_names

SETTLING_SECONDS = 5.0  # until the work of the beginning is over
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.02  # between two looks at the queues
NOTED_US = 200  # a script that keeps the master busy for longer is noted
NOTES_MAX = 100_000
THREADS_COUNT, THREADS_QUIET_SECONDS = 1_000, 25.0  # ten heartbeats
TASKS_COUNT, TASKS_QUIET_SECONDS = 10_000, 10.0  # four heartbeats


@frozen
class Cost:
    """The cost of a process while all its threads or tasks wait."""

    memory_bytes: int  # of the machine's memory
    cpu_part: float  # of one CPU
    threads: int  # beside the waiting ones and the main one
    subscriptions: int  # connections that listen for messages
    connections: int  # other than subscriptions
    calls_per_second: float  # commands that the process sends


@frozen
class Waited:
    """The beginning of a process of tasks, their waiting, and their end."""

    cost: Cost  # while nothing happened
    queued_seconds: float  # until all stood in the queues
    cancelled_seconds: float  # until the half that was cancelled had left them
    served_seconds: float  # until the others had had their turn, after the locks were released
    slowest_us: int  # of the slowest script, on the master; 0 if none took `NOTED_US`
    slowest: str  # the name of that script
    left: int  # places in the queues at the end


class Sleepers:
    """A process whose threads or tasks wait for locks, or for an `Event`, at a server of its own."""

    def __init__(self, server: Server, worker: Worker, names: list[str], how: str) -> None:
        self.server, self.worker, self.names = server, worker, names
        keys_of = permit_keys if how == PERMITS else lock_keys
        self._queues = [keys_of("lock", name).queue for name in names]

    def waiting(self, client: Any) -> int:
        """Return how many stand in the queues."""
        pipeline = client.pipeline(transaction=False)
        for queue in self._queues:
            pipeline.zcard(queue)
        return sum(pipeline.execute())

    def until_waiting(self, count: int) -> float:
        """Wait until so many stand in the queues; return when they did.

        The look uses one connection, which is closed before connections are counted.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self.server.client(socket_timeout=PATIENCE_SECONDS) as client:
            while (found := self.waiting(client)) != count:
                assert time.monotonic() < deadline, f"{found} wait, and not {count}"
                time.sleep(LOOK_SECONDS)
        return time.monotonic()

    def cost(self, threads: int, seconds: float) -> Cost:
        """Return the cost while nothing happens for so long; `threads` wait."""
        pid, server = self.worker.pid, self.server
        time.sleep(SETTLING_SECONDS)
        calls, cpu, begin = server.client_commands(), cpu_seconds(pid), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begin
        with server.client() as client:
            me = str(client.client_id())
            flags = [entry["flags"] for entry in client.client_list() if entry["id"] != me]
        return Cost(
            memory_bytes=memory_bytes(pid),
            cpu_part=(cpu_seconds(pid) - cpu) / passed,
            threads=thread_count(pid) - threads - 1,
            subscriptions=sum("P" in one for one in flags),
            connections=sum("P" not in one for one in flags),
            calls_per_second=(server.client_commands() - calls) / passed,
        )

    def serve(self, count: int) -> float:
        """Release the locks; return the time (s) until so many tasks have had their turn."""
        self.worker.send("serve")
        with closing(Client(self.server.url)) as client:
            began = time.monotonic()
            for name in self.names:
                client.force_release(name)
            ended, served = self.worker.receive(within=PATIENCE_SECONDS)
        assert served == count, f"{served} tasks had their turn, and not {count}"
        return float(ended - began)

    def let_in(self) -> float:
        """End the writers' holds; return the time (s) until no reader waits."""
        with closing(Client(self.server.url)) as client:
            began = time.monotonic()
            for name in self.names:
                client.force_release(name)
            return self.until_waiting(0) - began

    def slowest_script(self) -> tuple[int, str]:
        """Return for how long (µs) the slowest script kept the master, and its name."""
        with self.server.client() as client:
            noted = [(entry["duration"], entry["command"]) for entry in client.slowlog_get(NOTES_MAX)]
        names = {load(name).sha_bytes: name for name in script_names()}
        scripts = [
            (micros, names.get(command.split(b" ", 2)[1], "one that came with its source"))
            for micros, command in noted
            if command.startswith(b"EVAL")
        ]
        return max(scripts, default=(0, ""))


@contextmanager
def sleepers(how: str, count: int, locks: int) -> Iterator[tuple[Sleepers, float]]:
    """Start a process, and wait until all are queued; give it, and how long (s) that took."""
    with servers_started(1) as (server,), ExitStack() as stack:
        names = names_of(locks)
        with closing(Client(server.url, ttl=PATIENCE_SECONDS, renew=False)) as holder:
            for name in names:
                assert wanted(holder, "writer" if how == READS else how, name).acquire()
        server.cli("CONFIG", "SET", "slowlog-max-len", NOTES_MAX)
        server.cli("CONFIG", "SET", "slowlog-log-slower-than", NOTED_US)
        server.cli("SLOWLOG", "RESET")
        stack.enter_context(placed([server], placements()[-1]))  # or the scripts would be preempted, and seem slow
        worker = Worker("bench.sleepers", how, str(count), str(locks), server.url)
        stack.callback(worker.close)
        began = worker.receive(within=PATIENCE_SECONDS)
        found = Sleepers(server, worker, names, how)
        yield found, found.until_waiting(count if locks else 0) - began


# Threads --------------------------------------------------------------------------------------------------------------

THREADS_KINDS = {
    EVENT: ("threads", 0),
    "one lock": ("threads", 1),
    "one lock, begun at once": ("burst", 1),
    "a lock each": ("threads", THREADS_COUNT),
    "one permit": (PERMITS, 1),
    "one read lock": (READS, 1),
}


def measure_threads(how: str, count: int, locks: int, seconds: float) -> dict[str, Any]:
    """Return the cost of threads that wait for so many locks; of readers, also when all had the lock."""
    with sleepers(how, count, locks) as (found, _):
        figures = asdict(found.cost(count, seconds))
        return figures if how != READS else {**figures, "served_seconds": found.let_in()}


def measure_all_threads(rounds: int) -> dict[str, Any]:
    """Return the cost of each kind by round."""

    def measure(kind: str) -> dict[str, Any]:
        how, locks = THREADS_KINDS[kind]
        return measure_threads(how, THREADS_COUNT, locks, THREADS_QUIET_SECONDS)

    return {"threads": THREADS_COUNT, "rounds": _by_round(THREADS_KINDS, rounds, measure)}


def _by_round(kinds: Iterable[str], rounds: int, measure: Callable[[str], dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the figures of each kind by round, with the part of the round's CPU time that was stolen."""
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, of_kind in found.items():
            figures, stolen = undisturbed(partial(measure, kind))
            of_kind.append({**figures, "stolen": stolen})
    return found


# Tasks ----------------------------------------------------------------------------------------------------------------

LOCKS_OF = {"nobody": 0, "event": 0, "lock": 1, "locks": 20}


def measure_tasks(rounds: int) -> dict[str, Any]:
    """Return the figures of each kind by round."""

    def measure(kind: str) -> dict[str, Any]:
        figures = asdict(watch(kind, TASKS_COUNT, TASKS_QUIET_SECONDS))
        return {**figures.pop("cost"), **figures}

    return {"tasks": TASKS_COUNT, "rounds": _by_round(KINDS, rounds, measure)}


def watch(kind: str, count: int, seconds: float) -> Waited:
    """Play one process of tasks."""
    with sleepers("tasks", 0 if kind == "nobody" else count, LOCKS_OF[kind]) as (found, queued_seconds):
        cost = found.cost(0, seconds)
        if not found.names:
            return Waited(cost, *(0.0, 0.0, 0.0), *found.slowest_script(), left=0)
        found.worker.send("cancel")
        cancelled = found.worker.receive(within=PATIENCE_SECONDS)
        others = count - count // 2
        cancelled_seconds = found.until_waiting(others) - cancelled
        served_seconds = found.serve(others)
        with found.server.client() as client:
            left = found.waiting(client)
        return Waited(cost, queued_seconds, cancelled_seconds, served_seconds, *found.slowest_script(), left=left)
