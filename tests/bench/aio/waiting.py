"""Measures what many waiting tasks of one process cost, and how they come and go: the third part of ``bench.aio``.

All begin in one turn of the loop, and wait for one lock that somebody else has, or for twenty. They are watched while
nothing happens; then half of them are cancelled, and the others get their turn. The master counts commands, and notes
its slowest script; where there are two CPUs, it has one to itself. A process that only has a client, and one whose
tasks wait for an `asyncio.Event`, stand beside it.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import redis
from attrs import asdict, frozen
from support.processes import Worker
from support.servers import Server

from bench.aio.names import KINDS
from bench.aio.sleepers import names_of
from bench.ground import own_server
from bench.machine import placed, placements
from bench.quiet import undisturbed
from bench.waiting import PATIENCE_SECONDS, SETTLING_SECONDS, Cost, cost_of
from relock import Client
from relock._scripts import load, script_names

TASKS_COUNT = 10_000
QUIET_SECONDS = 10.0  # four heartbeats
LOOK_SECONDS = 0.02  # between two looks at the queues
NOTED_US = 200  # a script that keeps the master for longer is noted
NOTES_MAX = 100_000


@frozen
class Waited:
    """How the tasks of one process came, waited and went.

    Attributes:
        cost: what they cost while nothing happened.
        queued_seconds: until all stood in the queues.
        cancelled_seconds: until the half that was cancelled had left them.
        served_seconds: until the others had had their turn, after the locks were released.
        slowest_us: for how long the slowest script kept the master; 0 if none did for `NOTED_US`.
        slowest: its name.
        left: what is in the queues at the end.
    """

    cost: Cost
    queued_seconds: float
    cancelled_seconds: float
    served_seconds: float
    slowest_us: int
    slowest: str
    left: int


def measure(tasks: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Each kind, round after round, and what was stolen of each."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, of_kind in found.items():
            one, stolen = undisturbed(partial(figures_of, kind, tasks, seconds))
            of_kind.append({**one, "stolen": stolen})
    return {"tasks": tasks, "rounds": found}


def figures_of(kind: str, tasks: int, seconds: float) -> dict[str, Any]:
    """The figures of one process, as they are kept."""
    figures = asdict(watch(kind, tasks, seconds))
    return {**figures.pop("cost"), **figures}


def watch(kind: str, tasks: int, seconds: float) -> Waited:
    """Plays one process."""
    names = names_of(kind)
    with own_server() as server, ExitStack() as stack:
        with closing(Client(server.url)) as holder:
            for name in names:
                assert holder.lock(name, ttl=PATIENCE_SECONDS, renew=False).acquire()
        _note_slow_scripts(server)
        stack.enter_context(placed([server], placements()[-1]))  # or its scripts would be preempted, and seem slow
        worker = Worker("bench.aio.sleepers", kind, str(tasks), server.url)
        stack.callback(worker.close)
        began = worker.receive(within=PATIENCE_SECONDS)
        queued_at = _until_waiting(server, names, tasks if names else 0)
        time.sleep(SETTLING_SECONDS)
        cost = cost_of(worker.pid, server, 0, seconds)
        if not names:
            return Waited(cost, *(0.0, 0.0, 0.0), *_slowest_script(server), left=0)
        worker.send("cancel")
        cancelled = worker.receive(within=PATIENCE_SECONDS)
        left_at = _until_waiting(server, names, tasks - tasks // 2)
        served_seconds = _serve(worker, server, names, tasks - tasks // 2)
        with server.client() as client:
            left = _waiting(client, names)
        return Waited(
            cost,
            queued_at - began,
            left_at - cancelled,
            served_seconds,
            *_slowest_script(server),
            left=left,
        )


def _waiting(client: "redis.Redis", names: Sequence[str]) -> int:
    """How many stand in the queues."""
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.zcard(f"lock:{{{name}}}:queue")
    return sum(pipeline.execute())


def _until_waiting(server: Server, names: Sequence[str], count: int) -> float:
    """When so many stood in the queues, by one connection, which is closed before connections are counted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with server.client(socket_timeout=PATIENCE_SECONDS) as client:
        while (found := _waiting(client, names)) != count:
            assert time.monotonic() < deadline, f"{found} wait, and not {count}"
            time.sleep(LOOK_SECONDS)
    return time.monotonic()


def _serve(worker: Worker, server: Server, names: Sequence[str], count: int) -> float:
    """Releases the locks; how long it takes until so many tasks have had their turn."""
    worker.send("serve")
    with closing(Client(server.url)) as client:
        began = time.monotonic()
        for name in names:
            client.force_release(name)
        ended, served = worker.receive(within=PATIENCE_SECONDS)
    assert served == count, f"{served} tasks had their turn, and not {count}"
    return float(ended - began)


def _note_slow_scripts(server: Server) -> None:
    server.cli("CONFIG", "SET", "slowlog-max-len", NOTES_MAX)
    server.cli("CONFIG", "SET", "slowlog-log-slower-than", NOTED_US)
    server.cli("SLOWLOG", "RESET")


def _slowest_script(server: Server) -> tuple[int, str]:
    """For how long the slowest script kept the master, and its name."""
    with server.client() as client:
        noted = [(entry["duration"], entry["command"]) for entry in client.slowlog_get(NOTES_MAX)]
    names = {load(name).sha_bytes: name for name in script_names()}
    scripts = [
        (micros, names.get(command.split(b" ", 2)[1], "one that came with its source"))
        for micros, command in noted
        if command.startswith(b"EVAL")
    ]
    return max(scripts, default=(0, ""))
