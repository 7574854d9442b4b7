"""Measure the cost of waiters while nothing happens: of threads, and of tasks, each for its half of `bench.report`.

The processes differ in one thing: the object that their threads or tasks wait for. It is an `Event`, or a lock or a
permit that another client has; one for all, or several. The difference in memory is what relock needs for its waiters;
their commands are counted at the server. Threads that all begin at once open more connections than threads that come
one after the other, and leave more memory in use.

Tasks are watched, then half of them are cancelled, and the others get their turn.
The master notes its slowest script.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from support.processes import Worker
from support.servers import Server

from bench.machine import cpu_seconds, memory_bytes, placed, placements, servers_started, thread_count
from bench.names import EVENT, READERS, TASKS, THREADS
from bench.quiet import undisturbed
from bench.sleepers import BURST, PERMITS, READS, names_of, wanted
from relock import Client
from relock._keys import lock_keys, permit_keys
from relock._scripts import load, script_names

SETTLING_SECONDS = 5.0  # until the work of the beginning is over
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.02  # between two looks at the queues
NOTED_US = 200  # a script that keeps the master busy for longer is noted
NOTES_MAX = 100_000
THREADS_COUNT, THREADS_SECONDS = 1_000, 25.0  # ten heartbeats
TASKS_COUNT, TASKS_SECONDS = 10_000, 10.0  # four heartbeats

Figures = dict[str, Any]


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

    def cost(self, threads: int, seconds: float) -> Figures:
        """Return the cost while nothing happens for so long, and `threads` wait."""
        pid, server = self.worker.pid, self.server
        time.sleep(SETTLING_SECONDS)
        calls, cpu, begin = server.client_commands(), cpu_seconds(pid), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - begin
        with server.client() as client:
            me = str(client.client_id())
            flags = [entry["flags"] for entry in client.client_list() if entry["id"] != me]
        return {
            "memory_bytes": memory_bytes(pid),
            "cpu_part": (cpu_seconds(pid) - cpu) / passed,  # of one CPU
            "threads": thread_count(pid) - threads - 1,  # beside the waiting ones and the main one
            "subscriptions": sum("P" in one for one in flags),  # connections that listen for messages
            "connections": sum("P" not in one for one in flags),
            "calls_per_second": (server.client_commands() - calls) / passed,
        }

    def cancel_and_serve(self, count: int) -> Figures:
        """Cancel half of the tasks, then release the locks for the others; return the times (s) and the places left."""
        if not self.names:
            return {"cancelled_seconds": 0.0, "served_seconds": 0.0, "left": 0}
        self.worker.send("cancel")
        cancelled, others = self.worker.receive(within=PATIENCE_SECONDS), count - count // 2
        cancelled_seconds = self.until_waiting(others) - cancelled
        self.worker.send("serve")
        with closing(Client(self.server.url)) as client:
            began = time.monotonic()
            for name in self.names:
                client.force_release(name)
            ended, served = self.worker.receive(within=PATIENCE_SECONDS)
        assert served == others, f"{served} tasks had their turn, and not {others}"
        with self.server.client() as client:
            left = self.waiting(client)
        return {"cancelled_seconds": cancelled_seconds, "served_seconds": ended - began, "left": left}

    def let_in(self) -> float:
        """End the writers' holds; return the time (s) until no reader waits."""
        with closing(Client(self.server.url)) as client:
            began = time.monotonic()
            for name in self.names:
                client.force_release(name)
            return self.until_waiting(0) - began

    def slowest_script(self) -> Figures:
        """Return for how long the slowest script kept the master, and its name; nothing took `NOTED_US` if it is 0."""
        with self.server.client() as client:
            noted = [(entry["duration"], entry["command"]) for entry in client.slowlog_get(NOTES_MAX)]
        names = {load(name).sha_bytes: name for name in script_names()}
        scripts = [
            (micros, names.get(command.split(b" ", 2)[1], "one that came with its source"))
            for micros, command in noted
            if command.startswith(b"EVAL")
        ]
        slowest_us, slowest = max(scripts, default=(0, ""))
        return {"slowest_us": slowest_us, "slowest": slowest}


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
        yield found, found.until_waiting(count) - began if locks else 0.0


def watch(how: str, count: int, locks: int, seconds: float) -> Figures:
    """Return the cost of a process of threads or tasks that wait for so many locks while nothing happens for so long.

    Of readers, return also the time until all had the lock; of tasks, the time of each step to the end.
    """
    with sleepers(how, count, locks) as (found, queued_seconds):
        figures = found.cost(0 if how == TASKS else count, seconds)
        if how == READS:
            figures["served_seconds"] = found.let_in()
        if how == TASKS:
            figures |= {"queued_seconds": queued_seconds, **found.cancel_and_serve(count), **found.slowest_script()}
        return figures


#: What is measured of each half, by kind: how so many threads or tasks wait, and for how many locks.
KINDS: dict[str, dict[str, tuple[str, int, int]]] = {
    "threads": {
        EVENT: (THREADS, THREADS_COUNT, 0),
        "one lock": (THREADS, THREADS_COUNT, 1),
        "one lock, begun at once": (BURST, THREADS_COUNT, 1),
        "a lock each": (THREADS, THREADS_COUNT, THREADS_COUNT),
        "one permit": (PERMITS, THREADS_COUNT, 1),
        READERS: (READS, THREADS_COUNT, 1),
    },
    "tasks": {
        "nobody": (TASKS, 0, 0),
        "event": (TASKS, TASKS_COUNT, 0),
        "lock": (TASKS, TASKS_COUNT, 1),
        "locks": (TASKS, TASKS_COUNT, 20),
    },
}


def measure(half: str, rounds: int) -> Figures:
    """Return the figures of each kind of a half by round, with the part of the round's CPU time that was stolen."""
    count, seconds = (THREADS_COUNT, THREADS_SECONDS) if half == "threads" else (TASKS_COUNT, TASKS_SECONDS)
    found: dict[str, list[Figures]] = {kind: [] for kind in KINDS[half]}
    for _ in range(rounds):
        for kind, of_kind in found.items():
            figures, stolen = undisturbed(partial(watch, *KINDS[half][kind], seconds))
            of_kind.append({**figures, "stolen": stolen})
    return {half: count, "rounds": found}
