"""Measures what renewing costs: ``python -m bench.renewal [--holds N] [--ttl S]`` in ``tests``.

One client has many holds, all granted as fast as they come. Somebody else acquires and releases meanwhile, in a
process of his own and then in a thread beside the watchdog. His delays while renewals are under way are set against
those of the time between.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from attrs import asdict, frozen
from support.processes import Worker

from bench.bystander import Bystander, Delays
from bench.ground import own_server
from relock import Client
from relock._core.hold import RENEW_PART
from relock._core.renewal import BATCH_MIN

HOLDS = 10_000
TTL_SECONDS = 30.0
PERIODS = 2
SAMPLE_SECONDS = 0.01
NEAR_SECONDS = 0.02  # a delay is one of a renewal's if one was counted so shortly before or after
BLOCKED_US = 1_000


@frozen
class Delay:
    """How long an acquire took (ms): the median, and what 99 of 100 took at most."""

    p50_ms: float
    p99_ms: float
    count: int


@frozen
class Cost:
    """What renewing costs.

    Attributes:
        renewals: how many there were.
        cpu_us: for how long one keeps the client's CPU busy.
        cpu_part: the part of one CPU that this is, with all holds renewed once in each third of their leases.
        spread_seconds: for how long renewals were under way, in each period.
        server_us: for how long one keeps the master busy.
        blocked: single commands that kept the master busy for more than a millisecond.
        delays: of the other's acquires, by who he is and what is under way.
    """

    renewals: int
    cpu_us: float
    cpu_part: float
    spread_seconds: float
    server_us: float
    blocked: int
    delays: dict[str, Delay]


def measure(holds: int, ttl: float) -> Cost:
    """Renews so many holds for some periods, first beside another process, then beside another thread."""
    with own_server() as server, ExitStack() as stack:
        client = stack.enter_context(closing(Client(server.url, ttl=ttl)))
        for number in range(holds):
            client.lock(f"held-{number}").acquire()
        worker = Worker("bench.bystander", server.url)
        stack.callback(worker.close)
        server.cli("CONFIG", "SET", "slowlog-log-slower-than", BLOCKED_US)
        server.cli("CONFIG", "RESETSTAT")
        worker.send("from now on")
        worker.receive()
        renewed, cpu = client.statistics().renewals, time.process_time()
        moments = watch_renewals(client, PERIODS * ttl / RENEW_PART)
        cpu_seconds, renewals = time.process_time() - cpu, client.statistics().renewals - renewed
        worker.send("until now")
        in_process = by_renewals("another process", worker.receive(), moments)
        scripts = server.client().info("commandstats")["cmdstat_evalsha"]
        blocked = server.cli("SLOWLOG", "LEN")
        worker.close()
        thread = stack.enter_context(closing(Bystander(server.url)))
        also = watch_renewals(client, PERIODS * ttl / RENEW_PART)
        in_thread = by_renewals("another thread", thread.take(), also)
        assert client.statistics().losses == 0
        return Cost(
            renewals=renewals,
            cpu_us=cpu_seconds / renewals * 1e6,
            cpu_part=cpu_seconds / renewals * holds / (ttl / RENEW_PART),
            spread_seconds=len(moments) * SAMPLE_SECONDS / PERIODS,
            server_us=scripts["usec_per_call"],
            blocked=blocked,
            delays=in_process | in_thread,
        )


def watch_renewals(client: Client, seconds: float) -> list[float]:
    """The moments at which renewals were counted, of so many seconds."""
    moments, end, before = [], time.monotonic() + seconds, client._session.counters.renewals
    while (now := time.monotonic()) < end:
        time.sleep(SAMPLE_SECONDS)
        after = client._session.counters.renewals
        if after != before:
            moments.append(now)
            before = after
    return moments


def by_renewals(who: str, delays: Delays, moments: Sequence[float]) -> dict[str, Delay]:
    """The delays while renewals are under way, and those of the time between."""
    near = {round(moment / NEAR_SECONDS) + offset for moment in moments for offset in (-1, 0, 1)}
    groups: dict[str, list[float]] = {f"{who}, between": [], f"{who}, while renewing": []}
    for began, seconds in delays:
        is_near = round(began / NEAR_SECONDS) in near
        groups[f"{who}, while renewing" if is_near else f"{who}, between"].append(seconds * 1000)
    return {
        group: Delay(statistics.median(times), statistics.quantiles(times, n=100)[-1], len(times))
        for group, times in groups.items()
    }


def show(cost: Cost) -> None:
    """What it costs, in words."""
    print(f"{cost.renewals} renewals: {cost.cpu_us:.1f} us of the client's CPU each, {cost.cpu_part:.2%} of one in all")
    print(f"renewals are under way for {cost.spread_seconds:.2f} s of each period")
    write_ms = cost.server_us * BATCH_MIN / 1000
    print(f"the master is busy for {cost.server_us:.1f} us with each, for {write_ms:.2f} ms with those of one write")
    print(f"{cost.blocked} single commands took more than a millisecond")
    for who, delay in cost.delays.items():
        print(f"an acquire of {who}: {delay.p50_ms:.2f} ms, 99 % within {delay.p99_ms:.2f} ms ({delay.count})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.renewal", description="What renewing costs.")
    parser.add_argument("--holds", type=int, default=HOLDS, help="how many (default: %(default)s)")
    parser.add_argument("--ttl", type=float, default=TTL_SECONDS, help="their lease in seconds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    cost = measure(options.holds, options.ttl)
    if options.json:
        print(json.dumps(asdict(cost), indent=2))
    else:
        show(cost)


if __name__ == "__main__":
    main()
