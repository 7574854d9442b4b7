"""Measures what waiters cost while nothing happens: ``python -m bench.waiting [--waiters N]`` in ``tests``.

Processes are compared that differ in one thing: what their threads wait for. In the first it is a `threading.Event`, in
the others a lock that somebody else has: the same for all, or one for each. What these take more of the memory is what
relock needs for its waiters; what they do meanwhile is counted at the server as well. Threads that all begin at once
open more connections than those that come one after the other, and leave more behind of that.
"""

import argparse
import json
import time
from contextlib import ExitStack, closing

from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table
from support.processes import Worker
from support.servers import Server
from support.until import until

from bench.ground import cpu_seconds, memory_bytes, own_server, thread_count
from bench.sleepers import name_of
from relock import Client

WAITERS = 1_000
QUIET_SECONDS = 25.0  # ten heartbeats
SETTLING_SECONDS = 5.0  # until what the beginning was busy with is over
PATIENCE_SECONDS = 300.0
KINDS = {"event": "an Event", "lock": "one lock", "burst": "one lock, begun at once", "locks": "a lock each"}


@frozen
class Cost:
    """What a process costs while all its threads wait.

    Attributes:
        memory_bytes: what it takes of the machine's memory.
        cpu_part: the part of one CPU that it keeps busy.
        threads: how many it has beside those that wait and the main one.
        subscriptions: connections that listen for messages.
        connections: the others.
        calls_per_second: commands that it sends, each second.
    """

    memory_bytes: int
    cpu_part: float
    threads: int
    subscriptions: int
    connections: int
    calls_per_second: float


def measure(kind: str, waiters: int, seconds: float) -> Cost:
    """What a process costs whose threads wait for what `kind` says."""
    with own_server() as server, ExitStack() as stack:
        holder = stack.enter_context(closing(Client(server.url)))
        names = {name_of(kind, number) for number in range(waiters)}
        for name in names if kind != "event" else ():
            assert holder.lock(name, ttl=PATIENCE_SECONDS, renew=False).acquire()
        worker = Worker("bench.sleepers", kind, str(waiters), server.url)
        stack.callback(worker.close)
        assert worker.receive(within=PATIENCE_SECONDS) == "started"
        if kind != "event":
            until(lambda: waiting(server, names) == waiters, within=PATIENCE_SECONDS, what="all wait")
        holder.close()
        time.sleep(SETTLING_SECONDS)
        return cost_of(worker.pid, server, waiters, seconds)


def waiting(server: Server, names: set[str]) -> int:
    """How many stand in the queues of the locks with these names."""
    with server.client() as client:
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.zcard(f"lock:{{{name}}}:queue")
        return sum(pipeline.execute())


def cost_of(pid: int, server: Server, waiters: int, seconds: float) -> Cost:
    """What a process costs while nothing happens for so long."""
    calls, cpu, begin = server.client_commands(), cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    with server.client() as client:
        me = str(client.client_id())
        flags = [entry["flags"] for entry in client.client_list() if entry["id"] != me]
    return Cost(
        memory_bytes=memory_bytes(pid),
        cpu_part=(cpu_seconds(pid) - cpu) / passed,
        threads=thread_count(pid) - waiters - 1,
        subscriptions=sum("P" in one for one in flags),
        connections=sum("P" not in one for one in flags),
        calls_per_second=(server.client_commands() - calls) / passed,
    )


def show(costs: dict[str, Cost], waiters: int) -> None:
    """A table of what they cost."""
    table = Table(title=f"{waiters} threads that wait, while nothing happens")
    table.add_column("for")
    for title in ("MB more", "of a CPU", "threads more", "subscriptions", "connections", "commands/s"):
        table.add_column(title, justify="right")
    idle = costs["event"].memory_bytes
    for kind, cost in costs.items():
        table.add_row(
            KINDS[kind],
            f"{(cost.memory_bytes - idle) / 1e6:.1f}",
            f"{cost.cpu_part:.2%}",
            str(cost.threads),
            str(cost.subscriptions),
            str(cost.connections),
            f"{cost.calls_per_second:.1f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waiting", description="What waiters cost.")
    parser.add_argument("--waiters", type=int, default=WAITERS, help="how many wait (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=QUIET_SECONDS, help="for how long they are watched (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    costs = {kind: measure(kind, options.waiters, options.seconds) for kind in KINDS}
    if options.json:
        print(json.dumps({kind: asdict(cost) for kind, cost in costs.items()}, indent=2))
    else:
        show(costs, options.waiters)


if __name__ == "__main__":
    main()
